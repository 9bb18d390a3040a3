"""The file rails.yaml, which defines a group of rails: its keys, its checks, and the planned rails. A rail is a network
that has one NIC of each node. Only `read` and `nodes_nics` do I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from cni.documents import reader
from cni.documents.diagnostic import Diagnostic, Scope, refusal
from cni.documents.models import Identifier, Namespace, matching
from cni.documents.tree import Keys
from cni.node.inventory import devices as inventory
from cni.node.inventory import topology
from cni.resources.models import MOST_VFS, prefix
from cni.shared.rail import MOST_RAILS, TABLE_BASE
from cni.shared.spec.errors import InvalidConfig

Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network
_RAIL = "{rail}"
_ADDITIONS = {
    "addressing": 'write "addressing": "same-index" for one index on all rails, which a plan without the key meant until'
    ' now, or "addressing": "plain" for independent addresses'
}


def filled(text: str, rail: int) -> str:
    """`text` with the number `rail` in place of "{rail}". Raises ValueError if other names are in braces."""
    try:
        return text.format(rail=rail)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(f'want "{_RAIL}" alone in braces') from None


Template = Annotated[str, AfterValidator(lambda text: filled(text, 0) and text)]
Patterns = Annotated[
    list[str],
    BeforeValidator(lambda value: value if isinstance(value, list) else [value]),
    Field(min_length=1),
]


class Rails(BaseModel):
    """The keys of rails.yaml. "{rail}" in a text stands for the rail's number, "{rail:x}" for its hexadecimal form."""

    model_config = ConfigDict(extra="forbid", strict=True)

    count: Annotated[int, Field(ge=1, le=MOST_RAILS)]  # how many rails the nodes have
    subnet: Patterns  # the subnet of a rail, "192.168.{rail}.0/24"; a list: a pod has an address of each
    addressing: Literal["same-index", "plain"]  # same-index: a pod has one index on all rails
    group: Identifier = "rails"  # the name of the group
    namespace: Namespace = "default"  # the namespace of the NADs and of the test pod
    type: Literal["macvlan", "host-device", "sriov"] = "macvlan"  # the link plugin
    # The NIC of each rail, by one of three keys. `master` is its netdev, "eth_r{rail}": macvlan's master, host-device's
    # device, sriov's physical function. `pci` is its PCI address. `pairing` orders this node's NICs with verbs
    # devices; gpu: rail 0 is the NIC nearest to GPU 0, and so on; numa: by NUMA node and PCI address.
    master: Template = ""
    pci: list[Annotated[str, matching(topology.is_address, "want a PCI address such as 0000:18:00.0")]] = []
    pairing: Literal["", "gpu", "numa"] = ""
    mtu: Annotated[int, Field(ge=0, le=65535)] = 0  # MTU in bytes; 0: the NIC's
    base: Annotated[int, Field(ge=1)] = 1  # the lowest index that a pod gets: of 192.168.3.0/24 index 1 is 192.168.3.1
    exclude: list[Annotated[int, Field(ge=0)]] = []  # indexes that no pod gets, such as those of hosts
    gateway: Annotated[int, Field(ge=0)] = 0  # the index of each subnet's gateway; 0: none
    routing: bool = True  # a routing table, source rules and ARP settings for each rail
    tableBase: Annotated[int, Field(ge=256, le=1 << 30)] = TABLE_BASE  # the number of rail 0's routing table
    oneNetwork: bool = False  # one network and one resource for all rails: the NIC of an attachment decides its rail
    resourcePrefix: Annotated[str, AfterValidator(prefix)] = (
        "rdma"  # the prefix of the resource names: rdma/rails_rail_0
    )
    shared: Annotated[int, Field(ge=1)] = 1000  # how many pods share a NIC, for macvlan
    numVfs: Annotated[int, Field(ge=0, le=MOST_VFS)] = 0  # how many VFs a NIC has, for sriov
    image: str = "busybox:1.36"  # the test pod's image

    def faults(self) -> list[tuple[Keys, str]]:
        """Return (path of the key to correct, message) for each fault in a combination of keys."""
        return [*self._of_nics(), *self._of_subnets()]

    def _of_nics(self) -> Iterator[tuple[Keys, str]]:
        if self.type == "sriov" and not self.numVfs:
            yield ("type",), "sriov needs the number of VFs of each NIC: want numVfs, such as 8"
        elif self.numVfs and self.type != "sriov":
            yield ("numVfs",), f"a {self.type} takes no VFs that are made here: want type sriov, or no numVfs"
        given = [name for name in ("master", "pci", "pairing") if getattr(self, name)]
        if len(given) != 1:
            yield (), f"master, pci and pairing: want one of them, and there are {' and '.join(given) or 'none'}"
        elif len(set(self.pci)) < len(self.pci):
            yield ("pci",), "names a NIC twice"
        elif self.pci and len(self.pci) != self.count:
            yield ("pci",), f"has {len(self.pci)} addresses, and count is {self.count}"
        elif self.master and self.count > 1 and filled(self.master, 0) == filled(self.master, 1):
            yield ("master",), f'"{self.master}" is the same netdev for every rail: want {_RAIL} in it'
        elif self.oneNetwork and self.addressing == "plain":
            yield ("oneNetwork",), "needs one index on all rails: want addressing same-index"
        elif self.pci and self.type == "macvlan":
            yield ("pci",), "a macvlan needs the netdev's name: want master, or pairing on a node that has the NICs"

    def _of_subnets(self) -> Iterator[tuple[Keys, str]]:
        seen: dict[str, Subnet] = {}
        for rail, (i, text) in product(range(self.count), enumerate(self.subnet)):
            try:
                subnet = ipaddress.ip_network(filled(text, rail))
            except ValueError:
                wanted = f"want a pattern such as 192.168.{_RAIL}.0/24 or fd00:{_RAIL}::/64"
                yield ("subnet", i), f'"{text}": is no subnet for rail {rail}: {wanted}'
                return
            name = f"{subnet} of rail {rail}"
            other = next((n for n, s in seen.items() if s.version == subnet.version and s.overlaps(subnet)), "")
            if other:
                yield ("subnet", i), f'{name} overlaps {other}: want {_RAIL} in "{text}"'
                return
            if subnet.num_addresses < 4:
                yield ("subnet", i), f"{name} gives no index from 1 on: want a larger one, such as a /24"
                return
            seen[name] = subnet
        least = min(subnet.num_addresses for subnet in seen.values())
        excluded: list[tuple[Keys, int]] = [(("exclude", i), index) for i, index in enumerate(self.exclude)]
        for keys, index in ((("base",), self.base), (("gateway",), self.gateway), *excluded):
            if index >= least - 1:
                wanted = f"want less than {least - 1}"
                yield keys, f"{index} is outside of the smallest subnet, of {least} addresses: {wanted}"


