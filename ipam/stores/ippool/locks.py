"""Locks of pools for this node's processes: a file below /run for each pool.

The locks only save time (minutes for a large pool). Claims are correct without them, since every patch tests that the
pool is unchanged. So a process continues without a lock if it cannot make the file, as in a container, or if no other
process releases the lock within a call's time. A directory that other users can write is made private. If this fails,
the error names the remedy. A process connects to the API server before it takes the lock, to hold the lock briefly.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from errno import EACCES, EPERM, EROFS
from time import monotonic

from cni.shared.kernel import files, locks
from cni.shared.spec.errors import IoFailure
from ipam.stores.apiserver import Api
from ipam.stores.base import SHARED_SECONDS

DIRECTORY = "/run/railcni"
_SECONDS = 30.0  # the least wait, so that many DELs all get the lock; a limit below SHARED_SECONDS counts instead
_SHARE = 0.9  # of a call's time; the rest is for a claim without the lock
_LONGEST = 120.0  # seconds to wait while others release the lock: where nodes contend, each claim may take seconds


class PoolLocks:
    """The locks of `pools` in one namespace of an API server; one lock for all pools if `pools` is empty."""

    def __init__(self, api: Api, pools: Sequence[str]) -> None:
        self._api = api
        self._pools = sorted(set(pools)) or [""]  # sorted, to avoid deadlock
        self._seconds = api.seconds if api.seconds < SHARED_SECONDS else max(api.seconds, _SECONDS)
        self._held: list[int] = []
        self._taken = False

    def take(self) -> None:
        """Wait for the locks, unless this process holds them already. After a timeout, continue without the locks.

        Raises CniError for an unusable kubeconfig, and IoFailure for a fault that an administrator can repair. Warns if
        the files cannot be made, as in a container.
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
            self._api.warn(f"{what}: processes of this node compete for their pools")
        self._api.deadline += monotonic() - began  # the time of this wait does not count for requests

    @staticmethod
    def _lock(fd: int, seconds: float, last: float) -> None:
        """Lock `fd`. Raises TimeoutError if no process releases the lock for `seconds`, or after `last` (monotonic)."""
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
                    os.utime(fd)  # shows waiting processes that the server answers
            except OSError:
                pass  # waiting processes give up earlier
            os.close(fd)
        self._held = []
