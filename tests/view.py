"""What the kernel says about links, addresses and routes, read by pyroute2: the oracle, none of our own code."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import rtnetlink
from tests.namespaces import NEWNET, setns

if TYPE_CHECKING:
    from pyroute2 import IPRoute

_IFF_UP = 0x1
_IFA_F_NODAD, _IFA_F_DADFAILED, _IFA_F_TENTATIVE, _IFA_F_PERMANENT = 0x02, 0x08, 0x40, 0x80
_RT_TABLE_LOCAL = 255
_SIZES = {
    rtnetlink.GETLINK: 16,
    rtnetlink.GETADDR: 8,
    rtnetlink.GETROUTE: 12,
}  # of what a request for a dump begins with


@contextmanager
def entered(path: str) -> Iterator[None]:
    """This thread in the network namespace at `path`, for as long as the block lasts."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(path, NEWNET)
        try:
            yield
        finally:
            setns(f"/proc/self/fd/{own}", NEWNET)
    finally:
        os.close(own)


@dataclass(frozen=True)
class Address:
    """An address of a link; `text` is "address/length"; `valid_for_ever` is what `ip` shows as `valid_lft forever`."""

    text: str
    broadcast: str
    scope: int
    valid_for_ever: bool
    nodad: bool
    tentative: bool


@dataclass(frozen=True)
class Route:
    """A route; `dst` is "network/length", with 0.0.0.0/0 and ::/0 for the default."""

    dst: str
    gw: str = ""
    priority: int = 0
    table: int = 254
    scope: int = 0
    mtu: int = 0
    advmss: int = 0


@dataclass(frozen=True, eq=False)
class Link:
    """A link; `lower` is the index of the link it stands on, in the namespace with the id `lower_netnsid`.

    Two are equal but for carrier and link-local addresses, which the kernel sets a moment after the link is up.
    """

    index: int
    name: str
    kind: str
    mac: str
    broadcast: str
    mtu: int
    up: bool
    carrier: bool
    mode: str
    lower: int
    lower_netnsid: int | None
    alias: str
    altnames: tuple[str, ...]
    addresses: tuple[Address, ...]
    routes: tuple[Route, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Link) and self._lasting() == other._lasting()

    __hash__ = None  # type: ignore[assignment]

    def _lasting(self) -> dict[str, Any]:
        addresses = [a for a in self.addresses if not a.text.startswith("fe80:")]
        routes = [r for r in self.routes if not r.dst.startswith(("fe80:", "ff00:"))]
        return {**vars(self), "carrier": None, "addresses": addresses, "routes": routes}

    @property
    def texts(self) -> list[str]:
        """The addresses as "address/length", without the link-local ones that the kernel adds."""
        return [a.text for a in self.addresses if not a.text.startswith("fe80:")]

    def route(self, dst: str) -> Route | None:
        return next((r for r in self.routes if r.dst == dst), None)

    def gateway(self, dst: str) -> str:
        """The gateway of the route to `dst`; "" for none, or when there is no such route."""
        route = self.route(dst)
        return route.gw if route else ""


