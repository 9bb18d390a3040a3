"""conf/kubernetes/agent-rbac.yaml: the agent has each right that it uses, and no other."""

from __future__ import annotations

from typing import Any

import yaml

from tests.agent.rig import Rig, owner
from tests.node import ROOT, until

Right = tuple[str, str, str, str]  # verb, API group, resource, namespace ("" for all)


def rules() -> list[tuple[str, dict[str, Any]]]:
    """(the namespace that it is for, "" for all; the rule)."""
    documents = yaml.safe_load_all((ROOT / "conf/kubernetes/agent-rbac.yaml").read_text())
    roles = [d for d in documents if d["kind"] in ("Role", "ClusterRole")]
    return [(role["metadata"].get("namespace", ""), rule) for role in roles for rule in role["rules"]]


def granted() -> set[Right]:
    return {
        (verb, group, resource, namespace)
        for namespace, rule in rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_agent_has_each_right_that_it_uses_and_no_other(rig: Rig) -> None:
    live = rig.server.add_pod("team", "live", node="n1")
    rig.server.core.add_node("off", ready=False, out_of_service=True)
    rig.server.core.add_network("team", "rdma-net", "{}")
    pods = ("live", "gone", "gone", "gone", "live")
    rig.allocate(**{f"a{n}": (f"c{n}", f"team/{pod}") for n, pod in enumerate(pods, 1)})
    recorded = owner("c2", "team/gone")
    for offset, whose in ((2, recorded), (3, owner("c3", "team/gone")), (4, owner("c4", "team/gone", node="off"))):
        rig.reserve(offset, whose)
    rig.record("n1", 1, owner("c1", "team/live", uid=live))  # its reservation is lost
    rig.record("n1", 2, recorded)
    pending = owner("c5", "team/live")
    rig.reserve(5, pending)
    rig.record("n1", 5, pending, pending=True)
    for offset, pod, leased in ((6, "web-0", True), (7, "gone", True), (8, "gone", False), (10, "web-0", True)):
        rig.lease(offset, owner(f"c{offset}", f"team/{pod}"), leased)  # of the store addresslease; web-0 is remembered
    lost = owner("c9", "team/live", uid=live, netns="/proc/self/ns/net")
    rig.record("n1", 256, lost, pool="10.0.1.0-24", scope=None)  # somebody has deleted its pool
    lease = {"metadata": {"name": "node-lost"}, "spec": {"leaseDurationSeconds": 1}}  # of a node that is gone for good
    rig.server.core.create("leases", "railcni-node-leases", lease)
    agent = rig.agent_on_the_host("n1", "--plugin-account=kube-system/railcni")
    assert until(lambda: rig.offsets() == ["1"], 30), agent.log
    assert until(lambda: rig.reservations() == ["10.0.0.1"], 10), agent.log
    assert until(lambda: not rig.server.core.find(("leases", "railcni-node-leases", "node-lost")), 30), agent.log
    agent.passes()
    agent.end()
    wide = {(group, resource) for _, group, resource, namespace in granted() if not namespace}
    used = {(v, g, r, "" if (g, r) in wide else namespace) for v, g, r, namespace in rig.server.asked}
    assert used == granted()
    named = {name for path, name in asked_names(rig) if path == "configmaps"}
    of_names = [rule for _, rule in rules() if "configmaps" in rule["resources"]]
    allowed = {name for rule in of_names for name in rule.get("resourceNames", ())}
    assert named == allowed
    assert {name for _, rule in rules() for name in rule.get("resourceNames", ())} - allowed == {"railcni"}


def asked_names(rig: Rig) -> set[tuple[str, str]]:
    places = (path.split("/") for method, path, _ in rig.server.seen if method in ("GET", "PATCH"))
    return {(place[0], place[1]) for place in places if len(place) > 1}
