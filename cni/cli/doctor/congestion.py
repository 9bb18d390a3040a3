"""Checks of the settings that keep RoCE from losing packets: priority flow control (PFC), packet priorities, and ECN.

PFC and the priorities of DSCPs come from the driver by netlink (cni.shared.kernel.dcb). NVIDIA's driver package also
has files: qos/trust and ecn/roce_{np,rp}/enable/PRIORITY below /sys/class/net/NETDEV, and tc/1/traffic_class below the
verbs device. The kernel's rdma_cm has default_roce_tos in configfs. A program may choose another type of
service for its packets (NCCL_IB_TC).
Sources: Documentation/ABI/testing/configfs-rdma_cm of the kernel; NVIDIA's documentation of MLNX_OFED, "Flow Control"
and "RoCE".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cni.cli.doctor.finding import Observation, advice, ok, unknown
from cni.node.inventory.devices import Port
from cni.node.inventory.topology import beside, text
from cni.shared.kernel import dcb
from cni.shared.kernel.links import Rtnl

_PRIORITIES = range(8)
_TOS_OF_TC = re.compile(r"tclass=(\d+)")
_TOOLS = {  # by driver: the tool that prints settings that the kernel does not show
    "mlx5_core": "mlnx_qos -i {netdev}, and mlxconfig -d {pci} query ROCE_CC_PRIO_MASK_P1",
    "bnxt_en": "Broadcom's niccli (get_qos)",
    "ionic": "AMD's nicctl (show qos)",
}
_ANY_TOOL = "dcb pfc show dev {netdev}, and the tool of the NIC's vendor"
_LOSSY = "RoCE loses packets under load, and then slows down by far"


@dataclass(frozen=True)
class Congestion:
    """The settings of a netdev. `pfc`: the lossless priorities. `ecn`: the priorities with ECN as notification and as
    reaction point. Both are None if unknown. `trust` is "dscp", "pcp" or "" (unknown). `pci` is the PCI address.

    `dscp` maps DSCPs to priorities, if the driver shows them. `classes` maps the name of a setting to the type of
    service (ToS, 8 bits) of its packets. `has_vlan`: a VLAN on the netdev tags packets with a priority.
    """

    pfc: tuple[int, ...] | None = None
    trust: str = ""
    ecn: tuple[int, ...] | None = None
    dscp: Mapping[int, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    has_vlan: bool = False
    driver: str = ""
    pci: str = ""


def read(port: Port, driver: str, root: str = "/sys", live: bool = True) -> Congestion:
    """The settings of the port's netdev. Netlink is asked only if the netdev is in this thread's namespace (`live`)."""
    told = None
    if live:
        with Rtnl() as socket:
            told = dcb.read(socket, port.netdev)
    here = f"{root}/class/net/{port.netdev}"
    trust = text(f"{here}/qos/trust")
    if not trust and told is not None:
        trust = "dscp" if told.dscp else "pcp" if driver == "mlx5_core" else ""
    uppers = beside(port.netdev, "upper_", root)
    above = [*uppers, *(name for upper in uppers for name in beside(upper, "upper_", root))]  # a bond, and its links
    return Congestion(
        pfc=told.pfc if told else None,
        trust=trust,
        ecn=_ecn(f"{here}/ecn"),
        dscp=told.dscp if told else {},
        classes=_classes(port, root),
        has_vlan=any("DEVTYPE=vlan" in text(f"{root}/class/net/{name}/uevent") for name in above),
        driver=driver,
        pci=os.path.basename(os.path.realpath(f"{here}/device")) if os.path.exists(f"{here}/device") else "",
    )


def _ecn(folder: str) -> tuple[int, ...] | None:
    if not os.path.isdir(folder):
        return None
    ends = ("roce_np", "roce_rp")
    return tuple(p for p in _PRIORITIES if all(text(f"{folder}/{end}/enable/{p}") == "1" for end in ends))


def _classes(port: Port, root: str) -> dict[str, int]:
    """The types of service other than 0, the default, by the name of their setting."""
    by_cm = text(f"{root}/kernel/config/rdma_cm/{port.device}/ports/{port.number}/default_roce_tos")
    by_driver = _TOS_OF_TC.search(text(f"{root}/class/infiniband/{port.device}/tc/{port.number}/traffic_class"))
    found = {"default_roce_tos": by_cm, "traffic_class": by_driver[1] if by_driver else ""}
    return {place: int(value) for place, value in found.items() if value.isdigit() and int(value)}


def check(read: Mapping[str, Congestion]) -> Iterator[Observation]:
    """Yield the faults in each netdev's settings, or one finding for a netdev without a fault."""
    for netdev, told in read.items():
        found = f"PFC {_listed(told.pfc)}, trust {told.trust or 'unknown'}, ECN {_listed(told.ecn)}"
        faults = list(_faults(netdev, told))
        for why, healthy, remedy in faults:
            yield advice(netdev, f"{found}: {why}", healthy, remedy)
        tool = _TOOLS.get(told.driver, _ANY_TOOL).format(netdev=netdev, pci=told.pci or "ADDRESS")
        if not faults and (told.pfc is None or told.ecn is None or (told.pfc and not told.trust)):
            yield unknown(netdev, f"{found}: the kernel does not tell all of it; see {tool}")
        elif not faults:
            yield ok(netdev, found)