class View:
    """One network namespace, by the path of its file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def entered(self) -> Any:
        return entered(self.path)

    @contextmanager
    def rtnl(self) -> Iterator[IPRoute]:
        """A route socket in the namespace, for what a test changes there."""
        from pyroute2 import IPRoute  # here, since tests/unit does without it

        with entered(self.path):
            ipr = IPRoute()
        try:
            yield ipr
        finally:
            ipr.close()

    def links(self) -> dict[str, Link]:
        """All links but `lo`, by name. Pyroute2 decodes the messages, but its dumps would take three times as long."""
        from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
        from pyroute2.netlink.rtnl.rtmsg import rtmsg

        with closing(rtnetlink.Route(self)) as route:

            def dumped(of: Any, kind: int, family: int = 0) -> list[Any]:
                messages = [of(data) for data in route.dump(kind, bytes([family]).ljust(_SIZES[kind], b"\0"))]
                for message in messages:
                    message.decode()
                return messages

            messages = dumped(ifinfmsg, rtnetlink.GETLINK)
            addresses = [(a["index"], _address(a)) for a in dumped(ifaddrmsg, rtnetlink.GETADDR)]
            reached = [r for f in (socket.AF_INET, socket.AF_INET6) for r in dumped(rtmsg, rtnetlink.GETROUTE, f)]
        routes = [(r.get("oif"), _route(r)) for r in reached if r.get("table") != _RT_TABLE_LOCAL]
        found = [_link(m, addresses, routes) for m in messages]
        return {link.name: link for link in found if link.name != "lo"}

    def link(self, name: str) -> Link:
        """The link `name`; KeyError when there is none."""
        return self.links()[name]

    def names(self) -> list[str]:
        with entered(self.path):
            return sorted(name for _, name in socket.if_nameindex() if name != "lo")

    def sysctl(self, name: str) -> str:
        """A value below /proc/sys, such as "net/ipv4/conf/net1/arp_notify"."""
        with entered(self.path):
            return Path("/proc/sys", name).read_text().strip()

    def set_sysctl(self, name: str, value: object) -> None:
        with entered(self.path):
            Path("/proc/sys", name).write_text(str(value))

    def set(self, name: str, **changes: Any) -> None:
        """Change the link `name`: mtu, state="up", address, ifname, ifalias, net_ns_fd."""
        with self.rtnl() as ipr:
            ipr.link("set", index=self._index(name), **changes)

    def move(self, name: str, there: View, **changes: Any) -> None:
        """Move the link `name` to another namespace, as the kernel moves hardware out of one that dies."""
        with open(there.path) as file:
            self.set(name, net_ns_fd=file.fileno(), **changes)

    def add_altname(self, name: str, *altnames: str) -> None:
        with self.rtnl() as ipr:
            for altname in altnames:
                ipr.link("property_add", index=self._index(name), altname=altname)

    def add_veth(self, name: str, peer: str, **changes: Any) -> None:
        with self.rtnl() as ipr:
            ipr.link("add", ifname=name, kind="veth", peer={"ifname": peer, **changes}, **changes)
            for end in (name, peer):
                ipr.link("set", index=self._index(end), state="up")

    def delete(self, name: str) -> None:
        with self.rtnl() as ipr:
            ipr.link("del", index=self._index(name))

    def add_address(self, name: str, text: str) -> None:
        self._address("add", name, text)

    def delete_address(self, name: str, text: str) -> None:
        self._address("del", name, text)

    def _address(self, verb: str, name: str, text: str) -> None:
        address, _, length = text.partition("/")
        with self.rtnl() as ipr:
            extra = {"flags": _IFA_F_NODAD} if verb == "add" and ":" in address else {}
            ipr.addr(verb, index=self._index(name), address=address, prefixlen=int(length), **extra)

    def add_route(self, name: str, dst: str, **more: Any) -> None:
        with self.rtnl() as ipr:
            ipr.route("add", dst=dst, oif=self._index(name), **more)

    def delete_route(self, name: str, dst: str) -> None:
        with self.rtnl() as ipr:
            ipr.route("del", dst=dst, oif=self._index(name))

    def _index(self, name: str) -> int:
        with entered(self.path):
            try:
                return socket.if_nametoindex(name)
            except OSError:
                raise KeyError(name) from None


def _link(m: Any, addresses: list[tuple[int, Address]], routes: list[tuple[int | None, Route]]) -> Link:
    info = m.get("linkinfo")
    data = info.get("data") if info is not None else None
    mode = (data.get("macvlan_mode") if data is not None else None) or ""
    # an altname is an attribute of a list attribute, which older pyroute2 shows under PROP_LIST alone
    properties = m.get("prop_list")
    altnames = properties.get_attrs("IFLA_ALT_IFNAME") if properties is not None else []
    return Link(
        index=m["index"], name=m.get("ifname"), kind=(info.get("kind") if info is not None else "") or "",
        mac=m.get("address") or "", broadcast=m.get("broadcast") or "", mtu=m.get("mtu"),
        up=bool(m["flags"] & _IFF_UP), carrier=bool(m.get("carrier")), mode=str(mode), lower=m.get("link") or 0,
        lower_netnsid=m.get("link_netnsid"), alias=m.get("ifalias") or "", altnames=tuple(sorted(altnames)),
        addresses=tuple(address for index, address in addresses if index == m["index"]),
        routes=tuple(route for index, route in routes if index == m["index"]),
    )  # fmt: skip


def _address(a: Any) -> Address:
    flags = a.get("flags") or a["flags"]
    return Address(
        text=f"{a.get('local') or a.get('address')}/{a['prefixlen']}", broadcast=a.get("broadcast") or "",
        scope=a["scope"], valid_for_ever=bool(flags & _IFA_F_PERMANENT), nodad=bool(flags & _IFA_F_NODAD),
        tentative=bool(flags & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED)),
    )  # fmt: skip


def _route(r: Any) -> Route:
    metrics = r.get("metrics")
    every = "::" if r["family"] == socket.AF_INET6 else "0.0.0.0"
    return Route(
        dst=f"{r.get('dst') or every}/{r['dst_len']}", gw=r.get("gateway") or "", priority=r.get("priority") or 0,
        table=r.get("table"), scope=r["scope"], mtu=(metrics.get("mtu") if metrics is not None else 0) or 0,
        advmss=(metrics.get("advmss") if metrics is not None else 0) or 0,
    )  # fmt: skip


def lasting(link: Link) -> dict[str, Any]:
    """What of a link outlives a move: neither indices nor the link-local address, which the kernel makes again."""
    return {
        "identity": (link.name, link.kind, link.mac, link.alias, link.altnames),
        "state": (link.mtu, link.up),
        "addresses": sorted((a.text, a.broadcast, a.scope) for a in link.addresses if not a.text.startswith("fe80:")),
        "routes": sorted(
            (r.dst, r.gw, r.priority, r.table, r.scope) for r in link.routes if not r.dst.startswith("fe80:")
        ),
    }
