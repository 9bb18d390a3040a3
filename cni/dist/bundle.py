"""`make bundle`: a directory that runs from any path on any Linux of its architecture; and its .tar.gz.

Medians of 200 calls of a script that ends at once, in ms (x86_64, CPython 3.11 of Debian 12): 4.69 with the interpreter
alone (`python3 -IS`), 4.74 through the bundle's launcher and loader, 5.10 through a launcher linked with a static
glibc, 5.22 through a shell script, and 5.10 with a program that contains Debian's libpython.a. So a bundle has an
unmodified CPython interpreter, and the smallest launcher.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cni import VERSION
from cni.dist import contents, elf
from cni.dist.contents import EPOCH, LIBRARY, PROJECT, PYTHON, CannotBuild
from cni.link.plugins import EXECUTABLES

NAME = f"railcni-{VERSION}-linux-{platform.machine()}"  # of the bundle, and of its directory
_LAUNCHER = PROJECT / "cni/warm/launcher.c"
_PROGRAMS = ("agent", "cli", "device_plugin", "dra", "library")
_NEEDS_EXTRA = {"device_plugin", "dra", "kubelet"}  # folders whose modules import gRPC

_START = f"""\
import sys
root = __file__.rpartition("/libexec/")[0]
sys.path[:0] = [root]
sys.path.append(root + "/{LIBRARY}/site-packages")
"""
_RUN_COMMAND = f"""{_START}from cni.cli.main import main
sys.exit(main())
"""
_AS_PLUGIN = 'import os\nos.environ["RAILCNI_NAME"] = "kubectl railcni"\nsys.argv.insert(1, "cluster")\n'
_RUN_CLUSTER = _RUN_COMMAND.replace("sys.exit", f"{_AS_PLUGIN}sys.exit")
_PACK = """\
import sys
sys.path[0] = sys.argv[1]
from cni.compiled import pack
sys.stdout.buffer.write(pack.pack(sys.argv[1]))
"""


def build(target: Path, extra: str = "") -> Path:
    """Make the bundle in the directory `target`, and its .tar.gz beside it; return the bundle's directory.

    `extra` names a set of optional dependencies in pyproject.toml that the bundle also gets. Raises CannotBuild when
    the bundle cannot be built or does not run; the former bundle then stays.
    """
    made = target / (f"{NAME}-{extra}" if extra else NAME)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        new = Path(folder, NAME)
        _fill(new, extra)
        for path in (*new.rglob("*"), new):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
        _try(new, extra)
        shutil.rmtree(made, ignore_errors=True)
        new.rename(made)
    owned = ["--sort=name", f"--mtime=@{EPOCH}", "--owner=0", "--group=0", "--numeric-owner"]
    argv = ["tar", *owned, "--use-compress-program=gzip -9n", "-cf", f"{made}.tar.gz", "-C", str(target), made.name]
    subprocess.run(argv, check=True)
    return made


def _fill(top: Path, extra: str) -> None:
    machine = {"libexec/python3": PYTHON, **dict(contents.standard_library())}
    files = machine | dict(contents.packages(contents.distributions(extra))) | dict(contents.project_files())
    libraries = {f"lib/{name}": file for name, file in elf.needed(files.values()).items()}
    for target, file in (files | libraries).items():
        _add(top, target, file.read_bytes(), executable=target == "libexec/python3" or target in libraries)
    launcher, linked = compile_launcher(elf.loader().name)
    copied = "\n".join(map(str, (*machine.values(), *libraries.values(), *linked)))
    _script("bill.py", top, copied)
    _add(top, "VERSION", f"{VERSION}\n".encode())
    for executable in (*EXECUTABLES, "railcni", "kubectl-railcni", "python3"):
        _add(top, f"bin/{executable}", launcher, executable=True)
    template = (PROJECT / "bin/launcher.in").read_text()
    for plugin in EXECUTABLES:
        _add(top, f"libexec/{plugin}.py", template.replace("@PLUGIN@", plugin).encode())
        (top / f"bin/railcni-{plugin}").symlink_to(plugin)
    _add(top, "libexec/railcni.py", _RUN_COMMAND.encode())
    _add(top, "libexec/kubectl-railcni.py", _RUN_CLUSTER.encode())
    _script("manual.py", top / "share")
    compile_modules(top)
    _add(top, f"bin/modules.{sys.implementation.cache_tag}", _run("-c", _PACK, str(PROJECT)))
    elf.for_anywhere(top, platform.machine())


def _script(name: str, folder: Path, given: str = "") -> None:
    """Run the script `name` of .ci, which reads `given` from stdin and writes into `folder`."""
    argv = [sys.executable, str(PROJECT / ".ci" / name), str(folder)]
    subprocess.run(argv, input=given, text=True, check=True, stdout=subprocess.DEVNULL)


def _add(top: Path, target: str, content: bytes, executable: bool = False) -> None:
    path = top / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if executable else 0o644)


def compile_launcher(loader: str) -> tuple[bytes, list[Path]]:
    """Compile launcher.c for a bundle with the loader `loader`; return the executable and the static libraries in it.

    The C compiler is $CC, else musl-gcc, else cc. Raises CannotBuild when it is missing or fails."""
    compiler = shlex.split(os.environ.get("CC") or shutil.which("musl-gcc") or "cc")
    if not shutil.which(compiler[0]):
        raise CannotBuild(
            f"no C compiler {compiler[0]}, for {_LAUNCHER.name}: apt-get install gcc libc6-dev, or name one with CC=…"
        )
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "launcher")
        names = [f'-DTAG="{sys.implementation.cache_tag}"', f'-DLOADER="{loader}"']
        argv = [
            *compiler,
            f"@{_LAUNCHER.with_suffix('.flags')}",
            *names,
            str(_LAUNCHER),
            "-Wl,--trace",
            "-o",
            str(output),
        ]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"{_LAUNCHER.name} cannot be compiled: {done.stderr[-500:]}")
        linked = sorted({Path(name).resolve() for name in re.findall(r"/[^\s():]*\.a\b", done.stdout)})
        return output.read_bytes(), linked


def compile_modules(top: Path) -> None:
    """Replace the source of each module by bytecode.

    A module's .pyc takes the place of its .py: an import then looks for one file fewer, and no source file on a node
    invites edits without effect. Tracebacks name the module's path in the bundle.
    """
    _run("-m", "compileall", "-bq", "--invalidation-mode=unchecked-hash", "-s", str(top), str(top))
    for module in top.rglob("*.py"):
        module.unlink()


def _run(*arguments: str) -> bytes:
    """Run a fresh interpreter with `arguments`; return its output.

    The output of marshal depends on the objects that its process shares (bpo-34093), and the order of a set depends on
    the seed of string hashes. To get the same bytes each time, the process has a fixed seed and no other task, and
    compiles all modules in the order of their paths. Raises CannotBuild when the process fails.
    """
    done = subprocess.run([str(PYTHON), "-BSs", *arguments], env={"PYTHONHASHSEED": "0"}, capture_output=True)
    if done.returncode:
        fault = (done.stderr or done.stdout).decode(errors="replace")[-500:]
        raise CannotBuild(f"the modules cannot be compiled by {PYTHON}: {fault}")
    return done.stdout


def _try(bundle: Path, extra: str) -> None:
    """Run a plugin, both commands, and the import of all modules that a command may import later, each with an empty
    environment. Raises CannotBuild when one of them fails."""
    found = [path.relative_to(bundle) for path in sorted(bundle.glob("cni/*/**/*.pyc"))]
    wanted = [path for path in found if path.parts[1] in _PROGRAMS and (extra or _NEEDS_EXTRA.isdisjoint(path.parts))]
    modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in wanted]
    program = _START.replace("__file__", repr(f"{bundle}/libexec/railcni.pyc")) + f"import {', '.join(modules)}\n"
    for argv, environ in (
        (["bin/macvlan"], {"CNI_COMMAND": "VERSION"}),
        (["bin/railcni", "--help"], {}),
        (["bin/kubectl-railcni", "--help"], {}),
        (["bin/python3", "-IS", "-c", program], {}),
    ):
        done = subprocess.run([bundle / argv[0], *argv[1:]], env=environ, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"the bundle does not run: {argv[0]}: {(done.stderr or done.stdout)[-500:]}")


def main() -> int:
    """Build the bundle, and print the paths of the bundle and of its .tar.gz; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cni.dist.bundle", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="DIR", help="default: build")
    parser.add_argument("--python", type=Path, metavar="FILE", help="refuse to build with another interpreter")
    parser.add_argument("--device-plugin", action="store_true", help="with gRPC too")
    chosen = parser.parse_args()
    try:
        # the bundle gets the interpreter that runs this, with its packages
        if chosen.python and chosen.python.resolve() != PYTHON:
            raise CannotBuild(
                f".venv is of {PYTHON}, not of {chosen.python}: make clean, then make again with PYTHON={chosen.python}"
            )
        made = build(chosen.output, "device-plugin" if chosen.device_plugin else "")
    except CannotBuild as fault:
        print(f"cannot build: {fault}", file=sys.stderr)
        return 1
    print(f"{made}\n{made}.tar.gz")
    return 0


if __name__ == "__main__":
    sys.exit(main())
