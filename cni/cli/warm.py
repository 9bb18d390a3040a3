"""railcni warm: shows and ends this node's warm workers, which are processes with loaded plugins (see cni/warm)."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from cni.cli.terminal import common, output, subcommand
from cni.node.installation.files import below
from cni.shared.kernel import locks
from cni.shared.kernel.files import names_in, read_regular
from cni.shared.spec import codec
from cni.shared.spec.errors import IoFailure, TryAgainLater
from cni.warm import protocol

END_SECONDS = 60.0  # a running call may wait for another call
_ANSWER_SECONDS = 1.0
_CREDENTIALS = struct.Struct("=iII")  # struct ucred
REASONS = {  # the letter that launcher.c writes for a cold call -> why no worker served the call
    "n": "no workers were there",
    "b": "all workers were busy",
    "s": "no worker answered in time",
    "e": "the worker ended during the call",
    "o": "the workers were those of callers with other namespaces, root or capabilities",
    "p": "the worker saw another file at CNI_NETNS",
    "x": "the caller's environment was too large",
    "l": "the caller limits the size of files, or has closed a stream",
    "k": "nothing says which workers may serve the caller (not root, no /proc, a kernel before 5.8)",
    "c": "RAILCNI_COLD was set",
}


@dataclass(frozen=True)
class Workers:
    """The warm workers that one supervisor process has started. `supervisor` is its PID, and `since` the Unix time of
    its start. `calls` is the number of calls that the workers have served."""

    name: str
    supervisor: int
    workers: int = 0
    busy: int = 0
    calls: int = 0
    since: int = 0
    fault: str = ""

    def __str__(self) -> str:
        if not self.workers:
            return self.fault
        text = f"{self.workers} workers, {self.busy} busy; {self.calls} calls warm"
        return f"{text}; last fault: {self.fault}" if self.fault else text


def cold(root: str = "/") -> str:
    """The reasons for recent cold calls, which no warm worker served: one letter, a key of REASONS, for each call,
    oldest first. "" if the file with the letters cannot be read."""
    with suppress(OSError, ValueError):
        return read_regular(below(root, protocol.COLD), 1 << 17).decode("ascii", "replace")
    return ""


def by_reason(letters: str) -> dict[str, int]:
    """Count the cold calls by reason, most frequent first. `letters` has a key of REASONS for each call."""
    return {REASONS.get(one, one): count for one, count in Counter(letters).most_common()}


def described(letters: str) -> str:
    """Describe the reasons for cold calls, with their counts. `letters` has a key of REASONS for each call."""
    text = ", ".join(f"{count} because {reason}" for reason, count in by_reason(letters).items()) or "none"
    return f"{text}; the last: {REASONS.get(letters[-1], letters[-1])}" if len(set(letters)) > 1 else text


def register(commands: subcommand.Commands) -> None:
    """Add the command `warm` and its subcommands."""
    about = "the warm workers: processes that serve calls without a start of Python"
    verbs = subcommand.add_group(commands, "warm", about)
    common.add(subcommand.add(verbs, "status", "show the warm workers", run=_status, shows=True), "root", "", "/")
    about = "end the workers when they have served their calls; the next calls start new ones"
    common.add(subcommand.add(verbs, "stop", about, run=_stop), "root", "", "/")


def found(root: str = "/") -> list[Workers]:
    """The warm workers of the node whose file system is mounted at `root`, as one object for each supervisor."""
    return [_ask(path) for path in _sockets(root)]


def stop(root: str = "/", seconds: float = END_SECONDS) -> int:
    """End all workers after their present calls; return the number of supervisors. Raises TryAgainLater if a supervisor
    still runs after `seconds`. Supervisors that start meanwhile are left running."""
    asked = {path: _ask_to_end(path) for path in _sockets(root)}
    deadline = time.monotonic() + seconds
    for path, supervisor in asked.items():
        lock = path.removesuffix(protocol.SOCKET) + protocol.LOCK
        while _is_held(lock) and not (supervisor and not os.path.exists(f"/proc/{supervisor}")):
            if time.monotonic() > deadline:
                raise TryAgainLater(f"warm workers of {path} are still at work: {_ask(path)}; try again, or end them")
            time.sleep(0.02)
            supervisor = supervisor or _ask_to_end(path)  # a new supervisor takes the lock before it listens
    return len(asked)


def _ask_to_end(path: str) -> int:
    """Ask the supervisor that listens at `path` to end. Return its process ID, or 0 if nothing listens."""
    asked = _ask(path, protocol.STOP)
    if not asked.workers and asked.supervisor:  # a supervisor without workers serves no call
        os.kill(asked.supervisor, signal.SIGTERM)
    return asked.supervisor


def _status(options: argparse.Namespace) -> None:
    _be_root()
    workers, calls = found(options.root), described(cold(options.root))
    if options.output == "table" and not workers:
        output.console().print("no workers: they begin with the next call that succeeds, and end when no call comes")
        output.console().print(f"cold calls: {calls}")
        return
    rows = [*((w.supervisor or "", str(w)) for w in workers), ("cold calls", calls)]
    output.show_table(options.output, [asdict(w) for w in workers], ("supervisor", "workers"), rows)


def _stop(options: argparse.Namespace) -> None:
    _be_root()
    ended = stop(options.root)
    output.console().print("the workers have ended" if ended else "there are no workers")


def _be_root() -> None:
    if os.geteuid():
        raise IoFailure(f"the workers are root's, and {protocol.DIRECTORY} can be read by root alone: run as root")


def _sockets(root: str) -> list[str]:
    directory = below(root, protocol.DIRECTORY)
    return sorted(f"{directory}/{name}" for name in names_in(directory) if name.endswith(protocol.SOCKET))


def _ask(path: str, what: str = protocol.STATUS) -> Workers:
    """Send the request `what` to the worker at `path`; return the answer, or why there is none (`fault`)."""
    name, supervisor = os.path.basename(path).removesuffix(protocol.SOCKET), 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            supervisor, _, _ = _CREDENTIALS.unpack(credentials)
            if connection.recv(16) != protocol.HELLO:
                return Workers(name, supervisor, fault="all workers are busy")
            connection.send(protocol.asked(what))
            told: dict[str, Any] = codec.loads(connection.recv(1 << 16)[1:])
        except (OSError, ValueError) as fault:
            why = "" if isinstance(fault, TimeoutError) else f": {fault}"
            return Workers(name, supervisor, fault=f"no worker answers{why}")
    return Workers(name, supervisor, **{key: told[key] for key in ("workers", "busy", "calls", "since", "fault")})


def _is_held(path: str) -> bool:
    """Whether a supervisor holds the lock at `path`."""
    with suppress(OSError), open(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
        return not locks.try_lock_file(file.fileno())
    return False
