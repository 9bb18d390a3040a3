"""Resolve a path from an untrusted configuration, and open the result.

Call `resolve`, check the result, and open it by `open_resolved`. This function follows no symbolic link, so it refuses
a link that was made after the check.
"""

from __future__ import annotations

import os
from errno import EINVAL, ELOOP, ENOENT, ENOTDIR

MOST_LINKS = 40  # as path_resolution(7)


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
