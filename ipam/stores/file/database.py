"""The lease file: an SQLite database that one process at a time has open, under flock(2).

A process waits for the lock in the kernel's queue, without polling and for a bounded time. Then it checks that the path
still names the locked file, since another process may have replaced it. SQLite's own locks matter only against other
programs. A killed process leaves a hot journal (PATH-journal), which SQLite rolls back when the file is next opened.

journal_mode=PERSIST is the fastest mode here. The journal keeps its disk blocks, so leases can be released on a full
disk.

With synchronous=OFF a killed process loses nothing. After a power loss no lease is in use (docs/durability.md), but the
file may be damaged. So the first process of a boot checks the whole file, and renames a damaged file. The field
`application_id` shows the boot of the last check.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import stat
from time import monotonic
from typing import Any

from cni.shared.kernel import files, locks, node
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure, StateDamaged, TryAgainLater
from ipam.stores import base
from ipam.stores.base import CREATE, READ
from ipam.stores.file.schema import FORMAT, TABLES

WAIT_SECONDS = 60.0  # as for an attachment's lock: on a slow disk a hundred processes may wait
_BUSY_SECONDS = 2.0
_BOOT_AT, _BOOT_BYTES = 68, 4  # of application_id (https://sqlite.org/fileformat.html, section 1.3)
_MOST_KEPT = 4
_MAGIC = 0x7263 << 16  # the upper half of user_version, which marks railcni's files; the lower half is the format

MOUNTINFO = "/proc/self/mountinfo"
_REMOTE = frozenset(
    ("9p", "afs", "ceph", "cifs", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs")
)


class Database:
    """The lease file at `path`, open and locked until `close`. The methods raise a CniError that names the path."""

    def __init__(self, path: str, use: int, fd: int) -> None:
        self.path = path
        self._use = use
        self._fd = fd
        self._has_failed = False
        self._connection: Any = None

    def run(self, sql: str, *values: Any) -> list[Any]:
        """Run a statement in the open transaction, or in a new transaction if none is open. Returns the rows."""
        try:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
            return self._connection.execute(sql, values).fetchall()  # type: ignore[no-any-return]
        except (sqlite3.Error, UnicodeDecodeError) as fault:
            raise self._failure(fault) from None
        except (UnicodeError, OverflowError) as fault:
            raise InvalidConfig(f"{values!r:.100} cannot be kept in {self.path}: {fault}; want another name") from None

    def commit(self) -> None:
        """Commit the open transaction. Raises CommitUnknown if the outcome is unknown, CniError after a rollback."""
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as fault:
            self.roll_back()
            failure = self._failure(fault)
            if _code(fault) == sqlite3.SQLITE_IOERR:
                raise CommitUnknown(failure.msg) from None
            raise failure from None

    def roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # the next process that opens the file rolls back the transaction

    def close(self) -> None:
        """Roll back and unlock. A process that serves many calls keeps the file open. `close` may be called twice."""
        kept = base.lease_files
        if kept is not None and self._connection is not None and not self._has_failed:
            self.roll_back()
            locks.unlock_file(self._fd)
            kept[self.path, self._use] = self
            if len(kept) > _MOST_KEPT:
                kept.pop(next(iter(kept)))._shut()  # the least recently used file
            return
        self._shut()

    def _shut(self) -> None:
        self._disconnect()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _disconnect(self) -> None:
        if self._connection is not None:
            self.roll_back()
            self._connection.close()
            self._connection = None

    def damaged(self, reason: str) -> StateDamaged:
        """Rename the damaged file, unless `use` is READ: no decision must depend on it. Returns the error to raise."""
        what = f"lease file {self.path} is damaged"
        if self._use == READ:
            return StateDamaged(f"{what}: the next ADD or DEL sets it aside, and says so ({reason})")
        is_torn = self._is_of_earlier_boot()
        try:
            aside = self._set_aside()
        except OSError as fault:
            return StateDamaged(
                f"{what} and cannot be renamed ({fault.strerror}): move it away, then the leases are rebuilt from the"
                f" attachment records ({reason})"
            )
        finally:
            self.close()
        kind = Torn if is_torn else StateDamaged
        return kind(
            f"{what}: it was set aside as {aside.rpartition('/')[2]} beside it. Try again: the leases are rebuilt from the"
            f" attachment records ({reason})",
            f"what else the file holds can be read with: sqlite3 {aside} .recover",
        )

    def _take_again(self, seconds: float) -> bool:
        """Lock this file, which stayed open after the last call, and return True. If the path now names another file,
        or the file has lost its mark of this boot because it was emptied or overwritten, close it and return False."""
        try:
            if lock(self.path, self._fd, seconds, monotonic() + seconds) and not self._is_of_earlier_boot():
                ((version,),) = self.run("PRAGMA user_version")
                self._check_format(version)
                return True
        except BaseException:
            self._shut()
            raise
        self._shut()
        return False

    def _connect(self) -> bool:
        """Open the file with SQLite. Returns True if the file has railcni's tables, False if the file is empty."""
        if self._use != CREATE and os.fstat(self._fd).st_size == 0:
            return False
        try:
            self._connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            ((version,),) = self._connection.execute("PRAGMA user_version").fetchall()
            self._check_format(version)
            self._connection.executescript(
                "PRAGMA journal_mode=PERSIST; PRAGMA synchronous=OFF; PRAGMA trusted_schema=OFF"
            )
        except (sqlite3.Error, UnicodeDecodeError) as fault:  # UnicodeDecodeError: a message of SQLite names a table
            raise self._failure(fault) from None
        if version:
            return True
        if self.run("SELECT 1 FROM sqlite_master LIMIT 1"):
            raise self._of_others()
        return False

    def _check_format(self, version: int) -> None:
        """Raise IoFailure for a file of another program or of a newer format, by `version`, the file's user_version."""
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

    def _mark_boot(self) -> None:
        """Note in `application_id`, in the open transaction, that the file was found sound in this boot."""
        self.run(f"PRAGMA application_id={int.from_bytes(_this_boot(), 'big', signed=True)}")

    def _is_of_earlier_boot(self) -> bool:
        """Whether no process of this boot has checked the file. Reads without SQLite, which fails on a damaged file."""
        return os.pread(self._fd, _BOOT_BYTES, _BOOT_AT) != _this_boot()

    def _examine(self) -> None:
        """Check the whole file, and note in the open transaction that it is sound. Raises Torn for a damaged file."""
        found = self.run("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise self.damaged(f"{found}")
        self._mark_boot()

    def _is_sound(self) -> bool:
        """Whether a second reading finds the whole file sound. SQLite also reports damage after a failed disk read."""
        self._disconnect()
        try:
            self._connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            return bool(self._connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)])
        except (sqlite3.Error, UnicodeDecodeError):
            return False
        finally:
            self._disconnect()

    def _set_aside(self) -> str:
        self._disconnect()
        directory, _, name = self.path.rpartition("/")
        number, names = 1, os.listdir(directory)
        while f"{name}.damaged-{number}" in names:
            number += 1
        aside = f"{self.path}.damaged-{number}"
        os.rename(self.path, aside)
        try:  # a kill between the two renames leaves the journal; SQLite removes a journal beside an empty file
            os.rename(f"{self.path}-journal", f"{aside}-journal")
        except FileNotFoundError:
            pass
        return aside

    def _failure(self, fault: Any) -> CniError:
        """The CniError for an error of SQLite (https://sqlite.org/rescode.html), or for a text that is not UTF-8."""
        self._has_failed = True
        code = _code(fault)
        if isinstance(fault, UnicodeDecodeError):
            return self.damaged("a text in it is not UTF-8")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            if not self._is_of_earlier_boot() and self._is_sound():  # else a power loss may have damaged the file
                return IoFailure(
                    f"lease file {self.path} could not be read for a moment: retry; see the kernel's log for errors of its disk"
                )
            return self.damaged(str(fault))
        if str(fault).startswith(("no such ", "Could not decode ")):  # no such table or column; text not in UTF-8
            return self.damaged(str(fault))
        if code == sqlite3.SQLITE_CONSTRAINT:
            return self.damaged(f"its bitmaps and leases differ: {fault}")
        if code == sqlite3.SQLITE_FULL:
            return DiskFull(f"no lease can be written to {self.path}: the disk is full; free space there")
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return IoFailure(f"lease file {self.path} cannot be written: {fault}; make it and its directory writable")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return TryAgainLater(f"another program reads or writes lease file {self.path}: end it (`lsof` names it)")
        return IoFailure(f"lease file {self.path}: {fault}; see the kernel's log for errors of its disk")


