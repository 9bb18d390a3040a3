"""The content of a version: the bundle in which this command runs, or the plugins of a checkout.

A bundle is a directory with `VERSION` and `bin/` that needs no files of the host; the whole bundle is installed. A
checkout is for hosts with Python. Its plugins are installed as `make` has written them: one file has all modules, and
scripts name the interpreter by its absolute path. The command stays in the checkout, since it needs more packages.

A version has the plugins twice: in bin/, and as copies in plain/, to which names without railcni- lead. The installer
of Go whereabouts runs `cp -f whereabouts /opt/cni/bin` at every start, and so writes through railcni's link into the
copy. Then `whereabouts` is Go's again, as it should be, but `railcni-whereabouts` has not changed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from cni import VERSION
from cni.node.installation.layout import COPIES, PLAIN, PROGRAMS, SCRIPTS
from cni.shared.kernel.files import read_whole
from cni.shared.spec.errors import IoFailure

VERSION_FILE = "VERSION"
_TEMPLATE = "bin/launcher.in"  # every checkout has this file
_DIGEST_BYTES = 6


class VersionEntry(NamedTuple):
    """A directory, file or link at the relative `path`; `read` returns a file's content, or a link's target."""

    path: str
    kind: Literal["directory", "file", "program", "link"]
    read: Callable[[], bytes] = bytes


class Content(NamedTuple):
    """The content of a version. `entries` has directories before their content; `top` is the bundle or checkout."""

    top: str
    release: str
    entries: tuple[VersionEntry, ...]
    interpreter: str = ""  # a checkout's path of Python; "" for a bundle, which contains Python

    @property
    def version(self) -> str:
        """The name of the version's directory: the release and the digest of the content."""
        return f"{self.release}-{digest(self.entries)}"


def here() -> Content:
    """The content of the bundle or checkout that has this file. Raises IoFailure if the file is in neither."""
    for folder in map(str, Path(__file__).resolve().parents):
        if os.path.isfile(f"{folder}/{VERSION_FILE}") and os.path.isfile(f"{folder}/{PROGRAMS}/{PLAIN[0]}"):
            return bundle(folder)
        if os.path.isfile(f"{folder}/{_TEMPLATE}"):
            return checkout(folder)
    raise IoFailure(f"{__file__} lies neither in a bundle nor in a checkout of railcni: run the command of one")


def bundle(top: str) -> Content:
    """The content of the bundle in the directory `top`."""
    release = read_whole(f"{top}/{VERSION_FILE}").decode().split()[0]
    own = [entry for entry in tree(top) if entry.path.partition("/")[0] != COPIES]  # an installed version has copies
    return Content(top, release, (*own, *_copies(top)))


def checkout(top: str) -> Content:
    """The content of the checkout in the directory `top`. Raises IoFailure if `make` has not written the plugins."""
    try:
        interpreter = read_whole(f"{top}/{SCRIPTS}/{PLAIN[0]}").decode().partition(" ")[0].removeprefix("#!")
    except FileNotFoundError:
        raise IoFailure(f"the checkout {top} has no plugins yet: run `make` there first") from None
    entries = [VersionEntry(VERSION_FILE, "file", f"{VERSION}\n".encode)]
    for directory in (PROGRAMS, SCRIPTS):
        entries.append(VersionEntry(directory, "directory"))
        for entry in tree(f"{top}/{directory}"):
            if entry.path in PLAIN or entry.path.startswith("modules."):
                entries.append(entry._replace(path=f"{directory}/{entry.path}"))
    return Content(top, VERSION, (*entries, *_copies(top)), interpreter)


def _copies(top: str) -> Iterator[VersionEntry]:
    """Yield the entries of the copies of the plugins, for the plain names."""
    yield VersionEntry(COPIES, "directory")
    for name in PLAIN:
        yield VersionEntry(f"{COPIES}/{name}", "program", partial(read_whole, f"{top}/{PROGRAMS}/{name}"))


def tree(top: str) -> Iterator[VersionEntry]:
    """Yield the content of a directory, sorted by name. Raises IoFailure for a device, socket or FIFO."""
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted([*folders, *files]):
            full = f"{folder}/{name}"
            path, mode = os.path.relpath(full, top), os.lstat(full).st_mode
            if stat.S_ISLNK(mode):
                yield VersionEntry(path, "link", partial(os.readlink, os.fsencode(full)))
            elif stat.S_ISDIR(mode):
                yield VersionEntry(path, "directory")
            elif stat.S_ISREG(mode):
                yield VersionEntry(path, "program" if mode & 0o100 else "file", partial(read_whole, full))
            else:
                raise IoFailure(f"{full} is neither a file, a directory nor a link: remove it from the bundle")


def digest(entries: Iterable[VersionEntry]) -> str:
    """A hash of paths, kinds and contents, in hexadecimal digits."""
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for entry in sorted(entries):
        content = hashlib.blake2b(entry.read()).hexdigest()
        whole.update(f"{entry.kind}\0{entry.path}\0{content}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def is_whole(directory: str) -> bool:
    """Whether the content of an installed version matches the digest in its name."""
    wanted = os.path.basename(directory).rpartition("-")[2].partition(".")[0]
    try:
        return digest(tree(directory)) == wanted
    except (OSError, IoFailure):
        return False
