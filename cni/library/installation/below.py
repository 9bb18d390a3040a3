"""Paths below a root: a host's file system that is mounted at /host is read as the host itself would read it."""

from __future__ import annotations

import os

from cni.shared.spec.errors import InvalidConfig

_MOST_LINKS = 40  # as the kernel's


def below(root: str, path: str) -> str:
    """The real path of `path`, an absolute one, below `root`: symbolic links lead to places below `root`, too.

    A part that does not exist is taken as written. InvalidConfig when the links form a loop.
    """
    root = os.path.realpath(root)
    rest, real, links = path.split("/"), [""], 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            real = real[:-1] or [""]
        if part in ("", ".", ".."):
            continue
        try:
            link = os.readlink(os.path.join(root, *real, part))
        except OSError:
            real.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise InvalidConfig(f"{path} leads through more than {_MOST_LINKS} symbolic links: mend them")
        real = [""] if link.startswith("/") else real
        rest = link.split("/") + rest
    return os.path.join(root, *real)
