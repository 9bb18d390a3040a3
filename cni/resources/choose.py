"""Choose the PCI functions of each resource, and the number, device nodes and properties of its devices. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cni.node.inventory.functions import Function
from cni.resources.models import VFIO, Exclusive, ExclusiveSelectors, RailNics, Shared
from cni.resources.selection import Host, matches, reason
from cni.shared import rail

_ADDRESSES = 2  # addresses of a pod's link: the configured one and the link-local one of IPv6
_EXCLUSIVE = (
    "RDMA is in the exclusive netns mode, in which a container sees no shared device: `rdma system set netns shared` while no"
    " other network namespace exists, or `options ib_core netns_mode=1` in /etc/modprobe.d and a reboot"
)
_VERSION = "1.1.0"  # of the Device Information Specification

RailGroups = Sequence[RailNics]
DeviceNode = tuple[str, str]  # (path in the container, path on the host)
_CM: DeviceNode = ("/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm")
_VHOST: tuple[DeviceNode, ...] = (("/dev/vhost-net", "/dev/vhost-net"), ("/dev/net/tun", "/dev/net/tun"))


@dataclass(frozen=True)
class Offer:
    """Devices that have the same device nodes: the devices of a shared NIC, or one exclusive function.

    `ids` are the devices' names in kubelet. `name` is the PCI address, the name of a software verbs device, or "all"
    for `allNics`. Offers of one NIC have the same `group`. `fault` is the reason why the devices are unhealthy, or "".
    `gids` is the number of GIDs that are kept free for each device. For an exclusive function, `info` is the content of
    the variable PCIDEVICE_…_INFO, and `file` is the content of the device-info file.
    """

    name: str
    ids: tuple[str, ...]
    nodes: tuple[DeviceNode, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    fault: str = ""
    group: str = ""
    gids: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    file: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resource:
    """A resource and its offers. `limit` is the reason why it has fewer devices than the configuration asks for, or "".
    `unchosen` is the reason why it has no offer; "" if it has offers, or if `withheld` has functions."""

    name: str
    offers: tuple[Offer, ...] = ()
    is_exclusive: bool = False
    limit: str = ""
    unchosen: str = ""
    # matching functions that the node itself needs, with the reason
    withheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> frozenset[str]:
        """The names of all devices of the resource."""
        return frozenset(one for offer in self.offers for one in offer.ids)

    @property
    def healthy(self) -> int:
        """The number of healthy devices."""
        return sum(len(offer.ids) for offer in self.offers if not offer.fault)


def resources(configured: Iterable[Shared | Exclusive], host: Host) -> list[Resource]:
    """Return all configured resources with the devices of `host`. The first exclusive resource whose selectors match a
    function gets the function. Shared resources with the same NIC divide the NIC's GIDs among them."""
    taken: set[str] = set()
    configured = list(configured)
    chosen = {
        one.name: [_candidate(nic, one, host) for nic in host.functions if nic.verbs and matches(nic, one.selectors)]
        for one in configured
        if isinstance(one, Shared)
    }
    _divide([nic for nics in chosen.values() for nic in nics])
    found = []
    for one in configured:
        earlier = set(taken)
        made = _shared(one, chosen[one.name]) if isinstance(one, Shared) else exclusive(one, host, taken)
        if not made.offers and not made.withheld:
            made = replace(made, unchosen=reason(one, host, earlier))
        found.append(made)
    return found


# --- shared by many containers ---


@dataclass
class _Candidate:
    """A NIC that matches the selectors of a shared resource, and `most`, the number of devices that the NIC can have.
    `offer` has no devices yet. `room` is the number of entries in the GID tables of the NIC's ports, `free` the number
    of entries that devices can use. Both are 0 if GIDs do not limit the devices."""

    most: int
    offer: Offer
    free: int = 0
    room: int = 0


