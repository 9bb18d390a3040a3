"""The search in one range: how little it reads, and its laws, against a search through every address one by one."""

from collections.abc import Collection

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


def taken(*texts: str) -> set[int]:
    return {value(text) for text in texts}


def test_no_window_crosses_a_multiple_of_its_size_and_together_they_hold_the_range() -> None:
    rng = a_range("10.0.0.0/18", "10.0.0.0/22", "10.0.16.0/20")
    windows = []
    at = rng.first
    while window := window_from(rng, at, rng.last, WINDOW):
        windows.append(tuple(format_address(4, v) for v in window))
        at = window[1] + 1
    assert windows == [("10.0.4.0", "10.0.15.255"), ("10.0.32.0", "10.0.47.255"), ("10.0.48.0", "10.0.63.254")]
    assert all(value(a) // WINDOW == value(b) // WINDOW for a, b in windows)


def test_one_window_is_read_for_many_excludes_in_it() -> None:
    rng = a_range("10.0.0.0/24", *(f"10.0.0.{i}" for i in range(0, 256, 2)))
    store = Leases(set(range(rng.first, rng.last)) - taken("10.0.0.99"))
    assert store.search(rng) == value("10.0.0.99")
    assert len(store.asked) == 1


def test_a_store_that_knows_what_is_full_is_asked_for_two_windows() -> None:
    rng = a_range("10.0.0.0/8")
    store = Leases(range(rng.first, rng.first + 200_000))
    assert store.search(rng) == rng.first + 200_000
    assert len(store.asked) == 2


def test_after_a_full_window_the_next_one_is_read_from_its_first_address() -> None:
    rng = a_range("10.0.0.0/18")
    store = Leases(range(rng.first, value("10.0.16.0")), knows_what_is_full=False)
    assert store.search(rng) == value("10.0.16.0")


def test_a_full_range_is_known_to_be_full_after_a_window_from_either_end() -> None:
    rng = a_range("10.0.0.0/16")
    store = Leases(range(rng.first, rng.last + 1))
    assert store.search(rng, start=rng.first + 10_000) is None
    assert len(store.asked) == 2


def test_the_first_address_of_an_immense_range_is_found_at_once() -> None:
    store = Leases()
    assert store.search(a_range("fd00::/8")) == value("fd00::1")
    assert len(store.asked) == 1


def test_an_address_is_proposed_only_from_the_window_and_the_range() -> None:
    rng = a_range("10.0.0.0/29")
    assert propose(rng, (value("9.255.255.250"), value("10.0.0.0")), 0) is None
    assert propose(rng, (value("10.0.0.6"), value("10.0.0.20")), 0b1) is None
    assert propose(rng, (value("10.0.0.4"), value("10.0.0.20")), 0b1) == value("10.0.0.5")


def test_after_a_lost_claim_the_search_starts_at_a_place_of_the_attachments_own() -> None:
    rng = a_range("10.0.0.0/8")
    attachments = [("node1", ("net", f"c{i}", "net1")) for i in range(50)] + [
        (f"node{i}", ("net", "c0", "net1")) for i in range(2, 52)
    ]
    starts = [search_start(rng, node, attachment) for node, attachment in attachments]
    assert starts == [search_start(rng, node, attachment) for node, attachment in attachments]
    assert len(set(starts)) >= 98
    assert all(rng.first <= start < rng.first + SPREAD for start in starts)
    assert max(starts) - min(starts) > SPREAD // 2


def test_the_parts_of_an_attachments_name_do_not_run_together() -> None:
    rng = a_range("10.0.0.0/8")
    assert search_start(rng, "a", ("bc", "d", "e")) != search_start(rng, "ab", ("c", "d", "e"))


def test_a_search_starts_at_a_usable_address_whatever_is_excluded() -> None:
    rng = a_range("10.0.0.0/24", "10.0.0.0/25", "10.0.0.200/29")
    starts = {search_start(rng, "n", ("net", f"c{i}", "net1")) for i in range(400)}
    assert all(rng.usable(start) for start in starts)
    assert len(starts) > rng.size() * 0.9
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
        Range(*parse_cidr(f"10.0.0.0/{prefix}"), blocked=blocked),
        leased,
        draw(places | st.just(0)),
        draw(st.sets(places, max_size=4)),
    )


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
