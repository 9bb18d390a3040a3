"""railcni ipam on a cluster: pools, leases, show, audit and reclaim, beside pods that live and die."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.command import run
from tests.stores.cluster_api import ClusterServer

NAMESPACE = "kube-system"
POOL = "192.168.111.0-24"
IP = "192.168.111.{}".format


class Cluster:
    """An API server, and the command on it."""

    def __init__(self, folder: Path) -> None:
        self.server = ClusterServer()
        self.kubeconfig = self.server.kubeconfig(folder)
        self.report = str(folder / "report.json")
        self.server.add_network("rdma-net")
        self.server.core.add_node("node-1")

    def lease(self, n: int, pod: str = "", *, reserved: bool = True, **entry: Any) -> None:
        """The allocation at offset N, of team/pN in container cN, as Go whereabouts writes it."""
        entry = {"id": f"c{n}", "podref": f"team/{pod or f'p{n}'}", "ifname": "net1", **entry}
        allocations = (self.server.spec("ippools", POOL) or {}).get("allocations", {})
        spec = {"range": "192.168.111.0/24", "allocations": {**allocations, str(n): entry}}
        self.server.put("ippools", NAMESPACE, POOL, spec)
        if reserved:
            self.reserve(n, entry["podref"])

    def reserve(self, n: int, podref: str) -> None:
        spec = {"podref": podref, "ifname": "net1"}
        self.server.put("overlappingrangeipreservations", NAMESPACE, IP(n), spec)

    def run(self, *argv: str, code: int = 0) -> str:
        """What the command says on stdout, and then on stderr."""
        return str(run(*argv, "--kubeconfig", self.kubeconfig, code=code))

    def read(self, *argv: str, code: int = 0) -> Any:
        return run(*argv, "--kubeconfig", self.kubeconfig, code=code, data=True)

    def audit(self, code: int = 1) -> list[tuple[str, str, str]]:
        """The findings: what, what to do, and the address; the report is written."""
        document = self.read("audit", "--report", self.report, code=code)
        assert json.loads(Path(self.report).read_text()) == document
        return [(f["kind"], f["action"], f.get("address", "")) for f in document["findings"]]

    def reclaim(self, *argv: str, code: int = 0) -> list[tuple[str, str]]:
        done = self.read("reclaim", "--from-report", self.report, "--grace", "0", "--force", *argv, code=code)
        return [(result["result"], result["address"]) for result in done]

    @property
    def offsets(self) -> list[int]:
        return sorted(int(o) for o in (self.server.spec("ippools", POOL) or {"allocations": {}})["allocations"])

    @property
    def reservations(self) -> list[str]:
        return self.server.names("overlappingrangeipreservations")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.server.close()


def test_leases_are_chosen_by_pool_node_pod_interface_and_container(cluster: Cluster) -> None:
    for n in (1, 2):
        cluster.lease(n)
    told = {
        "node": "node-7",
        "network": "rdma-net",
        "sequence": 1_700_000_000 * 10**9,
        "uid": "u9",
        "netns": "/run/netns/x",
    }
    cluster.lease(9, ifname="net2", reserved=False)
    spec = {"podref": "team/p9", "ifname": "net2", "containerid": "c9"}
    cluster.server.put("overlappingrangeipreservations", NAMESPACE, IP(9), spec, annotations={"railcni.io/lease": json.dumps(told)})  # fmt: skip

    def chosen(*argv: str) -> list[str]:
        return [lease["address"] for lease in cluster.read("leases", *argv)]

    assert (chosen(), chosen("--pool", "other")) == ([IP(1), IP(2), IP(9)], [])
    assert chosen("--node", "node-7") == chosen("--ifname", "net2") == chosen("--network", "rdma-net") == [IP(9)]
    assert chosen("--pod", "team/p2") == chosen("--container", "c2") == chosen("--container", "team/p2") == [IP(2)]
    (shown,) = cluster.read("show", "team/p9")
    wanted = ["u9", "node-7", "/run/netns/x", "2023-11-14T22:13:20Z"]
    assert [shown[key] for key in ("podUID", "node", "netns", "created")] == wanted
    assert cluster.read("show", IP(9)) == [shown]
    assert "pod team/none has no lease" in cluster.run("show", "team/none", code=1)
    cluster.run("show", "neither", code=2)


def test_an_audit_of_a_cluster_in_order_finds_nothing_and_reads_only(cluster: Cluster) -> None:
    for n in range(1, 4):
        cluster.lease(n)
        cluster.server.run_pod(f"p{n}", IP(n))
    cluster.lease(4)
    cluster.server.run_pod("p4", phase="Pending")
    cluster.lease(5, ipamclaimref="claim")
    assert cluster.audit(code=0) == [("lease-of-pending-pod", "keep", IP(4)), ("lease-of-ipamclaim", "keep", IP(5))]
    said = cluster.run("audit")
    for words in (
        "5 leases, 1 pool, 5 reservations, 4 pods",
        "as it should be: 1 lease-of-pending",
        "nothing is wrong",
    ):
        assert words in said
    assert {method for method, _, _ in cluster.server.seen} == {"GET"}


def test_an_audit_finds_what_is_wrong_and_reclaim_frees_what_is_dead(cluster: Cluster) -> None:
    for n in (1, 2, 3, 4):
        cluster.lease(n)
    cluster.server.run_pod("p1", IP(1))
    cluster.server.run_pod("p2", phase="Pending")
    cluster.lease(5, ipamclaimref="claim")
    cluster.lease(6, reserved=False)
    cluster.server.run_pod("p6", IP(6))
    cluster.reserve(7, "team/p7")
    cluster.server.run_pod("p8", IP(8))
    cluster.server.run_pod("p9", IP(1))
    assert sorted(cluster.audit()) == [
        ("duplicate-address", "look", IP(1)), ("lease-of-ipamclaim", "keep", IP(5)),
        ("lease-of-pending-pod", "keep", IP(2)), ("lease-without-pod", "reclaim", IP(3)),
        ("lease-without-pod", "reclaim", IP(4)), ("lost-reservation", "restore", IP(6)),
        ("pod-without-lease", "look", IP(1)), ("pod-without-lease", "look", IP(8)),
        ("reservation-without-lease", "reclaim", IP(7)),
    ]  # fmt: skip
    before = (cluster.offsets, cluster.reservations)
    assert sorted(cluster.reclaim("--dry-run")) == [("would free", IP(n)) for n in (3, 4, 7)]
    assert (cluster.offsets, cluster.reservations) == before
    assert sorted(cluster.reclaim()) == [("freed", IP(n)) for n in (3, 4, 7)]
    assert (cluster.offsets, cluster.reservations) == ([1, 2, 5, 6], [IP(n) for n in (1, 2, 5)])
    assert sorted(cluster.reclaim()) == [("skipped", IP(n)) for n in (3, 4, 7)]
    said = cluster.run("reclaim", "--from-report", cluster.report, "--grace", "0", "--force")
    assert f"skipped: {IP(3)} of {POOL}: it is not as it was found\n" in said
    assert "lease-without-pod" not in {kind for kind, _, _ in cluster.audit()}


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("may_list", [False, True])
def test_a_pool_that_another_namespace_has_too_is_found(cluster: Cluster, closed: bool, may_list: bool) -> None:
    cluster.lease(2)
    cluster.server.run_pod("p2", IP(2))
    spec = {"range": ("moved to addressleases.railcni.io: " if closed else "") + "192.168.111.0/24", "allocations": {}}
    cluster.server.put("ippools", "another", POOL, spec)
    cluster.server.put("ippools", "another", "10.9.0.0-24", {"range": "10.9.0.0/24", "allocations": {}})
    if not may_list:
        cluster.server.forbidden.add(("list", "ippools in all namespaces"))
    assert cluster.audit(int(may_list)) == ([("pool-in-two-namespaces", "look", "")] if may_list else [])


def test_what_has_changed_since_the_report_is_passed_over(cluster: Cluster) -> None:
    for n in range(1, 6):
        cluster.lease(n)
    assert {action for _, action, _ in cluster.audit()} == {"reclaim"}
    cluster.lease(1, id="another")  # given again, to a pod of the same name
    cluster.server.run_pod("p2", phase="Pending")  # is there again
    cluster.server.run_pod("p3", IP(3))
    cluster.server.run_pod("p8", IP(4))  # uses it, whosever it is
    assert cluster.reclaim() == [*[("skipped", IP(n)) for n in (1, 2, 3, 4)], ("freed", IP(5))]
    assert cluster.offsets == [1, 2, 3, 4]


def test_a_pod_that_comes_after_the_second_look_keeps_its_lease(cluster: Cluster) -> None:
    cluster.lease(1)
    cluster.lease(2)
    cluster.audit()
    known = len(cluster.server.seen)

    def come(method: str, resource: str, number: int) -> Any:
        if resource == "ippools" and number > known and not cluster.server.core.named("pods"):
            reads = [place for _, place, _ in cluster.server.seen[known:] if place == f"ippools/{POOL}"]
            if reads:  # the pool is read by itself: this is the last look before the change
                cluster.server.run_pod("p1", phase="Pending")
        return None

    cluster.server.faults = come
    assert (cluster.reclaim(), cluster.offsets) == ([("skipped", IP(1)), ("freed", IP(2))], [1])


def test_a_pool_that_changes_under_the_patch_is_read_again(cluster: Cluster) -> None:
    cluster.lease(1)
    cluster.audit()

    def change(method: str, resource: str, number: int) -> Any:
        if method == "PATCH" and 9 not in cluster.offsets:
            return lambda: cluster.lease(9)  # another node's claim, between the read and the patch
        return None

    cluster.server.faults = change
    assert (cluster.reclaim(), cluster.offsets) == ([("freed", IP(1))], [9])


def made_anew(cluster: Cluster) -> None:
    cluster.server.remove("overlappingrangeipreservations", IP(1))
    cluster.reserve(1, "team/p2")


# What is dead; the request under which it changes, and to what; and the offset that is leased then. An ADD that takes a
# reservation over changes it in place, so its UID stays.
UNDER: dict[str, tuple[Callable[[Cluster], None], str, Callable[[Cluster], None], list[int]]] = {
    "the lease moves": (lambda c: c.lease(1), "PATCH", lambda c: c.lease(1, id="new"), [1]),
    "the reservation is made anew": (lambda c: c.reserve(1, "team/p1"), "DELETE", made_anew, []),
    "an ADD takes both": (lambda c: c.lease(1), "DELETE", lambda c: c.lease(1, "new", id="n"), [1]),
}


@pytest.mark.parametrize("case", UNDER)
def test_what_changes_under_the_request_that_would_free_it_stays(cluster: Cluster, case: str) -> None:
    begin, under, becomes, leased = UNDER[case]
    begin(cluster)
    assert {action for _, action, _ in cluster.audit()} == {"reclaim"}
    cluster.server.faults = lambda method, *_: (lambda: becomes(cluster)) if method == under else None
    (done,) = cluster.read("reclaim", "--from-report", cluster.report, "--grace", "0", "--force")
    assert (done["result"], done["why"]) == ("skipped", "it has changed meanwhile")
    assert (cluster.offsets, cluster.reservations) == (leased, [IP(1)])


def test_an_attachment_that_comes_between_the_readings_is_no_finding(cluster: Cluster) -> None:
    cluster.lease(1)
    cluster.server.run_pod("p1", IP(1))

    def go(method: str, resource: str, number: int) -> Any:
        if resource == "pods" and len(cluster.offsets) == 1:
            cluster.lease(2)
            cluster.server.run_pod("p2", IP(2))  # the pools have been read, the pods have not
        return None

    cluster.server.faults = go
    assert cluster.audit(code=0) == []


def test_what_only_the_second_look_shows_is_no_finding(cluster: Cluster) -> None:
    cluster.lease(3)  # dead: so there is a second look

    def between(method: str, resource: str, number: int) -> Any:
        lists = cluster.server.lists
        if lists.count("pods") == 1 and lists[-1] == "network-attachment-definitions":
            cluster.server.run_pod("p2", IP(2))  # in the second look, before its pods are read: its lease comes later
        return None

    cluster.server.faults = between
    assert cluster.audit() == [("lease-without-pod", "reclaim", IP(3))]


def test_what_must_not_be_read_is_said_and_pods_must_be(cluster: Cluster) -> None:
    cluster.lease(1)
    cluster.server.run_pod("p1", IP(1))
    cluster.server.forbidden = {("list", "nodes"), ("list", "network-attachment-definitions")}
    _, second = cluster.read("audit")["unread"]
    assert "forbids to list nodes" in second
    cluster.server.forbidden = {("list", "pods")}
    said = cluster.run("audit", code=1)
    assert f"forbids to list pods in all namespaces: kubeconfig {cluster.kubeconfig} needs that right" in said


def test_a_report_of_another_store_or_none_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.lease(1)
    cluster.audit()
    said = cluster.run("reclaim", "--from-report", cluster.report, "-n", "elsewhere", code=1)
    assert "namespace kube-system, and the store chosen here is" in said
    for content in ("{}", "[]", '{"kind": "IpamAudit", "apiVersion": "railcni.io/v9"}'):
        (tmp_path / "other").write_text(content)
        said = cluster.run("reclaim", "--from-report", str(tmp_path / "other"), code=1)
        assert "of this version: make a new one by `railcni ipam audit --report FILE`\n" in said
    assert "cannot be read" in cluster.run("reclaim", "--from-report", "/none", code=1)
    cluster.run("reclaim", code=2)


def test_a_cluster_that_lacks_networks_and_slices_is_read_all_the_same(cluster: Cluster) -> None:
    del cluster.server.core.objects["network-attachment-definitions", "team", "rdma-net"]
    cluster.server.resources.remove("nodeslicepools")
    cluster.lease(1)
    assert cluster.audit() == [("lease-without-pod", "reclaim", IP(1))]
