"""The messages that restore the state which cni.shared.kernel.raw_state has read, and the parts that a comparison needs.

Sources: those of cni.shared.kernel.raw_state; neightbl_set (net/core/neighbour.c), do_setlink (net/core/rtnetlink.c).
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop
from _struct import Struct

from cni.shared.kernel import raw_state
from cni.shared.kernel.netlink import NESTED, attribute, number, unpack_attributes
from cni.shared.kernel.routes import all_bodies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.kernel.netlink import Socket

NEWLINK, NEWADDR, NEWROUTE, DELROUTE, NEWNEIGH, SETNEIGHTBL = 16, 20, 24, 25, 28, 67
_FLAGS_KEPT = 0x2 | 0x10 | 0x100 | 0x200 | 0x400  # NODAD, HOMEADDRESS, MANAGETEMPADDR, NOPREFIXROUTE, MCAUTOJOIN
_ADDRESS_KEPT = frozenset((1, 2, 3, 4, 9, 11))  # ADDRESS, LOCAL, LABEL, BROADCAST, RT_PRIORITY, PROTO
_LIFETIMES = Struct("=IIII")  # preferred, valid, made, changed
_FOR_EVER = 0xFFFFFFFF
_FLAGS = Struct("=I")  # the last member of struct rtmsg
_EXPIRES = 23  # RTA_EXPIRES
_TABLE_NAME = 1  # NDTA_NAME


def set_link(rtnl: Socket, index: int, kind: int, value: bytes) -> None:
    """Give the link `index` the attribute `kind`."""
    rtnl.request(NEWLINK, raw_state.IFINFO.pack(0, 0, index, 0, 0) + attribute(kind, value))


def set_flags(rtnl: Socket, index: int, flags: int, mask: int) -> None:
    """Set the flags of the link `index` that are in `mask` as in `flags`."""
    rtnl.request(NEWLINK, raw_state.IFINFO.pack(0, 0, index, flags & mask, mask))


def set_token(rtnl: Socket, index: int, token: bytes) -> None:
    """Give the link `index` the interface identifier `token` for SLAAC; EINVAL while it takes no router advertisements."""
    of_family = attribute(AF_INET6 | NESTED, attribute(raw_state.INET6_TOKEN, token))
    rtnl.request(NEWLINK, raw_state.IFINFO.pack(0, 0, index, 0, 0) + attribute(raw_state.AF_SPEC | NESTED, of_family))


def address_text(body: bytes) -> str:
    """ "address/length"."""
    family, length, octets, _ = raw_state.address_key(body)
    return f"{inet_ntop(family, octets)}/{length}"


def address_again(body: bytes, index: int, elapsed: int, flags: int | None = None) -> bytes | None:
    """The body that restores the address on the link `index` after `elapsed` seconds; None when it has expired.

    `flags` replaces the IFA_F_* of the address.
    """
    family, length, _, scope, _ = raw_state.IFADDR.unpack_from(body)
    if flags is None:
        flags = raw_state.address_flags(body)
    again = raw_state.IFADDR.pack(family, length, 0, scope, index)
    for kind, payload in unpack_attributes(body, raw_state.IFADDR.size):
        if kind in _ADDRESS_KEPT:
            again += attribute(kind, payload)
        elif kind == raw_state.ADDRESS_CACHE:
            preferred, valid, _, _ = _LIFETIMES.unpack_from(payload)
            if valid != _FOR_EVER:
                valid -= elapsed
                if valid <= 0:
                    return None
            if preferred != _FOR_EVER:
                preferred = max(preferred - elapsed, 0)
            again += attribute(kind, _LIFETIMES.pack(preferred, valid, 0, 0))
    return again + number(raw_state.ADDRESS_FLAGS, flags & _FLAGS_KEPT)


def present(rtnl: Socket) -> list[dict[str, Any]]:
    """All routes of the namespace that are not the kernel's own, as `routes` describes them."""
    found = map(raw_state.of_body, all_bodies(rtnl))
    return [route for route in found if route]


def protocol_of(route: dict[str, Any]) -> int:
    """The origin of the route (RTPROT_*)."""
    return bytes.fromhex(route["common"])[5]


def source_of(route: dict[str, Any]) -> bytes:
    """The preferred source address, or b""."""
    return raw_state.attributes_of(route).get(raw_state.PREFSRC, b"")


def destination_text(route: dict[str, Any]) -> str:
    """ "network/length"."""
    family = raw_state.family_of(route)
    length, octets = raw_state.destination_of(route)
    return f"{inet_ntop(family, octets or bytes(4 if family == AF_INET else 16))}/{length}"


def has_gateway(route: dict[str, Any]) -> bool:
    """Whether the route has a gateway, which another route must reach."""
    return any(leg[3] for leg in route["legs"])


def route_again(route: dict[str, Any], legs: Sequence[Sequence[Any]], elapsed: int) -> bytes | None:
    """The body that sets the route with `legs` after `elapsed` seconds; None when it has expired."""
    body = bytes.fromhex(route["common"])
    tail = b""
    if "expires" in route:
        left = route["expires"] - elapsed
        if left <= 0:
            return None
        tail = number(_EXPIRES, left)
    if len(legs) == 1 and legs[0][1] == 1:
        flags, _, index, own = legs[0]
        body = body[:8] + _FLAGS.pack(flags) + body[12:]
        return body + number(raw_state.OIF, index) + bytes.fromhex(own) + tail
    hops = b""
    for flags, weight, index, own in legs:
        octets = bytes.fromhex(own)
        hops += raw_state.NEXTHOP.pack(raw_state.NEXTHOP.size + len(octets), flags, weight - 1, index) + octets
    return body + attribute(raw_state.MULTIPATH, hops) + tail


def neighbour_again(text: str, index: int) -> bytes:
    """The body that restores the neighbour on the link `index`."""
    body = bytes.fromhex(text)
    family, _, state, flags, kind = raw_state.NDMSG.unpack_from(body)
    return raw_state.NDMSG.pack(family, index, state, flags, kind) + body[raw_state.NDMSG.size :]


def neighbour_text(text: str) -> str:
    """The address of the neighbour."""
    body = bytes.fromhex(text)
    return inet_ntop(body[0], dict(unpack_attributes(body, raw_state.NDMSG.size))[1])


def neighbour_parameters(index: int, family: int, wanted: str, now: str) -> bytes:
    """The body that gives the link's neighbour table those parameters of `wanted` that differ from `now`; b"" for none."""
    held = dict(unpack_attributes(bytes.fromhex(now)))
    different = [
        (k, v)
        for k, v in unpack_attributes(bytes.fromhex(wanted))
        if k not in raw_state.NOT_SETTINGS and held.get(k) != v
    ]
    if not different:
        return b""
    name = {AF_INET: b"arp_cache\0", AF_INET6: b"ndisc_cache\0"}[family]
    nested = number(raw_state.PARAMETERS_INDEX, index) + b"".join(attribute(k, v) for k, v in different)
    return (
        raw_state.NDTMSG.pack(family) + attribute(_TABLE_NAME, name) + attribute(raw_state.PARAMETERS | NESTED, nested)
    )
