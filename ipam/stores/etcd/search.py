"""Which addresses are leased in etcd, found without reading a pool.

A search reads blocks of 64 addresses. A full block gets a mark, and so do 64 marked blocks. A mark is written only while all
its addresses or blocks exist, and is deleted with the first lease of them that ends: so no mark is wrong, and searches skip
marked blocks. Pools and reservation scopes have marks of their own.

Blocks that other claims have filled, such as those of a migration, have no marks. After two of them a search counts the
leases of blocks, 64 in a request, and marks some for the next searches. It counts wherever a count is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipam.leases import Want
from ipam.stores.etcd import txn
from ipam.stores.etcd.keys import BLOCK, LARGE, LEASE, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipam.stores.base import Window
    from ipam.stores.etcd.keys import Keys
    from ipam.stores.etcd.txn import Answer, Op, Reply

_SINGLE = 2  # blocks without a mark that a search reads one by one: the last may just have become full
_MARKED = 128  # blocks that one search marks by counts, 1 ms each
_TOP = {4: (1 << 32) - 1, 6: (1 << 128) - 1}


class Search:
    """A search by `call`, which runs a transaction; `marks`: whether it may write marks."""

    __slots__ = ("_asked", "_call", "_keys", "_marks", "_reached", "_seen", "_spare")

    def __init__(self, keys: Keys, call: Callable[[Op], Reply], marks: bool) -> None:
        self._keys = keys
        self._call = call
        self._marks = marks
        self._asked = 0  # number of calls of `next_open` in this search
        self._reached = 0  # the address of the last one
        self._spare = _MARKED  # blocks that may still be marked by counts
        self._seen: dict[object, Sequence[Answer]] = {}

    def expect(self, windows: Sequence[Window]) -> list[Op]:
        """The reads for `occupied` of these windows, and for `next_open` behind a single one; `answered` takes their answers."""
        return [read for reads in self._expected(windows).values() for read in reads]

    def answered(self, windows: Sequence[Window], answers: Sequence[Answer]) -> None:
        """Keep the answers to `expect`, each for one call."""
        self._seen.clear()
        for question, reads in self._expected(windows).items():
            self._seen[question] = answers[: len(reads)]
            answers = answers[len(reads) :]

    def _expected(self, windows: Sequence[Window]) -> dict[object, list[Op]]:
        expected: dict[object, list[Op]] = {window: self._reads(window) for window in windows}
        if len(expected) == 1:
            pool, scope, family, _, high = windows[0]
            kind, space = self._keys.places(Want(pool, family, high, scope))[0]
            if high < _TOP[family]:
                expected[kind, space, family, high + 1] = self._marks_from(kind, space, family, high + 1)
        return expected

    def occupied(self, window: Window) -> int:
        """As Store.occupied."""
        pool, scope, family, low, high = window
        answers = self._answers(self._reads(window), window)
        size, aligned = high - low + 1, high - low + 1 == BLOCK and low % BLOCK == 0
        if scope is not None and not aligned and answers[1].number == size:  # without a look at each of them
            return (1 << size) - 1
        bits, own, reserved = 0, 0, 0
        for key, value in answers[0].entries:
            bits |= 1 << value_of(key, family) - low
            own += scope is None or value == pool.encode()
            reserved += scope is not None
        if scope is not None:
            leased = answers[1].number
            if leased != own:  # the pool has leases outside of this scope
                (answer,) = self._answers([self._span(LEASE, pool, family, low, high)])
                for key, _ in answer.entries:
                    bits |= 1 << value_of(key, family) - low
                own = len(answer.entries)
        if aligned and BLOCK in (own, reserved):
            places = self._keys.places(Want(pool, family, low, scope))
            for (kind, space), found in zip(places, (own, reserved)):  # noqa: B905
                if found == BLOCK:
                    self._mark(kind, space, family, [low], BLOCK)
        return bits

    def next_open(self, window: Window) -> int:
        """As Store.next_open: by the marks of the pool, else by those of the scope."""
        pool, scope, family, value, high = window
        if value <= self._reached:  # another search
            self._asked, self._spare = 0, _MARKED
        self._asked, self._reached = self._asked + 1, value
        for kind, space in self._keys.places(Want(pool, family, value, scope)):
            at, known = value, False
            while at <= high and not known:
                at, known = self._skip(kind, space, family, at, high)
            if at > value:
                return min(at, high + 1)
        return value

    def _skip(self, kind: str, space: str, family: int, at: int, high: int) -> tuple[int, bool]:
        """(an address from `at` on below which all blocks are marked, whether its own block is known to have no mark).

        Marks above `high` are of no interest.
        """
        start, block = at & -LARGE, at & -BLOCK
        counted, listed = self._answers(self._marks_from(kind, space, family, at), (kind, space, family, at))
        large = {value_of(key, family) for key, _ in listed.entries}
        if start not in large:
            if counted.number < (start + LARGE - block) // BLOCK:
                return self._gap(kind, space, family, at)
            if block == start:
                self._mark(kind, space, family, [start], LARGE)
        at = start + LARGE
        while at in large:
            at += LARGE
        return self._gap(kind, space, family, at) if at < _behind(start, family) and at <= high else (at, False)

    def _marks_from(self, kind: str, space: str, family: int, at: int) -> list[Op]:
        """The reads of `_skip`: the number of marked blocks from `at` to the next multiple of LARGE, and the marks of LARGE."""
        start = at & -LARGE
        of_blocks = self._keys.span(family, at & -BLOCK, start + LARGE - 1, "full", kind, space, str(BLOCK))
        return [txn.count(*of_blocks), self._marked(kind, space, LARGE, family, start, _behind(start, family) - 1)]

    def _gap(self, kind: str, space: str, family: int, at: int) -> tuple[int, bool]:
        """As `_skip`, up to the next multiple of LARGE."""
        start = at & -LARGE
        end = start + LARGE
        (answer,) = self._answers([self._marked(kind, space, BLOCK, family, at & -BLOCK, end - 1)])
        marked = {value_of(key, family) for key, _ in answer.entries}
        open_blocks = [block for block in range(at & -BLOCK, end, BLOCK) if block not in marked]
        if self._asked > _SINGLE and open_blocks:
            spans = [self._keys.span(family, block, block + BLOCK - 1, kind, space) for block in open_blocks]
            answers = self._answers([txn.count(*span) for span in spans])
            full = [block for block, answer in zip(open_blocks, answers, strict=True) if answer.number == BLOCK]
            self._mark(kind, space, family, full[: self._spare], BLOCK)
            self._spare -= len(full[: self._spare])
            open_blocks = [block for block in open_blocks if block not in full]
        if not open_blocks and at == start:
            self._mark(kind, space, family, [start], LARGE)
        return (max(at, open_blocks[0]), True) if open_blocks else (end, False)

    def _reads(self, window: Window) -> list[Op]:
        pool, scope, family, low, high = window
        if scope is None:
            return [self._span(LEASE, pool, family, low, high)]
        (_, (kind, space)) = self._keys.places(Want(pool, family, low, scope))
        leased = txn.count(*self._keys.span(family, low, high, LEASE, pool))
        return [self._span(kind, space, family, low, high, values=True), leased]

    def _span(self, kind: str, space: str, family: int, low: int, high: int, values: bool = False) -> Op:
        return txn.read(*self._keys.span(family, low, high, kind, space), keys_only=not values)

    def _marked(self, kind: str, space: str, size: int, family: int, low: int, high: int) -> Op:
        return txn.read(*self._keys.span(family, low, high, "full", kind, space, str(size)), keys_only=True)

    def _mark(self, kind: str, space: str, family: int, starts: list[int], size: int) -> None:
        """Mark spans of `size` addresses that a search found to be full, if they still are."""
        if self._marks and starts:
            each = [txn.within(self._marking(kind, space, family, start, size)) for start in starts]
            self._call(txn.transaction([], each))

    def _marking(self, kind: str, space: str, family: int, start: int, size: int) -> Op:
        if size == BLOCK:
            parts = [self._keys.taken(kind, space, family, start + i) for i in range(BLOCK)]
        else:
            parts = [self._keys.full(kind, space, BLOCK, family, start + i) for i in range(0, LARGE, BLOCK)]
        mark = txn.put(self._keys.full(kind, space, size, family, start), b"")
        return txn.transaction([txn.exists(key) for key in parts], [mark])

    def _answers(self, reads: list[Op], question: object = None) -> Sequence[Answer]:
        """The answers to `reads`, those that were kept for the `question` if there are some."""
        return self._seen.pop(question, None) or self._call(txn.reads(reads)).answers


def _behind(start: int, family: int) -> int:
    """The address behind those whose marks of LARGE are read together from `start` on."""
    return min(start + LARGE * (LARGE // BLOCK), _TOP[family] + 1)
