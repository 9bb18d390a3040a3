"""The sweep: every operation x fault x point, and after it every way in which a runtime may go on.

    python -m tests.faults.sweep [--store NAME ...] [--only NAME ...] [--fault NAME ...] [--sample K] [--every] [--jobs N] [--case ID]

A case is OPERATION/FAULT/POINT/CONTINUATION, such as macvlan-add/KILL/pwrite64:7/retry; the points are those of a run without
a fault. A continuation is gone through once for each state that a fault leaves, or with --every after each: hours."""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults import backing, served, stopped, trace, tree
from tests.faults.cases import OPERATIONS, Operation, continuations
from tests.faults.gate import REQUEST
from tests.faults.inject import ERRORS, KILL, STOP, Injector, unavailable
from tests.faults.runner import Runner, Tally, Unit, columns, run
from tests.faults.scene import Scene
from tests.faults.trace import Call
from tests.node import IS_WARM

FAULTS = (KILL, *ERRORS, STOP, *served.TROUBLES)
_SHOWN = 40  # failures that are printed in full
_TELL_SECONDS = 120  # how often to say how far it is


def points(operation: Operation, executables: Path) -> list[Call]:
    """The calls at which an error may be injected, from a run without a fault, and the end of the process; then the
    requests to the server that keeps the leases."""
    with (
        Scene(operation.plugin, executables, operation.first, store=operation.store) as scene,
        Injector(scene.node) as injector,
    ):
        victim = operation.prepare(scene)
        gate = scene.backing.gate
        if gate:
            gate.begin()
        outcome, text = injector.record(scene.command(operation.verb, victim), "-s", "256")
        requests = [request.call() for request in gate.seen] if gate else []
        faults = scene.at_rest(outcome, operation.verb)
        if faults or outcome.reply is None or outcome.reply.status:
            raise RuntimeError(f"{operation.name} does not work even without a fault: {outcome.reply} {faults}")
        calls = trace.parse(text)
        if names := trace.unknown(calls):
            raise RuntimeError(f"tests/faults/trace.py does not know whether these calls change something: {names}")
        replies = [n for n, c in enumerate(calls) if IS_WARM and trace.answers(c)]
        calls = calls[: replies[-1] + 1] if replies else calls  # what a worker does after its reply concerns no caller
        if (
            operation.kept
        ):  # its search goes through all processes of the machine: so often do calls of these names come
            calls = [c for c in calls if c.name not in ("openat", "read", "getdents64")]
        return [c for c in calls if trace.may_fail(c)] + trace.last(calls) + requests


def plan(operations: Sequence[str], faults: Sequence[str], executables: Path) -> list[Unit]:
    """All units of these operations and faults."""
    units = []
    for name in operations:
        operation = OPERATIONS[name]
        every = points(operation, executables)
        requests = [c for c in every if c.name == REQUEST]
        found = [c for c in every if c.name != REQUEST]
        ways = tuple(continuations(operation))
        for fault in [f for f in faults if f in (operation.faults or FAULTS)]:
            if fault in served.TROUBLES:
                units += [Unit(name, fault, c, ways) for c in requests if served.meets(fault, operation, c)]
            elif fault in ERRORS:
                units += [Unit(name, fault, c, ways) for c in found if c.name != "exit_group"]
            elif fault == KILL:
                units += [Unit(name, fault, c, ways) for c in found if trace.changes(c) or c.name == "exit_group"]
            elif operation.verb == "ADD":
                told = ("goes-on",) if IS_WARM else tuple(stopped.WAYS)  # a call of a killed worker goes the cold path
                units += [Unit(name, fault, c, told) for c in found if trace.changes(c) and not trace.answers(c)]
    return units


def patient(units: Sequence[Unit]) -> list[Unit]:
    """The one case that takes a minute: at the last request to the kernel, when the attachment is locked for sure."""
    found = [u for u in units if u.fault == STOP and u.call.name in ("sendto", "sendmsg")]
    return [replace(found[-1], continuations=tuple(stopped.PATIENT))] if found else []


