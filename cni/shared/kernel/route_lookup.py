"""The link that the kernel chooses for an answer, by its rules and routing tables. Source: rtnetlink(7).

A strict reverse path filter (rp_filter 1, ip-sysctl.rst) drops packets, ARP requests too, that arrive by another link than
the one by which the answer would leave (fib_validate_source in net/ipv4/fib_frontend.c).
"""

from __future__ import annotations

from _socket import AF_INET, inet_pton
from errno import EACCES, EHOSTUNREACH, EINVAL, ENETUNREACH

from cni.shared.kernel.netlink import KernelError, Socket, attribute, number_of, unpack_attributes
from cni.shared.kernel.routes import RTMSG

_GETROUTE = 26
_DST, _SRC, _OIF = 1, 2, 4
LOOPBACK = 1  # the index of lo, in each namespace (LOOPBACK_IFINDEX)
_NO_ROUTE = (ENETUNREACH, EHOSTUNREACH, EACCES, EINVAL)  # the last two: by a route of type prohibit or blackhole


def link_towards(rtnl: Socket, peer: str, own: str) -> int:
    """The index of the link by which packets leave from the IPv4 address `own` of this namespace to `peer`.

    0 without a route; LOOPBACK when `peer` is an address of this namespace too. KernelError for every other refusal,
    OSError for a text that is no address.
    """
    body = RTMSG.pack(AF_INET, 32, 32, 0, 0, 0, 0, 0, 0)
    body += attribute(_DST, inet_pton(AF_INET, peer)) + attribute(_SRC, inet_pton(AF_INET, own))
    try:
        (reply, *_) = rtnl.request(_GETROUTE, body)
    except KernelError as fault:
        if fault.errno in _NO_ROUTE:
            return 0
        raise
    return number_of(dict(unpack_attributes(reply, RTMSG.size)).get(_OIF, b""))
