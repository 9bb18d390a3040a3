"""Checks of verbs devices, by subject:

- a port: state, MTU, GID table, and errors since the port's start or during a watch;
- NICs of one model: whether one is slower than the others, or has older firmware;
- a netdev: the settings that keep RoCE from losing packets: priority flow control (PFC), packet priorities, ECN.

A counter that grows during traffic shows a fault of cable or switch, or congestion. The cause of older errors may be
gone.

PFC and the map from DSCPs to priorities are read from the driver by netlink (cni.shared.kernel.dcb). NVIDIA's driver
package also has files: qos/trust and ecn/roce_{np,rp}/enable/PRIORITY below /sys/class/net/NETDEV, and
tc/1/traffic_class below the verbs device. The default type of service of the kernel's rdma_cm is in configfs
(default_roce_tos). A program may choose another type of service for its packets (NCCL_IB_TC).

Sources: Documentation/ABI/testing/configfs-rdma_cm of the kernel; NVIDIA's documentation of MLNX_OFED, "Flow Control"
and "RoCE".
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from cni.cli.doctor.finding import Observation, advice, broken, note, ok, unknown
from cni.node.inventory.counters import CABLE, Counts
from cni.node.inventory.devices import Port, VerbsDevice
from cni.node.inventory.topology import beside, text
from cni.shared.kernel import dcb, rdma_sysfs
from cni.shared.kernel.links import Rtnl

NEARLY_FULL = 0.8  # doctor and the plugins warn if this share of a GID table is in use

PortCounts = Mapping[Port, Counts]
_PRIORITIES = range(8)
_TOS_OF_TC = re.compile(r"tclass=(\d+)")
_TOOLS = {  # driver -> the tool that prints the settings that the kernel does not show
    "mlx5_core": "mlnx_qos -i {netdev}, and mlxconfig -d {pci} query ROCE_CC_PRIO_MASK_P1",
    "bnxt_en": "Broadcom's niccli (get_qos)",
    "ionic": "AMD's nicctl (show qos)",
}
_ANY_TOOL = "dcb pfc show dev {netdev}, and the tool of the NIC's vendor"
_LOSSY = "RoCE loses packets under load, and then slows down by far"


def check_state(ports: Sequence[Port], uses: Mapping[str, str], up: Mapping[str, bool]) -> Iterator[Observation]:
    """Find ports that are not ACTIVE. This is a fault if the port is in use, or if no port is active. `uses` maps
    netdevs in use to their users; `up` tells whether a netdev is administratively up."""
    any_active = any(port.is_active for port in ports)
    for port in ports:
        found = f"{port.state or 'of unknown state'} ({port.physical_state or 'physical state unknown'})"
        if port.is_active:
            yield ok(_subject(port), f"ACTIVE, {port.rate}, {port.link_layer}")
        elif any_active and port.netdev not in uses:
            yield note(_subject(port), f"{found}; nothing here uses it")
        else:
            found += f"; used by {uses[port.netdev]}" if port.netdev in uses else ""
            yield broken(_subject(port), found, "ACTIVE (LinkUp)", _remedy(port, up.get(port.netdev)))


def _remedy(port: Port, up: bool | None) -> str:
    if port.link_layer == rdma_sysfs.INFINIBAND:
        if port.state in ("INIT", "ARMED"):
            return "no subnet manager has set it up: start opensm, or the switch's"
        return "see cable, transceiver and switch port; ibstat names the fault"
    if not port.is_roce and not port.netdev:  # EFA
        return "see `dmesg` for messages of its driver"
    if up is False:
        return f"ip link set {port.netdev} up, and let the node's network configuration do so at each boot"
    where = port.netdev or "its netdev"
    return f"no carrier on {where}: see cable, transceiver and switch port (ethtool {port.netdev})"


def check_mtu(ports: Sequence[Port], management: Collection[str]) -> Iterator[Observation]:
    """Find netdevs whose MTU is too small for RoCE MTU 4096. This is a fault, but only advice for netdevs in
    `management`, which carry the node's own traffic."""
    least = rdma_sysfs.MTU_FOR_WHOLE_ROCE
    healthy = f"MTU {least} or more, so RoCE MTU {rdma_sysfs.WHOLE_ROCE_MTU}; 9000 is usual"
    for port in (port for port in ports if port.is_active and port.is_roce):
        subject, found = _subject(port), f"MTU {port.mtu} of {port.netdev}, so RoCE MTU {port.roce_mtu}"
        if port.mtu is None or port.roce_mtu is None:
            yield unknown(subject, "its netdev is not in this namespace")
        elif port.mtu >= least:
            yield ok(subject, found)
        elif port.netdev in management:
            remedy = f"give RDMA another NIC: {port.netdev} carries the node's own traffic, so leave its MTU"
            yield advice(subject, found, healthy, remedy)
        else:
            remedy = f"ip link set {port.netdev} mtu 9000, on all nodes and their switch ports; then the NAD's mtu"
            yield broken(subject, found, healthy, remedy)