def sampled(units: Sequence[Unit], share: int, seed: int = 0) -> list[Unit]:
    """One in `share` of `units`, drawn at random."""
    drawn = sorted(random.Random(seed).sample(range(len(units)), -(-len(units) // share)))
    return [units[i] for i in drawn]


def sweep(units: Sequence[Unit], jobs: int, every: bool, executables: Path) -> int:
    """Go through `units`, print the table and the failures; how many there were."""
    began = time.monotonic()
    there = {(u.operation, u.fault) for u in units}
    tallies = {(name, fault): Tally() for name in OPERATIONS for fault in FAULTS if (name, fault) in there}
    shown, told = 0, began
    for number, (unit, tally) in enumerate(run(units, executables, jobs, every)):
        if time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            print(f"{told - began:.0f} s: {number} of {len(units)} points", flush=True)
        tallies[unit.operation, unit.fault].add(tally)
        for case, said in tally.failures.items():
            shown += 1
            if shown <= _SHOWN:
                print(f"FAILED {case}\n    " + "\n    ".join(said), flush=True)
    print(table(tallies))
    failed = [case for tally in tallies.values() for case in tally.failures]
    for case in failed[:5]:
        print(f"once more: make faults ARGS='sweep --case {case}'")
    print(f"{time.monotonic() - began:.0f} s", flush=True)
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


ABOUT = """points: where the fault was put; states: how many different ones it left, some of them those of other rows too;
then the continuations that were run, one for each state; again: those that were not run again in the same state"""


def table(tallies: Mapping[tuple[str, str], Tally]) -> str:
    """The rows, by (operation, fault), and their sum."""
    ways = list(dict.fromkeys(way for tally in tallies.values() for way in tally.cases))
    rows = [["store", "operation", "fault", "points", "states", *ways, "again", "failures"]]
    for (name, fault), tally in tallies.items():
        store = OPERATIONS[name].store
        rows.append([store, name.removeprefix(f"{store}-"), fault, *_cells(tally, ways)])
    rows.append(["all", "", "", *_cells(total(tallies.values()), ways)])
    return "\n".join([*columns(rows, 3), ABOUT])


def total(tallies: Iterable[Tally]) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole


def _cells(tally: Tally, ways: Iterable[str]) -> list[str]:
    counts = len(tally.points), len(tally.states), *(tally.cases[way] for way in ways), tally.again
    return [*(str(count or "") for count in counts), str(len(tally.failures))]


def _chosen(stores: Sequence[str] | None, names: Sequence[str] | None) -> list[str]:
    """The operations that are asked for, over stores that can be had here; what is left out is said."""
    missing = {store: backing.unavailable(store) for store in stores or backing.BACKINGS}
    for store, why in missing.items():
        if why:
            print(f"skipped: {store} {why}")
    return [name for name in names or OPERATIONS if missing.get(OPERATIONS[name].store) == ""]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--store", action="append", choices=tuple(backing.BACKINGS), help="where leases are kept; may be repeated"
    )
    parser.add_argument("--only", action="append", choices=tuple(OPERATIONS), help="an operation; may be repeated")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="a fault; may be repeated")
    parser.add_argument("--sample", type=int, default=1, metavar="K", help="one in K of the points")
    parser.add_argument(
        "--every", action="store_true", help="every continuation after every fault, in known states too"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many points at a time")
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
        units = plan(_chosen(options.store, options.only), options.fault or FAULTS, executables)
        if options.sample > 1:
            chosen = sampled(units, options.sample)
            print(f"a part: {len(chosen)} of {len(units)} points, drawn with the seed 0; without --sample all of them")
        else:
            chosen = patient(units) + units
        return min(1, sweep(chosen, options.jobs, options.every, executables))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
