"""The archive of a support bundle: the same parts give the same bytes, and only its owner may read it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOP = "railcni-support"
INDEX = "index.json"
FORMAT = 1


@dataclass(frozen=True)
class Part:
    """A file of the bundle, `name` its path inside; or, with `fault`, the reason why it is missing."""

    name: str
    about: str
    text: str = ""
    fault: str = ""


def index(parts: Sequence[Part], facts: Mapping[str, str]) -> str:
    """The files in the bundle, and the missing ones, as JSON."""
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
