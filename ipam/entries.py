"""Read the parts of an IPAM configuration that are objects: ranges, static addresses, routes.

Each function adds a fault to `faults` for each invalid object, and returns the valid objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.config import Fault, fill, misspelt
from cni.shared.spec.result import IPConfig, Route
from ipam.keys import ADDRESS_KEYS, RANGE_KEYS, ROUTE_KEYS
from ipam.ranges import Range, format_address, host_of, parse_address, parse_range, parse_span, unassignable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, TypeVar

    from cni.shared.config import Key

    T = TypeVar("T")
    Where = Callable[[str], str]  # gives the name of a key in a fault (ipam.source.Source.where)


class RangeEntry:
    """The keys of one range as they are written; "" for an absent key."""

    range: str
    range_start: str
    range_end: str
    exclude: Sequence[str]


def attempt(read: Callable[[str], T], text: str, key: str, faults: list[Fault]) -> T | None:
    """Return `read(text)`. When it raises ValueError, add a fault under the name `key`, and return None."""
    try:
        return read(text)
    except ValueError as fault:
        faults.append(Fault(key, text, str(fault)))
        return None


def read_own_range(
    own: RangeEntry, where: Where, kept_back: Sequence[tuple[int, int]], notes: list[str], faults: list[Fault]
) -> list[Range]:
    """[the block's own range], without the addresses in `kept_back`; [] if the block has none."""
    if own.range:
        rng = _range(own, where, kept_back, notes, faults)
        return [rng] if rng else []
    for name in ("range_start", "range_end", "exclude"):
        if getattr(own, name):
            notes.append(f"{where(name)} has no effect: it needs {where('range')} beside it")
    return []


def read_ranges(
    documents: Iterable[Mapping[str, Any]],
    name: str,
    kept_back: Sequence[tuple[int, int]],
    notes: list[str],
    faults: list[Fault],
) -> list[Range]:
    """The ranges of `documents`, the members of the list `name`, without the addresses in `kept_back`."""
    entries = _filled(documents, name, RangeEntry, RANGE_KEYS, notes, faults)
    ranges = [_range(entry, prefix.__add__, kept_back, notes, faults) for prefix, entry in entries]
    return [r for r in ranges if r]


def _filled(
    documents: Iterable[Mapping[str, Any]],
    name: str,
    make: Callable[[], T],
    table: Sequence[Key],
    notes: list[str],
    faults: list[Fault],
) -> Iterator[tuple[str, T]]:
    """Yield (prefix such as "ipRanges[1].", object) for each of `documents` without a fault.

    `documents` are the members of the list `name`. `make` makes an object, which gets the values of the keys in
    `table`. Misspelt keys are added to `notes`.
    """
    for i, document in enumerate(documents):
        prefix, entry, before = f"{name}[{i}].", make(), len(faults)
        fill(entry, table, document, faults, prefix)
        notes += misspelt(document, [key.name for key in table], prefix)
        if len(faults) == before:
            yield prefix, entry


def _range(
    entry: RangeEntry, where: Where, kept_back: Sequence[tuple[int, int]], notes: list[str], faults: list[Fault]
) -> Range | None:
    before = len(faults)
    parsed = attempt(parse_range, entry.range, where("range"), faults)
    start = attempt(parse_address, entry.range_start, where("range_start"), faults) if entry.range_start else None
    end = attempt(parse_address, entry.range_end, where("range_end"), faults) if entry.range_end else None
    holes = [attempt(parse_span, text, where(f"exclude[{i}]"), faults) for i, text in enumerate(entry.exclude)]
    if parsed is None or len(faults) > before:
        return None
    family, value, prefix, span = parsed
    whole = Range(family, value, prefix)
    first, last = span or _bounds(entry, start, end, whole, where, faults)
    if span and (start or end):
        notes.append(f"{where('range_start')} and range_end have no effect: {entry.range} names both ends")
    blocked = [(value, value) for kept_family, value in kept_back if kept_family == family]
    for i, hole in enumerate(holes):
        if hole and hole[0] == family and hole[1] <= whole.top and hole[2] >= whole.network:
            blocked.append(hole[1:])
        else:
            notes.append(f"{where(f'exclude[{i}]')} has no effect: {entry.exclude[i]} is outside of {whole}")
    if len(faults) > before:
        return None
    rng = Range(family, value, prefix, first, last, blocked)
    if not rng.size():
        faults.append(Fault(where("range"), entry.range, _why_empty(rng)))
    elif kind := unassignable(family, rng.first):
        given = format_address(family, rng.first)
        faults.append(Fault(where("range"), entry.range, f"gives {given}, which is {kind}: want addresses of a subnet"))
    return rng


def _bounds(
    entry: RangeEntry,
    start: tuple[int, int] | None,
    end: tuple[int, int] | None,
    whole: Range,
    where: Where,
    faults: list[Fault],
) -> tuple[int | None, int | None]:
    """(first address, last address), None for an absent key. Bounds outside of the range or out of order are faults."""
    for name, bound in (("range_start", start), ("range_end", end)):
        if bound and not (bound[0] == whole.family and whole.contains(bound[1])):
            faults.append(Fault(where(name), getattr(entry, name), f"want an address of the range {whole}"))
    if start and end and start[0] == end[0] and start[1] > end[1]:
        wanted = f"is below range_start {entry.range_start}: want it at or above"
        faults.append(Fault(where("range_end"), entry.range_end, wanted))
    return start[1] if start else None, end[1] if end else None


def _why_empty(rng: Range) -> str:
    if rng.first > rng.last:
        return "range_start and range_end leave only the CIDR's first or last address, which are not given: want more"
    first, last = format_address(rng.family, rng.first), format_address(rng.family, rng.last)
    return f"has no address to give: exclude, gateway and addresses cover all from {first} to {last}"


def read_addresses(
    documents: Iterable[Mapping[str, Any]], where: Where, notes: list[str], faults: list[Fault]
) -> list[IPConfig]:
    addresses: list[IPConfig] = []
    for prefix, address in _filled(documents, where("addresses"), lambda: IPConfig(""), ADDRESS_KEYS, notes, faults):
        if not address.address:
            faults.append(Fault(prefix + "address", None, "want address/length, such as 192.168.2.7/24"))
        elif any(address.address.split("/")[0] == a.address.split("/")[0] for a in addresses):
            faults.append(Fault(prefix + "address", address.address, "is there twice: want each address once"))
        elif kind := unassignable(*host_of(address.address)):
            faults.append(Fault(prefix + "address", address.address, f"is {kind}: want an address of a subnet"))
        elif address.gateway and (":" in address.gateway) != (address.family == 6):
            wanted = f"want an IPv{address.family} address, as its address is"
            faults.append(Fault(prefix + "gateway", address.gateway, wanted))
        else:
            addresses.append(address)
    return addresses


def read_routes(
    documents: Iterable[Mapping[str, Any]], where: Where, notes: list[str], faults: list[Fault]
) -> list[Route]:
    """The valid routes of `documents`; an mtu, advmss or priority of 0 counts as absent, as in the spec."""
    routes: list[Route] = []
    for prefix, route in _filled(documents, where("routes"), lambda: Route(""), ROUTE_KEYS, notes, faults):
        route.mtu, route.advmss, route.priority = route.mtu or None, route.advmss or None, route.priority or None
        if not route.dst:
            faults.append(Fault(prefix + "dst", None, "want a CIDR; 0.0.0.0/0 or ::/0 for the default route"))
        elif route.gw and (":" in route.gw) != (route.family == 6):
            faults.append(Fault(prefix + "gw", route.gw, f"want an IPv{route.family} address, as dst is"))
        else:
            routes.append(route)
    return routes
