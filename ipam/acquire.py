"""From what an attachment needs to the leases it has: propose, claim, and again until a claim succeeds.

The lowest free address is proposed, until a claim is lost to somebody else; then the search begins elsewhere
(ipam.allocator.search_start), and every further try waits a little longer, by a random time.
"""

from __future__ import annotations

import posix
import time

from cni.spec.errors import TryAgainLater
from ipam import allocator, leases
from ipam.ranges import format_address
from ipam.stores.base import Claimed, Lease, Owner, Store, Taken, Unknown, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Protocol

    from ipam.leases import Need
    from ipam.ranges import Range

    class Choice(Protocol):
        """How the addresses of a claim are chosen: `windows` and `search` as here, `plan` as in ipam.leases."""

        def windows(
            self, store: Store, wanted: Sequence[Need], owner: Owner, contended: int, /
        ) -> list[tuple[str, str | None, int, int, int]]: ...

        def plan(
            self,
            wanted: Sequence[Need],
            own: Sequence[Lease],
            pods: Sequence[Lease],
            owner: Owner,
            lost: Collection[Want],
            /,
        ) -> leases.Plan: ...

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
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 1.0  # seconds
_UNKNOWN_TRIES = 3
_PLACES = 5  # that are looked at before a store goes on from a full one


class Exhausted(TryAgainLater):
    """A pool has no free address."""


class Terms:
    """What a claim has to do with besides its store, its needs and its owner.

    `remember(wants, sequence)` is called before each claim, and with what is leased already. `reclaim(pool)` is called
    when a pool is exhausted: whether it has freed something. `doubtful` are addresses that are not to be kept, since a
    release of them may still be on its way. `preferred()` answers the addresses, (family, value), that are given if
    they are free, the best first. All is over in `seconds`, 0: CLAIM_SECONDS. `choice` is how the addresses are
    chosen, None: each by itself.
    """

    __slots__ = ("choice", "doubtful", "preferred", "reclaim", "remember", "seconds")

    def __init__(
        self,
        remember: Callable[[Sequence[Want], int], object],
        reclaim: Callable[[str], bool] = lambda pool: False,
        doubtful: Sequence[Want] = (),
        preferred: Callable[[], list[tuple[int, int]]] = list,
        seconds: float = 0,
        choice: Choice | None = None,
    ) -> None:
        self.remember = remember
        self.reclaim = reclaim
        self.doubtful = doubtful
        self.preferred = preferred
        self.seconds = seconds or CLAIM_SECONDS
        self.choice = choice


def acquire(store: Store, wanted: Sequence[Need], owner: Owner, terms: Terms) -> list[int]:
    """Lease an address for each of `wanted` to `owner`, all or none; the addresses, in the order of the needs.

    Raises Exhausted; TryAgainLater when a requested address is held by another or when the claims of others win for
    so long; what the store raises.
    """
    deadline = time.monotonic() + terms.seconds
    store.finish_by(deadline)
    attempts = _Attempts(store, wanted, owner, terms)
    pause = 0.0 if store.spreads else _FIRST_PAUSE  # after the first lost claim the search begins elsewhere
    unknown = 0
    while True:
        with store.turn():
            while True:
                began = time.monotonic()
                answer = attempts.once()
                if not isinstance(answer, Taken | Unknown):
                    return answer
                if pause:
                    pause = max(pause, (time.monotonic() - began) / 2)  # a slow server is asked less often
                if isinstance(answer, Unknown) or time.monotonic() + pause > deadline:
                    break
                pause = _wait(pause)
        if isinstance(answer, Unknown):  # the next turn's `find` tells whether it was made
            unknown += 1
            if unknown == _UNKNOWN_TRIES or time.monotonic() + pause > deadline:
                raise answer.reason
            owner.sequence = max(time.time_ns(), owner.sequence + 1)  # what is under way still has the former
            pause = _wait(pause)
            continue
        raise TryAgainLater(
            f"no address of {', '.join(need.pool for need in wanted)} could be claimed within {terms.seconds:g} s,"
            " because others claim from there at the same time: retry"
        )


def _wait(pause: float) -> float:
    """Wait for a random part of `pause`, in seconds; how long to wait at most the next time."""
    time.sleep(pause * posix.urandom(1)[0] / 256)
    return min(2 * pause, _LONGEST_PAUSE) or _FIRST_PAUSE


