"""The faults that tests of the tests plant: each edit must fit the code as it is, or nothing is tried by it.

They are read from the source of all tests, so that no table is left out.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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
def test_a_planted_fault_fits_the_code_in_one_place(place: str) -> None:
    file, old, new = PLANTED[place]
    planted, count = re.subn(old, new, (ROOT / file).read_text())
    assert count == 1, f"{file} has {count} times: {old}"
    ast.parse(planted)


def test_the_edits_of_all_tests_are_found() -> None:
    """By another way: their modules import the class."""
    importing = [p.name for p in (ROOT / "tests").rglob("*.py") if re.search(r"import .*\bEdit\b", p.read_text())]
    assert {place.partition(":")[0] for place in PLANTED} == set(importing)
    assert len(PLANTED) > 20
