"""Power losses: a history of ADDs and DELs is recorded, and every disk that a loss may leave of it is started again.

    python -m tests.faults.powerloss [--only HISTORY] [--disks N] [--seed S] [--sample K] [--every] [--jobs N] [--case ID]

On each disk, in a node with another boot_id, all is as docs/durability.md promises: the lease file is sound, no lease from
before the history is lost, the next ADD works, and DEL or GC clears the rest. A case is HISTORY/ENTRY/DISK/SEED. Disks that
differ only in a journal that SQLite does not read are one disk, except with --every."""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults import tree
from tests.faults.filestate import journal
from tests.faults.history import HISTORIES, Expectation, Recording, is_killed, record
from tests.faults.inject import unavailable
from tests.faults.journal import TOP, Disk
from tests.faults.known_good import KnownGood
from tests.faults.runner import columns, spread
from tests.faults.scene import IFNAME, NETWORK, Scene
from tests.faults.state import State
from tests.node import IS_WARM

BOOT_ID = "/proc/sys/kernel/random/boot_id"
NEXT_BOOT = "11111111-2222-4333-8444-555555555555"
DISKS, SEED = 12, 0
_ASIDE = re.compile(r"leases\.db\.damaged-1(-journal)?")  # a lease file that the loss has torn
_SHOWN = 40  # failures that are printed in full
_AT_A_TIME = 8  # neighbouring points that a process takes: they often leave the same disks


class Restarter:
    """Starts disks: a node with another boot_id, in which the plugins find what the loss has left."""

    def __init__(self, executables: Path) -> None:
        self._scene = Scene("macvlan", executables, first=True)

    def __enter__(self) -> Restarter:
        scene = self._scene
        scene.__enter__()
        boot = scene.node.path("/run/boot_id")
        boot.write_text(NEXT_BOOT + "\n")
        scene.node.run(["mount", "--bind", "/run/boot_id", BOOT_ID]).check_returncode()
        scene.node.path("/run/uptime").write_text("5.00 5.00\n")  # it has just begun
        scene.node.run(["mount", "--bind", "/run/uptime", "/proc/uptime"]).check_returncode()
        return self

    def __exit__(self, *_: object) -> None:
        self._scene.__exit__()

    def faults(self, disk: Disk, expected: Expectation, crowd: int, collects: bool) -> list[str]:
        """What is wrong after `disk` was started; cleared by GC or by DELs."""
        self._write(disk)
        scene = self._scene
        scene.node.cni("macvlan", "STATUS", scene.config(), path=[scene.node.executables]).succeeded()
        return self._goes_on(scene.state(), expected, crowd, collects)

    def _write(self, disk: Disk) -> None:
        top = self._scene.node.path(TOP)
        for path in top.iterdir():
            shutil.rmtree(path)
        for name, data in disk.tree().items():
            path = top / name
            if data is None:
                path.mkdir(mode=0o700)
            else:
                path.write_bytes(data)
                path.chmod(0o600)

    @staticmethod
    def _wrong(now: State, expected: Expectation, crowd: int) -> list[str]:
        """What no power loss excuses: a lease file that is not sound, leases lost that were on the disk, leases of nobody."""
        faults = [fault for fault in now.faults if not fault.endswith((" has no record",)) and " is torn" not in fault]
        for lease in now.leases:
            if lease.network != "crowd" and lease.address not in expected.given.get(lease.container, ()):
                faults.append(f"{lease.address} is leased to {lease.container}, which was never given it")
        lost = crowd - sum(lease.network == "crowd" for lease in now.leases) // 2  # two families
        return faults + ([f"{lost} of the leases of others are lost"] if lost else [])

    def _goes_on(self, now: State, expected: Expectation, crowd: int, collects: bool) -> list[str]:
        scene = self._scene
        named = {"path": [scene.node.executables]}
        faults = self._wrong(now, expected, crowd)
        reply = scene.call("ADD", scene.next)
        faults += scene.attached(scene.next, reply)
        expected.given[scene.next.container] = [text.split("/")[0] for text in reply.addresses]
        held = {lease.address for lease in now.leases}
        faults += [f"{a} was given again" for a in (text.split("/")[0] for text in reply.addresses) if a in held]
        after = scene.state()
        faults += self._wrong(after, expected, crowd)
        if collects:
            scene.collect([scene.next]).succeeded()
        else:
            for container in sorted({*expected.given} - {scene.next.container}):
                how = {"container_id": container, "ifname": IFNAME, "netns": "", **named}
                scene.node.cni("macvlan", "DEL", scene.config(), **how).succeeded()
        faults += [f"after the ADD: {fault}" for fault in scene.attached(scene.next, reply)]
        scene.call("DEL", scene.next).succeeded()
        last = scene.state()
        faults += [f"left: {lease}" for lease in last.leases if lease.network == NETWORK]
        faults += [
            f"left: {name}"
            for name in (*last.records, *last.others)
            if "crowd:" not in name and not _ASIDE.fullmatch(name)
        ]
        return faults + [fault for fault in last.faults if " is torn" in fault]


@dataclass(frozen=True)
class Case:
    history: str
    point: int
    disk: int

    def name(self, seed: int) -> str:
        return f"{self.history}/{self.point}/{self.disk}/{seed}"


