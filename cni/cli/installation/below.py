"""Paths below a root: a host's file system that is mounted at /host is read as the host itself would read it."""

from __future__ import annotations

import os

from cni.spec.errors import InvalidConfig

_MOST_LINKS = 40  # as the kernel's


def below(root: str, path: str) -> str:
    """The real path of `path`, an absolute one, below `root`: symbolic links lead to places below `root`, too.

    What does not exist is taken as it is written. InvalidConfig when the links go round in circles.
    """
    root = os.path.realpath(root)
    rest = [part for part in path.split("/") if part]
    real: list[str] = []
    links = 0
    while rest:
        part = rest.pop(0)
        if part == ".":
            continue
        if part == "..":
            real = real[:-1]
            continue
        try:
            link = os.readlink(os.path.join(root, *real, part))
        except OSError:
            real.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise InvalidConfig(f"{path} leads through more than {_MOST_LINKS} symbolic links: mend them")
        if link.startswith("/"):
            real = []
        rest = [p for p in link.split("/") if p] + rest
    return os.path.join(root, *real)
