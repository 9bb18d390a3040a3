"""REGRESSIONS.md and SECURITY.md: each row has its tests, and they exist; in the former, those that are expected to fail are
said to be "not yet". The faults that tests of the tests plant: each edit fits the code as it is."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OWN = ("blackbox/test_regressions.py", "agent/test_regressions_cluster.py")
WHEREABOUTS = [
    "110", "141", "176", "246", "291", "305", "313", "393", "401", "403", "446", "484", "498", "507", "518", "546",
    "550", "558", "576", "601", "666", "722",
]  # fmt: skip


def rows_of(document: str, head: str) -> list[list[str]]:
    """The rows of the tables whose head begins with `head`, as cells."""
    found: list[list[str]] = []
    for table in document.split("\n\n"):
        if table.startswith(f"| {head}"):
            lines = table.splitlines()[2:]
            found += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line]
    return found


TEXT = (TESTS / "REGRESSIONS.md").read_text()
ROWS = rows_of(TEXT, "upstream, ")
CLAIMS = rows_of((TESTS.parent / "SECURITY.md").read_text(), "who ")


def named(cell: str) -> list[tuple[str, str]]:
    """The tests in a cell, as (file below tests/, function)."""
    return re.findall(r"`([\w/]+\.py)::(\w+)`", cell)


@cache
def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((TESTS / file).read_text())
    return {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@cache
def assigned(file: str) -> dict[str, str]:
    """What the names of a module stand for, as source."""
    found = [node for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.Assign)]
    return {ast.unparse(target): ast.unparse(node.value) for node in found for target in node.targets}


def expected_to_fail(file: str, name: str) -> bool:
    """Whether the test, or one of its parameters, is marked as an expected failure."""
    meaning = assigned(file)
    text = " ".join(ast.unparse(decorator) for decorator in functions(file)[name].decorator_list)
    return "xfail" in text or any("xfail" in meaning.get(word, "") for word in re.findall(r"\w+", text))


@pytest.mark.parametrize("row", [*ROWS, *CLAIMS], ids=lambda row: row[0].partition(":")[0])
def test_every_row_has_four_cells_and_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 4 and all(row)
    tests = named(row[3])
    assert tests and re.sub(r"`[^`]*`|\s", "", row[3]) == ""
    assert [f"{file}::{name}" for file, name in tests if name not in functions(file)] == []


@pytest.mark.parametrize("own", OWN)
def test_every_test_of_an_upstream_fault_is_in_a_row_that_names_the_same_issue(own: str) -> None:
    listed = {name: row[0] for row in ROWS for file, name in named(row[3]) if file == own}
    assert sorted(listed) == sorted(functions(own))
    for name, function in functions(own).items():
        issues = set(re.findall(r"#\d+", ast.get_docstring(function) or ""))
        assert issues, name
        rows = " ".join(row[0] for row in ROWS if (own, name) in named(row[3]))
        assert issues & set(re.findall(r"#\d+", rows)), name


@pytest.mark.parametrize("number", WHEREABOUTS)
def test_every_issue_of_whereabouts_on_the_list_has_a_test_that_names_it_or_is_said_to_have_none(number: str) -> None:
    issue = re.compile(rf"#{number}\b")
    rows = [row for row in ROWS if row[0].startswith("whereabouts ") and issue.search(row[0])]
    naming = [
        name
        for row in rows
        for file, name in named(row[3])
        if issue.search(ast.get_docstring(functions(file)[name]) or "")
    ]
    without = TEXT[TEXT.index("## No fault") :]
    assert bool(naming) != bool(issue.search(without) and not rows)


def test_what_does_not_hold_yet_is_said_in_its_row_and_nothing_else_is() -> None:
    for row in ROWS:
        failing = [name for file, name in named(row[3]) if expected_to_fail(file, name)]
        assert bool(failing) == ("**not yet**" in row[2]), row[0]


ROOT = Path(__file__).resolve().parents[2]


def edits() -> Iterator[tuple[str, list[str]]]:
    """(where it stands, its arguments) of each call of tests.faults.tree.Edit. ValueError unless all are literals."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        if "Edit(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Edit":
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                yield f"{path.name}:{node.lineno}", [str(ast.literal_eval(each)) for each in arguments]


PLANTED = dict(edits())


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_fault_changes_the_code_in_one_place(place: str) -> None:
    file, old, new = PLANTED[place]
    text = (ROOT / file).read_text()
    planted, count = re.subn(old, new, text)
    assert count == 1, f"{file} has {count} times: {old}"
    assert _without_texts(planted) != _without_texts(text), f"{old} changes a text of {file}"


def _without_texts(code: str) -> str:
    """The syntax tree of `code` with empty docstrings, in which a planted fault would change nothing."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant("")
    return ast.dump(tree)


def test_the_edits_of_all_tests_are_found() -> None:
    """By another way: their modules import the class."""
    importing = [p.name for p in (ROOT / "tests").rglob("*.py") if re.search(r"import .*\bEdit\b", p.read_text())]
    assert {place.partition(":")[0] for place in PLANTED} == set(importing)
    assert len(PLANTED) > 20
