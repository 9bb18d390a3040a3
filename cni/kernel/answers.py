"""By which link an answer leaves: the kernel's own choice, by its rules and routing tables. Source: rtnetlink(7).

A strict reverse path filter (rp_filter 1, ip-sysctl.rst) drops what comes in by another link than the one that an answer
would leave by (fib_validate_source in net/ipv4/fib_frontend.c), ARP requests too.
"""

from __future__ import annotations

from _socket import AF_INET, inet_pton
from _struct import Struct
from errno import EACCES, EHOSTUNREACH, EINVAL, ENETUNREACH

from cni.kernel.netlink import KernelError, Socket, attribute, number_of, unpack_attributes

_GETROUTE = 26
_RTMSG = Struct("=BBBBBBBBI")  # struct rtmsg: family, two prefix lengths, tos, table, protocol, scope, type, flags
_DST, _SRC, _OIF = 1, 2, 4
LOOPBACK = 1  # the index of lo, in each namespace (LOOPBACK_IFINDEX)
_NO_ROUTE = (ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL)  # the last two: by a route of type prohibit or blackhole


def link_towards(rtnl: Socket, peer: str, own: str) -> int:
    """The index of the link by which what the IPv4 address `own`, one of this namespace, sends to `peer` leaves; 0 when
    there is no route, LOOPBACK when `peer` is one of this namespace too. KernelError for every other refusal, OSError for a text that is no address."""
    body = _RTMSG.pack(AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    body += attribute(_DST, inet_pton(AF_INET, peer)) + attribute(_SRC, inet_pton(AF_INET, own))
    try:
        (reply, *_) = rtnl.request(_GETROUTE, body)
    except KernelError as fault:
        if fault.errno in _NO_ROUTE:
            return 0
        raise
    return number_of(dict(unpack_attributes(reply, _RTMSG.size)).get(_OIF, b""))
