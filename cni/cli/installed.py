"""railcni status without a network: the installation in the runtime's plugin folder, and whether it is whole."""

from __future__ import annotations

import argparse
import os
from typing import Any

from cni.cli import attachments, output
from cni.cli.install import folder_of, state_of
from cni.cli.installation import facts as facts_of
from cni.cli.installation import health
from cni.cli.installation.layout import NAMES, REPLACED, Facts
from cni.spec.errors import CniError


def show(options: argparse.Namespace) -> int:
    """Print it; 0 when it is whole, 1 when not or when there is none."""
    folder, state = folder_of(options), state_of(options)
    facts = facts_of.read(folder.path)
    faults = health.faults(folder.path, folder.shown, facts, state)
    live, gone = _attachments(state, options.root, faults)
    names = {name: _name(name, facts) for name in NAMES}
    document: dict[str, Any] = {
        "folder": folder.shown,
        "version": facts.current or None,
        "previous": facts.previous or None,
        "names": names,
        "replaced": sorted(facts.kept),
        "stateDir": options.state_dir,
        "attachments": {"live": live, "gone": gone},
        "healthy": not faults,
        "faults": faults,
    }
    if options.output != "table":
        output.print_data(document, options.output)
    else:
        _print(document)
    return int(bool(faults))


def _attachments(state: str, root: str, faults: list[str]) -> tuple[int, int]:
    """How many live, and of how many the namespace is gone; in a container all live, for namespaces are not seen."""
    try:
        found = attachments.found(directory=state) if os.path.isdir(state) else []
    except CniError as fault:
        faults.append(fault.msg)
        return 0, 0
    live = sum(1 for a in found if a["alive"] or root != "/")
    return live, len(found) - live


def _name(name: str, facts: Facts) -> str:
    if name in facts.ours:
        return f"railcni's; {REPLACED} what was there" if name in facts.kept else "railcni's"
    return "another's" if name in facts.foreign else "not there"


def _print(document: dict[str, Any]) -> None:
    rows = [
        ("plugin folder", document["folder"]),
        ("version", document["version"] or "none: run `railcni install`"),
        ("version before", document["previous"]),
        *((name, text) for name, text in document["names"].items()),
        ("attachments", "{live} live, {gone} whose namespace is gone".format(**document["attachments"])),
        ("state", document["stateDir"]),
        ("health", "whole" if document["healthy"] else output.counted(len(document["faults"]), "fault")),
    ]
    output.print_table(("installation", ""), rows)
    for fault in document["faults"]:
        output.print_fault(f"railcni: {fault}")
