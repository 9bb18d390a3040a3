"""The lease file's format: its tables, all statements on these tables, and the bits of `bitmap`.

A lease's address is in network byte order, so rows and addresses have the same order. `sequence` is in ns since 1970.
SQLite 3.24 (2018) or newer is enough.

The table `bitmap` shows which addresses are leased, in two levels. A leaf has a bit for each of the 4096 addresses
that differ only in the lowest 12 bits. The bit is 1 when the address is leased. A summary has a bit for each of 4096
leaves, which is 1 when the leaf is full. So a summary and a leaf show the lowest free address of a large pool.

The column `kind` shows whether a row is a leaf or a summary, and whether `space` is a pool or a reservation scope. The
length of `number` shows the family. `bits` is little-endian without trailing zero bytes. Zeros alone have no row.

The tables `former` (the last address of each pod) and `cooling` (the cooldowns) remember freed addresses. The columns
`kind` and `space` of `cooling` mean the same as in `bitmap`. Each of the two tables is made when it is first needed.
The format's number is the same with and without the two tables, since earlier versions can read the leases anyway.
"""

from __future__ import annotations

FORMAT = 1
POOL, SCOPE = 0, 2  # kinds of bitmap: the leaves of a pool, and of a reservation scope
SUMMARY = 1  # POOL or SCOPE plus SUMMARY is the kind of the summaries
SHIFT = 12
ROW_BITS = 1 << SHIFT  # bits of a leaf, and of a summary
FULL_ROW = (1 << ROW_BITS) - 1
_LEAF_BYTES = {4: 3, 6: 15}  # 20 and 116 bits
_SUMMARY_BYTES = {4: 1, 6: 13}  # 8 and 104 bits

TABLES = (
    """
CREATE TABLE lease (
  pool TEXT NOT NULL, address BLOB NOT NULL, scope TEXT,
  network TEXT NOT NULL, container TEXT NOT NULL, ifname TEXT NOT NULL,
  namespace TEXT NOT NULL, pod TEXT NOT NULL, uid TEXT NOT NULL,
  node TEXT NOT NULL, boot TEXT NOT NULL, netns TEXT NOT NULL, sequence INTEGER NOT NULL,
  PRIMARY KEY (pool, address)) WITHOUT ROWID
""",
    "CREATE INDEX lease_attachment ON lease (container, ifname, network)",
    "CREATE INDEX lease_pod ON lease (pod, namespace, ifname) WHERE pod <> ''",
    "CREATE UNIQUE INDEX lease_reservation ON lease (scope, address) WHERE scope IS NOT NULL",
    """
CREATE TABLE bitmap (
  kind INTEGER NOT NULL, space TEXT NOT NULL, number BLOB NOT NULL, bits BLOB NOT NULL,
  PRIMARY KEY (kind, space, number)) WITHOUT ROWID
""",
)

FORMER = """
CREATE TABLE IF NOT EXISTS former (
  number INTEGER PRIMARY KEY, namespace TEXT NOT NULL, pod TEXT NOT NULL, ifname TEXT NOT NULL, pool TEXT NOT NULL,
  address BLOB NOT NULL, UNIQUE (pod, namespace, ifname, pool))
"""
REMEMBER = "INSERT OR REPLACE INTO former (namespace, pod, ifname, pool, address) VALUES (?, ?, ?, ?, ?)"
FORGET = "DELETE FROM former WHERE number <= (SELECT max(number) FROM former) - ?"
FIND_FORMER = "SELECT address FROM former WHERE namespace = ? AND pod = ? AND ifname = ?"
COOLING = """
CREATE TABLE IF NOT EXISTS cooling (
  kind INTEGER NOT NULL, space TEXT NOT NULL, address BLOB NOT NULL, until INTEGER NOT NULL,
  namespace TEXT NOT NULL, pod TEXT NOT NULL, ifname TEXT NOT NULL, PRIMARY KEY (kind, space, address)) WITHOUT ROWID
"""
COOLING_UNTIL = "CREATE INDEX IF NOT EXISTS cooling_until ON cooling (until)"
COOL = "INSERT OR REPLACE INTO cooling VALUES (?, ?, ?, ?, ?, ?, ?)"
COOLED = "DELETE FROM cooling WHERE until < ?"
FIND_COOLING = """
SELECT address FROM cooling
WHERE kind = ? AND space = ? AND address BETWEEN ? AND ? AND +until BETWEEN ? AND ?
AND NOT (pod <> '' AND pod = ? AND namespace = ? AND ifname = ?)
"""
EXISTS = "SELECT 1 FROM sqlite_master WHERE name = ?"

ALL = "SELECT * FROM lease"
EMPTY = ("DELETE FROM lease", "DELETE FROM bitmap")
FIND = "SELECT * FROM lease WHERE container = ? AND ifname = ? AND network = ? ORDER BY pool, address"
FIND_POD = "SELECT * FROM lease WHERE pod = ? AND pod <> '' AND namespace = ? AND ifname = ? ORDER BY pool, address"
FIND_ADDRESS = "SELECT * FROM lease WHERE pool = ? AND address = ?"
FIND_RESERVED = "SELECT * FROM lease WHERE scope = ? AND scope IS NOT NULL AND address = ?"
PAGE = "SELECT * FROM lease WHERE pool = ? AND address > ? AND ? IN ('', node) ORDER BY address LIMIT ?"
INSERT = "INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
MATCH = """
SELECT scope FROM lease
WHERE pool = ? AND address = ? AND container = ? AND ifname = ? AND network = ? AND sequence = ?
"""
DELETE = "DELETE FROM lease WHERE pool = ? AND address = ?"
BITS = "SELECT bits FROM bitmap WHERE kind = ? AND space = ? AND number = ?"
BITS_OF_TWO = """
SELECT bits FROM bitmap WHERE kind = ? AND space = ? AND number = ? UNION ALL
SELECT bits FROM bitmap WHERE kind = ? AND space = ? AND number = ?
"""
WRITE_BITS = "INSERT INTO bitmap VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET bits = excluded.bits"
CLEAR_BITS = "DELETE FROM bitmap WHERE kind = ? AND space = ? AND number = ?"
POOLS = "SELECT space, number, bits FROM bitmap WHERE kind = ? ORDER BY space"


def address_key(family: int, value: int) -> bytes:
    """An address as the column `address` has it: 4 or 16 bytes in network byte order."""
    return value.to_bytes(4 if family == 4 else 16, "big")


def address(key: bytes) -> tuple[int, int]:
    """(family, value) of an address in the form of `address_key`."""
    return (4 if len(key) == 4 else 6), int.from_bytes(key, "big")


def leaf_of(family: int, value: int) -> tuple[bytes, int]:
    """(number of the leaf, index of the bit in it) for an address."""
    return (value >> SHIFT).to_bytes(_LEAF_BYTES[family], "big"), value & ROW_BITS - 1


def summary_of(family: int, value: int) -> tuple[bytes, int]:
    """(number of the summary, index of the bit in it) for the leaf of an address."""
    return (value >> 2 * SHIFT).to_bytes(_SUMMARY_BYTES[family], "big"), value >> SHIFT & ROW_BITS - 1


def bits_of(row: bytes) -> int:
    """The bitset in the column `bits` of a row."""
    return int.from_bytes(row, "little")


def row_of(bits: int) -> bytes:
    """A bitset in the form of the column `bits`."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def lowest_clear(bits: int, start: int) -> int:
    """The lowest index >= `start` of a bit that is 0; ROW_BITS if there is none."""
    clear = ~bits & FULL_ROW & -(1 << start)
    return (clear & -clear).bit_length() - 1 if clear else ROW_BITS
