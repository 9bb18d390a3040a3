"""A worker: a process that serves one call at a time, with the same result as a new Python process.

A worker keeps the compiled modules, the open lease file and connections to stores between calls, but no data of a call.
It ends after an error or CALLS calls, and the supervisor replaces it if needed. A worker also ends if it needs much
memory after a call, is in another network namespace, or has a new open descriptor, which may hold a lock.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
import socket
from mmap import mmap
from struct import Struct
from typing import NoReturn

from cni.link import run
from cni.link.plugins import whereabouts
from cni.shared import log, policy
from cni.shared.kernel import node
from cni.shared.spec import codec
from cni.warm import protocol

CALLS = 256
_MOST_KIB = 64 << 10  # of resident memory: an ordinary call needs a third of it
_COLLECT = 16  # calls between two collections of garbage
_REQUEST_SECONDS = 1  # from the hello to the request: a launcher sends it at once, unless it was stopped
_CREDENTIALS = Struct("=iII")  # struct ucred
_TIME = Struct("@ll")
_FDS = Struct("=iii")
_OWN = "/proc/self/ns/net"
_SLOT = Struct("=B7xQ104s")  # state, calls served by all former and present workers of the slot, current call
_HEAD = Struct("=Q360s")  # start (seconds since 1970), the last fault
FREE, IDLE, BUSY = range(3)


class Board:
    """Memory in which a supervisor and at most `size` workers share their state. The supervisor makes it before the
    workers. It needs no lock, since each worker writes only its own slot, and the supervisor writes everything else."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = mmap(-1, _HEAD.size + size * _SLOT.size)

    def set(self, slot: int, state: int, calls: int = 0, call: bytes = b"") -> None:
        """Set the state and the current call of `slot`, and add `calls` to the slot's count of calls."""
        place = _HEAD.size + slot * _SLOT.size
        _, served, _ = _SLOT.unpack_from(self._memory, place)
        _SLOT.pack_into(self._memory, place, state, served + calls, call)

    def call(self, slot: int) -> str:
        """The current call of the slot's worker, "PLUGIN VERB CONTAINERID"; "" when the worker is idle."""
        return _text(_SLOT.unpack_from(self._memory, _HEAD.size + slot * _SLOT.size)[2])

    def states(self) -> list[int]:
        """The state of every slot: FREE, IDLE or BUSY."""
        return list(self._memory[_HEAD.size :: _SLOT.size])[: self.size]

    @property
    def calls(self) -> int:
        """The number of calls that all workers have served."""
        return sum(_SLOT.unpack_from(self._memory, _HEAD.size + n * _SLOT.size)[1] for n in range(self.size))

    @property
    def head(self) -> tuple[int, str]:
        """The start of the supervisor, in seconds since 1970, and the text about the workers' last fault."""
        began, fault = _HEAD.unpack_from(self._memory)
        return began, _text(fault)

    def note(self, began: int = 0, fault: str = "") -> None:
        """Set the start of the supervisor and the last fault; 0 and "" leave them unchanged."""
        former, last = _HEAD.unpack_from(self._memory)
        _HEAD.pack_into(self._memory, 0, began or former, fault.encode()[:360] or last)