def check_gids(ports: Sequence[Port]) -> Iterator[Observation]:
    """Find GID tables that are full, nearly full, or without an entry of RoCE v2."""
    for port in ports:
        if not port.is_roce or not port.room:
            continue
        used, subject = len(port.gids), _subject(port)
        if port.is_active and not any(gid.kind == rdma_sysfs.ROCE_V2 for gid in port.gids):
            healthy = "at least one GID of RoCE v2"
            remedy = f"give {port.netdev or 'its netdev'} an address; see that its driver and firmware do RoCE v2"
            yield broken(subject, f"{used} GIDs, none of RoCE v2", healthy, remedy)
        elif used >= port.room * NEARLY_FULL:
            state = "full" if used == port.room else "nearly full"
            link_local = sum(gid.address.startswith("fe80:") for gid in port.gids)
            remedy = (
                f'{link_local} of them are link-local: `"rdma": {{"ipv6LinkLocal": false}}` in the NAD saves a pod\'s'
            )
            remedy += "; else let fewer pods share it: a lower rdmaHcaMax of the device plugin, or SR-IOV"
            healthy = f"less than {NEARLY_FULL:.0%} in use: a pod without a GID has no RDMA"
            yield broken(subject, f"GID table {state}: {used} of {port.room}", healthy, remedy)
        else:
            yield ok(subject, f"{used} of {port.room} GIDs in use")


def _subject(port: Port) -> str:
    return f"{port} ({port.netdev})" if port.netdev else str(port)


# --- errors, and siblings ---


def check_counters(now: PortCounts, before: PortCounts, seconds: float) -> Iterator[Observation]:
    """Find ports whose error counters grew from `before` to `now`, in `seconds`. If `before` is {}, find ports with
    many errors since their start."""
    for port, values in now.items():
        faults, former = [], before.get(port, {})
        for counter, count in values.items():
            grown = count - former.get(counter, count)
            if grown > 0:
                rate = f"{grown} {counter.meaning} in {seconds:g} s ({grown / seconds:.3g}/s)"
                faults.append(broken(str(port), rate, "none while traffic runs", counter.remedy))
            elif counter not in former and count >= counter.many:
                found = f"{count} {counter.meaning} since its start ({counter.place})"
                remedy = f"`railcni doctor --watch 10` tells whether they go on; {counter.remedy}"
                faults.append(advice(str(port), found, f"fewer than {counter.many}", remedy))
        yield from faults
        if values and not faults:
            yield ok(str(port), f"no error in {seconds:g} s" if before else "few errors since its start")


def check_siblings(devices: Sequence[VerbsDevice]) -> Iterator[Observation]:
    """Find NICs that are slower than most NICs of their model and link layer, or whose firmware is older than that of
    another NIC of their model. The alerts RailcniRdmaPortSlow and RailcniRdmaFirmwareDiffers have the same rules."""
    groups: dict[str, list[VerbsDevice]] = {}
    for device in devices:
        if device.model and not device.is_virtual_function and any(port.is_active for port in device.ports):
            groups.setdefault(device.model, []).append(device)
    for group in (group for group in groups.values() if len(group) > 1):
        names = ", ".join(device.name for device in group)
        found = []
        speeds: dict[str, dict[Port, float]] = {}  # by link layer
        for port in (port for device in group for port in device.ports if port.is_active and port.speed):
            speeds.setdefault(port.link_layer, {})[port] = port.speed or 0.0
        for alike in speeds.values():
            healthy = f"{max(alike.values()):g} Gb/s, as its siblings"
            remedy = f"{CABLE}; a job on all rails is as slow as this one"
            slow = [port for port, speed in alike.items() if speed < median(alike.values())]
            found += [advice(str(port), f"runs at {port.rate}", healthy, remedy) for port in slow]
        newest = max((device.firmware for device in group), key=_version)
        for device in group:
            if device.firmware and _version(device.firmware) < _version(newest):
                healthy = f"{newest}, as a sibling of its kind"
                found.append(advice(device.name, f"firmware {device.firmware}", healthy, "update its firmware"))
        yield from found or [ok(names, "none is slower than most, or of older firmware")]


