"""The archive of a support bundle: the same parts give the same bytes, and only its owner may read it."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cni.spec.errors import IoFailure

TOP = "railcni-support"
INDEX = "index.json"
FORMAT = 1


@dataclass(frozen=True)
class Part:
    """A file of the bundle, `name` its path inside; or, with `fault`, why there is none."""

    name: str
    about: str
    text: str = ""
    fault: str = ""


def index(parts: Sequence[Part], facts: Mapping[str, str]) -> str:
    """What is in the bundle and what is not, as JSON."""
    files = [{"path": p.name, "about": p.about, "bytes": len(p.text.encode())} for p in parts if not p.fault]
    missing = [{"path": p.name, "about": p.about, "why": p.fault} for p in parts if p.fault]
    document = {"kind": "SupportBundle", "format": FORMAT, **facts, "files": files, "missing": missing}
    return json.dumps(document, indent=2) + "\n"


def pack(parts: Sequence[Part], facts: Mapping[str, str]) -> bytes:
    """The bytes of the .tar.gz: the index first, then the parts by name."""
    ordered = sorted(parts, key=lambda part: part.name)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in [(INDEX, index(ordered, facts)), *((p.name, p.text) for p in ordered if not p.fault)]:
            data = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{TOP}/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def write(path: str, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all, mode 0600; IoFailure."""
    new = f"{path}.new-{os.getpid()}"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        os.replace(new, path)
    except OSError as fault:
        raise IoFailure(f"the support bundle cannot be written to {path}: {fault.strerror}") from None
    finally:
        if os.path.lexists(new):
            os.unlink(new)
