"""Write the pack: the modules of the plugin path, compiled, in one file beside the launchers. See cni/packed.py.

    python cni/pack.py

writes bin/modules.TAG for the Python that runs it (TAG: cpython-311 and so on; code is of one version alone). The
file begins with the marshalled pair (code of cni/packed.py, index), which ends within its first HEAD bytes; then
comes the code of each module. Docstrings, annotations and assertions are left out: nothing reads them in a plugin.
"""

from __future__ import annotations
import __future__

import ast
import marshal
import os
import sys
from types import CodeType

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = 8192  # bytes, of which a launcher reads the whole
NOT_OF_PLUGINS = ("cni.cli", "cni.dist", "cni.pack")


def main() -> None:
    """Write the file, under its name only when it is whole."""
    path = f"{ROOT}/bin/modules.{sys.implementation.cache_tag}"
    new = f"{path}.{os.getpid()}"  # two may make it at once
    with open(new, "wb") as file:
        file.write(pack(ROOT))
    os.rename(new, path)


def pack(root: str) -> bytes:
    """The content of the file for the sources below `root`."""
    index = {}
    codes = []
    place = HEAD
    for name, is_package, path in modules(root):
        code = marshal.dumps(compiled(root, path))
        index[name] = (is_package, place, len(code))
        codes.append(code)
        place += len(code)
    head = marshal.dumps((compiled(root, f"{root}/cni/packed.py"), index))
    if len(head) > HEAD:
        raise ValueError(f"the index has {len(head)} bytes: raise HEAD above that, here and in bin/launcher.in")
    return b"".join([head.ljust(HEAD, b"\0"), *codes])


def modules(root: str) -> list[tuple[str, bool, str]]:
    """(name, whether it is a package, file) of each module that a plugin may import."""
    found = []
    for top in ("cni", "ipam"):
        for directory, _, files in os.walk(f"{root}/{top}"):
            for file in files:
                path = f"{directory}/{file}"
                name, kind = os.path.splitext(os.path.relpath(path, root).replace("/", "."))
                is_package = name.endswith(".__init__")
                name = name.removesuffix(".__init__")
                if kind == ".py" and not f"{name}.".startswith(tuple(f"{n}." for n in NOT_OF_PLUGINS)):
                    found.append((name, is_package, path))
    return sorted(found)


def compiled(root: str, path: str) -> CodeType:
    """The code of one file. Tracebacks name it relative to `root`."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    tree.body = [n for n in tree.body if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
    flags = __future__.annotations.compiler_flag  # as each file asks; the import itself would be one more module
    code: CodeType = compile(tree, os.path.relpath(path, root), "exec", flags, dont_inherit=True, optimize=2)
    return code


if __name__ == "__main__":
    main()
