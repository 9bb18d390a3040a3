"""The executables with their leases in whereabouts' objects: an API server in the node's own network namespace."""

import json
import sys
import urllib.request
from typing import Any

import pytest

from tests.node import ROOT, Node, Pod, until

pytestmark = pytest.mark.forked

PORT = 8001
OBJECTS = f"http://127.0.0.1:{PORT}/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system"
DIRECTORY = "/etc/cni/net.d/whereabouts.d"
KUBECONFIG = json.dumps(
    {
        "clusters": [{"name": "local", "cluster": {"server": f"http://127.0.0.1:{PORT}"}}],
        "users": [{"name": "whereabouts", "user": {"token": "a.b.c"}}],
        "contexts": [{"name": "x", "context": {"cluster": "local", "user": "whereabouts", "namespace": "kube-system"}}],
        "current-context": "x",
    }
)
ARGS = "K8S_POD_NAMESPACE=team;K8S_POD_NAME={}"


class Server:
    """The API server of `node`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        argv = [sys.executable, "-m", "tests.stores.kubernetes_api", str(PORT)]
        self.process = node.start(["env", f"PYTHONPATH={ROOT}", *argv])
        assert until(self.serves, 20)

    def get(self, path: str) -> dict[str, Any]:
        with self.node.host.entered(), urllib.request.urlopen(f"{OBJECTS}/{path}") as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def post(self, path: str, name: str, spec: dict[str, Any]) -> None:
        """Make an object, as Go does."""
        document = json.dumps({"metadata": {"name": name}, "spec": spec}).encode()
        with self.node.host.entered(), urllib.request.urlopen(f"{OBJECTS}/{path}", document) as reply:
            assert reply.status == 201

    def serves(self) -> bool:
        try:
            self.get("ippools")
        except OSError:
            return False
        return True

    def allocations(self) -> dict[str, Any]:
        return {
            f"{pool['metadata']['name']} {offset}": entry
            for pool in self.get("ippools")["items"]
            for offset, entry in pool["spec"]["allocations"].items()
        }

    def reservations(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.get("overlappingrangeipreservations")["items"]]


def network(**ipam: Any) -> dict[str, Any]:
    block = {"type": "whereabouts", "range": "192.168.111.0/24", "store_timeout": 20, **ipam}
    return {"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0", "ipam": block}


@pytest.fixture
def server(node: Node) -> Server:
    node.master()
    return prepared(node, "kubernetes")


def prepared(node: Node, datastore: str) -> Server:
    """The flat file and kubeconfig of a node, and its API server."""
    node.write(f"{DIRECTORY}/whereabouts.kubeconfig", KUBECONFIG)
    flat = {"datastore": datastore, "kubernetes": {"kubeconfig": f"{DIRECTORY}/whereabouts.kubeconfig"}}
    node.write(f"{DIRECTORY}/whereabouts.conf", flat)
    node.remember()
    return Server(node)


@pytest.fixture
def pod(node: Node, server: Server) -> Pod:
    return node.pod()


def test_a_node_of_whereabouts_needs_no_other_configuration(node: Node, pod: Pod, server: Server) -> None:
    config, args = network(), ARGS.format("web-0")
    result = node.cni("macvlan", "ADD", config, netns=pod, args=args).succeeded()
    assert [ip["address"] for ip in result["ips"]] == ["192.168.111.1/24"]
    assert list(server.allocations()) == ["192.168.111.0-24 1"]
    assert server.reservations() == ["192.168.111.1"]
    node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod, args=args).succeeded()
    (lease,) = json.loads(node.railcni("ipam", "leases", "-o", "json").stdout)
    assert (lease["address"], lease["pod"]) == ("192.168.111.1", "team/web-0")
    node.cni("macvlan", "DEL", config, netns=pod, args=args).succeeded()
    assert (server.allocations(), server.reservations()) == ({}, [])
