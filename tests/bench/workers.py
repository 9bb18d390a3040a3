"""The warm workers of the node that is measured: their processor time, which no call's own has, and their memory."""

from __future__ import annotations

import os
import time

from tests import warm
from tests.bench.calls import Call, timed
from tests.bench.samples import Sample

_SETTLED = 0.002  # seconds: what a worker does after it has replied is a part of the call, too


class Workers:
    """The supervisor and its workers in the mount namespace of this thread."""

    def __init__(self) -> None:
        self._namespace = os.stat("/proc/thread-self/ns/mnt").st_ino
        self._supervisors: list[int] = []

    def processes(self) -> list[int]:
        if not self._supervisors or not all(map(_lives, self._supervisors)):  # cold calls for a minute: they have ended
            every = [process for process in warm.processes(self._namespace) if _lives(process)]
            self._supervisors = [process for process in every if _parent(process) not in every]
        found = []
        for supervisor in self._supervisors:
            with open(f"/proc/{supervisor}/task/{supervisor}/children") as children:
                found += [supervisor, *map(int, children.read().split())]
        return found

    def cpu_ms(self) -> dict[int, float]:
        """Milliseconds of processor time of each process."""
        found = {}
        for process in self.processes():
            try:
                with open(f"/proc/{process}/schedstat") as stat:
                    found[process] = int(stat.read().split()[0]) / 1e6
            except OSError:
                continue  # it has ended
        return found

    def timed(self, call: Call) -> tuple[Sample, bytes]:
        """As tests.bench.calls.timed, with what the workers took of the processor.

        Every side is timed so, Go's too: after the rest the next call finds colder caches than one that follows at once, which
        cost one of two equal builds 6 % of CHECK and 13 % of a DEL of the IPAM plugin while it alone was timed so.
        """
        before = self.cpu_ms()
        sample, out = timed(call)
        return Sample(sample.ms, (sample.cpu_ms or 0.0) + self.since(before)), out

    def since(self, before: dict[int, float]) -> float:
        """Milliseconds of processor time since `before`; a worker that has ended meanwhile is left out."""
        time.sleep(_SETTLED)
        return sum(ms - before.get(process, 0.0) for process, ms in self.cpu_ms().items())

    def memory_mb(self) -> float:
        """What they have of the memory: of a page that n processes share, each has one nth (PSS)."""
        return sum(_pss_kib(process) for process in self.processes()) * 1024 / 1e6


def _lives(process: int) -> bool:
    try:
        return _stat(process)[0] not in "ZX"
    except OSError:
        return False


def _parent(process: int) -> int:
    return int(_stat(process)[1])


def _stat(process: int) -> list[str]:
    """The members of /proc/PROCESS/stat behind the name: the state, the parent and more (proc(5))."""
    with open(f"/proc/{process}/stat") as stat:
        return stat.read().rpartition(")")[2].split()


def _pss_kib(process: int) -> int:
    try:
        with open(f"/proc/{process}/smaps_rollup") as memory:
            return next(int(line.split()[1]) for line in memory if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0  # it has ended
