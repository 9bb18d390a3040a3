"""The addresses of this node and of its neighbours on the wire of a network. The wire is the host's links that lead to
the network.

No pod of the network can use an address of the node itself. A neighbour's address counts as in use while its entry in
the kernel's table is reachable or permanent. The entry of a deleted pod may stay reachable for up to 45 s, and stale
for days. So there is an exception: a pod may get its own former address, whatever the table says. A neighbour whose
entry is stale, delay or probe may be a host or a deleted pod. Its address is given after all other addresses of the
range.

The link plugin's keys determine the wire: the link `master` (or `bridge`) with the links below and above it, or the PF
of a VF. For a macvlan without `master`, which uses the link of the default route, the addresses of all links count.
They also count for a group of rails, because a network names only its own rail's `master`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from struct import Struct

from cni.shared.config import asks_for_same_index
from cni.shared.records import Records
from cni.shared.spec.request import Request
from ipam import local
from ipam.leases import Want
from ipam.ranges import format_address

_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
# rtnetlink(7), include/uapi/linux/neighbour.h
_DUMP_NEIGHBOURS = Struct("=IHHIIB11x")  # struct nlmsghdr and struct ndmsg, of which only the family is set
_GETNEIGH, _REQUEST_DUMP = 30, 0x301
_THERE = 0x02 | 0x80  # states of a neighbour that answers: NUD_REACHABLE, NUD_PERMANENT
_ONCE = 0x04 | 0x08 | 0x10  # states of a neighbour that answered once: NUD_STALE, NUD_DELAY, NUD_PROBE


class Wire:
    """The addresses of the node and its neighbours on the wire: the host's links that lead to the network of `request`.

    Neighbours are read once. `records` are the node's; without records no address is avoided. The caller may set
    `is_recorded(want)`, which tells whether another attachment of the node has the address in its record.
    """

    def __init__(self, request: Request | None = None, records: Records | None = None) -> None:
        self._names = _names_of(request) if request else []
        self._records = records
        self.is_recorded: Callable[[Want], bool] = lambda want: False
        self._tables: dict[int, bytes] = {}
        self._neighbours: dict[int, set[tuple[int, int]]] = {}  # by states

    def is_own(self, want: Want) -> bool:
        """Whether the address of `want` is the node's own, or in another attachment's record. It is then never given.

        The node's addresses are listed only if a socket can be bound to `want`. This test is cheap, and mostly fails.
        """
        may_be = self._names != [] and any(_can_bind(want, name) for name in self._names or [""])
        return (may_be and (self._names is None or want.address in self._read())) or self.is_recorded(want)

    def is_neighbour(self, want: Want) -> bool:
        """Whether a reachable neighbour has the address of `want`. It is then given only if the pod prefers it."""
        return want.address in self._neighbours_with(want, _THERE)

    def with_former(self, want: Want) -> set[tuple[int, int]]:
        """If a neighbour in the state stale, delay or probe has the address of `want`, return the addresses of all
        neighbours in these states, otherwise an empty set. These addresses are given last."""
        found = self._neighbours_with(want, _ONCE)
        return found if want.address in found else set()

    def is_avoided(self, address: str) -> bool:
        """Whether `address`, "address/length", was found in use a short time ago. It is then given last."""
        return self._records is not None and local.is_avoided(self._records, address)

    def _neighbours_with(self, want: Want, states: int) -> set[tuple[int, int]]:
        """The addresses of neighbours in one of `states`; an empty set if no neighbour has the address of `want`."""
        if self._names == []:
            return set()
        if want.family not in self._tables:
            self._tables[want.family] = _table(want.family)
        address = want.value.to_bytes(4 if want.family == 4 else 16, "big")
        if address not in self._tables[want.family]:
            return set()
        if states not in self._neighbours:
            self._neighbours[states] = self._read(states)
        return self._neighbours[states]

    def _read(self, states: int = 0) -> set[tuple[int, int]]:
        from ipam import neighbourhood  # most addresses are neither of the node nor of a neighbour

        return neighbourhood.addresses_of(self._names, states)


def _table(family: int) -> bytes:
    """The kernel's neighbours of `family` (4 or 6), as undecoded netlink messages."""
    parts = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as found:
        size = _DUMP_NEIGHBOURS.size
        found.send(_DUMP_NEIGHBOURS.pack(size, _GETNEIGH, _REQUEST_DUMP, 1, 0, _FAMILIES[family]))
        try:
            while True:
                parts.append(found.recv(1 << 16, socket.MSG_DONTWAIT))
        except OSError:
            return b"".join(parts)  # the kernel makes the next part before recv returns, so this is the end


def _names_of(request: Request) -> list[str] | None:
    """The names of the host's links that lead to the network of `request`; None for all links, [] for no link."""
    if request.member("linkInContainer") is True:
        return []
    if asks_for_same_index(request):
        return None
    name = request.member("master") or request.member("bridge")
    if isinstance(name, str) and name:
        return [name]
    device = request.of_runtime("deviceID") or request.member("deviceID")
    if isinstance(device, str) and "/" not in device:
        try:
            return os.listdir(f"/sys/bus/pci/devices/{device}/physfn/net")
        except OSError:
            return []
    kind = request.member("type")
    return None if isinstance(kind, str) and kind.endswith("macvlan") else []


def _can_bind(want: Want, link: str) -> bool:
    found = socket.socket(_FAMILIES[want.family], socket.SOCK_DGRAM)
    try:
        if link:  # the link's VRF may have the address
            found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode() + b"\0")
        found.bind((format_address(want.family, want.value), 0))
    except OSError:
        return False
    finally:
        found.close()
    return True
