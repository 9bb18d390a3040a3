"""The ELF files of a bundle: the shared libraries that they need, the dynamic loader that finds these in the bundle, and
what would tie a file to the machine where it was linked. binutils' readelf describes them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from cni.dist.contents import PYTHON, Bundle, CannotBuild

LARGEST_PAGE = 0x10000  # bytes; aarch64 kernels with 64 KB pages (RHEL's, NVIDIA's for Grace) load nothing aligned less
_DT_NULL, _DT_RPATH, _DT_DEBUG, _DT_RUNPATH = 0, 15, 21, 29  # elf(5)


class Elf(NamedTuple):
    """`interpreter` is "" for a library; `search` the parts of RPATH and RUNPATH; `alignment` in bytes, of the
    loaded segment that has the least; `dynamic` is the offset of the dynamic section, 0 for none."""

    interpreter: str
    search: tuple[str, ...]
    alignment: int
    dynamic: int


def is_elf(file: Path) -> bool:
    """Whether this is a 64-bit little-endian ELF file."""
    with file.open("rb") as opened:
        return opened.read(6) == b"\x7fELF\x02\x01"


def parse(file: Path) -> Elf:
    """Read `file`, for which is_elf() holds."""
    if not shutil.which("readelf"):
        raise CannotBuild("no readelf: apt-get install binutils")
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    told = subprocess.run(["readelf", "-Wld", file], env=environ, capture_output=True, text=True).stdout
    interpreter = re.search(r"Requesting program interpreter: (.*)\]", told)
    dynamic = re.search(r"Dynamic section at offset (0x\w+)", told)
    return Elf(
        interpreter=interpreter[1] if interpreter else "",
        search=tuple(part for paths in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", told) for part in paths.split(":")),
        alignment=min((int(size, 16) for size in re.findall(r"^ +LOAD .* (0x\w+)$", told, re.M)), default=LARGEST_PAGE),
        dynamic=int(dynamic[1], 16) if dynamic else 0,
    )


def loader() -> Path:
    """The dynamic loader that the interpreter names, glibc's."""
    path = parse(PYTHON).interpreter
    if not Path(path).name.startswith("ld-linux"):
        raise CannotBuild(
            f"{PYTHON} is not linked with glibc (its loader is {path or 'none'}): name another with make PYTHON=…"
        )
    return Path(path)


def needed(sources: Collection[Path]) -> dict[str, Path]:
    """The loader, and each library that an ELF file of `sources` needs and that is not among them, by their names.

    The loader itself lists them (ld.so(8), --list): so the libraries are those that run here.
    """
    ld = loader()
    own = {source.resolve() for source in sources}
    found: dict[str, Path] = {ld.name: ld.resolve()}
    for source in filter(is_elf, sources):
        done = subprocess.run([ld, "--list", source], capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(
                f"the libraries of {source} are not all here: {(done.stderr or done.stdout).strip()[-300:]}"
            )
        for line in done.stdout.splitlines():
            name, arrow, path = line.strip().partition(" => ")
            if not arrow or name.startswith("/"):
                continue
            file = Path(path.rpartition(" (")[0]).resolve()
            if file in own:
                continue  # a wheel's own library, beside the module that needs it
            if found.setdefault(name, file) != file:
                raise CannotBuild(f"two libraries are called {name}: {found[name]} and {file}, for {source}")
    return dict(sorted(found.items()))


def for_anywhere(bundle: Bundle, machine: str) -> None:
    """Remove search paths outside of the bundle and debugging sections from all ELF files, and refuse, on
    aarch64, one that a kernel with 64 KB pages would not load."""
    strip = shutil.which("strip")
    small = []
    for target in bundle.origins:
        file = bundle.top / target
        if not is_elf(file):
            continue
        if strip and b".debug_info\0" in file.read_bytes():  # two thirds of a CPython that was built from source
            subprocess.run([strip, "--strip-debug", file], check=True)
        remove_absolute_search(file)
        if parse(file).alignment < LARGEST_PAGE:
            small.append(target)
    if small and machine == "aarch64":
        raise CannotBuild(
            f"{', '.join(small)}: linked for pages smaller than 64 KB, which nodes with such a kernel cannot load; "
            "build those packages from source with LDFLAGS=-Wl,-z,max-page-size=65536"
        )


def remove_absolute_search(file: Path) -> None:
    """Remove an RPATH or RUNPATH that names a directory of the machine where the file was linked.

    Such a path wins over the bundle's own libraries. One relative to the file ($ORIGIN) stays. The entry becomes one
    that the loader ignores, DT_DEBUG.
    """
    known = parse(file)
    if all(part.startswith("$ORIGIN") for part in known.search):
        return
    changed, at = bytearray(file.read_bytes()), known.dynamic
    while (tag := int.from_bytes(changed[at : at + 8], "little")) != _DT_NULL:
        if tag in (_DT_RPATH, _DT_RUNPATH):
            changed[at : at + 8] = _DT_DEBUG.to_bytes(8, "little")
        at += 16  # a tag and a value of 8 bytes each
    file.write_bytes(changed)
