"""What our times and memory may be, and whether they are: no I/O. A limit that is missed fails nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.samples import Crowd, Operation, Results, median, ratio
from tests.bench.scenarios import (
    AT_ONCE,
    ETCD_CLAIMS,
    ETCD_CROWDED,
    ETCD_EMPTY,
    ETCD_FILLED,
    FULL,
    GO,
    HOST_DEVICE,
    KUBE,
    KUBE_FULL,
    KUBE_NODE,
    KUBE_NODES,
    MOVE,
    OURS,
    POOL,
    ipam_group,
)


@dataclass(frozen=True)
class Limit:
    """`measured` is at most `bound`, in `unit`, or `least`; `of` says what is compared when it is not ours with Go's."""

    bound: float
    measured: Callable[[Results], float | None]
    unit: str = ""
    of: str = ""
    least: bool = False

    def verdict(self, results: Results) -> str:
        """The limit and "met" or "missed", with the figure where no other column shows it; "" when it is not known."""
        value = self.measured(results)
        if value is None:
            return ""
        said = "met" if (value >= self.bound if self.least else value <= self.bound) else "missed"
        figure = f"{self.of} {value:.2f}{self.unit}, " if self.of else ""
        return f"{figure}at {'least' if self.least else 'most'} {self.bound:g}{self.unit}: {said}"


def _to_go(operation: Operation) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.times(operation, OURS), results.times(operation, GO))


def _above_move(results: Results) -> float | None:
    add, move = median(results.times(Operation(HOST_DEVICE, "ADD"), OURS)), median(results.times(MOVE, OURS))
    return None if add is None or move is None else add - move


def _to_other(operation: Operation, other: Operation) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.times(operation, OURS), results.times(other, OURS))


def _noted(operation: Operation) -> Callable[[Results], float | None]:
    """The median of what is no time; of failures the sum is what counts."""
    failures = operation.verb.startswith("failures")

    def measured(results: Results) -> float | None:
        found = results.noted(operation, OURS)
        return sum(found) if found and failures else median(found)

    return measured


LIMITS = {
    Operation(POOL, "VERSION"): Limit(3.0, _to_go(Operation(POOL, "VERSION"))),
    Operation(POOL, "ADD"): Limit(2.0, _to_go(Operation(POOL, "ADD"))),
    Operation(POOL, "CHECK"): Limit(2.0, _to_go(Operation(POOL, "CHECK"))),
    Operation(POOL, "DEL"): Limit(1.4, _to_go(Operation(POOL, "DEL"))),
    Operation(AT_ONCE, "ADD"): Limit(1.8, _to_go(Operation(AT_ONCE, "ADD"))),
    Operation(HOST_DEVICE, "ADD"): Limit(15, _above_move, " ms", "above the bare move"),
    Operation(ipam_group(FULL), "ADD"): Limit(
        1.2, _to_other(Operation(ipam_group(FULL), "ADD"), Operation(ipam_group(0), "ADD")), "", "to 0 leases"
    ),
    Operation(KUBE, "ADD"): Limit(0.75, _to_go(Operation(KUBE, "ADD"))),
    Operation(KUBE_NODE, "ADD"): Limit(0.25, _to_go(Operation(KUBE_NODE, "ADD"))),
    Operation(KUBE_NODES, "ADD"): Limit(0.5, _to_go(Operation(KUBE_NODES, "ADD"))),
    Operation(KUBE_FULL, "ADD"): Limit(0.2, _to_go(Operation(KUBE_FULL, "ADD"))),
    ETCD_FILLED: Limit(1.5, _to_other(ETCD_FILLED, ETCD_EMPTY), "", "to the empty pool"),
    ETCD_CROWDED: Limit(10, _to_other(ETCD_CROWDED, ETCD_EMPTY), "", "to the empty pool"),
}
_FIGURES = (
    (Operation(KUBE, "requests of ADD"), 3, False),
    *((Operation(g, f"failures of {v}"), 0, False) for g in (KUBE_NODE, KUBE_NODES, KUBE_FULL) for v in ("ADD", "DEL")),
    (ETCD_CLAIMS, 1_000, True),
)
LIMITS |= {operation: Limit(bound, _noted(operation), least=least) for operation, bound, least in _FIGURES}
MEMORY_MB = 30.0


def memory_verdict(results: Results, group: str) -> str:
    """The same for the peak memory of an ADD, in MB of a million bytes."""
    peak = median(results.memory_kib.get(group, {}).get(OURS, []))
    return Limit(MEMORY_MB, lambda _: None if peak is None else peak * 1024 / 1e6, " MB").verdict(results)


def crowd_verdict(crowd: Crowd) -> str:
    """Of failures, of addresses that two have, of what is left and of what an audit finds there may be none."""
    value = crowd.failed + crowd.wrong + crowd.left + (crowd.audit != "clean")
    return Limit(0, lambda _: value).verdict(Results())
