"""The shared libraries of a bundle, and the dynamic loader that finds them there."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cni.dist import elf
from cni.dist.contents import BundleEntry, Interpreter
from cni.dist.errors import CannotBuild


def loader(python: Interpreter) -> Path:
    """The dynamic loader that the interpreter names, glibc's."""
    path = elf.parse(python.executable.read_bytes()).interpreter
    if not Path(path).name.startswith("ld-linux"):
        raise CannotBuild(
            f"{python.executable} is not linked with glibc (its loader is {path or 'none'}): name another with make PYTHON=…"
        )
    return Path(path)


def needed(entries: Sequence[BundleEntry], python: Interpreter) -> list[BundleEntry]:
    """The loader, and each library that an ELF file of `entries` needs and that is not among them.

    The loader itself lists them (ld.so(8), --list): so the libraries are those that run here.
    """
    ld = loader(python)
    own = {entry.source.resolve() for entry in entries if entry.source}
    found: dict[str, Path] = {ld.name: ld.resolve()}
    for entry in entries:
        if entry.source is None or not elf.is_elf(entry.read()):
            continue
        done = subprocess.run([ld, "--list", entry.source], capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(
                f"the libraries of {entry.source} are not all here: {(done.stderr or done.stdout).strip()[-300:]}"
            )
        for line in done.stdout.splitlines():
            name, arrow, path = line.strip().partition(" => ")
            if not arrow or name.startswith("/"):
                continue
            file = Path(path.rpartition(" (")[0]).resolve()
            if file in own:
                continue  # a wheel's own library, beside the module that needs it
            if found.setdefault(name, file) != file:
                raise CannotBuild(f"two libraries are called {name}: {found[name]} and {file}, for {entry.source}")
    return [BundleEntry(f"lib/{name}", file, executable=True) for name, file in sorted(found.items())]


def _stripped(data: bytes) -> bytes:
    """The ELF file without debugging sections, which make up two thirds of a CPython that was built from source."""
    strip = shutil.which("strip")
    if b".debug_info\0" not in data or not strip:
        return data
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "file")
        file.write_bytes(data)
        subprocess.run([strip, "--strip-debug", file], check=True)
        return file.read_bytes()


def for_anywhere(entries: Sequence[BundleEntry], machine: str) -> None:
    """Remove search paths outside of the bundle and debugging sections from all ELF files, and refuse, on
    aarch64, one that a kernel with 64 KB pages would not load."""
    small = []
    for entry in entries:
        if entry.link or not elf.is_elf(entry.read()):
            continue
        entry.data = elf.without_absolute_search(_stripped(entry.read()))
        if elf.parse(entry.data).alignment < elf.LARGEST_PAGE:
            small.append(entry.target)
    if small and machine == "aarch64":
        raise CannotBuild(
            f"{', '.join(small)}: linked for pages smaller than 64 KB, which nodes with such a kernel cannot load; "
            "build those packages from source with LDFLAGS=-Wl,-z,max-page-size=65536"
        )
