"""The parts of `railcni agent` that decide: the grace tracker, the election, tokens, metrics."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cni.cluster.agent import collector
from cni.cluster.agent.cluster_stores import ClusterSource, GraceTracker
from cni.cluster.agent.collector import Collector
from cni.cluster.agent.nodefiles import Tokens
from cni.cluster.audit import lease_rules
from cni.cluster.audit.model import Node, Pod
from cni.cluster.audit.silence import Election, SilenceWatch
from cni.node.service.log import AgentLog
from cni.node.service.metrics import Counter, Histogram, Metrics
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.stores.apiserver.faults import Conflict, NoNamespace, NotFound
from ipam.stores.base import Store


def lease_on(node: str, container: str = "c1", uid: str = "") -> Lease:
    owner = Owner(Attachment("net", container, "net1"), ("team", "web", uid), node)
    return Lease(Want("10.0.0.0-24", 4, (10 << 24) + 1, ""), owner)


LEASE = lease_on("n1", uid="u1")
KEY = LEASE.identity

NODES = {"ready": Node("ready", True, False), "silent": Node("silent", False, False), "off": Node("off", False, True)}


def pod(phase: str = "Running", uid: str = "u1") -> dict[tuple[str, str], Pod]:
    return {("team", "web"): Pod("team", "web", uid, "n1", phase, ())}


def test_a_lease_is_ripe_when_it_was_seen_dead_at_each_look_for_a_grace() -> None:
    seen = GraceTracker()
    for now, ripe in ((100.0, []), (159.9, []), (160.0, [KEY])):
        assert seen.saw({KEY: LEASE}, now, 60) == ripe
    assert seen.saw({}, 170.0, 60) == []
    assert seen.saw({KEY: LEASE}, 180.0, 60) == [], "it was alive in between"
    other = lease_on("n1", "c2")
    assert seen.saw({other.identity: other}, 300.0, 60) == [], "another container at the address is another sighting"


def test_a_lease_is_dead_by_its_pod_alone() -> None:
    assert lease_rules.find_dead([LEASE], {})
    assert lease_rules.find_dead([LEASE], pod("Succeeded"))
    assert lease_rules.find_dead([LEASE], pod(uid="u2"))
    assert not lease_rules.find_dead([LEASE], pod())
    assert not lease_rules.find_dead([LEASE], pod("Pending", "u2"))


@pytest.mark.parametrize(("node", "seen_on", "is_over", "why"), [
    ("", None, False, "its node is unknown"), ("", "", False, "its node is unknown"),
    ("", "ready", False, "on node ready, where it may still run"),
    ("", "ready", True, ""), ("", "silent", False, "node silent is not ready"),
    ("", "silent", True, "node silent is not ready"), ("", "off", False, ""), ("", "deleted", False, ""),
    ("off", None, False, ""), ("deleted", None, False, "node silent is not ready"), ("deleted", "deleted", False, ""),
    ("short-name", "ready", False, "on node ready, where it may still run"),
    ("short-name", "silent", False, "node silent is not ready"),
])  # fmt: skip
def test_a_lease_is_freed_when_no_node_can_run_its_pod(node: str, seen_on: str | None, is_over: bool, why: str) -> None:
    found = lease_rules.blocker(lease_on(node), NODES, seen_on, is_over)
    assert why in found
    assert bool(why) == bool(found)


def test_a_silent_node_that_leases_name_is_not_the_one_that_a_lease_names_otherwise() -> None:
    assert lease_rules.blocker(lease_on("short-name"), NODES, None, False, {"silent"}) == ""


def test_a_lease_is_abandoned_when_its_node_is_unknown_gone_or_off() -> None:
    abandoned = {name: lease_rules.is_abandoned(lease_on(name), NODES) for name in ("", *NODES, "deleted")}
    assert abandoned == {"": True, "ready": False, "silent": False, "off": True, "deleted": True}


@pytest.mark.parametrize(("node", "seen_on"), [("deleted", None), ("deleted", "deleted"), ("", "deleted")])
def test_a_deleted_nodes_lease_stays_while_its_agent_lives(node: str, seen_on: str | None) -> None:
    assert "no Node object, renews" in lease_rules.blocker(
        lease_on(node), NODES, seen_on, False, {"silent"}, {"deleted"}
    )
    assert lease_rules.blocker(lease_on(node), NODES, seen_on, False, {"silent"}, {"other"}) == ""


def test_an_agent_is_silent_when_its_lease_stays_the_same_for_the_grace_and_what_it_promises() -> None:
    now, spec = [1000.0], {"renewTime": "a", "leaseDurationSeconds": 180}
    cluster: Any = SimpleNamespace(pages=lambda *more, **choice: [[{"metadata": {"name": "node-n1"}, "spec": spec}]])
    watch = SilenceWatch(60, clock=lambda: now[0])
    steps = [(0, "a", True), (100, "a", True), (79, "a", True), (1, "a", False), (60, "b", True), (100, "b", True)]
    for seconds, renewal, alive in (*steps, (80, "b", False), (121, "b", True)):  # after a pause all begins again
        now[0] += seconds
        spec["renewTime"] = renewal
        assert watch.alive(cluster) == ({"n1"} if alive else set()), (seconds, renewal)
        assert set(watch.silent(cluster)) == (set() if alive else {"n1"}), (seconds, renewal)


class Deleted(ClusterSource):
    """A lease whose node is deleted."""

    kind = "kubernetes"

    def connect(self, cluster: Any) -> None:
        self.cluster, self.store = cluster, Store()

    def abandon(self, lease: Lease) -> None:
        pass

    def of_node(self, node: str) -> list[Lease]:
        return []

    holder: Any = abandon

    def _pages(self, nodes: Any) -> Iterator[list[Lease]]:
        yield [lease_on("deleted", uid="u1")]


def test_the_grace_begins_when_the_awaited_node_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node has been told only then that the pod is to end."""
    now, freed, log = [1000.0], [], AgentLog()
    none: Any = lambda *_, **__: []  # noqa: E731
    api = SimpleNamespace(create=lambda resource, document, namespace: document)
    nodes = lambda: {"n2": Node("n2", not cluster.silent, False)}  # noqa: E731
    cluster = SimpleNamespace(
        path="", silent=True, pods=none, pages=none, networks=lambda: ([], set()), nodes=nodes, api=api
    )
    monkeypatch.setattr(collector, "monotonic", lambda: now[0])
    election = Election("me", 1e6)
    election.renew(Leases())
    records = Records(str(tmp_path))
    made = Collector(lambda: cluster, records, str, int, "n1", election, 60, Metrics(), log)  # type: ignore
    monkeypatch.setattr(made, "_sources", [Deleted(records, log, str)])
    monkeypatch.setattr(made, "_free", lambda source, lease, *more: freed.append(lease.text) or True)
    for seconds, silent in ((0, True), (60, True), (60, True), (60, False), (59, False)):
        now[0] += seconds
        cluster.silent = silent
        list(made.steps())
        assert freed == []
    now[0] += 60
    list(made.steps())
    assert freed == ["10.0.0.1"]


