"""The IPAM plugin over Kubernetes, beside Go whereabouts at the same API server, each in a namespace of its own."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import breakdown, operations
from tests.bench.apiserver import Counter, Namespace, Server
from tests.bench.calls import Call, Failed, Running, timed
from tests.bench.hosts import Host
from tests.bench.operations import Round, alternately
from tests.bench.progress import Progress
from tests.bench.samples import Operation, Results, Sample
from tests.bench.scenarios import (
    GO,
    KUBE,
    KUBE_FULL,
    KUBE_NODE,
    KUBE_NODES,
    LEASES,
    OURS,
    TLS,
)

PEER = "RAILCNI_BENCH_WHEREABOUTS"
RANGE = "10.1.0.0/16"
_FULL_RANGE = "10.2.0.0/16"
_COUNTED = 5  # calls whose requests are counted
_NONE = "/run/netns/none"  # neither opens it


@dataclass(frozen=True)
class Client:
    """One side: an executable, and where its objects are."""

    name: str
    executable: Path
    namespace: Namespace

    def call(self, verb: str, container: str, *, cidr: str = RANGE, node: str = "node-0", flat: str = "") -> Call:
        """A call for a pod that is called as its container is."""
        block = {"type": "whereabouts", "range": cidr, "configuration_path": flat or self.namespace.flat}
        network = {"cniVersion": "1.0.0", "name": "bench", "type": "macvlan", "ipam": block}
        args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME={container}"
        folder = str(self.executable.parent)
        return Call([self.executable], verb, json.dumps(network).encode(), container, _NONE, folder, args, node)


class Kubernetes:
    """Everything on `hosts`, 16 nodes; Go's column when the environment names it and the server is a real one."""

    def __init__(
        self, results: Results, progress: Progress, rounds: int, ours: Path, server: Server, datastore: str
    ) -> None:
        self.results = results
        self._progress = progress
        self._rounds = rounds
        self._server = server
        self._clients = [Client(OURS, ours / "whereabouts", server.namespace("ours", datastore))]
        peer = os.environ.get(PEER, "")
        if peer and server.real:
            self._clients.append(Client(GO, Path(peer).resolve(), server.namespace("go")))

    def everything(self, hosts: list[Host]) -> None:
        self._one(hosts[0])
        self._requests(hosts[0])
        self._breakdown(hosts[0])
        waves = max(1, self._rounds // 40)
        self._at_once(KUBE_NODE, hosts[:1], 100, RANGE, waves)
        self._at_once(KUBE_NODES, hosts, 100, RANGE, waves)
        for client in self._clients:
            for _ in self._progress.track(f"{LEASES:,} leases in a pool: {client.name}", 1):
                client.namespace.fill(_FULL_RANGE, LEASES)
        self._at_once(KUBE_FULL, hosts[:1], 30, _FULL_RANGE, max(1, self._rounds // 100))

    def _one(self, host: Host) -> None:
        """ADD and DEL of one attachment, and the floor of any exec of Python, in the same rounds."""
        script = breakdown.script_of(self._clients[0].executable)

        def attachment(client: Client, number: int) -> Round:
            found = _attachment(client, host, number)
            if client is self._clients[0] and script:
                found |= operations.interpreter(script[0])
            return found

        alternately(self.results, self._progress, KUBE, self._clients, max(5, self._rounds // 4), attachment)

    def _requests(self, host: Host) -> None:
        """What a call asks of the server in a pool that is there; through a proxy, so not in the other rounds."""
        for client in self._clients:
            with Counter(self._server) as counter:
                flat = self._server.plain(client.namespace, counter.url)
                for number in self._progress.track(f"requests: {client.name}", _COUNTED):
                    for verb in ("ADD", "DEL"):
                        before = counter.count
                        call = client.call(verb, f"r{number}", flat=flat)
                        try:
                            host.start(call).finish()
                        except Failed as fault:
                            self.results.failures.append(f"{client.name}, requests: {fault}")
                            return
                        self.results.note(Operation(KUBE, f"requests of {verb}"), client.name, counter.count - before)

    def _breakdown(self, host: Host) -> None:
        client = self._clients[0]
        if not breakdown.script_of(client.executable):
            return

        def calls(number: int, measure: breakdown.Measure) -> dict[Operation, Any]:
            found = {}
            for verb in ("ADD", "DEL"):
                call = client.call(verb, f"b{number}")
                found[Operation(KUBE, verb)], _ = host.submit(measure, call).result()
            return found

        breakdown.measure(self.results, self._progress, KUBE, max(5, self._rounds // 10), calls)
        for run in self.results.breakdown.get(Operation(KUBE, "ADD"), []):
            self.results.add(TLS, OURS, Sample(run["TLS"]))

    def _at_once(self, group: str, hosts: list[Host], calls: int, cidr: str, rounds: int) -> None:
        wave = partial(self._wave, group, hosts, calls, cidr)
        alternately(self.results, self._progress, group, self._clients, rounds, wave, warm_up=0)

    def _wave(self, group: str, hosts: list[Host], calls: int, cidr: str, client: Client, number: int) -> Round:
        """ADDs, started before one is waited for, then so the DELs: the time until the last one is done."""
        found: Round = {}
        for verb in ("ADD", "DEL"):
            began = time.perf_counter()
            running: list[Running] = []
            for i in range(calls):
                host = hosts[i % len(hosts)]
                running.append(host.start(client.call(verb, f"w{number}-{i}", cidr=cidr, node=host.name)))
            cpu_ms, faults = 0.0, []
            for each in running:
                try:
                    sample, _, _ = each.finish()
                    cpu_ms += sample.cpu_ms or 0.0
                except Failed as fault:
                    faults.append(str(fault))
            found[Operation(group, verb)] = Sample((time.perf_counter() - began) * 1e3, cpu_ms)
            self.results.note(Operation(group, f"failures of {verb}"), client.name, len(faults))
            if faults:
                self.results.remarks.append(f"{client.name}, {group}: {len(faults)} failed, such as {faults[0]}")
        return found


def _attachment(client: Client, host: Host, number: int) -> Round:
    found = {}
    for verb in ("ADD", "DEL"):
        found[Operation(KUBE, verb)], _ = host.submit(timed, client.call(verb, f"c{number}")).result()
    return found
