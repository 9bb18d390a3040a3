"""Addresses for an attachment: propose them, claim them, and repeat both until a claim succeeds.

The first proposal is the lowest free address. When another process has claimed it first, the search begins at another
place of the range (ipam.allocator.search_start), and each further attempt waits a random time out of a longer one.
"""

from __future__ import annotations

import time

from cni.shared.spec.errors import TryAgainLater
from ipam import allocator, rules
from ipam.leases import Lease, Owner, Want
from ipam.ranges import format_address
from ipam.stores.base import Claimed, Pauses, Store, Taken, Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Protocol

    from ipam.ranges import Range
    from ipam.rules import Need
    from ipam.stores.base import Window

    class Choice(Protocol):
        """How the addresses of a claim are chosen: `windows` and `search` as here, `plan` as in ipam.rules."""

        def windows(self, store: Store, wanted: Sequence[Need], owner: Owner, contended: int, /) -> list[Window]: ...

        def plan(
            self,
            wanted: Sequence[Need],
            own: Sequence[Lease],
            pods: Sequence[Lease],
            owner: Owner,
            lost: Collection[Want],
            /,
        ) -> rules.Plan: ...

        def search(
            self,
            store: Store,
            wanted: Sequence[Need],
            chosen: Sequence[int | None],
            owner: Owner,
            contended: int,
            reclaim: Callable[[str], bool],
            liked: Sequence[tuple[int, int]],
            /,
        ) -> list[int]: ...


CLAIM_SECONDS = 30.0
CONTENDED_SECONDS = 200.0  # of attempts that lose to others' claims: kubelet ends its call after 240
_SPREAD, _SHARED = (0.0, 1.0), (0.005, 5.0)  # seconds of the first and the longest pause
_UNKNOWN_TRIES = 3
_UNSEEN = 3  # places that are tried unread, in a store where a reading costs more than a claim that fails
_NEAR, _NEAR_SPREAD = 1, 256  # the first of them is near: the first block fills, and is no longer listed, the sooner


class Exhausted(TryAgainLater):
    """A pool has no free address."""


class Terms:
    """The terms of a claim, apart from its store, its needs and its owner.

    `remember(wants, sequence)` is called before each claim, and when the leases exist already. `reclaim(pool)` is called
    when a pool is exhausted, and says whether it has freed an address. The addresses in `doubtful` are not kept, since a
    release of them may still be under way. `preferred()` returns the addresses, (family, value), to give if they are
    free, the best first. The claim ends within `seconds`; 0 stands for CLAIM_SECONDS. `choice` chooses the addresses;
    with None each is chosen by itself. `new`: the attachment never had a lease (ipam.stores.base.Store.survey).
    """

    __slots__ = ("choice", "doubtful", "new", "preferred", "reclaim", "remember", "seconds")

    def __init__(
        self,
        remember: Callable[[Sequence[Want], int], object],
        reclaim: Callable[[str], bool] = lambda pool: False,
        doubtful: Sequence[Want] = (),
        preferred: Callable[[], list[tuple[int, int]]] = list,
        seconds: float = 0,
        choice: Choice | None = None,
        new: bool = False,
    ) -> None:
        self.new = new
        self.remember = remember
        self.reclaim = reclaim
        self.doubtful = doubtful
        self.preferred = preferred
        self.seconds = seconds or CLAIM_SECONDS
        self.choice = choice


def acquire(store: Store, wanted: Sequence[Need], owner: Owner, terms: Terms) -> list[int]:
    """Lease an address for each need in `wanted` to `owner`, all or none; returns the addresses in the order of the needs.

    Each attempt has the seconds of `terms`: a store that has answered an attempt is well, and others' claims are no fault.
    Raises Exhausted when a pool has no free address; TryAgainLater when another attachment holds a requested address, or
    when other claims succeed first for CONTENDED_SECONDS; and the errors of the store.
    """
    began = time.monotonic()
    deadline = began + terms.seconds
    last = began + max(terms.seconds, CONTENDED_SECONDS)
    store.finish_by(deadline)
    attempts = _Attempts(store, wanted, owner, terms)
    pauses: Pauses | None = None
    unknown = 0
    while True:
        with store.session():
            store.take_locks()
            # where claims spread, the search begins elsewhere after a lost claim, and needs no pause
            pauses = pauses or Pauses(last, *(_SPREAD if store.spreads else _SHARED))
            while True:
                answer = attempts.once()
                if not isinstance(answer, Taken | Unknown):
                    return answer
                if isinstance(answer, Unknown):
                    break
                deadline = min(time.monotonic() + terms.seconds, last)
                store.finish_by(deadline)
                if not pauses.wait():
                    raise TryAgainLater(
                        f"no address of {', '.join(need.pool for need in wanted)} could be claimed within"
                        f" {last - began:g} s, because others claim from there at the same time: retry"
                    )
        unknown += 1  # `survey` of the next session shows whether it was made
        if unknown == _UNKNOWN_TRIES or time.monotonic() > deadline or not pauses.wait():
            raise answer.reason
        owner.sequence = max(time.time_ns(), owner.sequence + 1)  # a request that is under way has the former number


