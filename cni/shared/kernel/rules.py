"""Read and change the routing policy rules, which choose a table by the source address.

Sources: ip-rule(8), include/uapi/linux/fib_rules.h. The functions raise KernelError when the kernel refuses a request, and
ValueError for a text that is no address.
"""

from __future__ import annotations

from errno import EAFNOSUPPORT, EOPNOTSUPP
from socket import AF_INET, AF_INET6, AF_UNSPEC, inet_ntop
from struct import Struct

from cni.shared.kernel import netlink

_NEWRULE, _DELRULE, _GETRULE = 32, 33, 34
_RULE = Struct("=BBBBBBBBI")  # struct fib_rule_hdr: family, two prefix lengths, tos, table, two reserved, action, flags
_SOURCE, _IIF, _PRIORITY, _MARK, _SUPPRESSED, _TABLE, _OIF, _VRF = 2, 3, 6, 10, 14, 15, 17, 19
_UIDS, _PROTOCOL, _SOURCE_PORTS, _PORTS = 20, 22, 23, 24
_SELECTORS = (_OIF, _VRF, _UIDS, _PROTOCOL, _SOURCE_PORTS, _PORTS)  # beside addresses, TOS, input link and mark
_TO_TABLE = 1  # the action FR_ACT_TO_TBL
_INVERTED = 0x2  # the flag FIB_RULE_INVERT
_NONE = 0xFFFFFFFF


class Rule:
    """A routing policy rule. A rule belongs to the namespace, so it outlives the removal of a link. `source` is
    "address/length", or "" for any address. The rule with the lowest `priority` comes first.

    `is_unconditional` is true if the rule applies to all the node's packets without source address and mark, such as
    the rule `from all`. `suppresses_defaults` is true if the rule ignores the default routes in `table`.
    """

    def __init__(self, body: bytes) -> None:
        family, target, length, tos, table, _, _, action, flags = _RULE.unpack_from(body)
        found = netlink.unpack_attributes(body, _RULE.size)
        self.is_ipv6 = family == AF_INET6
        self.table = netlink.number_of(found[_TABLE]) if _TABLE in found else table
        self.priority = netlink.number_of(found.get(_PRIORITY, b""))
        selects = bool(target or length or tos or netlink.number_of(found.get(_MARK, b"")) or found.keys() & _SELECTORS)
        selects = selects or found.get(_IIF, b"lo\0") != b"lo\0"
        self.is_unconditional = action == _TO_TABLE and selects is bool(flags & _INVERTED)
        self.suppresses_defaults = _SUPPRESSED in found and netlink.number_of(found[_SUPPRESSED]) != _NONE
        self.source = f"{inet_ntop(family, found[_SOURCE])}/{length}" if _SOURCE in found else ""


def list_of(rtnl: netlink.Socket) -> list[Rule]:
    """The rules of the namespace, IPv4 first; [] when the kernel has no rules."""
    bodies = rtnl.dump_if_known(_GETRULE, _rule_header(AF_UNSPEC, 0), EAFNOSUPPORT, EOPNOTSUPP)
    return [Rule(body) for family in (AF_INET, AF_INET6) for body in bodies if body[0] == family]


def unconditional(rtnl: netlink.Socket) -> tuple[list[Rule], list[Rule]]:
    """The IPv4 rules and the IPv6 rules for which `Rule.is_unconditional` is true, both in order of priority."""
    found = [rule for rule in list_of(rtnl) if rule.is_unconditional]
    found.sort(key=lambda rule: rule.priority)
    return [rule for rule in found if not rule.is_ipv6], [rule for rule in found if rule.is_ipv6]


def add(rtnl: netlink.Socket, source: str, table: int, priority: int) -> None:
    """Add a rule that routes packets from the address `source` by `table`. Raises KernelError EEXIST if it exists."""
    rtnl.request(_NEWRULE, _rule_body(source, table, priority), netlink.CREATE | netlink.EXCLUSIVE)


def remove(rtnl: netlink.Socket, source: str, table: int, priority: int) -> None:
    """Remove the rule that `add` made with the same arguments. Raises KernelError ENOENT when there is no such rule."""
    rtnl.request(_DELRULE, _rule_body(source, table, priority))


def _rule_body(source: str, table: int, priority: int) -> bytes:
    text, _, length = source.partition("/")
    family, octets = netlink.address_of(text)
    body = _rule_header(family, int(length or 8 * len(octets)))
    return body + netlink.attribute(_SOURCE, octets) + netlink.numbers({_PRIORITY: priority, _TABLE: table})


def _rule_header(family: int, length: int) -> bytes:
    return _RULE.pack(family, 0, length, 0, 0, 0, 0, _TO_TABLE if length else 0, 0)
