"""The lease file's format: its tables, and every statement that is run on them.

A lease's address is in network byte order, so that the order of the rows is that of the addresses; `sequence` is in ns
since 1970. `bitmap` holds what ipam.stores.file.bitmap describes. Nothing here needs an SQLite newer than 3.24 (2018).

`former` and `cooling`, by the kinds and spaces of bitmaps, remember freed addresses. Each is made when it is first needed, so a
file without them has the same format, and a version that does not know them reads the leases right.
"""

from __future__ import annotations

FORMAT = 1
POOL, SCOPE = 0, 2  # kinds of bitmap: the leaves of a pool, and of a reservation scope
SUMMARY = 1  # added to a kind: its summaries

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
