"""Ports of verbs devices: their state, MTU and GID tables. Pure: cni.library.inventory.devices reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from cni.cli.doctor.finding import Observation, advice, broken, note, ok, unknown
from cni.library.inventory.devices import Port
from cni.shared.kernel import rdma_sysfs

NEARLY_FULL = 0.8  # of a GID table: the plugins warn from here on too

Uses = Mapping[str, str]  # netdevs that something on this node uses, with what that is


def check_state(ports: Sequence[Port], uses: Uses, up: Mapping[str, bool]) -> Iterator[Observation]:
    """Find ports that are not ACTIVE: a fault if the port is used, or if no port is active. `up`: whether each netdev is set
    up."""
    any_active = any(port.is_active for port in ports)
    for port in ports:
        subject = _subject(port)
        if port.is_active:
            yield ok(subject, f"ACTIVE, {port.rate}, {port.link_layer}")
            continue
        found = f"{port.state or 'of unknown state'} ({port.physical_state or 'physical state unknown'})"
        if any_active and port.netdev not in uses:
            yield note(subject, f"{found}; nothing here uses it")
            continue
        if port.netdev in uses:
            found += f"; used by {uses[port.netdev]}"
        yield broken(subject, found, "ACTIVE (LinkUp)", _remedy(port, up.get(port.netdev)))


def _remedy(port: Port, up: bool | None) -> str:
    if not port.is_roce:
        if port.state in ("INIT", "ARMED"):
            return "no subnet manager has set it up: start opensm, or the switch's"
        return "see cable, transceiver and switch port; ibstat names the fault"
    if up is False:
        return f"ip link set {port.netdev} up, and let the node's network configuration do so at each boot"
    where = port.netdev or "its netdev"
    return f"no carrier on {where}: see cable, transceiver and switch port (ethtool {port.netdev})"


def check_mtu(ports: Sequence[Port], management: Collection[str]) -> Iterator[Observation]:
    """Netdevs whose MTU leaves RDMA less than 4096 bytes. `management`: those that carry the node's own traffic."""
    for port in ports:
        if not port.is_active or not port.is_roce:
            continue
        subject = _subject(port)
        if port.mtu is None or port.roce_mtu is None:
            yield unknown(subject, "its netdev is not in this namespace")
            continue
        found = f"MTU {port.mtu} of {port.netdev}, so RoCE MTU {port.roce_mtu}"
        if port.mtu >= rdma_sysfs.MTU_FOR_WHOLE_ROCE:
            yield ok(subject, found)
            continue
        healthy = f"MTU {rdma_sysfs.MTU_FOR_WHOLE_ROCE} or more, so RoCE MTU {rdma_sysfs.WHOLE_ROCE_MTU}; 9000 is usual"
        if port.netdev in management:
            remedy = f"give RDMA another NIC: {port.netdev} carries the node's own traffic, so leave its MTU"
            yield advice(subject, found, healthy, remedy)
            continue
        remedy = f"ip link set {port.netdev} mtu 9000, on all nodes and their switch ports; then the NAD's mtu"
        yield broken(subject, found, healthy, remedy)


def check_gids(ports: Sequence[Port]) -> Iterator[Observation]:
    """GID tables that are full, nearly full, or without an entry of RoCE v2."""
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
                f'{link_local} of them are link-local: `"rdma": {{"ipv6LinkLocal": false}}` in the NAD saves a pod\'s;'
                " else let fewer pods share it: a lower rdmaHcaMax of the device plugin, or SR-IOV"
            )
            healthy = f"less than {NEARLY_FULL:.0%} in use: a pod without a GID has no RDMA"
            yield broken(subject, f"GID table {state}: {used} of {port.room}", healthy, remedy)
        else:
            yield ok(subject, f"{used} of {port.room} GIDs in use")


def _subject(port: Port) -> str:
    return f"{port} ({port.netdev})" if port.netdev else str(port)
