"""Nexthop objects, which routes may name in place of links. Sources: ip-nexthop(8), include/uapi/linux/nexthop.h."""

from __future__ import annotations

from _struct import Struct

from cni.kernel.netlink import Socket, number, number_of, unpack_attributes

_GETNEXTHOP = 106
_NHMSG = Struct("=BBBxI")  # struct nhmsg: family, scope, protocol, flags
_MEMBER = Struct("=IBBH")  # struct nexthop_grp: the nexthop's id, weight - 1
_ID, _GROUP, _OIF = 1, 2, 5


def links_of(rtnl: Socket, identity: int) -> list[int]:
    """The indices of the links that the nexthop object or group uses; none for one that discards. KernelError."""
    body = rtnl.request(_GETNEXTHOP, _NHMSG.pack(0, 0, 0, 0) + number(_ID, identity))[0]
    found = dict(unpack_attributes(body, _NHMSG.size))
    if _OIF in found:
        return [number_of(found[_OIF])]
    members = found.get(_GROUP, b"")
    starts = range(0, len(members), _MEMBER.size)
    return [index for start in starts for index in links_of(rtnl, _MEMBER.unpack_from(members, start)[0])]
