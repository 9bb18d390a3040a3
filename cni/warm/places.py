"""Where the workers of an installation listen. All is in a directory that root alone can enter."""

from __future__ import annotations

PARENT = "/run/railcni"
DIRECTORY = f"{PARENT}/warm"  # also in launcher.c
SOCKET, LOCK = ".sock", ".lock"
AWAY = ".sock.away"  # the socket where no worker has answered, until the supervisor turns it back


def name_of(identity: str) -> str:
    """The name of the socket and the lock: of the launcher's `identity` the pack, the mount and the network namespace."""
    return "-".join(identity.split("-")[:3])
