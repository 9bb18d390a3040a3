"""railcni device-plugin --show: what would be offered, without kubelet and gRPC."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cni.cli.nad import command as nad
from cni.cli.terminal import output
from cni.device_plugin.choose import Resource, resources
from cni.device_plugin.node import read_config, read_host
from cni.library.lint import ERROR

_COLUMNS = ("resource", "NIC or function", "devices", "NUMA node", "device nodes", "not healthy")


def run(options: argparse.Namespace) -> int:
    """Print it; the exit code is 1 when a resource is wrong."""
    config = read_config(options.config)
    found = resources(config.resources, read_host(options.root))
    nad.print_findings(config.findings, sys.stderr)
    output.show(options.output, _document(found), lambda: output.print_table(_COLUMNS, _rows(found)))
    return int(any(f.severity == ERROR for f in config.findings))


def _rows(found: Sequence[Resource]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = []
    for resource in found:
        for offer in resource.offers:
            numa = ", ".join(map(str, offer.numa_nodes))
            nodes = " ".join(path.removeprefix("/dev/") for _, path in offer.nodes)
            rows.append((resource.name, offer.name, len(offer.ids), numa, nodes, offer.fault))
        if not resource.offers:
            rows.append((resource.name, None, 0, None, None, "no NIC or function is chosen"))
    return rows


def _document(found: Sequence[Resource]) -> list[dict[str, Any]]:
    return [
        {
            "resource": resource.name,
            "healthy": resource.healthy,
            "offers": [
                {
                    "name": offer.name,
                    "devices": len(offer.ids),
                    "numaNodes": list(offer.numa_nodes),
                    "deviceNodes": [path for _, path in offer.nodes],
                    "fault": offer.fault,
                }
                for offer in resource.offers
            ],
        }
        for resource in found
    ]
