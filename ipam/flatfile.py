"""The node's files that the IPAM configuration depends on: the flat file, the host name, and where a path leads.

This module is the default for the parameter `files` of `ipam.config.read`; tests pass another reader.
"""

from __future__ import annotations

from cni.shared.kernel import files
from cni.shared.kernel.node import host_name

__all__ = ["PATHS", "follow", "host_name", "load"]

PATHS = (
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
)
"""Where an installer puts the flat file; the first that exists counts."""

_LIMIT = 1 << 20  # bytes; the path may come from a network's author: no device, FIFO or endless file is read


def load(path: str) -> bytes | None:
    """The content of the file at `path`, None when there is none.

    ValueError when it is no regular file or larger than a MiB, OSError when the kernel refuses to read it.
    """
    try:
        return files.read_regular(path, _LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        return None


def follow(path: str, roots: str = "") -> str:
    """Where `path` leads. ValueError when it cannot be followed, or leads outside of `roots`, a key of the node's policy."""
    if roots:
        from cni.shared import policy  # most networks name no path

        if roots == "dataRoots":
            from ipam import datadir

            return datadir.confine(path)
        return policy.current().confine(roots, path)
    from cni.shared.kernel import paths

    try:
        return paths.resolve(path)
    except OSError as fault:
        raise ValueError(f"cannot be followed: {fault.strerror}") from None
