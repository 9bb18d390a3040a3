"""The sockets of the workers of an installation, in a directory that only root can enter."""

from __future__ import annotations

PARENT = "/run/railcni"
DIRECTORY = f"{PARENT}/warm"  # also in launcher.c
COLD = f"{DIRECTORY}/cold"  # a letter for each cold call: launcher.c
SOCKET, LOCK = ".sock", ".lock"


def name_of(identity: str) -> str:
    """The name of the socket and the lock: the pack, the mount and network namespaces and the settings of `identity`."""
    return "-".join(identity.split("-")[:4])
