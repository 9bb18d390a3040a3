"""Tests of tests/blackbox whose link type or device the lab has: run by a line of a table, with fixtures of the lab's own."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

Case = tuple[Callable[..., None], dict[str, Any]]  # the test, and its parameters


def parameters(cases: list[Case]) -> list[Any]:
    """The cases as parameters, by the name of the test and the values of its parameters."""
    return [
        pytest.param(test, given, id=f"{test.__name__.removeprefix('test_')}: {_words(given)}") for test, given in cases
    ]


def _words(given: dict[str, Any]) -> str:
    words: list[str] = []
    for value in given.values():
        if isinstance(value, dict):
            value = value["type"]
        words += value if isinstance(value, tuple) else [str(getattr(value, "__name__", value))]
    return " ".join(words)


def run(test: Callable[..., None], given: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """Call `test` with the parameters `given` and with fixtures. Skipped for a package that is not installed, and for
    nothing else: what it needs of a kernel is here."""
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "skipif" and mark.args[0]:
            pytest.skip(mark.kwargs["reason"])
    names = signature(test).parameters
    try:
        test(**{name: given[name] if name in given else request.getfixturevalue(name) for name in names})
    except pytest.skip.Exception as why:
        pytest.fail(f"it was skipped: {why}", pytrace=False)
