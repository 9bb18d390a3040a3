"""The content of a version: the bundle in which this command runs, or the plugins of a checkout.

A bundle is a directory with `VERSION` and `bin/` that needs no files of the host; the whole bundle is installed. A
checkout is for hosts with Python. Its plugins are installed as `make` has written them: one file has all modules, and
scripts name the interpreter by its absolute path. The command stays in the checkout, since it needs more packages.

A version has the plugins twice: links with the prefix railcni- lead to bin/, links without it to copies in plain/. The
installer of Go whereabouts runs `cp -f whereabouts /opt/cni/bin` at every start, and so writes through railcni's link
into plain/. So `whereabouts` becomes Go's plugin again, as its user wants, and `railcni-whereabouts` does not change.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cni import VERSION
from cni.node.installation.layout import COPIES, PLAIN, PROGRAMS, SCRIPTS
from cni.shared.kernel.files import read_whole
from cni.shared.spec.errors import IoFailure

VERSION_FILE = "VERSION"
_TEMPLATE = "bin/launcher.in"  # every checkout has this file
_DIGEST_BYTES = 6


Sources: TypeAlias = Mapping[str, str | bytes]
"""Map a path in a version to its source: the path of the file, directory or link to copy, or the bytes of a file."""


class Content(NamedTuple):
    """The content of a version; `top` is the directory of the bundle or checkout that it comes from."""

    top: str
    release: str
    sources: Sources
    interpreter: str = ""  # a checkout's path of Python; "" for a bundle, which contains Python

    @property
    def version(self) -> str:
        """The name of the version's directory: the release and the digest of the content."""
        return f"{self.release}-{digest(self.sources)}"


def here() -> Content:
    """The content of the bundle or checkout that has this file. Raises IoFailure if the file is in neither."""
    for folder in map(str, Path(__file__).resolve().parents):
        if os.path.isfile(f"{folder}/{VERSION_FILE}") and os.path.isfile(f"{folder}/{PROGRAMS}/{PLAIN[0]}"):
            return bundle(folder)
        if os.path.isfile(f"{folder}/{_TEMPLATE}"):
            return checkout(folder)
    raise IoFailure(f"{__file__} lies neither in a bundle nor in a checkout of railcni: run the command of one")


def bundle(top: str) -> Content:
    release = read_whole(f"{top}/{VERSION_FILE}").decode().split()[0]
    own = {path: source for path, source in tree(top).items() if path.partition("/")[0] != COPIES}
    return Content(top, release, own | _copies(top))  # an installed version has copies already


def checkout(top: str) -> Content:
    """The content of the checkout in the directory `top`. Raises IoFailure if `make` has not written the plugins."""
    try:
        interpreter = read_whole(f"{top}/{SCRIPTS}/{PLAIN[0]}").decode().partition(" ")[0].removeprefix("#!")
    except FileNotFoundError:
        raise IoFailure(f"the checkout {top} has no plugins yet: run `make` there first") from None
    sources: dict[str, str | bytes] = {VERSION_FILE: f"{VERSION}\n".encode()}
    for directory in (PROGRAMS, SCRIPTS):
        found = tree(f"{top}/{directory}").items()
        own = {f"{directory}/{path}": source for path, source in found if path in PLAIN or path.startswith("modules.")}
        sources |= {directory: os.path.realpath(f"{top}/{directory}"), **own}
    return Content(top, VERSION, sources | _copies(top), interpreter)


def _copies(top: str) -> dict[str, str]:
    """The sources of plain/: map the path of plain/, and of each plugin's copy in it, to the directory or file to copy.
    A copy is never a link, since Go's installer writes into it."""
    programs = os.path.realpath(f"{top}/{PROGRAMS}")
    return {COPIES: programs, **{f"{COPIES}/{name}": os.path.realpath(f"{programs}/{name}") for name in PLAIN}}


def tree(top: str) -> dict[str, str]:
    """Map the path relative to `top` of each file, directory and link below the directory `top` to its full path."""
    paths = (f"{folder}/{name}" for folder, folders, files in os.walk(top) for name in (*folders, *files))
    return {os.path.relpath(path, top): path for path in paths}


def read(source: str | bytes) -> tuple[str, bytes]:
    """Return (kind, content) of `source`, a path or the bytes of a file. The kind is "link" (the content is its
    target), "directory" (without content), "file", or "program" (an executable file). Raises IoFailure for a device,
    socket or FIFO."""
    if isinstance(source, bytes):
        return "file", source
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        return "link", os.readlink(os.fsencode(source))
    if stat.S_ISDIR(mode):
        return "directory", b""
    if stat.S_ISREG(mode):
        return "program" if mode & 0o100 else "file", read_whole(source)
    raise IoFailure(f"{source} is neither a file, a directory nor a link: remove it from the bundle")


def digest(sources: Sources) -> str:
    """A hash of the path, kind and content of every source, in hexadecimal digits."""
    whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in sorted(sources):
        kind, data = read(sources[path])
        content = hashlib.blake2b(data).hexdigest()
        whole.update(f"{kind}\0{path}\0{content}\n".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def is_whole(directory: str) -> bool:
    """Whether the content of an installed version matches the digest in its name."""
    wanted = os.path.basename(directory).rpartition("-")[2].partition(".")[0]
    try:
        return digest(tree(directory)) == wanted
    except (OSError, IoFailure):
        return False
