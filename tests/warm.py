"""The warm workers of a node (tests/node.py): they wait when the node begins, they end with it, and are counted.

With RAILCNI_TEST_WARM=1 a run of tests ends with how many calls they served, and fails when these are few.
"""

from __future__ import annotations

import json
import os
import platform
import re
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from cni.cli import warm
from cni.shared.policy import PATHS
from cni.warm import protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.node import Node

# A call that succeeds and touches nothing: static addresses can always be given.
NOTHING: dict[str, Any] = {"cniVersion": "1.1.0", "name": "none", "ipam": {"type": "whereabouts", "datastore": "file"}}
NOTHING["ipam"]["addresses"] = [{"address": "192.0.2.1/24"}]
COLD = {"RAILCNI_COLD": ""}  # in a call's environment: no worker is asked
_IDENTITY = re.compile(r"[0-9a-f]{32}(-[0-9]+){9}")
BEGIN_SECONDS = 30.0
_ACCEPT4 = {"x86_64": "288", "aarch64": "242"}  # asm/unistd.h
counted = {"calls": 0, "warm": 0}


def begin(node: Node) -> None:
    """Have a call leave workers behind, and wait for them."""
    node.start_cni("whereabouts", "STATUS", NOTHING).finish().succeeded()
    wait(node)


def wait(node: Node, besides: Collection[str] = ()) -> None:
    """Wait until a worker of this node serves at a socket that is not in `besides`."""
    deadline = time.monotonic() + BEGIN_SECONDS
    while not any(warm._ask(path).workers for path in sockets(node) if path not in besides):
        assert time.monotonic() < deadline, "no workers have begun"
        select.select([], [], [], 0.01)


def found(node: Node) -> list[warm.Workers]:
    """What the workers of the node say of themselves."""
    return [warm._ask(path) for path in sockets(node)]


def sockets(node: Node) -> list[str]:
    directory = f"{node.root}{protocol.DIRECTORY}"
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [f"{directory}/{name}" for name in names if name.endswith(protocol.SOCKET)]


def served(node: Node) -> int:
    """How many calls were served warm."""
    return sum(workers.calls for workers in found(node))


def cold(node: Node) -> str:
    """The letters of the cold calls, oldest first: cni/cli/warm.py has the reasons."""
    file = node.path(protocol.COLD)
    return file.read_text() if file.exists() else ""


def processes(own: int, beginning: bool = False, kind: str = "mnt") -> list[int]:
    """The supervisors and workers that are in the namespace of a kind with the inode `own`, by their name; with `beginning`
    also what is about to become one, by the identity among its arguments."""
    seen = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if (
                os.stat(f"/proc/{name}/ns/{kind}").st_ino != own
            ):  # first: most are elsewhere, and tests look all the time
                continue
            with open(f"/proc/{name}/comm") as comm, open(f"/proc/{name}/cmdline") as line:
                words = line.read().split("\0")
                is_one = comm.read().strip() == "railcni-warm" or (beginning and any(map(_IDENTITY.fullmatch, words)))
            if is_one:
                seen.append(int(name))
        except OSError:
            continue  # it has ended
    return seen


def of_node(node: Node) -> list[int]:
    """The same for a node."""
    return processes(node.mounts)


def allow(node: Node, number: int) -> None:
    """Let the policy allow so many workers, 0 for none, and begin again with it."""
    policy = node.path(PATHS[1])
    policy.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(policy.read_text()) if policy.exists() else {}
    policy.write_text(json.dumps({**document, "warm": {"workers": number}}))
    if node.is_warm:
        end(node)
        if number:
            begin(node)


def only_worker(node: Node) -> int:
    """The process of a worker that has served nothing yet, on a node whose policy allows one worker."""
    former = _workers(node)
    if not sockets(node):
        begin(node)

    def fresh() -> list[int]:
        return [process for process in _workers(node) if process not in former and waits(process)]

    deadline = time.monotonic() + BEGIN_SECONDS
    while len(now := fresh()) != 1 or len(_workers(node)) != 1:
        assert time.monotonic() < deadline, f"the workers are {_workers(node)}, and one new one was to wait for calls"
        for process in set(former).intersection(_workers(node)):
            _send(process, signal.SIGTERM)  # again: a worker that has just been forked does not heed it yet
        if not sockets(node):
            node.start_cni("whereabouts", "STATUS", NOTHING).finish()
        select.select([], [], [], 0.01)
    return now[0]


def _workers(node: Node) -> list[int]:
    """The processes whose parent is one of the same name."""
    processes = of_node(node)
    return [process for process in processes if _parent(process) in processes]


def _parent(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # it has ended


def waits(process: int) -> bool:
    """Whether a process is in the system call accept4."""
    try:
        with open(f"/proc/{process}/syscall") as file:
            return file.read().split()[0] == _ACCEPT4[platform.machine()]
    except OSError:
        return False


def end(node: Node) -> None:
    """End what is there, and count what it has served."""
    for workers in found(node):
        counted["warm"] += workers.calls
    end_in(node.mounts)


def end_in(namespace: int, kind: str = "mnt") -> None:
    """End what is in the namespace of this kind with this inode, however it is."""
    for signal_number in (signal.SIGTERM, signal.SIGCONT):
        for process in processes(namespace, True, kind):
            _send(process, signal_number)
    deadline = time.monotonic() + 5
    while (left := processes(namespace, True, kind)) and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    for process in left:
        _send(process, signal.SIGKILL)


def summary() -> str:
    return f"warm: {counted['warm']} of {counted['calls']} calls"


def are_few() -> bool:
    """Whether the calls were cold that should have been warm."""
    return counted["warm"] < counted["calls"] / 2


def _send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass
