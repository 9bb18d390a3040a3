"""The processes that run from a version: it stays until they have ended.

A process is recognised by its executable, or by an open file: a bundle's process executes the bundle's dynamic loader, a
checkout's keeps its modules open (bin/launcher.in). Both are compared by device and inode, for a process in a
container has other paths. In a PID namespace of our own, where an installer's container usually runs, the host's
processes are not seen; then the time since the last switch decides.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Collection, Iterator

from cni.library.installation.layout import BUNDLE, CURRENT

_HOST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO (linux/proc_ns.h)
_LONGEST_CALL = 3600.0  # seconds: a runtime gives a plugin some minutes


def sees_all(pid_namespace: str = "/proc/self/ns/pid") -> bool:
    """Whether the host's processes can be seen from here."""
    try:
        return os.stat(pid_namespace).st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return False


def is_unused(folder: str, version: str) -> bool:
    """Whether nothing runs any more from an old version in the plugin folder `folder`."""
    if sees_all():
        return not users(f"{folder}/{BUNDLE}/{version}")
    try:  # `current` was made when this version went out of use, or later
        switched = os.lstat(f"{folder}/{BUNDLE}/{CURRENT}").st_mtime
    except OSError:
        return False
    return time.time() - switched > _LONGEST_CALL


def users(directory: str, without: Collection[int] = ()) -> list[int]:
    """The processes that run from `directory`, except those in `without`. One that has just ended may be missed."""
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names)
    files = {_identity(os.lstat(path)) for path in paths}
    processes = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in processes if pid not in without and not files.isdisjoint(_opened(pid))]


def _opened(pid: int) -> Iterator[tuple[int, int]]:
    for path in (f"/proc/{pid}/exe", *glob.iglob(f"/proc/{pid}/fd/*")):
        try:
            yield _identity(os.stat(path))
        except OSError:  # the process has ended or closed it, or is another user's
            continue


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
