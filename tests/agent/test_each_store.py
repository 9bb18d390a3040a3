"""The collector over each store of the API server alike: IPPools, and AddressLeases."""

from __future__ import annotations

import json
import threading
import time

import pytest

from cni.cli.ipam import reclaim as ipam_reclaim
from cni.cluster.audit import in_use, snapshot
from ipam.leases import Lease, Want
from ipam.stores.addresslease import objects as addresses
from ipam.stores.ippool.objects import entry_of
from tests.agent.rig import GONE, IFNAME, POOL, POOLS, RESERVATIONS, TEN, Rig, owner, status_of
from tests.blackbox.command import run
from tests.node import until
from tests.stores.kubernetes_api import ADDRESSES

HERE = "/proc/self/ns/net"
KINDS = ("kubernetes", "addresslease")
pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_a_lease_whose_pod_is_gone_is_freed_and_told_of(rig: Rig, kind: str) -> None:
    """whereabouts #484: "Clean up stale IP"; #546: of a pod deleted while nothing ran."""
    rig.server.add_pod("team", "live", node="n1")
    rig.hold(kind, 1, owner("c1", "team/live"))
    rig.hold(kind, 2, owner("c2", "team/gone", uid="u2"))
    agent = rig.agent("n1")
    assert until(lambda: rig.held(kind) == [1], 20), agent.log
    assert until(lambda: bool(rig.events())), agent.log
    assert [(reason, about) for reason, about, _ in rig.events()] == [("AddressReclaimed", "Pod gone")]
    (event,) = rig.server.core.named("events")
    assert event["involvedObject"]["uid"] == "u2"
    assert "10.0.0.2 of pod team/gone: its pod does not exist: freed in pool 10.0.0.0-24" in event["message"]
    assert kind == "addresslease" or rig.reservations() == ["10.0.0.1"]
    assert f"address=10.0.0.2 pool=10.0.0.0-24 pod=team/gone uid=u2 container=c2 ifname={IFNAME} node=n1" in agent.log
    assert agent.metric("ipam_allocations_gc_reclamations") == 1
    agent.passes(1)
    assert rig.held(kind) == [1]
    assert agent.metric("ipam_allocations_gc_candidates") is None


def test_an_address_that_is_freed_cools_down_as_the_flat_file_says(rig: Rig, kind: str) -> None:
    files = rig.host("n1") / "etc/cni/net.d/whereabouts.d"
    files.mkdir(parents=True)
    (files / "whereabouts.conf").write_text(json.dumps({"cooldown_seconds": 600, "datastore": kind}))
    rig.hold(kind, 2, owner("c2", "team/gone"))
    agent = rig.agent("n1")
    assert until(lambda: rig.held(kind) == [], 20), agent.log
    if kind == "kubernetes":
        kept = json.loads(rig.server.metadata(POOLS, POOL)["annotations"]["railcni.io/cooling"])["2"][0]
    else:
        kept = rig.server.spec(ADDRESSES, "10.0.0.2")["until"]
    assert 500 < kept - time.time() < 700


def test_a_pod_that_is_back_at_the_last_look_keeps_its_lease(rig: Rig, kind: str) -> None:
    rig.hold(kind, 2, owner("c2", "team/back"))
    back = threading.Event()

    def comes_back(method: str, resource: str, number: int) -> None:
        if rig.server.seen[number - 1][1] == "pods/back" and not back.is_set():
            back.set()
            rig.server.core.add_pod("team", "back", "n1")

    rig.server.faults = comes_back
    agent = rig.agent("n1")
    assert agent.says("10.0.0.2 is not freed: it is in use, or has changed"), agent.log
    agent.passes()
    assert rig.held(kind) == [2]


