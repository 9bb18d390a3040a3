"""Laws of the search in one range, against a search through every address one by one."""

from hypothesis import given
from hypothesis import strategies as st

from ipam.ranges import Range, parse_cidr
from ipam.search import SPREAD, WINDOW, search, search_start

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
    asked = []

    def occupied(low: int, high: int) -> int:
        assert low <= high
        assert low // WINDOW == high // WINDOW
        asked.append(low)
        return sum(1 << v - low for v in range(low, high + 1) if v in leased)

    def next_open(low: int, high: int) -> int:
        while store_knows_what_is_full and low <= high and low in leased:
            low += 1
        return low

    free = [v for v in range(rng.network, rng.top + 1) if rng.usable(v) and v not in leased | avoid]
    ahead = [v for v in free if v >= start]
    assert search(rng, occupied, next_open, start, avoid) == next(iter(ahead + free), None)
    if not store_knows_what_is_full:
        assert len(asked) <= (rng.top - rng.network) // WINDOW + 2, "a window was read twice"


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
