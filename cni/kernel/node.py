"""Which node this is, and which of its boots."""

from __future__ import annotations

import posix

from cni.kernel.files import read_whole
from cni.spec.errors import IoFailure

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_known: list[str] = []


def boot_id() -> str:
    """The random identifier that the kernel drew when it started (random(4)); IoFailure when it cannot be read."""
    try:
        if not _known:
            _known.append(read_whole(_BOOT_ID).decode().strip())
        return _known[0]
    except OSError as fault:
        raise IoFailure(f"cannot read {_BOOT_ID}: {fault.strerror}; mount /proc where the plugin runs") from None


def host_name() -> str:
    """The host name, as uname(2) says it."""
    return posix.uname().nodename