def check_guids(devices: Sequence[VerbsDevice], root: str = "/sys") -> Iterator[Observation]:
    """Find RoCE and InfiniBand devices without a node GUID, which RDMA CM cannot use. A new virtual function of mlx5
    has no node GUID. EFA devices never have one, and are not checked."""
    for device in devices:
        guid = text(f"{root}{rdma_sysfs.CLASS}/{device.name}/node_guid")
        is_ethernet = any(port.is_roce for port in device.ports)
        needs_guid = is_ethernet or any(port.link_layer == rdma_sysfs.INFINIBAND for port in device.ports)
        if device.pci and needs_guid and guid and not guid.replace(":", "").strip("0"):
            given = "mac MAC" if is_ethernet else "node_guid GUID and port_guid GUID"  # mlx5 derives the GUID from MAC
            remedy = f"ip link set PF vf N {given}, with a value of its own, then bind the function's driver again"
            yield broken(device.name, "its node GUID is 0: RDMA CM does not find it", "a GUID of its own", remedy)


def _version(firmware: str) -> list[int]:
    return [int(part) for part in firmware.split(".") if part.isdigit()]


# --- congestion ---


@dataclass(frozen=True)
class Congestion:
    """The congestion settings of a netdev. `pfc`: the lossless priorities. `ecn`: the priorities for which the NIC is
    an ECN notification point and reaction point. Both are None if unknown. `trust` is "dscp", "pcp" or "" (unknown).

    `dscp` maps DSCPs to priorities, if the driver shows them. `classes` maps the name of a setting, such as
    default_roce_tos, to its type of service (ToS, 8 bits). `has_vlan`: a VLAN on the netdev tags packets with a
    priority. `pci` is the PCI address.
    """

    pfc: tuple[int, ...] | None = None
    trust: str = ""
    ecn: tuple[int, ...] | None = None
    dscp: Mapping[int, int] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    has_vlan: bool = False
    driver: str = ""
    pci: str = ""


def read_congestion(port: Port, driver: str, root: str = "/sys", live: bool = True) -> Congestion:
    """Read the congestion settings of the port's netdev from sysfs. If `live`, the netdev is in this thread's
    namespace, and netlink is read too."""
    told = None
    if live:
        with Rtnl() as socket:
            told = dcb.read(socket, port.netdev)
    here = f"{root}/class/net/{port.netdev}"
    ecn = None
    if os.path.isdir(f"{here}/ecn"):
        enabled = [f"{here}/ecn/roce_{end}/enable" for end in ("np", "rp")]
        ecn = tuple(p for p in _PRIORITIES if all(text(f"{folder}/{p}") == "1" for folder in enabled))
    trust = text(f"{here}/qos/trust")
    if not trust and told is not None:
        trust = "dscp" if told.dscp else "pcp" if driver == "mlx5_core" else ""
    uppers = beside(port.netdev, "upper_", root)
    above = [*uppers, *(name for upper in uppers for name in beside(upper, "upper_", root))]  # a bond, and VLANs on it
    return Congestion(
        pfc=told.pfc if told else None,
        trust=trust,
        ecn=ecn,
        dscp=told.dscp if told else {},
        classes=_classes(port, root),
        has_vlan=any("DEVTYPE=vlan" in text(f"{root}/class/net/{name}/uevent") for name in above),
        driver=driver,
        pci=os.path.basename(os.path.realpath(f"{here}/device")) if os.path.exists(f"{here}/device") else "",
    )


def _classes(port: Port, root: str) -> dict[str, int]:
    """The port's default types of service (ToS) that are not 0, by the name of the setting."""
    by_cm = text(f"{root}/kernel/config/rdma_cm/{port.device}/ports/{port.number}/default_roce_tos")
    by_driver = _TOS_OF_TC.search(text(f"{root}/class/infiniband/{port.device}/tc/{port.number}/traffic_class"))
    found = {"default_roce_tos": by_cm, "traffic_class": by_driver[1] if by_driver else ""}
    return {place: int(value) for place, value in found.items() if value.isdigit() and int(value)}


def check_congestion(read: Mapping[str, Congestion]) -> Iterator[Observation]:
    """Yield a finding for each fault in a netdev's congestion settings, or one finding for a netdev without a fault."""
    for netdev, told in read.items():
        found = f"PFC {_listed(told.pfc)}, trust {told.trust or 'unknown'}, ECN {_listed(told.ecn)}"
        faults = list(_congestion_faults(netdev, told))
        for why, healthy, remedy in faults:
            yield advice(netdev, f"{found}: {why}", healthy, remedy)
        tool = _TOOLS.get(told.driver, _ANY_TOOL).format(netdev=netdev, pci=told.pci or "ADDRESS")
        if not faults and (told.pfc is None or told.ecn is None or (told.pfc and not told.trust)):
            yield unknown(netdev, f"{found}: the kernel does not tell all of it; see {tool}")
        elif not faults:
            yield ok(netdev, found)


def _congestion_faults(netdev: str, told: Congestion) -> Iterator[tuple[str, str, str]]:
    """Yield the faults in a netdev's congestion settings `told`, as (reason, wanted setting, remedy)."""
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
    """Yield (reason, wanted, remedy) for each setting that gives RoCE packets a priority outside `pfc`."""
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
