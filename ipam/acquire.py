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

    from ipam.leases import Need

CLAIM_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 1.0  # seconds
_UNKNOWN_TRIES = 3


class Exhausted(TryAgainLater):
    """A pool has no free address."""


def acquire(
    store: Store,
    wanted: Sequence[Need],
    owner: Owner,
    remember: Callable[[Sequence[Want], int], None],
    reclaim: Callable[[str], bool],
    doubtful: Sequence[Want] = (),
) -> list[int]:
    """The addresses that meet `wanted`, in that order, leased to `owner`: all of them, or none and an error.

    `doubtful` are not kept by who has them: a release of them may still be on its way.
    `remember(wants, sequence)` is called before a claim is made. `reclaim(pool)` is called when a pool is exhausted,
    and says whether it freed something. Raises Exhausted; TryAgainLater when a requested address is held by another
    or when the claims of others win for CLAIM_SECONDS; what the store raises.
    """
    deadline = time.monotonic() + CLAIM_SECONDS
    pause = _FIRST_PAUSE
    lost = list(doubtful)
    contended, unknown = False, 0
    while True:
        with store.turn():
            own, pods = store.survey(owner.attachment, owner.pod, _windows(store, wanted, owner, contended))
            plan = leases.plan(wanted, own, pods, owner, lost)
            values = search(store, wanted, plan.chosen, owner, contended, reclaim)
            wants = [need.want(value) for need, value in zip(wanted, values, strict=True)]
            if plan.settled:
                store.sync()
                remember(wants, own[0].sequence)
                return values
            remember(wants, owner.sequence)
            answer = store.claim(wants, owner, plan.given_up)
            if isinstance(answer, Claimed):
                return values
            if isinstance(answer, Taken):
                lost += _lost(store, wanted, wants, plan.chosen, answer.wants)
                contended = contended or any(
                    w in answer.wants for w, c in zip(wants, plan.chosen, strict=True) if c is None
                )
        if isinstance(answer, Unknown):  # the next turn's `find` tells whether it was made
            unknown += 1
            if unknown == _UNKNOWN_TRIES:
                raise answer.reason
            owner.sequence = max(time.time_ns(), owner.sequence + 1)  # what is under way still has the former
        if time.monotonic() > deadline:
            raise TryAgainLater(
                f"no address of {', '.join(need.pool for need in wanted)} could be claimed within {CLAIM_SECONDS:g} s,"
                " because others claim from there at the same time: retry"
            )
        time.sleep(pause * (0.5 + posix.urandom(1)[0] / 256))
        pause = min(2 * pause, _LONGEST_PAUSE)


def lowest_free(store: Store, need: Need, start: int = 0, avoid: Collection[int] = ()) -> int | None:
    """The first address that can be claimed, from `start` to the end of the range and then from its beginning."""
    rng = need.rng

    def occupied(low: int, high: int) -> int:
        return store.occupied(need.pool, need.scope, rng.family, low, high)

    def next_open(low: int, high: int) -> int:
        return store.next_open(need.pool, need.scope, rng.family, low, high)

    return allocator.search(rng, occupied, next_open, start, avoid, store.window)


def _start(need: Need, owner: Owner, contended: bool) -> int:
    """Where the search in a range begins."""
    return allocator.search_start(need.rng, owner.node, owner.attachment.key()) if contended else 0


def _windows(
    store: Store, wanted: Sequence[Need], owner: Owner, contended: bool
) -> list[tuple[str, str | None, int, int, int]]:
    """The windows that `search` looks at first."""
    found = []
    for need in wanted:
        rng = need.rng
        window = allocator.window_from(rng, _start(need, owner, contended), rng.last, store.window)
        if need.requested is None and window:
            found.append((need.pool, need.scope, rng.family, *window))
    return found


def search(
    store: Store,
    wanted: Sequence[Need],
    chosen: Sequence[int | None],
    owner: Owner,
    contended: bool,
    reclaim: Callable[[str], bool],
) -> list[int]:
    """`chosen` with a free address in place of each None; Exhausted when there is none."""
    values: list[int] = []
    proposed: list[int] = []  # indices of `wanted`
    for i, (need, value) in enumerate(zip(wanted, chosen, strict=True)):
        if value is None:
            start = _start(need, owner, contended)
            others = (*zip(wanted, values), *zip(wanted[i + 1 :], chosen[i + 1 :], strict=True))  # noqa: B905
            avoid = [v for n, v in others if v is not None and n.rng.family == need.rng.family]
            value = lowest_free(store, need, start, avoid)
            if value is None and reclaim(need.pool):
                value = lowest_free(store, need, start, avoid)
            if value is None:
                free = sum(wanted[j].rng.family == need.rng.family and need.rng.usable(values[j]) for j in proposed)
                raise _exhausted(need, free)
            proposed.append(i)
        values.append(value)
    return values


def _exhausted(need: Need, free: int) -> Exhausted:
    size = need.rng.size()
    return Exhausted(
        f"pool {need.pool} is exhausted: {size - free} of the {size} addresses that range {need.rng} may give are in use."
        " Delete attachments or enlarge the range; `railcni ipam leases` shows who holds them"
    )


def _lost(
    store: Store, wanted: Sequence[Need], wants: Sequence[Want], chosen: Sequence[int | None], taken: Sequence[Want]
) -> list[Want]:
    """Those of `taken` that were to be kept; an error when one of them was requested."""
    lost = []
    for need, want, kept in zip(wanted, wants, chosen, strict=True):
        if want not in taken or kept is None:
            continue
        holder = store.holder(want)
        if holder is None:
            continue  # it has become free
        if need.requested is not None:
            raise _held(need, holder)
        lost.append(want)
    return lost


def _held(need: Need, holder: Lease) -> TryAgainLater:
    address = format_address(holder.family, holder.value)
    return TryAgainLater(
        f"the requested address {address} (pool {holder.pool}) is held by {holder.holder()}: ask for another one, or detach that"
    )
