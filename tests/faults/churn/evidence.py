"""What of a history concerns a fault: in the order of time, for people."""

import re
from collections.abc import Iterable, Sequence

from tests.faults.churn.events import Dissolved, Event, Heard, Operation, Rest, Sight

_MARGIN_SECONDS = 10.0  # before the first time that the fault tells, and after the last


def concerning(fault: str, events: Sequence[Event]) -> list[str]:
    """The events of the addresses and containers that `fault` names, a line each, around the times that it names."""
    words = {word.strip(".,:;()[]'") for word in fault.split()}
    times = [float(text) for text in re.findall(r"\b\d+\.\d{4}\b", fault)]
    first, last = min(times, default=0.0) - _MARGIN_SECONDS, max(times, default=float("inf")) + _MARGIN_SECONDS
    near = [e for e in events if first <= _end(e) and _begin(e) <= last]
    containers = {c for e in near if isinstance(e, Operation | Sight) for c in [e.container] if c in words}
    addresses = {a for e in near for a in _addresses(e) if a in words}
    containers |= {e.container for e in near if isinstance(e, Operation | Sight) and addresses & {*_addresses(e)}}
    owners = {e.owner for e in near if isinstance(e, Operation) and e.container in containers}
    networks = {e.network for e in near if isinstance(e, Operation) and e.container in containers}
    chosen = [e for e in near if _concerns(e, containers, owners, networks, addresses)]
    return [f"{_begin(e):.4f} to {_end(e):.4f}  {_told(e, containers)}" for e in sorted(chosen, key=_begin)]


def _concerns(event: Event, containers: set[str], owners: set[str], networks: set[str], addresses: set[str]) -> bool:
    if isinstance(event, Rest):
        return True
    if isinstance(event, Operation) and event.verb == "GC":
        return event.network in networks
    if isinstance(event, Operation) and event.owner in owners:
        return True
    return event.container in containers or not addresses.isdisjoint(_addresses(event))


def _addresses(event: Event) -> Iterable[str]:
    if isinstance(event, Operation):
        return event.addresses
    return (event.address,) if isinstance(event, Sight | Heard) else ()


def _begin(event: Event) -> float:
    if isinstance(event, Dissolved):
        return event.at
    return event.after if isinstance(event, Sight | Heard) else event.began


def _end(event: Event) -> float:
    if isinstance(event, Dissolved):
        return event.at
    return event.seen if isinstance(event, Sight | Heard) else event.ended


def _told(event: Event, containers: set[str]) -> str:
    if isinstance(event, Heard):
        return f"kernel: {event.message} {event.address} of {event.container}, link {event.link}"
    if isinstance(event, Sight):
        return f"{event.address} {'came to' if event.present else 'went from'} {event.container}"
    if isinstance(event, Dissolved):
        return f"{event.container} given up"
    if isinstance(event, Rest):
        stood = {c: (event.leases.get(c), event.records.get(c), event.links.get(c)) for c in sorted(containers)}
        return f"at rest, leases, records, links: {stood}"
    spared = f" sparing {sorted(containers.intersection(event.spared))}" if event.verb == "GC" else ""
    what = f"{event.verb} {event.container or event.network}{spared} of {event.owner or 'all'}: {event.outcome}"
    return f"{what} {event.code or ''} {' '.join(event.addresses)}".rstrip()
