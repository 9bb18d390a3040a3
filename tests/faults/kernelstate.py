"""What the kernel holds of a network namespace, as text: every attribute that rtnetlink shows there, but counters and times.

Read with a codec of a few lines, since it is read after each of thousands of calls."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.rtnetlink import GETADDR, GETLINK, GETNEIGH, GETROUTE, GETRULE, HEADER, Route
from tests.view import View

_SO_NETNS_COOKIE = 71
_NESTED = 0x3FFF
_AF_BRIDGE, _AF_INET6 = 7, 10
_IFINFO, _IFADDR, _RTMSG, _NDMSG = 16, 8, 12, 12  # bytes of the header of each kind of message
_AF_SPEC, _IFA_CACHEINFO, _IFA_FLAGS = 26, 6, 8
_TENTATIVE, _SCOPE_LINK = 0x40, 253
_FOR_EVER = b"\xff" * 4  # a lifetime that never ends
# counters and times: of a link, of what IPv6 says of a link, of a route, of a forwarding entry
_LINK_NOISE = {7, 23, 35, 47, 48}  # IFLA_STATS, STATS64, CARRIER_CHANGES, CARRIER_UP_COUNT, CARRIER_DOWN_COUNT
_INET6_NOISE = {3, 5, 6}  # IFLA_INET6_STATS, CACHEINFO, ICMP6STATS
_ROUTE_NOISE = {12}  # RTA_CACHEINFO
_NEIGH_NOISE = {3}  # NDA_CACHEINFO

Attributes = list[tuple[int, bytes]]


class Namespace:
    """A route socket in a network namespace, and what identifies that: inode and cookie."""

    def __init__(self, view: View) -> None:
        self._route = Route(view)
        with view.entered():
            self.inode = os.stat("/proc/thread-self/ns/net").st_ino
        self.cookie = int.from_bytes(self._route.socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), "little")

    def close(self) -> None:
        self._route.close()

    def lines(self) -> list[str]:
        """Links, addresses, routes, rules, and the MACs that a link receives besides its own; in a fixed order."""
        found = [_line("link", *_split(body, _IFINFO), _LINK_NOISE) for body in self._dump(GETLINK, _IFINFO)]
        found += [_address(*_split(body, _IFADDR)) for body in self._dump(GETADDR, _IFADDR)]
        found += [_line("route", *_split(body, _RTMSG), _ROUTE_NOISE) for body in self._dump(GETROUTE, _RTMSG)]
        found += [_line("rule", *_split(body, _RTMSG)) for body in self._dump(GETRULE, _RTMSG)]
        receives = self._dump(GETNEIGH, _NDMSG, _AF_BRIDGE)
        found += [_line("receives", *_split(body, _NDMSG), _NEIGH_NOISE) for body in receives]
        return sorted(found)

    def _dump(self, kind: int, size: int, family: int = 0) -> list[bytes]:
        """The bodies of all messages of a dump."""
        return [message[HEADER:] for message in self._route.dump(kind, bytes([family]) + bytes(size - 1))]


def locks(paths: dict[tuple[int, int], str]) -> list[str]:
    """The locks that are held on the files `paths`, by (device, inode): kind, mode and range, without the process."""
    found = []
    for line in Path("/proc/locks").read_text().splitlines():
        fields = [f for f in line.split() if f != "->"]  # 1: OFDLCK ADVISORY WRITE -1 00:2f:1234 7 7
        if len(fields) < 8:
            continue
        major, minor, inode = fields[5].split(":")
        name = paths.get((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
        if name is not None:
            found.append(f"{name}: {fields[1]} {fields[3]} {fields[6]}-{fields[7]}")
    return sorted(found)


def _split(body: bytes, size: int) -> tuple[bytes, Attributes]:
    return body[:size], list(attributes_of(body[size:]))


def attributes_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        yield kind & _NESTED, data[at + 4 : at + length]
        at += max(4, length + 3 & ~3)


def _address(head: bytes, attributes: Attributes) -> str:
    """Without times; of a lifetime it counts whether it ends; and whether or not the kernel is done, which it is by itself, with the
    duplicate detection of an address that it has made itself."""
    own = head[0] == _AF_INET6 and head[3] == _SCOPE_LINK
    if own:
        head = head[:2] + bytes([head[2] & ~_TENTATIVE]) + head[3:]
    kept = []
    for kind, data in attributes:
        if kind == _IFA_CACHEINFO:
            data = b"".join(_FOR_EVER if part == _FOR_EVER else bytes(4) for part in (data[:4], data[4:8]))
        elif kind == _IFA_FLAGS and own:
            data = bytes([data[0] & ~_TENTATIVE]) + data[1:]
        kept.append((kind, data))
    return _line("address", head, kept)


def _line(what: str, head: bytes, attributes: Attributes, noise: frozenset[int] | set[int] = frozenset()) -> str:
    parts = [f"{what} {head.hex()}"]
    for kind, data in sorted(attributes):
        if kind in noise:
            continue
        if what == "link" and kind == _AF_SPEC:
            parts += [f"{kind}.{family}={_of_family(family, inner)}" for family, inner in attributes_of(data)]
        else:
            parts.append(f"{kind}={data.hex()}")
    return " ".join(parts)


def _of_family(family: int, data: bytes) -> str:
    """What IPv4 or IPv6 keeps of a link: among it all the sysctls of net.ipvN.conf.LINK."""
    noise = _INET6_NOISE if family == _AF_INET6 else set()
    return ",".join(f"{kind}:{inner.hex()}" for kind, inner in attributes_of(data) if kind not in noise)
