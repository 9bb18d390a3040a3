"""The IPAM plugin over etcd: how full a pool is must not tell, and how many claims many processes make at once.

One member on a tmpfs that syncs nothing: what is measured is ours, not the disk.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cni.shared.spec.request import Attachment
from ipam.leases import Owner, Want
from ipam.stores.base import Claimed, Unknown
from ipam.stores.etcd import EtcdStore
from tests import etcd
from tests.bench import scenarios as named
from tests.bench.calls import Call, timed
from tests.bench.hosts import Host
from tests.bench.operations import Round, alternately
from tests.bench.progress import Progress
from tests.bench.samples import Operation, Results
from tests.bench.scenarios import OURS, PODS, Side
from tests.node import ROOT
from tests.stores.kinds import description

_EACH = {"claim": 40, "search": 20}  # claims of each process
_FIRST = 10 << 24  # 10.0.0.0
_FILLED, _CROWDED = 45_000, 0.95  # leases from the first on; share of a /16, at random
_BATCH = 500

_WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from cni.shared.spec.request import Attachment
from ipam import acquire
from ipam.rules import Need
from ipam.ranges import Range
from ipam.leases import Owner
from ipam.stores.base import Claimed
from ipam.stores.etcd import EtcdStore
from cni.shared.spec import codec
from tests.stores.claims import AnyAddress
store, node, count = EtcdStore(codec.loads(sys.argv[2].encode()), seconds=20), sys.argv[3], int(sys.argv[4])
store.find(Attachment("rdma-net", node, "net1"))
print("ready", flush=True)
sys.stdin.read(1)
searching, first = sys.argv[5] == "search", int(sys.argv[6])
need = Need(Range(4, (20 + searching) << 24, 12), "searched" if searching else "claimed", "")
for i in range(count):
    name = f"{node}-{first + i}"
    who = Owner(Attachment("rdma-net", name, "net1"), ("ns", name, ""), node, sequence=time.time_ns())
    if searching:
        acquire.acquire(store, [need], who, AnyAddress())
    else:
        value = need.rng.first + int(node[1:]) * 4096 + first + i
        assert isinstance(store.claim([need.want(value)], who), Claimed)
print("done", flush=True)
"""


class Etcd:
    """`cluster` is a member that takes large transactions (tests.etcd.LARGE)."""

    def __init__(self, results: Results, progress: Progress, rounds: int, ours: Path, cluster: etcd.Cluster) -> None:
        self.results = results
        self._progress = progress
        self._rounds = rounds
        self._ours = Side(OURS, ours, 1)
        self._store_ref = description(cluster.endpoints, prefix="/railcni-bench")
        self._host = cluster.endpoints[0].removeprefix("http://")

    def everything(self, host: Host) -> None:
        rounds = max(3, self._rounds // 20)
        for number in self._progress.track("etcd: claims at once", rounds):
            self.results.note(named.ETCD_CLAIMS, OURS, self._rate("claim", number))
        self._fill()
        blocks: dict[Operation, dict[str, Any]] = {
            named.ETCD_FILE: {"datastore": "file", "range": "10.0.0.0/16"},
            named.ETCD_EMPTY: self._block("10.1.0.0/16"),
            named.ETCD_FILLED: self._block("10.0.0.0/16"),
            named.ETCD_CROWDED: self._block("11.0.0.0/16"),
        }

        def calls(side: Side, number: int) -> Round:
            found = {}
            for operation in random.sample(list(blocks), len(blocks)):
                found[operation], _ = host.submit(timed, self._call("ADD", blocks[operation], number)).result()
                host.submit(timed, self._call("DEL", blocks[operation], number)).result()
            return {operation: found[operation] for operation in blocks}

        alternately(self.results, self._progress, named.ETCD, [self._ours], max(5, self._rounds // 4), calls)
        for number in self._progress.track("etcd: claims at once, beside those leases", rounds):
            self.results.note(named.ETCD_CLAIMS_FILLED, OURS, self._rate("claim", rounds + number))
            self.results.note(named.ETCD_SEARCHES, OURS, self._rate("search", number))

    def _block(self, cidr: str) -> dict[str, Any]:
        more = {"etcd_host": self._host, "etcd_prefix": self._store_ref["prefix"]}
        return {"datastore": "etcd", "range": cidr, **more}

    def _call(self, verb: str, block: dict[str, Any], number: int) -> Call:
        network = {"cniVersion": "1.0.0", "name": "bench", "type": "macvlan", "ipam": {"type": "whereabouts", **block}}
        args = f"K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod-{number}"
        executable = self._ours.executable("whereabouts")
        stdin, folder = json.dumps(network).encode(), str(self._ours.folder)
        return Call([executable], verb, stdin, f"e{number}", "/run/netns/none", folder, args, "node-0")

    def _fill(self) -> None:
        store = EtcdStore(self._store_ref, seconds=120)
        near_full = random.Random(7).sample(range(1, 65_535), int(65_534 * _CROWDED))
        pools = {
            "10.0.0.0-16": [_FIRST + 1 + i for i in range(_FILLED)],
            "11.0.0.0-16": [(11 << 24) + i for i in near_full],
        }
        for pool, values in pools.items():
            batches = range(0, len(values), _BATCH)
            for _, i in zip(self._progress.track(f"etcd: filling {pool}", len(batches)), batches, strict=True):
                who = Owner(Attachment("bench", f"{pool}-{i}", "net1"), ("ns", f"{pool}-{i}", ""), "node-2", sequence=i)
                wants = [Want(pool, 4, value, "") for value in values[i : i + _BATCH]]
                answer = store.claim(wants, who)
                while isinstance(answer, Unknown):  # a member that has much to do
                    who.sequence += 1
                    answer = store.claim(wants, who)
                assert isinstance(answer, Claimed), answer
        store.close()

    def _rate(self, how: str, number: int) -> float:
        """Addresses a second that processes get which keep their connections: `how` "claim" each those that are its
        own, "search" the lowest free one, which all want at once."""
        each = _EACH[how]
        argv = [sys.executable, "-IS", "-c", _WORKER, str(ROOT), json.dumps(self._store_ref)]
        pipe = subprocess.PIPE
        running = [
            subprocess.Popen([*argv, f"n{i}", str(each), how, str(number * each)], stdin=pipe, stdout=pipe, stderr=pipe)
            for i in range(PODS)
        ]
        try:
            for process in running:
                assert process.stdout and process.stdout.readline() == b"ready\n", process.communicate()[1].decode()
            began = time.perf_counter()
            for process in running:
                assert process.stdin
                process.stdin.write(b"x")
                process.stdin.flush()
            for process in running:
                assert process.stdout and process.stdout.readline() == b"done\n", process.communicate()[1].decode()
            took = time.perf_counter() - began  # the end of the processes is no claim
            for process in running:
                process.communicate()
            return PODS * each / took
        finally:
            for process in running:
                process.kill()
                process.wait()
