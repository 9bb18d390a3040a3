"""What the kernel says of addresses in all sandboxes of a node, in the order in which it happened.

One route socket hears every network namespace that has an id in its own (NETLINK_LISTEN_ALL_NSID, netlink(7)), in the order
of the kernel's one lock. Times are known within bounds: what a late watcher reads may be as old as its last look."""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import time
from collections.abc import Iterator

from tests.faults.churn.events import Sight
from tests.faults.kernelstate import attributes_of
from tests.view import View

_SOL_NETLINK, _LISTEN_ALL_NSID = 270, 8
_SO_RCVBUFFORCE = 33
_GROUPS = 0x10 | 0x100 | 1 << 27  # RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_NSID
_RTM_NEWADDR, _RTM_DELADDR, _RTM_DELNSID = 20, 21, 89
_IFA_ADDRESS, _IFA_LOCAL, _NETNSA_NSID = 1, 2, 1
_BUFFER_BYTES = 64 << 20
_STEP_SECONDS = 0.002  # how closely the time of an event is known from below


class Watcher:
    """`with Watcher(host) as watcher`: sights of (sandbox id, address), from the moment on that it was made."""

    def __init__(self, host: View) -> None:
        with host.entered():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.setsockopt(_SOL_NETLINK, _LISTEN_ALL_NSID, 1)
        self._socket.bind((0, _GROUPS))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._empty = time.monotonic()  # when there was certainly nothing to read
        self._present: dict[int, set[str]] = {}
        self.sights: list[Sight] = []

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def watch(self, seconds: float) -> None:
        """Take in what happens for `seconds`; OSError (ENOBUFS) when it was too much to keep."""
        deadline = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if not self._poll.poll(0):
                self._empty = now
                if now > deadline:
                    return
                self._poll.poll(1000 * _STEP_SECONDS)
                continue
            self._take()

    def _take(self) -> None:
        data, ancillary, _, _ = self._socket.recvmsg(1 << 18, 64)
        seen = time.monotonic()
        sandbox = -1
        for level, kind, content in ancillary:
            if (level, kind) == (_SOL_NETLINK, _LISTEN_ALL_NSID):
                (sandbox,) = struct.unpack_from("i", content)
        for kind, body in _messages(data):
            if kind == _RTM_DELNSID and sandbox < 0:  # a sandbox has ids of its own for others
                (gone,) = struct.unpack("i", dict(attributes_of(body[4:]))[_NETNSA_NSID])
                for address in sorted(self._present.pop(gone, ())):
                    self._note(gone, address, False, seen)
            elif kind in (_RTM_NEWADDR, _RTM_DELADDR) and sandbox >= 0:
                attributes = dict(attributes_of(body[8:]))
                text = str(ipaddress.ip_address(attributes.get(_IFA_LOCAL) or attributes[_IFA_ADDRESS]))
                if text.startswith(("fe80:", "127.")) or text == "::1":
                    continue
                there = self._present.setdefault(sandbox, set())
                present = kind == _RTM_NEWADDR
                if present != (text in there):
                    (there.add if present else there.discard)(text)
                    self._note(sandbox, text, present, seen)

    def _note(self, sandbox: int, address: str, present: bool, seen: float) -> None:
        self.sights.append(Sight(str(sandbox), address, present, self._empty, seen))


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("IH", data, at)
        yield kind, data[at + 16 : at + length]
        at += length + 3 & ~3
