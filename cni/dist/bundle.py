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
from cni.dist import archive, bill, contents, elf, manual
from cni.dist.contents import Bundle, CannotBuild
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
_COMPILE = """\
import py_compile, sys
top = sys.argv[1]
for module in sys.argv[2:]:
    source = f"{top}/{module}"
    py_compile.compile(source, f"{source}c", module, True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""
_PACK = "import sys; sys.path[0] = sys.argv[1]; from cni.compiled import pack; sys.stdout.buffer.write(pack.pack(sys.argv[1]))"


def name(machine: str = platform.machine()) -> str:
    """The bundle's name, which is also that of its directory."""
    return f"railcni-{VERSION}-linux-{machine}"


def build(target: Path, extra: str = "") -> Path:
    """Make the bundle in the directory `target`, and its .tar.gz beside it; return the bundle's directory. `extra` is a set
    of optional dependencies, of pyproject.toml, that it holds too.

    CannotBuild says what is missing. What stood there before stays until the new one is complete and has answered.
    """
    made = target / (f"{name()}-{extra}" if extra else name())
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as folder:
        new = Path(folder, name())
        _fill(Bundle(new), extra)
        _finish(new, MOST_BYTES + (MOST_EXTRA_BYTES if extra else 0))
        _try(new, extra)
        shutil.rmtree(made, ignore_errors=True)
        new.rename(made)
    made.with_name(f"{made.name}.tar.gz").write_bytes(archive.compress(archive.pack(made, made.name)))
    return made


def _fill(bundle: Bundle, extra: str) -> None:
    installed = contents.distributions(extra=extra)
    bundle.add("libexec/python3", contents.PYTHON, "", executable=True)
    for target, file in contents.standard_library():
        bundle.add(target, file, "")
    for target, file, origin in contents.packages(installed):
        bundle.add(target, file, origin)
    for target, file in contents.project_files():
        bundle.add(target, file)
    for library, file in elf.needed(bundle.sources.values()).items():
        bundle.add(f"lib/{library}", file, "", executable=True)
    bundle.add("VERSION", f"{VERSION}\n".encode())
    launcher = compile_launcher(elf.loader().name)
    for executable in (*EXECUTABLES, "railcni", "kubectl-railcni", "python3"):
        bundle.add(f"bin/{executable}", launcher, executable=True)
    template = (contents.PROJECT / "bin/launcher.in").read_text()
    for plugin in EXECUTABLES:
        bundle.add(f"libexec/{plugin}.py", template.replace("@PLUGIN@", plugin).encode())
        (bundle.top / f"bin/railcni-{plugin}").symlink_to(plugin)
    command = _RUN_COMMAND.format(library=contents.LIBRARY)
    bundle.add("libexec/railcni.py", command.encode())
    cluster = command.replace("sys.exit", 'sys.argv.insert(1, "cluster")\nsys.exit')
    bundle.add("libexec/kubectl-railcni.py", cluster.encode())
    packages = bill.attribute(bundle, installed)
    for package in packages:
        if package.terms:
            bundle.add(f"licenses/{package.name}", package.terms, package.name)
    manual.add(bundle)
    compile_modules(bundle)
    bundle.add(f"bin/modules.{sys.implementation.cache_tag}", _run(_PACK, str(contents.PROJECT)))
    elf.for_anywhere(bundle, platform.machine())
    bundle.add(bill.FILE, bill.document(name(), bundle, packages))


def compile_launcher(loader: str) -> bytes:
    """launcher.c, compiled for a bundle whose loader is called so, by the C compiler CC (default: cc)."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not shutil.which(compiler[0]):
        raise CannotBuild(
            f"no C compiler {compiler[0]}, for {_LAUNCHER.name}: apt-get install gcc libc6-dev, or name one with CC=…"
        )
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "launcher")
        names = [f'-DTAG="{sys.implementation.cache_tag}"', f'-DLOADER="{loader}"']
        argv = [*compiler, f"@{_LAUNCHER.with_suffix('.flags')}", *names, str(_LAUNCHER), "-o", str(output)]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"{_LAUNCHER.name} cannot be compiled: {done.stderr[-500:]}")
        return output.read_bytes()


def compile_modules(bundle: Bundle) -> None:
    """Put bytecode in place of the source of each module.

    A module's .pyc lies where its .py would: the import system then asks for one file less, and nobody can edit a
    source on a node in vain. Tracebacks name the module's path in the bundle.
    """
    modules = sorted(target for target in bundle.origins if target.endswith(".py"))
    _run(_COMPILE, str(bundle.top), *modules)
    for target in modules:
        (bundle.top / target).unlink()
        bundle.origins[f"{target}c"] = bundle.origins.pop(target)


def _run(program: str, *arguments: str) -> bytes:
    """What `program` prints in a fresh interpreter.

    What marshal writes depends on which objects happen to be shared in the process that writes (bpo-34093), and the
    order of a set on the seed of string hashes: for the same bytes each time the process has a fixed seed and nothing
    more to do, and compiles everything in the order of the paths.
    """
    argv = [str(contents.PYTHON), "-BSs", "-c", program, *arguments]
    done = subprocess.run(argv, env={"PYTHONHASHSEED": "0"}, capture_output=True)
    if done.returncode:
        fault = done.stderr.decode(errors="replace")[-500:]
        raise CannotBuild(f"the modules cannot be compiled by {contents.PYTHON}: {fault}")
    return done.stdout


def _finish(top: Path, most: int) -> None:
    """Give all that lies there the modes and the time of a bundle; CannotBuild when it has more than `most` bytes."""
    size = 0
    for path in archive.tree(top):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
            size += 0 if path.is_dir() else path.stat().st_size
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
    modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in wanted]
    start = _RUN_COMMAND.partition("from cni")[0].replace("__file__", f"{str(bundle / 'libexec/railcni.pyc')!r}")
    program = start.format(library=contents.LIBRARY) + "".join(f"import {module}\n" for module in modules)
    for argv, environ in (
        (["bin/macvlan"], {"CNI_COMMAND": "VERSION"}),
        (["bin/railcni", "--help"], {}),
        (["bin/kubectl-railcni", "--help"], {}),
        (["bin/python3", "-IS", "-c", program], {}),
    ):
        done = subprocess.run([bundle / argv[0], *argv[1:]], env=environ, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"the bundle does not run: {argv[0]}: {(done.stderr or done.stdout)[-500:]}")
