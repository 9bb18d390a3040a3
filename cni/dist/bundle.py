"""Assemble a bundle: a directory that runs on any Linux of its architecture, wherever it lies; and its .tar.gz.

Measured, medians of one run of 200 calls, in ms; x86_64, CPython 3.11 of Debian 12: a script that ends at once takes
4.69 with the interpreter alone (`python3 -IS`), 4.74 through the bundle's launcher and loader, 5.10 through a launcher
linked with a static glibc, 5.22 through a shell script, and 5.10 with a program that embeds the distribution's
libpython.a and is told all paths. So: the interpreter as it is, which any CPython can be, and the smallest launcher.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cni import VERSION
from cni.dist import archive, bill, bytecode, contents, libraries, manual, origins
from cni.dist.contents import BundleEntry, Interpreter
from cni.dist.errors import CannotBuild
from cni.plugins import EXECUTABLES

_PROGRAMS = ("agent", "cli", "device_plugin", "library")
_NEEDS_EXTRA = "device_plugin"
MOST_EXTRA_BYTES = 25_000_000
MOST_BYTES = 70_000_000  # unpacked: every node keeps it twice, this version and the one before

_LAUNCHER = contents.PROJECT / "cni/warm/launcher.c"

_RUN_COMMAND = """\
import sys
root = __file__.rpartition("/libexec/")[0]
sys.path[:0] = [root]
sys.path.append(root + "/{library}/site-packages")
from cni.cli.main import main
sys.exit(main())
"""


def name(machine: str = platform.machine()) -> str:
    """The bundle's name, which is also that of its directory."""
    return f"railcni-{VERSION}-linux-{machine}"


def build(target: Path, extra: str = "") -> Path:
    """Make the bundle in the directory `target`, and its .tar.gz beside it; return the bundle's directory. `extra` is a set
    of optional dependencies, of pyproject.toml, that it holds too.

    CannotBuild says what is missing. What stood there before stays until the new one is complete and has answered.
    """
    python = Interpreter()
    made = target / (f"{name()}-{extra}" if extra else name())
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        new = Path(folder, name())
        _write(_entries(python, extra), new, MOST_BYTES + (MOST_EXTRA_BYTES if extra else 0))
        _try(new, extra)
        shutil.rmtree(made, ignore_errors=True)
        new.rename(made)
    made.with_name(f"{made.name}.tar.gz").write_bytes(archive.compress(archive.pack(made, made.name)))
    return made


def _entries(python: Interpreter, extra: str) -> list[BundleEntry]:
    """All that the bundle holds, in the order of the paths."""
    installed = contents.distributions(extra=extra)
    entries = [
        BundleEntry("libexec/python3", python.executable, executable=True),
        *contents.standard_library(python),
        *contents.packages(python, installed),
        *contents.project_files(),
    ]
    entries += libraries.needed(entries, python)
    entries.append(BundleEntry("VERSION", data=f"{VERSION}\n".encode(), origin="railcni"))
    template = (contents.PROJECT / "bin/launcher.in").read_text()
    for plugin in EXECUTABLES:
        start = template.replace("@PLUGIN@", plugin).encode()
        entries.append(BundleEntry(f"libexec/{plugin}.py", data=start, origin="railcni"))
        entries.append(BundleEntry(f"bin/railcni-{plugin}", link=plugin, origin="railcni"))
    command = _RUN_COMMAND.format(library=python.library)
    entries.append(BundleEntry("libexec/railcni.py", data=command.encode(), origin="railcni"))
    cluster = command.replace("sys.exit", 'sys.argv.insert(1, "cluster")\nsys.exit')
    entries.append(BundleEntry("libexec/kubectl-railcni.py", data=cluster.encode(), origin="railcni"))
    launcher = compile_launcher(libraries.loader(python).name)
    for executable in (*EXECUTABLES, "railcni", "kubectl-railcni", "python3"):
        entries.append(BundleEntry(f"bin/{executable}", data=launcher, executable=True, origin="railcni"))
    packages = origins.attribute(entries, python, installed)
    for package in packages:
        if package.terms:
            entries.append(
                BundleEntry(f"licenses/{package.name}", data=package.terms.read_bytes(), origin=package.name)
            )
    entries += manual.entries()
    entries = [*bytecode.compiled(entries, python.executable), *bytecode.packs(contents.PROJECT, python.executable)]
    libraries.for_anywhere(entries, platform.machine())
    entries.sort(key=lambda entry: entry.target)
    document = bill.document(name(), entries, packages, origins.linked())
    return [*entries, BundleEntry(bill.FILE, data=document, origin="railcni")]


def compile_launcher(loader: str) -> bytes:
    """launcher.c, compiled for a bundle whose loader is called so, by the C compiler CC (default: cc)."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not shutil.which(compiler[0]):
        raise CannotBuild(
            f"no C compiler {compiler[0]}, for {_LAUNCHER.name}: apt-get install gcc libc6-dev, or name one with CC=…"
        )
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "launcher")
        flags = [
            f"@{_LAUNCHER.with_suffix('.flags')}",
            f'-DTAG="{sys.implementation.cache_tag}"',
            f'-DLOADER="{loader}"',
        ]
        argv = [*compiler, *flags, str(_LAUNCHER), "-o", str(output)]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"{_LAUNCHER.name} cannot be compiled: {done.stderr[-500:]}")
        return output.read_bytes()


def _write(entries: list[BundleEntry], top: Path, most: int) -> None:
    size = 0
    for entry in entries:
        path = top / entry.target
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.link:
            path.symlink_to(entry.link)
            continue
        path.write_bytes(entry.read())
        path.chmod(0o755 if entry.executable else 0o644)
        size += len(entry.read())
    for path in archive.tree(top):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
        os.utime(path, (archive.epoch(), archive.epoch()), follow_symlinks=False)
    if size > most:
        raise CannotBuild(
            f"the bundle has {size:,} bytes; at most {most:,} are wanted: see contents.py for what to leave out"
        )


def _try(bundle: Path, extra: str) -> None:
    """Call it once as a runtime does, once as a person does, and import all that the command may import later; with
    nothing else in the environment."""
    found = [path.relative_to(bundle) for path in sorted(bundle.glob("cni/*/**/*.pyc"))]
    wanted = [path for path in found if path.parts[1] in _PROGRAMS and (extra or _NEEDS_EXTRA not in path.parts)]
    imports = "\n".join(_module(path) for path in wanted)
    start = _RUN_COMMAND.partition("from cni")[0].replace("__file__", f"{str(bundle / 'libexec/railcni.pyc')!r}")
    program = start.format(library=Interpreter().library) + imports
    for argv, environ in (
        (["bin/macvlan"], {"CNI_COMMAND": "VERSION"}),
        (["bin/railcni", "--help"], {}),
        (["bin/kubectl-railcni", "--help"], {}),
        (["bin/python3", "-IS", "-c", program], {}),
    ):
        done = subprocess.run([bundle / argv[0], *argv[1:]], env=environ, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"the bundle does not run: {argv[0]}: {(done.stderr or done.stdout)[-500:]}")


def _module(path: Path) -> str:
    """The statement that imports the module at `path`."""
    return f"import {'.'.join(path.with_suffix('').parts).removesuffix('.__init__')}"
