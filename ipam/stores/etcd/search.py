"""The search for free addresses in etcd, which does not read whole pools.

A search reads blocks of 64 addresses. After a full block, one request counts the leases of each of the next 64
blocks, and of each of the 63 groups of 64 blocks after them. The next request begins at the first group that is not
full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipam.leases import Want
from ipam.stores.base import Window
from ipam.stores.etcd import txn
from ipam.stores.etcd.keys import BLOCK, LEASE, Keys, value_of
from ipam.stores.etcd.txn import Answer, Op, Reply

_COUNTED = 64  # blocks in a request, and blocks in a group: etcd takes 128 reads


class Search:
    """A search; `call` runs a transaction and returns its reply."""

    def __init__(self, keys: Keys, call: Callable[[Op], Reply]) -> None:
        self._keys = keys
        self._call = call
        self._seen: dict[Window, Sequence[Answer]] = {}

    def expect(self, windows: Sequence[Window]) -> list[Op]:
        """The reads that `occupied` needs for `windows`; the caller makes them and passes the answers to `answered`."""
        return [read for window in windows for read in self._reads(window)]

    def answered(self, windows: Sequence[Window], answers: Sequence[Answer]) -> None:
        """Keep the answers to the reads of `expect` by window: the next `occupied` of a window uses them."""
        self._seen.clear()
        for window in windows:
            number = len(self._reads(window))
            self._seen[window], answers = answers[:number], answers[number:]

    def occupied(self, window: Window) -> int:
        """As Store.occupied."""
        pool, scope, family, low, high = window
        answers = self._answers(self._reads(window), window)
        size = high - low + 1
        if scope is not None and answers[1].number == size:  # the count is enough
            return (1 << size) - 1
        bits, own = 0, 0
        for key, value in answers[0].entries:
            bits |= 1 << value_of(key, family) - low
            own += scope is None or value == pool.encode()
        if scope is not None:
            leased = answers[1].number
            if leased != own:  # the pool has leases outside of this scope
                (answer,) = self._answers([self._span(LEASE, pool, family, low, high)])
                for key, _ in answer.entries:
                    bits |= 1 << value_of(key, family) - low
        return bits

    def next_open(self, window: Window) -> int:
        """As Store.next_open. Skips blocks that are full of leases of the pool, or of reservations of the scope."""
        pool, scope, family, value, high = window
        for kind, space in self._keys.places(Want(pool, family, value, scope)):
            at = self._behind_full(kind, space, family, value, high)
            if at > value:
                return at
        return value

    def _behind_full(self, kind: str, space: str, family: int, value: int, high: int) -> int:
        """The first address from `value` on that is in no full block; high + 1 if there is none."""
        at = value & -BLOCK
        while at <= high:
            blocks = range(at, high + 1, BLOCK)[:_COUNTED]
            groups = range(at + _COUNTED * BLOCK, high + 1, _COUNTED * BLOCK)[: _COUNTED - 1]
            spans = [(low, BLOCK) for low in blocks] + [(low, _COUNTED * BLOCK) for low in groups]
            counts = [txn.count(*self._keys.span(family, low, low + size - 1, kind, space)) for low, size in spans]
            for (low, size), answer in zip(spans, self._answers(counts), strict=True):
                at = low
                if answer.number < size:
                    break
                at += size
            if size == BLOCK and at == low:
                return max(at, value)
        return high + 1

    def _reads(self, window: Window) -> list[Op]:
        pool, scope, family, low, high = window
        if scope is None:
            return [self._span(LEASE, pool, family, low, high)]
        (_, (kind, space)) = self._keys.places(Want(pool, family, low, scope))
        leased = txn.count(*self._keys.span(family, low, high, LEASE, pool))
        return [self._span(kind, space, family, low, high, values=True), leased]

    def _span(self, kind: str, space: str, family: int, low: int, high: int, values: bool = False) -> Op:
        return txn.read(*self._keys.span(family, low, high, kind, space), keys_only=not values)

    def _answers(self, reads: list[Op], question: Window | None = None) -> Sequence[Answer]:
        """The answers to `reads`: kept by `answered` for the window `question`, otherwise from a new request."""
        return (self._seen.pop(question, None) if question else None) or self._call(txn.reads(reads)).answers
