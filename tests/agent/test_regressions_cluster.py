"""Faults that users reported of whereabouts in a cluster, and of its reconciler: the store in Kubernetes and the agent.

Each test names the issue, of k8snetworkplumbingwg/whereabouts. tests/REGRESSIONS.md says what became of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import CniError, TryAgainLater
from ipam.stores.ippool import locks
from tests.agent.rig import Rig, owner, status_of
from tests.stores import kubernetes_api
from tests.stores.kubernetes_api import ApiServer
from tests.stores.test_kubernetes_store import POOL, POOLS, RESERVATIONS, Cluster

BUSY = {"kind": "Status", "code": 504, "reason": "Timeout", "message": "context deadline exceeded"}


@pytest.fixture
def cluster(tmp_path: Path, free_paths: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "run"))
    server = ApiServer()
    yield Cluster(server, tmp_path)
    server.close()


@pytest.mark.parametrize("fault", [(504, BUSY), kubernetes_api.DROP_BEFORE, kubernetes_api.DROP_AFTER])
def test_an_update_of_the_pool_that_times_out_is_no_success_and_its_address_is_nobody_elses(
    cluster: Cluster, fault: Any
) -> None:
    """#141: the error was not returned, so a pod had an address that the pool did not hold, and another pod got it too."""
    cluster.call("ADD", "c0")
    cluster.server.faults = lambda method, resource, number: fault if (method, resource) == ("PATCH", POOLS) else None
    with pytest.raises(TryAgainLater):
        cluster.call("ADD", "c1", seconds=1)
    cluster.server.faults = lambda method, resource, number: None
    second = cluster.call("ADD", "c2")
    assert cluster.call("ADD", "c1") != second
    held = {entry["id"] for entry in cluster.allocations().values()}
    assert held == {"c0", "c1", "c2"}
    assert len(cluster.allocations()) == len(cluster.server.names(RESERVATIONS)) == 3
    for container in held:
        cluster.call("DEL", container)
    assert cluster.allocations() == {}
    assert cluster.server.names(RESERVATIONS) == []


def test_a_pool_that_can_not_be_updated_leaves_no_reservation(cluster: Cluster) -> None:
    """#409, #712: the update of the pool failed, the reservation was made, and the ADD answered with its address."""
    cluster.call("ADD", "c0")
    cluster.server.forbidden.add(("patch", POOLS))
    with pytest.raises(Exception, match="forbids to patch ippools"):
        cluster.call("ADD", "c1", seconds=1)
    assert cluster.server.names(RESERVATIONS) == ["10.0.0.1"]
    assert cluster.recorded().keys() == {"c0"}


def test_a_pod_with_sixteen_networks_asks_as_little_for_the_last_as_for_the_first(cluster: Cluster) -> None:
    """#313, #508: each ADD elected a leader, listed all reservations and read all pools, until kubelet's time was over."""
    asked = []
    for number in range(16):
        cluster.asked()
        cluster.call("ADD", f"c{number}", {"range": f"10.{number}.0.0/24"})
        asked.append([request.partition(" ")[0] for request in cluster.asked()])
    # A pool is made once, after a look at the other store and at other namespaces; it is read and patched, and the address reserved.
    assert max(map(len, asked)) <= 6
    cluster.call("ADD", "next", {"range": "10.0.0.0/24"})
    assert [request.partition("/")[0] for request in cluster.asked()] == [f"GET {POOLS}", f"PATCH {POOLS}", f"POST {RESERVATIONS}"]  # fmt: skip


def test_an_address_that_its_pool_does_not_hold_is_missed_by_check_and_given_to_nobody_else(cluster: Cluster) -> None:
    """#305: pods over RDMA had addresses that the pool did not hold, nothing was logged, and others got them too."""
    cluster.server.add_pod("ns", "c0")
    assert cluster.call("ADD", "c0") == ["10.0.0.1/24"]
    cluster.server.remove(POOLS, POOL)  # what stood there is lost, however that came about
    with pytest.raises(CniError, match=r"10\.0\.0\.1"):
        cluster.call("CHECK", "c0", prevResult={"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.1/24"}]})
    assert cluster.call("ADD", "c1") != ["10.0.0.1/24"]
    assert cluster.call("ADD", "c0") == ["10.0.0.1/24"]
    for container in ("c0", "c1"):
        cluster.call("DEL", container)
    assert (cluster.allocations(), cluster.server.names(RESERVATIONS), cluster.recorded()) == ({}, [], {})


# --- what no DEL has freed ---


def test_the_living_pods_address_stays_when_a_dead_one_of_its_name_is_collected(rig: Rig) -> None:
    """#176: a StatefulSet's pod is made again elsewhere; the reconciler kept the dead one's address, and freed the other."""
    new = rig.server.add_pod("team", "web-0", node="n2", status=status_of("10.0.0.1"))
    rig.hold("kubernetes", 1, owner("new", "team/web-0", node="n2", uid=new))
    rig.hold("kubernetes", 2, owner("old", "team/web-0", node="n1", uid="old"))
    agent = rig.agent("n1")
    assert agent.settles(lambda: rig.offsets(), ["1"]), agent.log
    assert rig.reservations() == ["10.0.0.1"]
