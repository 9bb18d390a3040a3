"""The collector of `railcni agent`: what it frees, what it leaves, and what it says of it, where that is of one store alone."""

from __future__ import annotations

import threading
import time

import pytest

from ipam.stores.apiserver.resources import MOVED
from tests.agent.rig import GRACE, IFNAME, POOL, POOLS, RESERVATIONS, Rig, owner
from tests.node import until
from tests.stores import kubernetes_api, kubernetes_proxy

HERE = "/proc/self/ns/net"

# --- leases that are dead ---


def test_a_lease_that_a_del_has_freed_is_no_suspect(rig: Rig) -> None:
    rig.server.add_pod("team", "web", node="n1")
    rig.hold("kubernetes", 2, owner("c2", "team/web"))
    agent = rig.agent("n1", "--grace=600")
    agent.passes()
    rig.allocate()
    rig.server.remove(RESERVATIONS, "10.0.0.2")
    rig.server.remove_pod("team", "web")
    agent.passes()
    assert "freed" not in agent.log
    listed = [path for path, query in rig.server.queries if "railcni.io/node=n1" in query.get("labelSelector", [""])[0]]
    assert sorted(listed) == ["addressleases", "overlappingrangeipreservations"], "not listed at each look"


def test_a_reservation_without_a_lease_that_an_add_takes_over_at_the_last_moment_stays(rig: Rig) -> None:
    """The ADD changes it in place, so its UID stays."""
    rig.reserve(2, owner("c2", "team/gone"))
    taken = threading.Event()

    def takes(method: str, resource: str, number: int) -> None:
        if (method, resource) == ("DELETE", RESERVATIONS) and not taken.is_set():
            taken.set()
            rig.server.core.add_pod("team", "new", "n1")
            rig.hold("kubernetes", 2, owner("c9", "team/new"))

    rig.server.faults = takes
    agent = rig.agent("n1")
    assert until(taken.is_set, 20), agent.log
    agent.passes()
    assert rig.offsets() == ["2"]
    assert rig.reservations() == ["10.0.0.2"]


def test_what_names_no_pod_or_belongs_to_an_ipam_claim_is_never_freed(rig: Rig) -> None:
    """whereabouts #112: entries without a pod."""
    claimed = {"id": "c1", "podref": "team/vm", "ifname": IFNAME, "ipamclaimref": "team/claim"}
    rig.allocate(a1=claimed, a2=("c2", ""), a3=("c3", "team/gone"))
    rig.reserve(1, owner("c1", "team/vm"))
    rig.reserve(3, owner("c3", "team/gone"))
    agent = rig.agent("n1")
    assert agent.settles(lambda: rig.offsets(), ["1", "2"]), agent.log
    assert rig.reservations() == ["10.0.0.1"]


def test_a_definition_without_ifname_is_told_of_and_its_leases_are_freed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kubernetes_proxy.path():
        pytest.skip("a real server has the definitions of conf/kubernetes: runs without RAILCNI_TEST_KUBECONFIG")
    kubernetes_api.outdate(monkeypatch)
    rig.allocate(a2={"id": "c2", "podref": "team/gone"})
    rig.reserve(2, owner("c2", "team/gone"))
    agent = rig.agent("n1")
    assert agent.says("it has no ifname"), agent.log
    assert until(lambda: rig.offsets() == [], 20), agent.log
    assert until(lambda: "DefinitionOutdated" in {reason for reason, _, _ in rig.events()})


def test_when_the_pods_cannot_be_told_nothing_is_freed(rig: Rig) -> None:
    rig.hold("kubernetes", 2, owner("c2", "team/gone"))
    not_found = {"kind": "Status", "status": "Failure", "code": 404, "message": "no such path", "metadata": {}}
    rig.server.faults = lambda method, resource, number: (404, not_found) if resource == "pods" else None
    began = time.time()
    agent = rig.agent("n1")
    assert agent.says("does not know pods"), agent.log
    assert until(lambda: len([s for s in rig.server.seen if s[1] == "pods"]) > 3, 20)
    since = agent.metric("railcni_collector_last_success_timestamp_seconds") or 0
    assert since >= int(began), "its alert counts from the start"
    assert 'result="done"' not in agent.get("/metrics")[1]
    assert rig.offsets() == ["2"]
    rig.server.faults = lambda method, resource, number: None
    assert until(lambda: rig.offsets() == [], 20), agent.log


