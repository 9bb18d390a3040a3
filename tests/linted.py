"""The lint of a text, as the content of a file or on stdin."""

from __future__ import annotations

import io
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

from cni.documents.diagnostic import Diagnostic
from cni.lint.file import lint


def lint_text(text: str, path: str) -> list[Diagnostic]:
    """The findings about a file of the name `path` with this text; "-" is stdin."""
    stdin = SimpleNamespace(buffer=io.BytesIO(text.encode()))
    with TemporaryDirectory() as folder, chdir(folder), patch("sys.stdin", stdin):
        if path != "-":
            Path(path).write_bytes(text.encode())
        return lint([path])