def _faults(netdev: str, told: Congestion) -> Iterator[tuple[str, str, str]]:
    """Yield the faults in a netdev's settings, as (reason, wanted, remedy)."""
    one = "PFC on the one priority of RoCE (3 by convention), here and on the switches"
    set_pfc = f"mlnx_qos -i {netdev} --trust dscp --pfc 0,0,0,1,0,0,0,0 (or `dcb pfc set`), as your switches have it"
    if told.pfc == () and told.ecn == ():
        yield _LOSSY, f"{one}, or ECN", set_pfc
    if told.pfc is not None and len(told.pfc) == len(_PRIORITIES):
        yield "a pause of RoCE stops all other traffic too", one, set_pfc
    elif told.pfc:
        yield from _missed(netdev, told, told.pfc)
    if told.pfc and told.ecn is not None and set(told.pfc).isdisjoint(told.ecn):
        why = "without ECN on lossless priorities only pauses slow a sender down, and they spread through the fabric"
        files = f"/sys/class/net/{netdev}/ecn/roce_np/enable/N and roce_rp/enable/N"
        remedy = f"echo 1 > {files} for the priority N of RoCE"
        yield why, "ECN on the priority of RoCE, here and on the switches", remedy


def _missed(netdev: str, told: Congestion, pfc: tuple[int, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield the settings that give RoCE packets a lossy priority, as (reason, wanted, remedy)."""
    lossless = ", ".join(map(str, pfc))
    if told.trust == "pcp" and 0 not in pfc and (told.classes or not told.has_vlan):
        marked = "".join(f", {place} {tos}," for place, tos in told.classes.items())
        why = f"packets are marked by DSCP{marked} and get their priority by VLAN tags: without one it is 0, which is lossy"
        yield why, "trust in DSCP, as RoCE v2 is marked", f"mlnx_qos -i {netdev} --trust dscp, as your switches have it"
    for place, tos in told.classes.items() if told.trust == "dscp" else ():
        priority = told.dscp.get(tos >> 2, tos >> 5)  # without an entry: the three bits of IP precedence
        if priority not in pfc:
            why = f"{place} {tos} is DSCP {tos >> 2}, which gets the priority {priority}, and lossless is {lossless}"
            healthy = f"a class of the priority {lossless}, such as {pfc[0] << 5 | 8}"
            yield why, healthy, f"set {place}, or PFC, accordingly"


def _listed(priorities: tuple[int, ...] | None) -> str:
    if priorities is None:
        return "unknown"
    return f"on priorities {', '.join(map(str, priorities))}" if priorities else "off"
