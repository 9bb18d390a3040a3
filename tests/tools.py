"""Programs that tests use where they are there; how a machine gets them is in .ci/run."""

import atexit
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.node import ROOT


@functools.cache
def find(name: str) -> str:
    """The path of the program, on PATH or in build/tools; "" for none."""
    own = ROOT / "build/tools" / name
    found = shutil.which(name) or (str(own) if os.access(own, os.X_OK) else "")
    return _undispatched(found) if name == "kubectl" and found else found


def _undispatched(kubectl: str) -> str:
    """A link to the newest kubectl that lies beside one of Google's, or `kubectl`.

    Google's asks the server for its version and runs another, which takes twice the processor time.
    """
    beside = Path(kubectl).resolve().parent.glob("kubectl.1.*")
    newest = max(beside, key=lambda path: int(path.suffix[1:]), default=None)
    if newest is None:
        return kubectl
    folder = tempfile.mkdtemp(prefix="railcni-kubectl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    link = Path(folder, "kubectl")
    link.symlink_to(newest)
    return str(link)


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
needs_kubectl = needs("kubectl", "it renders kustomizations")
needs_compiler = needs("cc", "apt-get install gcc libc6-dev")


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it, with its output."""
    return subprocess.run([find(name), *arguments], capture_output=True, text=True)


def kustomized(folder: Path, *components: str, copy: Path | None = None) -> list[dict[str, Any]]:
    """The objects of a kustomization; with `components`, those of a `copy` that has them too."""
    if copy:
        shutil.copytree(folder, copy)
        with (copy / "kustomization.yaml").open("a") as file:
            file.write(f"components: [{', '.join(components)}]\n")
    done = run("kubectl", "kustomize", str(copy or folder))
    assert done.returncode == 0, done.stderr
    return list(
        yaml.load_all(done.stdout, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    )  # libyaml: a tenth of the time


def script(name: str) -> ModuleType:
    """The module .ci/NAME.py, which `make` runs."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
