"""Nodes as an IPAM plugin sees them: each has records, locks and state of its own; the network is the machine's.

A node is a mount namespace, and threads of this process that are in it: what they start is on that node. It goes when
this process ends.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from cni.cli.warm import cold as cold_calls
from cni.cli.warm import found as found_workers
from cni.shared import policy
from tests import namespaces, warm
from tests.bench.calls import Call, Running, timed
from tests.bench.scene import directory
from tests.bench.workers import Workers

ETC = "/etc/cni/net.d/whereabouts.d"  # where plugins accept kubeconfigs and flat files

P = ParamSpec("P")
T = TypeVar("T")


class Host:
    """A node; `with` it. `state` is its /var/lib/cni, a directory on a disk, and `configuration` its ETC; `workers`
    call plugins at once."""

    def __init__(self, name: str, state: Path, configuration: Path, workers: int) -> None:
        self.name = name
        self.state = state
        self._configuration = configuration
        with ThreadPoolExecutor(1) as maker:  # a thread, which the namespace outlives
            self._namespace = maker.submit(self._make).result()
        there = f"/proc/self/fd/{self._namespace}"
        self._workers = ThreadPoolExecutor(workers, initializer=namespaces.join_mounts, initargs=(there,))

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.shutdown(cancel_futures=True)
        warm.end_in(os.fstat(self._namespace).st_ino)
        os.close(self._namespace)

    def submit(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Call `function` in a worker."""
        return self._workers.submit(function, *args, **named)

    def start(self, call: Call) -> Running:
        """Start a plugin here."""
        return self.submit(Running, call).result()

    def warm_up(self, executable: Path) -> Workers:
        """Let warm workers of `executable` wait for calls, if it has any: they end when none has come for a minute."""
        return self.submit(_begun, executable).result()

    def cold(self) -> int:
        """How many calls were cold."""
        return self.submit(lambda: len(cold_calls())).result()

    def records(self) -> list[str]:
        """The files that stand for an attachment."""
        standing = ("lock", "remembered", "leases.db", "leases.db-journal")
        return [str(p) for p in self.state.rglob("*") if p.is_file() and p.name not in standing]

    def _make(self) -> int:
        namespaces.hide(("/run",))
        fd = os.open(self.state, os.O_PATH | os.O_DIRECTORY)
        namespaces.mount("tmpfs", "/var/lib", "tmpfs")
        os.mkdir("/var/lib/cni")
        namespaces.mount(f"/proc/thread-self/fd/{fd}", "/var/lib/cni", flags=namespaces.MS_BIND)
        os.close(fd)
        os.makedirs(ETC, exist_ok=True)
        namespaces.mount(str(self._configuration), ETC, flags=namespaces.MS_BIND)
        os.makedirs(os.path.dirname(policy.PATHS[1]), exist_ok=True)
        Path(policy.PATHS[1]).write_text('{"storeHosts": ["127.0.0.1"]}')
        return os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)


@contextmanager
def hosts(count: int, build: Path, configuration: Path, workers: int = 1) -> Iterator[list[Host]]:
    """Nodes with their state in `build`."""
    with directory(build) as state, ExitStack() as stack:
        made = []
        for number in range(count):
            own = state / f"node-{number}"
            own.mkdir()
            made.append(stack.enter_context(Host(f"node-{number}", own, configuration, workers)))
        yield made


def _begun(executable: Path) -> Workers:
    """In a worker of a node, whose /run it sees."""
    if (executable.parent.parent / "libexec").is_dir() and not any(one.workers for one in found_workers()):
        timed(Call([executable], "STATUS", json.dumps(warm.NOTHING).encode(), "c0", "", str(executable.parent)))
        deadline = time.monotonic() + warm.BEGIN_SECONDS
        while not any(one.workers for one in found_workers()):
            assert time.monotonic() < deadline, "no workers have begun"
            time.sleep(0.01)
    return Workers()
