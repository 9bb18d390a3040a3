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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from cni.spec.request import Attachment
from ipam.stores.base import Claimed, Owner, Want
from ipam.stores.etcd import EtcdStore
from tests import etcd
from tests.node import ROOT, Node, until, unusable
from tests.stores import etcd_dump
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


def crowd(node: Node, block: dict[str, Any], ranges: bool) -> tuple[float, int, int]:
    """128 pods x 16 networks by 32 workers that pose as 16 nodes: (seconds, addresses, failures); then DEL of all.

    `ranges`: each network has a range of its own, else all share one.
    """

    def call(verb: str, job: tuple[int, int]) -> str:
        pod, net = job
        cidr = f"10.{net}.0.0/16" if ranges else "10.99.0.0/16"
        config = network({**block, "range": cidr}) | {"name": f"net-{net}"}
        args = f"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod-{pod}"
        more = {"NODENAME": f"node-{pod % 16}"}
        how = {"container_id": f"pod-{pod}", "ifname": f"net{net}", "netns": "/dev/null", "args": args, "more": more}
        reply = node.cni("whereabouts", verb, config, **how)
        return "" if reply.status else str(reply.addresses[0] if verb == "ADD" else "done")

    jobs = [(pod, net) for pod in range(128) for net in range(16)]
    with ThreadPoolExecutor(32) as workers:
        began = time.perf_counter()
        given = list(workers.map(partial(call, "ADD"), jobs))
        took = time.perf_counter() - began
        released = list(workers.map(partial(call, "DEL"), jobs))
    return took, len({address for address in given if address}), given.count("") + released.count("")


def users_case(node: Node, block: dict[str, Any]) -> None:
    for ranges, what in ((True, "16 ranges"), (False, "one /16")):
        took, addresses, failures = crowd(node, block, ranges)
        with node.host.entered():
            left = [key for key in etcd_dump.dump(URL) if key.partition("/")[0] not in etcd_dump.NO_LEASES]
        told = f"{took:5.1f} s, {addresses} addresses, {failures} failures, {len(left)} keys left"
        print(f"2,048 ADDs by 32 workers, {what}: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--users", action="store_true", help="only the users' case: 128 pods x 16 networks")
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
        if options.users:
            users_case(node, {"etcd_host": "127.0.0.1:2379"})
            member.kill()
            member.communicate()
            return
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
