"""Small files that survive a crash: what a call has returned from is on the disk.

A file is written under a temporary name in its own directory and renamed, so that a reader sees the old content or
the new, never a part. The temporary name follows from the file's, so that what a killed writer left is overwritten by
the next one and removed with the file; two writers of one name must not be at work at once. Every function lets OSError
pass; the caller knows what the file was for and says so.
"""

from __future__ import annotations

import posix

_CHUNK = 1 << 16


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


def remove_durably(directory: str, name: str) -> bool:
    """Remove the file `name` from `directory`, and what a killed writer of it left; False when there was no such file."""
    try:
        holder = posix.open(directory, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        try:
            posix.unlink(temporary_of(name), dir_fd=holder)
        except FileNotFoundError:
            pass
        posix.unlink(name, dir_fd=holder)
        posix.fsync(holder)
    except FileNotFoundError:
        return False
    finally:
        posix.close(holder)
    return True


def make_private_directory(path: str) -> None:
    """Make the directory `path` and those above it where they are missing; what it makes has mode 0700."""
    try:
        posix.mkdir(path, 0o700)
    except FileExistsError:
        if posix.stat(path).st_mode & 0o170000 != 0o040000:
            raise NotADirectoryError(20, "Not a directory", path) from None
    except FileNotFoundError:
        parent = path.rstrip("/").rpartition("/")[0]
        if not parent:
            raise
        make_private_directory(parent)
        make_private_directory(path)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]
