"""etcd's tokens, kept on this node between two calls: a password costs etcd 60 ms of bcrypt, each time.

A token is in a file that only root can read, on a tmpfs, and in a name that depends on the password too: nobody gets
by it who does not know that. etcd forgets a token that was not used for five minutes (--auth-token-ttl).
"""

from __future__ import annotations

import _blake2
import posix

from cni.kernel import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

DIRECTORY = "/run/railcni"
_MOST_BYTES = 1 << 16


def name_of(endpoints: Iterable[str], user: str, password: str) -> str:
    """The file for the token that this user has at this cluster."""
    text = "\0".join((*endpoints, "", user, password)).encode("utf-8", "surrogateescape")
    return f"etcd-{_blake2.blake2b(text, digest_size=16).hexdigest()}"


def read(name: str) -> str:
    """The token, "" when there is none that can be trusted."""
    try:
        files.check_private_directory(DIRECTORY)
        return files.read_regular(f"{DIRECTORY}/{name}", _MOST_BYTES, posix.O_NOFOLLOW, private=True).decode("ascii")
    except (OSError, ValueError):
        return ""


def write(name: str, token: str) -> None:
    """Keep the token; where that cannot be, the next call asks for another."""
    try:
        files.take_directory(DIRECTORY)
        files.write_durably(DIRECTORY, name, token.encode("ascii"))
    except (OSError, ValueError):
        pass
