"""The matrix of tests/hosts on a kernel that has bonds, VLANs, ipvlans and dummies."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.hosts import cells
from tests.hosts.judge import parameters
from tests.node import BIN

MACHINES = ("hosts",)
_outcomes: Counter[str] = Counter()


@pytest.mark.parametrize("cell", parameters(cells.needy()))
def test_a_host_is_as_it_was(cell: cells.Cell) -> None:
    judge(cell, cells.run(cell, BIN), _outcomes)


@pytest.mark.long
@pytest.mark.parametrize("cell", parameters(cells.every_needy()))
def test_every_host_is_as_it_was(cell: cells.Cell) -> None:
    judge(cell, cells.run(cell, BIN), _outcomes)


def test_no_cell_differs_or_is_skipped(say: Callable[[str], None]) -> None:
    none_differs(_outcomes, say)


def judge(cell: cells.Cell, verdict: cells.Verdict, outcomes: Counter[str]) -> None:
    """Count the cell, and fail with what differs, or with the reason why it was skipped."""
    outcomes[verdict.outcome] += 1
    if verdict.outcome in (cells.DIFFERENT, cells.SKIPPED):
        pytest.fail(f"{cells.name(cell)}\n{verdict}{verdict.why}", pytrace=False)


def none_differs(outcomes: Counter[str], say: Callable[[str], None]) -> None:
    """Say how many cells there were, and what came of them."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    say(f"{outcomes.total()} cells: {outcomes[cells.DIFFERENT]} with a difference; {counts}")
    assert not outcomes[cells.DIFFERENT] and not outcomes[cells.SKIPPED]
