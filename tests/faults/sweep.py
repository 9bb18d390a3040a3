"""The sweep: every operation x fault x point, and after it every way in which a runtime may go on.

    python -m tests.faults.sweep [--only NAME ...] [--fault NAME ...] [--sample K] [--jobs N] [--case ID]

A case has the name OPERATION/FAULT/POINT/CONTINUATION, such as macvlan-add/KILL/pwrite64:7/retry. After a failed call
(an error, not a kill) a continuation that has been gone through from the same state before is not gone through again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.faults import stopped, trace, tree
from tests.faults.cases import CONTINUATIONS, OPERATIONS, Operation
from tests.faults.inject import ERRORS, KILL, STOP, Injector, unavailable
from tests.faults.scene import Scene
from tests.faults.trace import Call

FAULTS = (KILL, *ERRORS, STOP)
_SHOWN = 40  # failures that are printed in full


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
    """What was gone through of one operation and fault: points, cases by continuation, failures by case."""

    points: set[str] = field(default_factory=set)
    cases: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.points |= other.points
        self.cases += other.cases
        self.failures |= other.failures


def points(operation: Operation, executables: Path) -> list[Call]:
    """The calls at which an error may be injected, from a run without a fault, and the end of the process."""
    with Scene(operation.plugin, executables, operation.first) as scene, Injector(scene.node) as injector:
        victim = operation.prepare(scene)
        outcome, text = injector.record(scene.command(operation.verb, victim), "-s", "256")
        faults = scene.at_rest(outcome, operation.verb)
        if faults or outcome.reply is None or outcome.reply.status:
            raise RuntimeError(f"{operation.name} does not work even without a fault: {outcome.reply} {faults}")
        calls = trace.parse(text)
        return [c for c in calls if trace.may_fail(c)] + trace.last(calls)


def plan(operations: Sequence[str], faults: Sequence[str], executables: Path) -> list[Unit]:
    """All units of these operations and faults."""
    units = []
    for name in operations:
        operation = OPERATIONS[name]
        found = points(operation, executables)
        ways = tuple(CONTINUATIONS[operation.plugin])
        for fault in faults:
            if fault in ERRORS:
                units += [Unit(name, fault, c, ways) for c in found if c.name != "exit_group"]
            elif fault == KILL:
                units += [Unit(name, fault, c, ways) for c in found if trace.changes(c) or c.name == "exit_group"]
            elif operation.verb == "ADD":
                ways = tuple(stopped.WAYS)
                units += [Unit(name, fault, c, ways) for c in found if trace.changes(c) and not trace.answers(c)]
    return units


def patient(units: Sequence[Unit]) -> list[Unit]:
    """The one case that takes a minute: at the first request to the kernel."""
    found = [u for u in units if u.fault == STOP and u.call.name == "sendto"]
    return [replace(found[0], continuations=tuple(stopped.PATIENT))] if found else []


def sampled(units: Sequence[Unit], share: int, seed: int = 0) -> list[Unit]:
    """One in `share` of the cases of `units`, drawn at random."""
    cases = [(unit, way) for unit in units for way in unit.continuations]
    drawn = sorted(random.Random(seed).sample(range(len(cases)), -(-len(cases) // share)))
    return [replace(cases[i][0], continuations=(cases[i][1],)) for i in drawn]


class Runner:
    """Goes through units, in one node for as many of them as leave it as it was."""

    def __init__(self, executables: Path) -> None:
        self._executables = executables
        self._seen: set[tuple[str, str, str]] = set()
        self._scene: Scene | None = None
        self._kind: tuple[str, bool] | None = None

    def run(self, unit: Unit) -> Tally:
        tally = Tally({unit.case("")})
        for way in unit.continuations:
            if unit.fault in ERRORS and tally.cases and self._is_known(unit, way):
                continue
            tally.cases[way] += 1
            faults = self._case(unit, way)
            if faults:
                tally.failures[unit.case(way)] = [f"at {unit.call.what}", *faults]
                self.close()
        return tally

    def close(self) -> None:
        if self._scene:
            self._scene.__exit__()
        self._scene = None

    def _is_known(self, unit: Unit, way: str) -> bool:
        return (unit.operation, way, self._after) in self._seen

    def _case(self, unit: Unit, way: str) -> list[str]:
        operation = OPERATIONS[unit.operation]
        try:
            scene = self._ready(operation)
            with Injector(scene.node) as injector:
                victim = operation.prepare(scene)
                command = scene.command(operation.verb, victim)
                if unit.fault == STOP:
                    return (stopped.WAYS | stopped.PATIENT)[way](scene, injector, command, unit.call.point)
                outcome = injector.strike(command, unit.fault, unit.call.point)
            if outcome.hit is None or outcome.hit.alike() != unit.call.alike():
                return [f"another call is at this point now: {outcome.hit.what if outcome.hit else 'none'}"]
            faults = scene.at_rest(outcome, operation.verb)
            self._after = scene.digest()
            self._seen.add((unit.operation, way, self._after))
            return faults + CONTINUATIONS[operation.plugin][way](scene)
        except Exception as fault:
            return [f"{type(fault).__name__}: {fault}", *traceback.format_exc().splitlines()[-9:-1]]

    def _ready(self, operation: Operation) -> Scene:
        if self._kind != (operation.plugin, operation.first):
            self.close()
        self._kind = (operation.plugin, operation.first)
        if self._scene is None:
            scene = Scene(operation.plugin, self._executables, operation.first)
            scene.__enter__()
            self._scene = scene
        return self._scene


def run(units: Sequence[Unit], executables: Path, jobs: int = 1) -> Iterator[tuple[Unit, Tally]]:
    """Go through `units` in `jobs` processes; each result as it comes."""
    if jobs == 1:
        runner = Runner(executables)
        for unit in units:
            yield unit, runner.run(unit)
        runner.close()
        return
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=_work, args=(units[k::jobs], executables, queue), daemon=True) for k in range(jobs)
    ]
    for process in processes:
        process.start()
    for _ in units:
        yield queue.get()
    for process in processes:
        process.join()


def _work(units: Sequence[Unit], executables: Path, queue: multiprocessing.Queue[tuple[Unit, Tally]]) -> None:
    for pair in run(units, executables):
        queue.put(pair)


def table(tallies: dict[tuple[str, str], Tally]) -> str:
    """operation x fault x continuation: the points, and for each continuation how often it was gone through."""
    ways = list(dict.fromkeys(way for tally in tallies.values() for way in tally.cases))
    rows = [["operation", "fault", "points", *ways, "failures"]]
    total: Counter[str] = Counter()
    for (operation, fault), tally in tallies.items():
        rows.append(
            [
                operation,
                fault,
                str(len(tally.points)),
                *(str(tally.cases[w] or "") for w in ways),
                str(len(tally.failures)),
            ]
        )
        total += tally.cases
    whole = Tally()
    for tally in tallies.values():
        whole.add(tally)
    rows.append(["all", "", str(len(whole.points)), *(str(total[w]) for w in ways), str(len(whole.failures))])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def sweep(operations: Iterable[str], faults: Iterable[str], share: int, jobs: int, executables: Path) -> int:
    """Go through it all, print the table and the failures; how many there were."""
    began = time.monotonic()
    every = plan(list(operations), list(faults), executables)
    units = sampled(every, share) if share > 1 else every + patient(every)
    if share > 1:
        cases = sum(len(unit.continuations) for unit in every)
        print(f"a part: {len(units)} of {cases} cases, drawn with the seed 0; without --sample it is all of them")
    tallies: dict[tuple[str, str], Tally] = {(u.operation, u.fault): Tally() for u in units}
    shown = 0
    for unit, tally in run(units, executables, jobs):
        tallies[unit.operation, unit.fault].add(tally)
        for case, said in tally.failures.items():
            shown += 1
            if shown <= _SHOWN:
                print(f"FAILED {case}\n    " + "\n    ".join(said), flush=True)
    print(table(tallies))
    failed = [case for tally in tallies.values() for case in tally.failures]
    for case in failed[:5]:
        print(f"once more: make faults ARGS='sweep --case {case}'")
    print(f"{time.monotonic() - began:.0f} s")
    return len(failed)


def one(case: str, executables: Path) -> int:
    """Go through one case; 1 when it failed."""
    name, fault, point, way = case.split("/")
    found = [u for u in plan([name], [fault], executables) if u.call.point == point]
    if not found:
        print(f"{name} has no point {point}")
        return 1
    runner = Runner(executables)
    tally = runner.run(Unit(name, fault, found[0].call, (way,)))
    runner.close()
    print(f"{case}: {found[0].call.what}")
    for said in tally.failures.get(case, ["as it should be"]):
        print(f"    {said}")
    return len(tally.failures)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(OPERATIONS), help="an operation; may be repeated")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="a fault; may be repeated")
    parser.add_argument("--sample", type=int, default=1, metavar="K", help="one in K of the cases")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many cases at a time")
    parser.add_argument("--case", metavar="ID", help="one case by its name")
    options = parser.parse_args(arguments)
    why = unavailable()
    if why:
        print(f"skipped: {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-tree-") as folder:
        executables = tree.copy(Path(folder))
        if options.case:
            return one(options.case, executables)
        names = options.only or list(OPERATIONS)
        return min(1, sweep(names, options.fault or FAULTS, options.sample, options.jobs, executables))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
