"""Whether a history keeps what is promised. Pure: events in, what is wrong in words out.

1. On the wire: the kernel never said that an address is there while a link of another owner had it.
2. No two owners of one address at one time, from an ADD's answer to the first call that may end it, or while the link has it.
3. A DEL that was answered freed: no address is seen from its answer on, and at rest no lease, record or link is left.
4. An ADD that was answered gave what its pod had, on the wire at its answer; at rest leases, records and links say the same.
5. At rest nothing stands that no call can have made, and leases, records and links agree.

A sandbox that is given up counts as gone from then on; `lingering` counts the addresses given on before the kernel cleared it.
Calls of one attachment that overlap, were killed or refused leave it unsure: then only 1, 2 and 5 are asked for."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.faults.churn.events import DONE, Dissolved, Event, Operation, Rest, Sight

_PARTS = ("ipam", "link")
_NEVER = float("inf")


@dataclass(frozen=True)
class Interval:
    """`owner` had `address` at least from `start` to `end`, and `why` this is known."""

    address: str
    owner: str
    start: float
    end: float
    why: str


@dataclass(frozen=True)
class Presence:
    """A link had `address` at least from `start`, when its arrival had been seen, to `end`, when it was not yet gone, or
    when the sandbox was given up."""

    address: str
    start: float
    end: float


class History:
    """Events, sorted out for the questions that are asked of them."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.operations: list[Operation] = []
        self.sights: list[Sight] = []
        self.rests: list[Rest] = []
        self.dissolved: dict[str, float] = {}
        for event in events:
            if isinstance(event, Operation):
                self.operations.append(event)
            elif isinstance(event, Sight):
                self.sights.append(event)
            elif isinstance(event, Rest):
                self.rests.append(event)
            elif isinstance(event, Dissolved):
                self.dissolved[event.container] = event.at
        self.operations.sort(key=lambda o: o.began)
        self.owners = {o.container: o.owner for o in self.operations if o.container}
        self.networks = {o.container: o.network for o in self.operations if o.container}
        self.calls = self._calls()
        self.calls_of_owner: dict[str, list[Operation]] = defaultdict(list)
        for container, calls in self.calls.items():
            self.calls_of_owner[self.owners[container]] += calls
        self.sights_of: dict[str, list[Sight]] = defaultdict(list)
        for sight in self.sights:
            self.sights_of[sight.container].append(sight)
        self.presences_of = {container: self._presences(container) for container in self.sights_of}

    def _presences(self, container: str) -> list[Presence]:
        """What is certain of the addresses on the link of `container`. One that came and went between two looks of the
        watcher was there at no moment that is known, so it is none."""
        known: list[tuple[Sight, float]] = []
        since: dict[str, Sight] = {}
        for sight in self.sights_of[container]:
            if sight.present:
                since.setdefault(sight.address, sight)
            elif sight.address in since:
                known.append((since.pop(sight.address), sight.after))
        known += [(came, _NEVER) for came in since.values()]
        given_up = self.dissolved.get(container, _NEVER)
        presences = [Presence(came.address, came.seen, min(gone, given_up)) for came, gone in known]
        return [p for p in presences if p.start < p.end]

    def _calls(self) -> dict[str, list[Operation]]:
        """By container, the calls that may change its attachment: also an ADD of its pod's next sandbox."""
        calls: dict[str, list[Operation]] = {container: [] for container in self.owners}
        for container, owner in self.owners.items():
            for o in self.operations:
                successor = o.verb == "ADD" and o.owner == owner
                if successor or o.touches(container, self.networks[container]):
                    calls[container].append(o)
        return calls

    def stands(self, container: str, at: float) -> bool:
        """Whether the sandbox of `container` had not been given up by then."""
        return at < self.dissolved.get(container, _NEVER)

    def alone(self, operation: Operation) -> bool:
        """Whether no other call that may change the attachment ran at the same time."""
        others = (o for o in self.calls[operation.container] if o is not operation)
        return all(o.ended < operation.began or operation.ended < o.began for o in others)

    def next_call(self, operation: Operation) -> float:
        """When the next call that may change the attachment began, or one that ran at the same time: before that, it
        stands as `operation` left it."""
        later = (o.began for o in self.calls[operation.container] if o is not operation and o.ended > operation.began)
        return min(later, default=_NEVER)

    def former(self, operation: Operation) -> Operation | None:
        """The call before that may have changed what its owner has, through this container or an earlier one."""
        earlier = (o for o in self.calls_of_owner[operation.owner] if o.ended < operation.began)
        return max(earlier, key=lambda o: o.ended, default=None)


def check(events: Iterable[Event]) -> list[str]:
    """What is wrong with a history; [] when nothing is."""
    history = History(events)
    return [
        *_on_the_wire(history), *overlaps(intervals(history)), *_not_freed(history), *_not_given(history),
        *_at_rest(history),
    ]  # fmt: skip


def _on_the_wire(history: History) -> list[str]:
    faults = []
    holders: dict[str, dict[str, Sight]] = defaultdict(dict)
    for sight in history.sights:
        there = holders[sight.address]
        if not sight.present:
            there.pop(sight.container, None)
            continue
        owner = history.owners.get(sight.container)
        faults += [
            f"{sight.address} came to {sight.container} at {sight.seen:.4f} while {other} had it, since {since.seen:.4f}"
            for other, since in there.items()
            if history.owners.get(other) != owner and history.stands(other, sight.seen)
        ]
        there.setdefault(sight.container, sight)
    return faults


