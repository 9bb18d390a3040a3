"""The ResourceSlices and DeviceClasses of a configuration. Pure.

A shared NIC is a device with several allocations. Each allocation takes the GIDs of one pod from the NIC's capacity. An
exclusive function is a device that one claim has at a time. If DRANET and dra-driver-sriov use the same full name of an
attribute, such as `dra.net/numaNode`, this driver uses it too. Otherwise this driver puts its own domain before the
short name, which is that of DRANET or dra-driver-sriov if either has the attribute.

Sources: types.go of staging/src/k8s.io/api/resource/v1 in Kubernetes, and its deviceattribute package; pkg/draclient of
Multus; pkg/apis/attributes.go of DRANET; pkg/consts/consts.go of dra-driver-sriov.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cni.node.inventory.functions import ETHER, Function
from cni.node.inventory.topology import NEAREST_FIRST, SYS, Topology
from cni.resources.choose import Offer, RailGroups, Resource, rail_of
from cni.resources.containers import DRIVER
from cni.resources.models import Exclusive, Shared, label
from cni.resources.selection import Host
from cni.shared.kernel.rdma_sysfs import ROCE_V2

API = "resource.k8s.io/v1"
RESOURCE_NAME, DEVICE_ID = "k8s.cni.cncf.io/resourceName", "k8s.cni.cncf.io/deviceID"  # Multus reads these two
MOST_DEVICES = 128  # the most devices of a slice
_LONGEST_VALUE = 64  # the most characters of an attribute
_TYPES = {bool: "bool", int: "int", str: "string"}

Value = bool | int | str | None


def unpublishable(name: str) -> str:
    """The reason why the resource `name` cannot be published; "" when it can."""
    has, most = len(name), _LONGEST_VALUE
    return f"{name} has {has} characters, and a ResourceSlice takes {most}: shorten the name" if has > most else ""


@dataclass(frozen=True)
class Device:
    """A device of the node's pool; `document` is its entry in a ResourceSlice."""

    resource: Resource
    offer: Offer
    document: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.document["name"])


def devices(resources: Iterable[Resource], host: Host, topology: Topology, rails: RailGroups = ()) -> list[Device]:
    """The devices of all resources. `topology` has the node's GPUs, and its functions by their PCI addresses."""
    functions = {function.id: function for function in host.functions}
    found: dict[str, Device] = {}
    for resource in resources:
        for offer in resource.offers:
            if not offer.ids:
                continue
            whole = f"{resource.name}-{offer.name}"
            # `label` replaces characters, so another resource's device may have the name already
            name = label(whole, unique=label(whole) in found)
            known = _attributes(resource, offer, functions.get(offer.name), host, topology, rails)
            given = ((key, v[:_LONGEST_VALUE] if isinstance(v, str) else v) for key, v in known if v not in ("", None))
            attributes = {key: {_TYPES[type(value)]: value} for key, value in given}
            document: dict[str, Any] = {"name": name, "attributes": attributes}
            if not resource.is_exclusive:
                document |= {"allowMultipleAllocations": True, "capacity": _capacity(offer)}
            found[name] = Device(resource, offer, document)
    return list(found.values())


def _capacity(offer: Offer) -> dict[str, Any]:
    """The field `capacity` of a shared NIC in a ResourceSlice. Each allocation takes an equal share. The unit is a GID,
    or one allocation if GIDs do not limit the allocations."""
    count, share = len(offer.ids), str(offer.gids or 1)
    valid = {"validRange": {"min": share, "step": share}} if count > 1 else {"validValues": [share]}
    value = str(count * int(share))
    return {"gids" if offer.gids else "devices": {"value": value, "requestPolicy": {"default": share, **valid}}}


def _attributes(
    resource: Resource, offer: Offer, function: Function | None, host: Host, topology: Topology, rails: RailGroups
) -> Iterator[tuple[str, Value]]:
    yield RESOURCE_NAME, resource.name
    yield DEVICE_ID, offer.name
    yield "shared", not resource.is_exclusive
    yield "healthy", not offer.fault
    yield "dra.net/numaNode", offer.numa_nodes[0] if len(offer.numa_nodes) == 1 else None
    if function is None:  # the device is all NICs of the resource
        return
    yield "rdma", function.has_rdma
    yield "linkType", "ethernet" if function.link_type == ETHER else function.link_type  # as in dra-driver-sriov
    yield "ifName", function.netdevs[0] if function.netdevs else ""
    yield "vendor", function.vendor
    yield "deviceID", function.product
    yield from zip(("rail", "group"), rail_of(function, rails) or (), strict=False)
    yield from _place(function, topology)
    if function.verbs and function.verbs[0] in host.devices:
        verbs = host.devices[function.verbs[0]]
        yield "rdmaDevice", verbs.name
        yield "firmware", verbs.firmware
        if verbs.ports:
            port = verbs.ports[0]
            kinds = {gid.kind for gid in port.gids}
            yield "roceV1", bool(kinds - {ROCE_V2}) and port.is_roce
            yield "roceV2", ROCE_V2 in kinds
            yield "mtu", port.mtu
            yield "activeMtu", port.roce_mtu
            yield "speedGbps", None if port.speed is None else int(port.speed)


def _place(function: Function, topology: Topology) -> Iterator[tuple[str, Value]]:
    if (own := dict(topology.nics).get(function.id)) is None:
        return
    yield "resource.kubernetes.io/pciBusID", function.id
    yield "resource.kubernetes.io/pcieRoot", own.above[0] if own.above else ""
    yield "isSriovVf", function.is_virtual
    if function.is_virtual:
        yield "vfID", function.index
        yield "pfPciAddress", function.physical
        yield "PFName", function.physical_netdevs[0] if function.physical_netdevs else ""
    distances = {gpu.address: topology.distance(gpu, own) for gpu in topology.gpus}
    nearest = min(distances.values(), key=NEAREST_FIRST.index, default=SYS)
    if nearest != SYS:
        near = [address for address, distance in distances.items() if distance == nearest]
        yield "gpuDistance", nearest
        yield "gpus", ",".join(near[: (_LONGEST_VALUE + 1) // (len(near[0]) + 1)])


def documents(
    found: Sequence[Device], node: str, generation: int, owner: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The ResourceSlices of `found`, as one pool of the node. Kubernetes deletes them with `owner`, the Node."""
    parts = [found[at : at + MOST_DEVICES] for at in range(0, len(found), MOST_DEVICES)]
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(parts)}
    hint = node if len(node) <= 200 else label(node)
    owners = {"ownerReferences": [owner]} if owner else {}
    return [
        {
            "apiVersion": API,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{hint}-{DRIVER}-{number}", **owners},
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [one.document for one in part]},
        }
        for number, part in enumerate(parts)
    ]


def device_class(resource: Shared | Exclusive) -> dict[str, Any]:
    """The DeviceClass for claims of the resource, and for pods that have the resource's name in their limits."""
    domain, _, name = RESOURCE_NAME.partition("/")
    expression = (
        f'device.driver == "{DRIVER}" && device.attributes["{domain}"].{name} == "{resource.name}"'
        f' && device.attributes["{DRIVER}"].healthy'
    )
    spec = {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": resource.name}
    return {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": label(resource.name)}, "spec": spec}
