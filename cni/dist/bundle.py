"""`make bundle`: makes a directory that runs from any path on any Linux of its architecture, and its .tar.gz.

bin/       macvlan, host-device, sriov, rdma, whereabouts, railcni, kubectl-railcni, python3: launcher.c, compiled;
           railcni-*: links to these plugins
cni/ ipam/ the project, as bytecode
lib/       the dynamic loader, the shared libraries, and pythonX.Y/ with the standard library and site-packages
libexec/   the interpreter itself, and the script of each executable of bin/
licenses/  the terms of the distribution's packages
share/     manual pages, and completion for shells

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
import sysconfig
import tempfile
import tomllib
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cni import VERSION
from cni.link.plugins import EXECUTABLES

PROJECT = Path(__file__).resolve().parents[2]
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))  # the time of all files: reproducible-builds.org
PYTHON = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]  # the CPython that runs this process
PREFIX = Path(sys.base_prefix)
_STANDARD = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
_PLATFORM = Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_prefix}))
LIBRARY = str(_STANDARD.relative_to(PREFIX))  # lib/pythonX.Y

# Unused modules of the standard library, by the first part of their path.
_LEFT_OUT = {
    "test", "idlelib", "lib2to3", "ensurepip", "turtledemo", "tkinter", "pydoc_data", "distutils", "venv",
    "turtle.py", "antigravity.py", "this.py", "__phello__", "_aix_support.py", "_osx_support.py", "__pycache__",
    "site-packages", "dist-packages", "lib-dynload", "EXTERNALLY-MANAGED", "sitecustomize.py",
}  # fmt: skip
# Extension modules for tests, and for terminals and databases, which need further libraries (readline's is GPL).
_LEFT_OUT_EXTENSIONS = (
    "_test", "_xx", "xx", "_ctypes_test", "_tkinter", "readline", "_curses", "_dbm", "_gdbm", "nis", "ossaudiodev",
    "_crypt", "audioop", "_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw",
    "_multibytecodec",
)  # fmt: skip
# Files of a distribution's metadata with details of the machine where the distribution was installed.
_LEFT_OUT_METADATA = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
LARGEST_PAGE = 0x10000  # bytes; aarch64 kernels with 64 KB pages (RHEL, NVIDIA Grace) refuse a smaller alignment

NAME = f"railcni-{VERSION}-linux-{platform.machine()}"  # of the bundle, and of its directory
_LAUNCHER = PROJECT / "cni/warm/launcher.c"
PROGRAMS = ("cli", "cluster", "documents", "lint", "node", "resources")  # the packages that no plugin imports
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


class CannotBuild(Exception):
    """Raised when a bundle cannot be built; the message names the cause and the remedy."""


def standard_library() -> Iterator[tuple[str, Path]]:
    """Yield (path in the bundle, source) for each module and extension module of the standard library."""
    for path in sorted(_STANDARD.iterdir()):
        if path.name in _LEFT_OUT or path.name.startswith(("config-", "LICENSE")):
            continue
        if path.is_dir():
            for file in _files(path):
                yield f"{LIBRARY}/{file.relative_to(_STANDARD)}", file
        elif path.suffix == ".py":
            yield f"{LIBRARY}/{path.name}", path
    extensions = next((p for p in (_PLATFORM, _STANDARD) if (p / "lib-dynload").is_dir()), _STANDARD)
    for path in sorted(extensions.glob("lib-dynload/*.so")):
        if not path.name.startswith(_LEFT_OUT_EXTENSIONS):
            yield f"{LIBRARY}/lib-dynload/{path.name}", path


def distributions(extra: str = "") -> list[Distribution]:
    """The installed distributions that the project and its `extra` depend on, ordered by name."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    more = project["optional-dependencies"][extra] if extra else []
    wanted = [Requirement(text) for text in (*project["dependencies"], *more)]
    found: dict[str, Distribution] = {}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        wanted += [Requirement(text) for text in found[name].requires or []]
    return [found[name] for name in sorted(found)]


