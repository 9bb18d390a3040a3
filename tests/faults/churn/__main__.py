"""`make histories`: churn for some time, judge the history, say what was done and what is wrong.

python -m tests.faults.churn [SECONDS] [--seed N] [--keep FILE]    60 s; FILE gets the history, to be judged again
python -m tests.faults.churn --judge FILE                          judge a history that was kept
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults import tree
from tests.faults.churn.checker import History, check, lingering
from tests.faults.churn.events import Event, Operation, line, parse
from tests.faults.churn.run import Churn
from tests.node import unusable

PHASE_SECONDS = 5.0  # of churn, between two looks at what stands


def record(executables: Path, seconds: float, seed: int) -> list[Event]:
    """The history of `seconds` of churn, and of its end, when everything has been detached."""
    with Churn(executables, seed) as churn:
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            churn.go(min(PHASE_SECONDS, left))
        churn.end()
        if churn.killer:
            print(
                f"  {churn.killer.killed} warm workers and supervisors were killed; {churn.killer.served()} calls were warm"
            )
        return churn.events()


def report(events: Sequence[Event]) -> str:
    """What was done, in words."""
    history = History(events)
    calls = Counter((o.verb, o.outcome if not o.code else f"{o.outcome} with {o.code}") for o in history.operations)
    lines = [f"  {verb:4} {outcome:16} {count:6}" for (verb, outcome), count in sorted(calls.items())]
    concurrent = sum(1 for o in history.operations if o.container and not history.alone(o))
    lines += [
        f"  {concurrent} calls ran beside another one of the same attachment",
        f"  {len(history.sights)} times an address came or went; {len(history.rests)} looks at rest",
        f"  {lingering(history)} addresses were given on while the kernel had not cleared a sandbox that was given up",
    ]
    return "\n".join(lines)


def strange(events: Sequence[Event]) -> list[str]:
    """Answers that no call should have got: all but a pool without a free address, and a lock waited for in vain."""
    return [
        f"{e.verb} of {e.container} was refused with {e.code}: {e.msg}"
        for e in events
        if isinstance(e, Operation) and e.code not in (0, 11)
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.churn", description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--judge", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.judge:
        events = parse(chosen.judge.read_text().splitlines())
    else:
        if why := unusable():
            print(why, file=sys.stderr)
            return 2
        print(f"histories: {chosen.seconds:g} s of churn, seed {chosen.seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix="churn-") as folder:
            events = record(tree.copy(Path(folder)), chosen.seconds, chosen.seed)
    if chosen.keep:
        chosen.keep.write_text("".join(line(event) + "\n" for event in events))
    faults = check(events) + strange(events)
    print(report(events))
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
