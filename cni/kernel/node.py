"""Which node this is, and which of its boots."""

from __future__ import annotations

import posix

from cni.kernel.files import read_whole


def boot_id() -> str:
    """The random identifier that the kernel drew when it started (random(4))."""
    return read_whole("/proc/sys/kernel/random/boot_id").decode().strip()


def host_name() -> str:
    """The host name, as uname(2) says it."""
    return posix.uname().nodename
