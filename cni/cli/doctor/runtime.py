"""What containers inherit of the runtime, and the clock.

RDMA locks the memory it registers: a container may lock as much as its runtime (proc(5), /proc/PID/limits), unless it
has the capability IPC_LOCK.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cni.cli.doctor.finding import ADVICE, FAULT, NOTE, OK, UNKNOWN, Observation
from cni.library.inventory.topology import text

_RUNTIMES = ("containerd", "crio", "dockerd", "k3s-server", "k3s-agent", "rke2", "podman")
_ENOUGH = 1 << 30  # bytes; a message ring of one process alone takes tens of MiB
_UNLIMITED = -1
_NOT_BEFORE = datetime(2025, 1, 1, tzinfo=UTC)
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_TIMEX_BYTES = 208


@dataclass(frozen=True)
class RuntimeProcess:
    """A container runtime, or a process in a pod; `memlock` in bytes, -1 without a limit, None when this user may not
    read it."""

    name: str
    pid: int
    memlock: int | None

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})" if self.pid else self.name


def read(proc: str = "/proc") -> list[RuntimeProcess]:
    """The container runtimes that run."""
    found = []
    for pid in sorted((int(n) for n in os.listdir(proc) if n.isdigit()), key=int) if os.path.isdir(proc) else ():
        name = text(f"{proc}/{pid}/comm")
        if name in _RUNTIMES:
            found.append(RuntimeProcess(name, pid, memlock_of(f"{proc}/{pid}")))
    return found


def memlock_of(process: str) -> int | None:
    """The soft limit of the process with this directory in /proc."""
    for line in text(f"{process}/limits").splitlines():
        if line.startswith("Max locked memory"):
            soft = line[len("Max locked memory") :].split()[0]
            return _UNLIMITED if soft == "unlimited" else int(soft)
    return None


def check_memlock(processes: Sequence[RuntimeProcess]) -> Iterator[Observation]:
    """Runtimes whose containers can lock little memory."""
    if not processes:
        yield Observation(NOTE, "memlock", "no container runtime is seen to run here")
    for process in processes:
        subject = f"memlock of {process}"
        if process.memlock is None:
            yield Observation(UNKNOWN, subject, "cannot be read")
        elif process.memlock == _UNLIMITED or process.memlock >= _ENOUGH:
            yield Observation(OK, subject, "unlimited" if process.memlock == _UNLIMITED else _size(process.memlock))
        else:
            yield Observation(
                ADVICE,
                subject,
                f"{_size(process.memlock)}: containers without IPC_LOCK cannot register more memory (ENOMEM)",
                "unlimited",
                "LimitMEMLOCK=infinity in the container runtime's systemd unit, or the capability IPC_LOCK in the container",
            )


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


@dataclass(frozen=True)
class Clock:
    """`synchronized`: whether NTP or PTP has told the kernel so; None: unknown."""

    now: datetime
    synchronized: bool | None


def clock() -> Clock:
    """The clock of this machine; adjtimex(2) with nothing to set reads it."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES + 64)
    state = ctypes.CDLL(None).adjtimex(buffer)
    return Clock(datetime.now(UTC), None if state < 0 else state != _TIME_ERROR)


def check_clock(clock: Clock) -> Iterator[Observation]:
    """A clock that is wrong or that nobody sets: certificates, tokens and cooldowns go by it."""
    shown = clock.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    remedy = "start chronyd, systemd-timesyncd or ptp4l"
    if clock.now < _NOT_BEFORE:
        healthy = "the time: certificates and tokens are refused otherwise"
        yield Observation(FAULT, "clock", f"{shown}: certainly wrong", healthy, remedy)
    elif clock.synchronized is False:
        healthy = "synchronized: leases' cooldowns and certificates go by it"
        yield Observation(ADVICE, "clock", f"{shown}, set by nobody (NTP or PTP)", healthy, remedy)
    else:
        yield Observation(OK, "clock", f"{shown}{', synchronized' if clock.synchronized else ''}")
