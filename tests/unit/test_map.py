"""Files and modules that prose names exist: in the map, in CONTRIBUTING.md, and in docstrings and comments of the product."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ipam import keys

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/development.md", "CONTRIBUTING.md")
FILE = re.compile(r"(?<![\w./<-])(?:\w[\w-]*/)*\w[\w-]*\.(?:py|c)\b")
MODULE = re.compile(r"(?<![\w./-])(?:cni|ipam)(?:\.[a-z_]\w*)+(?!\S*=)")
OF_CONFIGURATION = {key.name.partition(".")[0] for key in (*keys.RANGE_KEYS, *keys.IPAM_KEYS, *keys.ACCEPTED_KEYS)}
"""`ipam.range` is a key of a network, and no module."""


@cache
def files() -> frozenset[str]:
    """All that may be named: files below the folders with code, and every end of their paths."""
    found = [path for top in ("cni", "ipam", "tests") for path in (ROOT / top).rglob("*.*")]
    parts = [path.relative_to(ROOT).parts for path in found]
    return frozenset("/".join(part[i:]) for part in parts for i in range(len(part)))


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a source file."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
    yield from (t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT)


LISTED = re.compile(r"(\w+(?:, \w+)*)  +\S")  # a line of a list of modules


SOURCES = sorted(str(path.relative_to(ROOT)) for top in ("cni", "ipam") for path in (ROOT / top).rglob("*.py"))


def unknown_module(name: str) -> bool:
    """Whether the dotted `name` is neither a module nor an attribute of one."""
    parts = name.split(".")
    if parts[0] == "ipam" and parts[1] in OF_CONFIGURATION:
        return False
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        if file.is_file():
            return end < len(parts) and not re.search(rf"\b{parts[end]}\b", file.read_text())
    return True


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_the_map_names_exists(page: str) -> None:
    named = set(FILE.findall((ROOT / page).read_text()))
    assert not named - files()


@pytest.mark.parametrize("source", SOURCES)
def test_docstrings_and_comments_name_files_and_modules_that_exist(source: str) -> None:
    for text in prose(ROOT / source):
        assert not {name for name in FILE.findall(text) if name.endswith(".py")} - files()  # .c: the kernel's
        assert not [name for name in MODULE.findall(text) if unknown_module(name)]


@pytest.mark.parametrize("source", [name for name in SOURCES if name.endswith("/__init__.py")])
def test_the_modules_that_a_folder_lists_are_in_it(source: str) -> None:
    folder = (ROOT / source).parent
    lines = (ast.get_docstring(ast.parse((ROOT / source).read_text())) or "").splitlines()
    named = [name for line in lines if (found := LISTED.match(line)) for name in found[1].split(", ")]
    assert [n for n in named if not (folder / f"{n}.py").exists() and not (folder / n).is_dir()] == []
