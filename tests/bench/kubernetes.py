"""The IPAM plugin over Kubernetes, beside Go whereabouts at the same API server, each in a namespace of its own.

Ours keeps an object for each address; the same plugins over whereabouts' IPPools are a side of their own, and so is an
earlier version of ours over IPPools where RAILCNI_BENCH_PEERS names its folder. Warm workers serve ours.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.bench import operations
from tests.bench import scenarios as named
from tests.bench.apiserver import Namespace, Server
from tests.bench.calls import Call, Failed, Running, script_of, timed
from tests.bench.hosts import Host
from tests.bench.operations import Round, alternately
from tests.bench.progress import Progress
from tests.bench.samples import Operation, Results, Sample
from tests.bench.scenarios import GO, IPPOOLS, OURS, Side

PEER = "RAILCNI_BENCH_WHEREABOUTS"
RANGE, _FULL_RANGE = 0, 1  # of the ranges of a namespace
SCENES = ("single", "node", "nodes", "full", "sizes")
_NONE = "/run/netns/none"  # neither opens it


@dataclass(frozen=True)
class Client:
    """One side: an executable, and where its objects are."""

    name: str
    executable: Path
    namespace: Namespace

    @property
    def is_ours(self) -> bool:
        """Whether it is the version that is measured, in whichever store."""
        return self.name in (OURS, IPPOOLS)

    def call(self, verb: str, container: str, *, which: int = RANGE, node: str = "node-0") -> Call:
        """A call for a pod that is called as its container is: by `container`, and by the side, for they share nodes."""
        container = f"{container}-{self.namespace.name}"
        block = {
            "type": "whereabouts",
            "range": self.namespace.range(which),
            "configuration_path": self.namespace.flat,
        }
        network = {"cniVersion": "1.0.0", "name": "bench", "type": "macvlan", "ipam": block}
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME={container}"
        folder = str(self.executable.parent)
        return Call([self.executable], verb, json.dumps(network).encode(), container, _NONE, folder, args, node)


class Kubernetes:
    """Everything on `hosts`, 16 nodes; Go's column when the environment names it and the server is a real one.

    `sides` are those of the run, ours first; of the others those count that have the plugin.
    """

    def __init__(
        self, results: Results, progress: Progress, rounds: int, sides: Sequence[Side], server: Server
    ) -> None:
        self.results = results
        self._progress = progress
        self._rounds = rounds
        self._server = server
        ours = sides[0].executable("whereabouts")
        self._clients = [
            Client(OURS, ours, server.namespace("ours", "addresslease")),
            Client(IPPOOLS, ours, server.namespace("ippools")),
        ]
        for side in sides[1:]:
            if side.executable("whereabouts").exists():
                self._clients.append(Client(side.name, side.executable("whereabouts"), server.namespace("former")))
        peer = os.environ.get(PEER, "")
        if peer and server.real:
            self._clients.append(Client(GO, Path(peer).resolve(), server.namespace("go")))

    def everything(self, hosts: list[Host], scenes: Sequence[str] = SCENES) -> None:
        for scene in scenes:
            getattr(self, f"_{scene}")(hosts)

    def _node(self, hosts: list[Host]) -> None:
        self._at_once(named.KUBE_NODE, hosts[:1], 100, RANGE, max(1, self._rounds // 40))

    def _nodes(self, hosts: list[Host]) -> None:
        self._at_once(named.KUBE_NODES, hosts, 100, RANGE, max(1, self._rounds // 40))

    def _full(self, hosts: list[Host]) -> None:
        for client in self._clients:
            for _ in self._progress.track(f"{named.LEASES:,} leases in a pool: {client.name}", 1):
                client.namespace.fill(client.namespace.range(_FULL_RANGE), named.LEASES)
        self._at_once(named.KUBE_FULL, hosts[:1], 30, _FULL_RANGE, max(1, self._rounds // 100))

    def _single(self, hosts: list[Host]) -> None:
        """ADD and DEL of one attachment, and the floor of any exec of Python, in the same rounds."""
        script = script_of(self._clients[0].executable)

        def attachment(client: Client, number: int) -> Round:
            found = _attachment(client, hosts[0], number)
            if client is self._clients[0] and script:
                found |= operations.interpreter(script[0])
            return found

        alternately(self.results, self._progress, named.KUBE, self._clients, max(5, self._rounds // 4), attachment)

    def _sizes(self, hosts: list[Host]) -> None:
        """An ADD in an empty pool, and in one with many leases, each in a namespace of its own: an object for each address."""
        ours = self._clients[0]
        pools = {
            named.KUBE_EMPTY: replace(ours, namespace=self._server.namespace("empty", "addresslease")),
            named.KUBE_FILLED: replace(ours, namespace=self._server.namespace("filled", "addresslease")),
        }
        for _ in self._progress.track(f"{named.MANY_LEASES:,} leases in a pool", 1):
            filled = pools[named.KUBE_FILLED].namespace
            filled.fill(filled.range(_FULL_RANGE), named.MANY_LEASES)

        def attachments(client: Client, number: int) -> Round:
            found: Round = {}
            for operation in random.sample(list(pools), len(pools)):
                calls = _attachment(pools[operation], hosts[0], number, which=_FULL_RANGE)
                found[operation] = calls[Operation(named.KUBE, "ADD")]
            return found

        alternately(
            self.results, self._progress, named.KUBE_EMPTY.group, [ours], max(5, self._rounds // 4), attachments
        )

    def _at_once(self, group: str, hosts: list[Host], calls: int, which: int, rounds: int) -> None:
        wave = partial(self._wave, group, hosts, calls, which)
        alternately(self.results, self._progress, group, self._clients, rounds, wave, warm_up=0)

    def _wave(self, group: str, hosts: list[Host], calls: int, which: int, client: Client, number: int) -> Round:
        """ADDs, started before one is waited for, then so the DELs: the time until the last one is done."""
        found: Round = {}
        workers = [host.warm_up(client.executable) for host in hosts]
        cold = sum(host.cold() for host in hosts)
        for verb in ("ADD", "DEL"):
            before = [each.cpu_ms() for each in workers]
            began = time.perf_counter()
            running: list[Running] = []
            for i in range(calls):
                host = hosts[i % len(hosts)]
                running.append(host.start(client.call(verb, f"w{number}-{i}", which=which, node=host.name)))
            cpu_ms, faults = 0.0, []
            for each in running:
                try:
                    sample, _, _ = each.finish()
                    cpu_ms += sample.cpu_ms or 0.0
                except Failed as fault:
                    faults.append(str(fault))
            ms = (time.perf_counter() - began) * 1e3
            if client.is_ours:
                cpu_ms += sum(each.since(then) for each, then in zip(workers, before, strict=True))
            found[Operation(group, verb)] = Sample(ms, cpu_ms)
            self.results.note(Operation(group, f"failures of {verb}"), client.name, len(faults))
            if faults:
                self.results.remarks.append(f"{client.name}, {group}: {len(faults)} failed, such as {faults[0]}")
        if client.is_ours:
            self.results.note(Operation(group, "served cold"), client.name, sum(host.cold() for host in hosts) - cold)
        return found


def _attachment(client: Client, host: Host, number: int, which: int = RANGE) -> Round:
    workers = host.warm_up(client.executable)
    measure = workers.timed if client.is_ours else timed
    found = {}
    for verb in ("ADD", "DEL"):
        call = client.call(verb, f"c{number}", which=which)
        found[Operation(named.KUBE, verb)], _ = host.submit(measure, call).result()
    return found
