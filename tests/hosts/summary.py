"""One paragraph at the end of a run of pytest: how many cells there were, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.hosts.cells import DIFFERENT, SKIPPED, Verdict

PROPERTY = "hosts"


def said(verdict: Verdict) -> list[str]:
    """What a test's report carries of its cell."""
    return [verdict.outcome, verdict.why]


def lines(reports: Iterable[Any]) -> list[str]:
    """The summary of the reports that have a cell; [] when none has."""
    found = [value for report in reports for name, value in report.user_properties if name == PROPERTY]
    outcomes = Counter(outcome for outcome, _ in found)
    run = sum(count for outcome, count in outcomes.items() if outcome != SKIPPED)
    if not found:
        return []
    parts = [f"{count} {outcome}" for outcome, count in sorted(outcomes.items()) if outcome not in (SKIPPED, DIFFERENT)]
    first = f"hosts: {run} cells run: {outcomes[DIFFERENT]} with a difference, {', '.join(parts) or 'none without'}"
    skipped = Counter(why for outcome, why in found if outcome == SKIPPED)
    return [first, *(f"hosts: {count} cells skipped: {why}" for why, count in sorted(skipped.items()))]
