"""Churn over the stores that nodes share: plugins are killed, servers are slow or stop, and every promise is kept."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import random
import signal
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import etcd
from tests.blackbox.test_etcd import URL, Etcd
from tests.blackbox.test_kubernetes import DIRECTORY, KUBECONFIG, OBJECTS, PORT, Server
from tests.faults import tree
from tests.faults.churn.__main__ import strange
from tests.faults.churn.checker import History, check
from tests.faults.churn.events import DONE, KILLED, Event, Operation, Rest
from tests.faults.churn.run import Churn
from tests.faults.tree import Edit
from tests.node import ROOT, STATE, unusable
from tests.stores import etcd_dump

pytestmark = [pytest.mark.skipif(bool(unusable()), reason=unusable()), pytest.mark.long]
needs_etcd = pytest.mark.skipif(bool(etcd.unusable()), reason=etcd.unusable())

HeldAddress = tuple[str, str, str, str]  # address, network ("" for what the store does not tell), container, ifname

_SERVER = """
import sys, time
from tests.stores.kubernetes_api import ApiServer
server = ApiServer()

def slow(method, resource, number):
    if method != "GET" and resource in ("ippools", "addressleases"):
        time.sleep(0.1 if resource == "ippools" else 0.03)

server.faults = slow
server.lag()
port, is_etcd = server.port, False
"""
_BEFORE_A_MEMBER = """
import sys
port, is_etcd = 2379, True
"""
_UNWELL = """
from tests.stores.unwell import LATE, Unwell, in_turn
late = in_turn(4 if is_etcd else 2, [LATE])  # all changes of etcd have one path

def some_of_the_leases(change):
    is_pool = change.startswith("PATCH ") and "/ippools/" in change
    is_lease = change.startswith("POST ") and "/addressleases " in change
    return late(change) if is_etcd or is_pool or is_lease else ""

with Unwell(port, is_etcd, some_of_the_leases, int(sys.argv[1])) as unwell:
    print("done", flush=True)
    for line in sys.stdin:
        is_well = line == "well\\n"
        unwell.choose = (lambda change: "") if is_well else some_of_the_leases
        if is_well:
            unwell.catch_up()
        print("done", flush=True)
"""


class UnwellServer(Server):
    """A server at `port` of the node, by `script`. It serves many changes of AddressLeases, IPPools and etcd's keys when
    it has cut their connections and served some of the next changes."""

    def __init__(self, churn: Churn, script: str, port: int) -> None:
        self.node = churn.node
        argv = [sys.executable, "-c", script + _UNWELL, str(port)]
        self.process = self.node.start(["env", f"PYTHONPATH={ROOT}", *argv])
        assert self.process.stdout and self.process.stdout.readline() == b"done\n"

    def be(self, how: str) -> None:
        """Be "well", with all late creates served, or "ill" again."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{how}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"done\n"


class StoreChurn(Churn):
    """Churn with the leases in a store that nodes share. Each lease that is left at rest must have a record.

    A DEL whose fence the server cuts succeeds and stays pending until it is called again: each look does so, when the server
    is well.
    """

    server: UnwellServer
    retried = 0

    def held(self) -> tuple[list[HeldAddress], list[str]]:
        """(all leases, what is wrong in the store)."""
        raise NotImplementedError

    @contextmanager
    def disturbed(self, seed: int) -> Iterator[None]:
        yield

    def _look(self) -> Rest:
        self.server.be("well")
        for one in json.loads(self.node.railcni("ipam", "flush", "--dry-run", "-o", "json").stdout)["left"]:
            if one["pending"]:
                config = {**self._orders[0].network, "name": one["network"]}
                how = {"container_id": one["containerID"], "ifname": one["ifname"]}
                self.node.cni("macvlan", "DEL", config, netns=f"/run/netns/{one['containerID']}", **how).succeeded()
                self.retried += 1
        try:
            return self._look_at_the_store()
        finally:
            self.server.be("ill")

    def _look_at_the_store(self) -> Rest:
        rest = super()._look()
        held, faults = self.held()
        leases: dict[str, tuple[str, ...]] = {}
        names = [path.name for path in self.node.path(f"{STATE}/attachments").iterdir()]
        for address, network, container, ifname in held:
            leases[container] = (*leases.get(container, ()), address)
            if not any(name.endswith(f"{network}:{container}:{ifname}:ipam") for name in names):
                faults.append(f"lease {address} of {container} has no record")
        return dataclasses.replace(rest, leases=leases, faults=(*rest.faults, *faults))


