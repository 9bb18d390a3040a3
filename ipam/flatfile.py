"""Read the node's flat file (whereabouts.conf) and host name; check the paths and hosts that a network names.

This module is the default for the parameter `files` of `ipam.config.read`; tests pass another reader.
"""

from __future__ import annotations

from cni.shared import policy
from cni.shared.kernel import files
from cni.shared.kernel.node import host_name

__all__ = ["PATHS", "allow_host", "follow", "host_name", "load"]

PATHS = (
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/cni/net.d/whereabouts.d/whereabouts.conf",
    "/host/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
)
"""The paths of the flat file; the first that exists is used."""

_LIMIT = 1 << 20  # bytes; a network's author may choose the path: no device, FIFO or endless file is read

_FORMER_CONFIG_ROOTS = ("/etc/cni", "/etc/kubernetes", "/host/etc/cni", "/host/etc/kubernetes")  # of version 0.1.0


def load(path: str) -> bytes | None:
    """The content of the file at `path`; None when there is no file.

    Raises ValueError when the file is not regular or larger than a MiB, OSError when the kernel refuses to read it.
    """
    try:
        return files.read_regular(path, _LIMIT)
    except (FileNotFoundError, NotADirectoryError):
        return None


def follow(path: str, roots: str = "") -> str:
    """Resolve the links in `path`. Raises ValueError when this fails, or the policy's key named `roots` forbids it."""
    if roots:
        if roots == "dataRoots":
            from ipam.datadir import confined  # most networks keep the usual directory

            return confined(path)
        return policy.current().confine(roots, path)
    try:
        return files.resolve(path)
    except OSError as fault:
        raise ValueError(f"cannot be followed: {fault.strerror}") from None


def allow_host(host: str) -> None:
    """Raise ValueError unless `storeHosts` of the node's policy lets a network name `host`."""
    allowed = policy.current()
    if not any(policy.matches(one.lower(), host.lower()) for one in allowed.storeHosts):
        listed = ", ".join(allowed.storeHosts) or "none"
        raise ValueError(f"is not in storeHosts ({listed[:60]}): want one that is, or change {allowed.path}")


def formerly(path: str) -> str:
    """`path` with its links resolved if configRoots is unset and version 0.1.0 let networks name this file; else ""."""
    resolved = follow(path)
    is_below = any(files.is_below(resolved, root) for root in _FORMER_CONFIG_ROOTS)
    return resolved if is_below and policy.current().configRoots is policy.CONFIG_ROOTS else ""
