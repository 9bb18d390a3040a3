"""The initrd of a guest: busybox, init.sh, and the modules that a root over 9p needs, with what they depend on."""

import gzip
import lzma
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_INIT = Path(__file__).with_name("init.sh")
_BOOT = ("virtio_pci", "9p", "9pnet_virtio", "overlay")
_DIRECTORIES = ("bin", "modules", "proc", "sys", "dev", "ro", "rw", "tools", "new")
_DIRECTORY, _FILE, _CONSOLE = 0o040755, 0o100755, 0o020600


def release(kernel: Path) -> str:
    """The release of the kernel that is unpacked in `kernel`, which names the folder of its modules."""
    return next(iter(sorted(p.name for p in (kernel / "usr" / "lib" / "modules").iterdir())))


def image(kernel: Path) -> Path:
    """The file that is booted."""
    named = kernel / "boot" / f"vmlinuz-{release(kernel)}"
    return named if named.exists() else kernel / "usr" / "lib" / "modules" / release(kernel) / "vmlinuz"


def modules(kernel: Path) -> Path:
    """The folder of its modules, as /lib/modules/RELEASE has them."""
    return kernel / "usr" / "lib" / "modules" / release(kernel)


def make(kernel: Path, tools: Path) -> Path:
    """The initrd for `kernel`, made when it is not there or older than what goes into it."""
    made = kernel / "initrd.gz"
    if made.exists() and made.stat().st_mtime >= _INIT.stat().st_mtime:
        return made
    if not (modules(kernel) / "modules.dep").exists():
        depmod = [str(tools / "usr" / "bin" / "kmod"), "-b", str(kernel / "usr"), release(kernel)]
        subprocess.run(["depmod", *depmod[1:]], executable=depmod[0], check=True)
    files: list[tuple[str, int, bytes]] = [(name, _DIRECTORY, b"") for name in _DIRECTORIES]
    files += [("dev/console", _CONSOLE, b"")]  # so that what init says before there is a devtmpfs is seen
    files += [("bin/busybox", _FILE, (tools / "usr" / "bin" / "busybox").read_bytes())]
    files += [("init", _FILE, _INIT.read_bytes())]
    for number, path in enumerate(_in_order(modules(kernel), _BOOT)):
        files.append((f"modules/{number:02}-{path.name.partition('.')[0]}.ko", _FILE, _plain(path, tools)))
    new = made.with_suffix(".new")
    new.write_bytes(gzip.compress(b"".join(_archive(files)), 1))
    return new.replace(made)


def _in_order(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of the modules `names` and of all that they depend on, each after those that it needs."""
    depends: dict[str, list[str]] = {}
    paths: dict[str, str] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, needed = line.partition(":")
        paths[_name(path)] = path
        depends[path] = needed.split()
    found: dict[Path, None] = {}
    for name in names:
        if path := paths.get(_name(name)):  # else it is built in
            found |= {folder / needed: None for needed in [*reversed(depends[path]), path]}
    return list(found)


def _name(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0].replace("-", "_")


def _plain(path: Path, tools: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".zst":
        return subprocess.run([tools / "usr" / "bin" / "zstd", "-dqc", path], check=True, capture_output=True).stdout
    return data


def _archive(files: Iterable[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """The files, as (name, mode, content), in the kernel's format (Documentation/driver-api/early-userspace/
    buffer-format.rst): headers of 13 numbers in hexadecimal, name and content each filled up to 4 bytes."""
    for inode, (name, mode, data) in enumerate([*files, ("TRAILER!!!", 0, b"")], 1):
        device = (5, 1) if mode == _CONSOLE else (0, 0)
        numbers = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % number for number in numbers) + name.encode() + b"\0"
        yield head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)
