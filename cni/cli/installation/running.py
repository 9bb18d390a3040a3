"""Which processes run from a version: it stays until they have ended.

A process is seen by its executable, or by an open file: a bundle's process executes the bundle's dynamic loader, a
checkout's keeps its modules open (bin/launcher.in). Both are compared by device and inode, for a process in a
container has other paths. In a PID namespace of our own, where an installer's container usually runs, the host's
processes are not seen; then the time decides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from cni.cli.installation.layout import BUNDLE, CURRENT

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
    try:
        switched = os.lstat(
            f"{folder}/{BUNDLE}/{CURRENT}"
        ).st_mtime  # an older version is out of use since then at least
    except OSError:
        return False
    return time.time() - switched > _LONGEST_CALL


def users(directory: str, besides: Collection[int] = ()) -> list[int]:
    """The processes that run from `directory`, but for those of `besides`. One that has just ended may be missed."""
    files = set()
    for folder, _, names in os.walk(directory):
        for name in names:
            status = os.lstat(os.path.join(folder, name))
            files.add((status.st_dev, status.st_ino))
    return [pid for pid in _processes() if pid not in besides and _opened(pid, files)]


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _opened(pid: int, files: set[tuple[int, int]]) -> bool:
    try:
        paths = [f"/proc/{pid}/exe", *(f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd"))]
    except OSError:
        return False
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in files:
            return True
    return False
