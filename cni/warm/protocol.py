"""The messages between the launcher and a worker, and the paths of sockets and locks. Only root can enter their
directory. launcher.c has the same messages and paths. No I/O.

A caller's identity is a text that stands for its compiled modules, namespaces, settings (environment variables of the
resolver and OpenSSL), root directory and capabilities. A worker serves only callers with one identity."""

from __future__ import annotations

from collections.abc import Iterator

PARENT = "/run/railcni"
DIRECTORY = f"{PARENT}/warm"
COLD = f"{DIRECTORY}/cold"  # the launcher appends a letter, the reason, for each cold call
SOCKET, LOCK = ".sock", ".lock"

HELLO = b"h"
FOR_OTHERS, OTHER_NETNS = b"o", b"p"  # the reasons for which a worker does not serve a call
MOST_BYTES = 1 << 18  # of a request: a socket buffer takes less, unless net.core.wmem_default is raised
STATUS, STOP = "status", "stop"  # requests of the command `railcni`, in place of a plugin's name; identity is ignored
_PIECE = 1 << 16  # the most bytes of stdout in a packet, as in launcher.c


def name_of(identity: str) -> str:
    """The file name, without suffix, of a supervisor's socket and lock. It is the part of `identity` for the compiled
    modules, the mount and network namespaces, and the settings."""
    return "-".join(identity.split("-")[:4])


class Call:
    """A request of a launcher to a worker. `plugin` is the plugin's name. `identity`, `umask` and `environ` are the
    caller's. `netns` is "MINOR:INODE", the minor device number and the inode number of the file at CNI_NETNS."""

    def __init__(self, identity: str, plugin: str, umask: int, netns: str, environ: dict[bytes, bytes]) -> None:
        self.identity = identity
        self.plugin = plugin
        self.umask = umask
        self.netns = netns
        self.environ = environ


def parse(packet: bytes) -> Call:
    """The request in a packet. Raises ValueError if the packet is no request."""
    identity, plugin, umask, netns, *entries = packet.split(b"\0")
    environ: dict[bytes, bytes] = {}
    for entry in entries:
        name, sign, value = entry.partition(b"=")
        if sign and name not in environ:  # of several entries the first counts, as in os.environb
            environ[name] = value
    return Call(identity.decode("ascii"), plugin.decode("ascii"), int(umask), netns.decode("ascii"), environ)


def asked(plugin: str) -> bytes:
    """The packet by which the command `railcni` asks a worker for its status (`plugin` is STATUS) or to end (STOP)."""
    return b"\0".join((b"", plugin.encode(), b"0", b"", b""))


def packets(stdout: bytes, status: int) -> Iterator[bytes]:
    """The packets of a worker's answer, which carry `stdout` and the exit `status` of a call."""
    while len(stdout) > _PIECE:
        yield b"+" + stdout[:_PIECE]
        stdout = stdout[_PIECE:]
    yield b"%d" % status + stdout