@dataclass(frozen=True)
class Nic:
    """The NIC of a rail: its netdev and its PCI address, each "" if unknown."""

    netdev: str = ""
    pci: str = ""


@dataclass(frozen=True)
class PlannedRail:
    """One rail of the plan. `ranges` are entries for the key `rail.ranges` of a network. `name` is the name of the
    network; `resource` is the name of the resource, without prefix. With `oneNetwork` both are equal for all rails."""

    index: int
    name: str
    nic: Nic
    subnets: tuple[Subnet, ...]
    ranges: tuple[dict[str, Any], ...]
    resource: str


def read(path: str, text: str | None = None) -> Rails:
    """Parse the file `path`, or its content `text` if given. Raises InvalidConfig with every fault and its position."""
    faults: list[Diagnostic] = []
    scope = next((scope for _, scope in reader.documents(path, text, faults)), None)
    path = reader.shown_path(path)
    if faults:
        raise refusal(path, faults)
    if scope is None or not isinstance(scope.root.data, dict):
        raise InvalidConfig(f"{path}: want the keys count, subnet, addressing, and one of master, pci and pairing")
    plan = of_document(scope)
    if plan is None or faults:
        raise refusal(path, faults)
    return plan


def of_document(scope: Scope) -> Rails | None:
    """Parse the document in `scope`, and add faults to its findings. Returns None if a key is missing or malformed."""
    plan: Rails | None = scope.model(Rails, scope.root.data, additions=_ADDITIONS)
    for keys, message in plan.faults() if plan else ():
        scope.error(keys, message)
    return plan


def rails_of(plan: Rails, nics: list[Nic]) -> list[PlannedRail]:
    """The rails of `plan`. With the key `pairing`, rail N has the N-th of `nics`; too few NICs raise InvalidConfig."""
    if plan.pairing and len(nics) < plan.count:
        remedy = "run it on a node that has all, or give master or pci"
        raise InvalidConfig(f"pairing: this node has {len(nics)} NICs for {plan.count} rails: {remedy}")
    named = [Nic(netdev=filled(plan.master, rail)) for rail in range(plan.count)]
    chosen = nics if plan.pairing else [Nic(pci=address) for address in plan.pci] or named
    found = []
    for rail in range(plan.count):
        subnets = tuple(ipaddress.ip_network(filled(text, rail)) for text in plan.subnet)
        name = plan.group if plan.oneNetwork else f"{plan.group}-rail-{rail}"
        name = name.lower().replace("_", "-")  # as Kubernetes demands of names
        ranges = tuple(_range(plan, subnet, subnet == subnets[0]) for subnet in subnets)
        resource = name.replace("-", "_").replace(".", "_")  # the device plugins accept no other character
        found.append(PlannedRail(rail, name, chosen[rail], subnets, ranges, resource))
    return found


def _range(plan: Rails, subnet: Subnet, is_first: bool) -> dict[str, Any]:
    """The entry of `rail.ranges` for one subnet of a rail. With `oneNetwork`, the entry of the rail's first subnet
    (`is_first`) also has the gateway."""
    found: dict[str, Any] = {"range": str(subnet)}
    if plan.base > 1:
        found["range_start"] = str(subnet[plan.base])
    held_back = {*plan.exclude}
    if plan.gateway and plan.oneNetwork and is_first:
        found["gateway"] = str(subnet[plan.gateway])
    elif plan.gateway:
        held_back.add(plan.gateway)
    if held_back:
        found["exclude"] = [str(subnet[index]) for index in sorted(held_back) if index < subnet.num_addresses]
    return found


def nodes_nics(pairing: str, root: str = "/sys") -> list[Nic]:
    """This node's physical NICs with verbs devices, in the order that the key `pairing` demands."""
    devices = {d.name: d for d in inventory.read(root=root) if d.pci and not d.is_virtual_function}
    found = topology.read(((name, d.pci) for name, d in devices.items()), root)
    left = [name for name, _ in sorted(found.nics, key=lambda nic: (nic[1].numa_node, nic[1].address))]
    paired = []
    for gpu in found.gpus if pairing == "gpu" else ():
        near = next((name for name in left if name in found.nearest(gpu)), "")
        if near:
            left.remove(near)
            paired.append(near)
    chosen = [devices[name] for name in [*paired, *left]]
    return [Nic(next((p.netdev for p in d.ports if p.netdev), ""), d.pci) for d in chosen]
