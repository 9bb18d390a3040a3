"""The ELF files of a bundle: the shared libraries that they need, the loader that finds the libraries, and the removal
of the build machine's search paths. The program readelf of binutils describes the files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from cni.dist.contents import PYTHON, CannotBuild

LARGEST_PAGE = 0x10000  # bytes; aarch64 kernels with 64 KB pages (RHEL, NVIDIA Grace) refuse a smaller alignment


def is_elf(file: Path) -> bool:
    """Whether `file` is a 64-bit little-endian ELF file."""
    with file.open("rb") as opened:
        return opened.read(6) == b"\x7fELF\x02\x01"


def described(file: Path) -> str:
    """readelf's text about the segments and the dynamic section of `file`. Raises CannotBuild without readelf."""
    if not shutil.which("readelf"):
        raise CannotBuild("no readelf: apt-get install binutils")
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    return subprocess.run(["readelf", "-Wld", file], env=environ, capture_output=True, text=True).stdout


def search_path(file: Path) -> list[str]:
    """The folders of RPATH and RUNPATH, in which the loader searches the libraries of `file`."""
    found = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", described(file))
    return [folder for folders in found for folder in folders.split(":")]


def loader() -> Path:
    """The path of glibc's dynamic loader, as the interpreter names it. Raises CannotBuild for another loader."""
    found = re.search(r"Requesting program interpreter: (.*)\]", described(PYTHON))
    if not found or not Path(found[1]).name.startswith("ld-linux"):
        raise CannotBuild(
            f"{PYTHON} is not linked with glibc (its loader is {found[1] if found else 'none'}): make PYTHON=…"
        )
    return Path(found[1])


def needed(sources: Collection[Path]) -> dict[str, Path]:
    """Return, by name, the loader and the libraries outside of `sources` that ELF files of `sources` need.

    The loader lists the libraries of this machine (ld.so(8), --list). Raises CannotBuild when a library is missing, or
    when two libraries have the same name.
    """
    ld = loader()
    own = {source.resolve() for source in sources}
    found = {ld.name: ld.resolve()}
    for source in filter(is_elf, sources):
        done = subprocess.run([ld, "--list", source], capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"the libraries of {source} are not all here: {(done.stderr or done.stdout)[-300:]}")
        for name, path in re.findall(r"^\s*([^/\s]\S*) => (.*) \(", done.stdout, re.M):
            file = Path(path).resolve()
            if file in own:
                continue  # a wheel's own library, beside the module that needs it
            if found.setdefault(name, file) != file:
                raise CannotBuild(f"two libraries are called {name}: {found[name]} and {file}, for {source}")
    return dict(sorted(found.items()))


def for_anywhere(top: Path, machine: str) -> None:
    """Remove debugging sections and search paths outside of the bundle from all ELF files below `top`.

    Raises CannotBuild for a file of aarch64 that a kernel with 64 KB pages would not load.
    """
    small = []
    for file in sorted(top.rglob("*")):
        if file.is_symlink() or not file.is_file() or not is_elf(file):
            continue
        target = str(file.relative_to(top))
        if b".debug_info\0" in file.read_bytes():  # two thirds of the size of a CPython built from source
            subprocess.run(["strip", "--strip-debug", file], check=True)
        folders = search_path(file)
        if not all(folder.startswith("$ORIGIN") for folder in folders):  # other folders would precede the bundle's
            if not shutil.which("patchelf"):
                raise CannotBuild(f"{target} searches libraries in {':'.join(folders)}: apt-get install patchelf")
            subprocess.run(["patchelf", "--remove-rpath", file], check=True)
        alignments = re.findall(r"^ +LOAD .* (0x\w+)$", described(file), re.M)
        if any(int(alignment, 16) < LARGEST_PAGE for alignment in alignments):
            small.append(target)
    if small and machine == "aarch64":
        raise CannotBuild(
            f"{', '.join(small)}: linked for pages smaller than 64 KB, which nodes with such a kernel cannot load; "
            "build those packages from source with LDFLAGS=-Wl,-z,max-page-size=65536"
        )
