"""Which store a command speaks of: the node's own files, or what a flat file names."""

from __future__ import annotations

import argparse
from typing import Any

from cni.attachment import STATE
from cni.config import Fault, refuse
from ipam import config as configuration
from ipam import flatfile, stores
from ipam.config import IpamConfig
from ipam.keys import IPAM_KEYS
from ipam.source import Source
from ipam.stores.base import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """--data-dir and --config; without them the store of the installed flat file, and else the file store in STATE."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--data-dir", default="", metavar="DIR", help=f"the file store in DIR; such as {STATE}")
    which.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="the store that this flat file names, with the keys of the ipam block; default: the installed one",
    )


def described(data_dir: str = "", config: str = "") -> dict[str, Any]:
    """The description of the chosen store; InvalidConfig or UnsupportedField when the flat file names none of ours."""
    if data_dir:
        return {"kind": "file", "path": data_dir}
    faults: list[Fault] = []
    source = Source({"configuration_path": config}, _Files, faults)
    if config and source.path != config:
        faults.append(Fault("--config", config, "there is no such file"))
    named = IpamConfig()
    named.ranges = []  # all pools are meant
    source.fill(named, IPAM_KEYS, faults)
    refuse(faults)
    named.datastore = configuration.datastore(named)
    if named.datastore == "etcd" and not named.etcd_host:
        refuse([Fault(source.where("etcd_host"), None, "want the endpoints of etcd")])
    return stores.describe(named)


def open_chosen(options: argparse.Namespace, use: int) -> Store:
    """The store that the options choose."""
    return stores.open_store(described(options.data_dir, options.config), use)


def name(where: dict[str, Any]) -> str:
    """A store, for messages."""
    if where["kind"] == "file":
        return str(where["path"])
    return f"{where['kind']} at {', '.join(where['endpoints'])}, prefix {where['prefix']}"


class _Files:
    """Whoever runs the command may read what they may read: the policy is for networks."""

    load = staticmethod(flatfile.load)
    host_name = staticmethod(flatfile.host_name)

    @staticmethod
    def follow(path: str, roots: str = "", /) -> str:
        return path
