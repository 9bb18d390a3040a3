"""Which functions a resource has, how many devices it offers, and what a container gets with each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.library.inventory.devices import Port, VerbsDevice
from cni.library.inventory.functions import Function
from cni.library.resources.models import VFIO, Exclusive, ExclusiveSelectors, Selectors, Shared, spans

_IWARP = "siw"
_ADDRESSES = 2  # of a pod's link: its own and the link-local one of IPv6
_VERSION = "1.1.0"  # of the Device Information Specification

DeviceNode = tuple[str, str]  # its path in the container, and on the host
_CM: DeviceNode = ("/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm")
_VHOST: tuple[DeviceNode, ...] = (("/dev/vhost-net", "/dev/vhost-net"), ("/dev/net/tun", "/dev/net/tun"))


@dataclass(frozen=True)
class Host:
    """What there is on the node: `devices` are verbs devices by name, `netdevs` those of the host's namespace, `busy` those
    that carry the node's own traffic, with the reason, `paths` the device nodes that exist, such as "/dev/infiniband/uverbs0"."""

    functions: Sequence[Function] = ()
    devices: Mapping[str, VerbsDevice] = field(default_factory=dict)
    netdevs: Collection[str] = ()
    busy: Mapping[str, str] = field(default_factory=dict)
    paths: Collection[str] = ()