class Leases:
    """One object, with versions; `meddle` is done before a write."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {}
        self.version = 0
        self.meddle = lambda: None

    def get(self, resource: str, name: str, namespace: str) -> tuple[dict[str, Any], int]:
        if not self.version:
            raise NotFound(name)
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": self.spec}, 0

    def create(self, resource: str, document: dict[str, Any], namespace: str) -> None:
        self._write("", document["spec"])

    def patch(self, resource: str, name: str, operations: list[dict[str, Any]], namespace: str) -> None:
        test, change = operations
        self._write(test["value"], change["value"])

    def _write(self, version: str, spec: dict[str, Any]) -> None:
        self.meddle()
        if version != str(self.version or ""):
            raise Conflict("it has changed")
        self.version += 1
        self.spec = spec


def test_only_one_candidate_holds_the_lease_at_any_time() -> None:
    now, leases = [1000.0], Leases()
    one, two = (Election(name, 30, clock=lambda: now[0]) for name in ("one", "two"))

    def elected() -> tuple[bool, bool]:
        return one.is_elected(), two.is_elected()

    one.renew(leases)
    leases.spec["renewTime"] = "1999-01-01T00:00:00.000000Z"  # what counts is when `two` saw it
    two.renew(leases)
    assert elected() == (True, False)
    now[0] += 20  # two thirds without a renewal
    assert elected() == (False, False)
    now[0] += 9
    two.renew(leases)
    assert not two.is_elected()
    now[0] += 2
    two.renew(leases)
    one.renew(leases)
    assert elected() == (False, True)
    assert leases.spec["leaseTransitions"] == 1
    two.resign(leases)
    one.renew(leases)
    assert elected() == (True, False)
    leases.meddle = lambda: setattr(leases, "version", leases.version + 1)
    one.renew(leases)
    assert elected() == (False, False), "it was forestalled"


def test_a_requested_token_is_renewed_at_half_of_what_was_granted() -> None:
    now, asked = [0.0], []

    class Accounts:
        def create(self, resource: str, document: dict[str, Any], namespace: str) -> dict[str, Any]:
            asked.append((namespace, resource, document["spec"]["expirationSeconds"]))
            return {"status": {"token": f"t{len(asked)}"}, "spec": {"expirationSeconds": 600}}

    tokens = Tokens("kube-system/railcni", "n1", lambda: now[0])
    assert tokens.current("own", Accounts) == tokens.current("own", Accounts) == "t1"
    now[0] = 299
    assert tokens.current("own", Accounts) == "t1"
    now[0] = 300
    assert tokens.current("own", Accounts) == "t2"
    assert asked == [("kube-system", "serviceaccounts/railcni/token", 24 * 3600)] * 2
    assert Tokens("", "n1").current("own", Accounts) == "own"


@pytest.mark.parametrize("refusal", [
    InvalidConfig("refuses", 'cannot bind token to a Node object as the "X" feature-gate is disabled'),
    NoNamespace("has no namespace", 'nodes "n1" not found'),
])  # fmt: skip
def test_a_token_is_bound_to_the_node_where_the_server_can_or_the_reason_is_kept(
    refusal: InvalidConfig,
) -> None:
    asked: list[dict[str, Any]] = []
    refuses = True

    class Accounts:
        def create(self, _resource: str, document: dict[str, Any], _namespace: str) -> dict[str, Any]:
            asked.append(document["spec"].get("boundObjectRef"))
            if refuses and asked[-1]:
                raise refusal
            return {"status": {"token": "t"}}

    tokens = Tokens("kube-system/railcni", "n1")
    assert tokens.current("own", Accounts) == "t"
    bound = {"kind": "Node", "apiVersion": "v1", "name": "n1"}
    assert (asked, tokens.unbound) == ([bound, None], refusal.details)
    refuses = False
    tokens.forget()
    assert tokens.current("own", Accounts) == "t"
    assert (asked[2:], tokens.unbound) == ([bound], "")


def test_metrics_are_written_as_prometheus_reads_them() -> None:
    family = Counter("a_total", "What\nit is.", "x")
    assert list(family.lines()) == []
    family.add(2, 'q"\\\n')
    assert list(family.lines()) == [
        "# HELP a_total What\\nit is.", "# TYPE a_total counter", 'a_total{x="q\\"\\\\\\n"} 2',
    ]  # fmt: skip
    histogram = Histogram("d_seconds", "How long.")
    for seconds in (0.004, 0.3, 99):
        histogram.observe(seconds)
    lines = list(histogram.lines())
    assert 'd_seconds_bucket{le="0.005"} 1' in lines
    assert 'd_seconds_bucket{le="0.5"} 2' in lines
    assert lines[-3:] == ['d_seconds_bucket{le="+Inf"} 3', "d_seconds_sum 99.304", "d_seconds_count 3"]


@pytest.mark.parametrize(("level", "lines"), [
    ("debug", "debug info warning error"), ("info", "info warning error"), ("warning", "warning error"),
    ("error", "error"),
])  # fmt: skip
def test_lines_below_the_logs_level_are_not_written(level: str, lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = AgentLog(level)
    log.debug("of a plugin's code")
    log.say("info", "allocated")
    log.state("the server", "is not reached")
    log.error("no store")
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [
        f"level={one}" for one in lines.split()
    ]
