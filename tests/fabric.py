"""Rails over veth pairs: as many masters on a node, all of them ports of one switch, and pods attached to them.

That all rails are one Ethernet segment is the worst case for ARP: a question about an address of one rail reaches the
interfaces of all, and each of them that answers is a wrong one.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from pyroute2 import IPRoute

from cni.node.runtime import icmp
from tests.node import Node, Pod, Reply, until
from tests.view import View

_ARP, _REPLY = 0x0806, 2
_ETH_P_ALL = 0x0003


class Fabric:
    """`count` masters eth_r0, eth_r1, ... of `node`, the other ends in a bridge of the namespace `switch`."""

    def __init__(self, node: Node, count: int, addressing: str = "same-index", **ipam: Any) -> None:
        self.node = node
        self.count = count
        self.addressing = addressing
        self.ipam = {"datastore": "file", **ipam}
        self.switch = node.outside("switch")
        with self.switch.rtnl() as ipr:
            ipr.link("add", ifname="br0", kind="bridge")
            bridge = ipr.link_lookup(ifname="br0")[0]
            ipr.link("set", index=bridge, state="up")
        for rail in range(count):
            node.host.add_veth(f"eth_r{rail}", f"port{rail}", mtu=4200)
            _move(node.host, f"port{rail}", self.switch)
            with self.switch.rtnl() as ipr:
                ipr.link("set", index=ipr.link_lookup(ifname=f"port{rail}")[0], master=bridge, state="up")
        node.remember()

    def network(self, rail: int, **more: Any) -> dict[str, Any]:
        """The network of a rail; `rail` among `more` goes into its key `rail`."""
        ranges = [f"192.168.{r}.0/24" for r in range(self.count)]
        key = {"index": rail, "group": "gpu", "addressing": self.addressing, "ranges": ranges, **more.pop("key", {})}
        if key["addressing"] == "plain":
            key.pop("ranges")
        return {
            "cniVersion": "1.1.0", "name": f"rail-{rail}", "type": "macvlan", "master": f"eth_r{rail}", "mtu": 4200,
            "rail": key, "ipam": {"type": "whereabouts", "range": ranges[rail], **self.ipam}, **more,
        }  # fmt: skip

    def cni(self, verb: str, pod: Pod, rail: int, config: dict[str, Any] | None = None, **how: Any) -> Reply:
        how = {"container_id": f"id-{pod.name}", "ifname": f"net{rail}", "netns": pod, **how}
        how.setdefault("args", f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod.name}")
        config = config or self.network(rail)
        return self.node.cni(config["type"], verb, config, **how)

    def attach(self, pod: Pod, rails: Sequence[int], **how: Any) -> list[str]:
        """The address on each of `rails`."""
        return [self.cni("ADD", pod, rail, **how).succeeded()["ips"][0]["address"].split("/")[0] for rail in rails]


def _move(view: View, name: str, where: View) -> None:
    with where.entered():
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        view.set(name, net_ns_fd=fd)
    finally:
        os.close(fd)


def rules(view: View, table: int = 0) -> list[tuple[str, int]]:
    """(source, table) of every rule with a source."""
    with view.rtnl() as ipr:
        found = [r for family in (socket.AF_INET, socket.AF_INET6) for r in ipr.get_rules(family=family)]
    listed = [(str(r.get("FRA_SRC")), int(r.get("FRA_TABLE") or 0)) for r in found if r.get("FRA_SRC")]
    return sorted(entry for entry in listed if table in (0, entry[1]))


def table(view: View, number: int) -> list[tuple[str, str]]:
    """(destination, gateway) of every route in a table."""
    with view.rtnl() as ipr:
        found = [r for r in ipr.get_routes() if (r.get("RTA_TABLE") or r["table"]) == number and r["type"] == 1]
    return sorted((f"{r.get('RTA_DST') or 'default'}/{r['dst_len']}", r.get("RTA_GATEWAY") or "") for r in found)


def ping(pod: Pod, source: str, address: str) -> None:
    """OSError unless `address` answers what is sent from `source`."""
    with pod.view.entered():
        icmp.ping(address, 56, 1, 10, source)


class Arp:
    """What ARP says on a link, and questions asked there."""

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._name = name
        self.replies: set[tuple[str, str]] = set()
        with view.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.bind((name, 0))
        self._socket.setblocking(False)

    def __enter__(self) -> Arp:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def heard(self) -> set[tuple[str, str]]:
        """(MAC, address) of every reply until now."""
        while True:
            try:
                frame = self._socket.recv(2048)
            except BlockingIOError:
                return self.replies
            if len(frame) < 42:
                continue
            kind, operation = struct.unpack_from("!H", frame, 12)[0], struct.unpack_from("!H", frame, 20)[0]
            if kind == _ARP and operation == _REPLY:
                self.replies.add((frame[22:28].hex(":"), socket.inet_ntoa(frame[28:32])))

    def ask(self, *addresses: str) -> set[tuple[str, str]]:
        """Who answers for `addresses`, each asked for until somebody does, and then once more."""
        for address in addresses:
            for _ in range(2):
                assert until(lambda address=address: self._is_answered(address), 10), f"nobody answers for {address}"
        time.sleep(0.1)
        return {reply for reply in self.heard() if reply[1] in addresses}

    def _is_answered(self, address: str) -> bool:
        ask(self._view, self._name, address)
        time.sleep(0.05)
        return any(found == address for _, found in self.heard())


def ask(view: View, name: str, address: str) -> None:
    """Ask by ARP for `address` on a link, by broadcast, as the neighbour .250 of its /24; a question without a sender
    would be taken for a probe, which the kernel answers on the right link alone."""
    with view.entered():
        ipr = IPRoute()
        (link,) = ipr.get_links(ipr.link_lookup(ifname=name)[0])
        ipr.close()
        sender = bytes.fromhex(link.get("address").replace(":", ""))
        frame = b"\xff" * 6 + sender + struct.pack("!HHHBBH", _ARP, 1, 0x0800, 6, 4, 1)
        frame += sender + socket.inet_aton(address.rpartition(".")[0] + ".250") + bytes(6) + socket.inet_aton(address)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ARP)) as link_socket:
            link_socket.bind((name, 0))
            link_socket.send(frame)
