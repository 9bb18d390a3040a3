"""The identity of this node: its name, its machine and its current boot."""

from __future__ import annotations

import hashlib
import os

from cni.shared.kernel.files import read_whole
from cni.shared.spec.errors import IoFailure

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_UPTIME = "/proc/uptime"
_MACHINE = ("/etc/machine-id", "/sys/class/dmi/id/product_uuid")
_known: list[str] = []


def boot_id() -> str:
    """The random identifier of this boot (random(4)). Raises IoFailure when it cannot be read."""
    try:
        if not _known:
            _known.append(read_whole(_BOOT_ID).decode().strip())
        return _known[0]
    except OSError as fault:
        raise IoFailure(f"cannot read {_BOOT_ID}: {fault.strerror}; mount /proc where the plugin runs") from None


def seconds_up() -> float:
    """The seconds since this boot began (proc_uptime(5)). Raises OSError or ValueError if they cannot be read."""
    return float(read_whole(_UPTIME).split()[0])


def forget() -> None:
    """Forget the boot ID, so that the next call in this process reads it again."""
    _known.clear()


def machine_id() -> str:
    """An identifier of this machine, the same in each boot; "" if unknown. It distinguishes machines with equal names.

    The identifier is a digest, because machine-id(5) is confidential. The product UUID of firmware or hypervisor is
    included, because copies of one image have the same machine-id.
    """
    found = []
    for path in _MACHINE:
        try:
            found.append(read_whole(path).strip())
        except OSError:
            found.append(b"")
    if not any(found) or found == [b"uninitialized", b""]:
        return ""
    return hashlib.blake2b(b"\0".join(found), digest_size=16).hexdigest()


def host_name() -> str:
    """The host's name; "?" stands for a byte that is not UTF-8."""
    return os.uname().nodename.encode("utf-8", "replace").decode()
