"""Read and write small files safely, access kernel parameters, and check paths from untrusted configurations.

A file is written under a temporary name in its own directory and then renamed, so a reader sees the old content or the
new content, never a part. The temporary name is derived from the name of the file. So the next writer replaces the
temporary file of a killed writer, and `remove` removes both files. Two processes must not write the same file at the
same time. A power loss may undo a write that is not durable, or leave a part of the file (docs/durability.md). The
functions do not catch OSError: the caller knows the purpose of the file, and writes the error message.

To use an untrusted path, call `resolve`, check the result, and open it by `open_resolved`. This function follows no
symbolic link, so it refuses a link that was made after the check.

"Other users" are all users except root and the user of this process.
"""

from __future__ import annotations

import os
import stat
from errno import EAGAIN, EINVAL, ELOOP, ENOENT, ENOTDIR

MOST_LINKS = 40  # as path_resolution(7)
_CHUNK = 1 << 16
_SYSCTLS = "/proc/sys/"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(PermissionError):
    """A file or directory that other users can write. `strerror` has the fault and the remedy."""


def write_whole(directory: str, name: str, data: bytes, durable: bool = False, mode: int = 0o600) -> None:
    """Write `data` to a new file with `mode`, which replaces any former file `name` in `directory`. If `durable` is
    true, file and directory are synced, so that content and name are on the disk on return."""
    temporary = f"{directory}/{temporary_of(name)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(temporary, flags, mode)
    except FileExistsError:  # of a killed writer
        os.unlink(temporary)
        fd = os.open(temporary, flags, mode)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, f"{directory}/{name}")
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        sync(directory)


def write_whole_below(directory: str, name: str, data: bytes, durable: bool = False) -> None:
    """Make `directory` (mode 0700) if it is missing, and call `write_whole`."""
    try:
        write_whole(directory, name, data, durable)
    except FileNotFoundError:
        make_private_directory(directory)
        write_whole(directory, name, data, durable)


def temporary_of(name: str) -> str:
    """The temporary name of the file `name` while it is written."""
    return f".{name}.tmp"


def read_whole(path: str) -> bytes:
    with open(path, "rb", 0) as file:
        data = file.read()
    if data is None:
        raise BlockingIOError(EAGAIN, os.strerror(EAGAIN), path)
    return data


def read_sysctl(name: str) -> str:
    """The value of the kernel parameter `name`, such as "net/ipv4/conf/net1/arp_notify", without newline.

    Parameters below "net" are those of the calling thread's network namespace. Raises FileNotFoundError when the
    parameter, or the link in its name, does not exist.
    """
    return read_whole(_SYSCTLS + name).decode().rstrip("\n")


def write_sysctl(name: str, value: str) -> None:
    """Set the kernel parameter `name` to `value`. The form of `name` is that of `read_sysctl`."""
    write(_SYSCTLS + name, value)


def write(path: str, value: str) -> None:
    """Write `value` to the existing file at `path`, such as a file of procfs, by one write(2)."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def target_of(link: str) -> str:
    """The target of the symbolic link; "" when the link cannot be read."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def names_in(directory: str) -> list[str]:
    """The names in the directory; [] when it cannot be read."""
    try:
        return os.listdir(directory)
    except OSError:
        return []