def test_a_lease_that_another_takes_at_the_last_moment_stays(rig: Rig, kind: str) -> None:
    rig.hold(kind, 2, owner("c2", "team/gone"))
    taken = threading.Event()

    def takes(method: str, resource: str, number: int) -> None:
        if method in ("PATCH", "DELETE") and resource in (POOLS, RESERVATIONS, ADDRESSES) and not taken.is_set():
            taken.set()
            rig.server.core.add_pod("team", "gone", "n1")
            rig.hold(kind, 2, owner("c9", "team/gone"))

    rig.server.faults = takes
    agent = rig.agent("n1")
    assert until(taken.is_set, 20), agent.log
    agent.passes()
    assert rig.held(kind) == [2]
    assert kind == "addresslease" or rig.reservations() == ["10.0.0.2"]
    assert (agent.metric("railcni_api_conflicts_total") or 0) >= 1


def test_another_pod_of_the_name_does_not_keep_a_lease_alive_but_a_pending_one_does(rig: Rig, kind: str) -> None:
    rig.server.add_pod("team", "web-0", node="n1", status=status_of("10.0.0.77"))
    rig.server.add_pod("team", "web-1", node="n1", phase="Pending")
    ended = rig.server.add_pod("team", "done", node="n1", phase="Succeeded")
    rig.hold(kind, 1, owner("c1", "team/web-0", uid="old"))
    rig.hold(kind, 2, owner("c2", "team/web-1", uid="old"))
    rig.hold(kind, 3, owner("c3", "team/done", uid=ended))
    agent = rig.agent("n1")
    assert agent.settles(lambda: rig.held(kind), [2]), agent.log


@pytest.mark.parametrize("recorded", [True, False])
def test_a_lease_is_freed_with_its_record_once_its_namespace_is_gone(rig: Rig, kind: str, recorded: bool) -> None:
    for offset, netns in ((2, HERE), (3, GONE)):
        whose = owner(f"c{offset}", "team/gone", netns=netns)
        if recorded:
            rig.record("n1", offset, whose, kind=kind)
        rig.hold(kind, offset, whose)
    agent = rig.agent_on_the_host("n1")
    assert until(lambda: rig.held(kind) == [2], 20), agent.log
    assert agent.says("10.0.0.2 is not freed: it is in use on this node"), agent.log
    agent.passes()
    assert rig.held(kind) == [2]
    assert [a.container_id for a, _, _ in rig.records("n1").all()] == ["c2"] * recorded


# The namespace that a caller names, and whether an agent that sees none of the host's processes can tell that it is gone.
NAMED = {
    "/dev/null": False,  # DRANET's reference webhook
    "/proc/4194305/ns/net": False,  # cri-dockerd; no process has a number above 4194304
    "/var/run/docker/netns/1234": False,  # a folder that the agent's container does not have
    "": False,
    GONE: True,
    "/var/run/netns/no-such-namespace": True,
}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_lease_whose_namespace_cannot_be_looked_at_from_the_agents_container_stays(
    rig: Rig, kind: str, recorded: bool
) -> None:
    places = dict(enumerate((GONE, *NAMED), 1))
    for offset, netns in places.items():
        whose = owner(f"c{offset}", "default/pod-whereabouts", netns=netns)
        rig.hold(kind, offset, whose)
        if recorded:
            rig.record("n1", offset, whose, kind=kind)
    unseen = [offset for offset, netns in places.items() if netns != GONE and not NAMED[netns]]
    agent = rig.agent("n1")
    assert agent.settles(lambda: rig.held(kind), unseen, 2), agent.log
    for offset in unseen:
        said = [line for line in agent.lines if "cannot be looked at from this container" in line]
        assert any(f"10.0.0.{offset} " in line for line in said), agent.log


def test_what_an_add_or_del_is_at_work_on_is_left_alone(rig: Rig, kind: str) -> None:
    whose = owner("c2", "team/gone")
    rig.hold(kind, 2, whose)
    rig.record("n1", 2, whose, kind=kind)
    with rig.records("n1").locked(whose.attachment, "link"):
        agent = rig.agent("n1")
        assert agent.says("10.0.0.2 is not freed"), agent.log
        assert rig.held(kind) == [2]
    assert until(lambda: rig.held(kind) == [], 20), agent.log