class _Attempts:
    """Attempts at one claim, and what the former ones have shown."""

    __slots__ = ("_contended", "_liked", "_lost", "_owner", "_store", "_terms", "_wanted")

    def __init__(self, store: Store, wanted: Sequence[Need], owner: Owner, terms: Terms) -> None:
        self._store = store
        self._wanted = wanted
        self._owner = owner
        self._terms = terms
        self._lost = list(terms.doubtful)
        self._liked: list[tuple[int, int]] | None = None
        self._contended = 0  # which place the search begins at

    def once(self) -> list[int] | Taken | Unknown:
        """One attempt, in a turn of the store: the addresses, or why it was not made."""
        store, wanted, owner, terms = self._store, self._wanted, self._owner, self._terms
        choice = terms.choice
        windows, plan, find = (
            (choice.windows, choice.plan, choice.search) if choice else (_windows, leases.plan, search)
        )
        window = windows(store, wanted, owner, self._contended)
        own, pods, former = store.survey(owner.attachment, owner.pod, window)
        planned = plan(wanted, own, pods, owner, self._lost)
        while None in planned.chosen and self._contended < _PLACES and store.are_full(window):
            self._contended += 1
            window = windows(store, wanted, owner, self._contended)
        if self._liked is None and None in planned.chosen:
            self._liked = [*terms.preferred(), *former]
        if store.cooldown:
            _check_requested(store, wanted, planned.given_up, owner)
        try:
            values = find(store, wanted, planned.chosen, owner, self._contended, terms.reclaim, self._liked or ())
        except Exhausted:
            if store.looks_again():
                return Taken([])
            raise
        wants = [need.want(value) for need, value in zip(wanted, values, strict=True)]
        if planned.settled:
            store.sync()
            terms.remember(wants, own[0].sequence)
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
                self._contended = self._contended or 1
        return answer


def lowest_free(
    store: Store, need: Need, start: int = 0, avoid: Collection[int] = (), cooling: Collection[int] = ()
) -> int | None:
    """The first address that can be claimed, from `start` to the end of the range and then from its beginning.

    Neither one to `avoid` nor one that is `cooling`: few and many.
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
    """Where the search in a range begins: `contended` 0 at its lowest address, else at a place that differs by owner."""
    place = (*owner.attachment.key(), str(contended)) if contended > 1 else owner.attachment.key()
    return allocator.search_start(rng, owner.node, place) if contended else 0


def _windows(
    store: Store, wanted: Sequence[Need], owner: Owner, contended: int
) -> list[tuple[str, str | None, int, int, int]]:
    """The windows that `search` looks at first."""
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
    """`chosen` with a free address in place of each None, one of `liked` if there is one; Exhausted when none is free."""
    values: list[int] = []
    proposed: list[int] = []  # indices of `wanted`
    for i, (need, value) in enumerate(zip(wanted, chosen, strict=True)):
        if value is None:
            start = start_of(need.rng, owner, contended)
            others = (*zip(wanted, values), *zip(wanted[i + 1 :], chosen[i + 1 :], strict=True))  # noqa: B905
            avoid = [v for n, v in others if v is not None and n.rng.family == need.rng.family]
            cooling = cooling_of(store, need, owner)
            value = _liked(store, need, liked, {*avoid, *cooling})
            if value is None:
                value = lowest_free(store, need, start, avoid, cooling)
            if value is None and reclaim(need.pool):
                cooling = cooling_of(store, need, owner)
                value = lowest_free(store, need, start, avoid, cooling)
            if value is None:
                free = sum(wanted[j].rng.family == need.rng.family and need.rng.usable(values[j]) for j in proposed)
                raise _exhausted(need, free, sum(map(need.rng.usable, cooling)))
            proposed.append(i)
        values.append(value)
    return values


def _liked(store: Store, need: Need, liked: Sequence[tuple[int, int]], avoid: Collection[int]) -> int | None:
    """The first of `liked` that `need` may be given and that is free."""
    for family, value in liked:
        open_to_it = family == need.rng.family and need.rng.usable(value) and value not in avoid
        if open_to_it and not store.occupied(need.pool, need.scope, family, value, value):
            return value
    return None


def cooling_of(store: Store, need: Need, owner: Owner) -> Collection[int]:
    """The addresses of `need` that are kept from `owner`, for another has just given them up."""
    if not store.cooldown:
        return ()
    return store.cooling(need.pool, need.scope, need.rng.family, need.rng.first, need.rng.last, owner)


def _check_requested(store: Store, wanted: Sequence[Need], kept: Sequence[Lease], owner: Owner) -> None:
    """TryAgainLater when a requested address that none of the leases `kept` has is cooling."""
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
    planned: leases.Plan,
    taken: Sequence[Want],
    owner: Owner,
) -> list[Want]:
    """Those of `taken` that were to be kept; an error when one of them was requested.

    A lease of the owner or of its pod that the plan did not know, since a request of a killed call has made it after
    `survey`, is no loss: the next plan keeps it.
    """
    known = {lease.key() for lease in planned.given_up}
    lost = []
    for need, want, kept in zip(wanted, wants, planned.chosen, strict=True):
        if want not in taken or kept is None:
            continue
        holder = store.holder(want)
        if holder is None:
            continue  # it has become free
        if holder.key() not in known:
            ours = holder.attachment == owner.attachment
            if ours or (need.requested is None and leases.may_take_over(holder, owner)):
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
