"""Programs that tests use where they are there; how a machine gets them is in .ci/run."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from types import ModuleType

import pytest

from tests.node import ROOT


def find(name: str) -> str:
    """The path of the program, on PATH or in build/tools; "" for none."""
    own = ROOT / "build/tools" / name
    return shutil.which(name) or (str(own) if os.access(own, os.X_OK) else "")


@functools.cache
def kubectl_version() -> tuple[int, ...]:
    """Of the client; () without kubectl. From 1.31 on `kubectl exec` speaks WebSocket, as the cluster of tests/docs does."""
    if not find("kubectl"):
        return ()
    shown = run("kubectl", "version", "--client").stdout
    return tuple(map(int, re.findall(r"Client Version: v(\d+)\.(\d+)", shown)[0]))


def needs(name: str, remedy: str) -> pytest.MarkDecorator:
    """A mark: the test is skipped where the program is missing; `remedy` says how to get it."""
    return pytest.mark.skipif(not find(name), reason=f"needs {name}: {remedy}")


needs_ip = needs("ip", "apt-get install iproute2")
needs_compiler = needs("cc", "apt-get install gcc libc6-dev")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it, with its output."""
    return subprocess.run([find(name), *arguments], capture_output=True, text=True)


def script(name: str) -> ModuleType:
    """The module .ci/NAME.py, which `make` runs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
