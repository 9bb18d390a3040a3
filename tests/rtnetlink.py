"""A route socket of a network namespace, which dumps what the kernel holds there; tests decode the messages."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.view import View

GETLINK, GETADDR, GETROUTE, GETNEIGH, GETRULE, GETQDISC, GETNEXTHOP = 18, 22, 26, 30, 34, 38, 106
HEADER = 16  # bytes of struct nlmsghdr
_DUMP = 0x301
_DONE, _ERROR, _INTERRUPTED = 3, 2, 0x10
_EXT_MASK = 29  # IFLA_EXT_MASK
SKIP_STATS, WITH_VFS = 8, 1  # RTEXT_FILTER_SKIP_STATS, RTEXT_FILTER_VF


class Route:
    """`close` it. OSError when the kernel refuses a dump."""

    def __init__(self, view: View) -> None:
        with view.entered():
            self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)

    def close(self) -> None:
        self.socket.close()

    def dump(self, kind: int, body: bytes, links: int = SKIP_STATS) -> list[bytes]:
        """The messages of a dump, with their headers; it is repeated when something changed meanwhile. Of links it has
        what the filter `links` lets through."""
        body += struct.pack("=HHI", 8, _EXT_MASK, links) if kind == GETLINK else b""
        while True:
            self.socket.send(struct.pack("=IHHII", HEADER + len(body), kind, _DUMP, 1, 0) + body)
            found, whole = self._replies()
            if whole:
                return found

    def _replies(self) -> tuple[list[bytes], bool]:
        found: list[bytes] = []
        whole = True
        while True:
            data = self.socket.recv(1 << 18)
            at = 0
            while at < len(data):
                length, kind, flags = struct.unpack_from("=IHH", data, at)
                whole = whole and not flags & _INTERRUPTED
                if kind == _DONE:
                    return found, whole
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", data, at + HEADER)[0], "a dump of rtnetlink failed")
                found.append(data[at : at + length])
                at += length + 3 & ~3
