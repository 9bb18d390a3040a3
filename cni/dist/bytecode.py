"""Compile modules to the same bytes each time.

What marshal writes depends on which objects happen to be shared in the process that writes (bpo-34093), and the
order of a set on the seed of string hashes. So one fresh interpreter, with a fixed seed and nothing else to do,
compiles everything in the order of the paths.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from cni.dist.contents import BundleEntry
from cni.dist.errors import CannotBuild

_COMPILE = """
import json, py_compile, sys
with open(sys.argv[1]) as listed:
    jobs = json.load(listed)
for source, compiled, shown in jobs:
    py_compile.compile(source, compiled, shown, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""


def compiled(entries: Sequence[BundleEntry], python: Path) -> list[BundleEntry]:
    """`entries`, with bytecode in place of the source of each module.

    A module's .pyc lies where its .py would: the import system then asks for one file less, and nobody can edit a
    source on a node in vain. Tracebacks name the module's path in the bundle.
    """
    kept = [entry for entry in entries if not entry.target.endswith(".py")]
    modules = sorted((e for e in entries if e.target.endswith(".py")), key=lambda e: e.target)
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for number, entry in enumerate(modules):
            source = Path(folder, f"{number}.py")
            source.write_bytes(entry.read())
            jobs.append((str(source), f"{folder}/{number}.pyc", entry.target))
        listed = Path(folder, "jobs")
        listed.write_text(json.dumps(jobs))
        _run([str(python), "-Ss", "-c", _COMPILE, str(listed)])
        for entry, (_, file, _) in zip(modules, jobs, strict=True):
            kept.append(BundleEntry(f"{entry.target}c", data=Path(file).read_bytes(), origin=entry.origin))
    return kept


def packs(project: Path, python: Path) -> Iterator[BundleEntry]:
    """The modules of the plugins in one file, which cni/compiled/pack.py writes beside the executables."""
    with tempfile.TemporaryDirectory() as folder:
        for package in ("cni", "ipam"):
            shutil.copytree(project / package, Path(folder, package), ignore=shutil.ignore_patterns("__pycache__"))
        Path(folder, "bin").mkdir()
        _run([str(python), "-Ss", f"{folder}/cni/compiled/pack.py"])
        for file in sorted(Path(folder, "bin").iterdir()):
            yield BundleEntry(f"bin/{file.name}", data=file.read_bytes(), origin="railcni")


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuild(f"the modules cannot be compiled by {argv[0]}: {done.stderr[-500:]}")
