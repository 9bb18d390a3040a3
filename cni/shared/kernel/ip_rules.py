"""Rules that choose a routing table by the source address: read, added, removed.

Sources: rtnetlink(7), ip-rule(8), include/uapi/linux/fib_rules.h. A rule belongs to a network namespace, not to a link: it
stays when the link goes. KernelError for every refusal, ValueError for a text that is no address.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, AF_UNSPEC, inet_ntop
from _struct import Struct
from errno import EAFNOSUPPORT, EOPNOTSUPP

from cni.shared.kernel.netlink import (
    CREATE,
    EXCLUSIVE,
    KernelError,
    Socket,
    address_of,
    attribute,
    number,
    number_of,
    unpack_attributes,
)

_NEWRULE, _DELRULE, _GETRULE = 32, 33, 34
_HEADER = Struct(
    "=BBBBBBBBI"
)  # struct fib_rule_hdr: family, two prefix lengths, tos, table, two reserved, action, flags
_SOURCE, _PRIORITY, _TABLE = 2, 6, 15
_TO_TABLE = 1  # the action FR_ACT_TO_TBL


class Rule:
    """`source` is "address/length" or "" for any; `table` and `priority` are numbers, of which the lowest comes first.

    `leads` when the rule's action is to look into the table: 0 then stands for the table of the packet's VRF.
    """

    def __init__(self, body: bytes) -> None:
        family, _, length, _, table, _, _, action, _ = _HEADER.unpack_from(body)
        self.leads = action == _TO_TABLE
        found = dict(unpack_attributes(body, _HEADER.size))
        self.table = number_of(found[_TABLE]) if _TABLE in found else table
        self.priority = number_of(found.get(_PRIORITY, b""))
        self.source = f"{inet_ntop(family, found[_SOURCE])}/{length}" if _SOURCE in found else ""


def list_of(rtnl: Socket) -> list[Rule]:
    """The rules of the namespace, IPv4 first; those of a family that the kernel does not have are none."""
    try:
        bodies = rtnl.dump(_GETRULE, _packed(AF_UNSPEC, 0))
    except KernelError as fault:
        if fault.errno not in (EAFNOSUPPORT, EOPNOTSUPP):
            raise
        return []
    return [Rule(body) for family in (AF_INET, AF_INET6) for body in bodies if body[0] == family]


def tables(rtnl: Socket) -> set[int]:
    """The tables that rules lead to; 0 stands for those of all VRFs (FRA_L3MDEV, net/core/fib_rules.c)."""
    return {rule.table for rule in list_of(rtnl) if rule.leads}


def add(rtnl: Socket, source: str, table: int, priority: int) -> None:
    """Look up packets from the address `source` in `table`; EEXIST when this very rule is there."""
    rtnl.request(_NEWRULE, _body(source, table, priority), CREATE | EXCLUSIVE)


def remove(rtnl: Socket, source: str, table: int, priority: int) -> None:
    """Remove that rule; ENOENT when it is not there."""
    rtnl.request(_DELRULE, _body(source, table, priority))


def _body(source: str, table: int, priority: int) -> bytes:
    text, _, length = source.partition("/")
    family, octets = address_of(text)
    body = _packed(family, int(length or 8 * len(octets)))
    return body + attribute(_SOURCE, octets) + number(_PRIORITY, priority) + number(_TABLE, table)


def _packed(family: int, length: int) -> bytes:
    return _HEADER.pack(family, 0, length, 0, 0, 0, 0, _TO_TABLE if length else 0, 0)
