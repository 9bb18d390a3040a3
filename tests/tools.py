"""Programs that tests use where they are there; how a machine gets them is in .ci/run."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.node import ROOT


def find(name: str) -> str:
    """The path of the program, on PATH or in build/tools; "" for none."""
    own = ROOT / "build/tools" / name
    return shutil.which(name) or (str(own) if os.access(own, os.X_OK) else "")


def needs(name: str, remedy: str) -> pytest.MarkDecorator:
    """A mark: the test is skipped where the program is missing; `remedy` says how to get it."""
    return pytest.mark.skipif(not find(name), reason=f"needs {name}: {remedy}")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it, with its output."""
    return subprocess.run([find(name), *arguments], capture_output=True, text=True)
