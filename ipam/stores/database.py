"""The lease file: an SQLite database that one process at a time has open, under flock(2).

SQLite's own locks are never contended, unless somebody looks into the file with another program. A killed process
leaves a hot journal (PATH-journal), which SQLite rolls back when the next one opens the file.

journal_mode=PERSIST, because it is the cheapest here (0.54 ms for a commit; DELETE and TRUNCATE 0.65, WAL, whose last
connection tidies up, 0.9), and because a journal that has its blocks lets a full disk still release leases.
locking_mode stays NORMAL: EXCLUSIVE would save some locks, but sync the journal once more as the file is closed.
"""

from __future__ import annotations

import posix

from cni.kernel import files
from cni.spec.errors import InvalidConfig, IoFailure, StateDamaged, TryAgainLater
from ipam.stores.base import CREATE, READ
from ipam.stores.lockedfile import open_locked, refused
from ipam.stores.schema import FORMAT, TABLES
from ipam.stores.sqlite import _sqlite3

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.spec.errors import CniError

WAIT_SECONDS = 60.0  # as for an attachment; a hundred waiters on a slow disk need some of it
_BUSY_SECONDS = 2.0
_NO_TEXT = "a text in it is not UTF-8"
_MAGIC = 0x7263 << 16  # in user_version: above the format, to know a file of ours


