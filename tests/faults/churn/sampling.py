"""Samples of a churn over time, and whether they are flat."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.node import STATE, Node

_LEAST = 12  # samples before flatness can be told


@dataclass(frozen=True)
class Sample:
    """What stood at rest after `seconds`. `unowned` counts what no sandbox that stands can account for; files are open in
    the workers; the store and the state directory are in bytes; `netns` counts namespaces; `calls` is all so far."""

    seconds: float
    calls: int
    leases: int
    links: int
    records: int
    unowned: int
    files: int
    store: int
    state: int
    netns: int
    call_milliseconds: float


LIMITS: dict[str, Callable[[float], float]] = {  # what the later part may have above the earlier one
    "leases": lambda before: 0.25 * before + 8,
    "links": lambda before: 0.25 * before + 8,
    "records": lambda before: 0.25 * before + 16,
    "unowned": lambda before: 0.25 * before + 8,
    "files": lambda before: 0.0,
    "store": lambda before: 0.1 * before,
    "state": lambda before: 0.25 * before + 65536,
    "netns": lambda before: 0.25 * before + 8,
    "call_milliseconds": lambda before: 0.5 * before + 20,
}


def open_files(pids: Sequence[int]) -> int:
    """How many files the processes have open."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def store_bytes(node: Node) -> int:
    return node.path(f"{STATE}/leases.db").stat().st_size


def state_bytes(node: Node) -> int:
    """What the files of the state directory take, those that are hidden too."""
    return sum(_size(p) for p in node.path(STATE).rglob("*"))


def _size(path: Path) -> int:
    return 0 if path.is_dir() else path.lstat().st_size


def growth(samples: Sequence[Sample]) -> list[str]:
    """What grew: the median of the last third of the samples against that of the second. ValueError: too few samples."""
    if len(samples) < _LEAST:
        raise ValueError(f"{len(samples)} samples are too few to tell: want {_LEAST} or more")
    third = len(samples) // 3
    faults = []
    for name, allowed in LIMITS.items():
        values = [float(asdict(sample)[name]) for sample in samples]
        before, after = _median(values[third : 2 * third]), _median(values[2 * third :])
        if after - before > allowed(before):
            faults.append(f"{name} grew from {before:g} to {after:g} (medians of the second and the last third)")
    return faults


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
