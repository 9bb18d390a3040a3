"""How full a pool is, and where. Pure.

A strip shows the addresses that may be given, from the lowest on, in cells of equal size. Of a range of more than 2^16
addresses it shows only the beginning, as far as leases reach: the lowest free address is given, so nothing is behind.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ipam.ranges import Range, parse_cidr

Span = tuple[int, int]  # the first and the last address

CELLS = 32
_WHOLE = 1 << 16  # addresses that are shown to the last
_BLOCKS = "·▁▂▃▄▅▆▇█"
_PLAIN = ".12345678"


@dataclass(frozen=True)
class Occupancy:
    """`size` addresses may be given, `used` are; `outside` are leases of none of them. `cells` are shares from 0 to 1.

    `shown` is how many addresses the cells stand for.
    """

    size: int
    used: int
    outside: int
    cells: tuple[float, ...]
    shown: int

    @property
    def free(self) -> int:
        """The number of addresses that may still be given."""
        return max(0, self.size - self.used + self.outside)

    @property
    def percent(self) -> float:
        """The share of the addresses that are leased."""
        return 100 * (self.used - self.outside) / self.size if self.size else 0.0

    def drawn(self, encoding: str) -> str:
        """The cells as text, in ASCII where the terminal takes no more: "." is empty, 8 is full."""
        signs = _BLOCKS if _takes(encoding) else _PLAIN
        return "".join(signs[max(1, int(8 * share)) if share else 0] for share in self.cells)


def spans_of(cidr: str, ranges: Iterable[Range] = ()) -> list[Span]:
    """The addresses of a pool that may be given: what the networks' `ranges` say, else all of its CIDR."""
    own = list(ranges)
    if not own:
        own = [Range(*parse_cidr(cidr))]
    spans: list[Span] = []
    for low, high in sorted(span for rng in own for span in rng.spans()):
        if spans and low <= spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], max(high, spans[-1][1]))
        else:
            spans.append((low, high))
    return spans


def of(values: Sequence[int], spans: Sequence[Span]) -> Occupancy:
    """The occupancy by the leased addresses `values`, in order, of `spans`, in order."""
    counts = [bisect_right(values, high) - bisect_left(values, low) for low, high in spans]
    size, inside = sum(high - low + 1 for low, high in spans), sum(counts)
    shown = size
    if size > _WHOLE:
        reach = _index(spans, values[-1]) + 1 if values else 1
        shown = min(size, max(256, 1 << (reach - 1).bit_length()))
    count = min(CELLS, shown)
    ends = [i * shown // count for i in range(count + 1)]
    cells = [_leased(values, spans, ends[i], ends[i + 1]) for i in range(count)]
    return Occupancy(size, len(values), len(values) - inside, tuple(cells), shown)


def _leased(values: Sequence[int], spans: Sequence[Span], first: int, end: int) -> float:
    """The share of the addresses first..end-1, counted through `spans`, that are leased."""
    found, before = 0, 0
    for low, high in spans:
        a, b = max(first - before, 0), min(end - before, high - low + 1)
        if a < b:
            found += bisect_left(values, low + b) - bisect_left(values, low + a)
        before += high - low + 1
    return found / (end - first)


def _index(spans: Sequence[Span], value: int) -> int:
    """How many addresses of `spans` are below `value`."""
    return sum(min(high, value - 1) - low + 1 for low, high in spans if low < value)


def _takes(encoding: str) -> bool:
    try:
        _BLOCKS.encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True