class Database:
    """The lease file at `path`, open and locked until `close`. Its methods raise CniErrors that name the path."""

    __slots__ = ("_connection", "_fd", "_use", "path")

    def __init__(self, path: str, use: int, fd: int) -> None:
        self.path = path
        self._use = use
        self._fd = fd
        self._connection: Any = None

    def run(self, sql: str, *values: Any) -> list[Any]:
        """The rows that a statement answers, within a transaction that it begins if need be."""
        try:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
            return self._connection.execute(sql, values).fetchall()  # type: ignore[no-any-return]
        except _sqlite3.Error as fault:
            raise self._failure(fault) from None
        except UnicodeDecodeError:
            raise self.damaged(_NO_TEXT) from None
        except (UnicodeError, OverflowError) as fault:
            raise InvalidConfig(f"{values!r:.100} cannot be kept in {self.path}: {fault}; want another name") from None

    def commit(self) -> None:
        """Make what was run since the last commit durable, or undo it and raise; OutcomeUnknown when neither is sure."""
        try:
            self._connection.execute("COMMIT")
        except _sqlite3.Error as fault:
            self.roll_back()
            failure = self._failure(fault)
            if _code(fault) == _sqlite3.SQLITE_IOERR:
                raise OutcomeUnknown(failure.msg) from None
            raise failure from None

    def sync(self) -> None:
        """Make the last commit durable, in case its process was killed between writing and syncing the journal's end."""
        journal = f"{self.path}-journal"
        try:
            fd = posix.open(journal, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NOFOLLOW)
            try:
                posix.fsync(fd)
            finally:
                posix.close(fd)
        except FileNotFoundError:
            pass  # then nothing was ever committed
        except OSError as fault:
            raise refused("sync the journal of", self.path, fault) from None

    def roll_back(self) -> None:
        """Undo what was run since the last commit."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except _sqlite3.Error:
            pass  # the next one to open the file rolls it back

    def close(self) -> None:
        """Undo what is not committed, and give up the lock; a second call does nothing."""
        self._disconnect()
        if self._fd >= 0:
            posix.close(self._fd)
            self._fd = -1

    def _disconnect(self) -> None:
        if self._connection is not None:
            self.roll_back()
            self._connection.close()
            self._connection = None

    def damaged(self, reason: str) -> StateDamaged:
        """Set the file aside, so that nothing is decided by it any more; the error to raise."""
        what = f"lease file {self.path} is damaged"
        if self._use == READ:
            return StateDamaged(f"{what}: the next ADD or DEL sets it aside, and says so ({reason})")
        try:
            aside = self._set_aside()
        except OSError as fault:
            return StateDamaged(
                f"{what} and cannot be renamed ({fault.strerror}): move it away, then the leases are rebuilt from the"
                f" attachment records ({reason})"
            )
        finally:
            self.close()
        return StateDamaged(
            f"{what}: it was set aside as {aside.rpartition('/')[2]} beside it. Try again: the leases are rebuilt from the"
            f" attachment records ({reason})",
            f"what else the file holds can be read with: sqlite3 {aside} .recover",
        )

    def _connect(self) -> bool:
        """Open the file with SQLite; False when it holds nothing yet."""
        if self._use != CREATE and posix.fstat(self._fd).st_size == 0:
            return False
        try:
            self._connection = _sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            ((version,),) = self._connection.execute("PRAGMA user_version").fetchall()
            self._check_format(version)
            self._connection.executescript(
                "PRAGMA journal_mode=PERSIST; PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF"
            )
        except _sqlite3.Error as fault:
            raise self._failure(fault) from None
        except UnicodeDecodeError:  # in what SQLite says of a table
            raise self.damaged(_NO_TEXT) from None
        if version:
            return True
        if self.run("SELECT 1 FROM sqlite_master LIMIT 1"):
            raise self._of_others()
        return False

    def _check_format(self, version: int) -> None:
        """Refuse what is not ours or newer, before anything is done that changes it or has to understand it."""
        if version in (0, _MAGIC | FORMAT):
            return
        if version & ~0xFFFF != _MAGIC:
            raise self._of_others()
        raise IoFailure(
            f"lease file {self.path} has format {version & 0xFFFF}, and this railcni knows {FORMAT}: a newer railcni has"
            " written it; install that version again"
        )

    def _of_others(self) -> IoFailure:
        return IoFailure(
            f"{self.path} is a database of another program: set ipam.dataDir to a directory for railcni alone"
        )

    def _make(self) -> None:
        """Make the tables, in the transaction that `_connect` began."""
        for statement in TABLES:
            self.run(statement)
        self.run(f"PRAGMA user_version={_MAGIC | FORMAT}")

    def _is_sound(self) -> bool:
        """Whether the whole file is in order: SQLite says "damaged" of a read that the disk refused, too."""
        self._disconnect()
        try:
            connection = _sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        except _sqlite3.Error:
            return False
        try:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)])
        except (_sqlite3.Error, UnicodeDecodeError):
            return False
        finally:
            connection.close()

    def _set_aside(self) -> str:
        self._disconnect()
        number = 1
        while _exists(f"{self.path}.damaged-{number}"):
            number += 1
        aside = f"{self.path}.damaged-{number}"
        posix.rename(self.path, aside)
        try:  # a kill between the two leaves the journal: SQLite removes one that it finds beside an empty file
            posix.rename(f"{self.path}-journal", f"{aside}-journal")
        except FileNotFoundError:
            pass
        files.sync_directory(self.path.rpartition("/")[0])
        return aside

    def _failure(self, fault: Any) -> CniError:
        """What an error of SQLite means here (https://sqlite.org/rescode.html)."""
        code = _code(fault)
        if code in (_sqlite3.SQLITE_CORRUPT, _sqlite3.SQLITE_NOTADB):
            if self._is_sound():
                return IoFailure(
                    f"lease file {self.path} could not be read for a moment: retry; see the kernel's log for errors of its disk"
                )
            return self.damaged(str(fault))
        if str(fault).startswith(("no such ", "Could not decode ")):  # table or column; a text that is not UTF-8
            return self.damaged(str(fault))
        if code == _sqlite3.SQLITE_CONSTRAINT:
            return self.damaged(f"its bitmaps and leases differ: {fault}")
        if code == _sqlite3.SQLITE_FULL:
            return DiskFull(f"no lease can be written to {self.path}: the disk is full; free space there")
        if code in (_sqlite3.SQLITE_READONLY, _sqlite3.SQLITE_CANTOPEN, _sqlite3.SQLITE_PERM):
            return IoFailure(f"lease file {self.path} cannot be written: {fault}; make it and its directory writable")
        if code in (_sqlite3.SQLITE_BUSY, _sqlite3.SQLITE_LOCKED):
            return TryAgainLater(f"another program reads or writes lease file {self.path}: end it (`lsof` names it)")
        return IoFailure(f"lease file {self.path}: {fault}; see the kernel's log for errors of its disk")


class DiskFull(IoFailure):
    """There is no room for what was to be written; what needs less may still be."""


class OutcomeUnknown(IoFailure):
    """The disk failed in the middle of a commit: who opens the file next finds it done or not done."""


def open_database(path: str, use: int, seconds: float = WAIT_SECONDS) -> tuple[Database, bool] | None:
    """The lease file, locked, and whether it is new: then a transaction is open in which its tables were made.

    None when there is no file, or nothing in it, and `use` is not CREATE. TryAgainLater when others keep it locked for
    `seconds`; InvalidConfig when it lies on a network file system; IoFailure; StateDamaged.
    """
    try:
        fd = open_locked(path, use, seconds)
    except OSError as fault:
        raise refused("open", path, fault) from None
    if fd < 0:
        return None
    database = Database(path, use, fd)
    try:
        if database._connect():
            return database, False
        if use == CREATE:
            database._make()
            return database, True
    except BaseException:
        database.close()
        raise
    database.close()
    return None


def _code(fault: Any) -> int:
    return (getattr(fault, "sqlite_errorcode", None) or 0) & 0xFF


def _exists(path: str) -> bool:
    try:
        posix.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
