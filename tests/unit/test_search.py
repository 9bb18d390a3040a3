"""The search in one range: how little it reads, and its laws, against a search through every address one by one."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipam.ranges import Range, format_address, parse_address, parse_cidr, parse_span
from ipam.rules import Need
from ipam.search import SPREAD, lowest_free, propose, search_start, window_from

WINDOW = 4096


def a_range(cidr: str, *exclude: str) -> Range:
    return Range(*parse_cidr(cidr), blocked=[parse_span(text)[1:] for text in exclude])


def value(text: str) -> int:
    return parse_address(text)[1]


class Leases:
    """A store's answers for a set of leased addresses, and what it was asked."""

    window = WINDOW

    def __init__(self, leased: Collection[int] = (), knows_what_is_full: bool = True) -> None:
        self.leased = leased
        self.knows_what_is_full = knows_what_is_full
        self.asked: list[tuple[int, int]] = []

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        assert low <= high
        assert low // WINDOW == high // WINDOW
        self.asked.append((low, high))
        return sum(1 << v - low for v in range(low, high + 1) if v in self.leased)

    def next_open(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        while self.knows_what_is_full and low <= high and low in self.leased:
            low += 1
        return low

    def search(self, rng: Range, start: int = 0, avoid: Collection[int] = ()) -> int | None:
        return lowest_free(self, Need(rng, "pool", None), start, avoid)


def test_no_window_crosses_a_multiple_of_its_size_and_together_they_hold_the_range() -> None:
    rng = a_range("10.0.0.0/18", "10.0.0.0/22", "10.0.16.0/20")
    windows = []
    at = rng.first
    while window := window_from(rng, at, rng.last, WINDOW):
        windows.append(tuple(format_address(4, v) for v in window))
        at = window[1] + 1
    assert windows == [("10.0.4.0", "10.0.15.255"), ("10.0.32.0", "10.0.47.255"), ("10.0.48.0", "10.0.63.254")]
    assert all(value(a) // WINDOW == value(b) // WINDOW for a, b in windows)


BUT_99 = set(range(value("10.0.0.1"), value("10.0.0.254"))) - {value("10.0.0.99")}
SPARSE = ("10.0.0.0/24", *(f"10.0.0.{i}" for i in range(0, 256, 2)))
# the range and its excludes, what is leased, where the search starts; what it finds, and the windows that are read for it
COSTS: dict[str, tuple[tuple[str, ...], Collection[int], str, str, int]] = {
    "many excludes in a window": (SPARSE, BUT_99, "0.0.0.0", "10.0.0.99", 1),
    "a long full beginning": (("10.0.0.0/8",), range(value("10.0.0.1"), value("10.3.13.65")), "0.0.0.0", "10.3.13.65", 2),
    "a full range, from within": (("10.0.0.0/16",), range(value("10.0.0.1"), value("10.1.0.0")), "10.0.39.17", "", 2),
    "an immense range": (("fd00::/8",), (), "0.0.0.0", "fd00::1", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", COSTS)
def test_a_search_reads_as_few_windows_as_it_can(case: str) -> None:
    of_range, leased, start, found, windows = COSTS[case]
    store = Leases(leased)
    assert store.search(a_range(*of_range), value(start)) == (value(found) if found else None)
    assert len(store.asked) == windows


def test_after_a_full_window_the_next_one_is_read_from_its_first_address() -> None:
    rng = a_range("10.0.0.0/18")
    store = Leases(range(rng.first, value("10.0.16.0")), knows_what_is_full=False)
    assert store.search(rng) == value("10.0.16.0")


def test_an_address_is_proposed_only_from_the_window_and_the_range() -> None:
    rng = a_range("10.0.0.0/29")
    assert propose(rng, (value("9.255.255.250"), value("10.0.0.0")), 0) is None
    assert propose(rng, (value("10.0.0.6"), value("10.0.0.20")), 0b1) is None
    assert propose(rng, (value("10.0.0.4"), value("10.0.0.20")), 0b1) == value("10.0.0.5")


def test_after_a_lost_claim_the_search_starts_at_a_place_of_the_attachments_own() -> None:
    rng = a_range("10.0.0.0/8")
    attachments = [("node1", ("net", f"c{i}", "net1")) for i in range(50)]
    attachments += [(f"node{i}", ("net", "c0", "net1")) for i in range(2, 52)]
    starts = [search_start(rng, node, attachment) for node, attachment in attachments]
    assert len(set(starts)) >= 98
    assert all(rng.first <= start < rng.first + SPREAD for start in starts)
    assert max(starts) - min(starts) > SPREAD // 2
    assert search_start(rng, "a", ("bc", "d", "e")) != search_start(rng, "ab", ("c", "d", "e"))


def test_a_search_may_start_at_each_address_that_is_not_excluded() -> None:
    rng = a_range("10.0.0.0/24", "10.0.0.0/25", "10.0.0.200/29")
    assert len({search_start(rng, "n", ("net", f"c{i}", "net1")) for i in range(400)}) > rng.size() * 0.9
    assert search_start(a_range("10.0.0.0/29", "10.0.0.0/29"), "n", ("net", "c", "net1")) == value("10.0.0.1")


BASE = 0x0A000000  # 10.0.0.0


@st.composite
def cases(draw: st.DrawFn) -> tuple[Range, set[int], int, set[int]]:
    """A range of up to three windows, what is leased of it, where the search starts, what it avoids."""
    prefix = draw(st.integers(19, 32))
    size = 1 << 32 - prefix
    places = st.integers(-2, size + 2).map(lambda n: BASE + n)
    spans = st.tuples(places, st.integers(0, draw(st.sampled_from([4, size])))).map(lambda t: (t[0], t[0] + t[1]))
    blocked = draw(st.lists(spans, max_size=4))
    leased = {v for low, high in draw(st.lists(spans, max_size=6)) for v in range(low, high + 1)}
    return (
        Range(*parse_cidr(f"10.0.0.0/{prefix}"), blocked=blocked), leased, draw(places | st.just(0)),
        draw(st.sets(places, max_size=4)),
    )  # fmt: skip


@given(cases(), st.booleans())
def test_the_address_found_is_the_first_free_one_from_the_start_on_and_around(
    case: tuple[Range, set[int], int, set[int]], store_knows_what_is_full: bool
) -> None:
    rng, leased, start, avoid = case
    store = Leases(leased, store_knows_what_is_full)
    free = [v for v in range(rng.network, rng.top + 1) if rng.usable(v) and v not in leased | avoid]
    ahead = [v for v in free if v >= start]
    assert store.search(rng, start, avoid) == next(iter(ahead + free), None)
    if not store_knows_what_is_full:
        assert len(store.asked) <= (rng.top - rng.network) // WINDOW + 2, "a window was read twice"


@given(cases(), st.text(max_size=5), st.lists(st.text(max_size=5), min_size=3, max_size=3))
def test_a_search_starts_at_an_address_that_can_be_given(
    case: tuple[Range, set[int], int, set[int]], node: str, attachment: list[str]
) -> None:
    rng = case[0]
    start = search_start(rng, node, tuple(attachment))
    assert start == search_start(rng, node, tuple(attachment))
    if rng.size():
        assert rng.usable(start)
        assert sum(min(high, start) - low + 1 for low, high in rng.spans() if low <= start) <= SPREAD
