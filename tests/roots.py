"""Roots for RAILCNI_CHROOT (tests/node.py): hosts of other kinds, in which a bundle has to run.

    python -m tests.roots DIR                 a root that holds a static busybox and nothing else
    python -m tests.roots --of DIR            DIR is the root of a distribution, such as debootstrap makes

Both get the directories over which tests/node.py mounts, and Go's plugins, which some tests run beside ours: into a
root without their C library with a copy of it, out of the reach of everything else.
"""

import argparse
import os
import shutil
import subprocess
from pathlib import Path

from tests.node import BIN, GO_PLUGINS, ROOT

BUSYBOX = Path("/bin/busybox")
MOUNTED = ("/proc", "/dev", "/tmp", "/sys", "/run", "/var/lib", "/var/log", "/etc")
_PRIVATE = "/usr/libexec/go-plugins"


def busybox(top: Path) -> None:
    """Make the root of a host with busybox alone."""
    (top / "bin").mkdir(parents=True)
    shutil.copy(BUSYBOX, top / "bin/busybox")
    for applet in subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            (top / "bin" / applet).symlink_to("busybox")
    prepare(top, own_libraries=True)


def prepare(top: Path, own_libraries: bool = False) -> None:
    """Make what tests/node.py needs in the root `top`; `own_libraries`: Go's plugins bring theirs."""
    for path in (*MOUNTED, str(ROOT), str(BIN.parent)):
        (top / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    plugins = top / str(GO_PLUGINS).lstrip("/")
    plugins.mkdir(parents=True, exist_ok=True)
    private = top / _PRIVATE.lstrip("/")
    private.mkdir(parents=True, exist_ok=True)
    for plugin in sorted(GO_PLUGINS.iterdir()) if GO_PLUGINS.is_dir() else []:
        shutil.copy(plugin, (private if own_libraries else plugins) / plugin.name)
        if own_libraries:
            loader = ""
            for line in subprocess.run(["ldd", plugin], capture_output=True, text=True).stdout.splitlines():
                library = Path(line.partition(" (")[0].rpartition(" => ")[2].strip())
                if library.is_absolute():
                    shutil.copy(library, private / library.name)
                    loader = library.name if library.name.startswith("ld-") else loader
            command = f"{_PRIVATE}/{loader} --library-path {_PRIVATE} {_PRIVATE}/{plugin.name}"
            script = plugins / plugin.name
            script.write_text(f'#!/bin/sh\nexec {command if loader else f"{_PRIVATE}/{plugin.name}"} "$@"\n')
            script.chmod(0o755)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", action="store_true", help="DIR is there already")
    parser.add_argument("top", type=Path, metavar="DIR")
    chosen = parser.parse_args()
    os.umask(0o022)
    (prepare if chosen.of else busybox)(chosen.top)


if __name__ == "__main__":
    main()
