"""The feature file of node-feature-discovery: lines NAME=VALUE that become labels of the node.

Its worker reads the files of FOLDER again and again (its customization guide, "Local feature source"); hidden ones are
passed over, so that a file is written under such a name first.
"""

from __future__ import annotations

import os
import re
import sys

from cni.shared.spec.errors import IoFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.cli.doctor.report import DoctorReport

FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
DEFAULT = f"{FOLDER}/railcni"
_PREFIX = "railcni.io"
_RATE = re.compile(r"(\d+)(?:\.\d+)? Gb/sec")


def features(report: DoctorReport) -> dict[str, str]:
    """What changes seldom: labels are written to the API server at each change."""
    ports = [p for p in report.facts.ports if p.is_active]
    rates = [int(found[1]) for p in ports if (found := _RATE.match(p.rate))]
    mtus = [p.roce_mtu for p in ports if p.roce_mtu is not None]
    known = {
        "rdma": _word(bool(report.facts.devices)),
        "rdma.healthy": _word(report.is_healthy),
        "rdma.faults": ".".join(sorted({f.check for f in report.faults}))[:63].strip(".-"),
        "rdma.devices": str(len(report.facts.devices)),
        "rdma.active-ports": str(len(ports)),
        "rdma.link-layer": "_".join(sorted({p.link_layer for p in ports})),
        "rdma.rate-gbps": str(min(rates)) if rates else "",
        "rdma.roce-mtu": str(min(mtus)) if mtus else "",
        "rdma.netns-mode": report.facts.netns_mode,
        "rdma.gpus": str(len(report.facts.topology.gpus)),
    }
    return {f"{_PREFIX}/{name}": value for name, value in known.items() if value}


def write(report: DoctorReport, path: str) -> None:
    """Write the file in one step, "-" is stdout; IoFailure."""
    lines = "".join(f"{name}={value}\n" for name, value in features(report).items())
    if path == "-":
        sys.stdout.write(lines)
        return
    folder, _, name = os.path.abspath(path).rpartition("/")
    new = f"{folder}/.{name}.new"
    try:
        os.makedirs(folder, exist_ok=True)
        with open(new, "w", encoding="utf-8") as file:
            file.write(lines)
        os.replace(new, path)
    except OSError as fault:
        raise IoFailure(f"the feature file {path} cannot be written: {fault.strerror}") from None


def _word(value: bool) -> str:
    return "true" if value else "false"
