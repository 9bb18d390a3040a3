"""The plugins beside Go's: the parts, one after the other."""

from __future__ import annotations

import os
from functools import partial

from tests.bench import operations, pools
from tests.bench.calls import script_of, timed
from tests.bench.operations import Round, alternately
from tests.bench.progress import Progress
from tests.bench.samples import Results
from tests.bench.scenarios import FULL, OURS, PODS, SCENARIOS, SIZES, WORKERS_BUSY, WORKERS_IDLE, Scenario, Side
from tests.bench.workers import Workers
from tests.node import GO_PLUGINS, Pod

_QUICK = 1_000  # leases: with more than these host-local, which reads a file for each, takes most of the run


class Run:
    """`sides[0]` is ours. Nearly everything is measured `rounds` times; what takes long, or varies little, less often."""

    def __init__(self, results: Results, sides: list[Side], pods: list[Pod], rounds: int, progress: Progress) -> None:
        self.results = results
        self._sides = sides
        self._pods = pods
        self._rounds = rounds
        self._progress = progress
        script = script_of(sides[0].executable(SCENARIOS[0].plugin))
        self._python = script[0] if script else []
        self._workers = Workers()

    def everything(self) -> None:
        for scenario in (s for s in SCENARIOS if not s.caller):
            self._one_at_a_time(scenario)
            if scenario is SCENARIOS[0]:  # the workers that one call at a time has left: later they may have ended
                self.results.note(WORKERS_IDLE, OURS, self._workers.memory_mb())
        self._at_once()
        self._addresses_alone()

    def _one_at_a_time(self, scenario: Scenario) -> None:
        source = "static" if scenario.source == "static" else "host-local"  # what all sides have from Go
        shared = scenario.source in ("pool", "none") or (GO_PLUGINS / source).exists()
        sides = [s for s in self._sides if shared and s.executable(scenario.plugin).exists()]
        alternately(
            self.results, self._progress, scenario.group, sides, self._rounds, partial(self._attachment, scenario)
        )
        peak = partial(operations.memory, self.results, scenario, self._pods[0])
        what = f"peak memory: {scenario.group}"
        alternately(self.results, self._progress, what, sides, max(3, self._rounds // 20), peak)

    def _attachment(self, scenario: Scenario, side: Side, number: int) -> Round:
        """An attachment, that of the same network with a caller's variables, and with ours the floors under it: measured in
        the same rounds."""
        measure = timed if scenario.cold else self._workers.timed  # alike for all sides, as it rests after each call
        found: Round = {}
        same = [scenario, *(s for s in SCENARIOS if s.caller and scenario is SCENARIOS[0])]
        for each in same[:: 1 if number % 2 else -1]:
            found |= operations.attachment(each, self._pods[0], side, number, measure)
        if side is self._sides[0] and scenario is SCENARIOS[0] and self._python:
            found |= operations.interpreter(self._python)
        if side is self._sides[0] and scenario.plugin == "host-device":
            found |= operations.move(self._pods[0], side)
        return found

    def _at_once(self) -> None:
        sides = [s for s in self._sides if s.executable("macvlan").exists()]
        call = partial(operations.at_once, self._pods, self._workers)
        alternately(self.results, self._progress, f"{PODS} at once", sides, max(5, self._rounds // 8), call)
        self.results.note(WORKERS_BUSY, OURS, self._workers.memory_mb())

    def _addresses_alone(self) -> None:
        """The IPAM plugins without a link plugin, in pools of all sizes."""
        sides = [s for s in self._sides if s.executable(s.pool_plugin).exists()]
        for side in sides:
            for _, size in zip(self._progress.track(f"filling pools: {side.name}", len(SIZES)), SIZES, strict=True):
                pools.fill(side, size)
        os.sync()  # or the first calls would wait for that
        sizes = {s.name: [n for n in SIZES if n <= _QUICK or s.pool_plugin == "whereabouts"] for s in sides}
        alternately(
            self.results,
            self._progress,
            "IPAM alone",
            sides,
            self._rounds,
            lambda side, number: operations.addresses(sizes[side.name], self._workers, side, number),
        )
        for size in SIZES:  # far apart from ours: no need to alternate with them
            slow = [s for s in sides if size not in sizes[s.name]]
            rounds = max(3, self._rounds // (20 if size == FULL else 5))
            call = partial(operations.addresses, [size], self._workers)
            alternately(self.results, self._progress, f"IPAM alone, {size:,} leases", slow, rounds, call)
