"""What is installed: the bundle in which this command runs, or from a checkout the plugins alone.

A bundle is a directory with `VERSION` and `bin/`, which needs nothing of the host; all of it is installed. A checkout is
for hosts with a Python: of it the plugins are installed, their modules in one file (cni/pack.py), and executables that
name this command's own interpreter by its absolute path. The command itself stays in the checkout: it needs more
packages.

The plugins are in a version twice: in bin/, and for their plain names as copies in plain/. An installer of the Go
plugins that runs `cp -f whereabouts /opt/cni/bin`, as whereabouts' own does at every start, writes through our link:
that changes what `whereabouts` is, which is what it is for, and must not change `railcni-whereabouts`.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from cni import VERSION, pack
from cni.cli.installation.below import below
from cni.cli.installation.layout import COPIES, PLAIN
from cni.spec.errors import IoFailure

VERSION_FILE = "VERSION"
_TEMPLATE = "bin/launcher.in"
_DIGEST_BYTES = 6


@dataclass(frozen=True)
class Entry:
    """A directory, or a file or link with its content (a link's is its target); `path` is relative."""

    path: str
    kind: Literal["directory", "file", "program", "link"]
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Source:
    """The content of a version: every directory before what is in it. `top` is where it comes from."""

    top: str
    release: str
    entries: tuple[Entry, ...]
    interpreter: str = ""  # a checkout's; a bundle has its own

    @property
    def version(self) -> str:
        """The name of its directory: the release and a digest of all that is in it."""
        return f"{self.release}-{digest(self.entries)}"

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(len(e.read()) for e in self.entries)


def here(start: str = __file__) -> Source:
    """The source that the file `start` belongs to; IoFailure when it is none."""
    folder = os.path.dirname(os.path.realpath(start))
    while True:
        if os.path.isfile(f"{folder}/{VERSION_FILE}") and os.path.isfile(f"{folder}/bin/{PLAIN[0]}"):
            return bundle(folder)
        if os.path.isfile(f"{folder}/{_TEMPLATE}"):
            return checkout(folder)
        if folder == "/":
            raise IoFailure(f"{start} lies neither in a bundle nor in a checkout of railcni: run the command of one")
        folder = os.path.dirname(folder)


def bundle(top: str) -> Source:
    """The bundle in the directory `top`."""
    with open(f"{top}/{VERSION_FILE}", encoding="utf-8") as file:
        release = file.read().split()[0]
    own = [entry for entry in tree(top) if entry.path.partition("/")[0] != COPIES]  # an installed version has them
    return Source(top, release, (*own, *_copies(partial(_content, f"{top}/bin/{name}") for name in PLAIN)))


def tree(top: str) -> Iterator[Entry]:
    """All that is in a directory, in the order of the names."""
    for folder, folders, files in os.walk(top):
        folders.sort()
        relative = os.path.relpath(folder, top)
        if relative != ".":
            yield Entry(relative, "directory", bytes)
        for name in sorted([*files, *(f for f in folders if os.path.islink(f"{folder}/{f}"))]):
            full = f"{folder}/{name}"
            path = os.path.normpath(os.path.join(relative, name))
            if os.path.islink(full):
                yield Entry(path, "link", partial(_target, full))
            else:
                mode = os.stat(full).st_mode
                if not stat.S_ISREG(mode):
                    raise IoFailure(f"{full} is neither a file, a directory nor a link: remove it from the bundle")
                yield Entry(path, "program" if mode & 0o100 else "file", partial(_content, full))


def checkout(top: str) -> Source:
    """The plugins of the checkout in the directory `top`, for this interpreter."""
    interpreter = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    entries = [Entry(VERSION_FILE, "file", partial(bytes, f"{VERSION}\n".encode())), Entry("bin", "directory", bytes)]
    template = _content(f"{top}/{_TEMPLATE}").decode().replace("@PYTHON@", interpreter)
    launchers = [partial(bytes, template.replace("@PLUGIN@", name).encode()) for name in PLAIN]
    entries += [Entry(f"bin/{name}", "program", launcher) for name, launcher in zip(PLAIN, launchers, strict=True)]
    entries += _copies(launchers)
    modules = pack.pack(top)
    entries.append(Entry(f"bin/modules.{sys.implementation.cache_tag}", "file", lambda: modules))
    return Source(top, VERSION, tuple(entries), interpreter)


def _copies(programs: Iterable[Callable[[], bytes]]) -> list[Entry]:
    copies = [Entry(f"{COPIES}/{name}", "program", read) for name, read in zip(PLAIN, programs, strict=True)]
    return [Entry(COPIES, "directory", bytes), *copies]


def digest(entries: tuple[Entry, ...]) -> str:
    """A hash of paths, kinds and contents, in hexadecimal digits."""
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for entry in sorted(entries, key=lambda e: e.path):
        content = hashlib.blake2b(entry.read()).hexdigest()
        whole.update(f"{entry.kind}\0{entry.path}\0{content}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def is_whole(directory: str) -> bool:
    """Whether an installed version holds what its name says."""
    wanted = os.path.basename(directory).rpartition("-")[2].partition(".")[0]
    try:
        return digest(tuple(tree(directory))) == wanted
    except (OSError, IoFailure):
        return False


def check_host(source: Source, root: str) -> None:
    """IoFailure when the host below `root` lacks the interpreter that the executables name."""
    if source.interpreter and not os.access(below(root, source.interpreter), os.X_OK):
        raise IoFailure(
            f"the host below {root} has no {source.interpreter}, which a checkout's executables name: install the bundle"
            " there (make bundle), which brings its own"
        )


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _target(path: str) -> bytes:
    return os.fsencode(os.readlink(path))