def _candidate(nic: Function, resource: Shared, host: Host) -> _Candidate:
    """Make a candidate of `nic`. Without `gidsPerDevice`, a device takes _ADDRESSES GIDs for each RoCE version."""
    every = [port for name in nic.verbs if name in host.devices for port in host.devices[name].ports]
    ports = [port for port in every if port.netdev in resource.selectors.ifNames] or every
    nodes = _rdma_nodes(nic, resource.umad, host)
    down = ", ".join(f"{port} is {port.state} ({port.physical_state})" for port in ports) or "it has no port"
    fault = _fault(nic, nodes, host) or ("" if any(port.is_active for port in ports) else down)
    if host.is_exclusive and not fault:
        fault = _EXCLUSIVE
    offer = Offer(nic.id, (), nodes, _numa(nic), fault, nic.id)
    if resource.gidsPerDevice == 0 or not ports or not all(port.is_roce and port.room for port in ports):
        return _Candidate(resource.rdmaHcaMax, offer)
    cost = resource.gidsPerDevice or _ADDRESSES * max(len({gid.kind for gid in port.gids}) or 1 for port in ports)
    # the entries that are not the host's own, rounded down at each port, since a device uses one port
    free = [port.room - sum(not gid.ndev or gid.ndev in port.links for gid in port.gids) for port in ports]
    room = sum(port.room for port in ports)
    return _Candidate(resource.rdmaHcaMax, replace(offer, gids=cost), sum(n - n % cost for n in free), room)


def _divide(candidates: Sequence[_Candidate]) -> None:
    """Reduce `most` of each candidate to the number of devices for which its NIC has GIDs. Candidates with the same NIC
    share its GIDs evenly. GIDs that one candidate does not need are divided evenly among the others."""
    by_nic: dict[str, list[_Candidate]] = {}
    for candidate in candidates:
        if candidate.offer.gids:
            by_nic.setdefault(candidate.offer.name, []).append(candidate)
    for rivals in by_nic.values():
        wanted = [min(c.most * c.offer.gids, c.free) for c in rivals]
        for candidate, gids in zip(rivals, spread(min(c.free for c in rivals), wanted), strict=True):
            candidate.most = gids // candidate.offer.gids


def _shared(resource: Shared, nics: Sequence[_Candidate]) -> Resource:
    """Return the resource with rdmaHcaMax devices, or fewer if GIDs are short, spread evenly over the NICs."""
    bounds = [nic.most for nic in nics]
    offers = [nic.offer for nic in nics]
    if resource.allNics and nics:  # one offer, healthy if any NIC is, with the nodes of all healthy NICs
        well = [offer for offer in offers if not offer.fault]
        nodes = tuple(dict.fromkeys(node for offer in well or offers for node in offer.nodes))
        numa = tuple(sorted({number for offer in offers for number in offer.numa_nodes}))
        offers = [Offer("all", (), nodes, numa, "" if well else offers[0].fault, "all")]
        bounds = [min(bounds)]
    counts = spread(resource.rdmaHcaMax, bounds)
    made = [
        replace(offer, ids=tuple(f"{offer.name}-{n}" for n in range(count)))
        for offer, count in zip(offers, counts, strict=True)
    ]
    return Resource(resource.name, tuple(made), limit=_limit(resource, nics, sum(counts)))


