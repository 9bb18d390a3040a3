"""The contract of every store of leases.

An address has at most one lease in its pool, and at most one in its reservation scope, which spans several pools. So
overlapping ranges give no address twice. `claim` makes all leases of its `wants`, or none. `release` may free some
leases before an error. The caller then keeps its record and calls `release` again.

Processes and nodes may share a store. A session (`Store.session`) only saves time. Correctness depends on `claim`
alone, which may answer Taken.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Pool, Want

Window = tuple[str, str | None, int, int, int]  # pool, scope, family, low, high
READ, CHANGE, CREATE = range(3)  # uses of a store; CREATE makes a missing file, which otherwise counts as empty

SHARED_SECONDS = 2.0  # the limit of a request to a store that nodes share, except for an ADD
_SECOND_PAUSE = 0.005  # seconds; the second pause if the first is 0
FORMER = 10_000  # former addresses that a store remembers; the oldest are forgotten


lease_files: dict[tuple[str, int], Any] | None = None
"""The open, unlocked lease files of a warm worker, by (path, use). None in a process that serves one call."""
connections: dict[Any, Any] | None = None
"""The open connections of a warm worker, by the keys of http.Client.kept. None in a process that serves one call."""
at_end: list[Callable[[], None]] = []
"""The functions that a warm worker calls at the end of each call. Each function keeps or closes a connection."""


class KeptOpen:
    """Keep the lease files and the connections to stores open between the calls of a warm worker."""

    def __init__(self) -> None:
        global connections, lease_files
        connections, lease_files = {}, {}

    def files(self) -> int:
        """The number of file descriptors that are kept open. A lease file has two, for its lock and for SQLite."""
        return 2 * len(lease_files or ()) + len(connections or ())

    def end_call(self) -> None:
        """Close each connection of the call that ends, or keep it for the next call."""
        while at_end:
            at_end.pop()()


class Unreachable(TryAgainLater):
    """Error: a store that nodes share cannot be reached, or does not serve now."""


class OutcomeUnknown(Unreachable):
    """Error: a request was sent, and its outcome is unknown: the store may have carried it out."""


class Denied(InvalidConfig):
    """Error: an API server does not accept the credentials, or they do not allow a request."""


class Pauses:
    """The pauses between repeated attempts at a request or a change, until `deadline` (time.monotonic).

    The pauses double from `first` up to `longest` seconds. To spare a slow server, a pause is at least half as long as
    the last attempt. A random factor changes each pause. Pauses become shorter near the deadline, so the change that
    has waited longest wins against newer changes. If `first` is 0, there is no pause before the second attempt.
    """

    def __init__(self, deadline: float, first: float = 0.02, longest: float = 1.0) -> None:
        self._deadline = deadline
        self._since = time.monotonic()
        self._seconds = max(deadline - self._since, 1e-3)
        self._pause = first
        self._longest = longest

    def wait(self, more: float = 0.0) -> bool:
        """Make the next pause, longer by `more` seconds, and return True. If no time would be left for another attempt,
        return False at once."""
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
        """Pause before another attempt. Raises `refusal` when no time is left for another attempt."""
        if not self.wait():
            raise refusal from None


class Survey:
    """The readings of a store that an ADD needs before it chooses an address.

    `own` are the leases of the attachment. `pods` are the leases of the pod's namespace, name and ifname, with any uid.
    Some stores find only leases with a record on this node: enough, since a pod gets a new sandbox only on its node.
    `former` has the addresses (family, value) that a former pod of this name had on the ifname, if pods can reuse names
    (ipam.leases.returns). If `near_full` is true, the first window has little room: begin the search elsewhere.
    """

    def __init__(
        self, own: list[Lease], pods: list[Lease], former: list[tuple[int, int]], near_full: bool = False
    ) -> None:
        self.own = own
        self.pods = pods
        self.former = former
        self.near_full = near_full


class Claimed:
    """Answer of `claim`: the store now has these `leases`."""

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = leases


class Taken:
    """Answer of `claim`: nothing was changed.

    `wants` are the addresses that prevented the claim (see `served.conflicts`). If `wants` is empty, others changed the
    store at the same time, and the same claim may succeed next time.
    """

    def __init__(self, wants: list[Want]) -> None:
        self.wants = wants


class Unknown:
    """Answer of `claim`: the outcome is unknown until `find`, in a new session, shows it. `reason` is the error.

    If `failed` is true, nothing was changed, and the store will not execute the claim later.
    """

    def __init__(self, reason: CniError, failed: bool = False) -> None:
        self.reason = reason
        self.failed = failed


class Store:
    """A store of leases. Any method may raise a CniError that names the store; only `release` may then have changed it.

    Each store implements `record`, and for its leases find, holder, claim, release, pools and `_page`. The search for a
    free address calls survey, occupied, next_open and cooling. Only some stores need the other methods.

    Each method begins its own session unless the caller is in a session. While there is room, a store remembers the
    last address of a pod whose name a later pod may get (ipam.leases.returns), and gives it to this later pod. It also
    remembers the former pod of a freed address. No other pod gets the address for `cooldown` seconds.

    `is_claimed_here(want)` tells whether another call of this node is about to claim the address. If not, the function
    notes that this call is about to claim it. So simultaneous calls of one node choose different addresses.
    """

    kind = ""
    window = 4096  # addresses of one step of a search: a power of two
    page = 1000  # leases in one reading
    spreads = True  # whether simultaneous claims of different addresses of a pool all succeed
    replaces = False  # whether a claim makes each earlier claim of the attachment for the same addresses fail
    places = 0  # spread positions in a pool that a search tries before it reads the pool window by window

    def __init__(self) -> None:
        self.cooldown = 0
        self.is_claimed_here: Callable[[Want], bool] = lambda want: False
        self.unread: list[str] = []
        self._depth = 0

    def record(self) -> dict[str, Any]:
        """The reference to this store that a record keeps: a JSON object with the member `kind`."""
        raise NotImplementedError

    def session(self) -> Store:
        """A `with` block in which the store reuses its readings. A store with locks excludes other processes in it."""
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
        """Begin the outermost session. Raises TryAgainLater when another process holds a lock for too long."""

    def _end(self) -> None:
        """End the outermost session, also after `_begin` has failed."""

    def take_locks(self) -> None:
        """Take the locks that serialize this node's sessions. By default the first reading of a session takes them."""

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """Make each claim of `attachment` with this or a lower `sequence` fail, even a claim that has yet to arrive."""

    def ready(self, wants: Sequence[Want] = ()) -> None:
        """Raise CniError if the store could not write new leases for `wants`. Does not change the store."""

    def find(self, attachment: Attachment) -> list[Lease]:
        """The leases of an attachment, sorted by pool and address."""
        raise NotImplementedError

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        """The addresses (integers) from `low` to `high` in their cooldown, except those that the owner's pod freed."""
        raise NotImplementedError

    def survey(self, owner: Owner, windows: Sequence[Window], new: bool) -> Survey:
        """The first readings of an ADD, in few requests. `windows` are those that `occupied` will probably read next.

        If `new` is true, the attachment has never had a lease. Then readings may be a moment old, since the claim fails
        if the address was leased meanwhile.
        """
        raise NotImplementedError

    def finish_by(self, deadline: float = float("inf"), hurries: bool = False) -> None:
        """End all requests by `deadline` (time.monotonic). Only a store behind a server makes requests.

        If `hurries` is true, fail at the first refused connection, since the caller leaves the release for later.
        """

    def holder(self, want: Want) -> Lease | None:
        """The lease that prevents a claim of `want`; None if there is none."""
        raise NotImplementedError

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        """The bitset of the addresses in low..high (within one window) that cannot be claimed: bit i means low + i."""
        raise NotImplementedError

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        """The address from `value` to `high` + 1 at which a search can go on. All addresses before it are occupied."""
        raise NotImplementedError

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        """Lease all `wants` to `owner` and free the leases `instead_of` in one step, or change nothing.

        Returns Claimed when this is done, Taken when nothing was changed, and Unknown when the outcome is not known.
        The cooldown of the freed addresses begins. `wants` are the addresses of one attachment, or of one index of a
        group of rails: at most 48 (ipam.group.indexes.MOST_ADDRESSES). A store may refuse the claims of an attachment
        up to a sequence. It then sets `owner.sequence` to this one and returns Unknown; the next claim needs a higher
        sequence.
        """
        raise NotImplementedError

    def left(self, instead_of: Sequence[Lease], wants: Sequence[Want]) -> list[Lease]:
        """Those leases in `instead_of` that a killed claim may leave beside the leases for `wants`."""
        return []

    def release(self, leases: Sequence[Lease]) -> int:
        """Free those `leases` that are unchanged in the store. Returns their number. May free some and then fail."""
        raise NotImplementedError

    def forget(self) -> None:
        """Remove outdated notes on freed addresses and their pods. Some stores do this at each change instead."""

    def leases(self, pool: str | None = None, node: str = "") -> Iterator[Lease]:
        """Yield the leases of a pool, or of all pools, in any order. With `node`, yield only the leases of this node.

        Leases are read page by page. A text for each API object that cannot be read is appended to `unread`.
        """
        for name in [found.name for found in self.pools()] if pool is None else [pool]:
            page = self._page(name, None, node)
            while page:
                yield from page
                page = self._page(name, page[-1], node)

    def _page(self, pool: str, after: Lease | None, node: str) -> list[Lease]:
        """Up to `page` leases of a pool that follow `after`, sorted by address; with `node` only that node's leases."""
        raise NotImplementedError

    def pools(self) -> list[Pool]:
        """The pools that have leases, sorted by name."""
        raise NotImplementedError
