"""Read, compare and ping the rails in this node's records. A rail is a pod's link over one NIC of a group of NICs."""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.link import plugins
from cni.link.features import gids, routing
from cni.link.verbs.detach import config_of
from cni.node.inventory.sandboxes import NamespaceView, find, inode_of
from cni.node.runtime import icmp
from cni.shared.config import Fault
from cni.shared.kernel import addresses, netns, rdma_sysfs
from cni.shared.kernel.sandbox import Sandbox as Opened
from cni.shared.log import Log
from cni.shared.rail import Rail, read
from cni.shared.records import LINK, STATE, Records
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import member
from cni.shared.spec.result import Interface, IPConfig, Result

Interfaces = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network
Peer = dict[tuple[str, int], list[str]]  # a peer's addresses, by group and rail
_PAYLOAD = 56  # bytes, as ping(8)
_SECONDS = 2.0


@dataclass
class AttachedRail:
    """A pod's rail in this node's records. `ifname` is the link in the pod's namespace, `carrier` the host's netdev
    below this link. The function `look` sets `addresses`, `gids` (address -> device, port and index of the GID) and
    `faults`. The function `ping` sets `trips` (peer's address -> round-trip time in ms), and adds to `faults`."""

    rail: Rail
    network: str
    ifname: str
    netns: str
    pod: str
    carrier: str
    mtu: int
    routing: dict[str, Any] | None
    addresses: list[Interfaces] = field(default_factory=list)
    gids: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    trips: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """The rail's group, and its number in the group."""
        return self.rail.group, self.rail.index

    @property
    def subnets(self) -> list[Subnet]:
        """The subnets that the group's ranges give this rail; [] if the group has no ranges (plain addressing)."""
        found = []
        for part in self.rail.ranges[self.rail.index] if self.rail.ranges else []:
            first, _, length = str(member(part, "range")).partition("/")  # a.b.c.d/n, or first-last/n
            found.append(ipaddress.ip_network(f"{first.partition('-')[0].strip()}/{length}", strict=False))
        return found

    @property
    def indexes(self) -> list[int]:
        """The index of each address: its host number in its subnet."""
        return [int(a.ip) - int(a.network.network_address) for a in self.addresses]

    def document(self) -> dict[str, Any]:
        """The rail and its state as JSON."""
        return {
            "group": self.rail.group,
            "rail": self.rail.index,
            "network": self.network,
            "interface": self.ifname,
            "addresses": [str(a) for a in self.addresses],
            "index": self.indexes[0] if self.indexes else None,
            "table": self.rail.table if self.routing else None,
            "mtu": self.mtu or None,
            "gids": self.gids,
            "pings": {address: round(ms, 3) for address, ms in self.trips.items()},
            "faults": self.faults,
        }


def of_sandbox(sandbox: NamespaceView) -> list[AttachedRail]:
    """The rails in the namespace of a pod, sorted by group and number; [] for the namespace of the node."""
    if not sandbox.netns:
        return []
    inode = os.stat(sandbox.netns).st_ino
    found = [a for a in of_node() if inode_of(a.netns) == inode]
    return sorted(found, key=lambda a: a.key)


def of_node() -> Iterator[AttachedRail]:
    """Yield all rails in this node's records."""
    for attachment, _, record in Records(STATE, Log("railcni")).all(LINK):
        config = config_of(record)
        faults: list[Fault] = []
        rail = read(config, faults)
        if rail is None or not record.get("link"):
            continue
        planned = plugins.of_made(record["plugin"]).load(record["link"])
        carrier, _inside = plugins.named(record["plugin"]).carrier(planned)
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


