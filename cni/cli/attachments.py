"""railcni attachments: the records that this node's plugins keep, one line an attachment."""

from __future__ import annotations

import argparse
from typing import Any

from cni.cli.terminal import output, subcommand
from cni.library.inventory.attachments import found
from cni.library.inventory.podnames import is_of_pod
from cni.shared.records import STATE


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `attachments`."""
    about = "the attachments that this node's records tell of"
    parser = subcommand.add(commands, "attachments", about)
    parser.add_argument("--network", default="", help="of this network only")
    parser.add_argument("--pod", default="", metavar="[NAMESPACE/]NAME", help="of this pod only")
    parser.add_argument("--container", default="", metavar="ID", help="of this container only, or of NAMESPACE/POD")
    subcommand.option(parser, "--state-dir", STATE)
    output.add_option(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    attachments = [a for a in found(options.network, options.state_dir) if _is_chosen(a, options)]
    columns = ("network", "interface", "pod", "addresses", "namespace", "container")
    rows = [_row(a) for a in attachments]
    output.show(options.output, attachments, lambda: output.print_table(columns, rows, empty="no attachment"))
    return 0


def _is_chosen(attachment: dict[str, Any], options: argparse.Namespace) -> bool:
    namespace, _, name = attachment["pod"].partition("/")
    if options.pod and not is_of_pod((namespace, name), options.pod):
        return False
    if "/" in options.container:
        return is_of_pod((namespace, name), options.container)
    return str(attachment["containerID"]).startswith(options.container)


def _row(attachment: dict[str, Any]) -> tuple[object, ...]:
    addresses = ", ".join(str(a) for a in attachment["addresses"])
    netns = attachment["netns"] + ("" if attachment["alive"] else " (gone)")
    where = attachment["network"], attachment["ifname"], attachment["pod"]
    return (*where, addresses, netns, attachment["containerID"][:12])
