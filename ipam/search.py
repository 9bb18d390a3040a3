"""The search plan of a claim (ipam.acquire): the place where the search begins, and the free address that it returns.

`lowest_free` returns the lowest free address, as in whereabouts. After another claim took a proposed address, the plan
continues from `search_start`, so that many nodes do not compete for one address after another. A search ends after one
pass through the pool.

A window is a span (low, high) of addresses, both included, that crosses no multiple of `Store.window`. A store returns
the unavailable addresses of a window as a bitset: an integer whose bit i stands for the address low + i.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from ipam.leases import Owner, Want
from ipam.ranges import Range, Span

if TYPE_CHECKING:  # this module does no I/O
    from ipam.own import Wire
    from ipam.rules import Choice
    from ipam.stores.base import Store, Window

SPREAD = 1 << 16  # a search begins at one of the first SPREAD addresses of the range
_LOWEST, _NEAR, _FAR = 0, 1, 2  # numbers of the places where a search begins; each number from 2 on is a far place
_NEAR_SPREAD = 256  # the near place is one of the first _NEAR_SPREAD addresses of the range
_UNSEEN = 3  # the last place that is tried without a read, in stores in which a read costs more than a failed claim


class SearchPlan:
    """The search for free addresses for the choices `wanted`, over all attempts at one claim.

    `wire` knows the addresses in use without a lease. `reclaim(store, pool)` releases the leases in an exhausted pool
    that this node made before its last boot. It returns whether it has released any.
    """

    def __init__(
        self, store: Store, wanted: Sequence[Choice], owner: Owner, wire: Wire, reclaim: Callable[[Store, str], bool]
    ) -> None:
        self._store = store
        self._wanted = wanted
        self._owner = owner
        self._wire = wire
        self._reclaim = reclaim
        self.needs = [need for choice in wanted for need in choice.needs]
        self._place = _LOWEST
        self._taken: list[Want] = []  # addresses that were proposed and lost
        self.preferred: list[tuple[int, int]] | None = None  # (family, value), the best first; None: not yet known

    def windows(self) -> list[Window]:
        """The windows of addresses that `propose` will read first."""
        found: list[Window] = []
        for choice in self._wanted:
            start = start_of(choice.space, self._owner, self._place)
            window = window_from(choice.space, start, choice.space.last, self._store.window)
            if choice.requested is None and window:
                found += _windows_of(choice, *window)
        return found

    def pass_full(self, near_full: bool) -> None:
        """Move the search to another starting point if a window at the present starting point is full, or if
        `near_full` (stores.base.Survey) is true."""
        if near_full:
            self._place = max(self._place, _FAR)
        while not self._is_unseen() and self._place < self._store.places and self._is_at_full_window():
            self._place = max(self._place, _NEAR) + 1

    def _is_at_full_window(self) -> bool:
        return any(self._store.occupied(*window).bit_count() == window[4] - window[3] + 1 for window in self.windows())

    def _is_unseen(self) -> bool:
        """Whether the first address at the present starting point is proposed without a read of the store."""
        return _LOWEST < self._place <= min(_UNSEEN, self._store.places)

    def lose(self, wants: Sequence[Want]) -> None:
        """Note that another claim took the proposed addresses `wants`. Then move the search to another starting point,
        if simultaneous claims of different addresses succeed in this store (`Store.spreads`)."""
        self.preferred = []
        self._taken += wants
        if not wants or not self._store.spreads:
            return
        if self._place == _LOWEST:
            self._place = _NEAR if self._store.places else _FAR
        elif self._is_unseen():
            self._place += 1

    def propose(self, chosen: Sequence[int | None]) -> list[int]:
        """Return an address for each need: that in `chosen` or, if it is None, a free address.

        The free address is a `preferred` one if possible. The needs of one choice either all have an address in
        `chosen`, or all have None. Raises Exhausted when no address is free.
        """
        values: list[int] = []
        kept = [(n.rng.family, value) for n, value in zip(self.needs, chosen, strict=True) if value is not None]
        proposed: list[tuple[int, int]] = []
        for choice in self._wanted:
            given = [value for value in chosen[len(values) : len(values) + len(choice.needs)] if value is not None]
            if not given:
                own = _indexes(choice, kept + proposed)
                given = choice.values(self._index(choice, own, _indexes(choice, proposed)))
                proposed += zip((need.rng.family for need in choice.needs), given, strict=True)
            values += given
        return values

    def _index(self, choice: Choice, own: set[int], proposed: set[int]) -> int:
        """A free index of `choice` that is not in `own`. Raises Exhausted when there is none.

        `own` has the indexes of this attachment, including those `proposed` in this attempt. An index that another
        claim took comes last, and only if a read of its address shows no holder. The LIST requests of the search are
        not enough for this: they select by label, and so miss an object whose labels were removed.
        """
        lost = _indexes(choice, [want.address for want in self._taken])
        cooling = self._cooling(choice)
        index, nodes = self._given(choice, own | cooling | lost)
        pools = dict.fromkeys(need.pool for need in choice.needs)
        if index is None and True in [self._reclaim(self._store, pool) for pool in pools]:
            cooling = self._cooling(choice)
            index, nodes = self._given(choice, own | cooling | lost)
        if index is None:
            left = sorted(lost - own - cooling)
            index = next((i for i in left if not any(map(self._store.holder, _wants(choice, i)))), None)
        if index is None:
            count = sum(map(choice.space.usable, cooling))
            waiting = f", {count} of them until their ipam.cooldown_seconds are over" if count else ""
            whose = "this node itself or a neighbour, on its links, in its records or in `ip neighbour`"
            waiting += f", {nodes} of them by {whose}" if nodes else ""
            raise choice.exhausted(sum(map(choice.space.usable, proposed)), waiting)
        return index

    def _given(self, choice: Choice, avoid: set[int]) -> tuple[int | None, int]:
        """Return (the index to give or None, the number of skipped indexes). A free index is skipped if the node or a
        neighbour uses one of its addresses."""
        nodes, in_use = 0, None
        while (index := self._free(choice, avoid)) is not None:
            avoid.add(index)
            wants = _wants(choice, index)
            others = [want for want in wants if want.address not in (self.preferred or ())]
            if any(map(self._wire.is_own, wants)) or any(map(self._wire.is_neighbour, others)):
                nodes += 1
                continue
            former = [address for want in others for address in self._wire.with_former(want)]
            texts = (f"{want.text}/{need.rng.prefix}" for want, need in zip(wants, choice.needs, strict=True))
            if not former and not any(map(self._wire.is_avoided, texts)):
                return index, nodes
            avoid |= _indexes(choice, former)  # all at once, since there may be many
            in_use = index if in_use is None else in_use
        return in_use, nodes

    def _free(self, choice: Choice, avoid: Collection[int]) -> int | None:
        """A free index that is not in `avoid`, a preferred index if possible; None if no index is free."""
        for address in self.preferred or ():
            index = choice.index_of(*address)
            if index is not None and choice.space.usable(index) and index not in avoid:
                # a whole window, which a search would read too
                size = self._store.window
                low, high = max(index & -size, choice.space.first), min(index | size - 1, choice.space.last)
                if not _occupied(self._store, choice, low, high) >> index - low & 1:
                    return index
        start = start_of(choice.space, self._owner, self._place)
        if self._is_unseen() and start not in avoid:
            return start
        index = lowest_free(self._store, choice, start, avoid)
        if index is not None and self._is_claimed_here(choice, index):
            return self._unclaimed(choice, index, avoid)
        return index

    def _unclaimed(self, choice: Choice, index: int, avoid: Collection[int]) -> int:
        """The next free index in the window of `index` that no other call of this node claims now; else `index`."""
        last = min(index | self._store.window - 1, choice.space.last)
        bits = _occupied(self._store, choice, index, last)
        for at in range(index + 1, last + 1):
            may_be_given = not bits >> at - index & 1 and choice.space.usable(at) and at not in avoid
            if may_be_given and not self._is_claimed_here(choice, at):
                return at
        return index

    def _is_claimed_here(self, choice: Choice, index: int) -> bool:
        """Whether another call of this node is about to claim an address of `index`. If not, note for other calls that
        this call is about to claim the addresses."""
        return any(map(self._store.is_claimed_here, _wants(choice, index)))

    def _cooling(self, choice: Choice) -> set[int]:
        """The indexes with an address in its cooldown, except addresses that the owner's pod itself has freed."""
        found: set[int] = set()
        if not self._store.cooldown:
            return found
        first = choice.space.first
        for need, value_of_first in zip(choice.needs, choice.values(first), strict=True):
            of = (need.pool, need.scope, need.rng.family, need.rng.first, need.rng.last)
            found |= {first + value - value_of_first for value in self._store.cooling(*of, self._owner)}
        return found


