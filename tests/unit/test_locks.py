"""cni/shared/kernel/locks.py: locks between processes, waited for with a bound."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cni.shared.kernel import locks

ROOT = Path(__file__).resolve().parents[2]

Lock = Callable[[int, float], None]
Unlock = Callable[[int], None]


CALLS = {"byte": "lock_byte(fd, 7, {})", "file": "lock_file(fd, {})"}
KINDS = [
    pytest.param(lambda fd, seconds: locks.lock_byte(fd, 7, seconds), lambda fd: locks.unlock_byte(fd, 7), id="byte"),
    pytest.param(locks.lock_file, locks.unlock_file, id="file"),
]
IMPORTS = "import os, signal, sys, time; from cni.shared.kernel.locks import *\n"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Opens the lock file once more: locks belong to the open file, so two of them stand for two processes."""
    fds: list[int] = []

    def make() -> int:
        fds.append(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        return fds[-1]

    yield make
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("seconds", [0.2, 0])
@pytest.mark.parametrize(("lock", "unlock"), KINDS)
def test_who_waits_in_vain_gives_up_in_time_and_holds_nothing(
    opened: Callable[[], int], lock: Lock, unlock: Unlock, seconds: float
) -> None:
    holder, waiter, third = opened(), opened(), opened()
    lock(holder, seconds)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        lock(waiter, seconds)
    assert 0.95 * seconds < time.monotonic() - began < 2
    unlock(holder)
    lock(third, 0)


@pytest.mark.parametrize(("lock", "unlock"), KINDS)
def test_a_waiter_gets_the_lock_as_soon_as_the_holder_is_killed(
    opened: Callable[[], int], tmp_path: Path, lock: Lock, unlock: Unlock
) -> None:
    source = (
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600); lock_byte(fd, 7, 5); lock_file(fd, 5)\n"
        "print(flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", IMPORTS + source, str(tmp_path / "lock")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            waiter = opened()
            with pytest.raises(TimeoutError):
                lock(waiter, 0)
            killer = threading.Timer(0.3, holder.kill)
            killer.start()
            began = time.monotonic()
            lock(waiter, 20)
            assert time.monotonic() - began < 5
            killer.join()
        finally:
            holder.kill()


def test_the_bytes_of_a_file_are_separate_locks_of_the_open_file(opened: Callable[[], int]) -> None:
    a, b = opened(), opened()
    far = (1 << 62) + 5
    assert locks.try_lock_byte(a, 0) and locks.try_lock_byte(a, far) and locks.try_lock_byte(b, 1)
    os.close(os.open(f"/proc/self/fd/{a}", os.O_RDWR))  # POSIX locks would be lost by this close
    assert [locks.try_lock_byte(b, byte) for byte in (0, far)] == [False, False]
    locks.unlock_byte(a, far)
    assert [locks.try_lock_byte(b, byte) for byte in (0, far)] == [False, True]


@pytest.mark.parametrize("due", [30, 0.1], ids=["later", "during the wait"])
def test_the_former_alarm_is_put_back_and_one_that_was_due_rings_then(opened: Callable[[], int], due: float) -> None:
    holder, waiter = opened(), opened()
    rings: list[int] = []
    former = signal.signal(signal.SIGALRM, lambda number, frame: rings.append(number))
    before = signal.setitimer(signal.ITIMER_REAL, due)
    try:
        locks.lock_file(holder, 1)
        with pytest.raises(TimeoutError):
            locks.lock_file(waiter, 0.3)
        if due == 30:
            left, interval = signal.getitimer(signal.ITIMER_REAL)
            assert 25 < left < 29.75 and interval == 0
            signal.raise_signal(signal.SIGALRM)
        until = time.monotonic() + 5
        while not rings and time.monotonic() < until:
            time.sleep(0.01)
        assert rings == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, former)
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_a_read_only_descriptor_cannot_lock_a_byte_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        locks.try_lock_byte(file.fileno(), 0)


def test_many_waiters_are_served_one_after_another_and_none_is_lost(tmp_path: Path) -> None:
    source = (
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600); lock_byte(fd, 3, 60)\n"
        "n = int(os.pread(fd, 20, 0) or 0); os.pwrite(fd, str(n + 1).encode(), 0)"
    )
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{IMPORTS}{source}"
    waiters = [subprocess.Popen([sys.executable, "-IS", "-c", code, tmp_path / "lock"]) for _ in range(20)]
    assert [w.wait() for w in waiters] == [0] * 20
    assert (tmp_path / "lock").read_text() == "20"


INHERITED = {
    "nothing": "",
    "SIGALRM ignored": "signal.signal(signal.SIGALRM, signal.SIG_IGN)",
    "SIGALRM blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})",
    "all signals blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "SIGALRM blocked and pending": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}); os.kill(os.getpid(), signal.SIGALRM)"
    ),
}


@pytest.mark.parametrize("inherited", INHERITED)
@pytest.mark.parametrize("call", CALLS)
def test_a_wait_has_its_bound_whatever_the_caller_has_done_with_signals(
    opened: Callable[[], int], tmp_path: Path, inherited: str, call: str
) -> None:
    holder = opened()
    locks.lock_byte(holder, 7, 1)
    locks.lock_file(holder, 1)
    waits = IMPORTS + (
        "mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        f"fd = os.open({str(tmp_path / 'lock')!r}, os.O_RDWR); began = time.monotonic()\n"
        f"try: {CALLS[call].format(0.3)}\n"
        "except TimeoutError: print('gave up', time.monotonic() - began >= 0.3)\n"
        "print(mask == signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
    )
    calls = f"{IMPORTS}{INHERITED[inherited]}\nos.execv(sys.executable, [sys.executable, '-c', {waits!r}])"
    waiter = subprocess.run([sys.executable, "-c", calls], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=20)
    assert waiter.stdout.split("\n")[:2] == ["gave up True", "True"]