def run(
    recording: Recording,
    cases: Iterable[Case],
    disks: int,
    seed: int,
    executables: Path,
    known_good: KnownGood | None = None,
) -> Iterator[tuple[Case, list[str] | None]]:
    """Go through `cases`; what is wrong with each, None when there is no such disk, or it was met before with the same
    expectation and all was well."""
    restarter: Restarter | None = None
    at, found = -1, []
    for case in cases:
        if case.point != at:
            at, found = case.point, recording.journal.disks(case.point, disks, seed)
        if case.disk >= len(found):
            yield case, None
            continue
        disk, expected = found[case.disk], recording.expected(case.point)
        collects = (case.point + case.disk) % 2 == 0
        key = (recording.name, _read_by_sqlite(disk), repr(expected), collects)
        if known_good and known_good.has(*key):
            yield case, None
            continue
        try:
            restarter = restarter or Restarter(executables).__enter__()
            faults = restarter.faults(disk, expected, recording.crowd, collects)
        except Exception as fault:
            faults = [f"{type(fault).__name__}: {fault}", *traceback.format_exc().splitlines()[-7:-1]]
        if known_good and not faults:
            known_good.add(*key)
        if faults and restarter:
            restarter.__exit__()
            restarter = None
        yield case, faults
    if restarter:
        restarter.__exit__()


def _read_by_sqlite(disk: Disk) -> list[tuple[str, bytes | None]]:
    """The disk without what SQLite does not read."""
    return [(name, journal(data) if data and name.endswith("-journal") else data) for name, data in disk.tree().items()]


def at_once(
    recording: Recording, cases: Sequence[Case], disks: int, seed: int, executables: Path, jobs: int, every: bool
) -> Iterator[tuple[Case, list[str] | None]]:
    """As `run`, in `jobs` processes. With `every`, also what was met before."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        known_good = None if every else KnownGood(Path(folder))
        work = partial(run, recording, disks=disks, seed=seed, executables=executables, known_good=known_good)
        yield from spread(cases, work, jobs, _AT_A_TIME * disks)


def sweep(names: Sequence[str], disks: int, seed: int, share: int, jobs: int, every: bool, executables: Path) -> int:
    """Go through the histories, print the table and the failures; how many there were."""
    began, failed, shown = time.monotonic(), [], 0
    rows: list[Sequence[str]] = [("history", "calls", "entries", "disks started", "met before", "failures")]
    for name in names:
        recording = record(name, executables)
        points = range(len(recording.journal.entries))
        cases = [Case(name, point, disk) for point in points for disk in range(disks)]
        if share > 1:
            drawn = sorted(random.Random(seed).sample(range(len(cases)), -(-len(cases) // share)))
            print(f"a part: {len(drawn)} of {len(cases)} disks of the history {name}, drawn with the seed {seed}")
            cases = [cases[i] for i in drawn]
        started, wrong = 0, 0
        for case, faults in at_once(recording, cases, disks, seed, executables, jobs, every):
            started += faults is not None
            if faults:
                wrong += 1
                failed.append(case.name(seed))
                shown += 1
                if shown <= _SHOWN:
                    entry = recording.journal.entries[case.point]
                    print(
                        f"FAILED {case.name(seed)} behind {str(entry)[:100]}\n    " + "\n    ".join(faults), flush=True
                    )
        counts = (len(recording.steps), len(points), started, len(cases) - started, wrong)
        rows.append((name, *map(str, counts)))
    print("\n".join(columns(rows, 1)))
    for case_name in failed[:5]:
        print(f"once more: make faults ARGS='powerloss --disks {disks} --case {case_name}'")
    print(f"{time.monotonic() - began:.0f} s")
    return len(failed)


def one(text: str, disks: int, executables: Path) -> int:
    """Go through one case; 1 when it failed."""
    name, point, disk, seed = text.split("/")
    recording = record(name, executables)
    case = Case(name, int(point), int(disk))
    entries = recording.journal.entries
    if case.point >= len(entries):
        print(f"the history {name} has no entry {case.point}")
        return 1
    print(f"{text}: behind {str(entries[case.point])[:200]}; expected: {recording.expected(case.point)}")
    ((_, faults),) = run(recording, [case], disks, int(seed), executables)
    for said in faults or ["as it should be" if faults is not None else "there is no such disk"]:
        print(f"    {said}")
    return bool(faults)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="powerloss", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=tuple(HISTORIES), help="a history; may be repeated")
    parser.add_argument("--disks", type=int, default=DISKS, metavar="N", help="so many disks for each entry")
    parser.add_argument("--seed", type=int, default=SEED, metavar="S", help="other mixtures of what was lost")
    parser.add_argument("--sample", type=int, default=1, metavar="K", help="one in K of the disks")
    parser.add_argument("--every", action="store_true", help="disks that were met before, too")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many nodes at a time")
    parser.add_argument("--case", metavar="ID", help="one case by its name")
    options = parser.parse_args(arguments)
    why = unavailable()
    if why:
        print(f"skipped: {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-tree-") as folder:
        executables = tree.copy(Path(folder))
        if options.case:
            return one(options.case, options.disks, executables)
        names = options.only or [name for name, steps in HISTORIES.items() if not (IS_WARM and is_killed(steps))]
        return min(
            1, sweep(names, options.disks, options.seed, options.sample, options.jobs, options.every, executables)
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
