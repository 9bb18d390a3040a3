"""What every store of leases promises.

An address has at most one lease in its pool, and at most one among the leases of a reservation scope, whatever their pools:
so ranges that overlap give no address twice. `claim` makes all leases that it is asked for, or none. `release` may free some
of them before an error: the caller keeps its record and calls again.

Processes and nodes may share a store. Only speed depends on sessions: across nodes `claim` decides, and may answer Taken.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from cni.shared.spec.errors import TryAgainLater

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any

    from cni.shared.spec.errors import CniError
    from cni.shared.spec.request import Attachment
    from ipam.leases import Lease, Owner, Pool, Want
    from ipam.stores.http import Client, Connection

    Window = tuple[str, str | None, int, int, int]  # pool, scope, family, low, high

READ, CHANGE, CREATE = range(3)  # what a store is opened for; where there is none, CREATE makes it, else it is empty

SHARED_SECONDS = 2.0  # how long a request to a store that nodes share may take, unless it is for an ADD
_SECOND_PAUSE = 0.005  # seconds, after a first of none
FORMER = 10_000  # how many former addresses a store remembers; the oldest are forgotten


connections: dict[Any, Connection] | None = None
"""The open connections of a warm worker, by the keys for their use; None in a process that serves one call."""
at_end: list[Callable[[], None]] = []
"""A warm worker calls these functions when a call is over: each keeps or closes a connection."""


class Unreachable(TryAgainLater):
    """A store that nodes share cannot be reached, or does not serve now."""


class Open(Unreachable):
    """A request was sent and no answer came: the store may have carried it out."""


class Pauses:
    """The pauses between the attempts of a change that others forestall, until `deadline` (time.monotonic).

    Each is about a time that doubles from `first` to `longest` seconds, and begins with half of the time of an attempt: a
    server is asked the less often the slower it is. The less time is left, the shorter is the pause: an old change wins against
    newer ones. A `first` of 0 is no pause at all.
    """

    __slots__ = ("_deadline", "_longest", "_pause", "_seconds", "_since")

    def __init__(self, deadline: float, first: float = 0.02, longest: float = 1.0) -> None:
        self._deadline = deadline
        self._since = time.monotonic()
        self._seconds = max(deadline - self._since, 1e-3)
        self._pause = first
        self._longest = longest

    def wait(self, more: float = 0.0) -> bool:
        """Pause, `more` seconds longer; False, at once, when no time is left for another attempt."""
        now = time.monotonic()
        left = self._deadline - now
        if self._pause:
            self._pause = min(max(self._pause, (now - self._since) / 2), self._longest)
        if left < self._pause + more:
            return False
        time.sleep(more + self._pause * min(1.0, left / self._seconds) * (0.5 + os.urandom(1)[0] / 256))
        self._pause = min(2 * self._pause, self._longest) or _SECOND_PAUSE
        self._since = time.monotonic()
        return True

    def insist(self, refusal: CniError) -> None:
        """Pause before another attempt; without time for one raise `refusal`."""
        if not self.wait():
            raise refusal from None


class Survey:
    """A store's answer before an address is chosen.

    `own`: the leases of the attachment. `pods`: the leases of the pod's (namespace, name) and ifname, whatever the uid,
    at least those in this node's records, since a sandbox is made again on its node. `former`: the former addresses,
    (family, value), of a pod that `returns`, for this ifname. `near_full`: a free address is sooner found elsewhere
    than in `windows`.
    """

    __slots__ = ("former", "near_full", "own", "pods")

    def __init__(
        self, own: list[Lease], pods: list[Lease], former: list[tuple[int, int]], near_full: bool = False
    ) -> None:
        self.own = own
        self.pods = pods
        self.former = former
        self.near_full = near_full


class Claimed:
    """Answer of `claim`: the store has these leases now."""

    __slots__ = ("leases",)

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = leases


class Taken:
    """Answer of `claim`: nothing was changed. Others hold `wants`, or a lease to be given up no longer held them.

    Without any, others changed the store at the same time, and the same claim may succeed next time.
    """

    __slots__ = ("wants",)

    def __init__(self, wants: list[Want]) -> None:
        self.wants = wants


class Unknown:
    """Answer of `claim`: whether the change was made is open until a new session's `find`. `reason` is the error."""

    __slots__ = ("reason",)

    def __init__(self, reason: CniError) -> None:
        self.reason = reason


