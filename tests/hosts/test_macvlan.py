"""Hosts of many kinds after an attachment by macvlan, in each mode, that ended in each way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import cells
from tests.hosts.judge import judge, parameters


@pytest.mark.parametrize("cell", parameters(cells.sample(cells.MACVLANS)))
def test_a_master_and_its_host_are_as_they_were(
    cell: cells.Cell, executables: Path, request: pytest.FixtureRequest
) -> None:
    judge(cell, executables, request)


@pytest.mark.long
@pytest.mark.parametrize("cell", parameters(cells.every(cells.MACVLANS)))
def test_every_master_and_its_host_are_as_they_were(
    cell: cells.Cell, executables: Path, request: pytest.FixtureRequest
) -> None:
    judge(cell, executables, request)
