"""A node with a master, workers that churn in it, and the watcher: together they write a history."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests import warm
from tests.faults import state
from tests.faults.churn.events import Dissolved, Event, Operation, Rest, parse
from tests.faults.churn.watcher import Watcher
from tests.faults.churn.worker import Orders
from tests.node import BIN, ROOT, STATE, Node
from tests.view import View

MASTER = "ens2f0"
_KILL_SECONDS = 0.4  # between two kills of a warm worker, at most
_SUPERVISORS = 0.1  # of these kills
_REST_SECONDS = 60.0  # a call that takes longer is a fault by itself


def network(prefix: int = 28) -> dict[str, Any]:
    """The network of all workers, but for its name. The range is smaller than what they want of it."""
    ipam = {"type": "whereabouts", "datastore": "file", "range": f"192.168.7.0/{prefix}"}
    ipam["ipRanges"] = [{"range": "fd00:7::/64"}]  # type: ignore[assignment]
    return {"cniVersion": "1.1.0", "type": "macvlan", "master": MASTER, "ipam": ipam}


class Killer:
    """`with Killer(node, seed):` kills warm workers at random in the meantime, and supervisors now and then."""

    def __init__(self, node: Node, seed: int) -> None:
        self._node = node
        self._random = random.Random(seed)
        self.killed = 0
        self._served = 0

    def __enter__(self) -> Killer:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def served(self) -> int:
        """How many calls were warm, as far as the supervisors that were killed have told it."""
        return self._served + warm.served(self._node)

    def _run(self) -> None:
        while not self._is_over.wait(self._random.random() * _KILL_SECONDS):
            supervisors = [found.supervisor for found in warm.found(self._node) if found.supervisor]  # 0: no answer
            processes = [p for p in warm.of_node(self._node) if p not in supervisors]
            if self._random.random() < _SUPERVISORS:
                self._served += warm.served(self._node)
                processes = supervisors
            if processes:
                with suppress(ProcessLookupError):
                    os.kill(self._random.choice(processes), signal.SIGKILL)
                    self.killed += 1


class Churn:
    """`with Churn(executables, seed) as churn`: `churn.go(seconds)` any number of times, then `end()`; `events`."""

    def __init__(
        self, executables: Path = BIN, seed: int = 0, workers: int = 4, pods: int = 5, prefix: int = 28
    ) -> None:
        self.node = Node(executables)
        self._orders = [
            Orders(n, seed * 1000 + n, str(executables), pods, "", network(prefix)) for n in range(1, workers + 1)
        ]
        self._workers: list[Popen[bytes]] = []
        self._read: dict[int, int] = {}  # how much of each worker's file
        self.killer = Killer(self.node, seed) if self.node.is_warm else None
        self._events: list[Event] = []
        self.fresh: list[Event] = []  # what workers did in the last stretch

    def __enter__(self) -> Churn:
        self._folder = tempfile.mkdtemp(prefix="churn-")
        try:
            self.node.__enter__()
            self.node.master(MASTER)
            self._watcher = Watcher(self.node.host)
            for orders in self._orders:
                orders.file = f"{self._folder}/{orders.number}"
                argv = [sys.executable, "-c", _START, str(ROOT), json.dumps(asdict(orders))]
                self._workers.append(self.node.start(argv, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if hasattr(self, "_watcher"):
            self._watcher.__exit__()
        self.node.__exit__()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def go(self, seconds: float) -> Rest:
        """Churn for so long, let every call end, and look at what stands then."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(b"%f\n" % seconds)
            worker.stdin.flush()
        with self.killer or nullcontext():
            self._watcher.watch(seconds)
            deadline = time.monotonic() + _REST_SECONDS
            for worker in self._workers:
                self._await(worker, deadline)
        self._watcher.watch(0)
        rest = self._look()
        self.fresh = [event for orders in self._orders for event in self._news(orders)]
        self._events += [*self.fresh, rest]
        return rest

    def end(self) -> Rest:
        """Detach everything; what stands then is left over."""
        return self.go(0)

    def _await(self, worker: Popen[bytes], deadline: float) -> None:
        assert worker.stdout is not None and worker.stderr is not None
        while not _readable(worker.stdout):
            self._watcher.watch(0.01)
            if time.monotonic() > deadline:
                raise TimeoutError(f"a worker did not come to rest within {_REST_SECONDS:g} s")
        if worker.stdout.readline() != b"rested\n":
            raise RuntimeError(f"a worker ended: {worker.stderr.read().decode()[-2000:]}")

    def _look(self) -> Rest:
        began = time.monotonic()
        now = state.read(self.node.path(STATE))
        leases: dict[str, tuple[str, ...]] = {}
        for lease in now.leases:
            leases[lease.container] = (*leases.get(lease.container, ()), lease.address)
        records: dict[str, tuple[str, ...]] = {}
        for name in now.records:
            _, container, _, part = name.split(":")
            records[container] = (*records.get(container, ()), part)
        links: dict[str, tuple[str, ...]] = {}
        for path in self.node.path("/run/netns").iterdir():
            if path.name.isdigit():
                for link in View(str(path)).links().values():
                    found = tuple(a.split("/")[0] for a in link.texts) or ("",)
                    links[path.name] = (*links.get(path.name, ()), *found)
        return Rest(began, time.monotonic(), leases, records, links, tuple(now.faults))

    def _news(self, orders: Orders) -> list[Event]:
        with open(orders.file) as file:
            file.seek(self._read.get(orders.number, 0))
            events = parse(file.readlines())
            self._read[orders.number] = file.tell()
        return events

    def events(self) -> list[Event]:
        """The history up to the last rest."""
        return [*self._watcher.sights, *self._events]

    def forget(self) -> None:
        """Drop from the history those owners of whom nothing stood at the last rest: it need not grow without end."""
        rest = next(e for e in reversed(self._events) if isinstance(e, Rest))
        operations = [e for e in self._events if isinstance(e, Operation)]
        owners = {o.owner for o in operations if o.container in {*rest.leases, *rest.records, *rest.links}}
        kept = [o for o in operations if o.owner in owners and o.container]
        containers = {o.container for o in kept}
        oldest = min((o.began for o in kept), default=rest.began)
        gone = [e for e in self._events if isinstance(e, Dissolved) and e.container in containers]
        collections = [o for o in operations if o.verb == "GC" and o.ended >= oldest]
        self._events = [*kept, *collections, *gone, rest]
        self._watcher.sights[:] = [s for s in self._watcher.sights if s.container in containers]


def _readable(stream: Any) -> bool:
    return bool(select.select([stream], [], [], 0)[0])


_START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import runpy
runpy.run_module("tests.faults.churn.worker", run_name="__main__")
"""
