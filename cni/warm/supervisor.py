"""The supervisor, which keeps a pool of workers, and ends when no call has come for some time.

The pool has at least LEAST workers. When a call has taken the last idle worker, the supervisor adds one, up to the
maximum of the node's policy, so that the next call finds an idle worker. A worker ends after a number of calls, and is
replaced only when the pool has too few. The pool shrinks only in this way. A call that finds no idle worker waits in
the kernel's queue, and runs cold (without a worker) after a second.

The supervisor serves no calls itself. It also ends at SIGTERM, when its socket is gone from its path, and when the
compiled modules or the node's policy change. The workers then finish the current and the waiting calls. If the
supervisor is killed, the kernel kills its workers.

When the supervisor ends, process 1 of its PID namespace must wait for it (waitpid(2)). In a container, such as that of
thick Multus, process 1 may never do so, and the supervisor would become a zombie. So only a supervisor in the initial
PID namespace ends when no call comes. Any other one ends its workers, and makes new workers at the next call.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import ssl
import time
from collections.abc import Callable, Iterable
from socket import AF_UNIX, SHUT_RDWR, SOCK_SEQPACKET, socket
from typing import NoReturn

from cni.shared import policy
from cni.shared.kernel import files, netns_users
from cni.warm import protocol
from cni.warm.worker import FREE, IDLE, Board, Worker

LEAST = 2
_MOST_EARLY = 10  # the supervisor ends if so many workers in succession end right after their start
_WAITING = 128  # connections in the kernel's queue
_LOOK = 1.0  # seconds between two checks of the files on which the supervisor depends
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # include/uapi/linux/prctl.h


def main(identity: str, lock: int, pack: str, modules: Iterable[str]) -> NoReturn:
    """Run the supervisor of workers for callers with `identity`, and end the process.

    `lock` is a descriptor that holds the supervisor's lock. `pack` is the path of the compiled modules. `modules` are
    the names of the modules that are loaded before the first call."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_NAME, b"railcni-warm")
    os.set_inheritable(lock, False)
    for module in modules:
        __import__(module)
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # initializes OpenSSL here, and not for 5 ms in each worker
    Supervisor(identity, lock, pack, prctl).run()
    os._exit(0)


class Supervisor:
    """The supervisor of the workers for callers with the same `identity` (see protocol.py)."""

    def __init__(self, identity: str, lock: int, pack: str, prctl: Callable[[int, object], int]) -> None:
        self._identity = identity
        self._lock = lock
        self._prctl = prctl
        self._path = f"{protocol.DIRECTORY}/{protocol.name_of(identity)}"
        self._depends = (pack, *policy.PATHS)
        self._before = self._marks()
        self._idle_seconds, most = policy.current().warm
        self._board = Board(most)
        self._workers: dict[int, tuple[int, float]] = {}  # by process: the slot, and the time of the start
        self._reading, self._poke = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._poke, False)
        self._is_ending = False
        self._early = 0  # successive workers that ended right after their start

    def run(self) -> None:
        self._listening = socket(AF_UNIX, SOCK_SEQPACKET)
        self._unlink(protocol.SOCKET)  # left by a killed supervisor
        self._listening.bind(self._path + protocol.SOCKET)
        self._socket = self._found()
        self._board.note(began=int(time.time()))
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._poke, warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()
        self._fill()
        self._listening.listen(_WAITING)
        try:
            self._watch()
        finally:
            self._finish()

    def _end(self, number: int, frame: object) -> None:
        self._is_ending = True

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        calls = 0
        looked = last_call = time.monotonic()
        while not self._is_ending:
            poll.poll(1000 * _LOOK)
            _drain(self._reading)
            self._bury()
            self._fill()
            now = time.monotonic()
            if self._board.calls != calls:
                calls, last_call = self._board.calls, now
            if now - looked >= _LOOK:
                looked = now
                self._is_ending |= self._is_outdated()
                if now - last_call >= self._idle_seconds:
                    if netns_users.in_first_pids():
                        return
                    self._rest()
                    last_call = time.monotonic()

    def _rest(self) -> None:
        """End the workers, wait until a call comes or the supervisor must end, and make workers again."""
        for process in self._workers:
            os.kill(process, signal.SIGTERM)
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        poll.register(self._listening, select.POLLIN)
        ready: dict[int, int] = {}
        while not self._is_ending and self._listening.fileno() not in ready:
            ready = dict(poll.poll(1000 * _LOOK))
            _drain(self._reading)
            self._bury()
            self._is_ending |= self._is_outdated()
        self._fill()

    def _is_outdated(self) -> bool:
        """Whether another supervisor has the socket's path, or the modules or the policy have changed."""
        return self._found() != self._socket or self._marks() != self._before

    def _marks(self) -> list[tuple[int, ...]]:
        """Values that change when the file of compiled modules or a policy file changes."""
        return [files.mark(path, links=True) for path in self._depends]

    def _found(self) -> tuple[int, ...]:
        """The device and inode of the file at the socket's path; () when there is no file."""
        return files.mark(self._path + protocol.SOCKET)[:2]

    def _fill(self) -> None:
        """Make workers until the pool has LEAST workers. If the pool has enough, and none is idle, make one more."""
        missing = min(LEAST, self._board.size) - len(self._workers)
        if missing <= 0 and IDLE not in self._board.states() and len(self._workers) < self._board.size:
            missing = 1
        for _ in range(missing):
            self._make()

    def _make(self) -> None:
        slot = self._board.states().index(FREE)
        self._board.set(slot, IDLE)
        parent = os.getpid()
        try:
            process = os.fork()
        except OSError as fault:  # out of memory or processes: the other workers continue
            self._board.set(slot, FREE)
            self._board.note(fault=f"no worker can be made: {fault.strerror}")
            return
        if process:
            self._workers[process] = slot, time.monotonic()
            return
        try:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._reading)
            os.close(self._lock)
            if os.getppid() == parent:
                Worker(self._listening, self._board, slot, self._identity, self._poke).serve()
        finally:
            os._exit(1)

    def _bury(self) -> None:
        """Free the slots of the workers that have ended; note the fault if a worker was killed or failed."""
        while self._workers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            slot, made = self._workers.pop(process)
            call = self._board.call(slot)
            self._board.set(slot, FREE)
            self._early = 0 if status == 0 or time.monotonic() - made > _LOOK else self._early + 1
            if status:
                why = f"signal {status & 127}" if status & 127 else "a fault"
                self._board.note(fault=f"a worker was ended by {why}{call and f' in {call}'}")
            self._is_ending |= self._early >= _MOST_EARLY

    def _finish(self) -> None:
        """Accept no more calls, let the workers finish, and remove the socket and the lock."""
        if self._found() == self._socket:
            self._unlink(protocol.SOCKET)
        self._listening.shutdown(SHUT_RDWR)
        while self._workers:
            try:
                self._workers.pop(os.waitpid(-1, 0)[0], None)
            except ChildProcessError:
                break
        self._unlink(protocol.LOCK)

    def _unlink(self, kind: str) -> None:
        try:
            os.unlink(self._path + kind)
        except FileNotFoundError:
            pass


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
