"""The variables that NCCL needs in a pod, and the GID that NCCL chooses without them. Pure.

NCCL before 2.21 uses one GID index for all devices, NCCL_IB_GID_INDEX, by default 0. Newer versions choose an entry for
each device when the variable is not set: the first of RoCE v2 (NCCL_IB_ROCE_VERSION_NUM) whose address is of one family
(NCCL_IB_ADDR_FAMILY, by default IPv4), in one range (NCCL_IB_ADDR_RANGE) and not link-local. The table also has the
entries of other pods on the same NIC. To tell them from the pod's own, NCCL needs a range or an index.
Sources: NCCL's user guide, "Environment Variables"; src/transport/net_ib/connect.cc of NCCL 2.31,
ncclIbGetGidIndex.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cni.node.inventory.devices import Gid, Port, VerbsDevice, ports, ports_of
from cni.node.inventory.sandboxes import NamespaceView
from cni.shared.kernel import rdma_sysfs
from cni.shared.spec.errors import CniError

INDEX_VARIABLES = ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "NVSHMEM_IB_GID_INDEX")
_SINCE = "2.21"  # the first version of NCCL that chooses an index for each device

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Devices = Sequence[VerbsDevice]


@dataclass(frozen=True)
class _Way:
    """A link of the pod with its RDMA port. `gid` is the GID of the link's first IPv4 address, else of its first
    IPv6 address; None for InfiniBand."""

    link: str
    port: Port
    gid: Gid | None


def advice(sandbox: NamespaceView, devices: Devices, root: str = "/sys") -> tuple[dict[str, str], list[str]]:
    """Return (variables for the containers of a pod, notes about them). Raises CniError if no port has a GID of the pod."""
    ways = list(_ways(sandbox, devices, root))
    if not ways:
        raise CniError(_missing(sandbox, devices, root), code=100)
    names = ",".join(f"{way.port.device}:{way.port.number}" for way in ways)  # "=" compares whole names
    variables = {"NCCL_IB_HCA": f"={names}", "NCCL_SOCKET_IFNAME": "=" + ",".join(dict.fromkeys(w.link for w in ways))}
    chosen = {way: way.gid for way in ways if way.gid is not None}
    more, notes = _selection(chosen) if chosen else ({}, [])
    return {**variables, **more}, [*notes, *_unused(ways, sandbox, devices, root)]


def _unused(ways: Sequence[_Way], sandbox: NamespaceView, devices: Devices, root: str) -> Iterator[str]:
    """Yield a note for each port of the pod that NCCL does not use."""
    for way in ways:
        if not way.port.is_active:
            yield f"NCCL leaves out {way.port} ({way.link}) until it is ACTIVE: it is {way.port.state}"
    used = {way.link for way in ways}
    for link in sandbox.interfaces:
        own = [str(port) for port in ports_of(link, devices, root) if port.is_roce]
        if own and link.name not in used:
            yield f"{link.name} is left out: {', '.join(own)} has no RoCE v2 GID of its addresses; see `railcni doctor`"


def _selection(chosen: Mapping[_Way, Gid]) -> tuple[dict[str, str], list[str]]:
    """Return (variables that make NCCL choose the GIDs `chosen`, notes about versions of NCCL)."""
    indexes = {gid.index for gid in chosen.values()}
    each = ", ".join(f"{gid.index} of {way.port.device}" for way, gid in chosen.items())
    note = f"NCCL before {_SINCE} needs NCCL_IB_GID_INDEX={min(indexes)} too"
    if len(indexes) > 1:
        remedy = "give its processes one device each, or the pods devices of their own (host-device, sriov)"
        note = f"NCCL before {_SINCE} takes one GID index for all devices, and here they differ: {each}; {remedy}"
    families = {":" in gid.address for gid in chosen.values()}
    is_v6 = families == {True}
    variables = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} if is_v6 else {}
    candidates = (None, _common([gid.address for gid in chosen.values()])) if len(families) == 1 else ()
    for network in candidates:
        if all(choice(way.port, is_v6, network) == gid.index for way, gid in chosen.items()):
            return variables | ({"NCCL_IB_ADDR_RANGE": str(network)} if network else {}), [note]
    why = "the tables have GIDs of other pods or links, which NCCL cannot tell from these by a range"
    if len(indexes) == 1:
        return {"NCCL_IB_GID_INDEX": str(min(indexes))}, [f"NCCL of every version needs the index: {why}"]
    return variables, [note, f"NCCL from {_SINCE} on may choose the GID of another pod or link: {why} ({each})"]


def choice(port: Port, is_v6: bool, network: Network | None) -> int:
    """The GID index that NCCL 2.21 or newer chooses for the port when NCCL_IB_GID_INDEX is not set."""
    table = {gid.index: gid for gid in port.gids}
    current = table.get(0) or Gid(0, "", "", "::", "")
    for index in sorted(table.keys() - {0}):
        gid = table[index]
        if (":" in gid.address) != is_v6 or (network and ipaddress.ip_address(gid.address) not in network):
            continue
        is_first = (":" in current.address) != is_v6
        is_better = current.kind != rdma_sysfs.ROCE_V2 and gid.kind == rdma_sysfs.ROCE_V2
        if is_first or (is_better and not gid.address.startswith("fe80:")):
            current = gid
    return current.index


def wrong_index(value: str, ways: Sequence[tuple[str, Port]]) -> str:
    """The reason why the GID index `value` of a variable is wrong for a link of the pod; "" when it suits all links.

    `ways` has (link name, port). A negative number, and "auto" of UCX, leave the choice to the library."""
    try:
        index = -1 if value == "auto" else int(value)
    except ValueError:
        return "it is no number"
    if index < 0:
        return ""
    others = []
    for link, port in ways:
        gid = next((gid for gid in port.gids if gid.index == index), None)
        if gid is None:
            others.append(f"{port.device} has no entry there")
        elif gid.ndev != link or gid.kind != rdma_sysfs.ROCE_V2:
            whose = f"of {gid.owner}" if gid.owner else f"of {gid.ndev or 'no link'}"
            others.append(f"of {port.device} it is {gid.address} {whose}, {gid.kind}")
    return "; ".join(others)


def _ways(sandbox: NamespaceView, devices: Devices, root: str) -> Iterator[_Way]:
    gids = [(port, gid) for port in ports(devices) for gid in port.gids if gid.kind == rdma_sysfs.ROCE_V2]
    for interface in sandbox.interfaces:
        wanted = [(interface.name, a) for a in sorted(interface.global_addresses, key=lambda a: ":" in a)]
        if own := [found for want in wanted for found in gids if (found[1].ndev, found[1].address) == want]:
            yield _Way(interface.name, *own[0])
            continue
        for port in ports_of(interface, devices, root):
            if port.link_layer == rdma_sysfs.INFINIBAND:
                yield _Way(interface.name, port, None)


def _common(addresses: Sequence[str]) -> Network:
    """The smallest network that contains all the addresses, which are of one family."""
    network: Network = ipaddress.ip_network(addresses[0])
    while not all(ipaddress.ip_address(address) in network for address in addresses):
        network = network.supernet()
    return network


def _missing(sandbox: NamespaceView, devices: Devices, root: str) -> str:
    has = [f"{i.name} {a}" for i in sandbox.interfaces for a in i.global_addresses if i.name != "lo"]
    who = sandbox.owner or "this namespace"
    if not devices:
        return f"{who} has no RDMA: this node shows no verbs device; see `railcni doctor`"
    own = [port for link in sandbox.interfaces for port in ports_of(link, devices, root)] or ports(devices)
    if not any(port.is_roce or port.link_layer == rdma_sysfs.INFINIBAND for port in own):
        names = ", ".join(dict.fromkeys(port.device for port in own))
        return f"{names} has neither RoCE nor InfiniBand, which NCCL's own transport needs; EFA needs aws-ofi-nccl"
    return (
        f"no verbs device has a RoCE v2 GID of {who}, which has {', '.join(has) or 'no address'}: an interface gets one"
        " when its master is the netdev of a RoCE port that is up; see `railcni rdma` and `railcni doctor`"
    )
