"""A router on a wire that advertises a prefix (RFC 4861, 4.2 and 4.6.2), for as long as it is not closed."""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import threading

from tests.view import View

PREFIXES = ("2001:db8:5::", "2001:db8:6::")  # of the first and the second card
_SOLICITATION, _ADVERTISEMENT = 133, 134
_ALL_NODES = "ff02::1"
_LIFETIME = 86400
_PERIOD_SECONDS = 0.5


class Router:
    """Advertises `prefix` on the link `peer` of `wire`. `kind`: "prefix", "default" (it is a default router too), or "prefix once",
    which advertises when it begins and never again."""

    def __init__(self, wire: View, kind: str, prefix: str) -> None:
        self._kind, self.prefix = kind, prefix
        with wire.entered():
            self._index = socket.if_nametoindex("peer")
            self._socket = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index)
        group = ipaddress.ip_address("ff02::2").packed + struct.pack("@I", self._index)
        self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
        self._wake, self._woken = socket.socketpair()
        self.advertise()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        if kind != "prefix once":
            self._thread.start()

    def advertise(self) -> None:
        lifetime = 1800 if self._kind == "default" else 0
        head = struct.pack("!BBHBBHII", _ADVERTISEMENT, 0, 0, 64, 0, lifetime, 0, 0)
        flags = 0xC0  # on-link, autonomous
        prefix = struct.pack("!BBBBIII", 3, 4, 64, flags, _LIFETIME, _LIFETIME // 2, 0)
        try:
            self._socket.sendto(
                head + prefix + ipaddress.ip_address(self.prefix).packed, (_ALL_NODES, 0, 0, self._index)
            )
        except OSError:  # the other end is down
            pass

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._socket, self._woken], [], [], _PERIOD_SECONDS)
            if self._woken in ready:
                return
            if not ready or self._socket.recv(2048)[0] == _SOLICITATION:
                self.advertise()

    def close(self) -> None:
        self._wake.send(b"x")
        if self._thread.ident:
            self._thread.join()
        for each in (self._socket, self._wake, self._woken):
            each.close()