@pytest.mark.parametrize("scope", [None, ""])
def test_what_the_records_hold_is_put_back_where_the_store_has_lost_it(rig: Rig, kind: str, scope: str | None) -> None:
    """The cluster was restored from an old backup: others get the addresses again."""
    live = rig.server.add_pod("team", "live", node="n1")
    rig.server.add_pod("team", "other", node="n2")
    for offset, netns in ((1, HERE), (2, HERE), (3, GONE)):
        whose = owner(f"c{offset}", "team/live", uid=live, netns=netns)
        rig.record("n1", offset, whose, scope=scope, kind=kind)
    rig.hold(kind, 2, owner("c9", "team/other", node="n2"), scope)
    agent = rig.agent_on_the_host("n1")
    assert until(lambda: rig.held(kind) == [1, 2], 20), agent.log
    assert agent.says("10.0.0.2 of pool 10.0.0.0-24 is held by team/other too"), agent.log
    assert until(lambda: ("LeaseRestored", "Pod live") in [e[:2] for e in rig.events()]), rig.events()
    agent.passes()
    assert rig.held(kind) == [1, 2]
    if kind == "kubernetes":
        spec = rig.server.spec(POOLS, POOL)
        assert spec["range"] == "10.0.0.0/24"
        assert {offset: entry["id"] for offset, entry in spec["allocations"].items()} == {"1": "c1", "2": "c9"}
        assert rig.reservations() == ([] if scope is None else ["10.0.0.1", "10.0.0.2"])


@pytest.mark.parametrize("closed", [True, False])
def test_a_lease_that_a_migration_has_moved_is_not_put_back_where_it_was(rig: Rig, kind: str, closed: bool) -> None:
    """The node's records follow a moment later. `closed`: the pool tells; else somebody has deleted it since."""
    whose = owner("c1", "team/live", uid=rig.server.add_pod("team", "live", node="n1"), netns=HERE)
    rig.record("n1", 1, whose, kind=kind)
    there = next(other for other in KINDS if other != kind)
    if kind == "kubernetes" and closed:
        spec = {"range": "moved to addressleases.railcni.io: 10.0.0.0/24", "allocations": {}}
        rig.server.put(POOLS, "kube-system", POOL, spec)
    else:
        rig.hold(there, 1, whose)
    agent = rig.agent_on_the_host("n1")
    agent.passes(4)
    if kind == "kubernetes":
        spec = rig.server.spec(POOLS, POOL)
        assert (spec or {"allocations": {}})["allocations"] == {}
        assert rig.reservations() == []
    else:
        assert rig.held(kind) == []


def test_a_node_that_is_gone_or_out_of_service_is_looked_after_by_the_elected_agent(rig: Rig, kind: str) -> None:
    """whereabouts #550: pods of a node that is shut down keep their addresses until it is up again."""
    rig.server.core.add_node("off", ready=False, out_of_service=True)
    rig.server.core.add_node("silent", ready=False)
    for offset, node in ((1, "deleted"), (2, "off"), (3, "silent"), (4, "n2")):
        rig.hold(kind, offset, owner(f"c{offset}", f"team/p{offset}", node=node, boot="another"))
    agent = rig.agent("n1")
    assert agent.settles(lambda: rig.held(kind), [3, 4], 4), agent.log
    assert "10.0.0.4" not in agent.log, "that node's agent alone may free what it has, of a pod deleted by force too"
    assert agent.metric("ipam_allocations_in_use") == 2
    assert agent.metric("ipam_ippool_size") == 254
    shown = run("pools", "--kubeconfig", rig.server.kubeconfig(rig.directory), data=True)
    assert [pool["size"] for pool in shown] == [254], "the command counts the same"
    rig.agent("n2")
    assert until(lambda: rig.held(kind) == [3], 20)