def look(attached: AttachedRail) -> AttachedRail:
    """Read the state of a rail into `attached`; return it. GIDs are read only if the carrier has a RoCE port."""
    ifname, faults = attached.ifname, attached.faults
    with Opened(netns.open_namespace(attached.netns)) as there:
        link = there.rtnl.link(name=ifname)
        if link is None:
            faults.append(f'there is no link "{ifname}" in the sandbox')
            return attached
        texts = [a.text for a in addresses.list_of(there.rtnl, link.index) if a.scope != addresses.LINK_SCOPE]
        result = Result([Interface(link.name, link.mac)], [IPConfig(text) for text in texts])
        faults += [] if link.up else [f"{ifname} is down"]
        if attached.routing:
            faults += routing.differences(attached.routing, link, result, there)
        if attached.mtu and link.mtu != attached.mtu:
            faults.append(f"MTU of {ifname} is {link.mtu}, and {attached.mtu} is wanted")
        if not texts:
            faults.append(f"{ifname} has no address")
    attached.addresses = [ipaddress.ip_interface(text) for text in texts]
    wanted, held = attached.subnets, [a.network for a in attached.addresses]
    outside = [str(a) for a in attached.addresses if wanted and a.network not in wanted]
    faults += [f"{text} of {ifname} is in none of the rail's ranges" for text in outside]
    faults += [f"{ifname} has no address of {net}" for net in wanted if net not in held]
    carrier, ips = attached.carrier, [str(a.ip) for a in attached.addresses]
    if ports := [p for p in rdma_sysfs.ports_of_netdev(carrier) if rdma_sysfs.is_roce(*p)] if carrier else []:
        entries = gids.find(ports, ips, ifname)
        attached.gids = {ip: f"{device} port {port} index {index}" for ip, (device, port, index) in entries.items()}
        faults += [gids.missing(ports, ip, ifname) for ip in ips if ip not in entries]
    return attached


# --- the rails of a pod beside each other, and a peer ---


def check(rails: Sequence[AttachedRail]) -> None:
    """Read the state of each rail. In a group whose pods have the same index (host number in the subnet) on all rails,
    add a fault for each address whose index is not the pod's most frequent index."""
    for rail in rails:
        look(rail)
    for group in {rail.rail.group for rail in rails}:
        same = [rail for rail in rails if rail.rail.group == group and rail.rail.is_same_index]
        counts = Counter(index for rail in same for index in rail.indexes)
        usual = max(counts, key=lambda index: counts[index], default=0)
        for rail in same:
            for address, index in zip(rail.addresses, rail.indexes, strict=True):
                if index != usual:
                    rail.faults.append(f"{address} is index {index}, and other rails of {group} have {usual}")


def peer_of(text: str, rails: Sequence[AttachedRail], sandboxes: Sequence[NamespaceView]) -> Peer:
    """Return a peer's addresses by rail. `text` is the peer's index (its host number in each rail's subnet), one of its
    addresses, or a pod of this node. Raises InvalidConfig if the address is in no rail's subnet, or the pod is not on
    this node."""
    index = int(text) if text.isdigit() else None
    if index is None:
        try:
            wanted = ipaddress.ip_address(text)
        except ValueError:
            found = of_sandbox(find(text, list(sandboxes)))
            return {a.key: [str(i.ip) for i in look(a).addresses] for a in found}
        networks = [own.network for rail in rails for own in rail.addresses if wanted in own.network]
        if not networks:
            raise InvalidConfig(f"--peer {text}: is in no rail's subnet")
        index = int(wanted) - int(networks[0].network_address)
    return {r.key: [str(a.network[index]) for a in r.addresses if index < a.network.num_addresses] for r in rails}


def ping(rails: Sequence[AttachedRail], peer: Peer) -> None:
    """Ping each address of the peer. The source is an address of the same rail and family, in the same subnet if
    possible. Add the times and the faults to `rails`."""
    for attached in rails:
        theirs = peer.get(attached.key, [])
        if not theirs:
            attached.faults.append(f"the peer has no address on rail {attached.rail.index} of {attached.rail.group}")
        for address in theirs:
            wanted = ipaddress.ip_address(address)
            same = [a for a in attached.addresses if a.version == wanted.version]
            near = [a for a in same if wanted in a.network] or same
            if not near:
                attached.faults.append(f"no address of {attached.ifname} is of the family of {address}")
                continue
            source = str(near[0].ip)
            with netns.open_namespace(attached.netns) as there, there.entered():
                try:
                    seconds = icmp.ping(address, _PAYLOAD, attached.rail.index + 1, _SECONDS, source)
                    attached.trips[address] = 1e3 * seconds
                except OSError as fault:
                    why = f"no answer within {_SECONDS:g} s" if isinstance(fault, TimeoutError) else fault.strerror
                    attached.faults.append(f"ping {address} from {source}: {why}")


COLUMNS = ("group", "rail", "interface", "addresses", "index", "table", "GID", "ping ms", "faults")
LEAST = ("GID", "table", "addresses")


def row(attached: AttachedRail) -> Sequence[object]:
    """The row of a rail in the table with the columns COLUMNS."""
    d = attached.document()
    trips = " ".join(f"{ms:.2f}" for ms in attached.trips.values())
    names = " ".join(attached.gids.values())
    faults = "; ".join(attached.faults) or "none"
    return d["group"], d["rail"], d["interface"], " ".join(d["addresses"]), d["index"], d["table"], names, trips, faults
