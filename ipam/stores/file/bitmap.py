"""Which addresses are leased, as bitmaps of two levels: pure functions over integers.

A leaf has a bit for each of the 4096 addresses that share all bits but the lowest 12, set when the address is leased. A
summary has a bit for each of 4096 leaves, set when the leaf is full. So a summary and a leaf show the lowest free address of a
pool, whatever the number of leases.

A row's key is the number of its leaf or summary in as many bytes as its family needs, hence of a length of its own for
either family. A row's bits are a little-endian number without the zeros at its end; no row stands for all zeros.
"""

from __future__ import annotations

SHIFT = 12
SIZE = 1 << SHIFT  # bits of a leaf, and of a summary
FULL = (1 << SIZE) - 1
_LEAF_BYTES = {4: 3, 6: 15}  # 20 and 116 bits
_SUMMARY_BYTES = {4: 1, 6: 13}  # 8 and 104 bits


def address_key(family: int, value: int) -> bytes:
    """The address in network byte order."""
    return value.to_bytes(4 if family == 4 else 16, "big")


def address(key: bytes) -> tuple[int, int]:
    """(family, value) of what `address_key` wrote."""
    return (4 if len(key) == 4 else 6), int.from_bytes(key, "big")


def leaf(family: int, value: int) -> tuple[bytes, int]:
    """(key of the leaf, index of the bit) that stand for an address."""
    return (value >> SHIFT).to_bytes(_LEAF_BYTES[family], "big"), value & SIZE - 1


def summary(family: int, value: int) -> tuple[bytes, int]:
    """(key of the summary, index of the bit) that stand for the leaf of an address."""
    return (value >> 2 * SHIFT).to_bytes(_SUMMARY_BYTES[family], "big"), value >> SHIFT & SIZE - 1


def decode(row: bytes) -> int:
    """The bitset of a row."""
    return int.from_bytes(row, "little")


def encode(bits: int) -> bytes:
    """The row of a bitset."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def lowest_clear(bits: int, start: int) -> int:
    """The lowest index from `start` on whose bit is not set; SIZE when there is none."""
    clear = ~bits & FULL & -(1 << start)
    return (clear & -clear).bit_length() - 1 if clear else SIZE