def intervals(history: History) -> list[Interval]:
    """What is known of who had which address: by answers, and by sights."""
    found = []
    for o in history.operations:
        if o.verb == "ADD" and o.outcome == DONE:
            why = f"the ADD of {o.container}, answered at {o.ended:.4f}"
            end = history.next_call(o)
            found += [Interval(a, o.owner, o.ended, end, why) for a in o.addresses if end > o.ended]
    for container, presences in history.presences_of.items():
        for p in presences:
            why = f"the link of {container}, seen from {p.start:.4f} to {p.end:.4f}"
            found.append(Interval(p.address, history.owners.get(container, container), p.start, p.end, why))
    return found


def lingering(history: History) -> int:
    """How many addresses came to an owner while the kernel had not yet cleared the former one's sandbox."""
    count = 0
    holders: dict[str, set[str]] = defaultdict(set)
    for sight in history.sights:
        there = holders[sight.address]
        if not sight.present:
            there.discard(sight.container)
            continue
        owner = history.owners.get(sight.container)
        count += any(history.owners.get(o) != owner and not history.stands(o, sight.after) for o in there)
        there.add(sight.container)
    return count


def overlaps(known: Iterable[Interval]) -> list[str]:
    """Where two owners had one address at one time."""
    faults = []
    by_address = defaultdict(list)
    for interval in known:
        by_address[interval.address].append(interval)
    for address, all_of_it in by_address.items():
        open_: list[Interval] = []
        for interval in sorted(all_of_it, key=lambda i: i.start):
            open_ = [i for i in open_ if i.end > interval.start]
            faults += [
                f"{address} had two owners at {interval.start:.4f}: {i.owner} ({i.why}) and {interval.owner} ({interval.why})"
                for i in open_
                if i.owner != interval.owner
            ]
            open_.append(interval)
    return faults


def _not_freed(history: History) -> list[str]:
    faults = []
    for o in history.operations:
        if o.verb != "DEL" or o.outcome != DONE or not history.alone(o):
            continue
        until = history.next_call(o)
        faults += [
            f"{p.address} was on {o.container} from {p.start:.4f} or earlier to {p.end:.4f} or later, and its DEL was answered"
            f" at {o.ended:.4f}"
            for p in history.presences_of.get(o.container, ())
            if max(p.start, o.ended) < min(p.end, until)
        ]
        for rest in _before(history.rests, o.ended, until):
            left = [f"{a} leased" for a in rest.leases.get(o.container, ())]
            left += [f"record {part}" for part in rest.records.get(o.container, ())]
            left += [f"link {a}".rstrip() for a in rest.links.get(o.container, ())]
            if left:
                faults.append(f"{', '.join(left)} of {o.container} after its DEL was answered at {o.ended:.4f}")
    return faults


def _not_given(history: History) -> list[str]:
    faults = []
    for o in history.operations:
        if o.verb != "ADD" or o.outcome != DONE or not history.alone(o):
            continue
        what = f"the ADD of {o.container}, answered at {o.ended:.4f} with {', '.join(o.addresses) or 'nothing'}"
        if not o.addresses:
            faults.append(f"{what}: no address")
        dissolved = history.dissolved.get(o.container, _NEVER)
        for address in o.addresses:
            seen = [s for s in history.sights_of[o.container] if s.address == address]
            late = ":" in address  # the kernel tells of a new IPv6 address from a work queue, a moment later
            if not late and not any(s.present and s.after <= o.ended for s in seen):
                faults.append(f"{what}: {address} was not on the wire")
            end = min(history.next_call(o), dissolved)
            faults += [
                f"{what}: {address} left the wire at {s.seen:.4f}, and nobody took it"
                for s in seen
                if not s.present and o.ended < s.after and s.seen < end
            ]
        former = history.former(o)
        certain = former and former.verb == "ADD" and former.outcome == DONE and history.alone(former)
        if former and certain and sorted(former.addresses) != sorted(o.addresses):
            faults.append(f"{what}: it had {', '.join(former.addresses)}")
        for rest in _before(history.rests, o.ended, history.next_call(o)):
            wanted = sorted(o.addresses)
            if sorted(rest.leases.get(o.container, ())) != wanted:
                faults.append(f"{what}: at rest it is leased {rest.leases.get(o.container)}")
            if sorted(rest.records.get(o.container, ())) != sorted(_PARTS):
                faults.append(f"{what}: at rest it has records {rest.records.get(o.container)}")
            if rest.ended < dissolved and sorted(rest.links.get(o.container, ())) != wanted:
                faults.append(f"{what}: at rest its link has {rest.links.get(o.container)}")
    return faults


def _before(rests: Sequence[Rest], start: float, end: float) -> list[Rest]:
    return [rest for rest in rests if start < rest.began and rest.ended < end]


def _at_rest(history: History) -> list[str]:
    faults = []
    for rest in history.rests:
        when = f"at rest at {rest.began:.4f}"
        faults += [f"{when}: {fault}" for fault in rest.faults]
        for container in {*rest.leases, *rest.records, *rest.links} - set(history.owners):
            faults.append(f"{when}: something of {container}, which nobody added")
        holders = defaultdict(list)
        for container, addresses in rest.leases.items():
            for address in addresses:
                holders[address].append(container)
        faults += [f"{when}: {address} is leased to {who}" for address, who in holders.items() if len(who) > 1]
        for container, links in rest.links.items():
            if "link" not in rest.records.get(container, ()):
                faults.append(f"{when}: a link of {container} without a record")
            for address in links:
                owners = {history.owners.get(c) for c in holders.get(address, ())}
                if address and owners != {history.owners.get(container)}:
                    faults.append(f"{when}: {address} is on the wire of {container}, and leased to {holders[address]}")
    return faults
