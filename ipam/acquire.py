"""Addresses for an attachment: propose them, claim them, and repeat both until a claim succeeds.

The first proposal is the lowest free address. If another process claims it first, the search begins at another place of
the range (ipam.allocator.search_start), and avoids the lost address. Before each further attempt the call waits a random
time, whose bound grows; after some seconds also about a second for each request of an attempt.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cni.shared.spec.errors import TryAgainLater
from ipam import allocator, rules
from ipam.leases import Lease, Owner, Want
from ipam.ranges import format_address
from ipam.rules import Exhausted
from ipam.stores.base import Claimed, Open, Pauses, Store, Taken, Unknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ipam.ranges import Range
    from ipam.rules import Choice, Need
    from ipam.stores.base import Window

CLAIM_SECONDS = 30.0
CONTENDED_SECONDS = 200.0  # of attempts that lose to other claims: kubelet ends its call after 240
_SPREAD, _SHARED = (0.0, 1.0), (0.005, 5.0)  # seconds of the first and the longest pause
_UNKNOWN_TRIES = 3  # of claims that a fault of this node leaves open; a server has all the time to answer again
_PATIENT = 5.0  # seconds after which a call makes one request a second
_UNSEEN = 3  # places that are tried without a read, in stores where a read costs more than a failed claim
_NEAR, _NEAR_SPREAD = 1, 256  # the first of them is near, so that the first block soon is full and is no longer listed


class Terms:
    """The terms of a claim, apart from its store, its needs and its owner.

    `remember(wants, sequence)` is called before each claim, and when the leases exist already.
    `free_earlier_boots(pool)` is called when a pool is exhausted, and returns whether it has freed an address. The server
    may still execute an earlier call's claim of the addresses in `recorded`. The addresses in `doubtful` are not kept,
    since their release may still be under way. `preferred()` returns the addresses, (family, value), to give if they are
    free, the best first. `is_avoided(address)`: an address, with its prefix length, is given only when no other one is free; `is_own(want)`: it is never
    given, since the node itself has it. The claim ends within `seconds`; 0 stands for CLAIM_SECONDS. `new`: the attachment never had a
    lease (ipam.stores.base.Store.survey).
    """

    __slots__ = (
        "doubtful",
        "free_earlier_boots",
        "is_avoided",
        "is_own",
        "new",
        "preferred",
        "recorded",
        "remember",
        "seconds",
    )

    def __init__(
        self,
        remember: Callable[[Sequence[Want], int], object],
        free_earlier_boots: Callable[[str], bool] = lambda pool: False,
        recorded: Sequence[Want] = (),
        doubtful: Sequence[Want] = (),
        preferred: Callable[[], list[tuple[int, int]]] = list,
        seconds: float = 0,
        new: bool = False,
        is_avoided: Callable[[str], bool] = lambda address: False,
        is_own: Callable[[Want], bool] = lambda want: False,
    ) -> None:
        self.new = new
        self.is_own = is_own
        self.is_avoided = is_avoided
        self.remember = remember
        self.free_earlier_boots = free_earlier_boots
        self.recorded = recorded
        self.doubtful = doubtful
        self.preferred = preferred
        self.seconds = seconds or CLAIM_SECONDS


def acquire(store: Store, wanted: Sequence[Choice], owner: Owner, terms: Terms) -> list[int]:
    """Lease an address for each need of `wanted` to `owner`, all or none; returns the addresses in the order of the needs.

    Each attempt has the seconds of `terms`: a store that answers an attempt works, and lost claims are no fault. A claim that
    a server leaves open is made again within them.
    Raises Exhausted when a pool has no free address; TryAgainLater when another attachment holds a requested address, or
    when other claims succeed first for CONTENDED_SECONDS; and the errors of the store.
    """
    began = time.monotonic()
    deadline = began + terms.seconds
    last = began + max(terms.seconds, CONTENDED_SECONDS)
    store.finish_by(deadline)
    attempts = _Attempts(store, wanted, owner, terms)
    pauses: Pauses | None = None
    repeats: Pauses | None = None
    unknown = 0
    while True:
        with store.session():
            store.take_locks()
            # if claims spread, the search begins elsewhere after a lost claim, and needs no pause
            pauses = pauses or Pauses(last, *(_SPREAD if store.spreads else _SHARED))
            while True:
                try:
                    answer = attempts.once()
                except Open as fault:  # of a change before the claim: a fence, or a release that makes room
                    answer = Unknown(fault)
                if not isinstance(answer, Taken | Unknown):
                    return answer
                if isinstance(answer, Unknown):
                    break
                repeats = None
                deadline = min(time.monotonic() + terms.seconds, last)
                store.finish_by(deadline)
                is_patient = time.monotonic() > began + _PATIENT  # an attempt lists, creates for each need, and reads
                if not pauses.wait(3.0 + len(_needs(wanted)) if is_patient else 0.0):
                    raise TryAgainLater(
                        f"no address of {', '.join(need.pool for need in _needs(wanted))} could be claimed within"
                        f" {last - began:g} s, because other attachments claim addresses there at the same time: retry"
                    )
        unknown += 1  # `survey` of the next session shows whether the claim was made
        repeats = repeats or Pauses(deadline)
        if (unknown >= _UNKNOWN_TRIES and not isinstance(answer.reason, Unreachable)) or not repeats.wait():
            raise answer.reason
        owner.sequence = max(time.time_ns(), owner.sequence + 1)  # a request under way has the former number


class _Attempts:
    """The attempts at one claim. Each uses the results of the previous ones."""

    __slots__ = (
        *("_contended", "_lost", "_new", "_open", "_owner", "_preferred", "_store", "_taken", "_terms", "_wanted"),
    )

    def __init__(self, store: Store, wanted: Sequence[Choice], owner: Owner, terms: Terms) -> None:
        self._store = store
        self._wanted = wanted
        self._owner = owner
        self._terms = terms
        self._lost = list(terms.doubtful)
        self._taken: list[Want] = []  # addresses that were proposed and lost
        self._open = terms.recorded  # of claims that the server may still execute
        self._preferred: list[tuple[int, int]] | None = None
        self._contended = 0  # the number of the place where the search begins; 0: the lowest address
        self._new = terms.new

    def once(self) -> list[int] | Taken | Unknown:
        """Make one attempt in a session of the store; returns the addresses, or the store's answer if it made no lease."""
        store, wanted, owner, terms = self._store, self._wanted, self._owner, self._terms
        needs = _needs(wanted)
        windows = _windows(store, wanted, owner, self._contended)
        found = store.survey(owner, windows, self._new)
        planned = rules.plan(wanted, found.own, found.pods, owner, self._lost)
        if found.near_full:
            self._contended = max(self._contended, _NEAR + 1)
        while None in planned.chosen and self._is_full(windows):
            self._contended = max(self._contended, _NEAR) + 1
            windows = _windows(store, wanted, owner, self._contended)
        if self._preferred is None and None in planned.chosen:
            self._preferred = [*terms.preferred(), *found.former]
        if store.cooldown:
            _check_requested(store, needs, planned.given_up, owner)
        try:
            values = search(
                store,
                wanted,
                planned.chosen,
                owner,
                self._contended,
                terms.free_earlier_boots,
                self._preferred or (),
                terms.is_avoided,
                terms.is_own,
                self._taken,
            )
        except Exhausted:
            if not self._new:
                raise
            self._new = False
            return Taken([])
        wants = [need.want(value) for need, value in zip(needs, values, strict=True)]
        if planned.settled:
            terms.remember(wants, found.own[0].sequence)
            return values
        self._forbid_open(wants, found.own)
        terms.remember(wants, owner.sequence)
        answer = store.claim(wants, owner, planned.given_up)
        if isinstance(answer, Unknown):
            self._open = wants
        if isinstance(answer, Claimed):
            return values
        if isinstance(answer, Taken) and answer.wants:
            self._lost += _lost(store, needs, wants, planned, answer.wants, owner)
            self._preferred = []
            taken = [w for w, c in zip(wants, planned.chosen, strict=True) if c is None and w in answer.wants]
            self._taken += taken
            if store.spreads and taken:
                far = self._contended == 0 and not store.places
                self._contended += 2 if far else 1 if self._contended in (0, *unseen(store)) else 0
        self._new = self._new and isinstance(answer, Taken)
        return answer

    def _forbid_open(self, wants: Sequence[Want], own: Sequence[Lease]) -> None:
        """Cancel the claims that may still be executed, if one would make a lease that is neither in `wants` nor in `own`."""
        known = [*wants, *own]
        if not {(*want.place, want.scope) for want in self._open} <= {(*want.place, want.scope) for want in known}:
            self._store.settle(self._owner.attachment, self._owner.sequence - 1)
        self._open = ()

    def _is_full(self, windows: Sequence[Window]) -> bool:
        """Whether a window is full, and there are other places to try."""
        store = self._store
        if self._contended in unseen(store) or self._contended >= store.places:
            return False
        return any(store.occupied(*window).bit_count() == window[4] - window[3] + 1 for window in windows)


