"""Hosts of many kinds after one of their devices was in a pod, and came home in each way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import cells
from tests.hosts.judge import judge, parameters
from tests.hosts.scenes import HOST_DEVICE


@pytest.mark.parametrize("cell", parameters(cells.sample([HOST_DEVICE])))
def test_a_device_comes_home_with_all_that_it_had(
    cell: cells.Cell, executables: Path, request: pytest.FixtureRequest
) -> None:
    judge(cell, executables, request)


@pytest.mark.long
@pytest.mark.parametrize("cell", parameters(cells.every([HOST_DEVICE])))
def test_every_device_comes_home_with_all_that_it_had(
    cell: cells.Cell, executables: Path, request: pytest.FixtureRequest
) -> None:
    judge(cell, executables, request)
