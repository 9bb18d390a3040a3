"""Save the state of a link as the bytes of rtnetlink messages, and make the messages that restore it without loss.

Attributes are not decoded if their bytes can be sent back unchanged. So members that a newer kernel adds to a metric or
an encapsulation are kept too. The saved state is plain JSON, with bytes as hexadecimal text.

A saved route has the members "common" and "legs", and may have "expires" (seconds) and "ahead". "common" has the header
and the attributes that all legs (next hops) share. A leg is [flags, weight, index of its link, attributes]. "ahead" is
only for IPv4. It is true if the kernel listed this route before another link's route with the same destination, TOS,
priority and table.

Sources: rtnetlink(7), include/uapi/linux/{if_link,if_addr,rtnetlink,neighbour,pkt_sched}.h; inet_rtm_newaddr
(net/ipv4/devinet.c), inet6_rtm_newaddr (net/ipv6/addrconf.c), fib_dump_info (net/ipv4/fib_semantics.c), rt6_fill_node
(net/ipv6/route.c), neigh_fill_info and neightbl_dump_info (net/core/neighbour.c).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from socket import AF_INET, AF_INET6, inet_ntop
from struct import Struct
from sys import byteorder
from typing import Any

from cni.shared.kernel.addresses import CACHE, CACHEINFO, FLAGS, IFADDR, Address, list_of
from cni.shared.kernel.links import GETNEIGH, IFINFO, NDMSG
from cni.shared.kernel.netlink import NESTED, KernelError, Socket, attribute, number, number_of, unpack_attributes
from cni.shared.kernel.node_routes import all_bodies
from cni.shared.kernel.routes import KERNEL_PROTOCOL, LOCAL_TABLE, NEXTHOP, RA_PROTOCOL, RTMSG, dump_routes, next_hops

NEWADDR, NEWROUTE, DELROUTE, NEWNEIGH = 20, 24, 25, 28
_GETQDISC, _GETNEIGHTBL = 38, 66

_AF_SPEC = 26
_INET_CONF, _INET6_CONF, _INET6_TOKEN = 1, 2, 7

# attributes of a link that can be set: TXQLEN, GROUP, BROADCAST, LINKMODE, PROTO_DOWN
SETTINGS = (13, 27, 2, 17, 39)
SIZES = (40, 41, 58, 63, 64)  # GSO_MAX_SEGS, GSO_MAX_SIZE, GRO_MAX_SIZE; GSO_ and GRO_IPV4_MAX_SIZE, set by 41, 58 too
# flags that __dev_change_flags (net/core/dev.c) sets: UP, DEBUG, NOTRAILERS, NOARP, PROMISC, ALLMULTI, MULTICAST, ...
SETTABLE_FLAGS = 0xF3A5

_TEMPORARY = 0x1  # IFA_F_TEMPORARY, of IPv6
_ADDRESS_FLAGS_KEPT = (
    0x2 | 0x10 | 0x100 | 0x200 | 0x400
)  # NODAD, HOMEADDRESS, MANAGETEMPADDR, NOPREFIXROUTE, MCAUTOJOIN
_ADDRESS_KEPT = frozenset((1, 2, 3, 4, 9, 11))  # ADDRESS, LOCAL, LABEL, BROADCAST, RT_PRIORITY, PROTO
_FOR_EVER = 0xFFFFFFFF

_OIF, _PREFSRC, _METRICS, _MULTIPATH, _ROUTE_CACHE, _ENCAP, _NH_ID, _TABLE, _DST, _SRC, _PRIORITY = (
    4, 7, 8, 9, 12, 22, 30, 15, 1, 2, 6,
)  # fmt: skip
_OF_LEG = frozenset((5, 11, 18, 19, 21, 22))  # GATEWAY, FLOW, VIA, NEWDST, ENCAP_TYPE, ENCAP
_OF_ROUTE = frozenset((1, 2, 6, 7, 8, 15, 20, 26))  # DST, SRC, PRIORITY, PREFSRC, METRICS, TABLE, PREF, TTL_PROPAGATE
_NESTED_ONES = frozenset((_METRICS, _ENCAP))
_ROUTE_CACHE_INFO = Struct("=IIi")  # struct rta_cacheinfo begins with clntref, lastuse, expires
_ONLINK, _CLONED = 0x4, 0x200
_RTM_FLAGS = Struct("=I")  # the last member of struct rtmsg
_EXPIRES = 23  # RTA_EXPIRES
_TICKS = 100  # USER_HZ

_PERMANENT, _PROXY = 0x80, 0x8
_NEIGHBOUR_KEPT = frozenset((1, 2, 5, 12, 15))  # DST, LLADDR, VLAN, PROTOCOL, FLAGS_EXT
_NEIGHBOUR_INDEX = 8

_NDTMSG = Struct("=Bxxx")
_PARAMETERS, _PARAMETERS_INDEX = 6, 1  # NDTA_PARMS, NDTPA_IFINDEX
_NOT_SETTINGS = frozenset((1, 2, 3, 17))  # NDTPA_IFINDEX, REFCNT, REACHABLE_TIME (random), PAD

_TCMSG = Struct("=BxxxiIII")  # family, index, handle, parent, info
_ROOT, _INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
_ECHO = 0x8  # without this flag only listeners get the kernel's answer (nlmsg_notify, net/netlink/af_netlink.c)


class Raw:
    """The link in an RTM_NEWLINK message. `flags` has the IFF_* bits, `attributes` the payloads by type. `inet` and
    `inet6` are the sysctls as arrays of 32-bit numbers, b"" without the family. `token` is the SLAAC token or b""."""

    def __init__(self, body: bytes) -> None:
        self.flags = IFINFO.unpack_from(body)[3]
        self.attributes = unpack_attributes(body, IFINFO.size)
        families = unpack_attributes(self.attributes.get(_AF_SPEC, b""))
        inet6 = unpack_attributes(families.get(AF_INET6, b""))
        self.inet = unpack_attributes(families.get(AF_INET, b"")).get(_INET_CONF, b"")
        self.inet6 = inet6.get(_INET6_CONF, b"")
        self.token = inet6.get(_INET6_TOKEN, b"").strip(b"\0") and inet6[_INET6_TOKEN]


def token_attributes(token: bytes) -> bytes:
    """The attributes that set a link's SLAAC token. The kernel answers EINVAL if the link ignores router advertisements."""
    return attribute(_AF_SPEC | NESTED, attribute(AF_INET6 | NESTED, attribute(_INET6_TOKEN, token)))


