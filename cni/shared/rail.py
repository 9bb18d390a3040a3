"""The key `rail` of a network configuration. A rail is a NIC with a subnet. The rails of a group are numbered. The link
plugins use the key for routing, the IPAM plugin for addresses. The module does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from cni.shared.config import PLAIN, Fault, boolean, declare, fill, integer, keys_of, list_of, mapping, one_of, string
from cni.shared.spec.request import is_identifier, member

SAME_INDEX = "same-index"
MOST_RAILS = 32
TABLE_BASE = 7000


def group(value: Any) -> str:
    """Check the name of a rail group, and return it. It must be valid as a part of the file names of records."""
    if not is_identifier(string(value)) or len(value) > 63:
        raise ValueError('want at most 63 letters, digits, ".", "_" and "-", such as gpu')
    return str(value)


def ranges(value: Any) -> list[dict[str, Any]]:
    """Check the ranges of a rail: a CIDR, an object as in `ipam.ipRanges`, or a list of these. Returns a list of objects."""
    found = value if isinstance(value, list) else [value]
    if not found or len(found) > MOST_RAILS:
        raise ValueError("has a rail without a range, or with too many")
    return [{"range": part} if isinstance(part, str) else mapping(part) for part in found]


class Rail:
    """The checked values of the key `rail`: an attribute for each key in it."""

    index: int = declare(integer(0, MOST_RAILS - 1), None).means(
        "the number of the network's rail in its group, from 0; not needed with `nics`, by which the device decides"
    )
    group: str = declare(group, "").means("the name of the group; a pod has each rail of a group at most once")
    routing: bool = declare(boolean, True).means(
        "give the interface a routing table of its own, a rule for each of its addresses that leads there, and ARP settings"
        " that let no other interface answer for it"
    )
    table_base: int = declare(integer(256, 1 << 30), TABLE_BASE, "tableBase").means(
        "the number of rail 0's routing table; rail r has this number plus r"
    )
    addressing: str = declare(one_of(PLAIN, SAME_INDEX), PLAIN).means(
        "plain: the rails' addresses are independent; same-index: a pod has the same index on every rail, which"
        " needs railcni's IPAM plugin whereabouts, and `ranges`"
    )
    ranges: Sequence[list[dict[str, Any]]] = declare(list_of(ranges, MOST_RAILS), ()).means(
        "with same-index: the ranges of all rails, that of rail 0 first; the same list in each network of the group. A member"
        " is a CIDR, an object as in ipam.ipRanges, or a list of these for several addresses. An object may also have the"
        " `gateway` of its rail, which no pod gets. A network without ipam.range and ipRanges uses its rail's member"
    )
    nics: Sequence[str] = declare(list_of(string, MOST_RAILS), ()).means(
        "with same-index, for one network that is all rails of its group: the netdev or PCI address of each rail's NIC, that of"
        " rail 0 first. The place of the allocated device (`deviceID`) in this list, or of its PF, is the rail"
    )

    @property
    def table(self) -> int:
        return self.table_base + self.index

    @property
    def is_same_index(self) -> bool:
        """Whether a pod's address has the same index in the range of each rail of the group."""
        return self.addressing == SAME_INDEX


KEYS = keys_of(Rail)


def read(config: dict[str, Any], faults: list[Fault]) -> Rail | None:
    """The checked key `rail` of the network `config`; None when it is absent or wrong. Appends faults to `faults`."""
    document = member(config, "rail")
    if document is None:
        return None
    if not isinstance(document, dict):
        faults.append(Fault("rail", document, 'want an object such as {"index": 0, "group": "gpu"}'))
        return None
    rail = Rail()
    wrong: list[Fault] = []
    fill(rail, KEYS, document, wrong, "rail.")
    if member(document, "index") is None:
        wanted = "want the number of the rail, from 0, or `nics` to find it by the device"
        wrong.append(Fault("rail.index", None, wanted))
    if member(document, "group") is None:
        wrong.append(Fault("rail.group", None, "want the name that all rails of the group have in common"))
    if not wrong and (contradiction := _contradiction(rail)):
        key, wanted = contradiction
        wrong.append(Fault(f"rail.{key}", document.get(key), wanted))
    faults += wrong
    return None if wrong else rail


def _contradiction(rail: Rail) -> tuple[str, str] | None:
    """Return (key, wanted value) for a key that contradicts another key; None without a contradiction."""
    if rail.is_same_index and rail.index >= len(rail.ranges):
        wanted = f"has {len(rail.ranges)} members: want the ranges of all rails, and this one is rail {rail.index}"
        return "ranges", wanted
    if rail.nics and not rail.is_same_index:
        return "nics", 'need "addressing": "same-index"; otherwise write a network for each rail, with `index`'
    if rail.nics and len(rail.nics) != len(rail.ranges):
        return "nics", f"are {len(rail.nics)}, and rail.ranges {len(rail.ranges)}: want one of each for every rail"
    if len({*rail.nics}) < len(rail.nics):
        return "nics", "have a NIC twice: want another one for each rail"
    return None


def of_names(nics: Sequence[Any], names: Collection[str]) -> int | None:
    """The number of the rail whose NIC is one of `names`; None when `nics` has none of these names."""
    return next((index for index, nic in enumerate(nics) if nic in names), None)


def completed(config: dict[str, Any], index: Any) -> dict[str, Any]:
    """The network `config` for the rail `index`, with the ranges and the gateway of this rail from rail.ranges. Each
    gateway is excluded from its range. A faulty `config` is returned unchanged, since `read` reports its faults."""
    document, block = member(config, "rail"), member(config, "ipam")
    written = member(document, "ranges")
    if not isinstance(written, list) or not isinstance(block, dict) or type(index) is not int:
        return config
    gateways: dict[int, Any] = {}
    try:
        rails = [[_without_gateway(part, i, gateways) for part in ranges(value)] for i, value in enumerate(written)]
    except ValueError:
        return config
    more: dict[str, Any] = {}
    if 0 <= index < len(rails) and member(block, "range") is None and member(block, "ipRanges") is None:
        more["ipRanges"] = rails[index]
    if index in gateways and member(block, "gateway") is None:
        more["gateway"] = gateways[index]
    changed = {**document, "index": index, **({"ranges": rails} if gateways else {})}
    own = {name: value for name, value in config.items() if name.lower() not in ("rail", "ipam")}
    return {**own, "rail": changed, "ipam": {**block, **more}}


def each(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The result of `completed` for rail.index or, if this key is absent, for each NIC in rail.nics."""
    document = member(config, "rail")
    if not isinstance(document, dict):
        return [config]
    index, nics = member(document, "index"), member(document, "nics")
    indexes = range(len(nics)) if index is None and isinstance(nics, list) else (index,)
    return [completed(config, one) for one in indexes]


def _without_gateway(part: dict[str, Any], index: int, gateways: dict[int, Any]) -> dict[str, Any]:
    gateway, given = member(part, "gateway"), member(part, "exclude") or []
    if gateway is None or not isinstance(given, list):
        return part
    gateways.setdefault(index, gateway)
    kept = {name: value for name, value in part.items() if name.lower() not in ("gateway", "exclude")}
    return {**kept, "exclude": [*given, gateway]}


def group_of(config: dict[str, Any]) -> str:
    """The name of the group in the key `rail` of `config`; "" when the name is absent or wrong."""
    try:
        return group(member(config, "rail", "group"))
    except ValueError:
        return ""
