"""The supervisor: it starts as many workers as the calls need, and ends when no call has come for some time.

It serves no calls itself. It also ends when its socket is gone from its path, when the compiled modules or the node's
policy change, and at SIGTERM. The workers then finish the current and the waiting calls. If it is killed, they die too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has only `signal`
import gc
import posix
import resource
import select
import time
from _socket import AF_UNIX, SHUT_RDWR, SOCK_CLOEXEC, SOCK_SEQPACKET, socket
from typing import TYPE_CHECKING

from cni.shared import policy
from cni.shared.kernel import files
from cni.warm import crowd, places
from cni.warm.board import BUSY, FREE, IDLE, Board
from cni.warm.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

_WAITING = 128  # connections in the kernel's queue
_LOOK = 1.0  # seconds between two checks of the files that it depends on
_LOOK_AT_QUEUE = 0.02  # seconds between two checks of the queue while no worker is idle
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_GET_SECCOMP = 1, 15, 21  # include/uapi/linux/prctl.h
_LEAST_FILES = 256


def main(identity: str, lock: int, pack: str, modules: Iterable[str]) -> NoReturn:
    """Be the supervisor of workers for callers with the launcher's `identity`, until it is time to end.

    `lock` is the descriptor that holds the lock of the one supervisor, `pack` the path of the compiled modules, of which
    the `modules` are loaded before the first call.
    """
    prctl = _prctl()
    prctl(_PR_SET_NAME, b"railcni-warm")
    posix.set_inheritable(lock, False)
    if _raise_limits() and prctl(_PR_GET_SECCOMP, None) <= 0:  # a seccomp filter cannot be removed
        for module in modules:
            __import__(module)
        try:
            import _ssl

            _ssl._SSLContext(_ssl.PROTOCOL_TLS_CLIENT)  # initializes OpenSSL here, and not for 5 ms in each worker
        except ImportError:
            pass  # this Python has no OpenSSL
        Supervisor(identity, lock, pack, prctl).run()
    posix._exit(0)


class Supervisor:
    """The supervisor of one installation, as the module describes it."""

    def __init__(self, identity: str, lock: int, pack: str, prctl: Callable[[int, object], int]) -> None:
        self._identity = identity
        self._lock = lock
        self._prctl = prctl
        self._path = f"{places.DIRECTORY}/{places.name_of(identity)}"
        self._depends = (pack, *policy.PATHS)
        self._before = self._marks()
        self._idle_seconds, most = policy.current().warm
        self._board = Board(most)
        self._workers: dict[int, tuple[int, float]] = {}  # process -> its slot, and when it was made
        self._reading, self._poke = posix.pipe()
        posix.set_blocking(self._reading, False)
        posix.set_blocking(self._poke, False)
        self._is_ending = False
        self._early = 0  # successive workers that ended right after their start

    def run(self) -> None:
        self._listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
        self._unlink(places.SOCKET, places.AWAY)  # left by a killed supervisor
        self._listening.bind(self._path + places.SOCKET)
        self._socket = self._found(places.SOCKET)
        self._board.note(began=int(time.time()))
        _signal.signal(_signal.SIGTERM, self._end)
        _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
        _signal.set_wakeup_fd(self._poke, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()
        for _ in range(min(crowd.LEAST, self._board.size)):
            self._make()
        self._listening.listen(_WAITING)
        self._listening.setblocking(True)
        try:
            self._watch()
        finally:
            self._finish()

    def _end(self, number: int, frame: object) -> None:
        self._is_ending = True

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        calls, peak, patience = 0, 0, crowd.PATIENCE
        now = looked = last_call = time.monotonic()
        states = self._board.states()
        while not self._is_ending:
            poll.poll(1000 * (_LOOK if IDLE in states else _LOOK_AT_QUEUE))
            _drain(self._reading)
            self._bury()
            before, now, states = now, time.monotonic(), self._board.states()
            completed = self._board.calls - calls
            if completed:
                calls, last_call = calls + completed, now
            if IDLE in states:
                patience = crowd.PATIENCE
            else:
                patience = crowd.patience(patience, now - before, completed, self._are_elsewhere())
                self._look_at_queue(patience)
            peak = max(peak, states.count(BUSY))
            for _ in range(crowd.more(len(self._workers), states.count(IDLE), self._board.size)):
                self._make()
            if now - looked >= _LOOK:
                looked = now
                self._is_ending |= now - last_call >= self._idle_seconds or self._is_outdated()
                if crowd.is_one_too_many(len(self._workers), peak):
                    self._part_with_one()
                peak = states.count(BUSY)

    def _is_outdated(self) -> bool:
        """Whether another supervisor has the socket's path, or the modules or the policy have changed."""
        if not self._found(places.SOCKET) and self._found(places.AWAY) == self._socket:
            posix.rename(self._path + places.AWAY, self._path + places.SOCKET)  # a launcher found all workers too slow
        return self._found(places.SOCKET) != self._socket or self._marks() != self._before

    def _marks(self) -> list[tuple[int, ...]]:
        """The state of the files that it depends on; a change of a ConfigMap's policy points a link to another file."""
        return [files.mark(path, links=True) for path in self._depends]

    def _found(self, kind: str) -> tuple[int, ...]:
        """The identity of the file at a path, without its times, which `_look_at_queue` changes."""
        return files.mark(self._path + kind)[:2]

    def _make(self) -> None:
        slot = self._board.states().index(FREE)
        self._board.set(slot, IDLE)
        parent = posix.getpid()
        try:
            process = posix.fork()
        except OSError as fault:  # out of memory or processes: the other workers continue
            self._board.set(slot, FREE)
            self._board.note(fault=f"no worker can be made: {fault.strerror}")
            return
        if process:
            self._workers[process] = slot, time.monotonic()
            return
        try:
            self._prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL)
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            posix.close(self._reading)
            posix.close(self._lock)
            if posix.getppid() == parent:
                Worker(self._listening, self._board, slot, self._identity, self._poke).serve()
        finally:
            posix._exit(1)

    def _bury(self) -> None:
        """Take note of the workers that have ended."""
        while self._workers:
            process, status = posix.waitpid(-1, posix.WNOHANG)
            if not process:
                return
            slot, made = self._workers.pop(process)
            call = self._board.call(slot)
            self._board.set(slot, FREE)
            self._early = 0 if status == 0 or time.monotonic() - made > _LOOK else self._early + 1
            if status:
                why = f"signal {status & 127}" if status & 127 else "a fault"
                self._board.note(fault=f"a worker was ended by {why}{call and f' in {call}'}")
            self._is_ending |= self._early >= crowd.MOST_EARLY

    def _are_elsewhere(self) -> bool:
        """Whether all workers wait for a process that they have started, usually a foreign IPAM plugin."""
        try:
            return all(files.read_whole(f"/proc/{p}/task/{p}/children") for p in self._workers)
        except OSError:
            return False  # a worker has ended, or the kernel has no such file

    def _look_at_queue(self, patience: float) -> None:
        """Signal the waiting launchers that the supervisor is alive. Without `patience`, end the connections of some, so that
        their calls run cold. Not of all at once: a worker may be free before a processor is."""
        left = 0 if patience else len(posix.sched_getaffinity(0))
        queue = select.poll()
        queue.register(self._listening, select.POLLIN)
        while queue.poll(0):
            if not left:
                try:
                    posix.utime(self._path + places.SOCKET)
                except FileNotFoundError:
                    pass  # a launcher has moved it
                return
            self._listening.setblocking(False)  # this applies to the workers too (Worker.serve)
            try:
                fd, _ = self._listening._accept()  # type: ignore[attr-defined]
            except BlockingIOError:
                return  # a worker was faster
            finally:
                self._listening.setblocking(True)
            posix.close(fd)
            left -= 1

    def _part_with_one(self) -> None:
        states = self._board.states()
        for process, (slot, _) in self._workers.items():
            if states[slot] == IDLE:
                posix.kill(process, _signal.SIGTERM)
                return

    def _finish(self) -> None:
        """Take no more calls, let the workers finish, and remove what is in the directory of the sockets."""
        if self._found(places.SOCKET) == self._socket:
            self._unlink(places.SOCKET)
        self._listening.shutdown(SHUT_RDWR)
        while self._workers:
            try:
                self._workers.pop(posix.waitpid(-1, 0)[0], None)
            except ChildProcessError:
                break
        self._unlink(places.AWAY, places.LOCK)

    def _unlink(self, *kinds: str) -> None:
        for kind in kinds:
            try:
                posix.unlink(self._path + kind)
            except FileNotFoundError:
                pass


def _drain(fd: int) -> None:
    try:
        while posix.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _raise_limits() -> bool:
    """Raise the soft resource limits of the caller again; whether that succeeded."""
    unlimited = resource.RLIM_INFINITY
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        _, most = resource.getrlimit(limit)
        resource.setrlimit(limit, (most, most))
        if most != unlimited:
            return False
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most >= _LEAST_FILES


def _prctl() -> Callable[[int, object], int]:
    import _ctypes

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL

    return Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]  # None: this process
