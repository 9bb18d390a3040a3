"""The key `rail` of a network: which rail of a group of NICs it is, one subnet each, and what follows from that.

Read by the link plugins, for the routing of a rail, and by the IPAM plugin, for its address: pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.config import Fault, Key, boolean, fill, integer, list_of, mapping, one_of, string
from cni.shared.spec.request import is_identifier, member

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PLAIN, SAME_INDEX = "plain", "same-index"
MOST_RAILS = 32
TABLE_BASE = 7000


def group(value: Any) -> str:
    """The name of a group, which stands in the names of records."""
    if not is_identifier(string(value)) or len(value) > 63:
        raise ValueError('want at most 63 letters, digits, ".", "_" and "-", such as gpu')
    return str(value)


def ranges(value: Any) -> list[dict[str, Any]]:
    """The ranges of one rail: a string or an object as in `ipam.ipRanges`, or a list of these."""
    found = value if isinstance(value, list) else [value]
    if not found or len(found) > MOST_RAILS:
        raise ValueError("has a rail without a range, or with too many")
    return [{"range": part} if isinstance(part, str) else mapping(part) for part in found]


KEYS: Sequence[Key] = (
    Key("index", integer(0, MOST_RAILS - 1), None, "which rail of its group the network is, from 0"),
    Key("group", group, "", "the name of the group; a pod has each rail of a group at most once"),
    Key(
        "routing",
        boolean,
        True,
        "give the interface a routing table of its own, a rule for each of its addresses that leads there, and ARP settings"
        " that let no other interface answer for it",
    ),
    Key(
        "tableBase",
        integer(256, 1 << 30),
        TABLE_BASE,
        "the number of rail 0's routing table; rail r has this number plus r",
        "table_base",
    ),
    Key(
        "addressing",
        one_of(PLAIN, SAME_INDEX),
        PLAIN,
        "plain: the rails' addresses are independent; same-index: a pod has the same host number on every rail, which"
        " needs railcni's IPAM plugin whereabouts, and `ranges`",
    ),
    Key(
        "ranges",
        list_of(ranges, MOST_RAILS),
        (),
        "with same-index: the ranges of all rails, that of rail 0 first, the same list in each network of the group; a member"
        " is a CIDR, an object as in ipam.ipRanges, or a list of these for several addresses",
    ),
)


class Rail:
    """The keys of KEYS, checked."""

    index: int
    group: str
    routing: bool
    table_base: int
    addressing: str
    ranges: Sequence[list[dict[str, Any]]]

    @property
    def table(self) -> int:
        """The number of the rail's routing table."""
        return self.table_base + self.index

    @property
    def is_same_index(self) -> bool:
        """Whether a pod is to have the same host number on all rails of the group."""
        return self.addressing == SAME_INDEX


def read(config: dict[str, Any], faults: list[Fault]) -> Rail | None:
    """The key `rail` of the network `config`, checked; None when the key is absent, or has faults."""
    document = member(config, "rail")
    if document is None:
        return None
    before = len(faults)
    if not isinstance(document, dict):
        faults.append(Fault("rail", document, 'want an object such as {"index": 0, "group": "gpu"}'))
        return None
    rail = Rail()
    fill(rail, KEYS, document, faults, "rail.")
    if member(document, "index") is None:
        faults.append(Fault("rail.index", None, "want the number of the rail, from 0"))
    if member(document, "group") is None:
        faults.append(Fault("rail.group", None, "want the name that all rails of the group have in common"))
    if len(faults) > before:
        return None
    if rail.is_same_index and rail.index >= len(rail.ranges):
        wanted = f"has {len(rail.ranges)} members: want the ranges of all rails, and this one is rail {rail.index}"
        faults.append(Fault("rail.ranges", document.get("ranges"), wanted))
        return None
    return rail


def asks_for_same_index(config: dict[str, Any]) -> bool:
    """Whether the network `config`, which may be faulty, has another `addressing` than its default: an index for all rails."""
    document = member(config, "rail")
    return isinstance(document, dict) and member(document, "addressing") not in (None, PLAIN)


def group_of(config: dict[str, Any]) -> str:
    """The name of the network's group; "" when the key is absent or faulty."""
    document = member(config, "rail")
    try:
        return group(member(document, "group") if isinstance(document, dict) else None)
    except ValueError:
        return ""