class DiskFull(IoFailure):
    """The disk has no room for a write; a smaller write may succeed."""


class Torn(StateDamaged):
    """A power loss has damaged the file, which was renamed."""


class CommitUnknown(IoFailure):
    """The disk failed during a commit. The next process that opens the file finds the commit either made or undone."""


def open_database(path: str, use: int, seconds: float = WAIT_SECONDS) -> tuple[Database, bool] | None:
    """Open and lock the lease file. Returns (file, whether the caller must fill it).

    The caller must fill a file that is new or of an earlier boot, in the transaction that is then open. If `use` is not
    CREATE, returns None for a missing or empty file. Raises TryAgainLater when another process keeps the file locked
    for `seconds`, InvalidConfig for a network file system, StateDamaged for a damaged file, else IoFailure.
    """
    former: Database | None = (base.lease_files or {}).pop((path, use), None)
    try:
        if former and former._take_again(seconds):
            return former, False
        fd = open_locked(path, use, seconds)
    except OSError as fault:
        raise refused(path, fault) from None
    if fd < 0:
        return None
    database = Database(path, use, fd)
    try:
        if database._connect():
            begins = use != READ and database._is_of_earlier_boot()
            if begins:
                database._examine()
            return database, begins
        if use == CREATE:
            for statement in (*TABLES, f"PRAGMA user_version={_MAGIC | FORMAT}"):
                database.run(statement)  # in the transaction that `_connect` has begun
            database._mark_boot()
            return database, True
    except Torn:
        return open_database(path, use, seconds)
    except BaseException:
        database.close()
        raise
    database.close()
    return None