# --- this node's records ---


def test_a_lost_reservation_is_restored(rig: Rig) -> None:
    whose = owner("c1", "team/live", uid=rig.server.add_pod("team", "live", node="n1"))
    rig.allocate(a1=("c1", "team/live"))
    rig.record("n1", 1, whose)
    agent = rig.agent("n1")
    assert until(lambda: rig.reservations() == ["10.0.0.1"], 20), agent.log
    assert rig.server.spec(RESERVATIONS, "10.0.0.1") == {"containerid": "c1", "podref": "team/live", "ifname": IFNAME}
    assert until(lambda: ("ReservationRestored", "Pod live") in [e[:2] for e in rig.events()]), rig.events()
    assert agent.metric("railcni_reservations_restored_total") == 1
    assert agent.metric("railcni_addresses_contended_total") == 0
    rig.server.remove(RESERVATIONS, "10.0.0.1")
    rig.reserve(1, pod="other/pod")
    assert agent.says("10.0.0.1 of pool 10.0.0.0-24 is held by other/pod too"), agent.log
    assert agent.metric("railcni_addresses_contended_total") == 1
    assert rig.server.spec(RESERVATIONS, "10.0.0.1") == {"podref": "other/pod", "ifname": IFNAME}


# --- what no node looks after ---


def test_a_lease_of_an_unknown_node_whose_pod_may_run_on_a_node_that_answers_is_not_freed(rig: Rig) -> None:
    """A pod that is deleted by force leaves the API at once, and its node within its termination grace period.

    Nothing tells the node of a lease of Go, or with enable_overlapping_ranges off. What another node's agent keeps,
    since the namespace is there still, is not freed by the elected one.
    """
    for pod in ("seen", "over"):
        rig.server.add_pod("team", pod, node="n2", phase="Succeeded" if pod == "over" else "Running")
    rig.allocate(a1=("go1", "team/never-seen"), a2=("go2", "team/seen"), a3=("c3", "team/over"))
    agent = rig.agent("n1")
    assert until(lambda: rig.offsets() == ["1", "2"], 20), agent.log  # n2 answers, and says that the pod has ended
    assert agent.says("its node is unknown"), agent.log
    agent.passes(4)
    rig.server.remove_pod("team", "seen")
    assert agent.says("it was on node n2, where it may still run"), agent.log
    assert until(lambda: any(e[0] == "ReclaimWaits" for e in rig.events()))
    agent.passes(4)
    assert rig.offsets() == ["1", "2"]
    rig.server.core.add_node("n2", ready=False)
    assert agent.says("node n2 is not ready, and the pod may still run there"), agent.log
    rig.server.core.add_node("n2", ready=False, out_of_service=True)
    assert until(lambda: rig.offsets() == ["1"], 20), agent.log


def test_a_reservation_without_a_lease_goes_when_its_pod_is_gone(rig: Rig) -> None:
    rig.server.add_pod("team", "live", node="n2")
    rig.allocate(a5=("c5", "team/live"))
    rig.reserve(5, pod="team/gone")  # the address is leased, to another: people have to look
    rig.reserve(6, pod="team/live")
    rig.reserve(7, pod="team/gone")  # Go's: its pool's entry may be lost, and nothing tells the node
    rig.reserve(8, owner("c8", "team/gone", node="deleted"))
    agent = rig.agent("n1")
    assert agent.settles(lambda: rig.reservations(), ["10.0.0.5", "10.0.0.6", "10.0.0.7"], 4), agent.log
    assert agent.metric("railcni_reservations_removed_total") == 1


