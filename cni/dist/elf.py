"""ELF files of a bundle, as binutils' readelf describes them: loader, search paths, alignment of pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import NamedTuple

from cni.dist.errors import CannotBuild

LARGEST_PAGE = 0x10000  # bytes; aarch64 kernels with 64 KB pages (RHEL's, NVIDIA's for Grace) load nothing aligned less
_DT_NULL, _DT_RPATH, _DT_DEBUG, _DT_RUNPATH = 0, 15, 21, 29  # elf(5)


class Elf(NamedTuple):
    """`interpreter` is "" for a library; `search` the parts of RPATH and RUNPATH; `alignment` in bytes, of the
    loaded segment that has the least; `dynamic` is the offset of the dynamic section, 0 for none."""

    interpreter: str
    search: tuple[str, ...]
    alignment: int
    dynamic: int


def is_elf(data: bytes) -> bool:
    """Whether this is a 64-bit little-endian ELF file."""
    return data[:6] == b"\x7fELF\x02\x01"


def parse(data: bytes) -> Elf:
    """Read the file `data`, for which is_elf() holds."""
    if not shutil.which("readelf"):
        raise CannotBuild("no readelf: apt-get install binutils")
    file = os.memfd_create("elf")
    try:
        os.write(file, data)
        argv = ["readelf", "-W", "-l", "-d", f"/proc/self/fd/{file}"]
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        told = subprocess.run(argv, pass_fds=[file], env=environ, capture_output=True, text=True).stdout
    finally:
        os.close(file)
    interpreter = re.search(r"Requesting program interpreter: (.*)\]", told)
    dynamic = re.search(r"Dynamic section at offset (0x\w+)", told)
    return Elf(
        interpreter=interpreter[1] if interpreter else "",
        search=tuple(part for paths in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", told) for part in paths.split(":")),
        alignment=min((int(size, 16) for size in re.findall(r"^ +LOAD .* (0x\w+)$", told, re.M)), default=LARGEST_PAGE),
        dynamic=int(dynamic[1], 16) if dynamic else 0,
    )


def without_absolute_search(data: bytes) -> bytes:
    """The same file without an RPATH or RUNPATH that names a directory of the machine where it was linked.

    Such a path wins over the bundle's own libraries. One relative to the file ($ORIGIN) stays. The entry becomes one
    that the loader ignores, DT_DEBUG.
    """
    known = parse(data)
    if all(part.startswith("$ORIGIN") for part in known.search):
        return data
    changed, at = bytearray(data), known.dynamic
    while (tag := int.from_bytes(changed[at : at + 8], "little")) != _DT_NULL:
        if tag in (_DT_RPATH, _DT_RUNPATH):
            changed[at : at + 8] = _DT_DEBUG.to_bytes(8, "little")
        at += 16  # a tag and a value of 8 bytes each
    return bytes(changed)
