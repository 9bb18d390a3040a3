"""Turns of this node's processes at pools: a lock for each pool, in a file below /run.

Nothing but speed depends on them, but at a large pool that is minutes: a directory that others can write is taken back,
or refused with the remedy. A container in which there can be no such file goes without, which the log says, and so does
who waits for too long. A connection is made before: who has the turn does no more than read and patch. And who must wait leaves word
what is to be done (ipam.stores.kubernetes_wishes): who has the turn does it for all in one patch, for a server needs a
quarter of a second to patch a pool with thousands of leases.

The file of a lock tells when a patch was last refused because another node had changed the pool: for a while from then
on the nodes take turns too (ipam.stores.kubernetes_nodes_turn).
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
    from typing import Any

    from ipam.stores.kubernetes_api import Api
    from ipam.stores.kubernetes_nodes_turn import NodesTurn
    from ipam.stores.kubernetes_wishes import Wish

DIRECTORY = "/run/railcni"
_WISH = "wish-"
_CONTENDED_SECONDS = 10.0  # that nodes take turns after a patch was refused
_AMONG_NODES = 20.0  # seconds to wait among nodes: who gives up loses its place
_SECONDS = 10.0  # to wait, if a request has its usual time: as long as each of a hundred pods that end takes its 100 ms


class Turns:
    """The locks of `pools` of one API server and namespace; one for all when none are named.

    `changes`: a pool will be changed; who only reads does not wait for other nodes.
    """

    __slots__ = (
        "_among_nodes",
        "_among_until",
        "_api",
        "_held",
        "_object_of",
        "_pools",
        "_seconds",
        "_taken",
        "_warn",
        "changes",
    )

    def __init__(
        self,
        api: Api,
        pools: Sequence[str],
        seconds: float,
        object_of: Callable[[str], str],
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._api = api
        self._warn = warn
        self._pools = sorted(set(pools)) or [""]  # in one order: nobody waits for a waiter
        self._object_of = object_of
        self._seconds = seconds if seconds < SHARED_SECONDS else max(seconds, _SECONDS)
        self._held: list[int] = []  # the locks of the first pools
        self._among_nodes: list[NodesTurn] = []
        self._among_until = 0.0  # of all waits among nodes while the locks are held
        self._taken = self.changes = False

    def take(self, wish: Callable[[], dict[str, Any]] | None = None) -> dict[str, Any] | None:
        """Wait for the locks, unless they are held; CniError when it cannot be told which server it is, or reached.

        `wish` is called if it is one pool's lock and must be waited for: what others may do meanwhile. What they have
        done is the answer, None for nothing.
        """
        if self._taken:
            return None
        self._taken = True
        self._among_until = 0.0
        self._api.connect()
        deadline = self._deadline()
        names = [self._name(pool) for pool in self._pools]
        answer = None
        try:
            files.take_directory(DIRECTORY)
            for name in names:
                self._held.append(files.open_private(DIRECTORY, name))
                if wish and len(names) == 1 and not locks.try_lock_file(self._held[0]):
                    answer = self._wait(name, wish(), deadline)
                else:
                    locks.lock_file(self._held[-1], max(0.0, deadline - monotonic()))
        except (TimeoutError, ValueError):  # ValueError: not in the main thread
            pass
        except OSError as fault:
            self._do_without(fault)
        if self.changes and not answer:
            self._take_among_nodes()
        return answer

    def _do_without(self, fault: OSError) -> None:
        """IoFailure when an administrator can mend it; a warning where there can be no such file, as in a container."""
        what = f"the node's locks cannot be kept in {DIRECTORY}: {fault.strerror}"
        if isinstance(fault, files.NotPrivate) or fault.errno not in (EACCES, EPERM, EROFS):
            raise IoFailure(f"{what}; it wants a local directory with mode 700 that is root's, such as a tmpfs")
        self._warn(f"{what}: processes of this node disturb one another at their pools")

    def _deadline(self) -> float:
        now = monotonic()
        return min(now + self._seconds, (now + self._api.deadline) / 2)  # the rest is for what comes then

    def _take_among_nodes(self) -> None:
        contended = {pool: fd for fd, pool in zip(self._held, self._pools, strict=False) if pool and _is_contended(fd)}
        if not contended or 0 < self._among_until <= monotonic():
            return
        from ipam.stores.kubernetes_nodes_turn import NodesTurn, name_of

        now = monotonic()
        if not self._among_until:
            seconds = self._seconds if self._seconds < SHARED_SECONDS else max(self._seconds, _AMONG_NODES)
            # a third of the time is for what comes then
            self._among_until = now + min(seconds, (self._api.deadline - now) * 2 / 3)
        waited = False
        for name in sorted({name_of(self._object_of(pool)) for pool in contended}):
            turn = NodesTurn(self._api, name)
            self._among_nodes.append(turn)
            waited |= turn.take(self._among_until)
            if turn.failed:
                self._among_until = now  # no more is tried
        for fd in contended.values() if waited else ():
            _note_contended(fd)

    def was_refused(self, pool: str) -> bool:
        """A change of `pool` was refused because another has changed it: whether we have just got its turn among nodes.

        If we had it before, the other takes no turns (Go whereabouts): then only a pause helps.
        """
        if pool not in self._pools[: len(self._held)]:
            return False
        from ipam.stores.kubernetes_nodes_turn import name_of

        name = name_of(self._object_of(pool))
        if any(turn.name == name and turn.is_ours for turn in self._among_nodes):
            return False
        _note_contended(self._held[self._pools.index(pool)])
        self._end_among_nodes()
        self._take_among_nodes()
        return any(turn.name == name and turn.is_ours for turn in self._among_nodes)

    def _wait(self, name: str, wished: dict[str, Any], deadline: float) -> dict[str, Any] | None:
        from ipam.stores import kubernetes_wishes

        wish = kubernetes_wishes.leave(DIRECTORY, _WISH + name, wished)
        try:
            try:
                locks.lock_file(self._held[0], max(0.0, deadline - monotonic()))
            except TimeoutError:
                pass  # who has the turn may be at it now: what is done later, the pool tells
            return wish.answered() if wish else None
        finally:
            if wish:
                wish.withdraw()

    def is_waited_for(self, pool: str) -> bool:
        """Whether there may be `wishes`."""
        return bool(self._wishes(pool))

    def wishes(self, pool: str) -> list[Wish]:
        """What those want who wait for their turn at `pool`, while we have it; to be closed."""
        names = self._wishes(pool)
        if not names:
            return []
        from ipam.stores import kubernetes_wishes

        return kubernetes_wishes.standing(DIRECTORY, names)

    def _wishes(self, pool: str) -> list[str]:
        if not (self._held and pool in self._pools):
            return []
        prefix = _WISH + self._name(pool)
        try:
            return [name for name in posix.listdir(DIRECTORY) if name.startswith(prefix)]
        except OSError:
            return []

    def end(self) -> None:
        self._taken = False
        try:
            self._end_among_nodes()
        finally:
            for fd in self._held:
                posix.close(fd)
            self._held = []

    def _end_among_nodes(self) -> None:
        ended, self._among_nodes = self._among_nodes, []
        for turn in ended:
            if turn.is_ours:
                turn.end()

    def _name(self, pool: str) -> str:
        where = f"{self._api.access} {self._api.access.namespace} {pool}"
        return f"pool-{_blake2.blake2b(where.encode(), digest_size=16).hexdigest()}"


def _is_contended(fd: int) -> bool:
    try:
        return -1 < monotonic() - float(posix.pread(fd, 32, 0) or b"-inf") < _CONTENDED_SECONDS
    except (OSError, ValueError):
        return False


def _note_contended(fd: int) -> None:
    try:
        posix.pwrite(fd, f"{monotonic():.3f} ".encode(), 0)
    except OSError:
        pass