def _this_boot() -> bytes:
    return hashlib.blake2b(node.boot_id().encode(), digest_size=_BOOT_BYTES).digest()


def _code(fault: Any) -> int:
    return (getattr(fault, "sqlite_errorcode", None) or 0) & 0xFF


# --- opening and locking ---


def open_locked(path: str, use: int, seconds: float) -> int:
    """Open and lock the file at `path`. Returns a descriptor. CREATE makes a missing file; any other `use` returns -1.

    Raises InvalidConfig for a network file system, the errors of `lock`, and IoFailure or OSError for other faults.
    """
    deadline = monotonic() + seconds
    while (fd := _open(path, use)) >= 0:
        try:
            if os.major(os.fstat(fd).st_dev) == 0:  # the file system has no block device
                _refuse_remote(path, fd)  # once, not at each lock: a mount table can be long
            if lock(path, fd, seconds, deadline):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    return fd


def lock(path: str, fd: int, seconds: float, deadline: float) -> bool:
    """Lock the open file `fd`. Returns whether `path` still names this file.

    Waits until `deadline` (time.monotonic). Then raises TryAgainLater, whose message says that the wait took `seconds`.
    Raises IoFailure or OSError for a file that other users can change.
    """
    status = os.fstat(fd)
    _examine(path, fd, status)
    try:
        locks.lock_file(fd, max(0.0, deadline - monotonic()))
        now = os.stat(path, follow_symlinks=False)
    except TimeoutError:
        raise TryAgainLater(
            f"lease file {path} has been locked for more than {seconds:g} s{_lock_holder(fd)}: retry; if it stays so, see"
            " what that process waits for"
        ) from None
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def refused(path: str, fault: OSError) -> IoFailure:
    """The IoFailure for `fault`, because of which the lease file or its directory cannot be opened."""
    if isinstance(fault, files.NotPrivate):
        return IoFailure(f"cannot open lease file {path}: {fault.strerror}")
    remedy = {
        errno.ENOSPC: "free space there",
        errno.EDQUOT: "free space there",
        errno.EROFS: "mount it writable, or set ipam.dataDir to a writable directory",
        errno.EACCES: "run as root",
        errno.EPERM: "run as root",
        errno.ELOOP: "replace the symbolic link by the file",
    }.get(fault.errno or 0, "see that ipam.dataDir is a local, writable directory")
    return IoFailure(f"cannot open lease file {path}: {fault.strerror}; {remedy}")


