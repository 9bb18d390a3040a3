"""The paths of the sockets and locks of warm workers, in a directory that only root can enter."""

from __future__ import annotations

PARENT = "/run/railcni"
DIRECTORY = f"{PARENT}/warm"  # also in launcher.c
COLD = f"{DIRECTORY}/cold"  # launcher.c appends a letter, the reason, for each cold call
SOCKET, LOCK = ".sock", ".lock"


def name_of(identity: str) -> str:
    """The name, without suffix, of socket and lock: pack, mount namespace, network namespace, settings of a caller."""
    return "-".join(identity.split("-")[:4])
