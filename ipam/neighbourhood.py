"""Read the addresses of the node and of its neighbours on the host's links that lead to a network (ipam.own)."""

from __future__ import annotations

import socket

from cni.shared.kernel import addresses
from cni.shared.kernel.links import GETNEIGH, NDMSG, Rtnl, with_those_below
from cni.shared.kernel.netlink import unpack_attributes
from ipam.ranges import host_of

# rtnetlink(7), include/uapi/linux/neighbour.h
_DESTINATION = 1


def addresses_of(names: list[str] | None, states: int = 0) -> set[tuple[int, int]]:
    """The addresses, (family, value), of the links `names` (None: all links) and of the links below and above them.

    If `states`, a bitset of NUD_*, is not 0, the result has the addresses of neighbours of these links instead: of the
    neighbours that are in one of the states.
    """
    with Rtnl() as rtnl:
        near = {link.index for link in rtnl.links()} if names is None else _near(rtnl, names)
        if states:
            return _neighbours_of(rtnl, near, states)
        return {host_of(address.text) for index in near for address in addresses.list_of(rtnl, index)}


def _neighbours_of(rtnl: Rtnl, near: set[int], states: int) -> set[tuple[int, int]]:
    found = set()
    for number, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
        for body in rtnl.dump(GETNEIGH, NDMSG.pack(family, 0, 0, 0, 0)):
            _, index, state, _, _ = NDMSG.unpack_from(body)
            if index in near and state & states:
                found.add((number, int.from_bytes(unpack_attributes(body, NDMSG.size)[_DESTINATION], "big")))
    return found


def _near(rtnl: Rtnl, names: list[str]) -> set[int]:
    links = rtnl.links()
    wire = {link.index for link in links if link.name in names}
    below = set().union(*(with_those_below(index, links) for index in wire))
    return below | {link.index for link in links if wire & with_those_below(link.index, links)}
