"""The rails of a pod by the records of this node, and their state in its sandbox."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cni import plugins
from cni.features import gids, routing
from cni.library.inventory.sandboxes import NamespaceView, inode_of
from cni.shared.config import Fault
from cni.shared.kernel import addresses, netns, rdma_sysfs
from cni.shared.kernel.sandbox import Sandbox as Opened
from cni.shared.log import Log
from cni.shared.rail import Rail, read
from cni.shared.records import STATE, Records
from cni.shared.spec.request import member
from cni.shared.spec.result import Interface, IPConfig, Result
from cni.verbs.detach import PART, config_of

Interfaces = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class AttachedRail:
    """A rail of a pod by its record: the network, the link's name in the sandbox, the netdev of the host that carries it."""

    rail: Rail
    network: str
    ifname: str
    netns: str
    pod: str
    carrier: str
    mtu: int
    routing: dict[str, Any] | None

    @property
    def subnets(self) -> list[Subnet]:
        """The subnets of the rail that its group defines; [] for plain addressing."""
        own = self.rail.ranges[self.rail.index] if self.rail.ranges else []
        return [_subnet(str(member(part, "range"))) for part in own]


@dataclass(frozen=True)
class Found:
    """What stands of a rail: its addresses, the index that they stand for, how it differs, and its GIDs by address."""

    attached: AttachedRail
    addresses: tuple[Interfaces, ...]
    differences: tuple[str, ...]
    gids: dict[str, str]

    @property
    def indexes(self) -> list[int]:
        """The host number of each address."""
        return [int(a.ip) - int(a.network.network_address) for a in self.addresses]


def of_node(state: str = STATE) -> list[AttachedRail]:
    """All rails that this node's records tell of."""
    return list(_recorded(state)) if os.path.isdir(state) else []


def of_sandbox(sandbox: NamespaceView, state: str = STATE) -> list[AttachedRail]:
    """The rails that are attached to one namespace, in their order."""
    inode = os.stat(sandbox.netns).st_ino
    found = [a for a in of_node(state) if inode_of(a.netns) == inode]
    return sorted(found, key=lambda a: (a.rail.group, a.rail.index))


def _recorded(state: str) -> Iterator[AttachedRail]:
    for attachment, _, record in Records(state, Log("railcni")).all(PART):
        config = config_of(record)
        faults: list[Fault] = []
        rail = read(config, faults)
        if rail is None or not record.get("link"):
            continue
        plugin = plugins.named(record["plugin"])
        carrier, _inside = plugin.carrier(plugin.load(record["link"]))
        namespace, name, *_ = record.get("pod") or ("", "")
        yield AttachedRail(
            rail,
            attachment.network,
            str(record["link"]["name"]),
            str(record["netns"]),
            f"{namespace}/{name}" if name else f"container {attachment.container_id[:13]}",
            carrier,
            member(config, "mtu") or int(record["link"].get("mtu") or 0),
            (record.get("extras") or {}).get("rail"),
        )


def look(attached: AttachedRail) -> Found:
    """What there is of a rail now."""
    with Opened(netns.open_namespace(attached.netns)) as there:
        link = there.rtnl.link(name=attached.ifname)
        if link is None:
            return Found(attached, (), (f'there is no link "{attached.ifname}" in the sandbox',), {})
        texts = [a.text for a in addresses.list_of(there.rtnl, link.index) if a.scope != addresses.LINK_SCOPE]
        result = Result([Interface(link.name, link.mac)], [IPConfig(text) for text in texts])
        differences = [] if link.up else [f"{link.name} is down"]
        if attached.routing:
            differences += routing.differences(attached.routing, link, result, there)
        if attached.mtu and link.mtu != attached.mtu:
            differences.append(f"MTU of {link.name} is {link.mtu}, and {attached.mtu} is wanted")
        if not texts:
            differences.append(f"{link.name} has no address")
    held = [ipaddress.ip_interface(text) for text in texts]
    names, lacking = _gids(attached, [str(a.ip) for a in held])
    wanted = attached.subnets
    outside = [str(a) for a in held if wanted and a.network not in wanted]
    differences += [f"{text} of {attached.ifname} is in none of the rail's ranges" for text in outside]
    differences += [
        f"{attached.ifname} has no address of {net}" for net in wanted if net not in {a.network for a in held}
    ]
    differences += lacking
    return Found(attached, tuple(held), tuple(differences), names)


def _gids(attached: AttachedRail, wanted: list[str]) -> tuple[dict[str, str], list[str]]:
    """The RoCE v2 GIDs of a rail's addresses, and which are missing; nothing where its NIC has no verbs device."""
    ports = (
        [port for port in rdma_sysfs.ports_of_netdev(attached.carrier) if rdma_sysfs.is_roce(*port)]
        if attached.carrier
        else []
    )
    if not ports:
        return {}, []
    found = gids.find(ports, wanted, attached.ifname)
    names = {address: f"{device} port {port} index {index}" for address, (device, port, index) in found.items()}
    return names, [gids.missing(ports, address, attached.ifname) for address in wanted if address not in found]


def _subnet(text: str) -> Subnet:
    """The subnet of a range, "a.b.c.d/n" with or without host bits, or "first-last/n"."""
    addresses, _, length = text.partition("/")
    return ipaddress.ip_network(f"{addresses.partition('-')[0].strip()}/{length}", strict=False)
