"""Turns of this node's processes at pools: a lock for each pool, in a file below /run.

Only speed depends on them, because every patch of a pool tests that the object is as it was read; but at a large pool
that is minutes. So a directory that others can write is taken back, or refused with the remedy. A container in which
there can be no such file does without, and the log says so; so does a process that has waited too long. The connection
is made before the lock is taken: the holder only reads and patches.
"""

from __future__ import annotations

import _blake2
import posix
from errno import EACCES, EPERM, EROFS
from time import monotonic

from cni.kernel import files, locks
from cni.spec.errors import IoFailure
from ipam.stores.base import SHARED_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipam.stores.kubernetes_api import Api

DIRECTORY = "/run/railcni"
_SECONDS = 30.0  # to wait, if a request has its usual time: a crowd of DELs must not go without the lock at once
_SHARE = 0.9  # of the time of a call: the rest is for a claim without the lock


class Turns:
    """The locks of `pools` of one API server and namespace; one for all when none are named."""

    __slots__ = ("_api", "_held", "_pools", "_seconds", "_taken", "_warn")

    def __init__(
        self, api: Api, pools: Sequence[str], seconds: float, warn: Callable[[str], object] = lambda text: None
    ) -> None:
        self._api = api
        self._warn = warn
        self._pools = sorted(set(pools)) or [""]  # in one order: no holder waits for a waiter
        self._seconds = seconds if seconds < SHARED_SECONDS else max(seconds, _SECONDS)
        self._held: list[int] = []
        self._taken = False

    def take(self) -> None:
        """Wait for the locks, unless they are held; CniError when the kubeconfig cannot be read or used."""
        if self._taken:
            return
        self._taken = True
        self._api.connect()
        deadline = self._deadline()
        names = [self._name(pool) for pool in self._pools]
        try:
            files.take_directory(DIRECTORY)
            for name in names:
                self._held.append(files.open_private(DIRECTORY, name))
                locks.lock_file(self._held[-1], max(0.0, deadline - monotonic()))
        except (TimeoutError, ValueError):  # ValueError: not in the main thread
            pass
        except OSError as fault:
            self._do_without(fault)

    def _do_without(self, fault: OSError) -> None:
        """IoFailure when an administrator can mend it; a warning where there can be no such file, as in a container."""
        what = f"the node's locks cannot be kept in {DIRECTORY}: {fault.strerror}"
        if isinstance(fault, files.NotPrivate) or fault.errno not in (EACCES, EPERM, EROFS):
            raise IoFailure(f"{what}; it wants a local directory with mode 700 that is root's, such as a tmpfs")
        self._warn(f"{what}: processes of this node disturb one another at their pools")

    def _deadline(self) -> float:
        now = monotonic()
        return now + min(self._seconds, (self._api.deadline - now) * _SHARE)

    def end(self) -> None:
        """Give up the locks, if they are held."""
        self._taken = False
        for fd in self._held:
            posix.close(fd)
        self._held = []

    def _name(self, pool: str) -> str:
        where = f"{self._api.access} {self._api.access.namespace} {pool}"
        return f"pool-{_blake2.blake2b(where.encode(), digest_size=16).hexdigest()}"