def unseen(store: Store) -> range:
    """The places, as values of `contended`, that are tried without a read."""
    return range(1, min(_UNSEEN, store.places) + 1)


def lowest_free(store: Store, choice: Choice, start: int = 0, avoid: Collection[int] = ()) -> int | None:
    """The first index not in `avoid` that can be claimed, from `start` to the end of its space, then from the beginning."""

    def occupied(low: int, high: int) -> int:
        return _occupied(store, choice, low, high)

    def next_open(low: int, high: int) -> int:
        for i, need in enumerate(choice.needs):
            first, last = choice.values(low)[i], choice.values(high)[i]
            low += store.next_open(need.pool, need.scope, need.rng.family, first, last) - first
            if low > high:
                break
        return low

    return allocator.search(choice.space, occupied, next_open, start, avoid, store.window)


def _occupied(store: Store, choice: Choice, low: int, high: int) -> int:
    """The bitset of the indexes low..high that have an address which cannot be claimed."""
    bits = 0
    for window in _windows_of(choice, low, high):
        bits |= store.occupied(*window)
    return bits


def _windows_of(choice: Choice, low: int, high: int) -> list[Window]:
    """The addresses of the indexes low..high, for each need."""
    bounds = zip(choice.needs, choice.values(low), choice.values(high), strict=True)
    return [(need.pool, need.scope, need.rng.family, first, last) for need, first, last in bounds]


