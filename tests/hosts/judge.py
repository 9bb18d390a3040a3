"""What the tests of the two kinds of plugins share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.inject import unavailable
from tests.hosts import cells, summary
from tests.hosts.cells import Cell


def parameters(found: list[Cell]) -> list[Any]:
    """The cells as parameters, by their names."""
    return [pytest.param(cell, id=cells.name(cell)) for cell in found]


def judge(cell: Cell, executables: Path, request: pytest.FixtureRequest) -> None:
    """Run a cell; skip it with the reason, or fail with what differs."""
    if unavailable():
        pytest.skip(unavailable())
    verdict = cells.run(cell, executables)
    request.node.user_properties.append((summary.PROPERTY, summary.said(verdict)))
    if verdict.outcome == cells.SKIPPED:
        pytest.skip(verdict.why)
    if verdict.outcome == cells.DIFFERENT:
        pytest.fail(f"{cells.name(cell)}\n{verdict}", pytrace=False)
