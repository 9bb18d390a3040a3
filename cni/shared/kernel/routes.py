"""Read routes, and add the routes of a CNI result.

Sources: rtnetlink(7), include/uapi/linux/rtnetlink.h.

A destination is "network/length", for a default route "0.0.0.0/0" or "::/0". A gateway is "address" or "". The
functions raise KernelError when the kernel refuses a request, and ValueError for a text that is no address.
"""

from __future__ import annotations

from collections.abc import Iterator
from errno import EAFNOSUPPORT, EEXIST, EHOSTUNREACH, EINVAL, ENETUNREACH, ENOENT, EOPNOTSUPP
from socket import AF_INET, AF_INET6, inet_ntop
from struct import Struct

from cni.shared.kernel import addresses, netlink
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.spec.errors import InvalidConfig, KernelRefused
from cni.shared.spec.result import MOST_SCOPE, NUMBERS_OF_ROUTE, IPConfig, Result, Route

_NEWROUTE, _GETROUTE = 24, 26
RTMSG = Struct("=BBBBBBBBI")  # struct rtmsg: family, two prefix lengths, tos, table, protocol, scope, type, flags
NEXTHOP = Struct("=HBBi")  # struct rtnexthop: length, flags, weight - 1, index
_DST, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _METRICS, _MULTIPATH, _TABLE, _VIA = 1, 4, 5, 6, 7, 8, 9, 15, 18
_VIA_FAMILY = Struct("=H")  # struct rtvia begins with it
_METRIC_MTU, _METRIC_ADVMSS = 2, 8  # in _METRICS
_ONLINK, _CLONED = 0x4, 0x200
_ADDRESS_BYTES = {AF_INET: 4, AF_INET6: 16}

UNICAST = 1  # a type of route
LOOPBACK = 1  # the index of lo, in each namespace (LOOPBACK_IFINDEX)
MAIN_TABLE, LOCAL_TABLE = 254, 255
IPV6_PRIORITY = 1024  # of an IPv6 route that was added without a priority
IPV6_PREFIX_PRIORITY = 256  # of the IPv6 routes that the kernel makes to the subnets of a link
UNIVERSE_SCOPE, LINK_SCOPE = 0, 253
KERNEL_PROTOCOL, BOOT_PROTOCOL, RA_PROTOCOL = 2, 3, 9


class KernelRoute:
    """A route through the link `index`, or one next hop of a multipath route.

    `mtu` and `advmss` are bytes, 0 for none. `priority` is the metric; the lowest wins. An IPv6 route that was added
    without a metric has 1024. `table`, `scope`, `protocol` and `kind` (the type) are numbers of rtnetlink(7).
    `source` is the preferred source address, `body` the message's body, which all next hops of a route share.
    """

    def __init__(self, body: bytes, index: int, flags: int, hop: dict[int, bytes]) -> None:
        self.body = body
        family, length, _, _, table, self.protocol, self.scope, self.kind, _ = RTMSG.unpack_from(body)
        found = netlink.unpack_attributes(body, RTMSG.size)
        self.dst = f"{inet_ntop(family, found.get(_DST) or bytes(_ADDRESS_BYTES[family]))}/{length}"
        self.table = netlink.number_of(found[_TABLE]) if _TABLE in found else table
        self.priority = netlink.number_of(found.get(_PRIORITY, b""))
        self.source = inet_ntop(family, found[_PREFSRC]) if _PREFSRC in found else ""
        metrics = netlink.unpack_attributes(found.get(_METRICS, b""))
        self.mtu = netlink.number_of(metrics.get(_METRIC_MTU, b""))
        self.advmss = netlink.number_of(metrics.get(_METRIC_ADVMSS, b""))
        self.index = index
        self.onlink = bool(flags & _ONLINK)
        self.gw = ""
        if _GATEWAY in hop:
            self.gw = inet_ntop(family, hop[_GATEWAY])
        elif _VIA in hop:  # a gateway of the other family, RFC 8950
            self.gw = inet_ntop(netlink.number_of(hop[_VIA][:2]), hop[_VIA][2:])


def list_of(rtnl: netlink.Socket, index: int) -> list[KernelRoute]:
    """The unicast routes of all tables through the link `index`, IPv4 first, including routes that the kernel made.
    Raises KernelError ENODEV when there is no such link."""
    found = [route for body in bodies_of(rtnl, index) for route in unpack(body)]
    return [route for route in found if route.index == index and route.kind == UNICAST]


