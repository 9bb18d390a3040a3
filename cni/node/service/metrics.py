"""Metrics for Prometheus, in its text format 0.0.4. No I/O.

This project has its own writer, since the format has only three kinds of lines: prometheus_client would be one more
package in each bundle, with security updates for every node. A metric that Calico's IPAM also has gets Calico's name
(ipam_...), so that dashboards and alerts for Calico can be used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Self

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Family:
    """A metric with a value for each tuple of label values. Its type is gauge, unless a subclass has another."""

    kind = "gauge"

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self.name = name
        self._about = about
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {}

    def set(self, value: float, *labels: str) -> Self:
        """Set the sample with the label values `labels` to `value`; return the metric."""
        self._values[labels] = value
        return self

    def add(self, value: float, *labels: str) -> None:
        """Add `value` to the sample with the label values `labels`."""
        self._values[labels] = self._values.get(labels, 0.0) + value

    def replace(self, values: dict[tuple[str, ...], float]) -> None:
        """Replace all samples by `values`, whose keys are label values."""
        self._values = dict(values)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the metric in the text format; none when the metric has no value."""
        if self._values:
            about = self._about.replace("\\", "\\\\").replace("\n", "\\n")
            yield f"# HELP {self.name} {about}"
            yield f"# TYPE {self.name} {self.kind}"
            yield from self._samples()

    def _samples(self) -> Iterator[str]:
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_labels(self._labels, labels)} {_number(value)}"


class Counter(Family):
    """A metric whose values only grow."""

    kind = "counter"


class Histogram(Family):
    """A metric of durations, in seconds."""

    kind = "histogram"

    def __init__(self, name: str, about: str, *labels: str) -> None:
        super().__init__(name, about, *labels)
        self._counts: dict[tuple[str, ...], list[int]] = {}

    def observe(self, seconds: float, *labels: str) -> None:
        """Count one observation of the duration `seconds`."""
        self.add(seconds, *labels)
        counts = self._counts.setdefault(labels, [0] * (len(_BOUNDS) + 1))
        counts[bisect_left(_BOUNDS, seconds)] += 1

    def _samples(self) -> Iterator[str]:
        for labels, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip((*map(_number, _BOUNDS), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_labels((*self._labels, 'le'), (*labels, bound))} {total}"
            yield f"{self.name}_sum{_labels(self._labels, labels)} {_number(self._values[labels])}"
            yield f"{self.name}_count{_labels(self._labels, labels)} {total}"


class Metrics:
    def __init__(self) -> None:
        by = ("ippool", "node")
        self.in_use = Family("ipam_allocations_in_use", "Leases, by pool and node; told by the elected agent.", *by)
        self.pool_size = Family("ipam_ippool_size", "Addresses of a pool that may be given.", "ippool")
        self.candidates = Family("ipam_allocations_gc_candidates", "Leases seen dead that are not freed yet.", *by)
        reclaimed = "Leases that were freed, since their pods were gone."
        self.reclaimed = Counter("ipam_allocations_gc_reclamations", reclaimed, *by)
        self.pool_bytes = Family("railcni_ippool_object_bytes", "Size of a pool's object.", "ippool")
        self.pool_limit = Family("railcni_ippool_object_limit_bytes", "Size that the API server refuses.")
        restored = "Lost reservations and leases that were put back."
        self.restored = Counter("railcni_reservations_restored_total", restored)
        contended = "Addresses of this node's pods that another pod has too."
        # 0 from the start: PromQL's `increase` does not count an event with which a counter first appears
        self.contended = Counter("railcni_addresses_contended_total", contended).set(0)
        self.removed = Counter("railcni_reservations_removed_total", "Reservations without a lease removed.")
        self.pending = Family("railcni_pending_releases", "Releases of this node that are still to be made.")
        self.leader = Family("railcni_agent_leader", "1 in the agent that looks after nodes without one.")
        errors = "Errors of RDMA ports, by the counter's name in sysfs."
        self.errors = Counter("railcni_rdma_errors_total", errors, "device", "port", "counter")
        rate = "Rate of an active port of a physical NIC."
        self.rates = Family("railcni_rdma_rate_bytes_per_second", rate, "device", "port", "model", "link_layer")
        self.firmware = Family("railcni_rdma_device_info", "1 for a NIC in use.", "device", "model", "firmware")
        self.healthy = Family("railcni_installation_healthy", "1 when this node's installation is whole.")
        self.written = Counter("railcni_node_files_written_total", "Writes of a node's file.", "file")
        self.passes = Counter("railcni_collector_passes_total", "Passes of the collector.", "result")
        self.last = Family(
            "railcni_collector_last_success_timestamp_seconds", "When the last good pass ended, or the agent began."
        )
        asked = "Requests to the API server."
        self.durations = Histogram("railcni_api_request_duration_seconds", asked, "verb", "resource")
        self.conflicts = Counter("railcni_api_conflicts_total", "Changes that others forestalled.", "resource")
        self.failures = Counter("railcni_api_failures_total", "Requests that failed.", "verb", "resource")

    def page(self) -> tuple[int, str, str]:
        """Return HTTP status, content type and text of the page /metrics with all metrics."""
        return page(*(value for value in vars(self).values() if isinstance(value, Family)))


def page(*families: Family) -> tuple[int, str, str]:
    """Return HTTP status, content type and text of the page /metrics with `families`."""
    return 200, CONTENT_TYPE, "".join(f"{line}\n" for family in families for line in family.lines())


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}" if names else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
