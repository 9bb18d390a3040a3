"""Kernel modules of the lab's own, built against the headers of the kernel that they are for."""

import shutil
import subprocess
from pathlib import Path

from tests.lab import initrd, packages
from tests.lab.packages import Unavailable


def build(folder: Path, kernel: Path, name: str, module: str) -> Path:
    """The file of `module`, whose source lies beside this file, for `kernel`. Unavailable: what hinders."""
    source = Path(__file__).with_name(f"{module}.c")
    made = kernel / "helpers" / f"{module}.ko"
    if made.exists() and made.stat().st_mtime > source.stat().st_mtime:
        return made
    headers = packages.headers(folder, name, initrd.release(kernel))
    shutil.rmtree(made.parent, ignore_errors=True)
    made.parent.mkdir()
    shutil.copy(source, made.parent)
    (made.parent / "Makefile").write_text(f"obj-m := {module}.o\n")
    command = ["make", "-C", str(headers), f"M={made.parent}", "modules"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not made.exists():
        raise Unavailable(f"{module} cannot be built: {(done.stderr or done.stdout).strip()[-300:]}")
    return made
