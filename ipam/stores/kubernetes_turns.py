"""Turns of this node's processes at pools: a lock for each pool, in a file below /run.

Nothing but speed depends on them. So a node on which there can be no such file goes without, and so does who waits for
too long. A connection is made before: who has the turn does no more than read and patch.
"""

from __future__ import annotations

import _blake2
import posix
from time import monotonic

from cni.kernel import files, locks
from ipam.stores.base import SHARED_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipam.stores.kubernetes_api import Api

DIRECTORY = "/run/railcni"
_SECONDS = 10.0  # to wait, if a request has its usual time: as long as each of a hundred pods that end takes its 100 ms


class Turns:
    """The locks of `pools` of one API server and namespace; one for all when none are named."""

    __slots__ = ("_api", "_held", "_pools", "_seconds", "_taken")

    def __init__(self, api: Api, pools: Sequence[str], seconds: float) -> None:
        self._api = api
        self._pools = pools or [""]
        self._seconds = seconds if seconds < SHARED_SECONDS else max(seconds, _SECONDS)
        self._held: list[int] = []
        self._taken = False

    def take(self) -> None:
        """Wait for the locks, unless they are held; CniError when it cannot be told which server it is, or reached."""
        if self._taken:
            return
        self._taken = True
        self._api.connect()
        deadline = monotonic() + self._seconds
        where = f"{self._api.access} {self._api.access.namespace}"
        names = sorted({_name(where, pool) for pool in self._pools})  # in one order: nobody waits for a waiter
        try:
            files.make_private_directory(DIRECTORY)
            files.check_private_directory(DIRECTORY)
            for name in names:
                flags = posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW
                self._held.append(posix.open(f"{DIRECTORY}/{name}", flags, 0o600))
                locks.lock_file(self._held[-1], max(0.0, deadline - monotonic()))
        except (OSError, ValueError):  # ValueError: not in the main thread
            pass

    def end(self) -> None:
        self._taken = False
        for fd in self._held:
            posix.close(fd)
        self._held = []


def _name(where: str, pool: str) -> str:
    return f"pool-{_blake2.blake2b(f'{where} {pool}'.encode(), digest_size=16).hexdigest()}"
