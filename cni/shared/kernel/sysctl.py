"""Kernel parameters by their path below /proc/sys, "net/ipv4/conf/net1/arp_notify".

Those below "net" belong to a network namespace: that which the calling thread is in. OSError passes through:
FileNotFoundError for a parameter, or a link in its name, that is not there.
"""

from __future__ import annotations

import os

from cni.shared.kernel.files import read_whole

_ROOT = "/proc/sys/"


def read(name: str) -> str:
    """The value of the parameter, without the end of its line."""
    return read_whole(_ROOT + name).decode().rstrip("\n")


def write(name: str, value: str) -> None:
    """Give the parameter a value."""
    fd = os.open(_ROOT + name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
