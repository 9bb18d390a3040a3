"""The occupancy of pools, as numbers and as a strip of characters. Pure.

A strip shows a pool's addresses in order, in cells of equal size. If the pool has more than 2^16 addresses, the strip
shows only the first addresses, up to the last lease.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from cni.cluster.audit.model import IpamBlock, Snapshot
from ipam.ranges import BITS, Range, merge, parse_cidr, range_of

Pool = tuple[str, int]  # name and family
Span = tuple[int, int]  # the first and the last address

CELLS = 32
_MOST_SHOWN = 1 << 16  # the largest number of addresses that a strip always shows in full
_BLOCKS = "·▁▂▃▄▅▆▇█"
_PLAIN = ".12345678"


@dataclass(frozen=True)
class Occupancy:
    """The use of a pool of `size` addresses. `used` counts all its leases, `outside` the leases outside of its ranges.
    The first `shown` addresses form at most CELLS equal parts; `cells` has the leased share (0 to 1) of each part."""

    size: int
    used: int
    outside: int
    cells: tuple[float, ...]
    shown: int

    @property
    def free(self) -> int:
        """The number of addresses that can still be leased."""
        return max(0, self.size - self.used + self.outside)

    @property
    def percent(self) -> float:
        """The share of the addresses that are leased, from 0 to 100."""
        return 100 * (self.used - self.outside) / self.size if self.size else 0.0

    def drawn(self, encoding: str) -> str:
        """The cells as block characters or, if `encoding` lacks these, in ASCII from "." for empty to "8" for full."""
        try:
            _BLOCKS.encode(encoding or "ascii")
            signs = _BLOCKS
        except (UnicodeError, LookupError):
            signs = _PLAIN
        return "".join(signs[max(1, int(8 * share)) if share else 0] for share in self.cells)


@dataclass(frozen=True)
class PoolUse:
    """A pool and the number of its leases, `used`. `occupancy` is None if the pool's name has no range."""

    name: str
    family: int
    used: int
    occupancy: Occupancy | None


def pools(snapshot: Snapshot) -> list[PoolUse]:
    values: dict[Pool, list[int]] = defaultdict(list)
    for lease in snapshot.leases:
        values[lease.pool, lease.family].append(lease.value)
    return uses(values, {(state.name, state.family): state.first for state in snapshot.pools}, snapshot.networks)


def uses(
    values: Mapping[Pool, Sequence[int]], firsts: Mapping[Pool, int], networks: Iterable[IpamBlock]
) -> list[PoolUse]:
    """The use of each pool, sorted by name. `values` has the pools' leased addresses, `firsts` the first address of
    each IPPool. The size of a pool comes from its ranges in `networks` or, if there are none, from the CIDR in its
    name."""
    ranges: dict[str, list[Range]] = defaultdict(list)
    for network in networks:
        for one in network.ranges:
            ranges[one.pool_name(network.network_name)].append(one)
    found = []
    for name, family in sorted({*values, *firsts}):
        leased = sorted(values.get((name, family), ()))
        first = firsts[name, family] if (name, family) in firsts else leased[0]
        full = None
        with suppress(ValueError):  # the name has no range
            if spans := spans_of(range_of(name, family, first), ranges[name]):
                full = of(leased, spans)
        if leased or full:
            found.append(PoolUse(name, family, len(leased), full))
    return found


def spans_of(cidr: str, ranges: Iterable[Range] = ()) -> list[Span]:
    """The spans of addresses, as (first, last), in `ranges` or, if `ranges` is empty, in `cidr`."""
    own = list(ranges) or [Range(*parse_cidr(cidr))]
    return merge((span for rng in own for span in rng.spans()), 0, 1 << BITS[6])


def of(values: Sequence[int], spans: Sequence[Span]) -> Occupancy:
    """The occupancy of a pool with the address `spans` and the leased addresses `values`; both are sorted."""
    size, places = 0, []  # places: the index of each leased address among all addresses of the spans
    for low, high in spans:
        inside = values[bisect_left(values, low) : bisect_right(values, high)]
        places += [size + value - low for value in inside]
        size += high - low + 1
    shown = size
    if size > _MOST_SHOWN:
        reach = places[-1] + 1 if places else 1
        shown = min(size, max(256, 1 << (reach - 1).bit_length()))
    count = min(CELLS, shown)
    ends = [i * shown // count for i in range(count + 1)]
    cells = [(bisect_left(places, end) - bisect_left(places, first)) / (end - first) for first, end in pairwise(ends)]
    return Occupancy(size, len(values), len(values) - len(places), tuple(cells), shown)
