"""A tar archive whose bytes depend on nothing but the files' names, modes and contents."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def epoch() -> int:
    """The time that all files get, in seconds: SOURCE_DATE_EPOCH, by default 0.

    See https://reproducible-builds.org/specs/source-date-epoch/.
    """
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def tree(top: Path) -> Iterable[Path]:
    """`top` and all that lies below it, in the order of the paths."""
    return [top, *sorted(top.rglob("*"), key=lambda path: path.relative_to(top).parts)]


def pack(top: Path, prefix: str, links: bool = True) -> bytes:
    """A tar archive of the directory `top`, which is called `prefix` in there and belongs to root; without its `links`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        # in the order of the names
        tar.add(top, prefix, filter=lambda info: _normal(info) if links or not info.issym() else None)
    return buffer.getvalue()


def of_bytes(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of these files, in the order of the names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(_normal(info), io.BytesIO(data))
    return buffer.getvalue()


def _normal(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mtime, info.uid, info.gid, info.uname, info.gname = epoch(), 0, 0, "", ""
    info.mode = 0o777 if info.issym() else 0o755 if info.mode & 0o111 else 0o644
    return info


def compress(data: bytes) -> bytes:
    """gzip, without name and time."""
    return gzip.compress(data, compresslevel=9, mtime=0)
