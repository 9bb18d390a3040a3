"""Echo requests over IPv4 (RFC 792), sent from the calling thread's network namespace; needs CAP_NET_RAW there."""

from __future__ import annotations

import os
import socket
import struct
import time

_ECHO_REPLY, _ECHO_REQUEST = 0, 8
_HEADER = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence
_IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 10, 2  # include/uapi/linux/in.h: set DF, and refuse what is longer than the MTU


def ping(address: str, payload: int, sequence: int, seconds: float = 10.0) -> float:
    """The round-trip time, in seconds, of an echo with `payload` bytes that no hop may fragment.

    OSError: EMSGSIZE when it is longer than the MTU, TimeoutError when no reply came, else why it cannot be sent.
    """
    identifier = os.getpid() & 0xFFFF
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as link:
        link.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        body = bytes(i & 0xFF for i in range(payload))
        start = time.perf_counter()
        link.sendto(_packet(_ECHO_REQUEST, identifier, sequence, body), (address, 0))
        deadline = start + seconds
        while (left := deadline - time.perf_counter()) > 0:
            link.settimeout(left)
            packet, sender = link.recvfrom(1 << 16)
            message = packet[(packet[0] & 0x0F) * 4 :]
            answer = (_ECHO_REPLY, identifier, sequence)
            kind, _, _, *numbers = _HEADER.unpack_from(message)
            if sender[0] == address and (kind, *numbers) == answer and message[_HEADER.size :] == body:
                return time.perf_counter() - start
        raise TimeoutError(f"no answer from {address} within {seconds:g} s")


def _packet(kind: int, identifier: int, sequence: int, body: bytes) -> bytes:
    bare = _HEADER.pack(kind, 0, 0, identifier, sequence) + body
    return _HEADER.pack(kind, 0, checksum(bare), identifier, sequence) + body


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of `data`."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