class _Attempts:
    """The attempts at one claim. Each goes by the results of those before it."""

    __slots__ = ("_contended", "_liked", "_lost", "_new", "_owner", "_store", "_terms", "_wanted")

    def __init__(self, store: Store, wanted: Sequence[Need], owner: Owner, terms: Terms) -> None:
        self._store = store
        self._wanted = wanted
        self._owner = owner
        self._terms = terms
        self._lost = list(terms.doubtful)
        self._liked: list[tuple[int, int]] | None = None
        self._contended = 0  # the number of the place at which the search begins; 0: the lowest address
        self._new = terms.new

    def once(self) -> list[int] | Taken | Unknown:
        """Make one attempt, in a session of the store: the addresses, or the store's answer when it made no lease."""
        store, wanted, owner, terms = self._store, self._wanted, self._owner, self._terms
        choice = terms.choice
        windows, plan, find = (choice.windows, choice.plan, choice.search) if choice else (_windows, rules.plan, search)
        window = windows(store, wanted, owner, self._contended)
        found = store.survey(owner, window, self._new)
        planned = plan(wanted, found.own, found.pods, owner, self._lost)
        if found.crowded:
            self._contended = max(self._contended, _NEAR + 1)
        while None in planned.chosen and self._is_full(window):
            self._contended = max(self._contended, _NEAR) + 1
            window = windows(store, wanted, owner, self._contended)
        if self._liked is None and None in planned.chosen:
            self._liked = [*terms.preferred(), *found.former]
        if store.cooldown:
            _check_requested(store, wanted, planned.given_up, owner)
        try:
            values = find(store, wanted, planned.chosen, owner, self._contended, terms.reclaim, self._liked or ())
        except Exhausted:
            if not self._new:
                raise
            self._new = False
            return Taken([])
        wants = [need.want(value) for need, value in zip(wanted, values, strict=True)]
        if planned.settled:
            terms.remember(wants, found.own[0].sequence)
            return values
        terms.remember(wants, owner.sequence)
        answer = store.claim(wants, owner, planned.given_up)
        if isinstance(answer, Claimed):
            return values
        if isinstance(answer, Taken) and answer.wants:
            self._lost += _lost(store, wanted, wants, planned, answer.wants, owner)
            self._liked = []
            if store.spreads and any(
                w in answer.wants for w, c in zip(wants, planned.chosen, strict=True) if c is None
            ):
                far = self._contended == 0 and not store.places
                self._contended += 2 if far else 1 if self._contended in (0, *unseen(store)) else 0
        self._new = self._new and isinstance(answer, Taken)
        return answer

    def _is_full(self, windows: Sequence[Window]) -> bool:
        """Whether one of the windows is full, and other places are left to try."""
        store = self._store
        if self._contended in unseen(store) or self._contended >= store.places:
            return False
        return any(store.occupied(*window).bit_count() == window[4] - window[3] + 1 for window in windows)


def unseen(store: Store) -> range:
    """The places, as values of `contended`, that are tried unread."""
    return range(1, min(_UNSEEN, store.places) + 1)


def lowest_free(
    store: Store, need: Need, start: int = 0, avoid: Collection[int] = (), cooling: Collection[int] = ()
) -> int | None:
    """The first address that can be claimed, from `start` to the end of the range and then from its beginning.

    The few addresses in `avoid` and the many in `cooling` are passed over.
    """
    rng = need.rng

    def occupied(low: int, high: int) -> int:
        bits = store.occupied(need.pool, need.scope, rng.family, low, high)
        if cooling:
            bits |= sum(1 << value - low for value in range(low, high + 1) if value in cooling)
        return bits

    def next_open(low: int, high: int) -> int:
        return store.next_open(need.pool, need.scope, rng.family, low, high)

    return allocator.search(rng, occupied, next_open, start, avoid, store.window)


def start_of(rng: Range, owner: Owner, contended: int) -> int:
    """The address at which a search begins: the lowest of the range while `contended` is 0, then one that differs by owner."""
    if contended <= _NEAR:
        return allocator.search_start(rng, owner.node, owner.attachment.key(), _NEAR_SPREAD) if contended else 0
    return allocator.search_start(rng, owner.node, (*owner.attachment.key(), str(contended)))


def _windows(store: Store, wanted: Sequence[Need], owner: Owner, contended: int) -> list[Window]:
    """The windows that `search` reads first."""
    found = []
    for need in wanted:
        rng = need.rng
        window = allocator.window_from(rng, start_of(need.rng, owner, contended), rng.last, store.window)
        if need.requested is None and window:
            found.append((need.pool, need.scope, rng.family, *window))
    return found