def _needs(wanted: Sequence[Choice]) -> list[Need]:
    return [need for choice in wanted for need in choice.needs]


def start_of(rng: Range, owner: Owner, contended: int) -> int:
    """The address at which a search begins: the lowest of the range if `contended` is 0, else one that differs by owner."""
    if contended <= _NEAR:
        return allocator.search_start(rng, owner.node, owner.attachment.key(), _NEAR_SPREAD) if contended else 0
    return allocator.search_start(rng, owner.node, (*owner.attachment.key(), str(contended)))


def _windows(store: Store, wanted: Sequence[Choice], owner: Owner, contended: int) -> list[Window]:
    """The windows that `search` reads first."""
    found: list[Window] = []
    for choice in wanted:
        start = start_of(choice.space, owner, contended)
        window = allocator.window_from(choice.space, start, choice.space.last, store.window)
        if choice.requested is None and window:
            found += _windows_of(choice, *window)
    return found


def search(
    store: Store,
    wanted: Sequence[Choice],
    chosen: Sequence[int | None],
    owner: Owner,
    contended: int,
    free_earlier_boots: Callable[[str], bool],
    preferred: Sequence[tuple[int, int]] = (),
    is_avoided: Callable[[str], bool] = lambda address: False,
    is_own: Callable[[Want], bool] = lambda want: False,
    taken: Sequence[Want] = (),
) -> list[int]:
    """`chosen`, an address for each need, with free ones in place of None, `preferred` ones if possible; Exhausted.

    Either all addresses of a choice are chosen, or none. Those `taken` are chosen last, and only if the store itself says
    that they are free: an object whose labels were removed is in no list.
    """
    values: list[int] = []
    proposed: list[tuple[int, int]] = []
    needs = _needs(wanted)
    for choice in wanted:
        at, end = len(values), len(values) + len(choice.needs)
        kept = [value for value in chosen[at:end] if value is not None]
        if kept:
            values += kept
            continue
        start = start_of(choice.space, owner, contended)
        others = (*zip(needs, values), *zip(needs[end:], chosen[end:], strict=True))  # noqa: B905
        indexes = [choice.index_of(need.rng.family, value) for need, value in others if value is not None]
        own = {index for index in indexes if index is not None}
        cooling = _cooling(store, choice, owner)
        lost = {index for want in taken if (index := choice.index_of(*want.address)) is not None}
        how = (store, choice, start, contended, preferred)
        index, nodes = _given(*how, own | cooling | lost, is_avoided, is_own)
        if index is None and True in [
            free_earlier_boots(pool) for pool in dict.fromkeys(need.pool for need in choice.needs)
        ]:
            cooling = _cooling(store, choice, owner)
            index, nodes = _given(*how, own | cooling | lost, is_avoided, is_own)
        if index is None and lost:
            index = next((i for i in sorted(lost - own - cooling) if not _is_held(store, choice, i)), None)
        if index is None:
            count = sum(map(choice.space.usable, cooling))
            waiting = f", {count} of them until their ipam.cooldown_seconds are over" if count else ""
            waiting += f", {nodes} of them by this node itself, on its own links or in its records" if nodes else ""
            found = (choice.index_of(*address) for address in proposed)
            raise choice.exhausted(sum(i is not None and choice.space.usable(i) for i in found), waiting)
        given = choice.values(index)
        values += given
        proposed += zip((need.rng.family for need in choice.needs), given, strict=True)
    return values