class Worker:
    """The worker in `slot` of `board`. It accepts calls on `listening`, and writes to `poke` to wake the supervisor."""

    def __init__(self, listening: socket.socket, board: Board, slot: int, identity: str, poke: int) -> None:
        self._listening = listening
        self._board = board
        self._slot = slot
        self._identity = identity
        self._poke = poke
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.stat(_OWN).st_ino
        self._uid = os.geteuid()
        self._environ = dict(os.environb)  # the variables of the process
        self._request = bytearray(protocol.MOST_BYTES)  # one for all calls, since an allocation costs page faults
        self._is_ending = self._is_busy = False
        self._files = _open_files() + 1  # while a call is served, its connection is open

    def serve(self) -> NoReturn:
        """Serve calls until the worker must end, and end the process."""
        signal.signal(signal.SIGTERM, self._end)
        log.how = "warm"
        self._kept = whereabouts.keep_open()
        gc.collect()
        gc.freeze()  # the objects that exist now stay until the process ends
        served = 0
        while served < CALLS and not self._is_ending:
            self._board.set(self._slot, IDLE)
            try:
                connection, _ = self._listening.accept()
            except OSError:
                break  # the supervisor has shut the socket down, and no call is waiting
            self._is_busy = True
            served += 1
            with connection:  # closed right after the call: the launcher may wait for the end of the connection
                if not self._accepted(connection):
                    break
            self._is_busy = False
            if served % _COLLECT == 0:
                gc.collect()
        os._exit(0)

    def _end(self, number: int, frame: object) -> None:
        if not self._is_busy:
            os._exit(0)
        self._is_ending = True

    def _accepted(self, connection: socket.socket) -> bool:
        """Serve the call of a connection. Returns whether this worker can serve another call afterwards."""
        fds: list[int] = []
        try:
            _, uid, _ = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            if uid != self._uid:
                return True
            self._board.set(self._slot, BUSY)
            if IDLE not in self._board.states():
                try:
                    os.write(self._poke, b"w")  # asks for more workers
                except BlockingIOError:
                    pass  # the pipe is full: the supervisor will wake anyway
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(_REQUEST_SECONDS, 0))
            connection.send(protocol.HELLO)
            size, more, flags, _ = connection.recvmsg_into(
                [self._request], socket.CMSG_SPACE(_FDS.size), socket.MSG_CMSG_CLOEXEC
            )
            fds = [fd for _, _, data in more for fd in memoryview(data).cast("i")]
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("a part of the request is missing")
            call = protocol.parse(bytes(memoryview(self._request)[:size]))
        except (ValueError, OSError):
            _close(fds)
            return True  # the launcher has ended, its environment is too large, or the caller is not a launcher
        try:
            if call.plugin in (protocol.STATUS, protocol.STOP):
                return self._tell(connection, call.plugin)
            if call.identity != self._identity or len(fds) != 3:
                connection.send(protocol.FOR_OTHERS)
                return True
            return self._call(connection, call, fds)
        except OSError:
            return False  # this worker's state is unknown: a new worker replaces it
        finally:
            _close(fds)

    def _call(self, connection: socket.socket, call: protocol.Call, fds: list[int]) -> bool:
        stdin, directory, stderr = fds
        os.fchdir(directory)
        netns = _seen(call.environ.get(b"CNI_NETNS", b""))
        if call.netns != netns or not _dies_with(connection):
            os.chdir("/")
            connection.send(protocol.OTHER_NETNS)
            return True
        verb, container = (call.environ.get(name, b"") for name in (b"CNI_COMMAND", b"CNI_CONTAINERID"))
        self._board.set(self._slot, BUSY, 0, b"%s %s %s" % (call.plugin.encode(), verb, container))
        os.umask(call.umask)
        self._set_environment(call.environ)
        policy.forget()
        node.forget()
        os.dup2(stderr, 2)
        reply, status = run.serve(call.plugin, call.environ, os.pread(stdin, os.fstat(stdin).st_size, 0))
        self._kept.end_call()
        os.dup2(self._null, 2)
        os.chdir("/")
        _close(fds)  # before the reply: a runtime may wait for the end of its pipes
        fcntl.fcntl(connection.fileno(), fcntl.F_SETFL, 0)  # the launcher may end from here on
        self._board.set(self._slot, BUSY, 1)
        for packet in protocol.packets(reply, status):
            connection.send(packet)
        return status == 0 and self._is_as_before()

    def _set_environment(self, environ: dict[bytes, bytes]) -> None:
        """Set the process's environment to `environ`. Only variables that differ from the last call are changed."""
        for name in self._environ.keys() - environ.keys():
            del os.environb[name]
        os.environb.update(environ.items() - self._environ.items())
        self._environ = environ

    def _is_as_before(self) -> bool:
        """Whether the process is as before the call: no new descriptor, the same namespace, no excessive memory."""
        return (
            _open_files() <= self._files + self._kept.files()
            and os.stat(_OWN).st_ino == self._own
            and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < _MOST_KIB
        )

    def _tell(self, connection: socket.socket, asked: str) -> bool:
        supervisor = os.getppid()
        if asked == protocol.STOP:
            os.kill(supervisor, signal.SIGTERM)
        began, fault = self._board.head
        states = self._board.states()
        document = {
            "supervisor": supervisor,
            "since": began,
            "workers": len(states) - states.count(0),
            "busy": states.count(BUSY) - 1,  # not counting this worker, which answers
            "calls": self._board.calls,
            "fault": fault,
        }
        for packet in protocol.packets(codec.dumps(document).encode(), 0):
            connection.send(packet)
        return True


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _seen(path: bytes) -> str:
    """The minor device number and the inode number of the file at `path`, as "MINOR:INODE"; "" if there is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ""
    return f"{os.minor(status.st_dev)}:{status.st_ino}"


def _dies_with(connection: socket.socket) -> bool:
    """Make the kernel kill this process when the launcher ends. Returns False if the launcher has already ended."""
    fd = connection.fileno()
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("utf-8", "replace")
