"""Paths below a root, and durable changes: when a function returns, its change is on disk. Functions raise OSError."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from cni.node.installation import content
from cni.shared.kernel import files
from cni.shared.spec.errors import InvalidConfig


def below(root: str, path: str) -> str:
    """Convert `path`, an absolute path on the host, to its real path here, where the host is mounted at `root`. Links
    are followed as on the host. Components that do not exist stay as they are. Raises InvalidConfig when the links form
    a loop."""
    root = os.path.realpath(root).rstrip("/")
    try:
        return root + files.resolve(path, root, strict=False)
    except OSError:
        raise InvalidConfig(f"{path} leads through more than {files.MOST_LINKS} symbolic links: mend them") from None


def put(path: str, temporary: str, make: Callable[[str], object]) -> None:
    """Let `make` create a file, link or directory at `temporary`, on the file system of `path`; rename it to `path`."""
    remove(temporary)
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    try:
        make(temporary)
        os.rename(temporary, path)
    finally:  # the file is left by a full disk, or by rename(2) if both paths are names of one file
        remove(temporary)
    for folder in {os.path.dirname(path), os.path.dirname(temporary)}:
        files.sync(folder)


def make_tree(top: str, sources: content.Sources) -> None:
    os.mkdir(top)
    os.chmod(top, 0o755)  # noqa: S103  # everybody may read what root installs
    written = [top]
    for name in sorted(sources):  # a directory before its content
        path, (kind, data) = os.path.join(top, name), content.read(sources[name])
        if kind == "link":
            os.symlink(data, path)
            continue
        if kind == "directory":
            os.mkdir(path)
        else:
            with open(path, "xb") as file:
                file.write(data)
        os.chmod(path, 0o644 if kind == "file" else 0o755)
        written.append(path)
    for path in written:  # after all writes, so that the disk can combine them
        files.sync(path)


def make_second(path: str, second: str) -> None:
    """Make `second` a hard link to the file at `path`, or a copy if the kernel refuses the link: some file systems have
    no hard links, and root without capabilities may not link another user's file (fs.protected_hardlinks)."""
    try:
        os.link(path, second, follow_symlinks=False)
    except PermissionError:
        shutil.copy2(path, second, follow_symlinks=False)
        if not os.path.islink(second):
            files.sync(second)


def remove(path: str) -> None:
    """Remove a file, a link, or a directory with its content, if it exists."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    files.sync(os.path.dirname(path))
