"""railcni status without a network: the installation in the runtime's plugin folder, and whether it is whole."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import Any

from cni.cli import warm
from cni.cli.terminal import output
from cni.library.installation import health, layout
from cni.library.installation.layout import NAMES, REPLACED, Installation
from cni.library.installation.options import folder_of, state_of
from cni.library.inventory import attachments as recorded
from cni.shared.spec.errors import CniError


def show(options: argparse.Namespace) -> int:
    """Print it; 0 when it is whole, 1 when it is not or there is none."""
    folder, state = folder_of(options), state_of(options)
    found = layout.read(folder.path)
    faults = health.faults(folder.path, folder.shown, found, state)
    attached = _attachments(state, options.root, faults)
    running = warm.found(options.root)
    document: dict[str, Any] = {
        "folder": folder.shown,
        "version": found.current or None,
        "previous": found.previous or None,
        "names": {name: _name(name, found) for name in NAMES},
        "replaced": sorted(found.kept),
        "stateDir": options.state_dir,
        "attachments": attached,
        "warm": [asdict(workers) for workers in running],
        "healthy": not faults,
        "faults": faults,
    }
    workers = "; ".join(map(str, running)) or "none at the moment"
    output.show(options.output, document, lambda: _print(document, workers))
    return int(bool(faults))


def _attachments(state: str, root: str, faults: list[str]) -> dict[str, int] | None:
    """The number that live, and of those whose namespace is gone; in a container, which sees no namespaces, all live. None
    when this user cannot read them."""
    try:
        os.stat(state)
        found = recorded.found(directory=state)
    except FileNotFoundError:
        found = []
    except OSError as fault:
        faults.append(f"cannot use {state}: {fault.strerror}; run as root")
        return None
    except CniError as fault:
        faults.append(fault.msg)
        return None
    live = sum(1 for a in found if a["alive"] or root != "/")
    return {"live": live, "gone": len(found) - live}


def _name(name: str, found: Installation) -> str:
    if name in found.ours:
        return f"railcni's; {REPLACED} what was there" if name in found.kept else "railcni's"
    return "another's" if name in found.foreign else "not there"


def _print(document: dict[str, Any], workers: str) -> None:
    attached = document["attachments"]
    rows = [
        ("plugin folder", document["folder"]),
        ("version", document["version"] or "none: run `railcni install`"),
        ("version before", document["previous"]),
        *((name, text) for name, text in document["names"].items()),
        ("attachments", "{live} live, {gone} whose namespace is gone".format(**attached) if attached else "not known"),
        ("warm workers", workers),
        ("state", document["stateDir"]),
        ("health", "whole" if document["healthy"] else output.counted(len(document["faults"]), "fault")),
    ]
    output.print_table(("installation", "found"), rows)
    for fault in document["faults"]:
        output.print_fault(f"railcni: {fault}")