def test_a_reservation_without_a_lease_stays_while_its_address_may_be_in_use(rig: Rig) -> None:
    """The pool's entry was lost, and the node's name was another when the pod got its address."""
    rig.reserve(8, owner("c8", "team/gone", node="deleted", netns=HERE))
    rig.reserve(9, owner("c9", "team/gone", node="deleted"))
    agent = rig.agent_on_the_host("n1")
    assert until(lambda: rig.reservations() == ["10.0.0.8"], 20), agent.log
    assert agent.says("10.0.0.8 is not freed: it is in use on this node, or may be"), agent.log


def test_a_reservation_that_a_migration_has_left_hinders_no_other_lease(rig: Rig) -> None:
    rig.server.put(POOLS, "kube-system", POOL, {"range": f"{MOVED}10.0.0.0/24", "allocations": {}})
    rig.reserve(8, owner("c8", "team/gone", node="deleted"))
    rig.hold("addresslease", 9, owner("c9", "team/gone", node="deleted"))
    agent = rig.agent("n1")
    assert until(lambda: rig.held("addresslease") == [], 20), agent.log
    assert agent.says("10.0.0.8 is not freed: IPPool 10.0.0.0-24: its addresses are in AddressLeases"), agent.log


def test_pods_are_read_of_this_node_alone_and_in_pages(rig: Rig) -> None:
    """whereabouts #386: every node reads all pods, and runs out of memory."""
    rig.server.core.page = 2
    for number in range(5):
        rig.server.add_pod("team", f"p{number}", node="n1")
    rig.allocate(**{f"a{n}": (f"c{n}", f"team/p{n}") for n in range(5)}, a9=("c9", "team/gone"))
    for number in range(5):
        rig.reserve(number, owner(f"c{number}", f"team/p{number}"))
    rig.reserve(9, owner("c9", "team/gone"))
    agent = rig.agent("n1")
    assert until(lambda: rig.offsets() == [str(n) for n in range(5)], 20), agent.log
    listed = [query for path, query in rig.server.queries if path == "pods"]
    assert all("fieldSelector" in query for query in listed), "nothing is abandoned: no reason to read all pods"
    assert {query["fieldSelector"][0] for query in listed} == {"spec.nodeName=n1"}
    assert sum("continue" in query for query in listed) >= 2
    assert all(int(query["limit"][0]) <= 500 for query in listed)


def test_pools_are_measured_and_told_of_when_they_are_full(rig: Rig) -> None:
    entries = {str(n): {"id": "c" * 64, "podref": "team/live", "ifname": IFNAME} for n in range(1, 255)}
    rig.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": entries})
    many = {str(n): {"id": "c" * 200, "podref": "team/live", "ifname": IFNAME} for n in range(1, 5200)}
    rig.server.put(POOLS, "kube-system", "10.1.0.0-16", {"range": "10.1.0.0/16", "allocations": many})
    rig.server.add_pod("team", "live", node="n2")
    rig.hold("addresslease", 9, owner("c9", "team/live", node="n2"))  # a pool of the same name in the other store
    agent = rig.agent("n1")
    assert until(lambda: len(rig.events()) == 1, 20), agent.log
    told = {reason: (about, message) for reason, about, message in rig.events()}
    assert told["PoolExhausted"] == ("Node n1", "pool 10.0.0.0-24 is exhausted: all its 254 addresses are leased")
    text = agent.get("/metrics")[1]
    assert 'ipam_allocations_in_use{ippool="10.0.0.0-24",node=""} 254' in text
    assert 'ipam_ippool_size{ippool="10.1.0.0-16"} 65534' in text
    assert agent.metric("railcni_ippool_object_bytes") > 1 << 20
    agent.passes(4)
    assert len(rig.events()) == 1, "the Event of a state that lasts is repeated after an hour"


def test_no_collect_frees_nothing(rig: Rig) -> None:
    rig.allocate(a2=("c2", "team/gone"))
    agent = rig.agent("n1", "--no-collect")
    assert agent.says("whereabouts.conf")
    time.sleep(3 * GRACE)
    assert rig.offsets() == ["2"]
    asked = {s[1] for s in rig.server.seen if s[1].startswith(("pods", "leases"))}
    assert asked <= {"leases", "leases/node-n1"}, "it only renews the Lease of its node"
    assert agent.metric("railcni_collector_last_success_timestamp_seconds") is None, "the alert would fire for ever"
