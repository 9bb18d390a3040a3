"""Write the pack: the modules that plugins import, compiled, in one file beside the executables (see packed.py).

    python cni/compiled/pack.py

writes bin/modules.TAG. TAG is the version of the Python that runs the command (cpython-311), because compiled code fits
only one version. The file begins with a head of HEAD bytes: the marshalled pair (code of cni/compiled/packed.py, index
of the modules), and at the end a digest of the whole content. The code of each module follows the head.
Docstrings, assertions, annotations and the imports for annotations are left out: nothing reads them in a plugin.
"""

from __future__ import annotations
import __future__

import ast
import hashlib
import marshal
import os
import sys
from types import CodeType

ROOT = os.path.abspath(__file__).rpartition("/cni/")[0]
HEAD = 12288  # bytes; a launcher reads them at once
DIGEST = 32  # hexadecimal digits at the end of the head, by which executables find workers of their version (cni/warm)
_ROOMS = ("cli", "cluster", "compiled.pack", "compiled.packed", "dist", "documents", "lint", "node", "resources")
NOT_OF_PLUGINS = tuple(f"cni.{room}" for room in _ROOMS)


def main() -> None:
    """Write the pack under a temporary name, and rename it when it is whole."""
    path = f"{ROOT}/bin/modules.{sys.implementation.cache_tag}"
    new = f"{path}.{os.getpid()}"  # two processes may write the pack at the same time
    content = pack(ROOT)
    with open(new, "wb") as file:
        file.write(content)
    os.rename(new, path)


def pack(root: str) -> bytes:
    """The content of the pack for the sources below `root`. Raises ValueError when the head is too large."""
    index = {}
    codes = []
    place = HEAD
    for name, is_package, path in modules(root):
        code = marshal.dumps(compiled(root, path))
        index[name] = (is_package, place, len(code))
        codes.append(code)
        place += len(code)
    head = marshal.dumps((compiled(root, f"{root}/cni/compiled/packed.py"), index))
    if len(head) > HEAD - DIGEST:
        raise ValueError(
            f"the index has {len(head)} bytes: raise HEAD above that, here, in bin/launcher.in, cni/compiled/packed.py and cni/warm/launcher.c"
        )
    digest = hashlib.blake2b(b"".join([head, *codes]), digest_size=DIGEST // 2).hexdigest().encode()
    return b"".join([head.ljust(HEAD - DIGEST, b"\0"), digest, *codes])


def modules(root: str) -> list[tuple[str, bool, str]]:
    """Each module that a plugin may import, sorted: its name, whether it is a package, and its path."""
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
    """The compiled code of the file at `path`. Tracebacks name the file relative to `root`."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    tree.body = [node for node in tree.body if not _is_for_annotations(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
    flags = __future__.annotations.compiler_flag  # in place of each file's import, which would load one more module
    code: CodeType = compile(tree, os.path.relpath(path, root), "exec", flags, dont_inherit=True, optimize=2)
    return code


def _is_for_annotations(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.ImportFrom) and node.module in ("__future__", "typing")


if __name__ == "__main__":
    main()
