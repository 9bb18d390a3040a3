"""Churn over leases in Kubernetes: plugins are killed while others wait for their turn, and every promise is kept."""

from __future__ import annotations

import dataclasses
import ipaddress
import sys
from pathlib import Path

import pytest

from tests.blackbox.test_kubernetes import DIRECTORY, KUBECONFIG, PORT, Server
from tests.faults import tree
from tests.faults.churn.__main__ import strange
from tests.faults.churn.checker import History, check
from tests.faults.churn.events import DONE, KILLED, Event, Rest
from tests.faults.churn.run import Churn
from tests.node import ROOT, STATE, until, unusable

pytestmark = [pytest.mark.skipif(bool(unusable()), reason=unusable()), pytest.mark.long]

_SERVER = """
import sys, threading, time
from tests.stores.kubernetes_api import ApiServer
server = ApiServer(port=int(sys.argv[1]))

def slow(method, resource, number):
    if (method, resource) == ("PATCH", "ippools"):
        time.sleep(0.1)

server.faults = slow
threading.Event().wait()
"""


class SlowServer(Server):
    """An API server that takes its time for a patch of a pool, so that processes wait for their turns."""

    def __init__(self, churn: Churn) -> None:
        self.node = churn.node
        argv = [sys.executable, "-c", _SERVER, str(PORT)]
        self.process = self.node.start(["env", f"PYTHONPATH={ROOT}", *argv])
        assert until(self.serves, 20)


class KubernetesChurn(Churn):
    """Churn with the leases in the IPPools of an API server in the node."""

    def __enter__(self) -> KubernetesChurn:
        for orders in self._orders:
            block = orders.network["ipam"]
            del block["ipRanges"]
            block |= {"datastore": "kubernetes", "kubernetes": {"kubeconfig": f"{DIRECTORY}/whereabouts.kubeconfig"}}
        super().__enter__()
        directory = self.node.path(DIRECTORY)
        directory.mkdir(parents=True)
        (directory / "whereabouts.kubeconfig").write_text(KUBECONFIG)
        self.server = SlowServer(self)
        return self

    def _look(self) -> Rest:
        rest = super()._look()
        allocations, reserved = self.server.allocations(), set(self.server.reservations())
        leases: dict[str, tuple[str, ...]] = {}
        faults = [*rest.faults]
        names = " ".join(path.name for path in self.node.path(f"{STATE}/attachments").iterdir())
        for place, entry in allocations.items():
            address = str(ipaddress.ip_address("192.168.7.0") + int(place.partition(" ")[2]))
            leases[entry["id"]] = (*leases.get(entry["id"], ()), address)
            if f":{entry['id']}:{entry['ifname']}:ipam" not in names:
                faults.append(f"lease {address} of {entry['id']} has no record")
        held = {address for addresses in leases.values() for address in addresses}
        faults += [f"{address} is reserved, and leased to nobody" for address in reserved - held]
        return dataclasses.replace(rest, leases=leases, faults=tuple(faults))


def churn(executables: Path, seconds: float, seed: int) -> list[Event]:
    """The history."""
    with KubernetesChurn(executables, seed, workers=6) as running:
        for _ in range(int(seconds / 5)):
            running.go(5.0)
        running.end()
        return running.events()


def test_twenty_seconds_of_churn_keep_every_promise(executables: Path, tmp_path: Path) -> None:
    events = churn(tree.copy(tmp_path), 20, seed=1)
    assert check(events) + strange(events) == []
    done = [(o.verb, o.outcome) for o in History(events).operations]
    for verb in ("ADD", "DEL"):
        assert done.count((verb, DONE)) > 20, "hardly anything was done, so that nothing is shown"
        assert done.count((verb, KILLED)) > 5
