"""A tar archive whose bytes depend on nothing but the files' names, modes and contents."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path


def epoch() -> int:
    """The time that all files get, in seconds: SOURCE_DATE_EPOCH, or else 0.

    See https://reproducible-builds.org/specs/source-date-epoch/.
    """
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def tree(top: Path) -> Iterable[Path]:
    """`top` and all that lies below it, in the order of the paths."""
    return [top, *sorted(top.rglob("*"), key=lambda path: path.relative_to(top).parts)]


def pack(top: Path, prefix: str) -> bytes:
    """A tar archive of the directory `top`, which is called `prefix` in there and belongs to root."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in tree(top):
            below = path.relative_to(top)
            add(tar, str(Path(prefix, below)), path)
    return buffer.getvalue()


def add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    """Put the file, link or directory at `path` into `tar`."""
    info = tarfile.TarInfo(name)
    info.mtime = epoch()
    info.mode = 0o755 if path.lstat().st_mode & 0o111 else 0o644
    if path.is_symlink():
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        tar.addfile(info)
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = path.stat().st_size
        with path.open("rb") as file:
            tar.addfile(info, file)


def add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Put a file of these bytes into `tar`."""
    info = tarfile.TarInfo(name)
    info.mtime, info.size, info.mode = epoch(), len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def compress(data: bytes) -> bytes:
    """gzip, without name and time."""
    return gzip.compress(data, compresslevel=9, mtime=0)
