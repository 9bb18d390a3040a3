"""Read and add routes, and the routing policy rules that choose a table by the source address.

Sources: rtnetlink(7), ip-nexthop(8), ip-rule(8), include/uapi/linux/rtnetlink.h, nexthop.h and fib_rules.h.

A destination is "network/length", of a default route "0.0.0.0/0" or "::/0"; a gateway is "address" or "". The functions
raise KernelError when the kernel refuses a request, and ValueError for a text that is no address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from errno import EAFNOSUPPORT, ENOENT, EOPNOTSUPP
from socket import AF_INET, AF_INET6, AF_UNSPEC, inet_ntop
from struct import Struct

from cni.shared.kernel.netlink import (
    CREATE,
    EXCLUSIVE,
    NESTED,
    KernelError,
    Socket,
    address_of,
    attribute,
    number,
    number_of,
    unpack_attributes,
)

_NEWROUTE, _GETROUTE, _GETNEXTHOP = 24, 26, 106
RTMSG = Struct("=BBBBBBBBI")  # struct rtmsg: family, two prefix lengths, tos, table, protocol, scope, type, flags
NEXTHOP = Struct("=HBBi")  # struct rtnexthop: length, flags, weight - 1, index
_DST, _SRC, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _METRICS, _MULTIPATH, _TABLE, _VIA = 1, 2, 4, 5, 6, 7, 8, 9, 15, 18
_NH_ID = 30
_NHMSG = Struct("=BBBxI")  # struct nhmsg: family, scope, protocol, flags
_NHA_ID, _NHA_GROUP, _NHA_OIF = 1, 2, 5
_NHA_MEMBER = Struct("=IBBH")  # struct nexthop_grp: the id of the nexthop, weight - 1
_VIA_FAMILY = Struct("=H")  # the first member of struct rtvia
_METRIC_MTU, _METRIC_ADVMSS = 2, 8  # in _METRICS
_ONLINK, _CLONED = 0x4, 0x200
_ADDRESS_BYTES = {AF_INET: 4, AF_INET6: 16}
_DEFAULT_BITS: dict[int, int] = {AF_INET: 1, AF_INET6: 4}  # the longest prefixes that count as a default route

UNICAST = 1  # a type of route
LOOPBACK = 1  # the index of lo, in each namespace (LOOPBACK_IFINDEX)
MAIN_TABLE, LOCAL_TABLE = 254, 255
IPV6_PRIORITY = 1024  # of an IPv6 route that was added without a priority
IPV6_PREFIX_PRIORITY = 256  # of the IPv6 routes that the kernel makes to the subnets of a link
UNIVERSE_SCOPE, LINK_SCOPE = 0, 253
KERNEL_PROTOCOL, BOOT_PROTOCOL, RA_PROTOCOL = 2, 3, 9
# RTPROT_* of routing daemons: zebra, bird, xorp, babel, openr, bgp, isis, ospf, rip, eigrp
_DAEMONS = frozenset((11, 12, 14, 42, 99, 186, 187, 188, 189, 192))


class KernelRoute:
    """A route by the link `index`, or one next hop of a multipath route.

    `mtu` and `advmss` are bytes, 0 for none. `priority` is the metric; the lowest wins. An IPv6 route that was added
    without a metric has 1024. `table`, `scope`, `protocol` and `kind` (the type) are numbers of rtnetlink(7).
    `source` is the preferred source address, `body` the message's body, which all next hops of a route share.
    """

    def __init__(self, body: bytes, index: int, flags: int, hop: dict[int, bytes]) -> None:
        self.body = body
        family, length, _, _, table, self.protocol, self.scope, self.kind, _ = RTMSG.unpack_from(body)
        found = unpack_attributes(body, RTMSG.size)
        self.dst = f"{inet_ntop(family, found.get(_DST) or bytes(_ADDRESS_BYTES[family]))}/{length}"
        self.table = number_of(found[_TABLE]) if _TABLE in found else table
        self.priority = number_of(found.get(_PRIORITY, b""))
        self.source = inet_ntop(family, found[_PREFSRC]) if _PREFSRC in found else ""
        metrics = unpack_attributes(found.get(_METRICS, b""))
        self.mtu = number_of(metrics.get(_METRIC_MTU, b""))
        self.advmss = number_of(metrics.get(_METRIC_ADVMSS, b""))
        self.index = index
        self.onlink = bool(flags & _ONLINK)
        self.gw = ""
        if _GATEWAY in hop:
            self.gw = inet_ntop(family, hop[_GATEWAY])
        elif _VIA in hop:  # a gateway of the other family, RFC 8950
            self.gw = inet_ntop(number_of(hop[_VIA][:2]), hop[_VIA][2:])


def list_of(rtnl: Socket, index: int) -> list[KernelRoute]:
    """The unicast routes by the link `index`, IPv4 first, of all tables, including the kernel's own.

    Raises KernelError ENODEV when there is no such link.
    """
    found = [route for body in bodies_of(rtnl, index) for route in _unpack(body)]
    return [route for route in found if route.index == index and route.kind == UNICAST]


def bodies_of(rtnl: Socket, index: int) -> list[bytes]:
    """The RTM_NEWROUTE bodies of the routes by the link `index`, IPv4 first, of all tables."""
    return [body for family in (AF_INET, AF_INET6) for body in dump_routes(rtnl, family, number(_OIF, index))]


def of_bodies(bodies: Iterable[bytes], index: int) -> list[KernelRoute]:
    """The routes by the link `index` in RTM_NEWROUTE bodies, of all tables but the local one."""
    found = [route for body in bodies for route in _unpack(body)]
    return [route for route in found if route.index == index and route.table != LOCAL_TABLE]


def way_to(rtnl: Socket, address: str, source: str = "") -> tuple[int, str]:
    """The index of the link for a packet without mark to `address`, and its source address; 0 and "" without a route.

    As `ip route get`: the index is LOOPBACK for an address of this namespace; without `source` the kernel chooses the
    source address."""
    family, octets = address_of(address)
    own = address_of(source)[1] if source else b""
    body = RTMSG.pack(family, 8 * len(octets), 8 * len(own), 0, 0, 0, 0, 0, 0) + attribute(_DST, octets)
    if own:
        body += attribute(_SRC, own)
    try:
        found = unpack_attributes(rtnl.get(_GETROUTE, body), RTMSG.size)
    except KernelError:  # no route, such as ENETUNREACH, or a route that discards packets
        return 0, ""
    return number_of(found.get(_OIF, b"")), inet_ntop(family, found[_PREFSRC]) if _PREFSRC in found else ""


def default_route_link(rtnl: Socket) -> int:
    """The index of the link that the main table's default route uses, IPv4 before IPv6; 0 when there is none."""
    found = default_route(rtnl)
    return found.index if found else 0


