"""Opening and locking the lease file, and the check that its path still names the locked file.

The lock is flock(2): a process waits in the kernel's queue, without polling and for a bounded time. The holder then
compares the inode, since the file may have been renamed or replaced during the wait.
"""

from __future__ import annotations

import errno
import os
from time import monotonic

from cni.shared.kernel import files, locks
from cni.shared.spec.errors import InvalidConfig, IoFailure, TryAgainLater
from ipam.stores.base import CREATE, READ

MOUNTINFO = "/proc/self/mountinfo"
_REMOTE = frozenset(
    ("9p", "afs", "ceph", "cifs", "fuse", "fuseblk", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs")
)


def open_locked(path: str, use: int, seconds: float, kept: int = -1) -> int:
    """A descriptor of the locked file at `path`. If the file is missing, CREATE makes it; other uses return -1.

    An earlier descriptor `kept` is used again if the path still names its file; otherwise it is closed. Raises
    TryAgainLater when another process keeps the file locked for `seconds`, InvalidConfig for a network file system,
    and IoFailure or OSError for other faults.
    """
    deadline = monotonic() + seconds
    while True:
        fd, kept = kept if kept >= 0 else _open(path, use), -1
        if fd < 0:
            return fd
        try:
            status = os.fstat(fd)
            _examine(path, fd, status)
            locks.lock_file(fd, max(0.0, deadline - monotonic()))
            if _is_at(path, status):
                return fd
        except TimeoutError:
            holder = _lock_holder(fd)
            os.close(fd)
            raise TryAgainLater(
                f"lease file {path} has been locked for more than {seconds:g} s{holder}: retry; if it stays so, see what that"
                " process waits for"
            ) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def refused(path: str, fault: OSError) -> IoFailure:
    """The IoFailure for an OSError when the lease file or its directory cannot be opened."""
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
    """Raise an error for a file that is not regular, that others can write, or that is on a network file system."""
    if not files.is_regular(status):
        raise IoFailure(f"lease file {path} is not a regular file: remove it")
    files.check_private(status)
    try:
        files.check_private_file(os.stat(f"{path}-journal", follow_symlinks=False))
    except FileNotFoundError:
        pass
    except files.NotPrivate as fault:  # SQLite would wait for such a journal, or follow it out of the directory
        raise IoFailure(f"cannot use {path}-journal: {fault.strerror}") from None
    if os.major(status.st_dev) == 0:  # the file system has no block device
        _refuse_remote(path, fd)


def _refuse_remote(path: str, fd: int) -> None:
    kind = remote_type(fd)
    if kind:
        raise InvalidConfig(
            f'ipam.dataDir "{path.rpartition("/")[0]}" is on a file system of type {kind}, where file locks do not protect'
            " leases: name a directory on a local disk"
        )


def _is_at(path: str, status: os.stat_result) -> bool:
    try:
        now = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def _lock_holder(fd: int) -> str:
    """The process that holds the flock of `fd`, as words for a message; "" if it is unknown."""
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


def remote_type(fd: int) -> str:
    """The type of the file system of the open file `fd`, if other machines may share the file system; else ""."""
    for line in files.read_whole(f"/proc/self/fdinfo/{fd}").split(b"\n"):
        key, _, value = line.partition(b":")
        if key == b"mnt_id":
            return find_remote(value.strip(), files.read_whole(MOUNTINFO))
    return ""


def find_remote(mount_id: bytes, mountinfo: bytes) -> str:
    """As `remote_type`, for the mount `mount_id` in the text `mountinfo` (proc_pid_mountinfo(5))."""
    line = (b"\n" + mountinfo).partition(b"\n" + mount_id + b" ")[2].partition(b"\n")[0]
    kind = line.partition(b" - ")[2].partition(b" ")[0].decode("utf-8", "replace")
    return kind if kind.partition(".")[0] in _REMOTE else ""
