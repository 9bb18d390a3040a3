"""Address arithmetic: addresses as integers, and the ranges from which pods get addresses.

The time that a function takes does not depend on the size of a range. An address is a pair (family, value): the family
is 4 or 6, the value is an integer in network byte order.

The rules are those of whereabouts v0.9 (pkg/iphelpers, pkg/config), with three differences: /31, /32, /127 and /128
have addresses to give, a range can reserve its gateway, and an IPv4 address has family 4 in every notation.
"""

from __future__ import annotations

from collections.abc import Iterable
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

Span = tuple[int, int]  # (low, high): the addresses from low to high, both included

BITS = {4: 32, 6: 128}
_MAPPED = 0xFFFF  # ::ffff:0:0/96, RFC 4291 section 2.5.5.2: an IPv4 address written as an IPv6 one


def parse_address(text: str) -> tuple[int, int]:
    """The family and the value of an address. Raises ValueError for any other text.

    An IPv4 address may have leading zeros, which are read as decimal, or the form ::ffff:a.b.c.d. Go whereabouts accepts
    both, so configurations contain them.
    """
    if ":" in text:
        try:
            value = int.from_bytes(inet_pton(AF_INET6, text), "big")
        except (OSError, ValueError):
            raise ValueError("want an IPv4 or IPv6 address") from None
        return (4, value & 0xFFFFFFFF) if value >> 32 == _MAPPED else (6, value)
    try:
        return 4, int.from_bytes(inet_pton(AF_INET, text), "big")
    except (OSError, ValueError):
        pass  # with leading zeros, or no address
    value = 0
    octets = text.split(".")
    for octet in octets:
        number = _decimal(octet)
        if len(octets) != 4 or not 0 <= number <= 255:
            raise ValueError("want an IPv4 or IPv6 address")
        value = value << 8 | number
    return 4, value


def host_of(text: str) -> tuple[int, int]:
    """The family and the value of an "address" or "address/length". Raises ValueError for any other text."""
    return parse_address(text.partition("/")[0])


def format_address(family: int, value: int) -> str:
    """The canonical text of an address (RFC 5952 for IPv6)."""
    if family == 4:
        return inet_ntop(AF_INET, value.to_bytes(4, "big"))
    if value >> 32 == 0 and value >> 16:  # only the C library would write ::1.2.3.4
        return f"::{value >> 16:x}:{value & 0xFFFF:x}"
    return inet_ntop(AF_INET6, value.to_bytes(16, "big"))


def parse_cidr(text: str) -> tuple[int, int, int]:
    """The family, value with host bits, and prefix length of "address/length". Raises ValueError for any other text."""
    address, _, length = text.partition("/")
    prefix = _decimal(length)
    try:
        family, value = parse_address(address)
        if family == 4 and ":" in address:
            prefix -= BITS[6] - BITS[4]
        if not 0 <= prefix <= BITS[family]:
            raise ValueError
    except ValueError:
        raise ValueError("want a CIDR such as 192.168.2.0/24 or fd00::/64") from None
    return family, value, prefix


def unassignable(family: int, value: int) -> str:
    """The kind of an address that no pod can use, such as "multicast"; "" for a usable address (RFC 6890)."""
    if family == 4:  # 240.0.0.0/4 is usable: the kernel forwards packets to these addresses
        kinds = {0: "reserved", 127: "loopback", **dict.fromkeys(range(224, 240), "multicast")}
        return "broadcast" if value == (1 << 32) - 1 else kinds.get(value >> 24, "")
    if value >> 120 == 0xFF:
        return "multicast"
    return {0: "unspecified", 1: "loopback"}.get(value, "")


def is_link_local(family: int, value: int) -> bool:
    """Whether the address is in 169.254.0.0/16 or fe80::/10 (RFC 3927, RFC 4291)."""
    return value >> 16 == 0xA9FE if family == 4 else value >> 118 == 0xFE80 >> 6


def parse_span(text: str) -> tuple[int, int, int]:
    """The family, the first and the last address of a CIDR or single address. Raises ValueError for any other text."""
    try:
        if "/" not in text:
            family, value = parse_address(text)
            return family, value, value
        family, value, prefix = parse_cidr(text)
    except ValueError:
        raise ValueError("want a CIDR or an address, such as 192.168.2.0/28 or 192.168.2.7") from None
    return family, *_bounds(family, value, prefix)


def parse_range(text: str) -> tuple[int, int, int, Span | None]:
    """The family, value, prefix length and span of a range "first-last/length". For a CIDR the span is None.

    Raises ValueError for another form, or when first is after last, or outside of the CIDR of last/length.
    """
    first, dash, cidr = text.partition("-")
    try:
        if not dash:
            return *parse_cidr(text), None
        family, value, prefix = parse_cidr(cidr)
        low_family, low = parse_address(first)
    except ValueError:
        raise ValueError(
            "want a CIDR or first-last/length, such as 192.168.2.0/24 or 192.168.2.10-192.168.2.20/24"
        ) from None
    network, top = _bounds(family, value, prefix)
    if low_family != family:
        raise ValueError("mixes IPv4 and IPv6: want both addresses of one family")
    if not network <= low <= top:
        raise ValueError(f"starts outside of {format_address(family, network)}/{prefix}: want both addresses inside")
    if low > value:
        raise ValueError("starts after its end: want the lower address first")
    return family, value, prefix, (low, value)


