"""What keeps RoCE from losing packets: priority flow control, what priorities are told by, and ECN.

PFC and DSCP come from the driver by netlink (cni.shared.kernel.dcb). NVIDIA's own driver package also has files: qos/trust
and ecn/roce_{np,rp}/enable/PRIORITY below /sys/class/net/NETDEV. What nobody says is unknown, and no fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from cni.cli.doctor.finding import ADVICE, NOTE, OK, UNKNOWN, Observation
from cni.library.inventory.topology import text
from cni.shared.kernel import dcb
from cni.shared.kernel.links import Rtnl

_PRIORITIES = range(8)


@dataclass(frozen=True)
class Congestion:
    """`pfc`: the lossless priorities. `trust` is "dscp", "pcp" or "". `ecn`: the priorities with ECN at both ends,
    as notification and as reaction point. None: nobody says."""

    pfc: tuple[int, ...] | None = None
    trust: str = ""
    ecn: tuple[int, ...] | None = None


def read(netdev: str, driver: str, root: str = "/sys") -> Congestion:
    """What the driver of `netdev`, a link of this thread's namespace, says."""
    with closing(Rtnl()) as socket:
        told = dcb.read(socket, netdev)
    trust = text(f"{root}/class/net/{netdev}/qos/trust")
    if not trust and told is not None:
        trust = "dscp" if told.by_dscp else "pcp" if driver == "mlx5_core" else ""
    return Congestion(told.pfc if told else None, trust, _ecn(f"{root}/class/net/{netdev}/ecn"))


def _ecn(folder: str) -> tuple[int, ...] | None:
    if not os.path.isdir(folder):
        return None
    ends = ("roce_np", "roce_rp")
    return tuple(p for p in _PRIORITIES if all(text(f"{folder}/{end}/enable/{p}") == "1" for end in ends))


def check(read: Mapping[str, Congestion]) -> Iterator[Observation]:
    """For each netdev one finding: whether its RoCE is lossless by PFC, or slowed down by ECN before it loses."""
    for netdev, told in read.items():
        parts = [
            f"PFC {_listed(told.pfc)}",
            f"trust {told.trust or 'unknown'}",
            f"ECN {_listed(told.ecn)}",
        ]
        found = ", ".join(parts)
        if told.pfc is None and told.ecn is None:
            yield Observation(UNKNOWN, netdev, f"{found}: the driver does not say; mlnx_qos or its vendor's tool may")
        elif told.pfc or told.ecn:
            yield Observation(OK, netdev, found)
        elif told.pfc == () and told.ecn == ():
            yield Observation(
                ADVICE,
                netdev,
                f"{found}: RoCE loses packets under load, and then slows down by far",
                "PFC on the priority of RoCE (3 by convention), or ECN, here and on the switches",
                f"mlnx_qos -i {netdev} --trust dscp --pfc 0,0,0,1,0,0,0,0 (or `dcb pfc set`), as your switches have it",
            )
        else:
            yield Observation(NOTE, netdev, found)


def _listed(priorities: tuple[int, ...] | None) -> str:
    if priorities is None:
        return "unknown"
    return f"on priorities {', '.join(map(str, priorities))}" if priorities else "off"
