"""A bundle for the tests: the one that RAILCNI_BIN names, or else one that is built here, once."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.node import BIN, IS_BUNDLE, ROOT


def missing() -> str:
    """Why none can be built here; "" when one can."""
    if IS_BUNDLE or shutil.which("cc"):
        return ""
    return "needs a C compiler: apt-get install gcc libc6-dev"


@functools.cache
def bundle() -> Path:
    """The directory of the bundle."""
    return BIN.parent if IS_BUNDLE else build(ROOT, ROOT / "build/tests")


def build(project: Path, target: Path, environ: dict[str, str] | None = None) -> Path:
    """Build what `make bundle` does, from the checkout `project`; the bundle's directory."""
    argv = [sys.executable, "-m", "cni.dist.bundle", "--output", str(target)]
    done = subprocess.run(argv, cwd=project, env=os.environ | (environ or {}), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split()[0]) if target.is_absolute() else project / done.stdout.split()[0]


def copy_of_the_checkout() -> Path:
    """A copy of what a bundle is built from, in another directory; the caller removes it."""
    top = Path(tempfile.mkdtemp(prefix="railcni-")) / "a directory with another name"
    for name in (".ci", "cni", "ipam", "conf", "bin"):
        shutil.copytree(
            ROOT / name, top / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "modules.cpython-*")
        )
    for name in ("LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, top)
    return top
