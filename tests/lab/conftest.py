"""Runs in a guest (see tests/lab/__init__.py): what its tests have, and the lines by which the outside learns of them."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import pci
from tests.lab.machine import Machine

MACHINE = os.environ.get("RAILCNI_LAB", "")
collect_ignore_glob = [] if MACHINE else ["test_*.py"]
_RESULTS = Path("/out/results")


def _tell(**what: Any) -> None:
    if MACHINE:
        with _RESULTS.open("a") as file:
            file.write(json.dumps(what) + "\n")


@pytest.fixture
def say() -> Callable[[str], None]:
    """Lines for the report, below the name of the test: what it saw."""
    return lambda text: _tell(say=text)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """The guest as a node (tests.node.Node), as it was after its boot."""
    with Machine() as fresh:
        yield fresh


@pytest.fixture
def card(machine: Machine) -> Iterator[Path]:
    """The first card, which has no virtual functions yet."""
    found = pci.cards()[0]
    pci.set_vfs(found, 0)
    yield found
    pci.set_vfs(found, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker("lab")


def pytest_runtest_logstart(nodeid: str) -> None:
    _tell(begin=nodeid, at=time.monotonic())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        text = report.longreprtext
        if report.skipped and isinstance(report.longrepr, tuple):
            text = report.longrepr[2].removeprefix("Skipped: ")
        _tell(test=report.nodeid, outcome=report.outcome, text=text, seconds=report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _tell(test=report.nodeid, outcome="failed", text=report.longreprtext, seconds=0)