class Store:
    """A store of leases. Every method may raise a CniError that names the store; then nothing was changed, but by `release`.

    Each method begins a session of its own unless the caller is in one. A store remembers freed addresses as far as it has room:
    the last address of a pod that `returns`, a preference (`survey`), and for `cooldown` seconds the former pod, which alone may
    get the address (`cooling`).

    `is_claimed_here` says whether another call of this node is about to claim an address, else this call is. A search that
    asks it spares calls at once the claims that they would lose to one another.
    """

    __slots__ = ("_depth", "cooldown", "is_claimed_here")

    kind = ""
    window = 4096  # addresses of one step of a search: a power of two, at most WINDOW of ipam.search
    spreads = True  # whether claims of different addresses of a pool succeed at once
    places = 0  # places of a pool that a search tries before it reads on from a full window

    def __init__(self) -> None:
        self.cooldown = 0
        self.is_claimed_here: Callable[[Want], bool] = lambda want: False
        self._depth = 0

    def record(self) -> dict[str, Any]:
        """The reference to this store in a record: JSON with the member `kind`."""
        raise NotImplementedError

    def session(self) -> Store:
        """`with store.session():` its readings hold until its end, as far as the store can ensure that."""
        return self

    def __enter__(self) -> Store:
        self._depth += 1
        if self._depth == 1:
            try:
                self._begin()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._end()

    def _begin(self) -> None:
        """Begin the outermost session; TryAgainLater when the store cannot do so in time."""

    def _end(self) -> None:
        """End the outermost session, also after `_begin` has failed."""

    def take_locks(self) -> None:
        """Take the locks by which the sessions of this node queue; without this call the first reading takes them."""

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """From now on a claim of `attachment` with this or an older sequence fails, also one that is still on its way to a server."""

    def ready(self, wants: Sequence[Want] = ()) -> None:
        """Test, without a change, that the store can write new leases, of `wants`; CniError."""

    def find(self, attachment: Attachment) -> list[Lease]:
        """The leases of an attachment, by pool and address."""
        raise NotImplementedError

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        """The addresses of low..high that were freed less than their cooldown ago, and not by the pod of `owner`."""
        raise NotImplementedError

    def survey(self, owner: Owner, windows: Sequence[Window], new: bool) -> Survey:
        """The readings that an ADD begins with, in few requests; `windows` are probable next questions to `occupied`.

        `new`: the attachment never had a lease, and readings may be a moment old: a claim finds any change since.
        """
        raise NotImplementedError

    def finish_by(self, deadline: float) -> None:
        """Bound all requests by `deadline` (time.monotonic), in a store behind a server."""

    def hurry(self) -> None:
        """Try no connection again, in a store behind a server: a release stays in the record."""

    def holder(self, want: Want) -> Lease | None:
        """The lease that keeps `want` from being claimed."""
        raise NotImplementedError

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        """The bitset of the addresses low..high, of one window, that cannot be claimed: bit i stands for low + i."""
        raise NotImplementedError

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        """An address from `value` on below which none of value..high can be claimed, at most high + 1; it only saves reading."""
        raise NotImplementedError

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        """Give up `instead_of`, which begins its cooldown, and lease all `wants` to `owner` in one step; or change nothing.

        The callers ask for the addresses of one attachment, or of one index of a group of rails: up to 48 (ipam.group.indexes).
        """
        raise NotImplementedError

    def release(self, leases: Sequence[Lease]) -> int:
        """Free those of `leases` that the store still has as they are here; their number. After an error some may be free."""
        raise NotImplementedError

    def forget(self) -> None:
        """Remove old memories of freed addresses, in a store that does not do so at each change."""

    def leases(self, pool: str, after: Lease | None = None, limit: int = 1000, node: str = "") -> list[Lease]:
        """Up to `limit` leases of a pool after `after`, in the order of their addresses; with `node` those of it alone."""
        raise NotImplementedError

    def each_lease(self, pool: str, node: str = "") -> Iterator[Lease]:
        """Read all leases of a pool, page by page; with `node` those of it alone."""
        page = self.leases(pool, node=node)
        while page:
            yield from page
            page = self.leases(pool, page[-1], node=node)

    def pools(self) -> list[Pool]:
        """The pools that have leases, by name."""
        raise NotImplementedError


class ServedStore(Store):
    """A store behind a server: `store_ref` is the reference of a record, `client` makes the requests."""

    __slots__ = ("_client", "_store_ref")

    def __init__(self, store_ref: dict[str, Any], client: Client) -> None:
        super().__init__()
        self._store_ref = store_ref
        self._client = client

    def record(self) -> dict[str, Any]:
        return self._store_ref

    def finish_by(self, deadline: float) -> None:
        self._client.deadline = deadline

    def hurry(self) -> None:
        self._client.hurries = True

    def close(self) -> None:
        self._client.close()


def conflicts(
    instead_of: Sequence[Lease],
    wants: Sequence[Want],
    is_there: Callable[[Lease], bool],
    is_held: Callable[[Want, Sequence[Lease]], bool],
) -> list[Want]:
    """The leases to be given up that have ended, and the wants that exclude one another, or that others hold.

    `is_held`: whether another lease holds the address of a want, when these leases are given up.
    """
    given: list[Lease] = []
    accepted: list[Want] = []
    taken: list[Want] = []
    for old in instead_of:
        is_given = is_there(old) and not any(old.place == other.place for other in given)
        (given if is_given else taken).append(old)
    for want in wants:
        held = any(want.excludes(other) for other in accepted) or is_held(want, given)
        (taken if held else accepted).append(want)
    return taken
