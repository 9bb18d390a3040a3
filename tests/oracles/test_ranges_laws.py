"""Laws of ranges, with netaddr and ipaddress as oracles."""

from __future__ import annotations

import ipaddress

import netaddr
from hypothesis import given
from hypothesis import strategies as st

from ipam.ranges import BITS, Range, format_address, parse_address, parse_cidr, parse_span

FAMILIES = st.sampled_from([4, 6])
MAPPED = ipaddress.ip_network("::ffff:0:0/96")  # these count as IPv4 addresses


@st.composite
def addresses(draw: st.DrawFn, family: int | None = None) -> tuple[int, int]:
    """(family, value), with runs of zeros and ones as common as they are in practice."""
    family = family or draw(FAMILIES)
    width = BITS[family] // 16
    words = [draw(st.sampled_from([0, 1, 0xFFFF, draw(st.integers(0, 0xFFFF))])) for _ in range(width)]
    value = sum(word << 16 * i for i, word in enumerate(words))
    return (6, value ^ 1 << 127) if family == 6 and value >> 32 == 0xFFFF else (family, value)


@st.composite
def cidrs(draw: st.DrawFn, family: int | None = None) -> str:
    family, value = draw(addresses(family))
    prefix = draw(st.integers(0, BITS[family]))
    text = f"{oracle(family, value)}/{prefix}"
    return f"{oracle(family, value | 1 << 127)}/{prefix}" if family == 6 and value >> 96 == 0 else text


def oracle(family: int, value: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.IPv4Address(value) if family == 4 else ipaddress.IPv6Address(value)


@given(addresses())
def test_an_address_is_written_as_the_standard_library_writes_it_and_read_back(address: tuple[int, int]) -> None:
    text = format_address(*address)
    assert text == str(oracle(*address))
    assert parse_address(text) == address


@given(addresses(4), st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_leading_zeros_change_nothing(address: tuple[int, int], zeros: list[int]) -> None:
    octets = format_address(*address).split(".")
    assert parse_address(".".join("0" * n + octet for n, octet in zip(zeros, octets, strict=True))) == address


@given(st.text(alphabet="0123456789abcdef.:/-% gx\0٣", max_size=40))
def test_any_text_is_read_as_the_oracle_reads_it_or_refused(text: str) -> None:
    """But for leading zeros, which the oracle refuses, and for mapped addresses and zones."""
    try:
        found = parse_address(text)
    except ValueError:
        found = None
    try:
        address = ipaddress.ip_address(text)
        expected = (address.version, int(address))
        if address.version == 6 and (address in MAPPED or address.scope_id):
            return
    except ValueError:
        expected = None
    if expected or not found or found[0] == 6:
        assert found == expected


@given(cidrs())
def test_a_cidr_has_the_bounds_that_netaddr_gives_it(cidr: str) -> None:
    rng = Range(*parse_cidr(cidr))
    network = netaddr.IPNetwork(cidr)
    assert rng.cidr == str(network.cidr)
    assert (rng.network, rng.top) == (network.first, network.last)
    assert rng.contains(network.first) and rng.contains(network.last)
    assert not rng.contains(network.first - 1) and not rng.contains(network.last + 1)
    assert rng.size() == (network.size - 2 if network.size > 2 else network.size)


@st.composite
def cut_ranges(draw: st.DrawFn) -> tuple[Range, netaddr.IPSet]:
    """A range with bounds and excludes near its ends, and the set of what it must give."""
    family = draw(FAMILIES)
    network = netaddr.IPNetwork(draw(cidrs(family)))
    near = st.integers(-3, min(network.size + 3, 300)).map(lambda n: network.first + n)
    near |= st.integers(0, min(network.size, 300)).map(lambda n: network.last - n)
    inside = near.filter(lambda v: network.first <= v <= network.last)
    start, end = draw(st.none() | inside), draw(st.none() | inside)
    holes = []
    for _ in range(draw(st.integers(0, 5))):
        value = min(max(draw(near), 0), 2 ** BITS[family] - 1)
        length = draw(st.integers(max(0, BITS[family] - 9), BITS[family]))
        holes.append(str(netaddr.IPNetwork(f"{netaddr.IPAddress(value, family)}/{length}").cidr))
    first, last = (network.first, network.last) if network.size < 3 else (network.first + 1, network.last - 1)
    first = first if start is None else max(first, start)
    last = last if end is None else min(last, end)
    wanted = netaddr.IPSet()
    if first <= last:
        wanted = netaddr.IPSet(netaddr.IPRange(netaddr.IPAddress(first, family), netaddr.IPAddress(last, family)))
    wanted -= netaddr.IPSet(holes)
    rng = Range(*parse_cidr(str(network)), start, end, [parse_span(hole)[1:] for hole in holes])
    return rng, wanted


@given(cut_ranges())
def test_a_range_gives_exactly_what_set_arithmetic_leaves(case: tuple[Range, netaddr.IPSet]) -> None:
    rng, wanted = case
    spans = rng.spans()
    assert rng.size() == wanted.size
    assert [(r.first, r.last) for r in wanted.iter_ipranges()] == spans
    for value in {edge + d for span in spans + rng.blocked for edge in span for d in (-1, 0, 1)}:
        if 0 <= value < 2 ** BITS[rng.family]:
            assert rng.usable(value) == (netaddr.IPAddress(value, rng.family) in wanted)


@given(cut_ranges())
def test_what_is_blocked_and_what_is_given_share_nothing_and_fill_the_bounds(case: tuple[Range, netaddr.IPSet]) -> None:
    rng, _ = case
    pieces = sorted(rng.spans() + rng.blocked)
    at = rng.first
    for low, high in pieces:
        assert low == at <= high
        at = high + 1
    assert not pieces or at == rng.last + 1


@given(cidrs(), st.integers(0, 2**128))
def test_an_offset_leads_back_to_its_address(cidr: str, number: int) -> None:
    rng = Range(*parse_cidr(cidr))
    value = rng.network + number % (rng.top - rng.network + 1)
    assert rng.at(rng.offset_of(value)) == value


@given(cidrs(), st.sampled_from(["", "tenant"]), st.sampled_from(["", "node1"]))
def test_a_pools_name_can_name_an_object(cidr: str, network_name: str, node: str) -> None:
    name = Range(*parse_cidr(cidr)).pool_name(network_name, node)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")
