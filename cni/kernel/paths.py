"""Paths that somebody else wrote: what they lead to, and how to open that and nothing else.

First `resolve` tells where a path leads; that is judged; then `open_resolved` opens what was judged. It follows no
symbolic link, so that one which is put in the way meanwhile is refused. OSError passes.
"""

from __future__ import annotations

import posix
from errno import EINVAL, ELOOP, ENOENT, ENOTDIR

_LINKS = 40  # as path_resolution(7)


def resolve(path: str) -> str:
    """The absolute `path` without `.`, `..` and symbolic links; what of it does not exist yet is taken as it stands.

    OSError ELOOP when it has more than 40 links.
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
            target = posix.readlink(f"{resolved}/{part}")
        except OSError as fault:
            if fault.errno not in (EINVAL, ENOENT, ENOTDIR):  # no link, or nothing there
                raise
            resolved = f"{resolved}/{part}"
            continue
        links += 1
        if links > _LINKS:
            raise OSError(ELOOP, posix.strerror(ELOOP), path)
        pending += target.split("/")[::-1]
        if target.startswith("/"):
            resolved = ""
    return resolved or "/"


def open_resolved(path: str, flags: int, mode: int = 0) -> int:
    """Open what `resolve` answered; OSError ELOOP or ENOTDIR when a part of it is a symbolic link by now."""
    holder = posix.open("/", posix.O_PATH | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        *directories, name = path.split("/")[1:]
        for directory in directories:
            inner = posix.open(
                directory, posix.O_PATH | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC, dir_fd=holder
            )
            posix.close(holder)
            holder = inner
        return posix.open(name, flags | posix.O_NOFOLLOW | posix.O_CLOEXEC, mode, dir_fd=holder)
    finally:
        posix.close(holder)


def is_below(path: str, root: str) -> bool:
    """Whether the resolved `path` is the resolved `root`, or below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")
