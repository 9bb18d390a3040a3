"""Which node this is, and which of its boots."""

from __future__ import annotations

import posix

from cni.kernel.files import read_whole
from cni.spec.errors import IoFailure

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MACHINE_ID = "/etc/machine-id"
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


def machine_id() -> str:
    """The machine's own identifier, which a reinstallation draws anew (machine-id(5)); "" where there is none."""
    try:
        return read_whole(_MACHINE_ID).decode("ascii", "replace").strip()
    except OSError:
        return ""