def packages(installed: list[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield (path in the bundle, source) for each file of `installed`. Raises CannotBuild if a file list is missing."""
    for dist in installed:
        if dist.files is None:
            raise CannotBuild(f"{dist.name} has no list of its files: install it with pip, from requirements.txt")
        for path in sorted(dist.files):
            outside = ".." in path.parts  # scripts in bin/
            metadata = path.parts[0].endswith(".dist-info")
            if outside or "__pycache__" in path.parts or "tests" in path.parts or path.suffix in (".pyi", ".typed"):
                continue
            if metadata and path.name in _LEFT_OUT_METADATA:
                continue
            yield f"{LIBRARY}/site-packages/{path}", Path(str(path.locate()))


def project_files() -> Iterator[tuple[str, Path]]:
    """Yield (path in the bundle, source) for the project's modules, the licence, and conf/, which the demo uses."""
    for path in (*(file for top in ("cni", "ipam", "conf") for file in _files(PROJECT / top)), PROJECT / "LICENSE"):
        target = str(path.relative_to(PROJECT))
        if not target.startswith("cni/dist/"):
            yield target, path


def _files(top: Path) -> Iterator[Path]:
    for path in sorted(top.rglob("*")):
        left_out = {"__pycache__", "test", "tests"} & set(path.relative_to(top).parts)
        if path.is_file() and not left_out and path.suffix not in (".pyc", ".pyi", ".typed", ".sh", ".c", ".flags"):
            yield path


# --- the ELF files; readelf of binutils describes them ---


def is_elf(file: Path) -> bool:
    """Whether `file` is a 64-bit little-endian ELF file."""
    with file.open("rb") as opened:
        return opened.read(6) == b"\x7fELF\x02\x01"


def described(file: Path) -> str:
    """The output of readelf about segments and dynamic section of `file`. Raises CannotBuild without readelf."""
    if not shutil.which("readelf"):
        raise CannotBuild("no readelf: apt-get install binutils")
    environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    return subprocess.run(["readelf", "-Wld", file], env=environ, capture_output=True, text=True).stdout


def search_path(file: Path) -> list[str]:
    """The folders in RPATH and RUNPATH of `file`, in which the dynamic loader searches for libraries."""
    found = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", described(file))
    return [folder for folders in found for folder in folders.split(":")]


def loader() -> Path:
    """The path of the dynamic loader that Python's ELF file names. Raises CannotBuild if the loader is not glibc's."""
    found = re.search(r"Requesting program interpreter: (.*)\]", described(PYTHON))
    if not found or not Path(found[1]).name.startswith("ld-linux"):
        raise CannotBuild(
            f"{PYTHON} is not linked with glibc (its loader is {found[1] if found else 'none'}): make PYTHON=…"
        )
    return Path(found[1])


def needed(sources: Collection[Path]) -> dict[str, Path]:
    """Map names to paths, for the loader and for libraries outside of `sources` that ELF files in `sources` need.

    This machine's loader finds the libraries (ld.so(8), --list). Raises CannotBuild when a library is missing, or when
    two libraries have the same name."""
    ld = loader()
    own = {source.resolve() for source in sources}
    found = {ld.name: ld.resolve()}
    for source in filter(is_elf, sources):
        done = subprocess.run([ld, "--list", source], capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"the libraries of {source} are not all here: {(done.stderr or done.stdout)[-300:]}")
        for name, path in re.findall(r"^\s*([^/\s]\S*) => (.*) \(", done.stdout, re.M):
            file = Path(path).resolve()
            if file in own:
                continue  # a wheel's own library, beside the module that needs it
            if found.setdefault(name, file) != file:
                raise CannotBuild(f"two libraries are called {name}: {found[name]} and {file}, for {source}")
    return dict(sorted(found.items()))


def for_anywhere(top: Path, machine: str) -> None:
    """Remove debugging sections, and library search paths outside of the bundle, from the ELF files below `top`.

    Raises CannotBuild if patchelf is needed but missing, and for an aarch64 file that a kernel with 64 KB pages cannot
    load."""
    small = []
    for file in sorted(top.rglob("*")):
        if file.is_symlink() or not file.is_file() or not is_elf(file):
            continue
        target = str(file.relative_to(top))
        if b".debug_info\0" in file.read_bytes():  # two thirds of the size of a CPython built from source
            subprocess.run(["strip", "--strip-debug", file], check=True)
        folders = search_path(file)
        if not all(folder.startswith("$ORIGIN") for folder in folders):  # other folders would precede the bundle's
            if not shutil.which("patchelf"):
                raise CannotBuild(f"{target} searches libraries in {':'.join(folders)}: apt-get install patchelf")
            subprocess.run(["patchelf", "--remove-rpath", file], check=True)
        alignments = re.findall(r"^ +LOAD .* (0x\w+)$", described(file), re.M)
        if any(int(alignment, 16) < LARGEST_PAGE for alignment in alignments):
            small.append(target)
    if small and machine == "aarch64":
        message = f"{', '.join(small)}: linked for pages smaller than 64 KB, which nodes with such a kernel cannot load; build those packages from source with LDFLAGS=-Wl,-z,max-page-size=65536"
        raise CannotBuild(message)


# --- the bundle ---


def build(target: Path, extra: str = "") -> Path:
    """Make the bundle in the directory `target`, and its .tar.gz beside it; return the bundle's directory.

    `extra` names a set of optional dependencies in pyproject.toml that the bundle also gets. Raises CannotBuild when
    the bundle cannot be built or does not run; then the former bundle stays.
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
    machine = {"libexec/python3": PYTHON, **dict(standard_library())}
    files = machine | dict(packages(distributions(extra))) | dict(project_files())
    libraries = {f"lib/{name}": file for name, file in needed(files.values()).items()}
    for target, file in (files | libraries).items():
        _add(top, target, file.read_bytes(), executable=target == "libexec/python3" or target in libraries)
    launcher, linked = compile_launcher(loader().name)
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
    for_anywhere(top, platform.machine())


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
    """Compile launcher.c for a bundle with the dynamic loader `loader`; return (executable, linked static libraries).

    The C compiler is $CC, else musl-gcc, else cc. Raises CannotBuild when this compiler is missing or fails."""
    compiler = shlex.split(os.environ.get("CC") or shutil.which("musl-gcc") or "cc")
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
        argv = [*compiler, *flags, str(_LAUNCHER), "-Wl,--trace", "-o", str(output)]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode:
            raise CannotBuild(f"{_LAUNCHER.name} cannot be compiled: {done.stderr[-500:]}")
        linked = sorted({Path(name).resolve() for name in re.findall(r"/[^\s():]*\.a\b", done.stdout)})
        return output.read_bytes(), linked


def compile_modules(top: Path) -> None:
    """Replace each module's .py by a .pyc below the directory `top`.

    An import then looks for one file fewer, and no node has source files whose edits would have no effect. Tracebacks
    name the module's path in the bundle."""
    _run("-m", "compileall", "-bq", "--invalidation-mode=unchecked-hash", "-s", str(top), str(top))
    for module in top.rglob("*.py"):
        module.unlink()


def _run(*arguments: str) -> bytes:
    """Run a fresh interpreter with `arguments`; return its output.

    The output must be the same in each build. But marshal's output depends on shared references in the process
    (bpo-34093), and the order of a set on the hash seed. So the process has a fixed seed and no other task, and
    compiles all modules in the order of their paths. Raises CannotBuild when the process fails."""
    done = subprocess.run([str(PYTHON), "-BSs", *arguments], env={"PYTHONHASHSEED": "0"}, capture_output=True)
    if done.returncode:
        fault = (done.stderr or done.stdout).decode(errors="replace")[-500:]
        raise CannotBuild(f"the modules cannot be compiled by {PYTHON}: {fault}")
    return done.stdout


def _try(bundle: Path, extra: str) -> None:
    """Run a plugin and both commands of the bundle in an empty environment, and import all modules that a command may
    import later. Raises CannotBuild when one of these fails."""
    found = [path.relative_to(bundle) for path in sorted(bundle.glob("cni/*/**/*.pyc"))]
    wanted = [path for path in found if path.parts[1] in PROGRAMS and (extra or _NEEDS_EXTRA.isdisjoint(path.parts))]
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
        # the bundle gets the interpreter of this process, with the interpreter's packages
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
