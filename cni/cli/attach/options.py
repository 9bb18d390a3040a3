"""The options of the commands that act on a network, with cnitool's environment variables as their defaults."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from cni.cli.terminal import output, subcommand
from cni.library.inventory.places import NAMED_NAMESPACES, NET_DIRECTORY
from cni.library.inventory.podnames import read_pod
from cni.library.runtime.cache import DIRECTORY
from cni.shared.spec.request import ifname_fault, is_identifier

ROOT = os.path.abspath(__file__).rpartition("/cni/")[0]
PLUGIN_DIRECTORIES = (os.path.join(ROOT, "bin"), "/opt/cni/bin", "/usr/lib/cni")


def add_options(
    parser: argparse.ArgumentParser, needs_namespace: bool, needs_network: bool = True, takes_pod: bool = False
) -> None:
    """Add them; argparse answers a wrong one with exit code 2. `takes_pod`: an attachment's pod may stand for it."""
    parser.add_argument(
        "network",
        metavar="NETWORK",
        nargs=None if needs_network else "?",
        default="",
        help="its name in net.d, or the path of a conflist, conf or NAD file (PATH#NAME)",
    )
    parser.add_argument(
        "netns",
        metavar="NETNS",
        nargs=None if needs_namespace and not takes_pod else "?",
        default="",
        help=f"the namespace's path, or its name in {NAMED_NAMESPACES}",
    )
    parser.add_argument(
        "-i",
        "--ifname",
        type=_ifname,
        default=os.environ.get("CNI_IFNAME", ""),
        help="default: CNI_IFNAME, then "
        + ("the only one that is attached" if takes_pod else "net1 for a NAD and else eth0"),
    )
    parser.add_argument(
        "--container-id",
        type=_container_or_pod if takes_pod else _container_id,
        default="",
        metavar="ID|NAMESPACE/POD" if takes_pod else "ID",
        help="default: cnitool's, from the namespace"
        + ("; with NAMESPACE/POD, NETNS may be left out" if takes_pod else ""),
    )
    _add_defaults(parser)
    output.add_option(parser)


def _add_defaults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--args",
        type=_pairs,
        default=os.environ.get("CNI_ARGS", ""),
        metavar="K=V;K=V",
        help="arguments for every plugin; default: CNI_ARGS",
    )
    parser.add_argument(
        "--capability-args",
        type=_object,
        default=os.environ.get("CAP_ARGS", ""),
        metavar="JSON",
        help="arguments for plugins with that capability; default: CAP_ARGS",
    )
    parser.add_argument("--device-id", default="", help="the device for a NAD that names none, as Multus passes it")
    parser.add_argument(
        "--conf-dir",
        default=os.environ.get("NETCONFPATH") or NET_DIRECTORY,
        metavar="DIR",
        help=f"where networks are looked for by name; default: NETCONFPATH, then {NET_DIRECTORY}",
    )
    parser.add_argument(
        "--cni-path",
        default=os.environ.get("CNI_PATH") or ":".join(PLUGIN_DIRECTORIES),
        metavar="DIR:DIR",
        help=f"where plugins are looked for; default: CNI_PATH, then {', '.join(PLUGIN_DIRECTORIES)}",
    )
    subcommand.option(parser, "--cache-dir", DIRECTORY, "where results are kept")


def _ifname(text: str) -> str:
    if fault := ifname_fault(text):
        raise argparse.ArgumentTypeError(f'"{text}" {fault}')
    return text


def _container_id(text: str) -> str:
    if text and not is_identifier(text):
        raise argparse.ArgumentTypeError(f'"{text}": start with a letter or digit, then letters, digits, _ . -')
    return text


def _container_or_pod(text: str) -> str:
    try:
        return read_pod(text) if "/" in text else _container_id(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}": want a containerID or NAMESPACE/POD') from None


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(None, text.split(";")):
        key, sign, value = part.partition("=")
        if not sign or not key.strip():
            raise argparse.ArgumentTypeError(f'"{part}" has no "=": write KEY=VALUE;KEY=VALUE')
        pairs.append((key.strip(), value.strip()))
    return tuple(pairs)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as fault:
        raise argparse.ArgumentTypeError(f"not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("want a JSON object")
    return value
