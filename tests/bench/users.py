"""What users of whereabouts have reported as failing (its issue 313): pods with 16 networks each, on 16 nodes, at once.

128 pods are 2,048 ADDs by 32 workers, then as many DELs. Nothing may fail; no address may be given twice, neither as
the results say nor as the store does; in the end nothing may be left, neither there nor in the nodes' records. As rails of one group
(`rail.addressing: same-index`) the networks of a pod must besides have given addresses of one index.
"""

from __future__ import annotations

import ipaddress
import json
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tests import etcd
from tests.bench.apiserver import Server
from tests.bench.calls import Call, Failed, timed
from tests.bench.hosts import ETC, Host, hosts
from tests.bench.progress import Progress
from tests.bench.samples import Crowd, Results
from tests.bench.scenarios import ADDRESS_LEASES, BUILD, NETWORKS, NODES, RAILS, RANGES, SHARED, SHARED_POOLS
from tests.node import ROOT
from tests.stores import etcd_dump

WORKERS = 32
_PREFIX = "/railcni-users"
LAYOUTS = {"ranges": RANGES, "shared": SHARED, "rails": RAILS}
Holding = tuple[str, str, str]  # address, containerID, ifname


class Store:
    """Where the leases are. `machines`: 1 when all nodes must share a directory."""

    name = ""
    machines = NODES

    def flat(self, configuration: Path) -> str:
        """The path on a node of the flat file that chooses it, which is written to `configuration`."""
        raise NotImplementedError

    def audited(self, flat: str) -> list[str]:
        """What `railcni ipam audit` is told; a plugin's rights are too few for it."""
        return ["--config", flat]

    def holdings(self, machines: Sequence[Host]) -> list[Holding]:
        """Every lease, read without our code."""
        raise NotImplementedError

    def standing(self, machines: Sequence[Host]) -> int:
        """How many things stand in it; what is not held is a memory of a pod that may come back."""
        return len(self.holdings(machines))

    def end(self) -> None:
        """Withdraw the ranges: those of the cluster are in one store each."""


class KubernetesStore(Store):
    def __init__(self, server: Server, version: str = "") -> None:
        self.name = _named(SHARED_POOLS, server) + (f", {version}" if version else "")
        self._namespace = server.namespace(f"users-ippools{version and '-former'}")

    def flat(self, configuration: Path) -> str:
        return self._namespace.flat

    def audited(self, flat: str) -> list[str]:
        return ["--kubeconfig", f"{ETC}/own.kubeconfig", "-n", self._namespace.name]

    def holdings(self, machines: Sequence[Host]) -> list[Holding]:
        found = []
        for cidr, offset, entry in self._namespace.allocations():
            address = ipaddress.ip_network(cidr).network_address + offset
            found.append((str(address), entry["id"], entry["ifname"]))
        return found

    def standing(self, machines: Sequence[Host]) -> int:
        return len(self._namespace.allocations()) + len(self._namespace.items("overlappingrangeipreservations"))

    def end(self) -> None:
        self._namespace.delete_pools()


class AddressLeaseStore(Store):
    def __init__(self, server: Server) -> None:
        self.name = _named(ADDRESS_LEASES, server)
        self._namespace = server.namespace("users-addresslease", "addresslease")

    def flat(self, configuration: Path) -> str:
        return self._namespace.flat

    def audited(self, flat: str) -> list[str]:
        return ["--config", flat, "--kubeconfig", f"{ETC}/own.kubeconfig"]

    def holdings(self, machines: Sequence[Host]) -> list[Holding]:
        specs = [found["spec"] for found in self._namespace.items("addressleases")]
        return [(s["address"], s["containerID"], s["ifname"]) for s in specs if s["state"] == "held"]

    def end(self) -> None:
        self._namespace.delete_pools()


class EtcdStore(Store):
    name = "etcd"

    def __init__(self, cluster: etcd.Cluster) -> None:
        self._url = cluster.endpoints[0]

    def flat(self, configuration: Path) -> str:
        keys = {"datastore": "etcd", "etcd_host": self._url.removeprefix("http://"), "etcd_prefix": _PREFIX}
        return _written(configuration, "etcd", keys)

    def holdings(self, machines: Sequence[Host]) -> list[Holding]:
        leases = etcd_dump.leases(etcd_dump.dump(self._url, _PREFIX))
        return [
            (str(ipaddress.ip_address(lease["address"])), lease["containerID"], lease["ifname"]) for lease in leases
        ]

    def standing(self, machines: Sequence[Host]) -> int:
        keys = etcd_dump.dump(self._url, _PREFIX)
        return sum(key.partition("/")[0] not in etcd_dump.NO_LEASES for key in keys)


class FileStore(Store):
    name = "file"
    machines = 1

    def flat(self, configuration: Path) -> str:
        return _written(configuration, "file", {"datastore": "file"})

    def holdings(self, machines: Sequence[Host]) -> list[Holding]:
        (path,) = machines[0].state.rglob("leases.db")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT address, container, ifname FROM lease").fetchall()
        return [(str(ipaddress.ip_address(address)), container, ifname) for address, container, ifname in rows]