# --- addresses ---


def addresses(rtnl: Socket, index: int) -> list[Address]:
    """The addresses of the link, in the order in which they must be added again.

    IPv4 keeps the order in which addresses are added (__inet_insert_ifa). IPv6 puts a new address first
    (ipv6_link_dev_addr). Temporary addresses (privacy extensions) are left out, because only the kernel can make them.
    """
    found = list_of(rtnl, index)
    new = [address for address in found if address.body[0] == AF_INET6 and not address.flags & _TEMPORARY]
    return [address for address in found if address.body[0] == AF_INET] + new[::-1]


def address_again(address: Address, index: int, elapsed: int, flags: int) -> bytes | None:
    """The RTM_NEWADDR body that restores `address` on the link `index`, with the IFA_F_* `flags`. Its lifetimes are
    shorter by `elapsed` seconds. None when the address has expired."""
    family, length, _, scope, _ = IFADDR.unpack_from(address.body)
    again = IFADDR.pack(family, length, 0, scope, index)
    for kind, payload in unpack_attributes(address.body, IFADDR.size).items():
        if kind in _ADDRESS_KEPT:
            again += attribute(kind, payload)
        elif kind == CACHEINFO:
            preferred, valid, _, _ = CACHE.unpack_from(payload)
            if valid != _FOR_EVER:
                valid -= elapsed
                if valid <= 0:
                    return None
            if preferred != _FOR_EVER:
                preferred = max(preferred - elapsed, 0)
            again += attribute(kind, CACHE.pack(preferred, valid, 0, 0))
    return again + number(FLAGS, flags & _ADDRESS_FLAGS_KEPT)


# --- routes ---