def test_the_store_that_is_not_defined_is_empty_and_hinders_nothing(rig: Rig, kind: str) -> None:
    other = {ADDRESSES} if kind == "kubernetes" else {POOLS, RESERVATIONS}
    rig.server.resources -= other
    rig.hold(kind, 1, owner("c1", "team/gone"))
    rig.hold(kind, 2, owner("c2", "team/gone", node="deleted", boot="another"))
    agent = rig.agent("n1")
    assert until(lambda: rig.held(kind) == [], 20), agent.log
    agent.passes()
    assert agent.metric("railcni_api_failures_total") in (None, 0) or "does not know" not in agent.log


def test_what_is_exhausted_is_told_by_the_part_of_a_pool_that_the_nads_give(rig: Rig, kind: str) -> None:
    rig.server.add_pod("team", "live", node="n2")
    block = {"type": "whereabouts", "range": "10.0.0.0/24", "range_start": "10.0.0.3", "range_end": "10.0.0.7"}
    config = {"cniVersion": "1.0.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0", "ipam": block}
    for offset in (1, 2, 3, 4, 5, 6):  # .1 and .2 were given before the range was shortened
        rig.hold(kind, offset, owner(f"c{offset}", "team/live", node="n2"))
    rig.server.core.add_network("team", "rdma-net", json.dumps(config))
    agent = rig.agent("n1")
    assert until(lambda: agent.metric("ipam_ippool_size") == 5, 20), agent.log
    agent.passes()
    assert "PoolExhausted" not in str(rig.events())
    rig.hold(kind, 7, owner("c7", "team/live", node="n2"))
    message = "pool 10.0.0.0-24 is exhausted: all its 5 addresses are leased"
    assert until(lambda: ("PoolExhausted", "Node n1", message) in rig.events(), 20), agent.log


def test_what_a_store_remembers_too_long_is_forgotten(rig: Rig, kind: str) -> None:
    if kind == "kubernetes":
        pytest.skip(
            "each patch of an IPPool cuts its memory: nothing is left to forget, so this runs for addresslease alone"
        )
    old = time.time_ns() - 3600 * 10**9
    late, cooled, back = (
        Lease(Want(POOL, 4, TEN + offset, ""), owner(f"c{offset}", pod))
        for offset, pod in ((1, "team/gone"), (2, "team/gone"), (3, "team/web-0"))
    )
    memory = addresses.memory(back, old)
    for document in (addresses.document(late, "former"), addresses.document(cooled, "cooling"), memory):
        spec, labels = {**document["spec"], "sequence": old}, document["metadata"]["labels"]
        rig.server.put(ADDRESSES, "kube-system", document["metadata"]["name"], spec, labels=labels)
    agent = rig.agent("n1")
    assert until(lambda: rig.server.names(ADDRESSES) == [memory["metadata"]["name"]], 20), agent.log


# --- railcni ipam ---


