"""The files of a bundle, and those of the interpreter and its packages that it leaves out.

bin/       macvlan, host-device, sriov, rdma, whereabouts, railcni, kubectl-railcni, python3: copies of launcher.c; railcni-*: links to them
cni/ ipam/ the project, as bytecode
lib/       the dynamic loader, the shared libraries, and pythonX.Y/ with the standard library and site-packages
libexec/   the interpreter itself, and the script of each executable of bin/
licenses/  the terms of the distribution's packages
share/     manual pages, and completion for shells
"""

from __future__ import annotations

import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cni.dist.errors import CannotBuild

PROJECT = Path(__file__).resolve().parents[2]

# Unused modules of the standard library, by the first part of their path.
_LEFT_OUT = {
    "test", "idlelib", "lib2to3", "ensurepip", "turtledemo", "tkinter", "pydoc_data", "distutils", "venv",
    "turtle.py", "antigravity.py", "this.py", "__phello__", "_aix_support.py", "_osx_support.py", "__pycache__",
    "site-packages", "dist-packages", "lib-dynload", "EXTERNALLY-MANAGED", "sitecustomize.py",
}  # fmt: skip
# Of the extension modules: tests, terminals and databases whose libraries would come along (readline's is GPL).
_LEFT_OUT_EXTENSIONS = (
    "_test", "_xx", "xx", "_ctypes_test", "_tkinter", "readline", "_curses", "_dbm", "_gdbm", "nis", "ossaudiodev",
    "_crypt", "audioop", "_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw",
    "_multibytecodec",
)  # fmt: skip
# Files of a distribution's metadata that name the machine where it was installed.
_LEFT_OUT_METADATA = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


@dataclass
class BundleEntry:
    """One file of the bundle: `target` is its path in there; its bytes are `data`, or those of the file `source`, or
    it is a symbolic link to `link`. `origin` is the name of the package that it comes from ("" until known)."""

    target: str
    source: Path | None = None
    data: bytes | None = None
    link: str = ""
    executable: bool = False
    origin: str = ""

    def read(self) -> bytes:
        """The file's bytes."""
        if self.data is None:
            assert self.source is not None  # noqa: S101  # a link has neither, and is not read
            self.data = self.source.read_bytes()
        return self.data


@dataclass
class Interpreter:
    """The CPython that runs this, as it lies on the machine. `library` is lib/pythonX.Y, relative to its prefix."""

    executable: Path = field(default_factory=lambda: Path(sys._base_executable).resolve())  # type: ignore[attr-defined]
    prefix: Path = field(default_factory=lambda: Path(sys.base_prefix))

    @property
    def standard(self) -> Path:
        return Path(sysconfig.get_path("stdlib", vars={"installed_base": str(self.prefix)}))

    @property
    def extensions(self) -> Path:
        paths = (
            Path(sysconfig.get_path("platstdlib", vars={"platbase": str(self.prefix)}), "lib-dynload"),
            self.standard / "lib-dynload",
        )
        return next((path for path in paths if path.is_dir()), paths[0])

    @property
    def library(self) -> str:
        return str(self.standard.relative_to(self.prefix))


def standard_library(python: Interpreter) -> Iterator[BundleEntry]:
    """Its modules and extension modules."""
    for path in sorted(python.standard.iterdir()):
        if path.name in _LEFT_OUT or path.name.startswith(("config-", "LICENSE")):
            continue
        if path.is_dir():
            for file in _files(path):
                yield BundleEntry(f"{python.library}/{file.relative_to(python.standard)}", file)
        elif path.suffix == ".py":
            yield BundleEntry(f"{python.library}/{path.name}", path)
    for path in sorted(python.extensions.glob("*.so")):
        if not path.name.startswith(_LEFT_OUT_EXTENSIONS):
            yield BundleEntry(f"{python.library}/lib-dynload/{path.name}", path)


def described(project: Path) -> dict[str, Any]:
    """What pyproject.toml says of the project: `version`, `urls` and the like."""
    found: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    return found


def distributions(extra: str = "") -> list[Distribution]:
    """The installed distributions that the project's dependencies need, and those of its `extra`, in the order of names."""
    project = described(PROJECT)
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


def packages(python: Interpreter, installed: list[Distribution]) -> Iterator[BundleEntry]:
    """The files of the distributions in site-packages."""
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
            yield BundleEntry(f"{python.library}/site-packages/{path}", Path(str(path.locate())), origin=dist.name)


def project_files() -> Iterator[BundleEntry]:
    """The project's own modules, without this package, and conf/: the demo attaches by it, and people start from it."""
    for top in ("cni", "ipam"):
        for path in _files(PROJECT / top):
            target = str(path.relative_to(PROJECT))
            if not target.startswith("cni/dist/"):
                yield BundleEntry(target, path, origin="railcni")
    for path in _files(PROJECT / "conf"):
        yield BundleEntry(str(path.relative_to(PROJECT)), path, origin="railcni")
    yield BundleEntry("LICENSE", PROJECT / "LICENSE", origin="railcni")


def _files(top: Path) -> Iterator[Path]:
    for path in sorted(top.rglob("*")):
        left_out = {"__pycache__", "test", "tests"} & set(path.relative_to(top).parts)
        if path.is_file() and not left_out and path.suffix not in (".pyc", ".pyi", ".typed", ".sh", ".c", ".flags"):
            yield path
