"""Locks between processes, with a limit on the wait: the kernel queues the waiters, so none of them polls.

There are two kinds of locks. The kernel releases both when the last descriptor of the open file is closed, and so also
when the process is killed:

- a lock of a byte (open file description lock, fcntl(2)): an open file can hold a lock for each offset;
- a lock of a whole file (flock(2)).

SIGALRM ends the wait. Then the caller's handler, timer and signal mask are restored. Waiting works only in the main
thread: in another thread Python raises ValueError when a handler is set. Waiting works even if SIGALRM is blocked or
ignored, which a process inherits through exec (signal(7)).
"""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Callable
from errno import EACCES, EAGAIN
from struct import pack
from time import monotonic

_SEEK_SET = 0
_ALARM = (signal.SIGALRM,)
_RING_AGAIN = 0.05  # seconds; SIGALRM is repeated, since a signal just before the wait begins does not end the wait


def lock_byte(fd: int, offset: int, seconds: float) -> None:
    """Lock the byte at `offset` of `fd`, which is open for writing. Raises TimeoutError after `seconds`."""
    if try_lock_byte(fd, offset):
        return
    request = _flock(fcntl.F_WRLCK, offset)
    _wait(lambda: fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, request), lambda: unlock_byte(fd, offset), seconds)


def try_lock_byte(fd: int, offset: int) -> bool:
    """Lock the byte at `offset` of `fd` if it is free. Returns False when another open file holds the lock."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, offset))
    except OSError as fault:
        if fault.errno in (EAGAIN, EACCES):
            return False
        raise
    return True


def unlock_byte(fd: int, offset: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, offset))


def lock_file(fd: int, seconds: float) -> None:
    """Lock the whole file `fd`, by flock(2). Raises TimeoutError after `seconds`."""
    if not try_lock_file(fd):
        _wait(lambda: fcntl.flock(fd, fcntl.LOCK_EX), lambda: unlock_file(fd), seconds)


def try_lock_file(fd: int) -> bool:
    """Lock the whole file `fd` if it is free. Returns False when another open file holds the lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_file(fd: int) -> None:
    fcntl.flock(fd, fcntl.LOCK_UN)


def _flock(kind: int, offset: int) -> bytes:
    return pack("hhqqi4x", kind, _SEEK_SET, offset, 1, 0)  # struct flock of the 64-bit ABIs; l_pid must be 0 for OFD


def _wait(lock: Callable[[], object], unlock: Callable[[], None], seconds: float) -> None:
    """Call `lock`, which blocks. After `seconds`, release the lock by `unlock` and raise TimeoutError."""
    if seconds <= 0:
        raise TimeoutError
    rung = False
    began = monotonic()

    def ring(number: int, frame: object) -> None:
        nonlocal rung
        # Raise only once, since a second SIGALRM must not interrupt the clean-up below. Do not raise early: a pending
        # SIGALRM, which the caller had blocked, comes as soon as the signal is unblocked.
        if not rung and monotonic() - began >= seconds:
            rung = True
            raise TimeoutError

    former = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _RING_AGAIN)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALARM)
    try:
        try:
            lock()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeoutError:
        unlock()  # the signal may have come after the lock was taken
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if former is None else former)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - began), 1e-6), interval)
