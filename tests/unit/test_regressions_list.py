"""REGRESSIONS.md: each row has its tests, they exist, and those that are expected to fail are said to be "not yet"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OWN = "blackbox/test_regressions.py"
TEXT = (TESTS / "REGRESSIONS.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| upstream, ")
]


def named(cell: str) -> list[tuple[str, str]]:
    """The tests in a cell, as (file below tests/, function)."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", cell)


def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((TESTS / file).read_text())
    return {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def expected_to_fail(file: str, name: str) -> bool:
    """Whether the test, or one of its parameters, is marked as an expected failure."""
    assigned = [node for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.Assign)]
    meaning = {ast.unparse(target): ast.unparse(node.value) for node in assigned for target in node.targets}
    text = " ".join(ast.unparse(decorator) for decorator in functions(file)[name].decorator_list)
    return "xfail" in text or any("xfail" in meaning.get(word, "") for word in re.findall(r"\w+", text))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].partition(":")[0])
def test_every_row_has_four_cells_and_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4 and all(row)
    tests = named(row[3])
    assert tests and re.sub(r"`[^`]*`|\s", "", row[3]) == ""
    assert [f"{file}::{name}" for file, name in tests if name not in functions(file)] == []


def test_every_test_of_an_upstream_fault_is_in_a_row_that_names_the_same_issue() -> None:
    listed = {name: row[0] for row in ROWS for file, name in named(row[3]) if file == OWN}
    assert sorted(listed) == sorted(functions(OWN))
    for name, function in functions(OWN).items():
        issues = set(re.findall(r"#\d+", ast.get_docstring(function) or ""))
        assert issues, name
        rows = " ".join(row[0] for row in ROWS if (OWN, name) in named(row[3]))
        assert issues & set(re.findall(r"#\d+", rows)), name


def test_what_does_not_hold_yet_is_said_in_its_row_and_nothing_else_is() -> None:
    for row in ROWS:
        failing = [name for file, name in named(row[3]) if expected_to_fail(file, name)]
        assert bool(failing) == ("**not yet**" in row[2]), row[0]
