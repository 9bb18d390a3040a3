"""Churn over leases in etcd: plugins are killed and the member is stopped for a while, and every promise is kept."""

from __future__ import annotations

import dataclasses
import random
import signal
import threading
from pathlib import Path

import pytest

from tests import etcd
from tests.blackbox.test_etcd import URL, Etcd
from tests.faults import tree
from tests.faults.churn.__main__ import strange
from tests.faults.churn.checker import History, check
from tests.faults.churn.events import DONE, KILLED, Event, Rest
from tests.faults.churn.run import Churn
from tests.faults.tree import Edit
from tests.node import STATE, unusable
from tests.stores import etcd_dump

pytestmark = [
    pytest.mark.skipif(bool(unusable() or etcd.unusable()), reason=unusable() or etcd.unusable()),
    pytest.mark.long,
]


class EtcdChurn(Churn):
    """Churn with the leases in one etcd member in the node."""

    def __enter__(self) -> EtcdChurn:
        for orders in self._orders:
            orders.network["ipam"] |= {"datastore": "etcd", "etcd_host": "127.0.0.1:2379"}
        super().__enter__()
        self.member = Etcd(self.node)
        return self

    def disturb(self, seed: int, ended: threading.Event) -> None:
        """Stop the member now and then, for less than a DEL waits."""
        chance = random.Random(seed)
        while not ended.wait(chance.uniform(0.2, 1.0)):
            self.member.process.send_signal(signal.SIGSTOP)
            ended.wait(chance.uniform(0.05, 0.8))
            self.member.process.send_signal(signal.SIGCONT)

    def _look(self) -> Rest:
        rest = super()._look()
        with self.node.host.entered():
            entries = etcd_dump.dump(URL)
        leases: dict[str, tuple[str, ...]] = {}
        faults = [*rest.faults, *etcd_dump.faults(entries)]
        for lease in etcd_dump.leases(entries):
            container = lease["containerID"]
            leases[container] = (*leases.get(container, ()), lease["address"])
            name = f"{lease['network']}:{container}:{lease['ifname']}:ipam"
            if not self.node.path(f"{STATE}/attachments/{name}").exists():
                faults.append(f"lease {lease['address']} of {container} has no record")
        return dataclasses.replace(rest, leases=leases, faults=tuple(faults))


def churn(executables: Path, seconds: float, seed: int) -> list[Event]:
    with EtcdChurn(executables, seed) as running:
        ended = threading.Event()
        disturbing = threading.Thread(target=running.disturb, args=(seed, ended))
        disturbing.start()
        try:
            for _ in range(int(seconds / 5)):
                running.go(5.0)
        finally:
            ended.set()
            disturbing.join()
        running.end()
        return running.events()


def test_twenty_seconds_of_churn_keep_every_promise(executables: Path, tmp_path: Path) -> None:
    events = churn(tree.copy(tmp_path), 20, seed=1)
    assert check(events) + strange(events) == []
    done = [(o.verb, o.outcome) for o in History(events).operations]
    for verb in ("ADD", "DEL"):
        assert done.count((verb, DONE)) > 20, "hardly anything was done, so that nothing is shown"
        assert done.count((verb, KILLED)) > 5


CARELESS = Edit(
    "ipam/stores/etcd.py", r"\+= \[txn\.absent\(key\) for key in unique", "+= [txn.absent(key) for key in ()"
)


def test_a_claim_that_takes_what_another_has_is_found(executables: Path, tmp_path: Path) -> None:
    for seed in range(6):
        if check(churn(tree.copy(tmp_path / str(seed), [CARELESS]), 5, seed)):
            return
    pytest.fail("30 s of churn have not shown it")