def _given(
    store: Store,
    choice: Choice,
    start: int,
    contended: int,
    preferred: Sequence[tuple[int, int]],
    avoid: set[int],
    is_avoided: Callable[[str], bool],
    is_own: Callable[[Want], bool],
) -> tuple[int | None, int]:
    """(the index to give, None for none; the number of free indexes with an address that the node itself has)."""
    nodes, in_use = 0, None
    while (index := _free(store, choice, start, contended, preferred, avoid)) is not None:
        avoid.add(index)
        wants = [need.want(value) for need, value in zip(choice.needs, choice.values(index), strict=True)]
        if any(map(is_own, wants)):
            nodes += 1
        elif any(is_avoided(f"{w.text}/{need.rng.prefix}") for w, need in zip(wants, choice.needs, strict=True)):
            in_use = index if in_use is None else in_use
        else:
            return index, nodes
    return in_use, nodes


def _free(
    store: Store,
    choice: Choice,
    start: int,
    contended: int,
    preferred: Sequence[tuple[int, int]],
    avoid: Collection[int],
) -> int | None:
    """A free index that is not in `avoid`: a `preferred` one, or the first from `start` on; None for none."""
    index = _preferred_free(store, choice, preferred, avoid)
    if index is None and contended in unseen(store) and start not in avoid:
        return start
    if index is None:
        index = lowest_free(store, choice, start, avoid)
        if index is not None and _is_claimed_here(store, choice, index):
            index = _unclaimed(store, choice, index, avoid)
    return index


def _is_held(store: Store, choice: Choice, index: int) -> bool:
    """Whether an address of the index has a holder, by the address itself."""
    return any(store.holder(need.want(v)) for need, v in zip(choice.needs, choice.values(index), strict=True))