def bodies_of(rtnl: netlink.Socket, index: int) -> list[bytes]:
    """The RTM_NEWROUTE bodies of the routes of all tables through the link `index`, IPv4 first."""
    return [body for family in (AF_INET, AF_INET6) for body in dump_routes(rtnl, family, netlink.number(_OIF, index))]


def default_route(rtnl: netlink.Socket) -> KernelRoute | None:
    """The main table's default route with the best metric, IPv4 before IPv6; None when there is none. If metrics are
    equal, a configured route precedes an advertised route, and then the lowest link index decides."""
    for family in (AF_INET, AF_INET6):
        found = [
            route
            for body in dump_routes(rtnl, family, netlink.number(_TABLE, MAIN_TABLE))
            for route in unpack(body)
            if route.table == MAIN_TABLE and route.dst.endswith("/0") and route.index
        ]
        if found:
            return min(found, key=lambda route: (route.priority, route.protocol == RA_PROTOCOL, route.index))
    return None


def add(
    rtnl: netlink.Socket,
    index: int,
    dst: str,
    gw: str = "",
    priority: int | None = None,
    table: int | None = None,
    scope: int | None = None,
    mtu: int | None = None,
    advmss: int | None = None,
    onlink: bool = False,
    source: str = "",
    protocol: int = BOOT_PROTOCOL,
) -> None:
    """Add a route to `dst` through the link `index`, by default to the main table. Other defaults are the kernel's.

    If `scope` is None, the route has link scope without a gateway and universe scope with a gateway, as in ip-route(8).
    `onlink` treats `gw` as a neighbour even if no prefix of the link contains `gw`. Raises KernelError EEXIST when the
    same route exists, and EINVAL when `dst` has host bits. Another link may have a route with the same `dst` and
    priority. A new IPv4 route precedes that route, and a new IPv6 route shares the traffic with it.
    """
    network, _, length = dst.partition("/")
    family, destination = netlink.address_of(network)
    if scope is None:
        scope = UNIVERSE_SCOPE if gw else LINK_SCOPE
    body = RTMSG.pack(family, int(length), 0, 0, 0, protocol, scope, UNICAST, _ONLINK if onlink else 0)
    body += netlink.attribute(_DST, destination)
    body += netlink.numbers({_OIF: index, _TABLE: MAIN_TABLE if table is None else table, _PRIORITY: priority})
    if gw:
        via, octets = netlink.address_of(gw)
        body += (
            netlink.attribute(_GATEWAY, octets)
            if via == family
            else netlink.attribute(_VIA, _VIA_FAMILY.pack(via) + octets)
        )
    if metrics := netlink.numbers({_METRIC_MTU: mtu, _METRIC_ADVMSS: advmss}):
        body += netlink.attribute(_METRICS | netlink.NESTED, metrics)
    if source:
        body += netlink.attribute(_PREFSRC, netlink.address_of(source)[1])
    rtnl.request(_NEWROUTE, body, netlink.CREATE)


def dump_routes(rtnl: netlink.Socket, family: int, only: bytes = b"") -> list[bytes]:
    """The RTM_NEWROUTE bodies of the routes of `family`; [] if the kernel lacks the family. Since Linux 4.20 the result
    has only the routes with the attributes `only`."""
    header = RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
    # these errnos mean that there is no such table yet, or no IPv6 in this kernel
    return rtnl.dump_if_known(_GETROUTE, header + only, ENOENT, EAFNOSUPPORT, EOPNOTSUPP)


def unpack(body: bytes) -> Iterator[KernelRoute]:
    """Yield a route for each next hop in an RTM_NEWROUTE body."""
    flags = RTMSG.unpack_from(body)[8]
    if flags & _CLONED:  # an exception that the kernel learned, such as a path's MTU
        return
    found = netlink.unpack_attributes(body, RTMSG.size)
    if _MULTIPATH not in found:
        yield KernelRoute(body, netlink.number_of(found.get(_OIF, b"")), flags, found)
        return
    for hop_flags, _, index, own in next_hops(found[_MULTIPATH]):
        yield KernelRoute(body, index, hop_flags, own)


