"""Kernel parameters by their path below /proc/sys, "net/ipv4/conf/net1/arp_notify".

Those below "net" belong to a network namespace: that which the calling thread is in. OSError passes through:
FileNotFoundError for a parameter, or a link in its name, that is not there.
"""

from __future__ import annotations

import posix

from cni.shared.kernel.files import read_whole

_ROOT = "/proc/sys/"


def read(name: str) -> str:
    """The value of the parameter, without the end of its line."""
    return read_whole(_ROOT + name).decode().rstrip("\n")


def write(name: str, value: str) -> None:
    """Give the parameter a value."""
    fd = posix.open(_ROOT + name, posix.O_WRONLY | posix.O_CLOEXEC)
    try:
        posix.write(fd, value.encode())
    finally:
        posix.close(fd)
