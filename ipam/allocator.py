"""Which address of a range to claim next: pure, and bounded in the size of the pool.

`search` returns the lowest free address, like whereabouts. After a lost claim, the caller continues from `search_start`,
so that many nodes do not compete for one address after another.

A window is a span (low, high) of addresses, both included, that crosses no multiple of WINDOW. A store returns the
unavailable addresses of a window as a bitset, an integer whose bit i stands for the address low + i.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ipam.ranges import Range, Span

WINDOW = 4096  # addresses
SPREAD = 1 << 16  # a search begins at one of so many addresses from the range's start


def _itself(low: int, high: int) -> int:
    return low


def search(
    rng: Range,
    occupied: Callable[[int, int], int],
    next_open: Callable[[int, int], int] = _itself,
    start: int = 0,
    avoid: Collection[int] = (),
    size: int = WINDOW,
) -> int | None:
    """The first address that can be claimed, from `start` to the range's end and then from its beginning; or None.

    `occupied(low, high)` answers the bitset of a window. `next_open(low, high)` answers an address from low on below
    which all are occupied, high + 1 when all of low..high are: it is asked once a window is full, and a store that
    knows spares us reading the full ones after it. `avoid` are addresses that the caller knows to be taken
    otherwise, such as one just proposed for the same attachment, or the many that are cooling: a set. A window has `size` addresses, a power of two.
    """
    for at, end in ((start, rng.last), (rng.first, min(start - 1, rng.last))):
        while window := window_from(rng, at, end, size):
            found = propose(rng, window, occupied(*window), avoid)
            if found is not None:
                return found
            at = window[1] + 1
            if at <= end:
                at = next_open(at, end)
    return None


def window_from(rng: Range, at: int, end: int, size: int = WINDOW) -> Span | None:
    """The window that begins with the first usable address of `at`..`end`, None when there is no such address."""
    for low, _ in _clipped(rng, at, end):
        return low, min(low | size - 1, end)
    return None


def propose(rng: Range, window: Span, occupied: int, avoid: Collection[int] = ()) -> int | None:
    """The lowest address in `window` that `rng` may give and that is neither in `occupied` nor in `avoid`, or None."""
    low, high = window
    for address in avoid if len(avoid) <= high - low else range(low, high + 1):
        if low <= address <= high and address in avoid:
            occupied |= 1 << address - low
    for first, last in _clipped(rng, low, high):
        free = ((1 << last - first + 1) - 1 << first - low) & ~occupied
        if free:
            return low + (free & -free).bit_length() - 1
    return None


def search_start(rng: Range, node: str, attachment: tuple[str, ...], spread: int = SPREAD) -> int:
    """The address from which this attachment on this node continues its search after a lost claim.

    It depends only on the arguments, and is spread evenly over the first `spread` addresses that `rng` may give. For a
    range without such addresses it is the first address.
    """
    key = "\0".join((rng.cidr, node, *attachment)).encode("utf-8", "surrogateescape")
    digest = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
    place = digest % (min(rng.size(), spread) or 1)
    for first, last in rng.spans():
        if place <= last - first:
            return first + place
        place -= last - first + 1
    return rng.first


def _clipped(rng: Range, low: int, high: int) -> Iterator[Span]:
    """The usable spans of `rng`, cut to low..high."""
    for first, last in rng.spans():
        clipped = max(first, low), min(last, high)
        if clipped[0] <= clipped[1]:
            yield clipped
