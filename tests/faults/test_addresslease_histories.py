"""Churn over AddressLeases: plugins are killed while others claim and free beside them, and every promise is kept."""

from __future__ import annotations

import dataclasses
import json
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.blackbox.test_kubernetes import DIRECTORY, KUBECONFIG, OBJECTS, PORT, Server
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
    if method != "GET":
        time.sleep(0.03)

server.faults = slow
threading.Event().wait()
"""


class SlowServer(Server):
    """An API server that takes its time for a change, so that processes are killed in the midst of one."""

    def __init__(self, churn: Churn) -> None:
        self.node = churn.node
        argv = [sys.executable, "-c", _SERVER, str(PORT)]
        self.process = self.node.start(["env", f"PYTHONPATH={ROOT}", *argv])
        assert until(self.serves, 20)

    def leases(self) -> list[dict[str, str]]:
        url = f"{OBJECTS}/addressleases".replace("whereabouts.cni.cncf.io", "railcni.io")
        with self.node.host.entered(), urllib.request.urlopen(url) as reply:
            specs = [item["spec"] for item in json.load(reply)["items"]]
        return [spec for spec in specs if spec["state"] == "held"]


class AddressLeaseChurn(Churn):
    """Churn with the leases in an API server in the node."""

    def __enter__(self) -> AddressLeaseChurn:
        for orders in self._orders:
            block = orders.network["ipam"]
            del block["ipRanges"]
            block |= {"datastore": "addresslease", "kubernetes": {"kubeconfig": f"{DIRECTORY}/whereabouts.kubeconfig"}}
        super().__enter__()
        directory = self.node.path(DIRECTORY)
        directory.mkdir(parents=True)
        (directory / "whereabouts.kubeconfig").write_text(KUBECONFIG)
        self.server = SlowServer(self)
        return self

    def _look(self) -> Rest:
        rest = super()._look()
        leases: dict[str, tuple[str, ...]] = {}
        faults = [*rest.faults]
        names = " ".join(path.name for path in self.node.path(f"{STATE}/attachments").iterdir())
        for spec in self.server.leases():
            container, address = spec["containerID"], spec["address"]
            leases[container] = (*leases.get(container, ()), address)
            if f":{container}:{spec['ifname']}:ipam" not in names:
                faults.append(f"lease {address} of {container} has no record")
        return dataclasses.replace(rest, leases=leases, faults=tuple(faults))


def churn(executables: Path, seconds: float, seed: int) -> list[Event]:
    with AddressLeaseChurn(executables, seed, workers=6) as running:
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
