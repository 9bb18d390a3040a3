"""The file store: the leases of one machine in one SQLite file, without a daemon.

    DATADIR/leases.db                  table `lease`: one row for each lease; table `bitmap`: the leased addresses
    DATADIR/leases.db-journal          SQLite's journal; the file stays, but its content counts only during a call
    DATADIR/leases.db.damaged-N        a damaged file, renamed

Each pool and each reservation scope has a bitmap. An address can be claimed when its bit is 0 in the bitmap of its pool
and in the bitmap of its scope. A claim is one transaction, which writes as many rows in a full pool as in an empty one.

A new file begins with the leases in the attachment records (`restore`), also when it replaces a damaged file. A sound
file of an earlier boot keeps its leases (ipam.stores.file.database).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from cni.shared.spec.request import Attachment
from ipam.leases import COOLDOWN, Lease, Owner, Pool, Want, given_up, returns
from ipam.stores.base import CREATE, FORMER, Claimed, Store, Survey, Taken, Unknown, Window
from ipam.stores.file import schema
from ipam.stores.file.database import WAIT_SECONDS, CommitUnknown, Database, DiskFull, open_database

NAME = "leases.db"


class FileStore(Store):
    """The store in `directory`. Each session opens the file again.

    `use` is READ, CHANGE or CREATE (ipam.stores.base). Claims need CREATE, which makes a missing file. With READ and
    CHANGE a missing file counts as an empty store. `restore` returns the leases for a new file. A session waits at
    most `seconds` for the lock.
    """

    kind = "file"

    def __init__(
        self,
        directory: str,
        use: int = CREATE,
        restore: Callable[[], list[Lease]] = list,
        seconds: float = WAIT_SECONDS,
    ) -> None:
        super().__init__()
        self.directory = directory
        self.path = f"{directory}/{NAME}"
        self._use = use
        self._restore = restore
        self._seconds = seconds
        self._database: Database | None = None

    def record(self) -> dict[str, Any]:
        return {"kind": self.kind, "path": self.directory}

    def _begin(self) -> None:
        opened = open_database(self.path, self._use, self._seconds)
        if opened:
            self._database, begins = opened
            if begins:
                self._fill(self._database)

    def _end(self) -> None:
        if self._database:
            self._database.close()
            self._database = None

    def find(self, attachment: Attachment) -> list[Lease]:
        network, container_id, ifname = attachment.key()
        with self.session():
            return self._leases(schema.FIND, container_id, ifname, network)

    def survey(self, owner: Owner, windows: Sequence[Window], new: bool) -> Survey:
        (namespace, name, _), ifname = owner.pod, owner.attachment.ifname
        with self.session():
            pods = self._leases(schema.FIND_POD, name, namespace, ifname) if name else []
            former = []
            if returns(owner.pod) and self._rows(schema.EXISTS, "former"):
                former = [schema.address(key) for (key,) in self._rows(schema.FIND_FORMER, namespace, name, ifname)]
            return Survey(self.find(owner.attachment), pods, former)

    def holder(self, want: Want) -> Lease | None:
        key = schema.address_key(want.family, want.value)
        with self.session():
            found = self._leases(schema.FIND_ADDRESS, want.pool, key)
            found = found or self._leases(schema.FIND_RESERVED, want.scope, key)
        return found[0] if found else None

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        bits = 0
        with self.session():
            at = low
            while at <= high:
                number, index = schema.leaf_of(family, at)
                bits |= self._either(0, pool, scope, number) >> index << at - low
                at += schema.ROW_BITS - index
        return bits & (1 << high - low + 1) - 1

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        at = value
        with self.session():
            while at <= high:
                number, index = schema.summary_of(family, at)
                found = schema.lowest_clear(self._either(schema.SUMMARY, pool, scope, number), index)
                if found == index:
                    return at
                at = (at >> schema.SHIFT) - index + found << schema.SHIFT
                if found < schema.ROW_BITS:
                    break
        return min(at, high + 1)

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        with self.session():
            database = self._database
            assert database, "a claim needs a store that was opened with CREATE"  # noqa: S101  # a fault of the caller
            leases = [Lease(want, owner) for want in wants]
            try:
                taken: list[Want] = [old for old in instead_of if not self._delete(old)]
                taken += [want for want, lease in zip(wants, leases, strict=True) if not self._insert(lease)]
                if self.cooldown and not taken:
                    self._cool(given_up(instead_of, wants))
            except BaseException:
                database.roll_back()
                raise
            if taken:
                database.roll_back()
                return Taken(taken)
            try:
                database.commit()
            except CommitUnknown as reason:
                return Unknown(reason)
            return Claimed(leases)

    def release(self, leases: Sequence[Lease]) -> int:
        with self.session():
            if self._database is None:
                return 0
            try:
                return self._free(self._database, leases, True)
            except DiskFull:  # no room to remember former addresses; the release must succeed
                return self._free(self._database, leases, False)

    def _free(self, database: Database, leases: Sequence[Lease], remember: bool) -> int:
        try:
            gone = [lease for lease in leases if self._delete(lease)]
            if gone and remember:
                self._remember([lease for lease in gone if returns(lease.pod)])
                if self.cooldown:
                    self._cool(gone)
        except BaseException:
            database.roll_back()
            raise
        if gone:
            database.commit()
        return len(gone)

    def _page(self, pool: str, after: Lease | None, node: str) -> list[Lease]:
        start = schema.address_key(after.family, after.value) if after else b""
        with self.session():
            return self._leases(schema.PAGE, pool, start, node, self.page)

    def pools(self) -> list[Pool]:
        found: dict[str, Pool] = {}
        with self.session():
            rows = self._rows(schema.POOLS, schema.POOL)
        for name, number, row in rows:
            pool = found.setdefault(name, Pool(name, 4 if len(number) == 3 else 6, 0))
            pool.used += schema.bits_of(row).bit_count()
        return list(found.values())

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        namespace, name, _ = owner.pod
        found: set[tuple[int, int]] = set()
        with self.session():
            if not self._rows(schema.EXISTS, "cooling"):
                return ()
            now = int(time.time())
            what = (schema.address_key(family, low), schema.address_key(family, high), now + 1, now + COOLDOWN + 1)
            for kind, space in ((schema.POOL, pool), (schema.SCOPE, scope)):
                rows = self._rows(schema.FIND_COOLING, kind, space, *what, name, namespace, owner.attachment.ifname)
                found |= {schema.address(key) for (key,) in rows}
        return {value for of, value in found if of == family}

    def _fill(self, database: Database) -> None:
        """Write all leases and bitmaps again, from the file's leases or, if the file has none, from `restore`.

        After a power loss the file may have a lease without its bits. Of two leases with one address, keep the newer.
        """
        leases = self._leases(schema.ALL)
        for statement in schema.EMPTY:
            self._rows(statement)
        for lease in sorted(leases or self._restore(), key=lambda lease: -lease.sequence):
            self._insert(lease)
        database.commit()

    def _remember(self, leases: Sequence[Lease]) -> None:
        if leases:
            self._rows(schema.FORMER)
        for lease in leases:
            key = schema.address_key(lease.family, lease.value)
            self._rows(schema.REMEMBER, *lease.pod[:2], lease.ifname, lease.pool, key)
            self._rows(schema.FORGET, FORMER)

    def _cool(self, leases: Sequence[Lease]) -> None:
        now = int(time.time())
        self._rows(schema.COOLING)
        self._rows(schema.COOLING_UNTIL)
        self._rows(schema.COOLED, now)
        for lease in leases:
            key = schema.address_key(lease.family, lease.value)
            until = now + self.cooldown + 1  # rounded up: the present second has already begun
            for kind, space in ((schema.POOL, lease.pool), (schema.SCOPE, lease.scope)):
                if space is not None:
                    self._rows(schema.COOL, kind, space, key, until, *lease.pod[:2], lease.ifname)

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        """The rows that a statement returns in the open session; [] without a file."""
        return self._database.run(sql, *values) if self._database else []

    def _leases(self, sql: str, *values: Any) -> list[Lease]:
        return [_lease(row) for row in self._rows(sql, *values)]

    def _insert(self, lease: Lease) -> bool:
        """Add a lease and set its bits. If a bit is set already, change nothing and return False."""
        family, value = lease.family, lease.value
        number, index = schema.leaf_of(family, value)
        if self._either(0, lease.pool, lease.scope, number) >> index & 1:
            return False
        self._mark(schema.POOL, lease.pool, family, value, True)
        if lease.scope is not None:
            self._mark(schema.SCOPE, lease.scope, family, value, True)
        key = schema.address_key(family, value)
        attachment = (lease.network, lease.container_id, lease.ifname)
        claim = (lease.node, lease.boot_id, lease.netns, lease.sequence)
        self._rows(schema.INSERT, lease.pool, key, lease.scope, *attachment, *lease.pod, *claim)
        return True

    def _delete(self, lease: Lease) -> bool:
        """Remove a lease and clear its bits. If the file lacks exactly this lease, change nothing and return False."""
        key = schema.address_key(lease.family, lease.value)
        found = self._rows(
            schema.MATCH, lease.pool, key, lease.container_id, lease.ifname, lease.network, lease.sequence
        )
        if not found:
            return False
        ((scope,),) = found
        self._rows(schema.DELETE, lease.pool, key)
        self._mark(schema.POOL, lease.pool, lease.family, lease.value, False)
        if scope is not None:
            self._mark(schema.SCOPE, scope, lease.family, lease.value, False)
        return True

    def _mark(self, kind: int, space: str, family: int, value: int, leased: bool) -> None:
        """Set or clear the bit of an address in its leaf, a row of 4096 bits of the pool or scope named `space`.

        `kind` is POOL or SCOPE. When the leaf becomes full, or is no longer full, change its bit in the summary too.
        """
        number, index = schema.leaf_of(family, value)
        before, after = self._change_bit(kind, space, number, index, leased)
        if schema.FULL_ROW in (before, after) and before != after:
            self._change_bit(kind + schema.SUMMARY, space, *schema.summary_of(family, value), after == schema.FULL_ROW)

    def _change_bit(self, kind: int, space: str, number: bytes, index: int, on: bool) -> tuple[int, int]:
        before = schema.bits_of(b"".join(row for (row,) in self._rows(schema.BITS, kind, space, number)))
        after = before | 1 << index if on else before & ~(1 << index)
        if after:
            self._rows(schema.WRITE_BITS, kind, space, number, schema.row_of(after))
        elif before:
            self._rows(schema.CLEAR_BITS, kind, space, number)
        return before, after

    def _either(self, level: int, pool: str, scope: str | None, number: bytes) -> int:
        """The bits set in row `number` of the bitmap of the pool or of the scope. `level` is 0 (leaf) or SUMMARY."""
        bits = 0
        for (row,) in self._rows(
            schema.BITS_OF_TWO, schema.POOL + level, pool, number, schema.SCOPE + level, scope, number
        ):
            bits |= schema.bits_of(row)
        return bits


def _lease(row: Any) -> Lease:
    pool, key, scope, network, container_id, ifname, namespace, pod, uid, node, boot_id, netns, sequence = row
    family, value = schema.address(key)
    owner = Owner(Attachment(network, container_id, ifname), (namespace, pod, uid), node, boot_id, netns, sequence)
    return Lease(Want(pool, family, value, scope), owner)
