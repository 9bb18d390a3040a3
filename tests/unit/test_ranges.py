"""Ranges: how their text is read, and what their pools are called; which addresses they give: tests/oracles/test_ranges_laws.py."""

import pytest

from ipam.ranges import Range, format_address, parse_address, parse_cidr, parse_range, parse_span


def a_range(cidr: str, start: str = "", end: str = "", exclude: tuple[str, ...] = ()) -> Range:
    return Range(
        *parse_cidr(cidr), parse_address(start)[1] if start else None, parse_address(end)[1] if end else None,
        [parse_span(text)[1:] for text in exclude],
    )  # fmt: skip


@pytest.mark.parametrize(("text", "canonical"), [
    ("192.168.1.5", "192.168.1.5"), ("00192.00168.1.010", "192.168.1.10"), ("0.0.0.0", "0.0.0.0"),
    ("255.255.255.255", "255.255.255.255"), ("FD00:0:0::A", "fd00::a"), ("::", "::"),
    ("1:0:0:2:0:0:0:3", "1:0:0:2::3"), ("1:0:2:3:4:5:6:7", "1:0:2:3:4:5:6:7"), ("::102:304", "::102:304"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
])  # fmt: skip
def test_an_address_is_read_as_go_reads_it_and_written_canonically(text: str, canonical: str) -> None:
    assert format_address(*parse_address(text)) == canonical


@pytest.mark.parametrize("text", [
    *("", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.-4", "1.2.3.+4", "1.2.3.4 ", "1..3.4", "0x1.2.3.4", "1.2.3.4\0"),
    *("1.2.3.\u0664", "9" * 5000 + ".1.1.1", "host"),
    *(":", ":::", "1::2::3", "fe80::1%eth0", "1:2:3:4:5:6:7", "fd00::g", "::\0"),
])  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want an IPv4 or IPv6 address"):
        parse_address(text)


@pytest.mark.parametrize("text", ["10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "fd00::/129", "10.0.0.0/-1", "10.0.0.0/8/8", "/8", "::ffff:10.0.0.0/95"])  # fmt: skip
def test_what_is_no_cidr_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="want a CIDR such as"):
        parse_cidr(text)


def test_an_ipv4_cidr_written_as_an_ipv6_one_is_an_ipv4_cidr() -> None:
    assert a_range("::ffff:10.1.2.3/120").cidr == "10.1.2.0/24"


def test_host_bits_of_a_range_are_dropped() -> None:
    assert a_range("192.168.2.225/28").cidr == "192.168.2.224/28"
    assert a_range("2001:db8::ffff/116").cidr == "2001:db8::f000/116"


@pytest.mark.parametrize(("cidr", "first", "last", "size"), [
    ("192.168.2.0/24", "192.168.2.1", "192.168.2.254", 254), ("10.0.0.0/30", "10.0.0.1", "10.0.0.2", 2),
    ("10.0.0.0/31", "10.0.0.0", "10.0.0.1", 2), ("10.0.0.7/32", "10.0.0.7", "10.0.0.7", 1),
    ("0.0.0.0/0", "0.0.0.1", "255.255.255.254", 2**32 - 2),
    ("fd00::/64", "fd00::1", "fd00::ffff:ffff:ffff:fffe", 2**64 - 2),
    ("fd00::/126", "fd00::1", "fd00::2", 2), ("fd00::/127", "fd00::", "fd00::1", 2),
    ("fd00::7/128", "fd00::7", "fd00::7", 1),
])  # fmt: skip
def test_the_first_and_last_address_are_left_out_if_there_are_others(
    cidr: str, first: str, last: str, size: int
) -> None:
    rng = a_range(cidr)
    assert format_address(rng.family, rng.first) == first
    assert format_address(rng.family, rng.last) == last
    assert rng.size() == size


def test_the_text_form_with_both_ends_says_start_end_and_cidr() -> None:
    family, value, prefix, span = parse_range("00192.168.1.5-192.168.1.25/24")
    assert Range(family, value, prefix).cidr == "192.168.1.0/24"
    assert span == (parse_address("192.168.1.5")[1], parse_address("192.168.1.25")[1])
    assert parse_range("192.168.1.5/24")[3] is None


@pytest.mark.parametrize(("text", "reason"), [
    ("192.168.1.5-192.168.2.25/28", "starts outside of 192.168.2.16/28"),
    ("192.168.1.25-192.168.1.5/24", "starts after its end"), ("fd00::1-192.168.1.5/24", "mixes IPv4 and IPv6"),
    ("192.168.1.5-192.168.1.25", "want a CIDR or first-last/length"),
    ("192.168.1.5 - 192.168.1.25/24", "want a CIDR or first-last/length"),
    ("192.168.1.5-192.168.1.9-192.168.1.25/24", "want a CIDR or first-last/length"),
    ("-192.168.1.25/24", "want a CIDR or first-last/length"),
    ("192.168.1.5/24-192.168.1.25/24", "want a CIDR or first-last/length"),
    ("", "want a CIDR or first-last/length"),
])  # fmt: skip
def test_a_range_that_cannot_be_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_range(text)


def test_a_very_large_exclude_costs_nothing() -> None:
    rng = a_range("2001:db8::/30", exclude=("2001:db8::/32",))
    assert format_address(6, rng.spans()[0][0]) == "2001:db9::"


@pytest.mark.parametrize(("cidr", "network_name", "node", "name"), [
    ("192.168.2.225/28", "", "", "192.168.2.224-28"),
    ("192.168.2.0/24", "tenant-a", "", "tenant-a-192.168.2.0-24"),
    ("192.168.2.0/24", "", "node1", "node1-192.168.2.0-24"),
    ("192.168.2.0/24", "tenant-a", "node1", "tenant-a-node1-192.168.2.0-24"),
    ("2001::/116", "", "", "2001---116"), ("fd00:1:2:3::/64", "n", "", "n-fd00-1-2-3---64"),
])  # fmt: skip
def test_a_pool_is_called_as_whereabouts_calls_it(cidr: str, network_name: str, node: str, name: str) -> None:
    assert a_range(cidr).pool_name(network_name, node) == name
