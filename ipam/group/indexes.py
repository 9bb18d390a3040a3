"""One index for all rails of a group: the addresses of an index, and the choice of an index. No I/O but the store's.

The index n of a pod stands for the address n of every range of every rail, counted from the start of its CIDR: with the
ranges 192.168.0.0/24 and 192.168.1.0/24 index 5 is 192.168.0.5 and 192.168.1.5. An index can be given when every range
may give its address. An index is taken when its address is taken on one rail.
"""

from __future__ import annotations

from cni.shared.config import Fault, refuse
from ipam import allocator, rules
from ipam.acquire import Exhausted, cooling_of, start_of, unseen
from ipam.entries import RangeEntry, read_ranges
from ipam.ranges import BITS, Range, format_address
from ipam.rules import Need, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from cni.shared.rail import Rail
    from ipam.config import IpamConfig
    from ipam.leases import Lease, Owner, Want
    from ipam.stores.base import Store, Window

MOST_ADDRESSES = 48  # of a group: its claim is one transaction, and etcd allows 128 comparisons in one


class Group:
    """The rails of a group, as a network of it defines them: the needs of each rail, and the indexes that all can give.

    `own` are the needs of the network's own rail, `wanted` those of all rails.
    """

    __slots__ = ("indexes", "name", "own", "wanted")

    def __init__(self, name: str, rails: Sequence[Sequence[Need]], index: int) -> None:
        self.name = name
        self.own = list(rails[index])
        self.wanted = [need for needs in rails for need in needs]
        self.indexes = _common([need.rng for need in self.wanted])

    def pools(self) -> list[str]:
        """The pools that hold the addresses of all rails."""
        return sorted({need.pool for need in self.wanted})

    def ask(self, index: int) -> None:
        """Restrict the claim to this index."""
        for need in self.wanted:
            need.requested = need.rng.at(index)

    def index_of(self, family: int, value: int) -> int | None:
        """The index of an address of any rail; None for an address of no rail."""
        for need in self.wanted:
            if need.rng.family == family and need.rng.contains(value):
                return need.rng.offset_of(value)
        return None

    # --- ipam.acquire.Choice: an index is chosen, and not each address by itself ---

    def windows(self, store: Store, wanted: Sequence[Need], owner: Owner, contended: int) -> list[Window]:
        """The windows that `search` reads first."""
        start = start_of(self.indexes, owner, contended)
        window = allocator.window_from(self.indexes, start, self.indexes.last, store.window)
        if wanted[0].requested is not None or window is None:
            return []
        return [(need.pool, need.scope, need.rng.family, *_window(need, *window)) for need in wanted]

    def plan(
        self,
        wanted: Sequence[Need],
        own: Sequence[Lease],
        pods: Sequence[Lease],
        owner: Owner,
        lost: Collection[Want] = (),
    ) -> Plan:
        """As ipam.rules.plan: the index that most of the leases have, all of it or none."""
        gone = {self.index_of(want.family, want.value) for want in lost}
        former = [lease for lease in pods if lease.attachment != owner.attachment and rules.may_take_over(lease, owner)]
        counts: dict[int, int] = {}
        for lease in (*own, *former):
            index = self.index_of(lease.family, lease.value)
            if index is not None and index not in gone and self.indexes.usable(index):
                counts[index] = counts.get(index, 0) + 1
        chosen = max(counts, key=lambda index: counts[index]) if counts else None
        if wanted[0].requested is not None:
            chosen = wanted[0].rng.offset_of(wanted[0].requested)
        if chosen is None:
            return Plan([None] * len(wanted), list(own), False)
        places = {(need.pool, need.rng.at(chosen)) for need in wanted}
        moved = [lease for lease in former if (lease.pool, lease.value) in places]
        leased = {(lease.pool, lease.value): lease for lease in own}
        settled = (
            not moved
            and len(own) == len(wanted)
            and all(_is_held(leased.get((need.pool, need.rng.at(chosen))), need, owner) for need in wanted)
        )
        return Plan([need.rng.at(chosen) for need in wanted], [*own, *moved], settled)

    def search(
        self,
        store: Store,
        wanted: Sequence[Need],
        chosen: Sequence[int | None],
        owner: Owner,
        contended: int,
        reclaim: Callable[[str], bool],
        liked: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """As ipam.acquire.search: the addresses of the lowest index that is free on all rails; Exhausted."""
        kept = [value for value in chosen if value is not None]
        if kept:
            return kept
        cooling = self._cooling(store, wanted, owner)
        found = self._liked(store, wanted, liked, cooling)
        start = start_of(self.indexes, owner, contended)
        if found is None and contended in unseen(store) and start not in cooling:
            found = start
        if found is None:
            found = self._lowest_free(store, wanted, start, cooling)
        if found is None and True in [reclaim(pool) for pool in self.pools()]:
            cooling = self._cooling(store, wanted, owner)
            found = self._lowest_free(store, wanted, 0, cooling)
        if found is None:
            raise self._exhausted(len(cooling))
        return [need.rng.at(found) for need in wanted]

    def _lowest_free(self, store: Store, wanted: Sequence[Need], start: int, cooling: Collection[int]) -> int | None:
        def occupied(low: int, high: int) -> int:
            bits = 0
            for need in wanted:
                bits |= store.occupied(need.pool, need.scope, need.rng.family, *_window(need, low, high))
            return bits | sum(1 << index - low for index in cooling if low <= index <= high)

        def next_open(low: int, high: int) -> int:
            found = low
            for need in wanted:
                value = store.next_open(need.pool, need.scope, need.rng.family, *_window(need, found, high))
                found = need.rng.offset_of(value)
                if found > high:
                    break
            return found

        return allocator.search(self.indexes, occupied, next_open, start, (), store.window)

    def _liked(
        self, store: Store, wanted: Sequence[Need], liked: Sequence[tuple[int, int]], cooling: Collection[int]
    ) -> int | None:
        for family, value in liked:
            index = self.index_of(family, value)
            if index is None or index in cooling or not self.indexes.usable(index):
                continue
            if not any(
                store.occupied(need.pool, need.scope, need.rng.family, *_window(need, index, index)) for need in wanted
            ):
                return index
        return None

    def _cooling(self, store: Store, wanted: Sequence[Need], owner: Owner) -> set[int]:
        return {need.rng.offset_of(value) for need in wanted for value in cooling_of(store, need, owner)}

    def _exhausted(self, cooling: int) -> Exhausted:
        waiting = f", {cooling} of them until their ipam.cooldown_seconds are over" if cooling else ""
        return Exhausted(
            f"rail group {self.name} is exhausted: each of its {self.indexes.size()} indexes is in use on one of its rails or"
            f" more{waiting}. Delete attachments or enlarge the ranges; `railcni ipam leases` shows who holds them",
            f"pools {', '.join(self.pools())}",
        )


class _Place:
    """Names one place for all keys: the faults of ipam.entries.read_ranges then name the member of rail.ranges."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, key: str) -> str:
        return self._name


def _is_held(lease: Lease | None, need: Need, owner: Owner) -> bool:
    return lease is not None and rules.is_current(lease, need, owner)


def group_of(rail: Rail, config: IpamConfig) -> Group:
    """The group of a network whose rails have the same index; InvalidConfig with all faults of rail.ranges."""
    faults: list[Fault] = []
    rails = needs_of(rail, config, faults)
    refuse(faults)
    return Group(rail.group, rails, rail.index)


def needs_of(rail: Rail, config: IpamConfig, faults: list[Fault]) -> list[list[Need]]:
    """The needs of each rail of the group; the faults of rail.ranges go to `faults`."""
    scope = config.network_name if config.overlap else None
    rails = []
    for i, documents in enumerate(rail.ranges):
        read = read_ranges(RangeEntry.empty(), documents, _Place(f"rail.ranges[{i}]"), (), [], faults)
        rails.append([Need(rng, rng.pool_name(config.network_name), scope) for rng in read])
    if not faults:
        _check(rail, config, rails, faults)
    return rails


def _check(rail: Rail, config: IpamConfig, rails: Sequence[Sequence[Need]], faults: list[Fault]) -> None:
    """Check the group as a whole, after each range by itself was found right."""
    if config.node_slice_size:
        wanted = "gives nodes parts of a range each, and rails with the same index need whole ones: leave it out"
        faults.append(Fault("ipam.node_slice_size", f"/{config.node_slice_size}", wanted))
    count = sum(map(len, rails))
    if count > MOST_ADDRESSES:
        faults.append(Fault("rail.ranges", count, f"makes so many addresses for a pod: want {MOST_ADDRESSES} at most"))
    given = [rng.cidr for rng in config.ranges]
    own = [need.rng.cidr for need in rails[rail.index]]
    if given != own:
        wanted = f"is not what rail.ranges[{rail.index}] says ({', '.join(own)}): want the same, in the same order"
        faults.append(Fault("ipam.range and ipRanges", given, wanted))
    owners: dict[tuple[str, str], int] = {}
    for i, needs in enumerate(rails):
        for need in needs:
            other = owners.setdefault((need.pool, need.rng.cidr), i)
            if other != i:
                wanted = f"is the range of rail {other} too: want one of its own for each rail"
                faults.append(Fault(f"rail.ranges[{i}]", need.rng.cidr, wanted))
    if faults:
        return
    indexes = _common([need.rng for needs in rails for need in needs])
    if not indexes.size():
        faults.append(Fault("rail.ranges", None, "have no index in common that each of them may give: want wider ones"))
    for rng in config.ranges:
        for low, high in _blocked(rng):
            common = next((max(low, a) for a, b in indexes.spans() if max(low, a) <= min(high, b)), None)
            if common is not None:
                wanted = (
                    f"is not given by this network (range_start, range_end, exclude, gateway or addresses of ipam), but would"
                    f" be by its group: exclude it in rail.ranges[{rail.index}] in every network of the group"
                )
                faults.append(Fault("rail.ranges", format_address(rng.family, rng.at(common)), wanted))


def _common(ranges: Sequence[Range]) -> Range:
    """The indexes that all `ranges` can give, as a range that begins at 0."""
    bits = min(BITS[rng.family] - rng.prefix for rng in ranges)
    family = 4 if bits <= BITS[4] else 6
    blocked = [span for rng in ranges for span in _blocked(rng)]
    return Range(family, 0, BITS[family] - bits, blocked=blocked)


def _blocked(rng: Range) -> list[tuple[int, int]]:
    """The spans of indexes that `rng` does not give."""
    size = rng.top - rng.network
    spans = [(low - rng.network, high - rng.network) for low, high in rng.blocked]
    first, last = rng.first - rng.network, rng.last - rng.network
    return [*([(0, first - 1)] if first else []), *spans, *([(last + 1, size)] if last < size else [])]


def _window(need: Need, low: int, high: int) -> tuple[int, int]:
    """The addresses of a window of indexes."""
    return need.rng.at(low), need.rng.at(high)
