"""railcni device-plugin: offers the node's RDMA NICs and virtual functions to pods, by kubelet's device plugin API.

The program is in cni/resources/device_plugin, and needs the packages grpcio and protobuf; cni/resources reads its
configuration. With --show the command prints the devices that it would offer, without kubelet and gRPC.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from cni.cli.nad import command as nad
from cni.cli.terminal import common, output, subcommand
from cni.lint import ERROR
from cni.resources.choose import Offer, Resource, resources
from cni.resources.config import Config
from cni.resources.node import read_config, read_host
from cni.shared.spec.errors import InvalidConfig

CONFIG = "/etc/railcni/device-plugin.json"
FOLDER = "/var/lib/kubelet/device-plugins"
PODS = "/var/lib/kubelet/pod-resources/kubelet.sock"
LISTEN = "127.0.0.1:9109"
_COLUMNS = ("resource", "NIC or function", "devices", "NUMA node", "device nodes", "reason")


def register(commands: subcommand.Commands) -> None:
    """Add the command `device-plugin`."""
    about = "on each node: offer RDMA NICs and virtual functions to pods as resources, by kubelet's device plugin API"
    more = ". The program runs until SIGTERM, in the foreground."
    parser = subcommand.add(commands, "device-plugin", about, more, run=_run, lists=True)
    about = (
        "that of the RDMA shared device plugin (configList) or the SR-IOV device plugin (resourceList), VFs to"
        " make at the start (virtualFunctions, or SriovNetworkNodePolicy objects), or several of these;"
        f" read again after a change; default: {CONFIG}"
    )
    common.add(parser, "config", about, action="append")
    parser.add_argument("--cdi", action="store_true", help="pass devices by the Container Device Interface")
    common.listen(parser, LISTEN)
    common.add(parser, "kubelet-dir", "", FOLDER, made=True)
    about = "kubelet's socket, which shows whether another plugin serves a resource"
    subcommand.option(parser, "--pod-resources", PODS, about, "SOCKET")
    common.add(parser, "root", "below it are sys, dev, proc and run", "/")
    parser.add_argument("--show", action="store_true", help="print the devices to offer and the faults, and exit")


def _run(options: argparse.Namespace) -> int:
    serving = ("--cdi", "--listen", "--log-level", "--kubelet-dir", "--pod-resources")
    options.only(options.show, "with --show", "-o", "-w", "-A")
    options.only(not options.show, "without --show", *serving)
    return _show(options) if options.show else serve("cni.resources.device_plugin.plugin", options)


def serve(program: str, options: argparse.Namespace) -> int:
    """Run the module `program`, which loads gRPC; return its exit code. Raises InvalidConfig if gRPC is missing."""
    options.config = options.config or [CONFIG]
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else gRPC prints a line for each connection that ends
    try:
        module = importlib.import_module(program)  # takes 0.2 s
    except ModuleNotFoundError as fault:
        remedy = "pip install grpcio protobuf, or use the image that `make image ARGS=--device-plugin` makes"
        raise InvalidConfig(f"the package of the module {fault.name} is missing: {remedy}") from None
    return int(module.run(options))


def read(options: argparse.Namespace) -> tuple[Config, bool]:
    """Read the files of --config, and print their faults. Return (configuration, whether it has an error)."""
    config = read_config(options.config or [CONFIG])
    nad.print_findings(config.findings, sys.stderr)
    return config, any(finding.severity == ERROR for finding in config.findings)


def _show(options: argparse.Namespace) -> int:
    config, is_faulty = read(options)
    found = resources(config.resources, read_host(options.root.rstrip("/")))
    output.show(options.output, _document(found), lambda: output.print_table(_COLUMNS, _rows(found)))
    tell_unmade(config, found)
    return int(is_faulty or any(resource.unchosen for resource in found))


def tell_unmade(config: Config, found: Sequence[Resource]) -> None:
    """Print how to make virtual functions, if a resource in `found` has none and the configuration asks for them."""
    if config.policies and any(resource.unchosen for resource in found):
        output.print_fault(
            "railcni: the configuration asks for virtual functions that are not there yet: `railcni vfs plan` shows the"
            " steps; `railcni vfs apply` makes them, and so does the device plugin when it starts"
        )


def _rows(found: Sequence[Resource]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for resource in found:
        for offer in resource.offers:
            numa = ", ".join(map(str, offer.numa_nodes))
            nodes = " ".join(path.removeprefix("/dev/") for _, path in offer.nodes)
            rows.append((resource.name, offer.name, len(offer.ids), numa, nodes, offer.fault))
        rows += [(resource.name, name, 0, None, None, reason) for name, reason in resource.withheld.items()]
        for why in filter(None, (resource.limit, resource.unchosen)):
            rows.append((resource.name, None, resource.healthy, None, None, why))
    return rows


def _document(found: Sequence[Resource]) -> list[dict[str, Any]]:
    def offer(one: Offer) -> dict[str, Any]:
        places = {"numaNodes": list(one.numa_nodes), "deviceNodes": [path for _, path in one.nodes]}
        return {"name": one.name, "devices": len(one.ids), **places, "fault": one.fault}

    documents = []
    for resource in found:
        reasons = {"withheld": dict(resource.withheld), "limit": resource.limit, "unchosen": resource.unchosen}
        offers = [offer(one) for one in resource.offers]
        documents.append({"resource": resource.name, "healthy": resource.healthy, "offers": offers, **reasons})
    return documents
