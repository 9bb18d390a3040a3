"""railcni ipam against a real API server: the rights that reading needs, and that pods come in pages.

RAILCNI_TEST_KUBECONFIG names its kubeconfig, of an administrator. All is done in namespaces and pools of our own.
"""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount, ServiceAccountToken
from lightkube.resources.rbac_authorization_v1 import ClusterRole, ClusterRoleBinding

from cni.cluster.audit import cluster as clusters
from cni.cluster.audit.cluster import Cluster
from ipam.stores.ippool import locks
from tests.attachment_definitions import Nad, define
from tests.blackbox.command import run

KUBECONFIG = os.environ.get("RAILCNI_TEST_KUBECONFIG", "")
pytestmark = pytest.mark.skipif(not KUBECONFIG, reason="needs RAILCNI_TEST_KUBECONFIG, of a cluster's administrator")

SUBNET = f"10.199.{os.getpid() % 250}"
POOL = f"{SUBNET}.0-24"


GROUP = "whereabouts.cni.cncf.io", "v1alpha1"
IPPool = create_namespaced_resource(*GROUP, "IPPool", "ippools")
RESERVATION = "OverlappingRangeIPReservation"
OverlappingRangeIPReservation = create_namespaced_resource(*GROUP, RESERVATION, "overlappingrangeipreservations")


class Site:
    """A namespace of the cluster, which holds pools and pods."""

    def __init__(self, folder: Path) -> None:
        self.namespace = f"railcni-test-{uuid.uuid4().hex[:8]}"
        document = yaml.safe_load(Path(KUBECONFIG).read_text())
        current = next(c for c in document["contexts"] if c["name"] == document["current-context"])
        current["context"]["namespace"] = self.namespace
        self.kubeconfig = str(folder / "kubeconfig")
        Path(self.kubeconfig).write_text(json.dumps(document))
        self.report = str(folder / "report.json")
        self.cluster = Cluster(self.kubeconfig)
        self.client = Client(KubeConfig.from_file(self.kubeconfig).get(), trust_env=False)
        define(self.client)
        self.client.create(Namespace.from_dict({"metadata": {"name": self.namespace}}))

    def close(self) -> None:
        kinds: list[Any] = [Pod, IPPool, OverlappingRangeIPReservation]
        for kind in kinds:
            for found in list(self.client.list(kind)):
                self.client.delete(kind, found.metadata.name, **({"grace_period": 0} if kind is Pod else {}))
        self.client.delete(Namespace, self.namespace)
        self.client.close()

    def network(self) -> None:
        ipam = {"type": "whereabouts", "range": f"{SUBNET}.0/24", "cooldown_seconds": 600}
        config = {"cniVersion": "1.0.0", "name": "rdma-net", "type": "macvlan", "ipam": ipam}
        self.client.create(Nad(metadata={"name": "rdma-net"}, spec={"config": json.dumps(config)}))

    def lease(self, *numbers: int) -> None:
        """Allocations as Go whereabouts writes them, for the pods pN."""
        entries = {str(n): {"id": f"c{n}", "podref": f"{self.namespace}/p{n}", "ifname": "net1"} for n in numbers}
        self.client.create(IPPool(metadata={"name": POOL}, spec={"range": f"{SUBNET}.0/24", "allocations": entries}))
        for n in numbers:
            spec = {"podref": f"{self.namespace}/p{n}", "ifname": "net1"}
            self.client.create(OverlappingRangeIPReservation(metadata={"name": f"{SUBNET}.{n}"}, spec=spec))

    def pod(self, n: int) -> None:
        spec = {"nodeName": f"{self.namespace}-node", "containers": [{"name": "c", "image": "none.invalid/none"}]}
        self.client.create(Pod.from_dict({"metadata": {"name": f"p{n}"}, "spec": spec}))

    def read(self, *argv: str, kubeconfig: str = "", code: int | None = 0) -> Any:
        return run(*argv, "--kubeconfig", kubeconfig or self.kubeconfig, code=code, data=True)

    def audit(self, kubeconfig: str = "") -> list[tuple[str, str, str]]:
        document = self.read("audit", "--report", self.report, kubeconfig=kubeconfig, code=None)
        own = [f for f in document["findings"] if f.get("address", SUBNET).startswith(SUBNET)]
        return [(f["kind"], f["action"], f.get("address", "").rpartition(".")[2]) for f in own]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "run"))
    site = Site(tmp_path)
    yield site
    site.close()


def test_an_audit_needs_the_rights_to_get_and_list_alone(site: Site, tmp_path: Path) -> None:
    name = site.namespace
    allowed = {"": ["pods", "nodes"], "whereabouts.cni.cncf.io": ["*"], "k8s.cni.cncf.io": ["*"]}
    rules = [{"apiGroups": [g], "resources": r, "verbs": ["get", "list"]} for g, r in allowed.items()]
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    site.client.create(ServiceAccount.from_dict({"metadata": {"name": "reader"}}))
    site.client.create(ClusterRole.from_dict({"metadata": {"name": name}, "rules": rules}))
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    site.client.create(ClusterRoleBinding.from_dict(binding))
    try:
        request = ServiceAccountToken.from_dict({"metadata": {}, "spec": {"audiences": [], "expirationSeconds": 600}})
        token = site.client.create(request, "reader").status.token
        document = yaml.safe_load(Path(site.kubeconfig).read_text())
        document["users"] = [{"name": user["name"], "user": {"token": token}} for user in document["users"]]
        reader = str(tmp_path / "reader")
        Path(reader).write_text(json.dumps(document))
        site.network()
        site.lease(1)
        assert site.audit(reader) == [("lease-without-pod", "reclaim", "1")]
        argv = ("reclaim", "--from-report", site.report, "--grace", "0", "--force")
        done = site.read(*argv, kubeconfig=reader, code=1)
        assert done[0]["result"] == "failed"
        assert "forbids to delete overlappingrangeipreservations" in done[0]["why"]
        assert list(site.client.get(IPPool, POOL).spec["allocations"]) == ["1"]
    finally:
        for kind in (ClusterRoleBinding, ClusterRole):
            site.client.delete(kind, name)


def test_pods_are_read_in_pages_and_by_node(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        site.pod(n)
    monkeypatch.setattr(clusters, "_PAGE", 2)
    pages = list(site.cluster.pods(f"{site.namespace}-node"))
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(pod.name for page in pages for pod in page) == [f"p{n}" for n in range(5)]
    with pytest.raises(ApiError):
        site.client.get(Pod, "none")