def search(
    store: Store,
    wanted: Sequence[Need],
    chosen: Sequence[int | None],
    owner: Owner,
    contended: int,
    reclaim: Callable[[str], bool],
    liked: Sequence[tuple[int, int]] = (),
) -> list[int]:
    """`chosen` with a free address in place of each None, if possible one of `liked`; Exhausted when none is free."""
    values: list[int] = []
    proposed: list[int] = []  # indices of `wanted`
    for i, (need, value) in enumerate(zip(wanted, chosen, strict=True)):
        if value is None:
            start = start_of(need.rng, owner, contended)
            others = (*zip(wanted, values), *zip(wanted[i + 1 :], chosen[i + 1 :], strict=True))  # noqa: B905
            avoid = [v for n, v in others if v is not None and n.rng.family == need.rng.family]
            cooling = cooling_of(store, need, owner)
            value = _liked(store, need, liked, {*avoid, *cooling})
            if value is None and contended in unseen(store) and start not in {*avoid, *cooling}:
                value = start
            if value is None:
                value = lowest_free(store, need, start, avoid, cooling)
                if value is not None and store.is_claimed_here(need.want(value)):
                    value = _unclaimed(store, need, value, {*avoid, *cooling})
            if value is None and reclaim(need.pool):
                cooling = cooling_of(store, need, owner)
                value = lowest_free(store, need, start, avoid, cooling)
            if value is None:
                free = sum(wanted[j].rng.family == need.rng.family and need.rng.usable(values[j]) for j in proposed)
                raise _exhausted(need, free, sum(map(need.rng.usable, cooling)))
            proposed.append(i)
        values.append(value)
    return values


def _unclaimed(store: Store, need: Need, value: int, avoid: Collection[int]) -> int:
    """The next free address of the window that no other call of this node is about to claim; else `value`."""
    last = min(value | store.window - 1, need.rng.last)
    bits = store.occupied(need.pool, need.scope, need.rng.family, value, last)
    for at in range(value + 1, last + 1):
        may_be_given = not bits >> at - value & 1 and need.rng.usable(at) and at not in avoid
        if may_be_given and not store.is_claimed_here(need.want(at)):
            return at
    return value


def _liked(store: Store, need: Need, liked: Sequence[tuple[int, int]], avoid: Collection[int]) -> int | None:
    """The first of `liked` that is free and that the range of `need` gives; None when no address is both."""
    for family, value in liked:
        may_be_given = family == need.rng.family and need.rng.usable(value) and value not in avoid
        if may_be_given and not store.occupied(need.pool, need.scope, family, value, value):
            return value
    return None


def cooling_of(store: Store, need: Need, owner: Owner) -> Collection[int]:
    """The addresses of `need` that `owner` may not have yet, since another pod has just given them up."""
    if not store.cooldown:
        return ()
    return store.cooling(need.pool, need.scope, need.rng.family, need.rng.first, need.rng.last, owner)


def _check_requested(store: Store, wanted: Sequence[Need], kept: Sequence[Lease], owner: Owner) -> None:
    """Raise TryAgainLater when a requested address is cooling; those of the leases `kept` are not asked about."""
    held = {(lease.pool, lease.value) for lease in kept}
    for need in wanted:
        value = need.requested
        if value is None or (need.pool, value) in held:
            continue
        if value in store.cooling(need.pool, need.scope, need.rng.family, value, value, owner):
            raise TryAgainLater(
                f"the requested address {format_address(need.rng.family, value)} (pool {need.pool}) was freed by another pod"
                f" less than {store.cooldown} s ago (ipam.cooldown_seconds): ask for another one, or retry later"
            )


def _exhausted(need: Need, free: int, cooling: int) -> Exhausted:
    size = need.rng.size()
    waiting = f", {cooling} of them until their ipam.cooldown_seconds are over" if cooling else ""
    return Exhausted(
        f"pool {need.pool} is exhausted: {size - free} of the {size} addresses that range {need.rng} may give are in use{waiting}."
        " Delete attachments or enlarge the range; `railcni ipam leases` shows who holds them"
    )


def _lost(
    store: Store,
    wanted: Sequence[Need],
    wants: Sequence[Want],
    planned: rules.Plan,
    taken: Sequence[Want],
    owner: Owner,
) -> list[Want]:
    """Those of `taken` that the plan would have kept; TryAgainLater when one of them was requested.

    A request of a killed call may have made a lease of the owner or of its pod after `survey`. That is no loss: the next
    plan keeps the lease.
    """
    known = {lease.key() for lease in planned.given_up}
    lost = []
    for need, want, kept in zip(wanted, wants, planned.chosen, strict=True):
        if want not in taken or kept is None:
            continue
        holder = store.holder(want)
        if holder is None:
            continue  # it is free again
        if holder.key() not in known:
            ours = holder.attachment == owner.attachment
            if ours or (need.requested is None and rules.may_take_over(holder, owner)):
                continue
        if need.requested is not None:
            raise _held(need, holder)
        lost.append(want)
    return lost


def _held(need: Need, holder: Lease) -> TryAgainLater:
    address = format_address(holder.family, holder.value)
    return TryAgainLater(
        f"the requested address {address} (pool {holder.pool}) is held by {holder.holder()}: ask for another one, or detach that"
    )
