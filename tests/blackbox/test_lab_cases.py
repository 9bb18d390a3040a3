"""The tests that the lab borrows from here: its machines run too seldom to be the first to notice a renamed one."""

import importlib
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

LAB = sorted(path.stem for path in (Path(__file__).parents[1] / "lab").glob("test_*.py"))


def parametrized(test: Any) -> set[str]:
    """The names that the marks of `test` give values to."""
    names: set[str] = set()
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            given = mark.args[0]
            names |= {name.strip() for name in (given.split(",") if isinstance(given, str) else given)}
    return names


@pytest.mark.parametrize("name", LAB)
def test_a_test_of_the_lab_can_be_imported_and_gives_a_borrowed_test_each_of_its_parameters(name: str) -> None:
    module = importlib.import_module(f"tests.lab.{name}")
    cases = [case for case in getattr(module, "CASES", ()) if isinstance(case, tuple) and callable(case[0])]
    for test, given in cases:
        assert parametrized(test) <= set(given) <= set(signature(test).parameters), test.__name__
