"""railcni vfs: shows, plans and makes the virtual functions (VFs) of the node's NICs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from cni.cli.device_plugin import CONFIG, FOLDER, read
from cni.cli.terminal import common, output, subcommand
from cni.resources.vfs import cards
from cni.resources.vfs.apply import apply
from cni.resources.vfs.plan import NodeCards, VfStep, plan

_SHOWN = ("card", "netdev", "VF", "function", "driver", "netdev of the VF", "RDMA", "in use by")
_PLANNED = ("of", "what", "now", "then")


def register(commands: subcommand.Commands) -> None:
    """Add the command `vfs` and its subcommands."""
    about = "show the virtual functions (VFs) of the node's NICs, and make those of a configuration"
    verbs = subcommand.add_group(commands, "vfs", about)
    for verb, run, text in (
        ("show", _show, "show the NICs that can have VFs, their VFs, and who uses each VF"),
        ("plan", _plan, "show what `apply` would do, and change nothing"),
        ("apply", partial(_plan, makes=True), "make the VFs; a NIC stays as it is if a VF in use would be removed"),
    ):
        one = subcommand.add(verbs, verb, text, run=run, shows=True, lists=verb == "show")
        if verb != "show":
            about = "its virtualFunctions, or SriovNetworkNodePolicy objects of sriov-network-operator in YAML or JSON"
            common.add(one, "config", f"{about}; - for stdin; default: {CONFIG}", action="append")
        common.add(one, "root", "below it are sys, dev and proc", "/")
        common.add(one, "kubelet-dir", "", FOLDER)


def _show(options: argparse.Namespace) -> int:
    found = cards.read(options.root.rstrip("/"), options.kubelet_dir)
    empty = "no card here can have VFs: its firmware or the BIOS may have SR-IOV switched off"
    output.show(options.output, _document(found), lambda: output.print_table(_SHOWN, _rows(found), empty=empty))
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
    documents = []
    for card in found.cards:
        own, vfs = card.function, []
        for number, vf in sorted(card.vfs.items()):
            names = {"netdevs": list(vf.netdevs), "rdma": list(vf.verbs), "usedBy": found.uses.get(vf.id, "")}
            vfs.append({"number": number, "function": vf.id, "driver": vf.driver, **names})
        of_card = {"card": own.id, "netdevs": list(own.netdevs), "driver": own.driver, "most": card.most}
        documents.append({**of_card, "vfs": vfs})
    return documents


def _plan(options: argparse.Namespace, makes: bool = False) -> int:
    """Print the steps that make the configured VFs; if `makes`, carry them out. Return the exit code."""
    config, faulty = read(options)
    if not config.policies and not faulty:
        output.print_fault("railcni: the configuration asks for no VFs: add virtualFunctions, or name another file")
    root = options.root.rstrip("/")
    steps: list[VfStep] = []
    if makes:
        refused = list(apply(config.policies, root, options.kubelet_dir, steps.append))
    else:
        found = plan(config.policies, cards.read(root, options.kubelet_dir))
        steps, refused = list(found.steps), list(found.refused)
    rows = [(step.place, step.what, step.now, step.then) for step in steps]
    if options.output != "table":
        documents = [dict(zip(_PLANNED, row, strict=True)) for row in rows]
        output.print_data({"steps": documents, "refused": refused}, options.output)
    elif rows:
        output.print_table(_PLANNED, rows)
    elif not refused and not faulty:  # a file with faults may need further steps
        print("nothing to do")
    for reason in refused:
        output.print_fault(f"railcni: {reason}")
    return int(faulty or bool(refused))
