"""Read the routes that carry a node's own traffic: default routes, routes of routing daemons, nexthop objects, and the
route to an address.

Sources: rtnetlink(7), ip-nexthop(8), include/uapi/linux/rtnetlink.h and nexthop.h. The functions raise KernelError when the
kernel refuses a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from errno import ENOENT, EOPNOTSUPP
from socket import AF_INET, AF_INET6, inet_ntop
from struct import Struct

from cni.shared.kernel.netlink import KernelError, Socket, address_of, attribute, number, number_of, unpack_attributes
from cni.shared.kernel.routes import LOCAL_TABLE, MAIN_TABLE, RTMSG, UNICAST, KernelRoute, dump_routes, unpack

_GETROUTE, _GETNEXTHOP = 26, 106
_DST, _SRC, _OIF, _PREFSRC, _NH_ID = 1, 2, 4, 7, 30  # attributes of a route
_NHMSG = Struct("=BBBxI")  # struct nhmsg: family, scope, protocol, flags
_NHA_ID, _NHA_GROUP, _NHA_OIF = 1, 2, 5
_NHA_MEMBER = Struct("=IBBH")  # struct nexthop_grp: the id of the nexthop, weight - 1
_DEFAULT_BITS: dict[int, int] = {AF_INET: 1, AF_INET6: 4}  # the longest prefixes of `default_routes`
# RTPROT_* of routing daemons: zebra, bird, xorp, babel, openr, bgp, isis, ospf, rip, eigrp
_DAEMONS = frozenset((11, 12, 14, 42, 99, 186, 187, 188, 189, 192))


def of_bodies(bodies: Iterable[bytes], index: int) -> list[KernelRoute]:
    """The routes through the link `index` in `bodies` (RTM_NEWROUTE messages), except those of the local table."""
    found = [route for body in bodies for route in unpack(body)]
    return [route for route in found if route.index == index and route.table != LOCAL_TABLE]


def all_bodies(rtnl: Socket) -> list[bytes]:
    """The RTM_NEWROUTE bodies of the routes of all tables, IPv4 first."""
    return [body for family in (AF_INET, AF_INET6) for body in dump_routes(rtnl, family)]


def of_daemons(bodies: Iterable[bytes]) -> list[KernelRoute]:
    """The routes with a gateway in `bodies` that routing daemons added to the main table, one for each next hop."""
    found = [route for body in bodies if body[5] in _DAEMONS for route in unpack(body)]
    return [r for r in found if r.gw and r.index and r.kind == UNICAST and r.table == MAIN_TABLE]


def default_routes(rtnl: Socket, bodies: Iterable[bytes]) -> list[KernelRoute]:
    """The default routes in `bodies`, one for each next hop, except routes that discard packets.

    Prefixes that replace a default route count too: 0.0.0.0/1 and 128.0.0.0/1, and IPv6 prefixes of at most 4 bits,
    such as 2000::/3. OpenVPN's redirect-gateway sets such routes (src/openvpn/init.c).
    """
    found = []
    for body in bodies:
        if body[1] > _DEFAULT_BITS[body[0]]:  # most routes end here and need not be unpacked
            continue
        for route in unpack(body):
            if route.kind != UNICAST or route.table == LOCAL_TABLE:
                continue
            if route.index:
                found.append(route)
            else:
                found += [KernelRoute(body, index, 0, {}) for index in _links_by_id(rtnl, body)]
    return found


def way_to(rtnl: Socket, address: str, source: str = "") -> tuple[int, str]:
    """Return (index of the link, source address) for a packet to `address` without fwmark, or (0, "") if there is no
    route. The index is LOOPBACK for an address of this namespace. If `source` is "", the kernel chooses the source."""
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


def nexthops_of(rtnl: Socket, index: int) -> list[int]:
    """The ids of the nexthop objects, except groups, that use the link `index`; [] before Linux 5.3."""
    bodies = rtnl.dump_if_known(_GETNEXTHOP, _NHMSG.pack(0, 0, 0, 0) + number(_NHA_OIF, index), EOPNOTSUPP)
    found = [unpack_attributes(body, _NHMSG.size) for body in bodies]
    return [number_of(each[_NHA_ID]) for each in found if _NHA_OIF in each]


def _links_by_id(rtnl: Socket, body: bytes) -> list[int]:
    """The indexes of the links of a route that names only a nexthop object, as if nexthop_compat_mode is 0."""
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
