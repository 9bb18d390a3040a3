"""Find the RoCE v2 GIDs of a link's addresses, wait for them, and explain why one is missing. `root` is the mount point
of the host's sysfs, whose GID tables have the GIDs of all namespaces."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence

from cni.shared.kernel import rdma_sysfs

Ports = Sequence[tuple[str, int]]
Place = tuple[str, int, int]  # of a GID: verbs device, port, index in the port's GID table

_POLL_SECONDS = 0.005  # the kernel makes the GID of an address in a work queue, usually within some ms


def find(ports: Ports, addresses: Sequence[str], ifname: str, root: str = "/sys") -> dict[str, Place]:
    """Map each of `addresses` that has a RoCE v2 GID on `ifname` to the verbs device, port and index of the GID."""
    wanted = {rdma_sysfs.gid_of(address): address for address in addresses}
    found: dict[str, Place] = {}
    for device, port in ports:
        for gid in _of(device, port, wanted, root):
            if gid.kind == rdma_sysfs.ROCE_V2 and gid.ndev == ifname:
                found.setdefault(wanted[gid.value], (device, port, gid.index))
                if len(found) == len(wanted):
                    return found
    return found


def _of(device: str, port: int, wanted: Container[str], root: str) -> Iterator[rdma_sysfs.GidEntry]:
    for index, value in rdma_sysfs.gid_values(device, port, root):
        if value in wanted:
            yield rdma_sysfs.gid_at(device, port, index, value, root)


def wait(ports: Ports, addresses: Sequence[str], ifname: str, seconds: float, root: str = "/sys") -> dict[str, Place]:
    """Call `find` until all addresses have a GID or `seconds` have passed. Returns the last result of `find`."""
    end = time.monotonic() + seconds
    while True:
        found = find(ports, addresses, ifname, root)
        if len(found) == len(addresses) or time.monotonic() >= end:
            return found
        time.sleep(_POLL_SECONDS)


def missing(ports: Ports, address: str, ifname: str, root: str = "/sys") -> str:
    """The error text for an `address` without a GID, with the state of the table and the remedy."""
    device, port = ports[0]
    where = f"{device} port {port}"
    said = f"address {address} of {ifname} has no RoCE v2 GID on {where}"
    used, size = use(device, port, root)
    if port not in rdma_sysfs.ports(device, root) or not size:  # the kernel removes the table before the device
        return (
            f"{said}: the verbs device is gone. A software one (rxe) ends when its netdev is moved: make it in the pod's"
            " namespace; of hardware, see the kernel's log"
        )
    for one, number in ports:
        for gid in _of(one, number, (rdma_sysfs.gid_of(address),), root):
            if gid.kind != rdma_sysfs.ROCE_V2:
                return f"{said}, only entry {gid.index} of type {gid.kind}: set the port's RoCE mode to v2"
            return f'{said}: entry {gid.index} has it for a link "{gid.ndev}". Is the address given twice, or the link renamed?'
    if used >= size:
        return (
            f"{said}: its table is full, {used} of {size}. Use fewer pods or addresses on this netdev, or rdma.ipv6LinkLocal"
            " false, so that fe80 addresses take none"
        )
    state = rdma_sysfs.PortState(device, port, root).state
    return f"{said} (it is {state}, {used} of {size} entries are in use): see `rdma link`, and the kernel's log for its driver"


def use(device: str, port: int, root: str = "/sys") -> tuple[int, int]:
    """The number of used entries of the port's GID table, and the number of all entries."""
    return sum(1 for _ in rdma_sysfs.gid_values(device, port, root)), rdma_sysfs.gid_table_size(device, port, root)
