"""No file imports in a circle, no two classes have one name, and the architecture's picture is the contract of imports.

`python -m tests.unit.test_architecture` draws docs/architecture.svg again.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/architecture.svg"
WIDTH, HEIGHT, GAP, MARGIN = 880, 52, 10, 16  # pixels: of the picture, of a layer, between two, around all


@cache
def modules() -> dict[str, Path]:
    """Every module of the product, by its name."""
    files = [file for top in ("cni", "ipam") for file in (ROOT / top).rglob("*.py")]
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files)
    return dict(zip(names, files, strict=True))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imports(file: Path) -> Iterator[str]:
    """The modules of the product that `file` imports when it runs: at its top, in a function, or by `cni.load`."""
    known = modules()
    todo: list[ast.AST] = [tree_of(file)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Constant) and node.value in known:  # in a table for `cni.load`
            yield node.value
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (found for name in names if (found := name if name in known else node.module) in known)


def test_no_file_imports_in_a_circle() -> None:
    """Imports in functions count; import-linter leaves circles within a layer alone."""
    known = modules()
    graph = {name: {other for other in imports(file) if other != name} for name, file in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as fault:
        raise AssertionError(f"a circle of imports: {' -> '.join(fault.args[1])}") from None


def test_no_two_classes_of_the_product_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for module, file in modules().items():
        if not module.endswith(("_pb2", "_pb2_grpc")):
            for node in ast.walk(tree_of(file)):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_an_import_in_a_function_is_of_a_library_or_has_a_reason_in_its_line() -> None:
    bare = []
    for module, file in modules().items():
        tree, lines = tree_of(file), file.read_text().splitlines()
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in {inner for function in functions for inner in ast.walk(function)}:
            if isinstance(node, ast.Import | ast.ImportFrom) and "  # " not in lines[node.lineno - 1]:
                name = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
                if name.partition(".")[0] in {"cni", "ipam", *sys.stdlib_module_names}:
                    bare.append(f"{module}: {ast.unparse(node)}")
    assert bare == []


def test_json_text_is_read_by_the_codec_which_bounds_its_depth_and_size() -> None:
    own = {"cni.shared.spec.codec", "cni.documents.reader"}  # the latter finds the place of each fault
    calls = [
        f"{name}:{node.lineno}"
        for name, file in modules().items()
        for node in ast.walk(tree_of(file))
        if name not in own and isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.load", "json.loads")
        if not ast.unparse(node.args[0]).startswith("json.dumps(")  # a copy of a document of ours
    ]
    assert calls == []


def layers() -> list[tuple[list[str], str]]:
    """(the modules of a layer, its comment) from the top to the bottom, as pyproject.toml has them."""
    text = (ROOT / "pyproject.toml").read_text()
    contract = next(c for c in tomllib.loads(text)["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    found = []
    for entry in contract["layers"]:
        line = next(line for line in text.splitlines() if line.strip().startswith(f'"{entry}"'))
        found.append(([name.strip() for name in entry.replace("|", ":").split(":")], line.partition("# ")[2].strip()))
    return found


def box(x: float, y: float, width: float, height: int, fill: str) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height}" rx="6" fill="{fill}" stroke="#5b7fa6"/>'
    )


def label(x: float, y: float, size: int, text: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="{size}"{more} fill="#16202b">{escape(text)}</text>'


def picture() -> str:
    """The layers as an SVG: each imports only from those below it."""
    rows = layers()
    height = 2 * MARGIN + len(rows) * (HEIGHT + GAP) + 18
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif">',
        "<title>The layers of railcni: each imports only from those below it</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    y = MARGIN
    for names, about in rows:
        fill = "#e3eefa" if names[0].startswith("cni") else "#e6f4e6"
        parts.append(box(MARGIN, y, WIDTH - 2 * MARGIN, HEIGHT, fill))
        width = (WIDTH - 2 * MARGIN) / len(names)
        for place, name in enumerate(names):
            x = MARGIN + place * width
            if len(names) > 1:  # boxes within that of the layer, so that its caption crosses none
                parts.append(box(x + 4, y + 4, width - 8, 26, "#ffffff"))
            parts.append(label(x + width / 2, y + 22, 15, name.replace(".", "/"), ' font-weight="bold"'))
        parts.append(label(WIDTH / 2, y + 45 if len(names) > 1 else y + 41, 13, about))
        y += HEIGHT + GAP
    parts.append(label(WIDTH / 2, y + 12, 12, "Each layer imports only from those below it."))
    return "\n".join([*parts, "</svg>", ""])


def test_the_contract_has_at_most_twelve_layers() -> None:
    assert len(layers()) <= 12
    assert all(about for _, about in layers())


def test_the_picture_is_that_of_the_contract() -> None:
    assert PICTURE.read_text() == picture(), "python -m tests.unit.test_architecture draws it again"


if __name__ == "__main__":
    PICTURE.write_text(picture())
