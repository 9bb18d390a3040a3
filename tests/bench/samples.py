"""What was measured, and the statistics of it: no I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, NamedTuple


class Operation(NamedTuple):
    """What is measured on every side: a group of calls that belong together, and one of them."""

    group: str
    verb: str


@dataclass(frozen=True)
class Sample:
    """One call: milliseconds from its start to its end, and of processor time, its children's too (None: unknown)."""

    ms: float
    cpu_ms: float | None = None


@dataclass(frozen=True)
class Crowd:
    """Many workers' ADDs, and then DELs, in one store: seconds until the last one was done, milliseconds of each call,
    how many failed, and what should be none: addresses that two have or the store gives to others than the results,
    and what stands in the store or in the nodes' records after the last DEL. `faults` are some failures, in words; `audit` what `railcni ipam audit` then says, "clean" for nothing."""

    store: str
    what: str
    calls: int
    add_s: float
    del_s: float
    add_ms: list[float]
    del_ms: list[float]
    failed: int
    wrong: int
    left: int
    faults: list[str]
    audit: str


@dataclass
class Results:
    """All samples of a run by operation and side, in the order in which they came up.

    `memory_kib` are peaks of resident memory by group and side; `figures` are what is no time: failures, rates;
    `crowds` are the runs of tests.bench.users; `failures` are calls that did not succeed and end a part, in words; `remarks`
    those that are counted.
    """

    samples: dict[Operation, dict[str, list[Sample]]] = field(default_factory=dict)
    memory_kib: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    figures: dict[Operation, dict[str, list[float]]] = field(default_factory=dict)
    crowds: list[Crowd] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, operation: Operation, side: str, sample: Sample) -> None:
        self.samples.setdefault(operation, {}).setdefault(side, []).append(sample)

    def note(self, operation: Operation, side: str, figure: float) -> None:
        """One more of what is no time."""
        self.figures.setdefault(operation, {}).setdefault(side, []).append(figure)

    def noted(self, operation: Operation, side: str) -> list[float]:
        return self.figures.get(operation, {}).get(side, [])

    def sides(self) -> list[str]:
        """All that anything was measured of, or that was counted."""
        return list(dict.fromkeys([*chain(*self.samples.values()), *chain(*self.figures.values())]))

    def times(self, operation: Operation, side: str) -> list[float]:
        """Milliseconds of each call; [] when there was none."""
        return [sample.ms for sample in self.samples.get(operation, {}).get(side, [])]

    def cpu(self, operation: Operation, side: str) -> list[float]:
        """Milliseconds of processor time of each call."""
        return [s.cpu_ms for s in self.samples.get(operation, {}).get(side, []) if s.cpu_ms is not None]

    def document(self) -> dict[str, Any]:
        """Everything, for a JSON file."""
        return {
            "operations": [
                {
                    "group": operation.group,
                    "verb": operation.verb,
                    "ms": {side: [round(s.ms, 4) for s in found] for side, found in sides.items()},
                    "cpu_ms": {side: [round(c, 4) for c in self.cpu(operation, side)] for side in sides},
                }
                for operation, sides in self.samples.items()
            ],
            "peak_memory_kib": self.memory_kib,
            "figures": [{"group": o.group, "what": o.verb, "values": sides} for o, sides in self.figures.items()],
            "users": [asdict(crowd) for crowd in self.crowds],
            "failures": self.failures,
            "remarks": self.remarks,
        }


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed: with share 0.99, the greatest of fewer than 100."""
    if not values:
        return None
    return sorted(values)[math.ceil(share * len(values)) - 1]


def ratio(ours: Sequence[float], others: Sequence[float]) -> float | None:
    """The ratio of the medians; None when one of them is missing, or nothing can be divided by it."""
    above, below = median(ours), median(others)
    return above / below if above is not None and below else None
