"""A copy of the plugins to run, so that a sweep is not disturbed by an edit, and faults can be planted in it."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.node import ROOT


@dataclass(frozen=True)
class Edit:
    """Replace what the regular expression `old` finds, exactly once, in `file` by `new`."""

    file: str
    old: str
    new: str


def copy(target: Path, edits: Sequence[Edit] = ()) -> Path:
    """Copy what the plugins need into `target` with the `edits`; the directory of the executables. Each edit must fit."""
    for part in ("bin", "cni", "ipam", "libexec"):
        shutil.copytree(ROOT / part, target / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "cli"))
    for edit in edits:
        path = target / edit.file
        text = path.read_text()
        text, count = re.subn(edit.old, edit.new, text)
        assert count == 1, f"{edit.file} has {count} times: {edit.old}"
        path.write_text(text)
    launcher = (target / "libexec" / "macvlan").read_text()
    interpreter = launcher.partition("\n")[0][2:].split()[0]
    subprocess.run([interpreter, "-I", target / "cni" / "compiled" / "pack.py"], check=True)
    return target / "bin"
