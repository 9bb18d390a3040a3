"""`make soak MINUTES=60`: churn with random kills for long; what stands must not grow, and in the end nothing stands.

python -m tests.faults.soak [MINUTES] [--seed N] [--keep FOLDER]     60 minutes; FOLDER: build/soak-N

Every few seconds all calls come to rest, what stands is counted, and the history of the stretch is judged as `make
histories` does. FOLDER gets the samples as they are taken; and at once when something is wrong `faults`, and
`history-K`, for `python -m tests.faults.churn --judge`."""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.faults import tree
from tests.faults.churn.__main__ import strange
from tests.faults.churn.checker import check
from tests.faults.churn.events import Operation, Rest, line
from tests.faults.churn.run import Churn
from tests.faults.churn.sampling import Sample, growth, open_files, state_bytes, store_bytes
from tests.node import unusable

WORKERS, PODS = 4, 16  # 64 namespaces
PREFIX = 27  # 30 addresses: they run out now and then
SAMPLES = 120  # of a run, at most
_LEAST_SECONDS = 5.0  # of churn between two samples


class Soak:
    """The churn, its samples, and what was wrong. Each stretch from rest to rest is a history of its own."""

    def __init__(self, churn: Churn, folder: Path) -> None:
        self._churn = churn
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._began = time.monotonic()
        self._calls = 0
        self.samples: list[Sample] = []
        self.faults: list[str] = []

    def step(self, seconds: float) -> None:
        """Churn for so long, judge it, and take a sample."""
        rest = self._churn.go(seconds)
        self._judge()
        self.samples.append(self._sample(rest))
        with open(self._folder / "samples", "a") as file:
            file.write(json.dumps(asdict(self.samples[-1])) + "\n")

    def end(self) -> None:
        """Detach all: nothing may be left."""
        rest = self._churn.end()
        self._judge()
        for what, left in (("leases", rest.leases), ("records", rest.records), ("links", rest.links)):
            if left:
                self.faults.append(f"left in the end: {what} {left}")

    def _judge(self) -> None:
        """Note what is wrong with the history of all that stood lately."""
        events = self._churn.events()
        found = [f for f in check(events) + strange(self._churn.fresh) if f not in self.faults]
        if found:
            self._keep(found)
        self.faults += found
        self._churn.forget()

    def _keep(self, faults: Sequence[str]) -> None:
        """Write down `faults` and their history, and say them: a run that is broken off has been heard."""
        name = f"history-{len(self.samples)}"
        (self._folder / name).write_text("".join(line(event) + "\n" for event in self._churn.events()))
        with open(self._folder / "faults", "a") as file:
            for fault in faults:
                print(f"FAULT {fault} (see {self._folder}/faults)", flush=True)
                file.write(f"{name}: {fault}\n")

    def _sample(self, rest: Rest) -> Sample:
        operations = [o for o in self._churn.fresh if isinstance(o, Operation)]
        self._calls += len(operations)
        times = sorted(o.ended - o.began for o in operations if o.verb == "ADD") or [0.0]
        node = self._churn.node
        return Sample(
            seconds=round(time.monotonic() - self._began, 1), calls=self._calls,
            leases=sum(len(a) for a in rest.leases.values()), links=len(rest.links),
            records=sum(len(parts) for parts in rest.records.values()),
            unowned=len(set(rest.records) - set(rest.links)), files=open_files(self._churn.pids),
            store=store_bytes(node), state=state_bytes(node), netns=sum(1 for p in node.path("/run/netns").iterdir()),
            call_milliseconds=round(1000 * times[len(times) // 2], 1),
        )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args(arguments)
    if why := unusable():
        print(why, file=sys.stderr)
        return 2
    seconds = 60 * chosen.minutes
    folder = chosen.keep or Path("build", f"soak-{chosen.seed}")
    print(f"soak: {chosen.minutes:g} minutes over {WORKERS * PODS} sandboxes, seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as copy:
        executables = tree.copy(Path(copy))
        with Churn(executables, chosen.seed, WORKERS, PODS, PREFIX) as churn:
            soak = Soak(churn, folder)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                soak.step(max(_LEAST_SECONDS, seconds / SAMPLES))
            soak.end()
    print(soak.samples[-1])
    faults = soak.faults
    try:
        faults = [*faults, *growth(soak.samples)]
    except ValueError as few:
        print(f"whether it is flat cannot be told: {few}")
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{soak.samples[-1].calls} calls, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
