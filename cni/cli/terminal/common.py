"""The options that several commands have. Each is defined here once, so that it means the same in every command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from cni.cli.terminal import subcommand
from cni.node.service.log import LEVELS
from cni.shared.records import STATE


class Known(NamedTuple):
    """An option that means the same in all commands. If `metavar` is None, the option takes no value. `old` is an older
    spelling that --help does not show."""

    flags: str
    metavar: str | None
    about: str
    type: Callable[[str], Any] | None = None
    old: str = ""


KNOWN = {
    known.flags.rpartition("--")[2]: known
    for known in (
        Known("--all", None, "also show what is no fault"),
        Known("--cache-dir", "DIR", "the folder of libcni's cached results"),
        Known("--cni-path", "DIR:DIR", "the folders of plugins, with colons between them"),
        Known("--conf-dir", "DIR", "the node's folder of networks"),
        Known("--config", "FILE", "the device plugin's configuration; can be repeated"),
        Known("--container-id", "ID", "a containerID", subcommand.container_or_pod),
        Known("--dry-run", None, "print what would be done, and change nothing"),
        Known("--flat-file", "FILE", "the flat file, with the keys of the ipam block", old="--config"),
        Known("--force", None, "go on where nobody can be asked whether it is safe"),
        Known("--grace", "SECONDS", "how long something must be gone before it is freed", subcommand.seconds),
        Known("-i/--ifname", "IFNAME", "the name of an interface", subcommand.ifname),
        Known("--kubeconfig", "FILE", "the kubeconfig of the cluster; its current context is used"),
        Known("--kubelet-dir", "DIR", "kubelet's folder of device plugins"),
        Known("--link-dir", "DIR", "the folder in which the command railcni is linked"),
        Known("--listen", "ADDRESS:PORT", "where /healthz, /readyz and /metrics are served", subcommand.address),
        Known("-n/--namespace", "NAMESPACE", "the namespace of the leases' objects", subcommand.name),
        Known("--network", "NAME", "the name of a network", subcommand.name),
        Known("--node", "NAME", "the name of a node", subcommand.name),
        Known("--peer", "PEER", "the other end of a test"),
        Known("--plugin-dir", "DIR", "the folder that has or gets the plugins", old="--to"),
        Known("--pod", "[NAMESPACE/]POD", "a pod", subcommand.pod),
        Known("--root", "DIR", "in a container: where the host's file system is mounted"),
        Known("--state-dir", "DIR", "the folder of railcni's records"),
        Known("-v/--verbose", None, "also show the checks that found no fault"),
    )
}


def add(parser: argparse._ActionsContainer, name: str, note: str = "", default: object = None, **more: Any) -> None:
    """Add the option KNOWN[name]. In --help, `note` follows the general text about the option. `more` is passed to
    subcommand.option."""
    flags, metavar, about, kind, old = KNOWN[name]
    about = "; ".join(filter(None, (about, note)))
    if metavar is None:
        parser.add_argument(*flags.split("/"), action="store_true", help=about)
    else:
        more = {**({"type": kind} if kind else {}), **more}
        subcommand.option(parser, flags, default, about, metavar, old=old, **more)


def installation(parser: argparse._ActionsContainer) -> None:
    """Add the options that choose an installation (cni.node.installation.options)."""
    add(parser, "plugin-dir", "default: the one that containerd or CRI-O is configured for", "", made=True)
    add(parser, "root", "all paths are below it", "/")
    add(parser, "state-dir", "", STATE, made=True)


def listen(parser: argparse._ActionsContainer, default: str) -> None:
    """Add --listen and --log-level, for a program that keeps running."""
    add(parser, "listen", f"default: {default}, this node alone", default, shown=False)
    log_level(parser)


def log_level(parser: argparse._ActionsContainer) -> None:
    """Add --log-level, the lowest level that is logged."""
    subcommand.option(parser, "--log-level", "info", "the least level of the log's lines", None, choices=LEVELS)