def start_of(rng: Range, owner: Owner, place: int) -> int:
    """The index where a search begins for the number `place`. For _LOWEST it is 0, even if `rng` begins higher."""
    if place == _LOWEST:
        return 0
    if place == _NEAR:
        return search_start(rng, owner.node, owner.attachment.key(), _NEAR_SPREAD)
    return search_start(rng, owner.node, (*owner.attachment.key(), str(place)))


def lowest_free(store: Store, choice: Choice, start: int = 0, avoid: Collection[int] = ()) -> int | None:
    """The first free index of `choice` from `start` to the end, then from the beginning; None if there is none.

    An index is an address of a range, or an offset in all ranges of a rail group. `avoid` has indexes that must not
    be given although the store shows them as free, such as those proposed for this attachment or in their cooldown.
    """
    rng = choice.space
    for at, end in ((start, rng.last), (rng.first, min(start - 1, rng.last))):
        while window := window_from(rng, at, end, store.window):
            found = propose(rng, window, _occupied(store, choice, *window), avoid)
            if found is not None:
                return found
            at = window[1] + 1
            if at <= end:
                at = _next_open(store, choice, at, end)
    return None


def _next_open(store: Store, choice: Choice, low: int, high: int) -> int:
    """The index from `low` to `high` + 1 at which the search goes on. All indexes from `low` to there are occupied."""
    for i, need in enumerate(choice.needs):
        first, last = choice.values(low)[i], choice.values(high)[i]
        low += store.next_open(need.pool, need.scope, need.rng.family, first, last) - first
        if low > high:
            break
    return low


