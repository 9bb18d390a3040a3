"""What the IPAM configuration reads besides its request: the flat file, the node's name.

The functions here are the reader that `ipam.config.read` is given; a test gives it another.
"""

from __future__ import annotations

import posix

from cni.kernel.node import host_name

__all__ = ["PATHS", "host_name", "load"]

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
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK | posix.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if posix.fstat(fd).st_mode & 0o170000 != 0o100000:  # S_IFMT, S_IFREG
            raise ValueError("is no regular file")
        content = b""
        while part := posix.read(fd, _LIMIT):
            content += part
            if len(content) > _LIMIT:
                raise ValueError(f"is larger than {_LIMIT} bytes")
        return content
    finally:
        posix.close(fd)
