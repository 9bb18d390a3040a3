"""`python -m tests.bench.etcd`: what the etcd store costs, beside the file store in the same run.

An ADD of the whole executable, in an empty pool, with 45,000 leases and with 95 of 100 addresses leased at random; and
how many claims a second 50 processes make that keep their connections. The member runs on a tmpfs without fsync: what
is measured is ours, not the disk.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from typing import Any

from cni.spec.request import Attachment
from ipam.stores.base import Claimed, Owner, Want
from ipam.stores.etcd import EtcdStore
from tests import etcd
from tests.node import ROOT, Node, until, unusable
from tests.stores.kinds import description

URL = "http://127.0.0.1:2379"
TEN = 10 << 24

_WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from cni.spec.request import Attachment
from ipam import acquire
from ipam.leases import Need
from ipam.ranges import Range
from ipam.stores.base import Claimed, Owner
from ipam.stores.etcd import EtcdStore
from cni.spec import codec
store, node, count = EtcdStore(codec.loads(sys.argv[2].encode()), seconds=20), sys.argv[3], int(sys.argv[4])
store.find(Attachment("rdma-net", node, "net1"))
print("ready", flush=True)
sys.stdin.read(1)
searching = sys.argv[5] == "search"
need = Need(Range(4, (10 + searching) << 24, 12), "searched" if searching else "claimed", "")
for i in range(count):
    who = Owner(Attachment("rdma-net", f"{node}-{i}", "net1"), ("ns", f"{node}-{i}", ""), node, sequence=time.time_ns())
    if searching:
        acquire.acquire(store, [need], who, lambda wants, sequence: None, lambda pool: False)
    else:
        assert isinstance(store.claim([need.want(need.rng.first + int(node[1:]) * count + i)], who), Claimed)
"""


def network(block: dict[str, Any]) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "ipam": {"type": "whereabouts", **block}}


def add(node: Node, block: dict[str, Any], rounds: int) -> float:
    """The median of ADDs in ms, each followed by its DEL."""
    times = []
    args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod"
    for i in range(rounds):
        call = node.start_cni("whereabouts", "ADD", network(block), container_id=f"a{i}", netns="/dev/null", args=args)
        time.sleep(0.03)  # nsenter has come as far as the plugin, which waits for its stdin
        began = time.perf_counter()
        call.finish().succeeded()
        times.append(1000 * (time.perf_counter() - began))
        node.cni("whereabouts", "DEL", network(block), container_id=f"a{i}", netns="/dev/null", args=args).succeeded()
    return statistics.median(times)


def fill(node: Node, store: EtcdStore, pool: str, values: list[int]) -> None:
    with node.host.entered():
        for i in range(0, len(values), 500):
            who = Owner(Attachment("rdma-net", f"{pool}-{i}", "net1"), ("ns", f"{pool}-{i}", ""), "node-2", sequence=i)
            answer = store.claim([Want(pool, 4, value, pool) for value in values[i : i + 500]], who)
            assert isinstance(answer, Claimed), answer


def rate(node: Node, processes: int, each: int, how: str) -> float:
    """Addresses a second: `how` "claim" those that are named, "search" the lowest free, which all want at once."""
    described = json.dumps(description([URL], prefix="/rate"))
    argv = [sys.executable, "-IS", "-c", _WORKER, str(ROOT), described]
    running = [node.start([*argv, f"n{i}", str(each), how]) for i in range(processes)]
    for process in running:
        assert process.stdout and process.stdout.readline() == b"ready\n"
    began = time.perf_counter()
    for process in running:
        assert process.stdin
        process.stdin.write(b"x")
        process.stdin.flush()
    for process in running:
        _, err = process.communicate()
        assert process.returncode == 0, err.decode()[-2000:]
    return processes * each / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=50)
    options = parser.parse_args()
    why = unusable() or etcd.unusable()
    if why:
        print(f"etcd is not measured: {why}")
        return
    with Node() as node:
        argv = [
            "etcd",
            "--data-dir",
            "/run/etcd",
            "--logger=zap",
            "--log-level=error",
            "--unsafe-no-fsync",
            *etcd.LARGE,
        ]
        member = node.start([*argv, "--listen-client-urls", URL, "--advertise-client-urls", URL])

        def serves() -> bool:
            try:
                with node.host.entered():
                    etcd.post(URL, "kv/range", {"key": "YQ=="})
            except OSError:
                return False
            return True

        assert until(serves, 20)
        store = EtcdStore(description([URL]), seconds=20)
        full, random_full = "10.0.0.0-16", "11.0.0.0-16"
        block = {"etcd_host": "127.0.0.1:2379", "range": "10.0.0.0/16", "network_name": ""}
        print(
            f"ADD, file store                     {add(node, {'range': '10.0.0.0/16', 'datastore': 'file'}, options.rounds):7.1f} ms"
        )
        empty = add(node, block, options.rounds)
        print(f"ADD, etcd, empty pool               {empty:7.1f} ms")
        fill(node, store, full, [TEN + 1 + i for i in range(45_000)])
        first = add(node, block, 1)
        filled = add(node, block, options.rounds)
        print(
            f"ADD, etcd, 45,000 leases            {filled:7.1f} ms, {filled / empty:.2f} times; the first, which leaves the marks: {first:.0f}"
        )
        chosen = random.Random(7).sample(range(1, 65_534), 62_000)
        fill(node, store, random_full, [(11 << 24) + i for i in chosen])
        crowded = add(node, {**block, "range": "11.0.0.0/16"}, options.rounds)
        print(f"ADD, etcd, 95 % of a /16 at random  {crowded:7.1f} ms, {crowded / empty:.2f} times")
        claims = rate(node, options.processes, 40, "claim")
        searched = rate(node, options.processes, 20, "search")
        print(f"claims, {options.processes} processes                {claims:7.0f} a second")
        print(f"the same, all after the lowest free {searched:7.0f} a second")
        member.kill()
        member.communicate()


if __name__ == "__main__":
    main()