class SavedRoute:
    """A route, saved as the JSON object `document`. `destination` is (prefix length, address); the address of a default
    route is b"". `source` is the preferred source address or b"". `protocol` is the origin (RTPROT_*).

    `key` (family, prefixes, TOS, table, priority) determines the route's place in the kernel's tables. `identity` has
    the parts of a route that are the same each time it is read.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.legs: Sequence[Sequence[Any]] = document["legs"]
        self.identity = document["common"], str(self.legs)
        self.common = bytes.fromhex(document["common"])
        self.family, length, source, tos, table, self.protocol, *_ = RTMSG.unpack_from(self.common)
        found = unpack_attributes(self.common, RTMSG.size)
        self.source = found.get(_PREFSRC, b"")
        self.destination = length, found.get(_DST, b"")
        table = number_of(found.get(_TABLE, b"")) or table
        priority = number_of(found.get(_PRIORITY, b""))
        self.key = self.family, *self.destination, source, found.get(_SRC), tos, table, priority

    @property
    def is_ahead(self) -> bool:
        return self.document.get("ahead", False) is True

    def is_part_of(self, route: SavedRoute) -> bool:
        """Whether this route is `route` with all or some of its legs (next hops). Weights may differ."""
        legs = [(flags, at, own) for flags, _, at, own in route.legs]
        return self.common == route.common and all((f, at, own) in legs for f, _, at, own in self.legs)

    def __str__(self) -> str:
        length, octets = self.destination
        return f"{inet_ntop(self.family, octets or bytes(4 if self.family == AF_INET else 16))}/{length}"


def of_link(bodies: Iterable[bytes], index: int) -> list[bytes]:
    """The `bodies` of the routes through the link `index`. The search is by bytes, and may find other routes too."""
    single, leg, multipath = number(_OIF, index), index.to_bytes(4, byteorder), _MULTIPATH.to_bytes(2, byteorder)
    return [body for body in bodies if single in body or (leg in body and multipath in body)]


def routes(
    rtnl: Socket, index: int, bodies: list[bytes], sources: Iterable[bytes] = (), every: Iterable[bytes] | None = None
) -> list[SavedRoute]:
    """The routes that are lost when the link `index` leaves. These are the routes in `bodies` through the link, and
    IPv4 routes through other links with a source address in `sources`, since the kernel removes these routes with the
    address (fib_sync_down_addr). The kernel's local routes, routes that routers advertise, and routes with nexthop
    objects are left out. `every` has the bodies of all routes. If it is None, they are read when needed."""
    found = [route for route in map(of_body, bodies) if route and any(leg[2] == index for leg in route.legs)]
    old = [route for route in found if route.family == AF_INET]
    new = found[len(old) :]
    wanted = [attribute(_PREFSRC, source) for source in sources if len(source) == 4]
    if old or wanted:
        others = dump_routes(rtnl, AF_INET, b"") if every is None else [body for body in every if body[0] == AF_INET]
        _place(old, others, wanted)
    return old + new


def _place(own: list[SavedRoute], bodies: list[bytes], wanted: list[bytes]) -> None:
    """Set "ahead" in each IPv4 route in `own` that precedes another link's route with an equal `key`. Append to `own`
    the routes of other links whose source attribute is in `wanted`. `bodies` has all IPv4 routes."""
    destinations = {route.destination for route in own}
    patterns = [attribute(_DST, destination) for _, destination in destinations if destination]
    defaults = any(length == 0 for length, _ in destinations)
    others = []
    before: dict[Any, list[SavedRoute]] = {}
    mine = {route.identity: route for route in own}
    for body in bodies:
        is_like = (defaults and not body[1]) or any(pattern in body for pattern in patterns)
        is_wanted = any(source in body for source in wanted)
        if not is_like and not is_wanted:
            continue
        route = of_body(body)
        if route is None:
            continue
        known = mine.get(route.identity)
        if known:
            before.setdefault(known.key, []).append(known)
            continue
        for earlier in before.get(route.key, ()):
            earlier.document["ahead"] = True
        if is_wanted and route.protocol != KERNEL_PROTOCOL:  # the kernel makes its own routes again
            others.append(route)
    own += others


def with_those_away(own: list[SavedRoute], away: Iterable[dict[str, Any]]) -> None:
    """Give the saved routes `own` the legs (next hops) and the member "ahead" that they had before other links left, so
    that the links can return in any order. `away` has the saved routes of the links that left, as JSON."""
    for saved in map(SavedRoute, away):
        for route in own:
            if route.is_part_of(saved):
                route.legs = route.document["legs"] = saved.legs
            elif route.key == saved.key and route.family == AF_INET and not saved.is_ahead:
                route.document["ahead"] = True


def of_body(body: bytes) -> SavedRoute | None:
    """The route in an RTM_NEWROUTE body; None for a route that is not saved."""
    family, length, source, tos, table, protocol, scope, kind, flags = RTMSG.unpack_from(body)
    found = unpack_attributes(body, RTMSG.size)
    get = found.get
    if flags & _CLONED or protocol == RA_PROTOCOL or _NH_ID in found:
        return None
    if protocol == KERNEL_PROTOCOL and (number_of(get(_TABLE, b"")) or table) == LOCAL_TABLE:
        return None
    common = RTMSG.pack(family, length, source, tos, table, protocol, scope, kind, 0)
    common += _kept(found, _OF_ROUTE)
    if _MULTIPATH in found:
        hops = next_hops(found[_MULTIPATH])
        legs = [[flags & _ONLINK, weight, index, _kept(own, _OF_LEG).hex()] for flags, weight, index, own in hops]
    else:
        legs = [[flags & _ONLINK, 1, number_of(get(_OIF, b"")), _kept(found, _OF_LEG).hex()]]
    document: dict[str, Any] = {"common": common.hex(), "legs": legs}
    cache = get(_ROUTE_CACHE, b"")
    expires = _ROUTE_CACHE_INFO.unpack_from(cache)[2] if family == AF_INET6 and cache else 0
    if expires > 0:
        document["expires"] = expires // _TICKS
    return SavedRoute(document)


def _kept(found: dict[int, bytes], kinds: frozenset[int]) -> bytes:
    """The attributes in `found` whose types are in `kinds`, as bytes in the order of their types."""
    kept = ((kind | (NESTED if kind in _NESTED_ONES else 0), found[kind]) for kind in sorted(found.keys() & kinds))
    return b"".join(attribute(kind, payload) for kind, payload in kept)


def present(rtnl: Socket) -> list[SavedRoute]:
    """All routes of the namespace that can be saved (see `of_body`)."""
    found = map(of_body, all_bodies(rtnl))
    return [route for route in found if route]


def route_again(route: SavedRoute, legs: Sequence[Sequence[Any]], elapsed: int) -> bytes | None:
    """The RTM_NEWROUTE body that restores `route` with `legs`, `elapsed` seconds after the save; None if expired."""
    body, tail = route.common, b""
    if "expires" in route.document:
        left = route.document["expires"] - elapsed
        if left <= 0:
            return None
        tail = number(_EXPIRES, left)
    if len(legs) == 1 and legs[0][1] == 1:
        flags, _, index, own = legs[0]
        body = body[:8] + _RTM_FLAGS.pack(flags) + body[12:]
        return body + number(_OIF, index) + bytes.fromhex(own) + tail
    hops = b""
    for flags, weight, index, own in legs:
        octets = bytes.fromhex(own)
        hops += NEXTHOP.pack(NEXTHOP.size + len(octets), flags, weight - 1, index) + octets
    return body + attribute(_MULTIPATH, hops) + tail


# --- neighbours ---


def neighbours(rtnl: Socket, index: int) -> list[str]:
    """The permanent neighbours and proxy entries of the link `index`: RTM_NEWNEIGH bodies in hex, with index 0."""
    found = []
    for flags in (0, _PROXY):
        header = NDMSG.pack(0, 0, 0, flags, 0) + number(_NEIGHBOUR_INDEX, index)
        for body in rtnl.dump(GETNEIGH, header):
            family, at, state, of_entry, kind = NDMSG.unpack_from(body)
            if at == index and family in (AF_INET, AF_INET6) and (of_entry & _PROXY or state & _PERMANENT):
                again = NDMSG.pack(family, 0, state, of_entry, kind)
                kept = (attribute(k, v) for k, v in unpack_attributes(body, NDMSG.size).items() if k in _NEIGHBOUR_KEPT)
                found.append((again + b"".join(kept)).hex())
    return found


def families_with_neighbour_parameters(rtnl: Socket, index: int) -> list[int]:
    """The families (AF_*) in whose neighbour tables the link has parameters other than the defaults."""
    found = []
    mark = number(_PARAMETERS_INDEX, index)
    defaults: dict[int, dict[int, bytes]] = {}
    for body in rtnl.dump(_GETNEIGHTBL, _NDTMSG.pack(0)):
        family = body[0]
        if family in defaults and mark not in body:
            continue
        nested = unpack_attributes(body, _NDTMSG.size).get(_PARAMETERS, b"")
        settings = {k: v for k, v in unpack_attributes(nested).items() if k not in _NOT_SETTINGS}
        if family not in defaults:  # the defaults of a table come first (neightbl_dump_info)
            defaults[family] = settings
        elif nested.startswith(mark) and settings != defaults[family]:
            found.append(family)
    return found


def neighbour_again(text: str, index: int) -> bytes:
    """The RTM_NEWNEIGH body that restores `text`, a result of the function `neighbours`, on the link `index`."""
    body = bytes.fromhex(text)
    family, _, state, flags, kind = NDMSG.unpack_from(body)
    return NDMSG.pack(family, index, state, flags, kind) + body[NDMSG.size :]


def neighbour_text(text: str) -> str:
    """The IP address in `text`, a result of the function `neighbours`."""
    body = bytes.fromhex(text)
    return inet_ntop(body[0], unpack_attributes(body, NDMSG.size)[1])


# --- traffic control ---


def has_qdisc(rtnl: Socket, index: int) -> bool:
    """Whether an administrator has set a qdisc on the link: a root qdisc with a handle, or any ingress qdisc."""
    for parent in (_ROOT, _INGRESS):
        try:
            bodies = rtnl.request(_GETQDISC, _TCMSG.pack(0, index, 0, parent, 0), _ECHO)
        except KernelError:
            continue
        if any(parent == _INGRESS or _TCMSG.unpack_from(body)[2] for body in bodies):
            return True
    return False
