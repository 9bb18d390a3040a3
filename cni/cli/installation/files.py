"""Durable changes of a directory: what a function has returned from is on the disk. OSError passes through."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable

from cni.cli.installation.layout import TEMPORARY
from cni.cli.installation.source import Entry


def write_tree(target: str, entries: Iterable[Entry], report: Callable[[int], None] = lambda count: None) -> None:
    """Make the directory `target` of `entries`, under a temporary name beside it first; `report` gets bytes written."""
    holder, name = os.path.split(target)
    temporary = os.path.join(holder, TEMPORARY + name)
    remove_tree(temporary)
    os.mkdir(temporary, 0o755)
    try:
        _fill(temporary, list(entries), report)
        os.rename(temporary, target)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk is not left full
        raise
    sync(holder)


def _fill(top: str, entries: list[Entry], report: Callable[[int], None]) -> None:
    folders = [top]
    os.chmod(top, 0o755)  # noqa: S103  # everybody may look at what root installs
    for entry in entries:
        path = os.path.join(top, entry.path)
        if entry.kind == "directory":
            os.mkdir(path)
            os.chmod(path, 0o755)  # noqa: S103
            folders.append(path)
        elif entry.kind == "link":
            os.symlink(entry.read().decode(), path)
        else:
            data = entry.read()
            with open(path, "xb") as file:
                file.write(data)
            os.chmod(path, 0o755 if entry.kind == "program" else 0o644)
            report(len(data))
    for entry in entries:  # after all are written: then the disk works on many at once
        if entry.kind in ("file", "program"):
            sync(os.path.join(top, entry.path))
    for folder in reversed(folders):
        sync(folder)


def put_link(path: str, target: str, temporary: str) -> None:
    """Make `path` a link to `target` in one step, whatever stands there; `temporary` is a path beside it or near."""
    remove(temporary)
    os.symlink(target, temporary)
    os.rename(temporary, path)
    sync(os.path.dirname(path))


def keep(path: str, kept: str, temporary: str) -> None:
    """Give what is at `path` the second name `kept`, whatever stood there, without its own name going for a moment.

    It becomes a copy where the kernel refuses a link: root without capabilities may not link another user's file
    (fs.protected_hardlinks), and some file systems have no links.
    """
    os.makedirs(os.path.dirname(kept), 0o755, exist_ok=True)
    sync(os.path.dirname(os.path.dirname(kept)))
    remove(temporary)
    try:
        os.link(path, temporary, follow_symlinks=False)
    except PermissionError:
        shutil.copy2(path, temporary, follow_symlinks=False)
        if not os.path.islink(temporary):
            sync(temporary)
    os.rename(temporary, kept)
    remove(temporary)  # two names of one file: then rename(2) does nothing
    sync(os.path.dirname(kept))


def move(path: str, target: str) -> None:
    """Move within one file system, in one step, whatever stands at `target`."""
    os.rename(path, target)
    sync(os.path.dirname(path))
    sync(os.path.dirname(target))


def remove(path: str) -> None:
    """Remove a file or link; there need not be one."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    sync(os.path.dirname(path))


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, or a file; there need not be one."""
    if os.path.islink(path) or not os.path.isdir(path):
        remove(path)
        return
    shutil.rmtree(path)
    sync(os.path.dirname(path))


def sync(path: str) -> None:
    """Make the content of a file, or the names in a directory, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
