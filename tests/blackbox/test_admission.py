"""conf/kubernetes/admission.yaml on a real API server: what a node's tokens may change there, and what is refused.

RAILCNI_TEST_KUBECONFIG names its kubeconfig, of an administrator. The accounts, rights and policies are those of
conf/kubernetes under names of our own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.cluster.agent.nodefiles import Tokens
from cni.resources.containers import DRIVER
from cni.resources.dra import slices
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want
from ipam.ranges import parse_address
from ipam.stores.addresslease import AddressLeaseStore, objects
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict
from ipam.stores.apiserver.resources import EVERYWHERE, NODE_SLICES
from ipam.stores.base import Claimed
from tests.node import ROOT
from tests.tools import needs

KUBECONFIG = os.environ.get("RAILCNI_TEST_KUBECONFIG", "")
pytestmark = [
    pytest.mark.skipif(not KUBECONFIG, reason="needs RAILCNI_TEST_KUBECONFIG, an administrator's of a real cluster"),
    needs("kubectl", "it applies the manifests"),
]
FILES = ("rbac", "serviceaccount", "agent-rbac", "admission", "dra/rbac")
POOL = "10.0.0.0-24"
ADDRESSES = "addressleases"


def kubectl(*argv: str, given: list[dict[str, Any]] | None = None) -> str:
    text = yaml.safe_dump_all(given) if given else ""
    command = ["kubectl", f"--kubeconfig={KUBECONFIG}", *argv]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Site:
    """A cluster of the nodes n1, n2 and off, which is out of service; the agents and the leases have a namespace each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents = f"t-{uuid.uuid4().hex[:6]}"
        self.leases = f"{self.agents}-leases"
        self.documents = [document for name in FILES for document in self._documents(name)]
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        for node in ("n1", "n2", "off"):
            spec = {"taints": [taint]} if node == "off" else {}
            metadata = {"name": self.node(node)}
            self.documents.append({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
        roles = [document for document in self.documents if document["kind"] == "Role"]
        electing = (role for role in roles if any("leases" in rule["resources"] for rule in role["rules"]))
        self.electing = next(electing)["metadata"]["namespace"]
        for name in {self.agents, self.leases, self.electing}:
            self.documents.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for crd in sorted((ROOT / "conf/kubernetes/crds").glob("*.yaml")):
            kubectl("apply", "-f", str(crd))
        kubectl("apply", "-f", "-", given=self.documents)

    def close(self) -> None:
        kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", given=self.documents)

    def node(self, name: str) -> str:
        return f"{self.agents}-{name}"

    def _documents(self, name: str) -> Iterator[dict[str, Any]]:
        text = (ROOT / f"conf/kubernetes/{name}.yaml").read_text()
        namespaces = {"railcni": self.agents, "kube-system": self.leases}
        for former in namespaces:
            text = text.replace(f"system:serviceaccount:{former}:", f"system:serviceaccount:@{former}:")
        for former, own in namespaces.items():
            text = text.replace(f"system:serviceaccount:@{former}:", f"system:serviceaccount:{own}:")
        for document in yaml.safe_load_all(text):
            for place in (document["metadata"], *document.get("subjects", ())):
                if "namespace" in place:
                    place["namespace"] = namespaces.get(place["namespace"], f"{self.agents}-{place['namespace']}")
            if "namespace" not in document["metadata"]:
                document["metadata"]["name"] = f"{self.agents}-{document['metadata']['name']}"
            if document.get("roleRef", {}).get("kind") == "ClusterRole":
                document["roleRef"]["name"] = f"{self.agents}-{document['roleRef']['name']}"
            if "policyName" in document.get("spec", {}):
                document["spec"]["policyName"] = f"{self.agents}-{document['spec']['policyName']}"
                if former := document["spec"].get("paramRef", {}).get("namespace"):
                    document["spec"]["paramRef"]["namespace"] = f"{self.agents}-{former}"
            yield document

    def kubeconfig(self, token: str) -> str:
        document = yaml.safe_load(Path(KUBECONFIG).read_text())
        current = next(c for c in document["contexts"] if c["name"] == document["current-context"])
        current["context"]["namespace"] = self.leases
        document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
        path = self.folder / uuid.uuid4().hex
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def agent(self, node: str, account: str = "railcni") -> Api:
        """The API server as the agent on `node` reaches it, with the token that kubelet requests for its pod."""
        name = f"{account}-{node}"
        containers = [{"name": "agent", "image": "none.invalid/none"}]
        spec = {"nodeName": self.node(node), "serviceAccountName": account, "containers": containers}
        spec["automountServiceAccountToken"] = False
        metadata = {"name": name, "namespace": self.agents}
        kubectl("apply", "-f", "-", given=[{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}])
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
        return Api(self.kubeconfig(kubectl("create", "token", account, "-n", self.agents, *bound)), 10)

    def plugin(self, node: str) -> str:
        """The kubeconfig of the plugins on `node`, with the token that the agent requests."""
        tokens = Tokens(f"{self.leases}/railcni", self.node(node))
        token = tokens.current("", lambda: self.agent(node))
        assert tokens.unbound == ""
        return self.kubeconfig(token)

    def lease(self, number: int, node: str) -> Lease:
        family, value = parse_address(f"10.0.0.{number}")
        owner = Owner(Attachment("net", f"c{number}", "net1"), ("team", f"web-{number}", "u1"), self.node(node))
        return Lease(Want(POOL, family, value, ""), owner)

    def put(self, lease: Lease, state: str = objects.HELD) -> str:
        """As the administrator, whom no policy concerns."""
        document = objects.document(lease, state)
        document["metadata"]["namespace"] = self.leases
        kubectl("apply", "-f", "-", given=[document])
        return objects.name_of(lease)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        agent = site.agent("n1")
        deadline = time.monotonic() + 60
        for resource, namespace, document in waits(site):  # the server needs some seconds to follow its policies
            while refusal(lambda: made_again(agent, resource, document, namespace)) == "":  # noqa: B023
                assert time.monotonic() < deadline, f"no policy is in force for {resource}"
                time.sleep(0.5)
        yield site
    finally:
        site.close()


def waits(site: Site) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "serviceaccounts/railcni/token", site.leases, {"metadata": {}, "spec": {"audiences": []}}
    yield ADDRESSES, site.leases, objects.document(site.lease(200, "n2"))
    yield "events", "default", event(site, "n2")
    yield "configmaps", site.leases, {"metadata": {"name": f"other-{uuid.uuid4().hex[:8]}"}}


def made_again(api: Api, resource: str, document: dict[str, Any], namespace: str) -> None:
    try:
        api.create(resource, document, namespace)
    except Conflict:
        pass  # made before the policy was in force


def event(site: Site, node: str) -> dict[str, Any]:
    name = site.node(node)
    return {
        "metadata": {"name": f"railcni.{uuid.uuid4().hex}", "namespace": "default"},
        "involvedObject": {"kind": "Node", "apiVersion": "v1", "name": name, "uid": name},
        "reason": "AddressReclaimed", "message": "m", "type": "Normal",
        "source": {"component": "railcni-agent", "host": name},
        "reportingComponent": "railcni-agent", "reportingInstance": name,
    }  # fmt: skip


def refusal(request: Callable[[], Any]) -> str:
    """Why the policy refuses a request; "" when it does not."""
    try:
        request()
    except CniError as fault:
        assert "ValidatingAdmissionPolicy" in fault.msg, fault.msg
        print(fault.msg)
        return fault.msg
    return ""


def store_of(kubeconfig: str, known: list[Lease]) -> AddressLeaseStore:
    return AddressLeaseStore({"kind": "addresslease", "kubeconfig": kubeconfig}, 10, lambda: known)


def test_a_node_claims_frees_and_takes_over_what_is_its_own_or_nobodys(site: Site) -> None:
    own, other = (site.lease(7, node) for node in ("n1", "n2"))
    one, two = store_of(site.plugin("n1"), [own]), store_of(site.plugin("n2"), [other])
    one.ready([own])
    assert isinstance(one.claim([own], own.owner), Claimed)
    one.cooldown = 60
    assert one.release([own]) == 1  # it cools, and its pod is remembered
    assert isinstance(two.claim([other], other.owner), Claimed)  # of the other node, which knows no cooldown
    one.settle(own.attachment, 1)  # a fence on the other's lease
    assert two.release([other]) == 1
    again = site.lease(7, "n1")
    assert isinstance(one.claim([again], again.owner), Claimed)
    one.cooldown = 0
    assert one.release([again]) == 1
    one.forget()


def test_a_failed_claim_puts_back_what_it_has_taken_over(site: Site) -> None:
    site.put(site.lease(20, "n2"), objects.FORMER)
    site.put(site.lease(21, "n2"))
    store = store_of(site.plugin("n1"), [])
    wants = [site.lease(20, "n1"), site.lease(21, "n1")]
    assert not isinstance(store.claim(wants, wants[0].owner), Claimed)
    found = json.loads(kubectl("get", ADDRESSES, "10.0.0.20", "-n", site.leases, "-o", "json"))
    assert found["spec"]["state"] == "former"


Change = Callable[[Api, Site, str, dict[str, Any]], Any]


def patched(path: str, value: Any) -> Change:
    """A change of one member of a lease; `value` may be a function of the site and the document that was found."""

    def change(api: Api, site: Site, name: str, found: dict[str, Any]) -> None:
        made = value(site, found) if callable(value) else value
        api.patch(ADDRESSES, name, [{"op": "add", "path": path, "value": made}])

    return change


OF_A_POD = {"apiVersion": "v1", "kind": "Pod", "name": "none", "uid": "u"}
CHANGES: dict[str, Change] = {
    "taken for a lease of one's own": patched("/spec/node", lambda site, found: site.node("n1")),
    "freed": patched("/spec/state", "former"),
    "given another container": patched("/spec/containerID", "c99"),
    "hidden by a label": patched("/metadata/labels", {objects.STATE: "former"}),
    "left to the garbage collector": patched("/metadata/ownerReferences", [OF_A_POD]),
    "kept by a finalizer": patched("/metadata/finalizers", ["example.com/x"]),
    "marked as one of a lost node": patched(
        "/metadata/labels", lambda site, found: {**found["metadata"]["labels"], objects.ABANDONED: "true"}
    ),
    "deleted": lambda api, site, name, found: api.delete(ADDRESSES, name, found["metadata"]["uid"]),
}


@pytest.mark.parametrize("account", ["plugin", "agent"])
@pytest.mark.parametrize("change", CHANGES)
def test_another_nodes_lease_is_not(site: Site, change: str, account: str) -> None:
    name = site.put(site.lease(30, "n2"))
    api = site.agent("n1") if account == "agent" else Api(site.plugin("n1"), 10)
    found, _ = api.get(ADDRESSES, name)
    said = refusal(lambda: CHANGES[change](api, site, name, found))
    words = "is there" if change.startswith("marked") else r"(makes|changes) no lease|no owner and no finalizer"
    assert re.search(words, said)
    after, _ = api.get(ADDRESSES, name)
    assert after == found
    assert refusal(lambda: CHANGES["deleted"](Api(site.plugin("n2"), 10), site, name, found)) == ""


@pytest.mark.parametrize("account", ["plugin", "agent"])
def test_a_lease_in_another_nodes_name_is_not_made(site: Site, account: str) -> None:
    api = site.agent("n1") if account == "agent" else Api(site.plugin("n1"), 10)
    said = refusal(lambda: api.create(ADDRESSES, objects.document(site.lease(31, "n2"))))
    assert f"makes no lease of node '{site.node('n2')}'" in said


@pytest.mark.parametrize("state", [objects.FORMER, objects.HELD])
@pytest.mark.parametrize("members", [{"ownerReferences": [OF_A_POD]}, {"finalizers": ["example.com/x"]}])
@pytest.mark.parametrize("account", ["plugin", "agent"])
def test_no_object_has_an_owner_or_a_finalizer(
    site: Site, account: str, members: dict[str, list[Any]], state: str
) -> None:
    """A claim of another node would keep them: with its owner the garbage collector deletes the lease."""
    api = site.agent("n1") if account == "agent" else Api(site.plugin("n1"), 10)
    document = objects.document(site.lease(35, "n1"), state)
    document["metadata"] |= members
    assert "no owner and no finalizer" in refusal(lambda: api.create(ADDRESSES, document))


@pytest.mark.parametrize("way", ["Foreground", "Orphan", "Background"])
@pytest.mark.parametrize("account", ["plugin", "agent"])
def test_no_deletion_waits_for_others(site: Site, account: str, way: str) -> None:
    """The server would add a finalizer, and delete the lease of a node that has taken the object over meanwhile."""
    document = objects.document(site.lease(36, "n1"), objects.FORMER)
    site.agent("n2").create(ADDRESSES, document)
    api = site.agent("n1") if account == "agent" else Api(site.plugin("n1"), 10)
    options = json.dumps({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": way}).encode()
    name = document["metadata"]["name"]
    said = refusal(lambda: api._call("DELETE", ADDRESSES, name, "", options))
    assert ("no owner and no finalizer" in said) == (way != "Background"), said
    if said:
        kubectl("delete", ADDRESSES, name, "-n", site.leases)


@pytest.mark.parametrize("node", ["gone", "off"])
def test_a_lease_of_a_node_that_is_gone_or_out_of_service_is_freed_by_any_agent(site: Site, node: str) -> None:
    lease = site.lease(32, node)
    name = site.put(lease)
    api = site.agent("n1")
    found, _ = api.get(ADDRESSES, name)
    assert "changes no lease" in refusal(lambda: CHANGES["deleted"](api, site, name, found))
    store = store_of(api._path, [])
    store.abandon(lease)
    assert store.release([lease]) == 1


def test_a_marked_lease_whose_node_is_there_again_stays(site: Site) -> None:
    lease = site.lease(34, "n2")
    name = site.put(lease)
    kubectl("label", ADDRESSES, name, "-n", site.leases, f"{objects.ABANDONED}=true")
    assert "is there" in refusal(lambda: store_of(site.plugin("n1"), []).release([lease]))
    assert store_of(site.plugin("n2"), []).release([lease]) == 1


def test_a_token_from_before_the_policies_goes_on(site: Site) -> None:
    """It names no node: an upgrade must not stop the pods of nodes whose agents are still to be replaced."""
    token = kubectl("create", "token", "railcni", "-n", site.leases)
    lease = site.lease(33, "n2")
    store = store_of(site.kubeconfig(token), [lease])
    assert isinstance(store.claim([lease], lease.owner), Claimed)
    assert store.release([lease]) == 1


@pytest.mark.parametrize(
    ("seconds", "bound", "said"),
    [
        (86_400, "n1", ""),
        (86_401, "n1", "86400 seconds at most"),
        (3650 * 86_400, "n1", "86400 seconds at most"),
        (3600, "n2", "is bound to the Node of the agent"),
        (3600, "", "is bound to the Node of the agent"),
    ],
)
def test_an_agents_token_for_the_plugins_is_short_and_of_its_own_node(
    site: Site, seconds: int, bound: str, said: str
) -> None:
    reference = {"kind": "Node", "apiVersion": "v1", "name": site.node(bound)}
    spec = {"audiences": [], "expirationSeconds": seconds} | ({"boundObjectRef": reference} if bound else {})
    agent = site.agent("n1")
    found = refusal(lambda: agent.create("serviceaccounts/railcni/token", {"metadata": {}, "spec": spec}, site.leases))
    assert said in found and bool(said) == bool(found)


STORE = {"data": {"datastore": "addresslease"}}


@pytest.mark.parametrize(
    ("resource", "name", "document", "said"),
    [
        ("leases", "railcni-agent", {}, ""),
        ("leases", "node-n1", {}, ""),
        ("leases", "node-n2", {}, "may not write leases"),
        ("leases", "n1", {}, "may not write leases"),
        ("leases", "kube-scheduler", {}, "may not write leases"),
        ("configmaps", "coredns", STORE, "may not write configmaps"),
        ("configmaps", "railcni-datastore", {}, "has one key, datastore"),
        ("configmaps", "railcni-datastore", {"data": {"datastore": "etcd"}}, "has one key, datastore"),
        ("configmaps", "railcni-datastore", {"data": {**STORE["data"], "x": "y"}}, "has one key, datastore"),
        ("configmaps", "railcni-datastore", {**STORE, "binaryData": {"x": "eQ=="}}, "has one key, datastore"),
        ("configmaps", "railcni-datastore", STORE, ""),
    ],
)
def test_an_agent_writes_only_the_lease_and_the_configmap_of_its_names(
    site: Site, resource: str, name: str, document: dict[str, Any], said: str
) -> None:
    name = re.sub("n[12]$", lambda node: site.node(node[0]), name)
    agent = site.agent("n1")
    namespace = site.electing if resource == "leases" else site.leases
    found = refusal(lambda: agent.create(resource, {"metadata": {"name": name}, **document}, namespace))
    assert said in found and bool(said) == bool(found)


@pytest.mark.parametrize(
    ("resource", "name", "more"), [("leases", "railcni-agent", {}), ("configmaps", "railcni-datastore", STORE)]
)
def test_an_agent_leaves_no_object_to_the_garbage_collector(
    site: Site, resource: str, name: str, more: dict[str, Any]
) -> None:
    namespace = site.electing if resource == "leases" else site.leases
    kubectl("delete", resource, name, f"--namespace={namespace}", "--ignore-not-found")
    document = {"metadata": {"name": name, "ownerReferences": [OF_A_POD]}, **more}
    assert "garbage collector" in refusal(lambda: site.agent("n1").create(resource, document, namespace))


@pytest.mark.parametrize("change", ["patched", "deleted", "made again"])
def test_the_store_that_an_agent_has_chosen_is_changed_by_no_agent(site: Site, change: str) -> None:
    name, place = "railcni-datastore", site.leases
    metadata = {"name": name, "namespace": place}
    kubectl("apply", "-f", "-", given=[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **STORE}])
    agent = site.agent("n2")
    found, _ = agent.get("configmaps", name, namespace=place)
    patch = [{"op": "add", "path": "/data/datastore", "value": "kubernetes"}]
    other = {"metadata": {"name": name}, "data": {"datastore": "kubernetes"}}
    changes: dict[str, Callable[[], Any]] = {
        "patched": lambda: agent.patch("configmaps", name, patch, place),
        "deleted": lambda: agent.delete("configmaps", name, found["metadata"]["uid"], namespace=place),
        "made again": lambda: agent.create("configmaps", other, place),
    }
    with pytest.raises((CniError, Conflict)):
        changes[change]()
    assert agent.get("configmaps", name, namespace=place)[0] == found


@pytest.mark.parametrize(
    ("of", "said"),
    [("gone", ""), ("n2", "is there"), ("n1", "is there"), ("", "may not delete Lease")],
    ids=["gone", "another node's", "its own", "the election's"],
)
def test_an_agent_deletes_only_the_lease_of_a_node_that_is_gone(site: Site, of: str, said: str) -> None:
    name = f"node-{site.node(of)}" if of else "railcni-agent"
    make_lease(name, site.electing)
    agent = site.agent("n1")
    found, _ = agent.get("leases", name, namespace=site.electing)
    uid, version = found["metadata"]["uid"], found["metadata"]["resourceVersion"]
    refused = refusal(lambda: agent.delete("leases", name, uid, version, site.electing))
    assert said in refused and bool(said) == bool(refused)


def make_lease(name: str, namespace: str) -> None:
    kubectl("delete", "lease", name, f"--namespace={namespace}", "--ignore-not-found")
    metadata = {"name": name, "namespace": namespace}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    kubectl("create", "-f", "-", given=[lease])


def test_before_the_first_election_others_delete_their_leases(site: Site) -> None:
    """The server looks for the parameters of a policy before it looks whom the policy is about."""
    kubectl("delete", "lease", "railcni-agent", f"--namespace={site.electing}", "--ignore-not-found")
    for namespace in (site.electing, "default"):
        name = f"other-{uuid.uuid4().hex[:8]}"
        make_lease(name, namespace)
        kubectl("delete", "lease", name, f"--namespace={namespace}")


def test_an_agent_writes_events_in_its_own_name_alone(site: Site) -> None:
    agent = site.agent("n1")
    assert refusal(lambda: agent.create("events", event(site, "n1"), "default")) == ""
    assert "in its own name alone" in refusal(lambda: agent.create("events", event(site, "n2"), "default"))


@pytest.mark.parametrize(
    ("node", "pool", "said"),
    [("n1", "n1", ""), ("n2", "n2", "changes no ResourceSlice"), ("n1", "n2", "changes no pool")],
)
def test_a_drivers_token_publishes_no_slice_of_another_node_or_pool(
    site: Site, node: str, pool: str, said: str
) -> None:
    of_pool = {"name": site.node(pool), "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": site.node(node), "pool": of_pool, "devices": []}
    metadata = {"name": f"{site.node(node)}-{DRIVER}-0"}
    document = {"apiVersion": slices.API, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    driver = site.agent("n1", "railcni-dra")
    try:
        found = refusal(lambda: driver.create(NODE_SLICES, document, EVERYWHERE))
    finally:
        kubectl("delete", "resourceslice", document["metadata"]["name"], "--ignore-not-found")
    assert said in found and bool(said) == bool(found)