def _limit(resource: Shared, nics: Sequence[_Candidate], count: int) -> str:
    """The reason why GIDs limit `count` to less than rdmaHcaMax; "" if they do not."""
    bound = [nic for nic in nics if nic.offer.gids]
    if count == resource.rdmaHcaMax or not bound:
        return ""
    tables = "the GID table has" if len(bound) == 1 else f"the GID tables of {len(bound)} NICs have"
    rooms, costs = _span([nic.room for nic in bound]), _span([nic.offer.gids for nic in bound])
    return f"{count} of {resource.rdmaHcaMax}: {tables} {rooms} entries, {costs} a device"


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def spread(total: int, bounds: Sequence[int]) -> list[int]:
    """Divide `total` as evenly as possible into one part for each of `bounds`. No part is above its bound."""
    counts = [0] * len(bounds)
    left = total
    for done, place in enumerate(sorted(range(len(bounds)), key=bounds.__getitem__)):  # the smallest bound first
        counts[place] = min(bounds[place], left // (len(bounds) - done))
        left -= counts[place]
    return counts


# --- one container at a time ---


def exclusive(resource: Exclusive, host: Host, taken: set[str]) -> Resource:
    """Return the resource with the matching functions, and add these to `taken`. PFs that have VFs, functions that are
    in `taken` already, and functions that the node itself needs are left out."""
    offers, withheld = [], {}
    for selectors in resource.selectors:
        for function in host.functions:
            free = not function.has_virtual_functions and function.id not in taken
            if not free or not (function.is_on_pci and matches(function, selectors)):
                continue
            if needed := next((host.busy[name] for name in function.netdevs if name in host.busy), ""):
                withheld[function.id] = f"not offered, since the node needs it: {needed}"
            else:
                taken.add(function.id)
                offers.append(_exclusive(function, selectors, resource, host))
    return Resource(resource.name, tuple(offers), is_exclusive=True, withheld=withheld)


def _exclusive(function: Function, selectors: ExclusiveSelectors, resource: Exclusive, host: Host) -> Offer:
    nodes: tuple[DeviceNode, ...] = ()
    info: dict[str, Any] = {"generic": {"deviceID": function.id}}
    pci = {"pci-address": function.id}
    if function.is_virtual:
        pci["pf-pci-address"] = function.physical
    if function.driver == VFIO:
        inside = f"/dev/vfio/{function.iommu_group.removeprefix('noiommu-')}"
        nodes += (("/dev/vfio/vfio", "/dev/vfio/vfio"), (inside, f"/dev/vfio/{function.iommu_group}"))
        info["vfio"] = {"mount": "/dev/vfio/vfio", "dev-mount": inside}
    if selectors.isRdma:
        own = _rdma_nodes(function, resource.umad, host)
        nodes += own
        info["rdma"] = {path.rpartition("/")[2].rstrip("0123456789"): path for path, _ in own}
        if function.verbs:
            info["rdma"]["rdma_dev"] = function.verbs[0]
            pci["rdma-device"] = ",".join(function.verbs)
    if selectors.needVhostNet and all(path in host.paths for path, _ in _VHOST):
        nodes += _VHOST
        info["vhost"] = {"net-mount": _VHOST[0][0], "tun-mount": _VHOST[1][0]}
    if resource.additionalInfo:
        info["extra"] = {**resource.additionalInfo.get("*", {}), **resource.additionalInfo.get(function.id, {})}
    return Offer(
        name=function.id,
        ids=(function.id,),
        nodes=nodes,
        numa_nodes=() if resource.excludeTopology else _numa(function),
        fault=_fault(function, nodes, host),
        group=function.physical,
        info=info,
        file={"type": "pci", "version": _VERSION, "pci": pci},
    )


def rail_of(function: Function, groups: RailGroups) -> tuple[int, str] | None:
    """Return (index, group name) of the function's NIC in its rail group, or None. The NIC of a VF is its PF."""
    names = {function.id, function.physical, *function.netdevs, *function.physical_netdevs}
    found = ((rail.of_names(one.nics, names), one.group) for one in groups)
    return next(((index, group) for index, group in found if index is not None), None)


def except_held(resource: Resource, held: Collection[str]) -> Resource:
    """Return the resource with a fault for each exclusive function in `held`, which a device plugin gave to a pod."""
    if not resource.is_exclusive:
        return resource
    why = "a pod has {} from a device plugin: drain the node, or delete the pod"
    offers = [replace(one, fault=why.format(one.name)) if one.name in held else one for one in resource.offers]
    return replace(resource, offers=tuple(offers))


# --- shared and exclusive ---


def _rdma_nodes(function: Function, umad: bool, host: Host) -> tuple[DeviceNode, ...]:
    """The device nodes uverbsN, if `umad` also umadN and issmN, and rdma_cm if the host has it."""
    names = [name for name in function.nodes if umad or name.startswith("uverbs")]
    paths = [f"/dev/infiniband/{name}" for name in names]
    return (*((path, path) for path in paths), *([_CM] if _CM[1] in host.paths else []))


def _fault(function: Function, nodes: Sequence[DeviceNode], host: Host) -> str:
    """The reason why a container cannot use the function, or "". The state of the function's port does not matter."""
    if not function.driver:
        return f"{function.id} has no driver"
    if function.driver == VFIO and not function.iommu_group:
        return f"{function.id} is in no IOMMU group: switch the IOMMU on, or allow vfio without one"
    if function.has_rdma and function.driver != VFIO and not any(n.startswith("uverbs") for n in function.nodes):
        return f"{function.id} has no uverbs device: modprobe ib_uverbs"
    missing = [path for _, path in nodes if path not in host.paths]
    return f"{', '.join(missing)}: there is no such device node: udevadm trigger" if missing else ""


def _numa(function: Function) -> tuple[int, ...]:
    return (function.numa_node,) if function.numa_node >= 0 else ()