def _occupied(store: Store, choice: Choice, low: int, high: int) -> int:
    """The bitset of the indexes in low..high with an address that cannot be claimed: bit i stands for low + i."""
    bits = 0
    for window in _windows_of(choice, low, high):
        bits |= store.occupied(*window)
    return bits


def _windows_of(choice: Choice, low: int, high: int) -> list[Window]:
    """For each need of `choice`, the window of its addresses with the indexes low..high."""
    bounds = zip(choice.needs, choice.values(low), choice.values(high), strict=True)
    return [(need.pool, need.scope, need.rng.family, first, last) for need, first, last in bounds]


def _wants(choice: Choice, index: int) -> list[Want]:
    return [need.want(value) for need, value in zip(choice.needs, choice.values(index), strict=True)]


def _indexes(choice: Choice, addresses: Sequence[tuple[int, int]]) -> set[int]:
    """The indexes of `addresses`, pairs (family, value). An address that has no index in `choice` is left out."""
    return {index for address in addresses if (index := choice.index_of(*address)) is not None}


# --- one range: pure functions ---


def window_from(rng: Range, at: int, end: int, size: int) -> Span | None:
    """The window that begins with the first usable address of at..end, up to the next multiple of `size` or to `end`.
    None if there is no usable address."""
    for low, _ in _clipped(rng, at, end):
        return low, min(low | size - 1, end)
    return None


def propose(rng: Range, window: Span, occupied: int, avoid: Collection[int] = ()) -> int | None:
    """The lowest address in `window` that `rng` may give and that is neither in `occupied` nor in `avoid`, or None."""
    low, high = window
    for address in avoid if len(avoid) <= high - low else range(low, high + 1):
        if low <= address <= high and address in avoid:
            occupied |= 1 << address - low
    for first, last in _clipped(rng, low, high):
        free = ((1 << last - first + 1) - 1 << first - low) & ~occupied
        if free:
            return low + (free & -free).bit_length() - 1
    return None


def search_start(rng: Range, node: str, attachment: tuple[str, ...], spread: int = SPREAD) -> int:
    """The address at which `attachment` on `node` continues its search after another claim took the proposed address.

    The result is a hash of the arguments, spread evenly over the first `spread` addresses that `rng` may give. For a
    range that gives no address, the result is `rng.first`.
    """
    key = "\0".join((rng.cidr, node, *attachment)).encode("utf-8", "surrogateescape")
    digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    place = digest % (min(rng.size(), spread) or 1)
    for first, last in rng.spans():
        if place <= last - first:
            return first + place
        place -= last - first + 1
    return rng.first


def _clipped(rng: Range, low: int, high: int) -> Iterator[Span]:
    """The usable spans of `rng`, cut to low..high."""
    for first, last in rng.spans():
        clipped = max(first, low), min(last, high)
        if clipped[0] <= clipped[1]:
            yield clipped