def default_route(rtnl: Socket) -> KernelRoute | None:
    """The main table's default route with the best metric, IPv4 before IPv6; None when there is none. Of routes with
    equal metrics, a configured route precedes an advertised route; then the lowest link index counts."""
    for family in (AF_INET, AF_INET6):
        found = [
            route
            for body in dump_routes(rtnl, family, number(_TABLE, MAIN_TABLE))
            for route in _unpack(body)
            if route.table == MAIN_TABLE and route.dst.endswith("/0") and route.index
        ]
        if found:
            return min(found, key=lambda route: (route.priority, route.protocol == RA_PROTOCOL, route.index))
    return None


def all_bodies(rtnl: Socket) -> list[bytes]:
    """The RTM_NEWROUTE bodies of all routes, IPv4 first, of all tables."""
    return [body for family in (AF_INET, AF_INET6) for body in dump_routes(rtnl, family)]


def of_daemons(bodies: Iterable[bytes]) -> list[KernelRoute]:
    """The routes through gateways in `bodies` that a routing daemon added to the main table; one for each next hop."""
    found = [route for body in bodies if body[5] in _DAEMONS for route in _unpack(body)]
    return [r for r in found if r.gw and r.index and r.kind == UNICAST and r.table == MAIN_TABLE]


def default_routes(rtnl: Socket, bodies: Iterable[bytes]) -> list[KernelRoute]:
    """The default routes in `bodies`, one for each next hop, without routes that discard packets.

    Prefixes that replace a default route count too: 0.0.0.0/1 and 128.0.0.0/1, and IPv6 prefixes of at most 4 bits,
    such as 2000::/3. OpenVPN's redirect-gateway sets such routes (src/openvpn/init.c).
    """
    found = []
    for body in bodies:
        if body[1] > _DEFAULT_BITS[body[0]]:  # most routes: they need not be unpacked
            continue
        for route in _unpack(body):
            if route.kind != UNICAST or route.table == LOCAL_TABLE:
                continue
            if route.index:
                found.append(route)
            else:
                found += [KernelRoute(body, index, 0, {}) for index in _links_by_id(rtnl, body)]
    return found