@dataclass(frozen=True)
class Offer:
    """Devices, one for each of `ids`, that give a container the same: those of a NIC, or one function.

    `name` is the PCI address, or the name of a software verbs device; `group` the NIC, whose functions are used in turn.
    `fault` says why the devices are not healthy, "" when they are. `info` and `file` are the contents of the variable
    PCIDEVICE_…_INFO and of the device-info file, for an exclusive function.
    """

    name: str
    ids: tuple[str, ...]
    nodes: tuple[DeviceNode, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    fault: str = ""
    group: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    file: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Resource:
    """The offers that kubelet knows under `name`."""

    name: str
    offers: tuple[Offer, ...] = ()
    is_exclusive: bool = False
    withheld: Mapping[str, str] = field(
        default_factory=dict
    )  # functions that are chosen and that the node needs, with the reason

    @property
    def ids(self) -> frozenset[str]:
        """The names of its devices."""
        return frozenset(one for offer in self.offers for one in offer.ids)

    @property
    def healthy_ids(self) -> frozenset[str]:
        """The names of the devices that can be had."""
        return frozenset(one for offer in self.offers if not offer.fault for one in offer.ids)

    @property
    def healthy(self) -> int:
        """How many of its devices can be had."""
        return sum(len(offer.ids) for offer in self.offers if not offer.fault)


def resources(configured: Iterable[Shared | Exclusive], host: Host) -> list[Resource]:
    """All resources as they are now. A function that several exclusive ones choose is the first one's."""
    taken: set[str] = set()
    return [shared(one, host) if isinstance(one, Shared) else exclusive(one, host, taken) for one in configured]


# --- shared by many containers ---


def shared(resource: Shared, host: Host) -> Resource:
    """The devices of the NICs that are chosen: as many in all as rdmaHcaMax says, evenly, as far as GIDs are free."""
    names = set(resource.selectors.ifNames)
    nics = [f for f in host.functions if f.verbs and _is_shared(f, resource)]
    found = [_shared(nic, _ports(nic, names, host), resource, host) for nic in nics]
    if resource.allNics and found:
        found = [_together(found)]
    counts = spread(resource.rdmaHcaMax, [bound for _, bound in found])
    offers = [
        Offer(o.name, tuple(f"{o.name}-{n}" for n in range(count)), o.nodes, o.numa_nodes, o.fault, o.name)
        for (o, _), count in zip(found, counts, strict=True)
    ]
    return Resource(resource.name, tuple(offers))


def spread(total: int, bounds: Sequence[int | None]) -> list[int]:
    """How many of `total` come to each place, as evenly as their bounds allow; None is no bound."""
    most = [total if bound is None else min(bound, total) for bound in bounds]
    counts = [0] * len(bounds)
    left = total
    for done, place in enumerate(sorted(range(len(most)), key=most.__getitem__)):  # the narrow ones first
        counts[place] = min(most[place], left // (len(most) - done))
        left -= counts[place]
    return counts


def bound(port: Port, netdevs: Collection[str], per_device: int | None) -> int | None:
    """For how many devices the port's GID table has room beside the host's own entries; None: it needs no GIDs.

    An address becomes an entry of each kind that the port has, RoCE v1 and v2, or v2 alone.
    """
    if not port.is_roce or not port.room or per_device == 0:
        return None
    kinds = len({gid.kind for gid in port.gids}) or 1
    own = sum(not gid.ndev or gid.ndev in netdevs for gid in port.gids)
    return (port.room - own) // (per_device or kinds * _ADDRESSES)


def _is_shared(function: Function, resource: Shared) -> bool:
    selectors = resource.selectors
    return (
        _is_chosen(function, selectors)
        and (not selectors.deviceIDs or function.product in selectors.deviceIDs)
        and (not selectors.ifNames or not {*function.netdevs}.isdisjoint(selectors.ifNames))
    )


def _ports(nic: Function, names: set[str], host: Host) -> list[Port]:
    """The NIC's ports; of one with several those whose netdevs are named, if any is."""
    ports = [port for name in nic.verbs if name in host.devices for port in host.devices[name].ports]
    return [port for port in ports if port.netdev in names] or ports


def _shared(nic: Function, ports: list[Port], resource: Shared, host: Host) -> tuple[Offer, int | None]:
    nodes = _rdma_nodes(nic, resource.umad, host)
    active = [port for port in ports if port.is_active]
    down = ", ".join(f"{port} is {port.state} ({port.physical_state})" for port in ports) or "it has no port"
    fault = _fault(nic, nodes, host) or ("" if active else down)
    bounds = [None if nic.driver == _IWARP else bound(p, host.netdevs, resource.gidsPerDevice) for p in ports]
    known = [b for b in bounds if b is not None]
    return Offer(nic.id, (), nodes, _numa(nic), fault), sum(known) if known and len(known) == len(bounds) else None


def _together(found: Sequence[tuple[Offer, int | None]]) -> tuple[Offer, int | None]:
    """One offer with the nodes of all NICs; healthy while one of them is, with the bound of the smallest."""
    offers = [offer for offer, _ in found]
    well = [offer for offer in offers if not offer.fault]
    nodes = tuple(dict.fromkeys(node for offer in well or offers for node in offer.nodes))
    numa = tuple(sorted({number for offer in offers for number in offer.numa_nodes}))
    bounds = [bound for _, bound in found if bound is not None]
    return Offer("all", (), nodes, numa, "" if well else offers[0].fault), min(bounds, default=None)


# --- one container at a time ---


def exclusive(resource: Exclusive, host: Host, taken: set[str]) -> Resource:
    """The functions that are chosen and not `taken` yet; those that the node needs and those that have VFs are left out."""
    offers, withheld = [], {}
    for selectors in resource.selectors:
        for function in host.functions:
            free = not function.has_virtual_functions and function.id not in taken
            if not free or not _is_exclusive(function, selectors):
                continue
            needed = next((host.busy[name] for name in function.netdevs if name in host.busy), "")
            if needed:
                withheld[function.id] = f"not offered, since the node needs it: {needed}"
                continue
            taken.add(function.id)
            offers.append(_exclusive(function, selectors, resource, host))
    return Resource(resource.name, tuple(offers), is_exclusive=True, withheld=withheld)


def _is_exclusive(function: Function, selectors: ExclusiveSelectors) -> bool:
    return (
        not function.is_software
        and _is_chosen(function, selectors)
        and (not selectors.devices or function.product in selectors.devices)
        and (not selectors.pciAddresses or function.id in selectors.pciAddresses)
        and (not selectors.pfNames or _is_of(selectors.pfNames, function.physical_netdevs, function.index))
        and (not selectors.rootDevices or _is_of(selectors.rootDevices, (function.physical,), function.index))
        and (not selectors.isRdma or function.has_rdma)
    )


def _is_of(ranged: Sequence[str], names: Collection[str], index: int) -> bool:
    """Whether the VF `index` of the physical function with these `names` is in "NAME#0-3,7"; NAME alone is all of it."""
    folded = {name.lower() for name in names}
    for item in ranged:
        name, parts = spans(item)
        if name.lower() in folded:
            return not parts or any(first <= index <= last for first, last in parts)
    return False


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


# --- both ---


def _is_chosen(function: Function, selectors: Selectors) -> bool:
    return (
        (not selectors.vendors or function.vendor in selectors.vendors)
        and (not selectors.drivers or function.driver in selectors.drivers)
        and (not selectors.linkTypes or function.link_type in selectors.linkTypes)
    )


def _rdma_nodes(function: Function, umad: bool, host: Host) -> tuple[DeviceNode, ...]:
    """uverbsN, with `umad` umadN and issmN, and rdma_cm where the node has it: InfiniBand does without."""
    names = [name for name in function.nodes if umad or name.startswith("uverbs")]
    paths = [f"/dev/infiniband/{name}" for name in names]
    return (*((path, path) for path in paths), *([_CM] if _CM[1] in host.paths else []))


def _fault(function: Function, nodes: Sequence[DeviceNode], host: Host) -> str:
    """Why a container could not use the function, but for its port's state."""
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
