"""Small files that survive a crash: what a call has returned from is on the disk.

A file is written under a temporary name in its own directory and renamed, so that a reader sees the old content or
the new, never a part. The temporary name follows from the file's, so that what a killed writer left is overwritten by
the next one and removed with the file; two writers of one name must not be at work at once. Every function lets OSError
pass; the caller knows what the file was for and says so.

State is believed only when none but root and this user can have written it: NotPrivate otherwise.
"""

from __future__ import annotations

import posix
from errno import ELOOP

_CHUNK = 1 << 16
_FILE_TYPE, _REGULAR, _DIRECTORY, _OTHERS_WRITE = 0o170000, 0o100000, 0o040000, 0o022


class NotPrivate(PermissionError):
    """A file or directory that others may have written. Its `strerror` says what is wrong, and what to do."""


def write_durably(directory: str, name: str, data: bytes) -> None:
    """Make the file `name` in `directory` hold `data`, mode 0600, whatever stood there before."""
    holder = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        temporary = temporary_of(name)
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        try:
            fd = posix.open(temporary, flags, 0o600, dir_fd=holder)
        except FileExistsError:  # its writer was killed
            posix.unlink(temporary, dir_fd=holder)
            fd = posix.open(temporary, flags, 0o600, dir_fd=holder)
        try:
            try:
                _write_all(fd, data)
                posix.fsync(fd)
            finally:
                posix.close(fd)
            posix.rename(temporary, name, src_dir_fd=holder, dst_dir_fd=holder)
        except BaseException:
            posix.unlink(temporary, dir_fd=holder)
            raise
        posix.fsync(holder)
    finally:
        posix.close(holder)


def temporary_of(name: str) -> str:
    """The name under which the file `name` is written."""
    return f".{name}.tmp"


def read_whole(path: str) -> bytes:
    """The content of the file at `path`."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        parts = []
        while part := posix.read(fd, _CHUNK):
            parts.append(part)
        return b"".join(parts)
    finally:
        posix.close(fd)


def read_regular(path: str, most: int, flags: int = 0, private: bool = False) -> bytes:
    """The content of the file at `path`, which anybody may have put there: it is neither waited for nor endless.

    ValueError when it is no regular file or larger than `most` bytes; NotPrivate when it is to be `private` and is not.
    """
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY | flags)
    try:
        status = posix.fstat(fd)
        if status.st_mode & _FILE_TYPE != _REGULAR:
            raise ValueError("is no regular file")
        if private:
            check_private(status)
        parts, left = [], most
        while left >= 0 and (part := posix.read(fd, _CHUNK)):
            parts.append(part)
            left -= len(part)
        if left < 0:
            raise ValueError(f"is larger than {most} bytes")
        return b"".join(parts)
    finally:
        posix.close(fd)


def check_private(status: posix.stat_result) -> None:
    """Raise NotPrivate when others than root and this user can write what `status` is of."""
    mode = status.st_mode
    if status.st_uid in (0, posix.geteuid()) and not mode & _OTHERS_WRITE:
        return
    wanted = "700" if mode & _FILE_TYPE == _DIRECTORY else "600"
    raise NotPrivate(
        1,
        f"its owner is user {status.st_uid}, its mode {mode & 0o7777:o}, so others can write it; see what they did, then"
        f" chown it to root and chmod it to {wanted}",
    )


def check_private_file(status: posix.stat_result) -> None:
    """Raise NotPrivate when what `status` is of is no regular file, or one that others can write."""
    if status.st_mode & _FILE_TYPE != _REGULAR:
        raise NotPrivate(1, "it is no regular file; see who put it there, and remove it")
    check_private(status)


def check_private_directory(path: str, links: bool = False) -> None:
    """Raise NotPrivate when what is at `path` is no directory, or one that others can write.

    With `links` it may be a symbolic link to one. FileNotFoundError when there is nothing.
    """
    status = posix.stat(path, follow_symlinks=links)
    if status.st_mode & _FILE_TYPE != _DIRECTORY:
        raise NotPrivate(1, "it is no directory; see who put it there, and remove it")
    check_private(status)


def remove_durably(directory: str, name: str) -> bool:
    """Remove the file `name` from `directory`, and what a killed writer of it left; False when there was no such file."""
    try:
        holder = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        _unlink(temporary_of(name), holder)
        found = _unlink(name, holder)
        posix.fsync(holder)  # also when it was gone: whoever removed it may have been killed before this
    finally:
        posix.close(holder)
    return found


def _unlink(name: str, holder: int) -> bool:
    try:
        posix.unlink(name, dir_fd=holder)
    except FileNotFoundError:
        return False
    return True


def make_private_directory(path: str) -> None:
    """Make the directory `path` and those above it where they are missing; what it makes has mode 0700 and is durable."""
    parent = path.rstrip("/").rpartition("/")[0]
    try:
        posix.mkdir(path, 0o700)
        sync_directory(parent or "/")  # else a power loss may take the directory, with all that is synced in it
    except FileExistsError:
        if posix.stat(path).st_mode & _FILE_TYPE != _DIRECTORY:
            raise NotADirectoryError(20, "Not a directory", path) from None
    except FileNotFoundError:
        if not parent:
            raise
        make_private_directory(parent)
        make_private_directory(path)


def take_directory(path: str) -> None:
    """Make the directory `path` as make_private_directory does; one of root or this user that others can write gets mode
    0700 back, as a tmpfs that was mounted there without a mode has 1777. NotPrivate when it is another user's, or a link.
    """
    make_private_directory(path)
    try:
        check_private_directory(path)
    except NotPrivate:
        fd = -1
        try:
            fd = posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC)
            posix.fchmod(fd, 0o700)
        except OSError:
            pass  # what is wrong is told below
        finally:
            if fd >= 0:
                posix.close(fd)
        check_private_directory(path)


def open_private(directory: str, name: str) -> int:
    """A descriptor, for reading and writing, of the file `name` in `directory`, which take_directory has taken.

    What others have put there under that name, while they could, is removed.
    """
    path = f"{directory}/{name}"
    flags = posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK
    try:
        fd = posix.open(path, flags, 0o600)
        try:
            check_private_file(posix.fstat(fd))
        except BaseException:
            posix.close(fd)
            raise
        return fd
    except OSError as fault:
        if not isinstance(fault, NotPrivate) and fault.errno != ELOOP:
            raise
    try:
        posix.unlink(path)
    except FileNotFoundError:
        pass  # another process has removed it
    return posix.open(path, flags, 0o600)


def sync_directory(path: str) -> None:
    """Make the names in the directory `path` durable."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        posix.fsync(fd)
    finally:
        posix.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]
