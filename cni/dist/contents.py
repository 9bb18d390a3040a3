"""The files of a bundle, and the files of the interpreter and its packages that a bundle leaves out.

bin/       macvlan, host-device, sriov, rdma, whereabouts, railcni, kubectl-railcni, python3: launcher.c, compiled;
           railcni-*: links to these plugins
cni/ ipam/ the project, as bytecode
lib/       the dynamic loader, the shared libraries, and pythonX.Y/ with the standard library and site-packages
libexec/   the interpreter itself, and the script of each executable of bin/
licenses/  the terms of the distribution's packages
share/     manual pages, and completion for shells
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[2]
EPOCH = int(
    os.environ.get("SOURCE_DATE_EPOCH", "0")
)  # Unix seconds, the time of all files: reproducible-builds.org/specs/source-date-epoch

# The CPython that runs this process.
PYTHON = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
PREFIX = Path(sys.base_prefix)
_STANDARD = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
_PLATFORM = Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_prefix}))
LIBRARY = str(_STANDARD.relative_to(PREFIX))  # lib/pythonX.Y

# Unused modules of the standard library, by the first part of their path.
_LEFT_OUT = {
    "test", "idlelib", "lib2to3", "ensurepip", "turtledemo", "tkinter", "pydoc_data", "distutils", "venv",
    "turtle.py", "antigravity.py", "this.py", "__phello__", "_aix_support.py", "_osx_support.py", "__pycache__",
    "site-packages", "dist-packages", "lib-dynload", "EXTERNALLY-MANAGED", "sitecustomize.py",
}  # fmt: skip
# Extension modules for tests, and for terminals and databases, which need further libraries (readline's is GPL).
_LEFT_OUT_EXTENSIONS = (
    "_test", "_xx", "xx", "_ctypes_test", "_tkinter", "readline", "_curses", "_dbm", "_gdbm", "nis", "ossaudiodev",
    "_crypt", "audioop", "_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw",
    "_multibytecodec",
)  # fmt: skip
# Files of a distribution's metadata with details of the machine where the distribution was installed.
_LEFT_OUT_METADATA = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


class CannotBuild(Exception):
    """A bundle cannot be built; the message names the cause and the remedy."""


def standard_library() -> Iterator[tuple[str, Path]]:
    """Yield (path in the bundle, file) for each module and extension module of the standard library."""
    for path in sorted(_STANDARD.iterdir()):
        if path.name in _LEFT_OUT or path.name.startswith(("config-", "LICENSE")):
            continue
        if path.is_dir():
            for file in _files(path):
                yield f"{LIBRARY}/{file.relative_to(_STANDARD)}", file
        elif path.suffix == ".py":
            yield f"{LIBRARY}/{path.name}", path
    extensions = next((p for p in (_PLATFORM, _STANDARD) if (p / "lib-dynload").is_dir()), _STANDARD)
    for path in sorted(extensions.glob("lib-dynload/*.so")):
        if not path.name.startswith(_LEFT_OUT_EXTENSIONS):
            yield f"{LIBRARY}/lib-dynload/{path.name}", path


def distributions(extra: str = "") -> list[Distribution]:
    """The installed distributions that the project and its `extra` depend on, ordered by name."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    more = project["optional-dependencies"][extra] if extra else []
    wanted = [Requirement(text) for text in (*project["dependencies"], *more)]
    found: dict[str, Distribution] = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        wanted += [Requirement(text) for text in found[name].requires or []]
    return [found[name] for name in sorted(found)]


def packages(installed: list[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield (path in the bundle, file) for each file of `installed`. Raises CannotBuild if a file list is missing."""
    for dist in installed:
        if dist.files is None:
            raise CannotBuild(f"{dist.name} has no list of its files: install it with pip, from requirements.txt")
        for path in sorted(dist.files):
            outside = ".." in path.parts  # scripts in bin/
            metadata = path.parts[0].endswith(".dist-info")
            if outside or "__pycache__" in path.parts or "tests" in path.parts or path.suffix in (".pyi", ".typed"):
                continue
            if metadata and path.name in _LEFT_OUT_METADATA:
                continue
            yield f"{LIBRARY}/site-packages/{path}", Path(str(path.locate()))


def project_files() -> Iterator[tuple[str, Path]]:
    """Yield (path in the bundle, file) for the project's modules, conf/, which the demo uses, and the licence."""
    for path in (*(file for top in ("cni", "ipam", "conf") for file in _files(PROJECT / top)), PROJECT / "LICENSE"):
        target = str(path.relative_to(PROJECT))
        if not target.startswith("cni/dist/"):
            yield target, path


def _files(top: Path) -> Iterator[Path]:
    for path in sorted(top.rglob("*")):
        left_out = {"__pycache__", "test", "tests"} & set(path.relative_to(top).parts)
        if path.is_file() and not left_out and path.suffix not in (".pyc", ".pyi", ".typed", ".sh", ".c", ".flags"):
            yield path