@pytest.fixture
def ipam(rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that choose the store of `kind`; this node has no records."""
    for module in (snapshot, ipam_reclaim):
        monkeypatch.setattr(module, "STATE", str(rig.directory / "none"))
    flat = rig.directory / "flat.json"
    kubeconfig = rig.server.kubeconfig(rig.directory)
    flat.write_text(json.dumps({"datastore": kind, "kubernetes": {"kubeconfig": kubeconfig}}))
    return ["--config", str(flat), "--report", str(rig.directory / "report")]


def audited(ipam: list[str]) -> list[tuple[str, str, str]]:
    findings = run("audit", *ipam, code=None, data=True)["findings"]
    return [(f["kind"], f["action"], f["address"]) for f in findings]


def reclaimed(ipam: list[str], *more: str, code: int = 0) -> list[tuple[str, str]]:
    argv = ["reclaim", *ipam[:2], "--from-report", ipam[3], "--grace", "0", *more]
    return [(done["result"], done["address"]) for done in run(*argv, data=True, code=code)]


def test_an_object_that_cannot_be_read_is_named_and_hinders_nothing(rig: Rig, kind: str, ipam: list[str]) -> None:
    if kind == "addresslease":
        spec = addresses.document(Lease(Want(POOL, 4, TEN + 9, ""), owner("c9", "team/gone")), addresses.COOLING)[
            "spec"
        ]
        rig.server.put(ADDRESSES, "kube-system", "nobody", spec, labels={addresses.STATE: addresses.HELD})
    else:
        rig.server.put(POOLS, "kube-system", "nobody", {"range": "nowhere", "allocations": {}})
    rig.hold(kind, 2, owner("c2", "team/gone", node="deleted", boot="another"))
    report = run("audit", *ipam, code=None, data=True)
    assert [finding["address"] for finding in report["findings"]] == ["10.0.0.2"]
    assert "nobody" in str(report["unread"])
    agent = rig.agent("n1")
    assert until(lambda: rig.held(kind) == [], 20), agent.log
    assert [reason for reason, _, text in rig.events() if "nobody" in text] == ["PoolUnreadable"]


@pytest.mark.parametrize("named", ["flat file", "cluster"])
@pytest.mark.parametrize("other", ["another pod", "another pool", "the same sandbox", "another address"])
def test_an_address_that_both_stores_have_leased_is_found_from_either(
    rig: Rig, kind: str, ipam: list[str], other: str, named: str
) -> None:
    """Both pods live, and neither shows its addresses."""
    for pod in ("one", "two"):
        rig.server.add_pod("team", pod, node="n1")
    second = owner("c1", "team/one") if other == "the same sandbox" else owner("c2", "team/two")
    away = next(store for store in KINDS if store != kind)
    rig.hold(kind, 1, owner("c1", "team/one"))
    if other == "another pool":
        held = addresses.document(Lease(Want("10.0.0.0-16", 4, TEN + 1, ""), second))
        spec = {"range": "10.0.0.0/16", "allocations": {"1": entry_of(second)}}
        if away == "kubernetes":
            rig.server.put(POOLS, "kube-system", "10.0.0.0-16", spec)
        else:
            rig.server.put(ADDRESSES, "kube-system", "10.0.0.1", held["spec"], labels=held["metadata"]["labels"])
    else:
        rig.hold(away, 2 if other == "another address" else 1, second)
    argv = ipam if named == "flat file" else ["--kubeconfig", rig.server.kubeconfig(rig.directory)]
    found = run("audit", *argv, code=None, data=True)["findings"]
    twice = [finding for finding in found if finding["kind"] == "duplicate-lease"]
    assert len(twice) == (other != "another address"), found
    for finding in twice:
        assert finding["address"] == "10.0.0.1"
        assert "in AddressLeases" in finding["message"] and "in IPPools" in finding["message"]
        assert "`railcni ipam migrate`" in finding["message"]
        assert ("delete one of the pods" in finding["message"]) == (other != "the same sandbox")


# The state of the lease's node, and whether another machine may free a lease whose pod is gone.
AFAR = {
    "ready": ({"ready": True}, False), "silent": ({"ready": False}, False),
    "off": ({"ready": False, "out_of_service": True}, True), "gone": (None, True),
    "gone, and its agent renews its Lease": (None, False), "gone, and no Lease may be read": (None, False),
}  # fmt: skip


@pytest.mark.parametrize("state", AFAR)
def test_a_lease_is_freed_from_another_machine_only_when_its_node_is_off(
    rig: Rig, kind: str, ipam: list[str], state: str
) -> None:
    node, may_be_freed = AFAR[state]
    if node:
        rig.server.core.add_node("n7", **node)
    if "renews" in state:
        rig.server.core.create("leases", "railcni-node-leases", {"metadata": {"name": "node-n7"}, "spec": {}})
    if "no Lease" in state:
        rig.server.forbidden.add(("list", "leases"))
    rig.hold(kind, 2, owner("c2", "team/gone", node="n7", boot="another"))
    (found,) = audited(ipam)
    # the audit itself says that it may still run there
    assert (found[1] == "look") == (state == "silent" or "renews" in state)
    if found[1] == "look":
        return
    result = "freed" if may_be_freed else "kept"
    assert reclaimed(ipam, code=0 if may_be_freed else 1) == [(result, "10.0.0.2")]
    assert rig.held(kind) == ([] if may_be_freed else [2])
    text = str(run("reclaim", *ipam[:2], "--from-report", ipam[3], "--grace", "0", code=None))
    assert may_be_freed or ("`railcni ipam reclaim` there" in text and "--force" in text)
    assert may_be_freed or reclaimed(ipam, "--force") == [("freed", "10.0.0.2")]


def test_a_lease_of_a_pod_whose_containers_have_ended_is_freed_from_another_machine(
    rig: Rig, kind: str, ipam: list[str]
) -> None:
    rig.server.add_pod("team", "done", node="n7", phase="Succeeded")
    rig.hold(kind, 2, owner("c2", "team/done", node="n7", boot="another"))
    assert audited(ipam) == [("lease-of-ended-pod", "reclaim", "10.0.0.2")]
    assert reclaimed(ipam) == [("freed", "10.0.0.2")]


def test_reclaim_on_the_node_of_a_lease_frees_nothing_whose_namespace_is_there(
    rig: Rig, kind: str, ipam: list[str]
) -> None:
    rig.hold(kind, 1, owner("c1", "team/gone", netns=HERE))
    rig.hold(kind, 2, owner("c2", "team/gone", netns=GONE))
    assert len(audited(ipam)) == 2
    assert reclaimed(ipam) == [("skipped", "10.0.0.1"), ("freed", "10.0.0.2")]


def test_reclaim_in_a_container_that_sees_no_sandbox_keeps_the_lease_and_names_the_commands(
    rig: Rig, kind: str, ipam: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_use, "_sees_the_node", lambda below: False)
    rig.hold(kind, 2, owner("c2", "team/gone", netns="/proc/4194305/ns/net"))
    assert audited(ipam) == [("lease-without-pod", "reclaim", "10.0.0.2")]
    assert reclaimed(ipam, code=1) == [("kept", "10.0.0.2")]
    text = str(run("reclaim", *ipam[:2], "--from-report", ipam[3], "--grace", "0", code=1))
    assert "outside of containers" in text and "`kubectl railcni ipam reclaim`" in text
    assert reclaimed(ipam, "--force") == [("freed", "10.0.0.2")]


def test_the_namespace_that_is_named_is_the_one_that_is_read_and_freed_in(rig: Rig, kind: str, ipam: list[str]) -> None:
    rig.hold(kind, 2, owner("c2", "team/gone", boot="another"))
    elsewhere = ["--config", ipam[1].replace("flat.json", "elsewhere.json"), *ipam[2:]]
    folder = rig.directory / "elsewhere"
    folder.mkdir()
    flat = {"datastore": kind, "kubernetes": {"kubeconfig": rig.server.kubeconfig(folder, "another")}}
    (rig.directory / "elsewhere.json").write_text(json.dumps(flat))
    assert audited(elsewhere) == []
    assert audited([*elsewhere, "-n", "kube-system"]) == [("lease-without-pod", "reclaim", "10.0.0.2")]
    assert reclaimed(elsewhere, "-n", "kube-system", "--force") == [("freed", "10.0.0.2")]
    assert rig.held(kind) == []


def test_what_a_restored_backup_lacks_is_put_back_before_the_next_list(rig: Rig, kind: str) -> None:
    live = rig.server.add_pod("team", "live", node="n1")
    whose = owner("c1", "team/live", uid=live, netns=HERE)
    rig.record("n1", 1, whose, kind=kind)
    agent = rig.agent_on_the_host("n1", "--grace=5", "--every=0.05")
    assert until(lambda: rig.held(kind) == [1], 20), agent.log
    agent.passes(2)
    if kind == "kubernetes":
        rig.server.put(POOLS, "kube-system", POOL, {"range": "10.0.0.0/24", "allocations": {}})
        rig.server.remove(RESERVATIONS, "10.0.0.1")
    else:
        rig.server.remove(ADDRESSES, "10.0.0.1")
    agent.passes(3)
    assert rig.held(kind) == [1], agent.log