def _is_claimed_here(store: Store, choice: Choice, index: int) -> bool:
    """Whether another call of this node is about to claim an address of the index."""
    return any(store.is_claimed_here(need.want(v)) for need, v in zip(choice.needs, choice.values(index), strict=True))


def _unclaimed(store: Store, choice: Choice, index: int, avoid: Collection[int]) -> int:
    """The next free index of the window that no other call of this node is about to claim; else `index`."""
    last = min(index | store.window - 1, choice.space.last)
    bits = _occupied(store, choice, index, last)
    for at in range(index + 1, last + 1):
        may_be_given = not bits >> at - index & 1 and choice.space.usable(at) and at not in avoid
        if may_be_given and not _is_claimed_here(store, choice, at):
            return at
    return index


def _preferred_free(
    store: Store, choice: Choice, preferred: Sequence[tuple[int, int]], avoid: Collection[int]
) -> int | None:
    """The index of the first of `preferred` that is free and that `choice` can give; None when no address is both."""
    for address in preferred:
        index = choice.index_of(*address)
        may_be_given = index is not None and choice.space.usable(index) and index not in avoid
        if index is not None and may_be_given:
            # a whole window, which a search would read too
            low, high = max(index & -store.window, choice.space.first), min(index | store.window - 1, choice.space.last)
            if not _occupied(store, choice, low, high) >> index - low & 1:
                return index
    return None


def _cooling(store: Store, choice: Choice, owner: Owner) -> set[int]:
    """The indexes with an address that `owner` may not have yet, since another pod has just released it."""
    found: set[int] = set()
    if not store.cooldown:
        return found
    first = choice.space.first
    for need, value_of_first in zip(choice.needs, choice.values(first), strict=True):
        of = (need.pool, need.scope, need.rng.family, need.rng.first, need.rng.last)
        found |= {first + value - value_of_first for value in store.cooling(*of, owner)}
    return found


def _check_requested(store: Store, needs: Sequence[Need], kept: Sequence[Lease], owner: Owner) -> None:
    """Raise TryAgainLater when a requested address is cooling. The addresses of the leases `kept` are not checked."""
    held = {(lease.pool, lease.value) for lease in kept}
    for need in needs:
        value = need.requested
        if value is None or need.shared or (need.pool, value) in held:
            continue
        if value in store.cooling(need.pool, need.scope, need.rng.family, value, value, owner):
            raise TryAgainLater(
                f"the requested address {format_address(need.rng.family, value)} (pool {need.pool}) was freed by another pod"
                f" less than {store.cooldown} s ago (ipam.cooldown_seconds): ask for another one, or retry later"
            )


def _lost(
    store: Store,
    needs: Sequence[Need],
    wants: Sequence[Want],
    planned: rules.ClaimPlan,
    taken: Sequence[Want],
    owner: Owner,
) -> list[Want]:
    """The addresses in `taken` that the plan would have kept; TryAgainLater when one of them was requested.

    A killed call's request may have made a lease of the owner or its pod after `survey`. The next plan keeps this lease.
    """
    known = {lease.key() for lease in planned.given_up}
    lost = []
    for need, want, kept in zip(needs, wants, planned.chosen, strict=True):
        if want not in taken or kept is None:
            continue
        holder = store.holder(want)
        if holder is None:
            continue  # it is free again
        if holder.key() not in known:
            ours = holder.attachment == owner.attachment
            if ours or (need.requested is None and rules.may_take_over(holder, owner)):
                continue
        if need.shared and holder.network == owner.attachment.network:
            raise rules.Shared(need)
        if need.requested is not None:
            kind = "static address (ipam.addresses)" if need.shared else "requested address"
            raise TryAgainLater(
                f"the {kind} {holder.text} (pool {holder.pool}) is held by {holder.holder()}: ask for another one,"
                " or detach that"
            )
        lost.append(want)
    return lost
