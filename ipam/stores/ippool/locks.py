"""Locks of pools for this node's processes: a file below /run for each pool.

Only speed depends on them, since every patch tests that the pool is as it was read; but at a large pool that is minutes. So a
directory that others can write is taken back, or refused with the remedy. Without a lock, as in a container that cannot have
the file, or when nobody has released it for the time of a call, the process proceeds. It connects before it takes the lock, so
that the holder only reads and patches.
"""

from __future__ import annotations

import hashlib
import os
from errno import EACCES, EPERM, EROFS
from time import monotonic
from typing import TYPE_CHECKING

from cni.shared.kernel import files, locks
from cni.shared.spec.errors import IoFailure
from ipam.stores.base import SHARED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipam.stores.apiserver import Api

DIRECTORY = "/run/railcni"
_SECONDS = 30.0  # to wait, if a request has its usual time: many DELs must not proceed without the lock at once
_SHARE = 0.9  # of a call's time; the rest is for a claim without the lock
_LONGEST = 120.0  # seconds to wait while others release it: where nodes contend, each claim may take seconds


class PoolLocks:
    """The locks of `pools` of one API server and namespace; one for all when none are named."""

    __slots__ = ("_api", "_held", "_pools", "_seconds", "_taken", "_warn")

    def __init__(self, api: Api, pools: Sequence[str], seconds: float, warn: Callable[[str], object]) -> None:
        self._api = api
        self._warn = warn
        self._pools = sorted(set(pools)) or [""]  # sorted, to avoid deadlock
        self._seconds = seconds if seconds < SHARED_SECONDS else max(seconds, _SECONDS)
        self._held: list[int] = []
        self._taken = False

    def take(self) -> None:
        """Wait for the locks, unless they are held; CniError for a kubeconfig that cannot be used.

        IoFailure for a fault that an administrator can repair; a warning where no such file can be, as in a container.
        """
        if self._taken:
            return
        self._taken = True
        self._api.connect()
        began = monotonic()
        where = f"{self._api.access} {self._api.access.namespace}"
        digests = (hashlib.blake2b(f"{where} {pool}".encode(), digest_size=16) for pool in self._pools)
        try:
            files.take_directory(DIRECTORY)
            for digest in digests:
                self._held.append(files.open_private(DIRECTORY, f"pool-{digest.hexdigest()}"))
                self._lock(self._held[-1], min(self._seconds, (self._api.deadline - began) * _SHARE), began + _LONGEST)
        except (TimeoutError, ValueError):  # ValueError: not in the main thread
            pass
        except OSError as fault:
            what = f"the node's locks cannot be kept in {DIRECTORY}: {fault.strerror}"
            if isinstance(fault, files.NotPrivate) or fault.errno not in (EACCES, EPERM, EROFS):
                raise IoFailure(
                    f"{what}; it must be a local directory of root with mode 700, such as a tmpfs"
                ) from None
            self._warn(f"{what}: processes of this node compete for their pools")
        self._api.deadline += monotonic() - began  # the server is not what was waited for

    @staticmethod
    def _lock(fd: int, seconds: float, last: float) -> None:
        """Wait for the lock until nobody has released it for `seconds`; TimeoutError."""
        while True:
            released = os.fstat(fd).st_mtime_ns
            try:
                return locks.lock_file(fd, seconds)
            except TimeoutError:
                if os.fstat(fd).st_mtime_ns == released or monotonic() > last:
                    raise

    def end(self) -> None:
        self._taken = False
        for fd in self._held:
            try:
                if self._api.has_answered:
                    os.utime(fd)  # those who wait see that the server serves
            except OSError:
                pass  # they wait less long
            os.close(fd)
        self._held = []