class Range:
    """The addresses of a CIDR that may be given.

    `network` and `top` are the first and last address of the CIDR, `prefix` is its length. Host bits of `value` are
    dropped. `first` and `last` are the lowest and highest address to give. They lie within `start` and `end` if these
    are set. They exclude `network` and `top` unless the CIDR has only one or two addresses. `blocked` are the spans
    between `first` and `last` that are never given, sorted and disjoint. A fully blocked range has the size 0.
    """

    __slots__ = ("_spans", "blocked", "cidr", "family", "first", "last", "network", "prefix", "top")

    def __init__(
        self,
        family: int,
        value: int,
        prefix: int,
        start: int | None = None,
        end: int | None = None,
        blocked: Iterable[Span] = (),
    ) -> None:
        self.family = family
        self.prefix = prefix
        self.network, self.top = _bounds(family, value, prefix)
        self.cidr = f"{format_address(family, self.network)}/{prefix}"
        self.first, self.last = self.network, self.top
        if self.top - self.network > 1:
            self.first, self.last = self.network + 1, self.top - 1
        if start is not None:
            self.first = max(self.first, start)
        if end is not None:
            self.last = min(self.last, end)
        self.blocked = merge(blocked, self.first, self.last)
        self._spans = _gaps(self.blocked, self.first, self.last)

    def __str__(self) -> str:
        return self.cidr

    def part(self, family: int, value: int, prefix: int) -> Range:
        """The part of this range in the given CIDR, with this range's `prefix`. Raises ValueError if it is outside."""
        if family != self.family or prefix < self.prefix or not self.contains(value):
            raise ValueError(f"not inside of {self}")
        found = Range(family, value, prefix, self.first, self.last, self.blocked)
        found.prefix = self.prefix
        return found

    def contains(self, value: int) -> bool:
        """Whether the CIDR holds the address, usable or not."""
        return self.network <= value <= self.top

    def usable(self, value: int) -> bool:
        """Whether the address may be given."""
        return any(low <= value <= high for low, high in self._spans)

    def size(self) -> int:
        """The number of addresses that may be given."""
        return sum(high - low + 1 for low, high in self._spans)

    def spans(self) -> list[Span]:
        """The spans of addresses that may be given, sorted and disjoint."""
        return list(self._spans)

    def offset_of(self, value: int) -> int:
        """The offset of the address from the first address of the CIDR."""
        return value - self.network

    def at(self, offset: int) -> int:
        """The address at `offset` from the first address of the CIDR."""
        return self.network + offset

    def pool_name(self, network_name: str = "", node: str = "") -> str:
        """The name of the pool with this range's leases: [network_name-][node-]CIDR, with `-` for each `:` and `/`.

        Go whereabouts has the same rule (IPPoolName in pkg/storage/kubernetes), so both programs use one IPPool object.
        """
        cidr = self.cidr.replace(":", "-").replace("/", "-")
        return "-".join(part for part in (network_name, node, cidr) if part)


def range_of(pool: str, family: int, value: int) -> str:
    """The CIDR at the end of the name `pool`. Raises ValueError if no CIDR with the given address is there."""
    length = pool.rpartition("-")[2]
    if length.isascii() and length.isdigit() and len(length) < 4 and int(length) <= BITS[family]:
        cidr = f"{format_address(family, value >> (host := BITS[family] - int(length)) << host)}/{int(length)}"
        if f"-{pool}".endswith("-" + object_name(cidr)):
            return cidr
    raise ValueError


def network_name_of(pool: str, family: int, value: int) -> str:
    """The network_name, the text before the CIDR in the name `pool`, or "". Raises ValueError as `range_of` does."""
    return pool.removesuffix(object_name(range_of(pool, family, value))).removesuffix("-")


def object_name(text: str) -> str:
    """`text`, an address or a CIDR, in the form that Go whereabouts uses in object names."""
    return (text + "0" if text.endswith(":") else text).replace(":", "-").replace("/", "-")


def _decimal(digits: str) -> int:
    """The value of up to three decimal digits after any leading zeros; -1 for any other text."""
    if not digits.isascii() or not digits.isdigit() or len(digits.lstrip("0")) > 3:
        return -1
    return int(digits.lstrip("0") or "0")


def _bounds(family: int, value: int, prefix: int) -> Span:
    hosts = (1 << BITS[family] - prefix) - 1
    return value & ~hosts, value | hosts


def merge(spans: Iterable[Span], low: int, high: int) -> list[Span]:
    """`spans` cut to low..high and sorted; overlapping and adjacent spans are joined."""
    merged: list[Span] = []
    for a, b in sorted((max(a, low), min(b, high)) for a, b in spans):
        if a > b:
            continue
        if merged and a <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
        else:
            merged.append((a, b))
    return merged


def _gaps(blocked: list[Span], low: int, high: int) -> list[Span]:
    """The spans of low..high between the sorted, disjoint `blocked`."""
    gaps: list[Span] = []
    for a, b in blocked:
        if low < a:
            gaps.append((low, a - 1))
        low = b + 1
    if low <= high:
        gaps.append((low, high))
    return gaps
