"""Turns among nodes at a pool that they contend for: a Lease, on which nothing but speed depends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.spec.errors import CniError
from ipam.stores import kubernetes_nodes_turn
from ipam.stores.kubernetes_api import Api
from ipam.stores.kubernetes_nodes_turn import WAITING, NodesTurn, name_of
from tests.node import until
from tests.stores.kubernetes_api import DROP_AFTER, apply
from tests.stores.kubernetes_core import LEASES
from tests.stores.test_kubernetes_store import POOL, POOLS, Cluster, cluster, server

__all__ = ["cluster", "server"]

NAME = kubernetes_nodes_turn.name_of(POOL)
PLACE = ("leases", "kube-system", NAME)


def changed_by_others(cluster: Cluster, times: int = 1) -> Callable[[str, str, int], Any]:
    """Before each of the first `times` patches of a pool an ADD of another node comes, which patches it too."""
    left = list(range(times))
    busy = threading.Lock()

    def fault(method: str, resource: str, _: int) -> Any:
        if (method, resource) == ("PATCH", POOLS) and left and busy.acquire(blocking=False):
            number = left.pop()
            cluster.server.put(
                POOLS,
                "kube-system",
                POOL,
                {
                    "range": "10.0.0.0/24",
                    "allocations": cluster.allocations()
                    | {str(100 + number): {"id": f"other-{number}", "podref": "ns/other", "ifname": "net1"}},
                },
            )
            busy.release()
        return None

    return fault


def holder(cluster: Cluster) -> str:
    return str(cluster.server.core.get(PLACE)["spec"]["holderIdentity"])


def held(cluster: Cluster, by: str = "another") -> None:
    spec = {"holderIdentity": by, "leaseDurationSeconds": 5}
    document = {"apiVersion": f"{LEASES}/v1", "kind": "Lease", "metadata": {"name": NAME}, "spec": spec}
    cluster.server.core.create("leases", "kube-system", document)


def hand_over(cluster: Cluster, to: str) -> None:
    cluster.server.core.patch(PLACE, [{"op": "replace", "path": "/spec/holderIdentity", "value": to}], apply)


def of_leases(cluster: Cluster) -> list[str]:
    return [asked for asked in cluster.asked() if " leases" in asked]


def test_who_has_the_pool_to_itself_asks_for_no_turn(cluster: Cluster) -> None:
    for name in ("c1", "c2", "c3"):
        cluster.call("ADD", name)
    cluster.call("DEL", "c2")
    assert of_leases(cluster) == []


def test_who_was_refused_as_another_node_has_changed_the_pool_takes_turns_for_a_while(cluster: Cluster) -> None:
    cluster.call("ADD", "c1")
    cluster.asked()
    cluster.server.faults = changed_by_others(cluster)
    assert cluster.call("ADD", "c2") == ["10.0.0.2/24"]
    asked = cluster.asked()
    turn = [f"GET leases/{NAME}", "POST leases", f"GET {POOLS}/{POOL}", f"PATCH {POOLS}/{POOL}", f"PATCH leases/{NAME}"]
    assert asked[asked.index(turn[0]) :][: len(turn)] == turn
    assert holder(cluster) == ""
    assert cluster.call("ADD", "c3") == ["10.0.0.3/24"]
    turn[1] = f"PATCH leases/{NAME}"
    assert cluster.asked()[: len(turn)] == turn
    cluster.call("DEL", "c3")
    assert of_leases(cluster) == [turn[0], turn[1], turn[4]]


def test_the_turn_that_another_node_has_is_waited_for(cluster: Cluster) -> None:
    cluster.call("ADD", "c1")
    held(cluster)
    cluster.server.faults = changed_by_others(cluster)
    thread = threading.Thread(target=cluster.call, args=("ADD", "c2"))
    thread.start()
    assert until(lambda: of_leases(cluster)[:1] == [f"GET leases/{NAME}"], 10)
    time.sleep(0.5)
    assert "2" not in cluster.allocations()
    hand_over(cluster, "")
    thread.join(10)
    assert "2" in cluster.allocations()
    assert holder(cluster) == ""


def test_a_node_that_died_in_its_turn_is_waited_for_no_longer_than_the_lease_lasts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_nodes_turn, "SECONDS", 1)
    cluster.call("ADD", "c1")
    held(cluster)
    cluster.server.faults = changed_by_others(cluster)
    assert cluster.call("ADD", "c2", seconds=20) == ["10.0.0.2/24"]
    assert holder(cluster) == ""


def test_a_turn_that_does_not_come_delays_an_add_and_does_not_fail_it(cluster: Cluster) -> None:
    cluster.call("ADD", "c1")
    held(cluster)
    cluster.server.faults = changed_by_others(cluster)
    assert cluster.call("ADD", "c2", seconds=4) == ["10.0.0.2/24"]
    assert holder(cluster) == "another"


@pytest.mark.parametrize("verb", ["get", "create", "patch"])
def test_a_server_that_allows_no_leases_is_no_hindrance(cluster: Cluster, verb: str) -> None:
    cluster.server.forbidden = {(verb, "leases")}
    cluster.call("ADD", "c1")
    if verb == "patch":
        held(cluster, "")
    cluster.server.faults = changed_by_others(cluster, 3)
    assert cluster.call("ADD", "c2") == ["10.0.0.2/24"]
    cluster.call("DEL", "c2")
    assert "2" not in cluster.allocations()


def test_a_file_of_the_lock_that_says_nonsense_is_that_of_a_pool_without_contention(cluster: Cluster) -> None:
    cluster.call("ADD", "c1")
    (path,) = Path(cluster.directory / "run").glob("pool-*")
    path.write_text("nonsense")
    cluster.call("ADD", "c2")
    assert of_leases(cluster) == []


def test_after_a_while_without_refusals_no_turn_is_asked_for(cluster: Cluster) -> None:
    cluster.call("ADD", "c1")
    (path,) = Path(cluster.directory / "run").glob("pool-*")
    path.write_text(str(time.monotonic() - 60))
    cluster.call("ADD", "c2")
    assert of_leases(cluster) == []


def test_of_two_that_take_a_free_turn_at_once_one_has_it(cluster: Cluster) -> None:
    held(cluster, by="")
    turn = NodesTurn(Api(cluster.kubeconfig, 5), NAME)

    def taken_before(method: str, resource: str, _: int) -> None:
        if (method, resource) == ("PATCH", "leases"):
            hand_over(cluster, "another")

    cluster.server.faults = taken_before
    assert turn.take(time.monotonic() + 0.1)
    assert not turn.is_ours
    assert holder(cluster) == "another"


def test_who_comes_back_after_its_turn_was_taken_away_leaves_it_to_who_has_it(cluster: Cluster) -> None:
    turn = NodesTurn(Api(cluster.kubeconfig, 5), NAME)
    turn.take(time.monotonic() + 1)
    assert turn.is_ours
    hand_over(cluster, "another")
    turn.end()
    assert holder(cluster) == "another"


def waiting(cluster: Cluster) -> list[str]:
    return str(cluster.server.core.get(PLACE)["metadata"].get("annotations", {}).get(WAITING) or "").split()


def test_those_who_wait_have_the_turn_in_their_order(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_nodes_turn, "SECONDS", 60)
    first = NodesTurn(Api(cluster.kubeconfig, 5), NAME)
    first.take(time.monotonic() + 1)
    order: list[int] = []

    def wait(number: int) -> None:
        turn = NodesTurn(Api(cluster.kubeconfig, 5), NAME)
        assert turn.take(time.monotonic() + 20)
        order.append(number)
        turn.end()

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(6)]
    for number, thread in enumerate(threads):
        thread.start()
        assert until(lambda place=number + 1: len(waiting(cluster)) == place, 10)  # type: ignore[misc]
    first.end()
    for thread in threads:
        thread.join(20)
    assert order == [0, 1, 2, 3, 4, 5]
    assert (holder(cluster), waiting(cluster)) == ("", [])


def test_who_gives_up_waiting_is_not_handed_the_turn(cluster: Cluster) -> None:
    held(cluster)
    turn = NodesTurn(Api(cluster.kubeconfig, 5), NAME)
    assert turn.take(time.monotonic() + 0.3)
    assert (turn.is_ours, holder(cluster), waiting(cluster)) == (False, "another", [])


def test_what_others_have_noted_on_the_lease_is_kept(cluster: Cluster) -> None:
    held(cluster, by="")
    document = cluster.server.core.get(PLACE)
    document["metadata"]["annotations"] = {"team": "fabric"}
    cluster.server.core.replace(PLACE, document)
    turn = NodesTurn(Api(cluster.kubeconfig, 5), NAME)
    turn.take(time.monotonic() + 1)
    turn.end()
    assert cluster.server.core.get(PLACE)["metadata"]["annotations"] == {"team": "fabric", WAITING: ""}


def test_two_pools_of_one_lease_are_one_turn(cluster: Cluster) -> None:
    pools = [f"10.{number}.0.0-24" for number in range(100)]
    one, other = next((a, b) for a in pools for b in pools if a < b and name_of(a) == name_of(b))
    ranges = {"ipRanges": [{"range": pool.replace("-", "/")} for pool in (one, other)]}
    cluster.call("ADD", "c1", {"range": "", **ranges})
    for path in cluster.directory.glob("run/pool-*"):
        path.write_text(str(time.monotonic()))
    cluster.asked()
    assert len(cluster.call("ADD", "c2", {"range": "", **ranges})) == 2
    assert of_leases(cluster) == [f"GET leases/{name_of(one)}", "POST leases", f"PATCH leases/{name_of(one)}"]


@pytest.mark.parametrize("fault", [(500, "broken"), DROP_AFTER, (410, {"reason": "Expired", "message": "gone"})])
def test_leases_that_are_not_served_cost_an_add_little_of_its_time(cluster: Cluster, fault: Any) -> None:
    cluster.call("ADD", "c1")
    mark(cluster)

    def slow(method: str, resource: str, _: int) -> Any:
        if resource != "leases":
            time.sleep(0.4)
        return fault if resource == "leases" else None

    cluster.server.faults = slow
    assert cluster.call("ADD", "c2", seconds=5) == ["10.0.0.2/24"]
    cluster.server.faults = lambda *_: None


def test_who_has_the_turn_and_is_refused_all_the_same_waits_longer_each_time(cluster: Cluster) -> None:
    """Go whereabouts takes no turns."""
    cluster.call("ADD", "c1")
    mark(cluster)
    status = {"kind": "Status", "reason": "Conflict", "message": "the object has been modified", "code": 409}
    cluster.server.faults = (
        lambda method, resource, _: (409, status) if (method, resource) == ("PATCH", POOLS) else None
    )
    with pytest.raises(CniError, match="changed by others"):
        cluster.call("ADD", "c2", seconds=3)
    cluster.server.faults = lambda *_: None
    assert cluster.asked().count(f"PATCH {POOLS}/{POOL}") < 20
    assert holder(cluster) == ""


@pytest.mark.parametrize("verb", ["STATUS", "CHECK"])
def test_who_reads_alone_waits_for_no_other_node(cluster: Cluster, verb: str) -> None:
    ips = [{"address": address} for address in cluster.call("ADD", "c1")]
    mark(cluster)
    held(cluster)
    cluster.asked()
    cluster.call(verb, "c1", prevResult={"cniVersion": "1.1.0", "ips": ips})
    assert of_leases(cluster) == []


def test_a_wait_whose_beginning_was_not_answered_is_taken_back(cluster: Cluster) -> None:
    held(cluster)
    lost = iter([DROP_AFTER])
    cluster.server.faults = lambda method, resource, _: next(lost, None) if method == "PATCH" else None
    turn = NodesTurn(Api(cluster.kubeconfig, 5), NAME)
    turn.take(time.monotonic() + 5)
    assert turn.failed and not turn.is_ours
    assert waiting(cluster) == []


def mark(cluster: Cluster) -> None:
    """As when others had just changed the pool meanwhile."""
    for path in cluster.directory.glob("run/pool-*"):
        path.write_text(str(time.monotonic()))