def run(
    results: Results,
    progress: Progress,
    stores: Sequence[tuple[Store, Path]],
    pods: int,
    configuration: Path,
    layouts: Sequence[str] = tuple(LAYOUTS),
) -> None:
    """All stores, each with the folder of the plugins that use it, with a range for each network, with one for all, and with
    the networks as rails of one group. Each node has a supervisor of warm workers of its own."""
    for store, plugins in stores:
        with hosts(store.machines, BUILD, configuration, WORKERS // store.machines) as machines:
            flat = store.flat(configuration)
            for layout in layouts:
                results.crowds.append(_crowd(progress, plugins, store, flat, machines, pods, LAYOUTS[layout]))
            store.end()


def _crowd(
    progress: Progress, ours: Path, store: Store, flat: str, machines: Sequence[Host], pods: int, what: str
) -> Crowd:
    jobs = [(pod, net) for pod in range(pods) for net in range(NETWORKS)]
    took, times, failures = {}, {}, {}
    given: list[Holding] = []
    wrong = 0
    for machine in machines:
        machine.warm_up(ours / "whereabouts")
    for verb in ("ADD", "DEL"):
        for _ in progress.track(f"{len(jobs):,} {verb}s over {store.name}, {what}", 1):
            began = time.perf_counter()
            calls = [
                machines[pod % len(machines)].submit(partial(_call, ours, flat, verb, what), pod, net)
                for pod, net in jobs
            ]
            wait(calls)
            took[verb] = time.perf_counter() - began
        done = [call.result() for call in calls]
        times[verb] = [ms for ms, _, _ in done]
        failures[verb] = [fault for _, _, fault in done if fault]
        if verb == "ADD":
            given = [holding for _, holding, fault in done if not fault]
            wrong = len(given) - len({address for address, _, _ in given})
            wrong += _unequal(given) if what == RAILS else 0
            wrong += len(_known(given, what) ^ _known(store.holdings(machines), what)) if not failures[verb] else 0
    standing, records = store.standing(machines), sum(len(machine.records()) for machine in machines)
    left = standing + records
    faults = failures["ADD"] + failures["DEL"]
    if left:
        faults = [f"{standing} things in the store and {records} records are left", *faults]
    failed = len(failures["ADD"]) + len(failures["DEL"])
    return Crowd(
        store.name, what, len(jobs), took["ADD"], took["DEL"], times["ADD"], times["DEL"], failed, wrong, left,
        faults[:3], machines[0].submit(_audit, store.audited(flat)).result(),
    )  # fmt: skip


def _known(holdings: Sequence[Holding], what: str) -> set[tuple[str, ...]]:
    """What results and store must agree on: on rails the container holds the addresses, not each interface its own."""
    return {holding[:2] if what == RAILS else holding for holding in holdings}


def _unequal(given: Sequence[Holding]) -> int:
    """How many pods have addresses of several indexes."""
    indexes: dict[str, set[int]] = {}
    for address, container, _ in given:
        indexes.setdefault(container, set()).add(int(ipaddress.ip_address(address)) & 0xFFFF)
    return sum(len(found) > 1 for found in indexes.values())


def _call(ours: Path, flat: str, verb: str, what: str, pod: int, net: int) -> tuple[float, Holding, str]:
    """(milliseconds, what was given, why it failed) of a call, in a worker of the node."""
    block = {
        "type": "whereabouts",
        "range": "10.99.0.0/16" if what == SHARED else f"10.{net}.0.0/16",
        "configuration_path": flat,
    }
    network = {"cniVersion": "1.0.0", "name": f"net-{net}", "type": "macvlan", "ipam": block}
    if what == RAILS:
        ranges = [f"10.{rail}.0.0/16" for rail in range(NETWORKS)]
        network["rail"] = {"index": net, "group": "users", "addressing": "same-index", "ranges": ranges}
    container, ifname = f"pod-{pod}", f"net{net}"
    args = f"K8S_POD_NAMESPACE=bench;K8S_POD_NAME={container}"
    executable = ours / "whereabouts"
    call = Call(
        [executable], verb, json.dumps(network).encode(), container, "/run/netns/none", str(ours), args,
        f"node-{pod % NODES}", ifname,
    )  # fmt: skip
    began = time.perf_counter()
    try:
        sample, out = timed(call)
    except Failed as fault:
        return (time.perf_counter() - began) * 1e3, ("", "", ""), str(fault)
    address = json.loads(out)["ips"][0]["address"].partition("/")[0] if verb == "ADD" else ""
    return sample.ms, (address, container, ifname), ""


def _named(what: str, server: Server) -> str:
    return what if server.real else f"{what}, not a real server"


def _written(configuration: Path, name: str, keys: dict[str, Any]) -> str:
    (configuration / f"{name}.conf").write_text(json.dumps(keys))
    return f"{ETC}/{name}.conf"


def _audit(store: list[str]) -> str:
    """What `railcni ipam audit` finds, in a worker of a node: "clean", or its words."""
    argv = [str(ROOT / "bin/railcni"), "ipam", "audit", *store]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    return "clean" if done.returncode == 0 else " ".join((done.stdout + done.stderr).split())[:300]
