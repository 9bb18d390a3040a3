"""What our times and memory may be, and whether they are: no I/O. A limit that is missed fails nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.samples import Operation, Results, median, ratio
from tests.bench.scenarios import AT_ONCE, FULL, GO, HOST_DEVICE, MOVE, OURS, POOL, ipam_group


@dataclass(frozen=True)
class Limit:
    """`measured` is at most `most`, in `unit`; `of` says what is compared when it is not ours with Go's."""

    most: float
    measured: Callable[[Results], float | None]
    unit: str = ""
    of: str = ""

    def verdict(self, results: Results) -> str:
        """The limit and "met" or "missed", with the figure where no other column shows it; "" when it is not known."""
        value = self.measured(results)
        if value is None:
            return ""
        said = "met" if value <= self.most else "missed"
        figure = f"{self.of} {value:.2f}{self.unit}, " if self.of else ""
        return f"{figure}at most {self.most:g}{self.unit}: {said}"


def _to_go(operation: Operation) -> Callable[[Results], float | None]:
    return lambda results: ratio(results.times(operation, OURS), results.times(operation, GO))


def _above_move(results: Results) -> float | None:
    add, move = median(results.times(Operation(HOST_DEVICE, "ADD"), OURS)), median(results.times(MOVE, OURS))
    return None if add is None or move is None else add - move


def _full_to_empty(results: Results) -> float | None:
    full, empty = (results.times(Operation(ipam_group(leases), "ADD"), OURS) for leases in (FULL, 0))
    return ratio(full, empty)


LIMITS = {
    Operation(POOL, "VERSION"): Limit(3.0, _to_go(Operation(POOL, "VERSION"))),
    Operation(POOL, "ADD"): Limit(2.0, _to_go(Operation(POOL, "ADD"))),
    Operation(POOL, "CHECK"): Limit(2.0, _to_go(Operation(POOL, "CHECK"))),
    Operation(POOL, "DEL"): Limit(1.4, _to_go(Operation(POOL, "DEL"))),
    Operation(AT_ONCE, "ADD"): Limit(1.8, _to_go(Operation(AT_ONCE, "ADD"))),
    Operation(HOST_DEVICE, "ADD"): Limit(15, _above_move, " ms", "above the bare move"),
    Operation(ipam_group(FULL), "ADD"): Limit(1.2, _full_to_empty, "", "to 0 leases"),
}
MEMORY_MB = 30.0


def memory_verdict(results: Results, group: str) -> str:
    """The same for the peak memory of an ADD, in MB of a million bytes."""
    peak = median(results.memory_kib.get(group, {}).get(OURS, []))
    return Limit(MEMORY_MB, lambda _: None if peak is None else peak * 1024 / 1e6, " MB").verdict(results)
