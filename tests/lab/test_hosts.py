"""The matrix of tests/hosts on a kernel that has bonds, VLANs, ipvlans and dummies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.hosts import cells
from tests.node import BIN

MACHINES = ("hosts",)
_outcomes: Counter[str] = Counter()


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cells.name(cell)) for cell in cells.needy()])
def test_a_host_is_as_it_was(cell: cells.Cell) -> None:
    verdict = cells.run(cell, BIN)
    _outcomes[verdict.outcome] += 1
    if verdict.outcome == cells.SKIPPED:
        pytest.skip(verdict.why)
    if verdict.outcome == cells.DIFFERENT:
        pytest.fail(f"{cells.name(cell)}\n{verdict}", pytrace=False)


def test_no_cell_is_skipped(say: Callable[[str], None]) -> None:
    say(", ".join(f"{count} {outcome}" for outcome, count in sorted(_outcomes.items())))
    assert not _outcomes[cells.SKIPPED]
