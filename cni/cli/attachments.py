"""railcni attachments: lists this node's attachment records, a line for each attachment."""

from __future__ import annotations

import argparse
from typing import Any

from cni.cli.terminal import common, output, subcommand
from cni.node.inventory.attachments import found
from cni.node.inventory.places import is_of_pod
from cni.shared.records import STATE

COLUMNS = ("network", "interface", "pod", "addresses", "namespace", "container")
LEAST = ("container", "namespace", "interface", "network")


def register(commands: subcommand.Commands) -> None:
    """Add the command `attachments`."""
    about = "list the attachments in this node's records"
    parser = subcommand.add(commands, "attachments", about, run=_run, lists=True)
    add_filters(parser)
    common.add(parser, "state-dir", "", STATE)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that filter attachments; `is_chosen` applies them."""
    for name in ("network", "pod"):
        common.add(parser, name, "only what belongs to it")
    common.add(parser, "container-id", "only what belongs to it; its beginning is enough")


def is_chosen(options: argparse.Namespace, document: dict[str, Any]) -> bool:
    """Whether the filters in `options` match `document`, the JSON object of an attachment or a lease."""
    pod, container = document["pod"].partition("/")[::2], options.container_id or ""
    is_of_container = str(document["containerID"]).startswith(container)
    return (
        options.network in (None, document["network"])
        and (not options.pod or is_of_pod(pod, options.pod))
        and (is_of_pod(pod, container) if "/" in container else is_of_container)
    )


def told(options: argparse.Namespace, *further: str) -> str:
    """The filters that the user gave, as text for a message: " with --NAME VALUE, …", or "" without a filter. `further`
    names more options that count as filters."""
    filters = {name: getattr(options, name) for name in ("network", "pod", "container_id", *further)}
    given = [f"--{name.replace('_', '-')} {value}" for name, value in filters.items() if value]
    return f" with {', '.join(given)}" if given else ""


def _run(options: argparse.Namespace) -> None:
    attachments = [a for a in found(directory=options.state_dir) if is_chosen(options, a)]
    rows = []
    for one in attachments:
        netns = one["netns"] + ("" if one["alive"] else " (gone)")
        if one["pending"]:
            netns = f"release pending in {one['pending']}"
        addresses = ", ".join(map(str, one["addresses"] or ()))
        rows.append((one["network"], one["ifname"], one["pod"], addresses, netns, one["containerID"][:12]))
    empty = f"no attachment{told(options)} in {options.state_dir}"
    output.show_table(options.output, attachments, COLUMNS, rows, "containerID", empty=empty, least=LEAST)
