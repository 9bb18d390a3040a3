"""railcni vfs: show, plan and apply the virtual functions of the node's cards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cni.cli.device_plugin import CONFIG, FOLDER
from cni.cli.nad import command as nad
from cni.cli.terminal import output, subcommand
from cni.library.lint import ERROR
from cni.library.resources.models import VfPolicy
from cni.library.vfs import cards
from cni.library.vfs.apply import apply
from cni.library.vfs.plan import NodeCards, VfPlan, VfStep, plan

_SHOWN = ("card", "netdev", "VF", "function", "driver", "netdev of the VF", "RDMA", "in use by")
_PLANNED = ("of", "what", "now", "then")


def register(commands: subcommand.Commands) -> None:
    """Add `vfs`."""
    about = "show the virtual functions (VFs) of the node's NICs, and make those of a configuration"
    verbs = subcommand.add_group(commands, "vfs", about)
    for verb, run, text in (
        ("show", _show, "show the NICs that can have VFs, their VFs, and who uses each VF"),
        ("plan", _plan, "show what `apply` would do, and change nothing"),
        ("apply", _apply, "make the VFs; a NIC stays as it is if a VF in use would be removed"),
    ):
        one = subcommand.add(verbs, verb, text, run=run, shows=True)
        if verb != "show":
            about = (
                "the device plugin's configuration (virtualFunctions), or SriovNetworkNodePolicy objects of"
                f" sriov-network-operator in YAML or JSON; - for stdin; can be repeated; default: {CONFIG}"
            )
            one.add_argument("--config", action="append", metavar="FILE", help=about)
        subcommand.option(one, "--root", "/", "the folder that has the node's sys, dev and proc")
        subcommand.option(one, "--kubelet-dir", FOLDER, "kubelet's folder of device plugins")


def _show(options: argparse.Namespace) -> int:
    found = cards.read(options.root.rstrip("/"), options.kubelet_dir)
    if not found.cards:
        output.print_fault("railcni: no card here can have VFs: its firmware or the BIOS may have SR-IOV switched off")
    output.show(options.output, _document(found), lambda: output.print_table(_SHOWN, _rows(found)))
    return 0


def _rows(found: NodeCards) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for card in found.cards:
        own, count = card.function, f"{len(card.vfs)} of {card.most}"
        rows.append((own.id, ", ".join(own.netdevs), count, None, own.driver, None, None, None))
        for number, vf in sorted(card.vfs.items()):
            rdma = ", ".join(vf.verbs) or ("yes" if vf.has_rdma else "")
            rows.append((None, None, number, vf.id, vf.driver, ", ".join(vf.netdevs), rdma, found.uses.get(vf.id, "")))
    return rows


def _document(found: NodeCards) -> list[dict[str, Any]]:
    return [
        {
            "card": card.function.id,
            "netdevs": list(card.function.netdevs),
            "driver": card.function.driver,
            "most": card.most,
            "vfs": [
                {
                    "number": number,
                    "function": vf.id,
                    "driver": vf.driver,
                    "netdevs": list(vf.netdevs),
                    "rdma": list(vf.verbs),
                    "usedBy": found.uses.get(vf.id, ""),
                }
                for number, vf in sorted(card.vfs.items())
            ],
        }
        for card in found.cards
    ]


def _plan(options: argparse.Namespace) -> int:
    policies, faulty = _policies(options)
    found = plan(policies, cards.read(options.root.rstrip("/"), options.kubelet_dir))
    _print(found, options.output, faulty)
    return int(faulty or bool(found.refused))


def _apply(options: argparse.Namespace) -> int:
    policies, faulty = _policies(options)
    done: list[VfStep] = []
    refused = apply(policies, options.root.rstrip("/"), options.kubelet_dir, done.append)
    _print(VfPlan(tuple(done), tuple(refused)), options.output, faulty)
    return int(faulty or bool(refused))


def _policies(options: argparse.Namespace) -> tuple[list[VfPolicy], bool]:
    """The policies of the files, and whether something is wrong in these, which is printed."""
    from cni.device_plugin.node import read_config

    config = read_config(options.config or [CONFIG])
    nad.print_findings(config.findings, sys.stderr)
    faulty = any(f.severity == ERROR for f in config.findings)
    if not config.policies and not faulty:
        output.print_fault("railcni: the configuration asks for no VFs: add virtualFunctions, or name another file")
    return config.policies, faulty


def _print(found: VfPlan, form: str, faulty: bool) -> None:
    """`faulty`: a file has a fault, so that nobody knows whether there is nothing to do."""
    document = {
        "steps": [{"of": s.place, "what": s.what, "now": s.now, "then": s.then} for s in found.steps],
        "refused": list(found.refused),
    }
    rows = [(step.place, step.what, step.now, step.then) for step in found.steps]
    if form != "table":
        output.print_data(document, form)
    elif rows:
        output.print_table(_PLANNED, rows)
    elif not found.refused and not faulty:
        print("nothing to do")
    for reason in found.refused:
        output.print_fault(f"railcni: {reason}")
