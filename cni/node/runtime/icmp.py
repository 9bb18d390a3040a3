"""ICMP echo over IPv4 (RFC 792) and IPv6 (RFC 4443) from the thread's network namespace. It needs CAP_NET_RAW."""

from __future__ import annotations

import os
import socket
import struct
import time

_ECHO_REPLY, _ECHO_REQUEST = 0, 8
_HEADER = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence
_ECHO_REPLY_6, _ECHO_REQUEST_6 = 129, 128
_IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 10, 2  # include/uapi/linux/in.h: set DF, and refuse packets longer than the MTU
_IPV6_MTU_DISCOVER = 23  # include/uapi/linux/in6.h


def ping(address: str, payload: int, sequence: int, seconds: float = 10.0, source: str = "") -> float:
    """The round-trip time in seconds of an unfragmented echo with `payload` bytes, from the address `source` if given.
    Raises OSError: EMSGSIZE if the packet exceeds the MTU, TimeoutError without a reply in `seconds`."""
    identifier = os.getpid() & 0xFFFF
    is_v6 = ":" in address
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if is_v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
    with socket.socket(family, socket.SOCK_RAW, protocol) as link:
        discover = (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER) if is_v6 else (socket.IPPROTO_IP, _IP_MTU_DISCOVER)
        link.setsockopt(*discover, _IP_PMTUDISC_DO)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        if source:
            link.bind((source, 0))
        body = bytes(i & 0xFF for i in range(payload))
        start = time.perf_counter()
        kind, reply = (_ECHO_REQUEST_6, _ECHO_REPLY_6) if is_v6 else (_ECHO_REQUEST, _ECHO_REPLY)
        total = checksum(_HEADER.pack(kind, 0, 0, identifier, sequence) + body)
        link.sendto(_HEADER.pack(kind, 0, total, identifier, sequence) + body, (address, 0))
        while (left := start + seconds - time.perf_counter()) > 0:
            link.settimeout(left)
            packet, sender = link.recvfrom(1 << 16)
            message = packet if is_v6 else packet[(packet[0] & 0x0F) * 4 :]  # raw IPv6 sockets give no IP header
            kind, _, _, *numbers = _HEADER.unpack_from(message)
            if (
                sender[0] == address
                and [kind, *numbers] == [reply, identifier, sequence]
                and message[_HEADER.size :] == body
            ):
                return time.perf_counter() - start
        raise TimeoutError(f"no answer from {address} within {seconds:g} s")


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of `data`."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