def next_hops(hops: bytes) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    """Yield flags, weight, link index and attributes of each next hop in `hops`, the payload of RTA_MULTIPATH."""
    start = 0
    while start + NEXTHOP.size <= len(hops):
        length, flags, less_one, index = NEXTHOP.unpack_from(hops, start)
        yield flags, less_one + 1, index, netlink.unpack_attributes(hops[start : start + length], NEXTHOP.size)
        start += (length + 3) & ~3


# --- the routes of a result ---


def add_all(inside: Rtnl, link: Link, wanted: Result) -> None:
    """Add the routes of `wanted` through `link`. Raises InvalidConfig or KernelRefused if one cannot be added."""
    for route in wanted.routes:
        gw = next_hop(route, wanted.ips)
        _refuse_numbers(route, gw)
        add_route(inside, link, route, gw)


def add_route(inside: Rtnl, link: Link, route: Route, gw: str, source: str = "") -> None:
    """Add `route` through the gateway `gw`, with the preferred source address `source`; do nothing if the route exists.
    Raises InvalidConfig for an invalid CIDR or address, KernelRefused when the kernel refuses the route."""
    own = (route.priority, route.table, route.scope, route.mtu, route.advmss)
    try:
        add(inside, link.index, route.dst, gw, *own, source=source)
    except ValueError:
        raise InvalidConfig(
            f'route "{route.dst[:60]}" by "{gw[:60]}": want a CIDR and an address of the same family'
        ) from None
    except netlink.KernelError as fault:
        if fault.errno == EEXIST:
            return  # the result has the route twice, or the kernel has set it: Go's plugins accept both
        by, table = f" by {gw}" if gw else "", f" in table {route.table}" if route.table else ""
        reason = str(fault.strerror)
        if fault.errno in (ENETUNREACH, EHOSTUNREACH):
            reason = "the gateway is in none of the link's subnets; correct `gw` or `gateway`"
        elif fault.errno == EINVAL:
            own_addresses = [a.text.partition("/")[0] for a in addresses.list_of(inside, link.index)]
            reason = "the destination has host bits, or a value is out of range"
            if gw in own_addresses:
                reason = f"{gw} is the pod's own address; exclude the next hop from the range, or correct `gw`"
        raise KernelRefused(
            f"route {route.dst}{by} cannot be set on {link.name}{table}: {reason}", str(fault)
        ) from None


def _refuse_numbers(route: Route, gw: str) -> None:
    """Raise InvalidConfig for a number that no route can have, or a scope that no route through `gw` can have."""
    for key in NUMBERS_OF_ROUTE:
        value, most = getattr(route, key), MOST_SCOPE if key == "scope" else 0xFFFFFFFF
        if value is not None and not 0 <= value <= most:
            raise InvalidConfig(f"route {route.dst}: {key} {value} cannot be set, want 0 to {most}")
    if gw and route.family == 4 and (route.scope or 0) >= LINK_SCOPE:
        raise InvalidConfig(
            f"route {route.dst}: scope {route.scope} is that of a destination on the link, and its gateway is {gw}: want scope"
            ' 0, or "gw": "0.0.0.0" for no gateway'
        )


def next_hop(route: Route, ips: list[IPConfig]) -> str:
    """The gateway of `route` or, if absent, the first gateway of its family in `ips`; "" for no gateway or 0.0.0.0."""
    gw = canonical(route.gw) or gateway(route.family, ips)
    return "" if gw == "0.0.0.0" else gw


def gateway(family: int, ips: list[IPConfig]) -> str:
    """The first gateway among the addresses of `family` in `ips`; "" when none of these has a gateway."""
    return next((a.gateway for a in ips if a.gateway and a.family == family), "")


def canonical(text: str) -> str:
    """`text`, an address or "address/length", in the kernel's form; any other text unchanged."""
    address, slash, length = text.partition("/")
    try:
        return inet_ntop(*netlink.address_of(address)) + slash + length
    except ValueError:
        return text


def subnet(text: str) -> str:
    """The network of `text`, "address/length", as "network/length" in the kernel's form."""
    address, _, length = text.partition("/")
    family, octets = netlink.address_of(address)
    host = 8 * len(octets) - int(length)
    network = int.from_bytes(octets, "big") >> host << host
    return f"{inet_ntop(family, network.to_bytes(len(octets), 'big'))}/{length}"
