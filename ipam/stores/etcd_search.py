"""Which addresses are leased in etcd, found without reading a pool.

A search looks at blocks of 64 addresses. A block that is all taken gets a mark, and 64 marked blocks get one, each
written on the condition that all it stands for is there, and deleted with the first lease that goes: so a mark is
never wrong, and what is marked is skipped. A pool has its marks, and so has a reservation scope.

What costs here is the JSON of the gateway, some 13 us a key: a count is asked for where it says enough.
"""

from __future__ import annotations

from ipam.stores import etcd_txn as txn
from ipam.stores.base import Want
from ipam.stores.etcd_keys import BLOCK, LARGE, LEASE, next_key, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ipam.stores.etcd_keys import Keys
    from ipam.stores.etcd_txn import Op

    Window = tuple[str, str | None, int, int, int]  # pool, scope, family, low, high

_TOP = {4: (1 << 32) - 1, 6: (1 << 128) - 1}


class Search:
    """Reads through `call`, which runs a transaction; `marks`: whether it may write marks."""

    __slots__ = ("_call", "_keys", "_marks", "_seen")

    def __init__(self, keys: Keys, call: Callable[[dict[str, Any]], dict[str, Any]], marks: bool) -> None:
        self._keys = keys
        self._call = call
        self._marks = marks
        self._seen: dict[Window, list[dict[str, Any]]] = {}

    def expect(self, windows: Sequence[Window]) -> list[Op]:
        """The reads that will answer `occupied` for these windows; `met` takes what they answer."""
        return [read for window in windows for read in self._reads(window)]

    def met(self, windows: Sequence[Window], answers: list[dict[str, Any]]) -> None:
        """Keep the answers to `expect`, each for one question."""
        self._seen.clear()
        for window in windows:
            count = len(self._reads(window))
            self._seen[window] = answers[:count]
            answers = answers[count:]

    def occupied(self, window: Window) -> int:
        """As Store.occupied."""
        pool, scope, family, low, high = window
        answers = self._seen.pop(window, None) or self._answers(self._reads(window))
        bits, own, reserved = 0, 0, 0
        for key, value in txn.entries(answers[0]):
            bits |= 1 << value_of(key) - low
            own += scope is None or value.decode() == pool
            reserved += scope is not None
        if scope is not None:
            leased = txn.number(answers[1])
            if leased != own:  # some lease of the pool is not reserved in this scope
                (answer,) = self._answers([self._span(LEASE, pool, family, low, high)])
                for key, _ in txn.entries(answer):
                    bits |= 1 << value_of(key) - low
                own = len(txn.entries(answer))
        if high - low + 1 == BLOCK and low % BLOCK == 0 and BLOCK in (own, reserved):
            places = self._keys.places(Want(pool, family, low, scope))
            for (kind, space), found in zip(places, (own, reserved)):  # noqa: B905
                if found == BLOCK:
                    self._mark(kind, space, family, low, BLOCK)
        return bits

    def next_open(self, window: Window) -> int:
        """As Store.next_open: by the marks of the pool; and where these do not help, by those of the scope."""
        pool, scope, family, value, high = window
        for kind, space in self._keys.places(Want(pool, family, value, scope)):
            at, known = value, False
            while at <= high and not known:
                at, known = self._skip(kind, space, family, at)
            if at > value:
                return min(at, high + 1)
        return value

    def _skip(self, kind: str, space: str, family: int, at: int) -> tuple[int, bool]:
        """(an address from `at` on below which all is marked, whether it is known that its own block is not marked)."""
        start, block = at & -LARGE, at & -BLOCK
        behind = min(start + LARGE * (LARGE // BLOCK), _TOP[family] + 1)
        counted, listed = self._answers(
            [
                self._marked(kind, space, BLOCK, family, block, start + LARGE - 1, count=True),
                self._marked(kind, space, LARGE, family, start, behind - 1),
            ]
        )
        large = {value_of(key) for key, _ in txn.entries(listed)}
        if start not in large:
            if txn.number(counted) < (start + LARGE - block) // BLOCK:
                return self._gap(kind, space, family, at), True
            if block == start:
                self._mark(kind, space, family, start, LARGE)
        at = start + LARGE
        while at in large:
            at += LARGE
        return at, False

    def _gap(self, kind: str, space: str, family: int, at: int) -> int:
        """The first address from `at` on whose block is not marked; there is one before the next multiple of LARGE."""
        block = at & -BLOCK
        (answer,) = self._answers([self._marked(kind, space, BLOCK, family, block, (at & -LARGE) + LARGE - 1)])
        marked = {value_of(key) for key, _ in txn.entries(answer)}
        while block in marked:
            block += BLOCK
        return max(at, block)

    def _reads(self, window: Window) -> list[Op]:
        pool, scope, family, low, high = window
        if scope is None:
            return [self._span(LEASE, pool, family, low, high)]
        (_, (kind, space)) = self._keys.places(Want(pool, family, low, scope))
        low_key, high_key = (self._keys.taken(LEASE, pool, family, value) for value in (low, high))
        return [self._span(kind, space, family, low, high, values=True), txn.count(low_key, next_key(high_key))]

    def _span(self, kind: str, space: str, family: int, low: int, high: int, values: bool = False) -> Op:
        low_key, high_key = (self._keys.taken(kind, space, family, value) for value in (low, high))
        return txn.read(low_key, next_key(high_key), keys_only=not values)

    def _marked(self, kind: str, space: str, size: int, family: int, low: int, high: int, count: bool = False) -> Op:
        low_key, high_key = (self._keys.full(kind, space, size, family, value) for value in (low, high))
        if count:
            return txn.count(low_key, next_key(high_key))
        return txn.read(low_key, next_key(high_key), keys_only=True)

    def _mark(self, kind: str, space: str, family: int, start: int, size: int) -> None:
        """Mark as full what a search found to be so, if it still is."""
        if not self._marks:
            return
        if size == BLOCK:
            parts = [self._keys.taken(kind, space, family, start + i) for i in range(BLOCK)]
        else:
            parts = [self._keys.full(kind, space, BLOCK, family, start + i) for i in range(0, LARGE, BLOCK)]
        mark = txn.put(self._keys.full(kind, space, size, family, start), b"")
        self._call(txn.transaction([txn.exists(key) for key in parts], [mark]))

    def _answers(self, reads: list[Op]) -> list[dict[str, Any]]:
        return txn.answers(self._call({"success": reads}))
