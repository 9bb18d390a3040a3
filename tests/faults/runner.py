"""Goes through units: strikes, looks at what is left, and goes on in every way in which nobody has gone on from there.

How a case goes on depends on the state alone (Scene.lines). So what went well is gone through once for each state, at the
first point that leaves it; what went wrong at every point."""

from __future__ import annotations

import multiprocessing
import queue as queues
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.faults import served, stopped
from tests.faults.cases import OPERATIONS, Operation, continuations
from tests.faults.inject import STOP, Injector, Outcome
from tests.faults.known_good import KnownGood
from tests.faults.scene import Scene
from tests.faults.trace import Call

T = TypeVar("T")
R = TypeVar("R")
_AT_A_TIME = 16  # units that a process takes: neighbours often leave the same state


@dataclass(frozen=True)
class Unit:
    """A fault at a point of an operation, and the continuations to go through after it."""

    operation: str
    fault: str
    call: Call
    continuations: tuple[str, ...]

    def case(self, continuation: str) -> str:
        return f"{self.operation}/{self.fault}/{self.call.point}/{continuation}"


@dataclass
class Tally:
    """What was gone through: points, the states that they left, continuations that were run, by their names, and how
    many were not run again; failures by case."""

    points: set[str] = field(default_factory=set)
    states: set[str] = field(default_factory=set)
    cases: Counter[str] = field(default_factory=Counter)
    again: int = 0
    failures: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.points |= other.points
        self.states |= other.states
        self.cases += other.cases
        self.again += other.again
        self.failures |= other.failures


class Runner:
    """Goes through units, in one node for as many of them as leave it as it was. Without `known_good` nothing is left out."""

    def __init__(self, executables: Path, known_good: KnownGood | None = None) -> None:
        self._executables = executables
        self._known_good = known_good
        self._scene: Scene | None = None
        self._kind: tuple[str, str, bool] | None = None

    def run(self, unit: Unit) -> Tally:
        tally = Tally({unit.case("")})
        self._state = ""
        for way in unit.continuations:
            if self._known_good and self._state and self._known_good.has(*self._key(unit, way)):
                tally.again += 1
                continue
            faults = self._case(unit, way, tally)
            if faults:
                tally.failures[unit.case(way)] = [f"at {unit.call.what}", *faults]
                self.close()
            elif self._scene and self._scene.is_worn():
                self.close()
        return tally

    def close(self) -> None:
        if self._scene:
            self._scene.__exit__()
        self._scene = None

    def _key(self, unit: Unit, *what: object) -> tuple[object, ...]:
        operation = OPERATIONS[unit.operation]
        return *operation.kind, self._state, *what

    def _case(self, unit: Unit, way: str, tally: Tally, tries: int = 4) -> list[str]:
        """What is wrong right after the fault, and after the continuation `way`, unless that is known to be well."""
        operation = OPERATIONS[unit.operation]
        try:
            scene = self._ready(operation)
            with Injector(scene.node) as injector:
                victim = operation.prepare(scene)
                command = scene.command(operation.verb, victim)
                if unit.fault == STOP:
                    tally.cases[way] += 1
                    return (stopped.WAYS | stopped.PATIENT)[way](scene, injector, command, unit.call.point)
                if unit.fault in served.TROUBLES:
                    outcome = served.strike(scene, operation.verb, unit.fault, unit.call)
                else:
                    outcome = injector.strike(command, unit.fault, unit.call.point)
            if outcome.hit is None or outcome.hit.alike() != unit.call.alike():
                moved = outcome.pages - unit.call.pages
                if unit.call.name == "read" and moved and tries:
                    self.close()
                    call = replace(unit.call, ordinal=unit.call.ordinal + moved, pages=outcome.pages)
                    return self._case(replace(unit, call=call), way, tally, tries - 1)
                return [f"another call is at this point now: {outcome.hit.what if outcome.hit else 'none'}"]
            if self._known_good is None or scene.held:  # what is held back is a part of no state
                tally.cases[way] += 1
                return scene.at_rest(outcome, operation.verb) + continuations(operation)[way](scene)
            return self._goes_on(unit, way, tally, scene, outcome, self._known_good)
        except Exception as fault:
            return [f"{type(fault).__name__}: {fault}", *traceback.format_exc().splitlines()[-9:-1]]

    def _goes_on(
        self, unit: Unit, way: str, tally: Tally, scene: Scene, outcome: Outcome, known_good: KnownGood
    ) -> list[str]:
        operation = OPERATIONS[unit.operation]
        self._state = scene.settled(known_good)
        tally.states.add(f"{operation.kind} {self._state}")
        rest = self._key(
            unit, "at rest", operation.verb, outcome.met_a_lock(),
            outcome.reply and (outcome.reply.status, outcome.reply.status or repr(outcome.reply.document)),
        )  # fmt: skip
        faults = outcome.faults
        if not known_good.has(*rest):
            faults = scene.at_rest(outcome, operation.verb)
            if not faults:
                known_good.add(*rest)
        if known_good.has(*self._key(unit, way)):
            tally.again += 1
            if not scene.tidy():
                self.close()
            return faults
        tally.cases[way] += 1
        after = continuations(operation)[way](scene)
        if not after:
            known_good.add(*self._key(unit, way))
        return faults + after

    def _ready(self, operation: Operation) -> Scene:
        if self._kind != operation.kind:
            self.close()
        self._kind = operation.kind
        if self._scene is None:
            scene = Scene(operation.plugin, self._executables, operation.first, self._known_good, operation.store)
            scene.__enter__()
            self._scene = scene
        return self._scene


def run(units: Sequence[Unit], executables: Path, jobs: int = 1, every: bool = False) -> Iterator[tuple[Unit, Tally]]:
    """Go through `units` in `jobs` processes; each result as it comes. With `every`, every continuation of each."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        known_good = None if every else KnownGood(Path(folder))

        def work(mine: Iterable[Unit]) -> Iterator[tuple[Unit, Tally]]:
            runner = Runner(executables, known_good)
            try:
                for unit in mine:
                    yield unit, runner.run(unit)
            finally:
                runner.close()

        yield from spread(units, work, jobs, _AT_A_TIME)


def spread(items: Sequence[T], work: Callable[[Iterable[T]], Iterator[R]], jobs: int, at_a_time: int) -> Iterator[R]:
    """The result of each item, by `work` in `jobs` processes, each of which takes so many neighbours at a time."""
    if jobs == 1:
        yield from work(items)
        return
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()
    taken: Any = context.Value("l", 0)  # so many of the items

    def mine() -> Iterator[T]:
        while True:
            with taken.get_lock():
                start, taken.value = taken.value, taken.value + at_a_time
            if start >= len(items):
                return
            yield from items[start : start + at_a_time]

    def run() -> None:
        for result in work(mine()):
            queue.put(result)

    processes = [context.Process(target=run, daemon=True) for _ in range(jobs)]
    for process in processes:
        process.start()
    left = len(items)
    while left:
        try:
            yield queue.get(timeout=5)
            left -= 1
        except queues.Empty:
            if not any(process.is_alive() for process in processes):
                raise RuntimeError(f"the processes have ended, and {left} items were not gone through") from None
    for process in processes:
        process.join()


def columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A table's lines: so many columns are flush left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    placed = [zip((str.ljust,) * left + (str.rjust,) * len(row), row, widths, strict=False) for row in rows]
    return ["  ".join(put(cell, width) for put, cell, width in row) for row in placed]
