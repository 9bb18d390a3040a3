"""Small files: written whole, and read only if no other user can have written them; kernel parameters.

A file is written under a temporary name in its own directory and then renamed, so a reader sees the old content or the
new content, never a part. The temporary name is derived from the name of the file: the next writer overwrites the
temporary file of a killed one, and the removal of the file removes it. Two processes must not write one name at the same
time. A power loss may undo or tear a write that is not durable (docs/durability.md). OSError passes through every
function; the caller knows the purpose of the file and words the error.

NotPrivate is raised for a file that users other than root and this one can write.
"""

from __future__ import annotations

import os
from errno import ELOOP

_CHUNK = 1 << 16
_SYSCTLS = "/proc/sys/"
_FILE_TYPE, _REGULAR, _DIRECTORY, _OTHERS_WRITE = 0o170000, 0o100000, 0o040000, 0o022


class NotPrivate(PermissionError):
    """A file or directory that other users may have written. Its `strerror` has the fault and the remedy."""


def write_whole(directory: str, name: str, data: bytes, durable: bool = False, mode: int = 0o600) -> None:
    """Write `data` to the file `name` in `directory`, a new one of this `mode`; a former file is replaced.

    `durable`: on return both content and name are on the disk. POSIX promises this for two fsyncs, and not for fewer.
    """
    temporary = f"{directory}/{temporary_of(name)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, mode)
    except FileExistsError:  # its writer was killed
        os.unlink(temporary)
        fd = os.open(temporary, flags, mode)
    try:
        try:
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, f"{directory}/{name}")
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync_directory(directory)


def write_whole_below(directory: str, name: str, data: bytes, durable: bool = False) -> None:
    """As write_whole; a missing directory is made (mode 0700)."""
    try:
        write_whole(directory, name, data, durable)
    except FileNotFoundError:
        make_private_directory(directory)
        write_whole(directory, name, data, durable)


def temporary_of(name: str) -> str:
    """The name under which the file `name` is written."""
    return f".{name}.tmp"


def read_whole(path: str) -> bytes:
    """The content of the file at `path`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def read_sysctl(name: str) -> str:
    """The value of a kernel parameter by its path below /proc/sys, "net/ipv4/conf/net1/arp_notify", without the end of its line.

    A parameter below "net" is that of the network namespace which the calling thread is in. FileNotFoundError for a
    parameter, or a link in its name, that is not there.
    """
    return read_whole(_SYSCTLS + name).decode().rstrip("\n")


def write_sysctl(name: str, value: str) -> None:
    """Give a kernel parameter, named as for `read_sysctl`, a value."""
    fd = os.open(_SYSCTLS + name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def target_of(link: str) -> str:
    """Where the symbolic link leads; "" when it cannot be read, or has gone meanwhile."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def names_in(directory: str) -> list[str]:
    """The names in a directory; none when it cannot be read, or has gone meanwhile."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def mark(path: str, links: bool = False) -> tuple[int, ...]:
    """What differs when another file is at `path`, or its content is another; () for none. `links` are followed if so."""
    try:
        status = os.stat(path, follow_symlinks=links)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_regular(path: str, most: int, flags: int = 0, private: bool = False) -> bytes:
    """The content of the file at `path`, which any user may have put there: the call neither blocks nor reads without end.

    Raises ValueError when it is no regular file or larger than `most` bytes, and, if `private`, NotPrivate when other
    users can write it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    try:
        status = os.fstat(fd)
        if not is_regular(status):
            raise ValueError("is no regular file")
        if private:
            check_private(status)
        parts, left = [], most
        while left >= 0 and (part := os.read(fd, _CHUNK)):
            parts.append(part)
            left -= len(part)
        if left < 0:
            raise ValueError(f"is larger than {most} bytes")
        return b"".join(parts)
    finally:
        os.close(fd)


def is_regular(status: os.stat_result) -> bool:
    """Whether the file with this `status` is a regular one."""
    return status.st_mode & _FILE_TYPE == _REGULAR


def check_private(status: os.stat_result) -> None:
    """Raise NotPrivate when users other than root and this one can write the file or directory that has this `status`."""
    mode = status.st_mode
    if (not status.st_uid or status.st_uid == os.geteuid()) and not mode & _OTHERS_WRITE:
        return
    wanted = "700" if mode & _FILE_TYPE == _DIRECTORY else "600"
    raise NotPrivate(
        1,
        f"its owner is user {status.st_uid}, its mode {mode & 0o7777:o}, so others can write it; see what they did, then"
        f" chown it to root and chmod it to {wanted}",
    )


def check_private_file(status: os.stat_result) -> None:
    """Raise NotPrivate unless `status` is that of a regular file that other users cannot write."""
    if not is_regular(status):
        raise NotPrivate(1, "it is no regular file; see who put it there, and remove it")
    check_private(status)


def check_private_directory(path: str, links: bool = False) -> None:
    """Raise NotPrivate unless `path` is a directory that other users cannot write.

    With `links` it may be a symbolic link to one. FileNotFoundError when there is nothing.
    """
    status = os.stat(path, follow_symlinks=links)
    if status.st_mode & _FILE_TYPE != _DIRECTORY:
        raise NotPrivate(1, "it is no directory; see who put it there, and remove it")
    check_private(status)


def remove(directory: str, name: str) -> bool:
    """Remove the file `name` from `directory`, and the temporary file of a killed writer; False when there was no such file."""
    _unlink(f"{directory}/{temporary_of(name)}")
    return _unlink(f"{directory}/{name}")


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def make_private_directory(path: str, has_parent: bool = False) -> None:
    """Make the directory `path` and its missing parents; new directories have mode 0700 and are durable."""
    parent = path.rstrip("/").rpartition("/")[0]
    try:
        os.mkdir(path, 0o700)
        sync_directory(parent or "/")  # else a power loss may take the directory, with all that is synced in it
    except FileExistsError:
        if os.stat(path).st_mode & _FILE_TYPE != _DIRECTORY:
            raise NotADirectoryError(20, "Not a directory", path) from None
    except FileNotFoundError:
        if has_parent or not parent:  # /proc answers so for ever: no directory can be made there
            raise
        make_private_directory(parent)
        make_private_directory(path, has_parent=True)


def take_directory(path: str) -> None:
    """Make the directory `path` as make_private_directory does. If it belongs to root or this user and others can write it,
    set mode 0700: a tmpfs that is mounted there without a mode has 1777. NotPrivate if it is a link, or another user's.
    """
    make_private_directory(path)
    try:
        check_private_directory(path)
    except NotPrivate:
        fd = -1
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.fchmod(fd, 0o700)
        except OSError:
            pass  # the check below says what is wrong
        finally:
            if fd >= 0:
                os.close(fd)
        check_private_directory(path)


def open_private(directory: str, name: str) -> int:
    """A descriptor, for reading and writing, of the file `name` in `directory`, which take_directory has taken.

    A file that other users put there under that name, while they could, is removed.
    """
    path = f"{directory}/{name}"
    try:
        return open_checked(path)
    except OSError as fault:
        if not isinstance(fault, NotPrivate) and fault.errno != ELOOP:
            raise
    _unlink(path)
    return open_checked(path)


def open_checked(path: str) -> int:
    """A descriptor, for reading and writing, of the file at `path`, which is made (mode 0600) if it is missing.

    NotPrivate when other users can write the file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    try:
        check_private_file(os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def sync_directory(path: str) -> None:
    """Make the names in the directory `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
