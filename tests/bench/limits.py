"""What our times and memory may be, and whether they are: no I/O. A limit that is missed fails nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench import scenarios as named
from tests.bench.samples import Crowd, Operation, Results, median, ratio
from tests.bench.scenarios import GO, IPPOOLS, OURS, ipam_group

_ROUNDS = 100  # fewer tell nothing of a difference of a twentieth


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


@dataclass(frozen=True)
class _Both:
    """Two limits of one operation."""

    first: Limit
    second: Limit

    def verdict(self, results: Results) -> str:
        """Both, and at the end "missed" when one of them is."""
        said = [limit.verdict(results) for limit in (self.first, self.second)]
        return "; ".join(sorted(filter(None, said), key=lambda text: text.endswith("missed")))


def _cpu_to_go(operation: Operation) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.cpu(operation, OURS), results.cpu(operation, GO))


def _to_go(operation: Operation, side: str = OURS) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.times(operation, side), results.times(operation, GO))


def _above_move(results: Results) -> float | None:
    add, move = (
        median(results.times(Operation(named.HOST_DEVICE, "ADD"), OURS)),
        median(results.times(named.MOVE, OURS)),
    )
    return None if add is None or move is None else add - move


def _to_other(operation: Operation, other: Operation) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.times(operation, OURS), results.times(other, OURS))


def _above_row_without(results: Results) -> float | None:
    """How many times ADD / Go of the row whose caller has no variables, which the same rounds measure; None for few rounds."""
    rows = [(Operation(group, "ADD"), side) for group in (named.AS_CONTAINERD, named.POOL) for side in (OURS, GO)]
    rounds = list(zip(*(results.times(*row) for row in rows), strict=False))
    times = [ours / go / (ours_without / go_without) for ours, go, ours_without, go_without in rounds]
    return median(times) if len(times) >= _ROUNDS else None


def _noted(operation: Operation) -> Callable[[Results], float | None]:
    """The median of what is no time; of failures the sum is what counts."""
    failures = operation.verb.startswith("failures")

    def measured(results: Results) -> float | None:
        found = results.noted(operation, OURS)
        return sum(found) if found and failures else median(found)

    return measured


LIMITS: dict[Operation, Limit | _Both] = {
    Operation(named.POOL, "VERSION"): Limit(0.25, _to_go(Operation(named.POOL, "VERSION"))),
    Operation(named.POOL, "ADD"): _Both(Limit(0.65, _to_go(Operation(named.POOL, "ADD"))),
        Limit(0.6, _cpu_to_go(Operation(named.POOL, "ADD")), "", "CPU")),
    Operation(named.AS_CONTAINERD, "ADD"): Limit(1.05, _above_row_without, "", "of ADD / Go of the row without"),
    Operation(named.POOL, "CHECK"): Limit(0.5, _to_go(Operation(named.POOL, "CHECK"))),
    Operation(named.POOL, "DEL"): Limit(0.5, _to_go(Operation(named.POOL, "DEL"))),
    Operation(named.POOL_COLD, "ADD"): Limit(5.0, _to_go(Operation(named.POOL_COLD, "ADD"))),
    Operation(named.AT_ONCE, "ADD"): Limit(0.7, _to_go(Operation(named.AT_ONCE, "ADD"))),
    Operation(named.HOST_DEVICE, "ADD"): _Both(Limit(1.0, _to_go(Operation(named.HOST_DEVICE, "ADD"))),
        Limit(8, _above_move, " ms", "above the bare move")),
    named.WORKERS_IDLE: Limit(100, _noted(named.WORKERS_IDLE)),
    named.WORKERS_BUSY: Limit(110, _noted(named.WORKERS_BUSY)),
    Operation(ipam_group(named.FULL), "ADD"): Limit(1.2,
        _to_other(Operation(ipam_group(named.FULL), "ADD"), Operation(ipam_group(0), "ADD")), "", "to 0 leases"),
    Operation(named.KUBE, "ADD"): Limit(0.3, _to_go(Operation(named.KUBE, "ADD"))),
    Operation(named.KUBE_NODE, "ADD"): _Both(Limit(0.05, _to_go(Operation(named.KUBE_NODE, "ADD"))),
        Limit(0.3, _to_go(Operation(named.KUBE_NODE, "ADD"), IPPOOLS), "", f"{IPPOOLS} / {GO}")),
    Operation(named.KUBE_NODES, "ADD"): Limit(0.5, _to_go(Operation(named.KUBE_NODES, "ADD"))),
    Operation(named.KUBE_FULL, "ADD"): Limit(0.03, _to_go(Operation(named.KUBE_FULL, "ADD"))),
    named.KUBE_FILLED: Limit(1.5, _to_other(named.KUBE_FILLED, named.KUBE_EMPTY), "", "to the empty pool"),
    named.ETCD_FILLED: Limit(1.5, _to_other(named.ETCD_FILLED, named.ETCD_EMPTY), "", "to the empty pool"),
    named.ETCD_CROWDED: Limit(10, _to_other(named.ETCD_CROWDED, named.ETCD_EMPTY), "", "to the empty pool"),
}  # fmt: skip
_FIGURES = (
    *(
        (Operation(g, f"failures of {v}"), 0, False)
        for g in (named.KUBE_NODE, named.KUBE_NODES, named.KUBE_FULL)
        for v in ("ADD", "DEL")
    ),
    (named.ETCD_CLAIMS, 2_500, True),
)
LIMITS |= {operation: Limit(bound, _noted(operation), least=least) for operation, bound, least in _FIGURES}
MEMORY_MB = 30.0


def memory_verdict(results: Results, group: str) -> str:
    """The same for the peak memory of an ADD, in MB of a million bytes."""
    peak = median(results.memory_kib.get(group, {}).get(OURS, []))
    return Limit(MEMORY_MB, lambda _: None if peak is None else peak * 1024 / 1e6, " MB").verdict(results)


def crowd_verdict(crowd: Crowd) -> str:
    """Of failures, of addresses that two have, of what is left and of what an audit finds there may be none."""
    return _known(0, crowd.failed + crowd.wrong + crowd.left + (crowd.audit != "clean"))


def crowd_ratios(crowds: Sequence[Crowd]) -> list[str]:
    """What the ADDs over AddressLeases took, of one range beside many, and beside an earlier version over IPPools."""
    took = {(crowd.store, crowd.what): crowd.add_s for crowd in crowds}
    shared = took.get((named.ADDRESS_LEASES, named.SHARED))
    if shared is None:
        return []
    found = [_known(25, shared, " s", "it took")]
    others = [((named.ADDRESS_LEASES, named.RANGES), 1.3)]
    others += [(key, 0.45) for key in took if key[0].startswith(f"{named.SHARED_POOLS}, ") and key[1] == named.SHARED]
    for key, bound in others:
        if key in took:
            found.append(_known(bound, shared / took[key], "", f"to {', '.join(key)}"))
    return [f"{crowds[0].calls:,} ADDs over {named.ADDRESS_LEASES}, {named.SHARED}: {text}" for text in found]


def _known(bound: float, value: float, unit: str = "", of: str = "") -> str:
    """The verdict on a `value` that stands in no sample."""
    return Limit(bound, lambda _: value, unit, of).verdict(Results())
