"""The parts of `railcni agent` that decide: sightings, the election, tokens, metrics."""

from __future__ import annotations

from typing import Any

from cni.cli.agent import sightings
from cni.cli.agent.election import Election
from cni.cli.agent.metrics import Family, Histogram
from cni.cli.agent.sightings import Sightings, Suspect
from cni.cli.agent.tokens import Tokens
from cni.cli.inventory import Held, Node, Pod

LEASE = Held("10.0.0.0-24", (4, 1), "c1", "net1", ("team", "web"), uid="u1", node="n1", scope="")


def pod(phase: str = "Running", uid: str = "u1") -> dict[tuple[str, str], Pod]:
    return {("team", "web"): Pod("team", "web", uid, "n1", phase, ())}


def test_a_lease_is_ripe_when_it_was_seen_dead_at_each_look_for_a_grace() -> None:
    seen, suspect = Sightings(), Suspect(LEASE, "gone")
    assert seen.saw([suspect], 100.0, 60) == []
    assert seen.saw([suspect], 159.9, 60) == []
    assert seen.saw([suspect], 160.0, 60) == [suspect]
    assert seen.saw([], 170.0, 60) == []
    assert seen.saw([suspect], 180.0, 60) == [], "it was alive in between"
    seen.clear()
    assert seen.saw([suspect], 999.0, 60) == []


def test_another_container_at_the_address_is_another_sighting() -> None:
    seen = Sightings()
    other = Held(LEASE.pool, LEASE.address, "c2", "net1", LEASE.pod)
    assert seen.saw([Suspect(LEASE, "gone")], 0, 60) == []
    assert seen.saw([Suspect(other, "gone")], 100, 60) == []


def test_a_lease_is_dead_by_its_pod_alone() -> None:
    assert sightings.dead([LEASE], {})
    assert sightings.dead([LEASE], pod("Succeeded"))
    assert sightings.dead([LEASE], pod(uid="u2"))
    assert not sightings.dead([LEASE], pod())
    assert not sightings.dead([LEASE], pod("Pending", "u2"))


def test_a_node_that_answers_or_that_somebody_has_declared_off_hinders_nothing() -> None:
    unknown = Held("p", (4, 1), "c1", "net1", ("team", "web"))
    nodes = {"n1": Node("n1", True, False), "n2": Node("n2", False, False), "n3": Node("n3", False, True)}
    assert "node n2 is not ready" in sightings.hindrance(unknown, nodes, {})
    assert sightings.hindrance(unknown, nodes, {("team", "web"): "n1"}) == ""
    assert "node n2" in sightings.hindrance(unknown, nodes, {("team", "web"): "n2"})
    assert sightings.hindrance(unknown, nodes, {("team", "web"): "n3"}) == ""
    assert sightings.hindrance(unknown, nodes, {("team", "web"): "deleted"}) == ""
    misnamed = Held("p", (4, 1), "c1", "net1", ("team", "web"), node="short-name")
    assert "node n2" in sightings.hindrance(misnamed, nodes, {("team", "web"): "n2"})
    assert "node n2" in sightings.hindrance(misnamed, nodes, {}), "a new agent has not seen the pod"
    assert sightings.hindrance(misnamed, nodes, {}, {"n2"}) == "", "n2 is called so by its leases: the other is deleted"
    off = Held("p", (4, 1), "c1", "net1", ("team", "web"), node="n3")
    assert sightings.hindrance(off, nodes, {}) == ""
    abandoned = {
        n: sightings.is_abandoned(Held("p", (4, 1), "c", "i", ("t", "w"), node=n), nodes) for n in ("", *nodes, "n9")
    }
    assert abandoned == {"": True, "n1": False, "n2": False, "n3": True, "n9": True}


class Leases:
    """One object, with versions; `meddle` is done before a write."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.version = 0
        self.meddle = lambda: None

    def lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.document

    def put_lease(self, namespace: str, document: dict[str, Any], is_new: bool) -> bool:
        self.meddle()
        if is_new != (self.document is None):
            return False
        if not is_new and document["metadata"].get("resourceVersion") != str(self.version):
            return False
        self.version += 1
        self.document = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.version)}}
        return True


def test_only_one_candidate_holds_the_lease_at_any_time() -> None:
    now, leases = [1000.0], Leases()
    one, two = (Election("ns", name, 30, clock=lambda: now[0]) for name in ("one", "two"))
    one.renew(leases)
    two.renew(leases)
    assert (one.is_elected(), two.is_elected()) == (True, False)
    now[0] += 20  # two thirds without a renewal
    assert (one.is_elected(), two.is_elected()) == (False, False)
    now[0] += 9
    two.renew(leases)
    assert not two.is_elected()
    now[0] += 2
    two.renew(leases)
    one.renew(leases)
    assert (one.is_elected(), two.is_elected()) == (False, True)
    assert leases.document and leases.document["spec"]["leaseTransitions"] == 1
    two.resign(leases)
    one.renew(leases)
    assert (one.is_elected(), two.is_elected()) == (True, False)


def test_a_candidate_counts_from_when_it_saw_the_renewal_not_from_the_others_clock() -> None:
    now, leases = [1000.0], Leases()
    one, two = (Election("ns", name, 30, clock=lambda: now[0]) for name in ("one", "two"))
    one.renew(leases)
    assert leases.document
    leases.document["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    two.renew(leases)
    assert not two.is_elected()


def test_who_is_forestalled_is_not_elected() -> None:
    leases = Leases()
    one = Election("ns", "one", 30, clock=lambda: 1000.0)
    one.renew(leases)
    leases.meddle = lambda: setattr(leases, "version", leases.version + 1)
    one.renew(leases)
    assert not one.is_elected()


def test_a_requested_token_is_renewed_at_half_of_what_was_granted() -> None:
    now, asked = [0.0], []

    class Accounts:
        def token(self, namespace: str, account: str, seconds: int) -> tuple[str, int]:
            asked.append((namespace, account, seconds))
            return f"t{len(asked)}", 600

    tokens = Tokens("kube-system/railcni", lambda: now[0])
    assert tokens.current("own", Accounts) == tokens.current("own", Accounts) == "t1"
    now[0] = 299
    assert tokens.current("own", Accounts) == "t1"
    now[0] = 300
    assert tokens.current("own", Accounts) == "t2"
    assert asked == [("kube-system", "railcni", 24 * 3600)] * 2
    assert Tokens("").current("own", Accounts) == "own"


def test_metrics_are_written_as_prometheus_reads_them() -> None:
    family = Family("a_total", "counter", "What\nit is.", ("x",))
    assert list(family.lines()) == []
    family.add(2, 'q"\\\n')
    assert list(family.lines()) == [
        "# HELP a_total What\\nit is.",
        "# TYPE a_total counter",
        'a_total{x="q\\"\\\\\\n"} 2',
    ]
    histogram = Histogram("d_seconds", "How long.")
    for seconds in (0.004, 0.3, 99):
        histogram.observe(seconds)
    lines = list(histogram.lines())
    assert 'd_seconds_bucket{le="0.005"} 1' in lines
    assert 'd_seconds_bucket{le="0.5"} 2' in lines
    assert lines[-3:] == ['d_seconds_bucket{le="+Inf"} 3', "d_seconds_sum 99.304", "d_seconds_count 3"]
