"""Which addresses are leased in etcd, found without reading a pool.

A search reads blocks of 64 addresses. A full block gets a mark, and so do 64 marked blocks. A mark is written only while all
its addresses or blocks exist, and is deleted with the first lease of them that ends: so no mark is wrong, and searches skip
marked blocks. Pools and reservation scopes have marks of their own.

Blocks that other claims have filled, such as those of a migration, have no marks. After two of them a search counts the
leases of blocks, 64 in a request, and marks some for the next searches. It counts wherever a count is enough.
"""

from __future__ import annotations

from ipam.leases import Want
from ipam.stores.etcd import txn
from ipam.stores.etcd.keys import BLOCK, LARGE, LEASE, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipam.stores.base import Window
    from ipam.stores.etcd.keys import Keys
    from ipam.stores.etcd.txn import Op

_SINGLE = 2  # blocks without a mark that a search reads one by one: the last may just have become full
_MARKED = 128  # blocks that one search marks by counts, 1 ms each
_TOP = {4: (1 << 32) - 1, 6: (1 << 128) - 1}


class Search:
    """A search by `call`, which runs a transaction; `marks`: whether it may write marks."""

    __slots__ = ("_asked", "_call", "_keys", "_marks", "_reached", "_seen", "_spare")

    def __init__(self, keys: Keys, call: Callable[[bytes], bytes], marks: bool) -> None:
        self._keys = keys
        self._call = call
        self._marks = marks
        self._asked = 0  # number of calls of `next_open` in this search
        self._reached = 0  # the address of the last one
        self._spare = _MARKED  # blocks that may still be marked by counts
        self._seen: dict[Window, list[bytes]] = {}

    def expect(self, windows: Sequence[Window]) -> list[Op]:
        """The reads for `occupied` of these windows; `answered` takes their answers."""
        return [read for window in windows for read in self._reads(window)]

    def answered(self, windows: Sequence[Window], answers: Sequence[bytes]) -> None:
        """Keep the answers to `expect`, each for one call of `occupied`."""
        self._seen.clear()
        for window in windows:
            count = len(self._reads(window))
            self._seen[window] = list(answers[:count])
            answers = answers[count:]

    def occupied(self, window: Window) -> int:
        """As Store.occupied."""
        pool, scope, family, low, high = window
        answers = self._seen.pop(window, None) or self._answers(self._reads(window))
        bits, own, reserved = 0, 0, 0
        for key, value in txn.entries(answers[0]):
            bits |= 1 << value_of(key, family) - low
            own += scope is None or value == pool.encode()
            reserved += scope is not None
        if scope is not None:
            leased = txn.number(answers[1])
            if leased != own:  # the pool has leases outside of this scope
                (answer,) = self._answers([self._span(LEASE, pool, family, low, high)])
                for key, _ in txn.entries(answer):
                    bits |= 1 << value_of(key, family) - low
                own = len(txn.entries(answer))
        if high - low + 1 == BLOCK and low % BLOCK == 0 and BLOCK in (own, reserved):
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
                at, known = self._skip(kind, space, family, at)
            if at > value:
                return min(at, high + 1)
        return value

    def _skip(self, kind: str, space: str, family: int, at: int) -> tuple[int, bool]:
        """(an address from `at` on below which all blocks are marked, whether its own block is known to have no mark)."""
        start, block = at & -LARGE, at & -BLOCK
        behind = min(start + LARGE * (LARGE // BLOCK), _TOP[family] + 1)
        of_blocks = txn.count(*self._keys.span(family, block, start + LARGE - 1, "full", kind, space, str(BLOCK)))
        counted, listed = self._answers([of_blocks, self._marked(kind, space, LARGE, family, start, behind - 1)])
        large = {value_of(key, family) for key, _ in txn.entries(listed)}
        if start not in large:
            if txn.number(counted) < (start + LARGE - block) // BLOCK:
                return self._gap(kind, space, family, at)
            if block == start:
                self._mark(kind, space, family, [start], LARGE)
        at = start + LARGE
        while at in large:
            at += LARGE
        return at, False

    def _gap(self, kind: str, space: str, family: int, at: int) -> tuple[int, bool]:
        """As `_skip`, up to the next multiple of LARGE, below which some block has no mark."""
        end = (at & -LARGE) + LARGE
        (answer,) = self._answers([self._marked(kind, space, BLOCK, family, at & -BLOCK, end - 1)])
        marked = {value_of(key, family) for key, _ in txn.entries(answer)}
        open_blocks = [block for block in range(at & -BLOCK, end, BLOCK) if block not in marked]
        if self._asked > _SINGLE and open_blocks:
            spans = [self._keys.span(family, block, block + BLOCK - 1, kind, space) for block in open_blocks]
            answers = self._answers([txn.count(*span) for span in spans])
            full = [block for block, answer in zip(open_blocks, answers, strict=True) if txn.number(answer) == BLOCK]
            self._mark(kind, space, family, full[: self._spare], BLOCK)
            self._spare -= len(full[: self._spare])
            open_blocks = [block for block in open_blocks if block not in full]
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

    def _marking(self, kind: str, space: str, family: int, start: int, size: int) -> bytes:
        if size == BLOCK:
            parts = [self._keys.taken(kind, space, family, start + i) for i in range(BLOCK)]
        else:
            parts = [self._keys.full(kind, space, BLOCK, family, start + i) for i in range(0, LARGE, BLOCK)]
        mark = txn.put(self._keys.full(kind, space, size, family, start), b"")
        return txn.transaction([txn.exists(key) for key in parts], [mark])

    def _answers(self, reads: list[Op]) -> list[bytes]:
        return txn.answers(self._call(txn.reads(reads)))
