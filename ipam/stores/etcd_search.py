"""Which addresses are leased in etcd, found without reading a pool.

A search looks at blocks of 64 addresses. A block that is all taken gets a mark, and 64 marked blocks get one, each
written on the condition that all it stands for is there, and deleted with the first lease that goes: so a mark is
never wrong, and what is marked is skipped. A pool has its marks, and so has a reservation scope.

Blocks that were filled by other claims than a search's, such as those of a migration, have no marks: once a search has met
two, it counts what the blocks hold, 64 in a request, and marks some, so that the next searches are spared it.

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

_SINGLE = 2  # blocks without a mark that a search looks at one by one: the last one may just have become full
_MARKED = 128  # blocks that one search marks by counts, some 1 ms each
_TOP = {4: (1 << 32) - 1, 6: (1 << 128) - 1}


class Search:
    """Reads through `call`, which runs a transaction; `marks`: whether it may write marks."""

    __slots__ = ("_asked", "_call", "_keys", "_marks", "_reached", "_seen", "_spare")

    def __init__(self, keys: Keys, call: Callable[[dict[str, Any]], dict[str, Any]], marks: bool) -> None:
        self._keys = keys
        self._call = call
        self._marks = marks
        self._asked = 0  # how often the search has asked for the next address behind full ones
        self._reached = 0  # where it did so last
        self._spare = _MARKED  # blocks that may still be marked by counts
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
        if value <= self._reached:  # another search
            self._asked, self._spare = 0, _MARKED
        self._asked, self._reached = self._asked + 1, value
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
                return self._gap(kind, space, family, at)
            if block == start:
                self._mark(kind, space, family, start, LARGE)
        at = start + LARGE
        while at in large:
            at += LARGE
        return at, False

    def _gap(self, kind: str, space: str, family: int, at: int) -> tuple[int, bool]:
        """As `_skip`, up to the next multiple of LARGE, where some block has no mark."""
        end = (at & -LARGE) + LARGE
        (answer,) = self._answers([self._marked(kind, space, BLOCK, family, at & -BLOCK, end - 1)])
        marked = {value_of(key) for key, _ in txn.entries(answer)}
        open_blocks = [block for block in range(at & -BLOCK, end, BLOCK) if block not in marked]
        if self._asked > _SINGLE and open_blocks:
            answers = self._answers([self._count(kind, space, family, block) for block in open_blocks])
            full = [block for block, answer in zip(open_blocks, answers, strict=True) if txn.number(answer) == BLOCK]
            self._mark_blocks(kind, space, family, full[: self._spare])
            open_blocks = [block for block in open_blocks if block not in full]
        return (max(at, open_blocks[0]), True) if open_blocks else (end, False)

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

    def _count(self, kind: str, space: str, family: int, block: int) -> Op:
        first, last = (self._keys.taken(kind, space, family, value) for value in (block, block + BLOCK - 1))
        return txn.count(first, next_key(last))

    def _mark(self, kind: str, space: str, family: int, start: int, size: int) -> None:
        """Mark as full what a search found to be so, if it still is."""
        if self._marks:
            self._call(self._marking(kind, space, family, start, size))

    def _mark_blocks(self, kind: str, space: str, family: int, blocks: list[int]) -> None:
        if self._marks and blocks:
            self._spare -= len(blocks)
            each = [txn.within(self._marking(kind, space, family, block, BLOCK)) for block in blocks]
            self._call(txn.transaction([], each))

    def _marking(self, kind: str, space: str, family: int, start: int, size: int) -> dict[str, Any]:
        if size == BLOCK:
            parts = [self._keys.taken(kind, space, family, start + i) for i in range(BLOCK)]
        else:
            parts = [self._keys.full(kind, space, BLOCK, family, start + i) for i in range(0, LARGE, BLOCK)]
        mark = txn.put(self._keys.full(kind, space, size, family, start), b"")
        return txn.transaction([txn.exists(key) for key in parts], [mark])

    def _answers(self, reads: list[Op]) -> list[dict[str, Any]]:
        return txn.answers(self._call({"success": reads}))