def _open(path: str, use: int) -> int:
    flags = (os.O_RDONLY if use == READ else os.O_RDWR) | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    directory = path.rpartition("/")[0]
    try:
        files.check_private_directory(directory, links=True)
        return os.open(path, flags)
    except files.NotPrivate as fault:
        raise IoFailure(f"cannot keep leases in {directory}: {fault.strerror}") from None
    except FileNotFoundError:
        if use != CREATE:
            return -1
    files.make_private_directory(directory)
    holder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _refuse_remote(path, holder)
        return os.open(path, flags | os.O_CREAT, 0o600)
    finally:
        os.close(holder)


def _examine(path: str, fd: int, status: os.stat_result) -> None:
    """Raise an error for a file that is not regular, or that others can write."""
    if not stat.S_ISREG(status.st_mode):
        raise IoFailure(f"lease file {path} is not a regular file: remove it")
    files.check_private(status)
    try:
        files.check_private_file(os.stat(f"{path}-journal", follow_symlinks=False))
    except FileNotFoundError:
        pass
    except files.NotPrivate as fault:  # SQLite would wait for such a journal, or follow it out of the directory
        raise IoFailure(f"cannot use {path}-journal: {fault.strerror}") from None


def _refuse_remote(path: str, fd: int) -> None:
    """Raise InvalidConfig if the open file or directory `fd` is on a network file system."""
    fields = (line.partition(b":") for line in files.read_whole(f"/proc/self/fdinfo/{fd}").split(b"\n"))
    mount_id = next((value.strip() for key, _, value in fields if key == b"mnt_id"), b"")
    if kind := find_remote(mount_id, files.read_whole(MOUNTINFO)):
        raise InvalidConfig(
            f'ipam.dataDir "{path.rpartition("/")[0]}" is on a file system of type {kind}, where file locks do not protect'
            " leases: name a directory on a local disk"
        )


def _lock_holder(fd: int) -> str:
    """The process that holds the flock of `fd`, as a part of a message; "" if the process is unknown."""
    inode = os.fstat(fd).st_ino
    try:
        for line in files.read_whole("/proc/locks").decode().split("\n"):
            fields = line.split()
            if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
                name = files.read_whole(f"/proc/{fields[4]}/comm").decode("utf-8", "replace").strip()
                return f" by process {fields[4]} ({name})"
    except OSError:
        pass
    return ""


def find_remote(mount_id: bytes, mountinfo: bytes) -> str:
    """The type of the network file system of the mount `mount_id` in the text `mountinfo` (proc_pid_mountinfo(5)); ""
    for any other file system."""
    line = (b"\n" + mountinfo).partition(b"\n" + mount_id + b" ")[2].partition(b"\n")[0]
    kind = line.partition(b" - ")[2].partition(b" ")[0].decode("utf-8", "replace")
    return kind if kind.partition(".")[0] in _REMOTE else ""