class KubernetesChurn(StoreChurn):
    """The leases are in the IPPools of an API server in the node."""

    datastore = "kubernetes"

    def __enter__(self) -> KubernetesChurn:
        for orders in self._orders:
            block = orders.network["ipam"]
            del block["ipRanges"]
            block |= {"datastore": self.datastore, "kubernetes": {"kubeconfig": f"{DIRECTORY}/whereabouts.kubeconfig"}}
        super().__enter__()
        directory = self.node.path(DIRECTORY)
        directory.mkdir(parents=True)
        (directory / "whereabouts.kubeconfig").write_text(KUBECONFIG)
        self.server = UnwellServer(self, _SERVER, PORT)
        self._reserved_for: dict[str, str] = {}  # the container of each fault
        return self

    def held(self) -> tuple[list[HeldAddress], list[str]]:
        found: list[HeldAddress] = []
        for place, entry in self.server.allocations().items():
            address = str(ipaddress.ip_address("192.168.7.0") + int(place.partition(" ")[2]))
            found.append((address, "", entry["id"], entry["ifname"]))
        held = {address for address, *_ in found}
        reserved = self.server.get("overlappingrangeipreservations")["items"]
        alone = {r["metadata"]["name"]: r["spec"]["containerid"] for r in reserved if r["metadata"]["name"] not in held}
        faults = {f"{address} is reserved for {c}, and leased to nobody": c for address, c in alone.items()}
        self._reserved_for |= faults
        return found, list(faults)

    def events(self) -> list[Event]:
        """Without the reservations of killed ADDs: a server can serve the request for one after the DEL, and the next claim
        of the address takes it over."""
        found = super().events()
        killed = {e.container for e in found if isinstance(e, Operation) and (e.verb, e.outcome) == ("ADD", KILLED)}
        late = {fault for fault, container in self._reserved_for.items() if container in killed}
        return [
            dataclasses.replace(e, faults=tuple(f for f in e.faults if f not in late)) if isinstance(e, Rest) else e
            for e in found
        ]


class AddressLeaseChurn(KubernetesChurn):
    """The leases are AddressLeases."""

    datastore = "addresslease"

    def held(self) -> tuple[list[HeldAddress], list[str]]:
        url = f"{OBJECTS}/addressleases".replace("whereabouts.cni.cncf.io", "railcni.io")
        with self.node.host.entered(), urllib.request.urlopen(url) as reply:
            specs = [item["spec"] for item in json.load(reply)["items"]]
        held = [spec for spec in specs if spec["state"] == "held"]
        return [(spec["address"], spec["network"], spec["containerID"], spec["ifname"]) for spec in held], []


class EtcdChurn(StoreChurn):
    """The leases are in one etcd member in the node, which is stopped now and then, for less than a DEL waits, behind a server that serves late."""

    port = PORT

    def __enter__(self) -> EtcdChurn:
        for orders in self._orders:
            orders.network["ipam"] |= {"datastore": "etcd", "etcd_host": f"127.0.0.1:{self.port}"}
        super().__enter__()
        self.member = Etcd(self.node)
        self.server = UnwellServer(self, _BEFORE_A_MEMBER, PORT)
        return self

    @contextmanager
    def disturbed(self, seed: int) -> Iterator[None]:
        ended, chance = threading.Event(), random.Random(seed)

        def disturb() -> None:
            while not ended.wait(chance.uniform(0.2, 1.0)):
                self.member.process.send_signal(signal.SIGSTOP)
                ended.wait(chance.uniform(0.05, 0.8))
                self.member.process.send_signal(signal.SIGCONT)

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            yield
        finally:
            ended.set()
            disturbing.join()

    def held(self) -> tuple[list[HeldAddress], list[str]]:
        with self.node.host.entered():
            entries = etcd_dump.dump(URL)
        leases = etcd_dump.leases(entries)
        found = [(lease["address"], lease["network"], lease["containerID"], lease["ifname"]) for lease in leases]
        return found, etcd_dump.faults(entries)


class DirectEtcdChurn(EtcdChurn):
    """Its calls reach the member itself, so that more of them are made at once."""

    port = 2379


def churn(kind: type[StoreChurn], executables: Path, seconds: float, seed: int) -> list[Event]:
    """The history."""
    workers = {"workers": 6} if issubclass(kind, KubernetesChurn) else {}
    running = kind(executables, seed, **workers)
    with running:
        with running.disturbed(seed):
            for _ in range(int(seconds / 5)):
                running.go(5.0)
        running.end()
        return running.events()


@pytest.mark.parametrize("kind", [KubernetesChurn, AddressLeaseChurn, pytest.param(EtcdChurn, marks=needs_etcd)])
def test_twenty_seconds_of_churn_keep_every_promise(kind: type[StoreChurn], executables: Path, tmp_path: Path) -> None:
    events = churn(kind, tree.copy(tmp_path), 20, seed=1)
    assert check(events) + strange(events) == []
    done = [(o.verb, o.outcome) for o in History(events).operations]
    for verb in ("ADD", "DEL"):
        assert done.count((verb, DONE)) > 20, "hardly anything was done, so that nothing is shown"
        assert done.count((verb, KILLED)) > 5


CARELESS = Edit(
    "ipam/stores/etcd/__init__.py", r"\+= \[txn\.absent\(key\) for key in unique", "+= [txn.absent(key) for key in ()"
)


@needs_etcd
def test_a_claim_that_takes_what_another_has_is_found(executables: Path, tmp_path: Path) -> None:
    for seed in range(6):
        if check(churn(DirectEtcdChurn, tree.copy(tmp_path / str(seed), [CARELESS]), 5, seed)):
            return
    pytest.fail("30 s of churn have not shown it")
