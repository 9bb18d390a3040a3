"""What a bundle has to know of ELF files, 64-bit and little-endian: which libraries and loader they want, for which
pages they are linked, and search paths that lead out of the bundle.

Layout: elf(5); DT_* of the System V ABI, chapter 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

LARGEST_PAGE = 0x10000  # bytes; aarch64 kernels with 64 KB pages (RHEL's, NVIDIA's for Grace) load nothing aligned less

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")  # p_type flags offset vaddr paddr filesz memsz align
_DYNAMIC = struct.Struct("<QQ")
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 15, 29


@dataclass(frozen=True)
class Elf:
    """`interpreter` is "" for a library; `search` the parts of RPATH and RUNPATH; `alignment` in bytes, of the
    loaded segment that has the least."""

    interpreter: str
    needed: tuple[str, ...]
    search: tuple[str, ...]
    alignment: int


def is_elf(data: bytes) -> bool:
    """Whether this is a 64-bit little-endian ELF file."""
    return data[:6] == b"\x7fELF\x02\x01"


def parse(data: bytes) -> Elf:
    """Read the file `data`, for which is_elf() holds; a relocatable object has nothing of all this."""
    interpreter = ""
    alignments = []
    for kind, _, offset, _, _, size, _, align in _segments(data):
        if kind == _PT_INTERP:
            interpreter = data[offset : offset + size].rstrip(b"\0").decode()
        elif kind == _PT_LOAD:
            alignments.append(align)
    needed, search = [], []
    for tag, value in _dynamic(data):
        if tag == _DT_NEEDED:
            needed.append(_string(data, value))
        elif tag in (_DT_RPATH, _DT_RUNPATH):
            search += _string(data, value).split(":")
    return Elf(interpreter, tuple(needed), tuple(search), min(alignments, default=LARGEST_PAGE))


def without_absolute_search(data: bytes) -> bytes:
    """The same file without an RPATH or RUNPATH that names a directory of the machine where it was linked.

    Such a path wins over the bundle's own libraries. One relative to the file ($ORIGIN) stays.
    """
    if all(part.startswith("$ORIGIN") for part in parse(data).search):
        return data
    kept = [(tag, value) for tag, value in _dynamic(data) if tag not in (_DT_RPATH, _DT_RUNPATH)]
    (start, size) = next((offset, size) for kind, _, offset, _, _, size, *_ in _segments(data) if kind == _PT_DYNAMIC)
    table = b"".join(_DYNAMIC.pack(tag, value) for tag, value in kept)
    return data[:start] + table.ljust(size, b"\0") + data[start + size :]  # zeros are DT_NULL: the table's end


def _segments(data: bytes) -> list[tuple[int, ...]]:
    header = _HEADER.unpack_from(data)
    start, size, count = header[5], header[9], header[10]
    return [_SEGMENT.unpack_from(data, start + size * n) for n in range(count)]


def _dynamic(data: bytes) -> list[tuple[int, int]]:
    entries = []
    for kind, _, offset, _, _, size, *_ in _segments(data):
        if kind == _PT_DYNAMIC:
            for tag, value in _DYNAMIC.iter_unpack(data[offset : offset + size]):
                if tag == _DT_NULL:
                    break
                entries.append((tag, value))
    return entries


def _string(data: bytes, index: int) -> str:
    """The string at `index` of the table that DT_STRTAB names by its address in memory."""
    address = next(value for tag, value in _dynamic(data) if tag == _DT_STRTAB)
    for kind, _, offset, virtual, _, size, *_ in _segments(data):
        if kind == _PT_LOAD and virtual <= address < virtual + size:
            start = offset + address - virtual + index
            return data[start : data.index(b"\0", start)].decode()
    raise ValueError("DT_STRTAB lies in no loaded segment")
