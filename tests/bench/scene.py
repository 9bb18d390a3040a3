"""The node in which everything runs: namespaces of its own, its state on a disk."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench.scenarios import PODS, Side
from tests.namespaces import setns
from tests.node import Node


@contextmanager
def bench_node(build: Path, sides: Sequence[Side]) -> Iterator[Node]:
    """A node that this process has entered. /var/lib/cni is a directory in `build`; each side has a netdev to move."""
    with directory(build) as state, Node(sides[0].folder, is_warm=True) as node:
        node.path("/var/lib/cni").mkdir()
        node.run(["mount", "--bind", state, "/var/lib/cni"]).check_returncode()
        # Both ends in the node's namespace: a plugin looks for the sandbox of a veth whose other end is elsewhere, at
        # each path of PODS, which no network card costs.
        node.host.add_veth("ens2f0", "ens2f0-peer", mtu=9000)
        for side in sides:
            node.host.add_veth(side.device, f"{side.device}-peer")
        for number in range(PODS):
            node.pod(f"pod{number}")
        kinds = ("net", "mnt")
        own = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
        there = [os.open(Path(node.root).parent / "ns" / kind, os.O_RDONLY) for kind in kinds]
        try:
            _enter(there)
            yield node
        finally:
            _enter(own)
            for fd in own + there:
                os.close(fd)


@contextmanager
def directory(build: Path) -> Iterator[Path]:
    """A new directory in `build`, locked while it is in use: what a killed run left, nobody has locked."""
    build.mkdir(exist_ok=True)
    for former in build.glob("bench-state-*"):
        fd = os.open(former, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(former)
        except BlockingIOError:
            pass  # another run has it
        finally:
            os.close(fd)
    state = Path(tempfile.mkdtemp(prefix="bench-state-", dir=build))
    fd = os.open(state, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield state
    finally:
        shutil.rmtree(state)
        os.close(fd)


def _enter(namespaces: Sequence[int]) -> None:
    for fd in namespaces:
        setns(f"/proc/thread-self/fd/{fd}", 0)


def machine() -> dict[str, str]:
    """The facts about the machine that times depend on, seen from inside the node; how busy it is, `load` says."""
    with open("/proc/cpuinfo") as cpuinfo:
        models = {line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")}
    return {
        "kernel": platform.release(),
        "processor": f"{os.cpu_count()} x {' and '.join(sorted(models)) or platform.machine()}",
        "file system of the state": _file_system("/var/lib/cni"),
    }


def load() -> float:
    """The processes that wanted to run in the last minute, on average (getloadavg(3))."""
    return os.getloadavg()[0]


def _file_system(path: str) -> str:
    """The type of what is mounted at `path` last."""
    kind = ""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split()[4] == path:
                kind = after.split()[0]
    return kind