def nexthops_of(rtnl: Socket, index: int) -> list[int]:
    """The ids of the nexthop objects by the link `index`, without groups; [] before Linux 5.3."""
    try:
        bodies = rtnl.dump(_GETNEXTHOP, _NHMSG.pack(0, 0, 0, 0) + number(_NHA_OIF, index))
    except KernelError as fault:
        if fault.errno == EOPNOTSUPP:
            return []
        raise
    found = [unpack_attributes(body, _NHMSG.size) for body in bodies]
    return [number_of(each[_NHA_ID]) for each in found if _NHA_OIF in each]


def _links_by_id(rtnl: Socket, body: bytes) -> list[int]:
    """The indexes of the links of a route that has only a nexthop object, as with the sysctl nexthop_compat_mode 0."""
    identity = unpack_attributes(body, RTMSG.size).get(_NH_ID)
    if identity is None:
        return []
    try:
        return _links_of_nexthop(rtnl, number_of(identity))
    except KernelError as fault:
        if fault.errno == ENOENT:  # the object was removed meanwhile, and the route with it
            return []
        raise


def _links_of_nexthop(rtnl: Socket, identity: int) -> list[int]:
    """The indexes of the links that a nexthop object or group uses; [] if the object discards packets."""
    body = rtnl.get(_GETNEXTHOP, _NHMSG.pack(0, 0, 0, 0) + number(_NHA_ID, identity))
    found = unpack_attributes(body, _NHMSG.size)
    if _NHA_OIF in found:
        return [number_of(found[_NHA_OIF])]
    members = found.get(_NHA_GROUP, b"")
    starts = range(0, len(members), _NHA_MEMBER.size)
    return [index for at in starts for index in _links_of_nexthop(rtnl, _NHA_MEMBER.unpack_from(members, at)[0])]


def add(
    rtnl: Socket,
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
    """Add a route to `dst` by the link `index`, by default to the main table. The kernel chooses other values that are None.

    `scope` None is link scope without a gateway and universe scope with a gateway, as in ip-route(8). `onlink` treats
    `gw` as a neighbour even if no prefix of the link contains `gw`. Raises EEXIST when the same route exists, and EINVAL
    when `dst` has host bits. A route by another link with the same `dst` and priority is no error. As with the Go
    plugins, a new IPv4 route then precedes the old route, and a new IPv6 route shares the traffic with the old route.
    """
    network, _, length = dst.partition("/")
    family, destination = address_of(network)
    if scope is None:
        scope = UNIVERSE_SCOPE if gw else LINK_SCOPE
    body = RTMSG.pack(family, int(length), 0, 0, 0, protocol, scope, UNICAST, _ONLINK if onlink else 0)
    body += attribute(_DST, destination) + number(_OIF, index)
    body += number(_TABLE, MAIN_TABLE if table is None else table)
    if gw:
        via, octets = address_of(gw)
        body += attribute(_GATEWAY, octets) if via == family else attribute(_VIA, _VIA_FAMILY.pack(via) + octets)
    if priority is not None:
        body += number(_PRIORITY, priority)
    metrics = b""
    if mtu is not None:
        metrics += number(_METRIC_MTU, mtu)
    if advmss is not None:
        metrics += number(_METRIC_ADVMSS, advmss)
    if metrics:
        body += attribute(_METRICS | NESTED, metrics)
    if source:
        body += attribute(_PREFSRC, address_of(source)[1])
    rtnl.request(_NEWROUTE, body, CREATE)


def dump_routes(rtnl: Socket, family: int, only: bytes = b"") -> list[bytes]:
    """The RTM_NEWROUTE bodies of `family`; [] if the kernel lacks the family. Since Linux 4.20 the kernel sends only
    routes that have the attributes `only`."""
    try:
        return rtnl.dump(_GETROUTE, RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0) + only)
    except KernelError as fault:
        if fault.errno in (ENOENT, EAFNOSUPPORT, EOPNOTSUPP):  # there is no such table yet, or no IPv6 in this kernel
            return []
        raise


def _unpack(body: bytes) -> Iterator[KernelRoute]:
    """Yield a route for each next hop in an RTM_NEWROUTE body."""
    flags = RTMSG.unpack_from(body)[8]
    if flags & _CLONED:  # an exception that the kernel learned, such as a path's MTU
        return
    found = unpack_attributes(body, RTMSG.size)
    if _MULTIPATH not in found:
        yield KernelRoute(body, number_of(found.get(_OIF, b"")), flags, found)
        return
    for hop_flags, _, index, own in next_hops(found[_MULTIPATH]):
        yield KernelRoute(body, index, hop_flags, own)


def next_hops(hops: bytes) -> Iterator[tuple[int, int, int, dict[int, bytes]]]:
    """Yield flags, weight, link index and attributes of each next hop in `hops`, the payload of RTA_MULTIPATH."""
    start = 0
    while start + NEXTHOP.size <= len(hops):
        length, flags, less_one, index = NEXTHOP.unpack_from(hops, start)
        yield flags, less_one + 1, index, unpack_attributes(hops[start : start + length], NEXTHOP.size)
        start += (length + 3) & ~3


# --- rules ---

_NEWRULE, _DELRULE, _GETRULE = 32, 33, 34
_RULE = Struct("=BBBBBBBBI")  # struct fib_rule_hdr: family, two prefix lengths, tos, table, two reserved, action, flags
_RULE_SOURCE, _IIF, _RULE_PRIORITY, _MARK, _SUPPRESSED, _RULE_TABLE, _RULE_OIF, _VRF = 2, 3, 6, 10, 14, 15, 17, 19
_UIDS, _PROTOCOL, _SOURCE_PORTS, _PORTS = 20, 22, 23, 24
_SELECTORS = (_RULE_OIF, _VRF, _UIDS, _PROTOCOL, _SOURCE_PORTS, _PORTS)  # beside addresses, TOS, input link and mark
_TO_TABLE = 1  # the action FR_ACT_TO_TBL
_INVERTED = 0x2  # the flag FIB_RULE_INVERT
_NONE = 0xFFFFFFFF


class Rule:
    """A routing policy rule. A rule belongs to the namespace, so it outlives the removal of a link. `source` is
    "address/length", or "" for any address. The rule with the lowest `priority` comes first.

    `is_unconditional`: the rule applies to each packet of the node that has neither source nor mark, like the rules
    `from all` and `not from all fwmark N`. `suppresses_defaults`: the rule ignores the default routes of its `table`.
    """

    def __init__(self, body: bytes) -> None:
        family, target, length, tos, table, _, _, action, flags = _RULE.unpack_from(body)
        found = unpack_attributes(body, _RULE.size)
        self.is_ipv6 = family == AF_INET6
        self.table = number_of(found[_RULE_TABLE]) if _RULE_TABLE in found else table
        self.priority = number_of(found.get(_RULE_PRIORITY, b""))
        selects = bool(target or length or tos or number_of(found.get(_MARK, b"")) or found.keys() & _SELECTORS)
        selects = selects or found.get(_IIF, b"lo\0") != b"lo\0"
        self.is_unconditional = action == _TO_TABLE and selects is bool(flags & _INVERTED)
        self.suppresses_defaults = _SUPPRESSED in found and number_of(found[_SUPPRESSED]) != _NONE
        self.source = f"{inet_ntop(family, found[_RULE_SOURCE])}/{length}" if _RULE_SOURCE in found else ""


def rules(rtnl: Socket) -> list[Rule]:
    """The rules of the namespace, IPv4 first; [] when the kernel has no rules."""
    try:
        bodies = rtnl.dump(_GETRULE, _rule_header(AF_UNSPEC, 0))
    except KernelError as fault:
        if fault.errno not in (EAFNOSUPPORT, EOPNOTSUPP):
            raise
        return []
    return [Rule(body) for family in (AF_INET, AF_INET6) for body in bodies if body[0] == family]


def unconditional_rules(rtnl: Socket) -> tuple[list[Rule], list[Rule]]:
    """The unconditional IPv4 rules and the unconditional IPv6 rules, both in order of priority."""
    found = [rule for rule in rules(rtnl) if rule.is_unconditional]
    found.sort(key=lambda rule: rule.priority)
    return [rule for rule in found if not rule.is_ipv6], [rule for rule in found if rule.is_ipv6]


def add_rule(rtnl: Socket, source: str, table: int, priority: int) -> None:
    """Add a rule that routes packets from the address `source` by `table`. Raises EEXIST when the rule exists."""
    rtnl.request(_NEWRULE, _rule_body(source, table, priority), CREATE | EXCLUSIVE)


def remove_rule(rtnl: Socket, source: str, table: int, priority: int) -> None:
    """Remove the rule that `add_rule` adds for these values. Raises ENOENT when there is no such rule."""
    rtnl.request(_DELRULE, _rule_body(source, table, priority))


def _rule_body(source: str, table: int, priority: int) -> bytes:
    text, _, length = source.partition("/")
    family, octets = address_of(text)
    body = _rule_header(family, int(length or 8 * len(octets)))
    return body + attribute(_RULE_SOURCE, octets) + number(_RULE_PRIORITY, priority) + number(_RULE_TABLE, table)


def _rule_header(family: int, length: int) -> bytes:
    return _RULE.pack(family, 0, length, 0, 0, 0, 0, _TO_TABLE if length else 0, 0)
