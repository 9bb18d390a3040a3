"""The results as tables and as the document of the JSON file: no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from tests.bench.limits import LIMITS, crowd_verdict, memory_verdict
from tests.bench.samples import Operation, Results, median, percentile, ratio
from tests.bench.scenarios import GO, GROUPS, OURS


def times(results: Results, sides: Sequence[str]) -> Table:
    """Each operation with its medians, 99th percentiles and processor time on each side, and what ours are to Go's."""
    others = [side for side in sides if side not in (OURS, GO)]
    table = Table(title="milliseconds a call: median, 99th percentile, median of processor time", title_justify="left")
    table.add_column("operation", no_wrap=True)
    for heading in (OURS, "p99", "CPU", GO, "p99", "CPU", f"{OURS} / {GO}", "CPU"):
        table.add_column(heading, justify="right", no_wrap=True)
    for side in others:
        table.add_column(side, justify="right")
        table.add_column(f"{OURS} / {side}", justify="right")
    table.add_column("limit")
    for group, operations in groups(results):
        table.add_row(f"[bold]{group}", end_section=False)
        for operation in operations:
            table.add_row(
                f"  {operation.verb}", *_row(results, operation, others), end_section=operation is operations[-1]
            )
    return table


def _row(results: Results, operation: Operation, others: Sequence[str]) -> list[str]:
    cells = []
    for side in (OURS, GO):
        found = results.times(operation, side)
        cells += [figure(median(found)), figure(percentile(found, 0.99)), figure(median(results.cpu(operation, side)))]
    ours = results.times(operation, OURS)
    cells.append(figure(ratio(ours, results.times(operation, GO)), 2))
    cells.append(figure(ratio(results.cpu(operation, OURS), results.cpu(operation, GO)), 2))
    for side in others:
        found = results.times(operation, side)
        cells += [figure(median(found)), figure(ratio(ours, found), 2)]
    return [*cells, _coloured(LIMITS[operation].verdict(results) if operation in LIMITS else "")]


def groups(results: Results) -> list[tuple[str, list[Operation]]]:
    """The operations that were measured, by group."""
    found = [(group, [o for o in results.samples if o.group == group]) for group in GROUPS]
    return [(group, operations) for group, operations in found if operations]


def memory(results: Results, sides: Sequence[str]) -> Table:
    """Peak memory of an ADD."""
    table = Table(title="peak memory of an ADD, MB: median of its largest process", title_justify="left")
    table.add_column("network", no_wrap=True)
    for side in sides:
        table.add_column(side, justify="right")
    table.add_column("limit")
    for group, found in results.memory_kib.items():
        peaks = [median(found.get(side, [])) for side in sides]
        shown = [figure(None if peak is None else peak * 1024 / 1e6) for peak in peaks]
        table.add_row(group, *shown, _coloured(memory_verdict(results, group)))
    return table


def figures(results: Results, sides: Sequence[str]) -> Table:
    """What is no time."""
    table = Table(title="failures and rates: medians, of failures the sum", title_justify="left")
    table.add_column("what", no_wrap=True)
    for side in sides:
        table.add_column(side, justify="right")
    table.add_column("limit")
    for operation, found in results.figures.items():
        whole = operation.verb.startswith("failures")
        shown = [figure(sum(v) if whole and v else median(v), 0) for v in (found.get(side, []) for side in sides)]
        verdict = LIMITS[operation].verdict(results) if operation in LIMITS else ""
        table.add_row(f"{operation.group}: {operation.verb}", *shown, _coloured(verdict))
    return table


def crowds(results: Results) -> Table:
    """The users' case in each store."""
    table = Table(title="pods with 16 networks each as 16 nodes, by 32 workers at once", title_justify="left")
    table.add_column("store", no_wrap=True)
    heads = ("calls", "ADD, s", "ms median", "p99", "DEL, s", "ms median", "p99", "failed", "wrong", "left", "audit")
    for heading in heads:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("of these four")
    for crowd in results.crowds:
        cells = [f"{crowd.calls:,}"]
        for seconds, ms in ((crowd.add_s, crowd.add_ms), (crowd.del_s, crowd.del_ms)):
            cells += [figure(seconds), figure(median(ms)), figure(percentile(ms, 0.99))]
        cells += [f"{count:,}" for count in (crowd.failed, crowd.wrong, crowd.left)]
        cells.append(crowd.audit if crowd.audit == "clean" else "not clean")
        table.add_row(f"{crowd.store}, {crowd.what}", *cells, _coloured(crowd_verdict(crowd)))
    return table


def document(results: Results, facts: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Everything, for the JSON file: the verdicts too."""
    verdicts = {f"{o.group}: {o.verb}": limit.verdict(results) for o, limit in LIMITS.items()}
    verdicts |= {f"peak memory of an ADD: {g}": memory_verdict(results, g) for g in results.memory_kib}
    verdicts |= {f"users: {c.store}, {c.what}": crowd_verdict(c) for c in results.crowds}
    verdicts = {what: verdict for what, verdict in verdicts.items() if verdict}
    return {"facts": dict(facts), "rounds": rounds, "limits": verdicts, **results.document()}


def figure(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _coloured(verdict: str) -> str:
    if verdict.endswith("missed"):
        return f"[bold red]{verdict}"
    return f"[green]{verdict}" if verdict else ""