def mark(path: str, links: bool = False) -> tuple[int, ...]:
    """Return (device, inode, size, modification time) of the file at `path`, or () if there is no file. The result
    changes when the file changes. If `links` is true, a symbolic link is followed."""
    try:
        status = os.stat(path, follow_symlinks=links)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_regular(path: str, most: int, flags: int = 0, private: bool = False) -> bytes:
    """The content of the file at `path`. A FIFO or device does not block the call. `flags` are further O_* flags.

    Raises ValueError when the file is not regular or has more than `most` bytes. With `private`, raises NotPrivate when
    other users can write the file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
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


def check_private(status: os.stat_result) -> None:
    """Raise NotPrivate if other users can write the file or directory that has this `status`."""
    mode = status.st_mode
    if (not status.st_uid or status.st_uid == os.geteuid()) and not mode & _OTHERS_WRITE:
        return
    wanted = "700" if stat.S_ISDIR(mode) else "600"
    raise NotPrivate(
        1,
        f"its owner is user {status.st_uid}, its mode {mode & 0o7777:o}, so others can write it; see what they did, then"
        f" chown it to root and chmod it to {wanted}",
    )


def check_private_file(status: os.stat_result) -> None:
    """Raise NotPrivate when the file with this `status` is not regular, or other users can write it."""
    if not stat.S_ISREG(status.st_mode):
        raise NotPrivate(1, "it is no regular file; see who put it there, and remove it")
    check_private(status)


def check_private_directory(path: str, links: bool = False) -> None:
    """Raise NotPrivate when `path` is no directory, or other users can write it. With `links`, a symbolic link is
    followed. Raises FileNotFoundError when `path` does not exist."""
    status = os.stat(path, follow_symlinks=links)
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivate(1, "it is no directory; see who put it there, and remove it")
    check_private(status)


def remove(directory: str, name: str) -> bool:
    """Remove the file `name` and the temporary file of a killed writer. Return False if there was no file `name`."""
    _unlink(f"{directory}/{temporary_of(name)}")
    return _unlink(f"{directory}/{name}")


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def make_private_directory(path: str, has_parent: bool = False) -> None:
    """Make the directory `path` durably, with mode 0700, and also its missing parents unless `has_parent` is true."""
    parent = path.rstrip("/").rpartition("/")[0]
    try:
        os.mkdir(path, 0o700)
        sync(parent or "/")  # else a power loss may remove the directory with all files that are synced in it
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(20, "Not a directory", path) from None
    except FileNotFoundError:
        if has_parent or not parent:  # in /proc no directory can be made, and a retry would never end
            raise
        make_private_directory(parent)
        make_private_directory(path, has_parent=True)


def take_directory(path: str) -> None:
    """Make the directory `path` (see `make_private_directory`), and ensure that no other user can write it.

    A directory that others can write, such as a tmpfs with its default mode 1777, gets mode 0700. Raises NotPrivate for
    a symbolic link or a directory of another user.
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
            pass  # the check below raises the error
        finally:
            if fd >= 0:
                os.close(fd)
        check_private_directory(path)


def open_private(directory: str, name: str) -> int:
    """A descriptor, for reading and writing, of the file `name` in `directory`. The caller has called `take_directory`.
    If `name` is a symbolic link, or a file that other users could write, it is replaced by a new file."""
    path = f"{directory}/{name}"
    try:
        return open_checked(path)
    except OSError as fault:
        if not isinstance(fault, NotPrivate) and fault.errno != ELOOP:
            raise
    _unlink(path)
    return open_checked(path)


def open_checked(path: str) -> int:
    """A descriptor, for reading and writing, of the file at `path`. A missing file is made with mode 0600. Raises
    NotPrivate when other users can write the file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    try:
        check_private_file(os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def sync(path: str) -> None:
    """Write the content of a file, or the names in a directory, to the disk, by fsync(2)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- paths ---


def resolve(path: str, root: str = "", strict: bool = True) -> str:
    """The absolute `path` in the file system below `root`, without `.`, `..` and symbolic links.

    Missing parts are kept as written. Raises OSError ELOOP for more than MOST_LINKS links and, if `strict` is true,
    another OSError when a part cannot be read.
    """
    pending = path.split("/")[::-1]
    resolved = ""
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            resolved = resolved.rpartition("/")[0]
        if part in ("", ".", ".."):
            continue
        try:
            target = os.readlink(f"{root}{resolved}/{part}")
        except OSError as fault:
            if strict and fault.errno not in (EINVAL, ENOENT, ENOTDIR):  # no link, or nothing there
                raise
            resolved = f"{resolved}/{part}"
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(ELOOP, os.strerror(ELOOP), path)
        pending += target.split("/")[::-1]
        if target.startswith("/"):
            resolved = ""
    return resolved or "/"


def open_resolved(path: str, flags: int, mode: int = 0) -> int:
    """Open a path that `resolve` returned. Raises OSError ELOOP or ENOTDIR when a part is a symbolic link now."""
    holder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *directories, name = path.split("/")[1:]
        for directory in directories:
            inner = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=holder)
            os.close(holder)
            holder = inner
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=holder)
    finally:
        os.close(holder)


def is_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or below `root`. Both must be results of `resolve`."""
    return path == root or path.startswith(root.rstrip("/") + "/")
