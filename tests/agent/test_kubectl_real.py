"""`kubectl railcni` at a real API server, controller manager, scheduler, kubelet and containerd: conf/kubernetes is applied, with
the image of `make image`, and kubectl runs on another machine than the node's.

The variables are those of tests/dra/test_real.py; API server and test share a loopback, by which `exec` and `logs` reach kubelet.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.core_v1 import Service

from tests import tools
from tests.blackbox.test_image import IMAGE, archive, pytestmark  # noqa: F401
from tests.containerd import cluster as clusters
from tests.containerd import runtime as runtimes
from tests.containerd.cluster import Cluster
from tests.containerd.kubelet import Kubelet
from tests.containerd.runtime import SOCKET, TOP, Runtime
from tests.node import BIN, GO_PLUGINS, ROOT, Node

pytestmark = [*pytestmark, pytest.mark.containerd]
if reason := runtimes.missing("RAILCNI_TEST_KUBELET", "RAILCNI_TEST_KUBECONFIG"):
    pytest.skip(reason, allow_module_level=True)
PLUGINS, LATER = "/opt/cni/bin", f"{TOP}/net.d/11-rails.conflist"  # a node has the network when it has the plugins
PODS = {"type": "host-local", "subnet": "10.88.0.0/24", "dataDir": "/run/pods"}
RAIL = {"type": "railcni-whereabouts", "range": "192.168.111.0/24"}
NETWORKS: dict[str, dict[str, Any]] = {
    "pods": {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "ipam": PODS},
    "rails": {"type": "railcni-macvlan", "master": "ens2f0", "ipam": RAIL},
}
EXECUTABLES = {name: GO_PLUGINS / name for name in ("bridge", "host-local")}
EXECUTABLES |= {name: Path(PLUGINS, name) for name in ("railcni-macvlan", "railcni-whereabouts")}
AWAY = 'mount --bind "$0" /etc/machine-id && exec "$@"'


@dataclass
class World:
    cluster: Cluster
    runtime: Runtime
    kubelet: Kubelet
    machine: Path

    def kubectl(self, *argv: str, given: str = "") -> subprocess.CompletedProcess[str]:
        environ = {"KUBECONFIG": clusters.KUBECONFIG, "HOME": str(self.machine.parent), "KUBERC": "off"}
        environ["PATH"] = f"{Path(tools.find('kubectl')).parent}:{BIN}:{os.environ['PATH']}"
        words = ["unshare", "--mount", "--propagation=private", "sh", "-c", AWAY, str(self.machine), "kubectl", *argv]
        done = subprocess.run(words, env=environ, input=given, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        return done

    def railcni(self, *argv: str) -> Any:
        """What `kubectl railcni` prints as JSON."""
        done = self.kubectl("railcni", *argv, "--output=json")
        assert done.returncode in (0, 1) and done.stdout, done
        return json.loads(done.stdout)

    def is_ready(self, namespace: str) -> bool:
        """Whether the node's pods of the namespace are."""
        pods = self.cluster.client.list(PodObject, namespace=namespace, fields={"spec.nodeName": self.cluster.node})
        states = [one for pod in pods if pod.status for one in pod.status.containerStatuses or ()]
        return bool(states) and all(one.ready for one in states)


@pytest.fixture(scope="module")
def world(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:  # noqa: F811
    """railcni runs, and a pod `train`, whose second network is railcni's."""
    machine = tmp_path_factory.mktemp("away") / "machine-id"
    machine.write_text(f"{os.urandom(16).hex()}\n")
    lists = [{"cniVersion": "1.0.0", "name": name, "plugins": [plugin]} for name, plugin in NETWORKS.items()]
    with Node(is_warm=False) as node:
        node.master("ens2f0", mtu=9000)
        with Cluster(node) as cluster, Runtime(node, *lists, more=EXECUTABLES) as runtime:
            service = cluster.client.get(Service, "kubernetes", namespace="default").spec
            assert service and service.ports and service.clusterIP
            runtime.enter(["ip", "address", "add", f"{service.clusterIP}/32", "dev", "lo"])
            runtime.enter(["sh", "-ec", f"mount --make-rshared /; mount -t tmpfs opt /opt; mkdir -p {PLUGINS}"])
            runtime.enter(["ctr", f"--address={SOCKET}", "-n=k8s.io", "images", "import", str(archive)])
            node.path(LATER).rename(node.path(f"{LATER}.later"))
            api = cluster.served(service.clusterIP, service.ports[0].port)
            with api, Kubelet(runtime, cluster) as kubelet:
                world = World(cluster, runtime, kubelet, machine)
                if world.kubectl("get", "namespace", "railcni").returncode == 0:
                    pytest.skip("the cluster has a namespace railcni")
                kubelet.serve()
                image, _, tag = IMAGE.rpartition(":")
                text = world.kubectl("kustomize", f"{ROOT}/conf/kubernetes").stdout
                text = text.replace("set-your-registry.invalid/railcni", image)
                try:
                    assert world.kubectl("apply", "--filename=-", given=text).returncode == 0
                    assert kubelet.becomes(lambda: world.is_ready("railcni")), kubelet.log()
                    node.path(f"{LATER}.later").rename(node.path(LATER))
                    runtime.kill_containerd()
                    runtime.start_containerd()  # which now reads both networks
                    cluster.pod("train")
                    assert kubelet.becomes(lambda: world.is_ready(cluster.namespace)), (kubelet.log(), runtime.log())
                    yield world
                finally:
                    of_node = f"--selector=railcni.io/node={cluster.node}"
                    world.kubectl("delete", "addressleases", "--namespace=kube-system", of_node)
                    kept = [one for one in yaml.safe_load_all(text) if one["kind"] != "CustomResourceDefinition"]
                    world.kubectl("delete", "--filename=-", given=yaml.safe_dump_all(kept))  # other tests have those


def test_status_and_doctor_of_a_node_and_of_a_pod(world: World) -> None:
    (found,) = (one for one in world.railcni("status") if one["node"] == world.cluster.node)
    assert (found["healthy"], found["attachments"]) == (True, {"live": 1, "gone": 0, "pending": 0})
    for place in (world.cluster.node, f"{world.cluster.namespace}/train"):
        report = world.railcni("doctor", place)
        assert report["node"] == world.cluster.node and "dra_manager_state" not in str(report)  # it is read
    gone = lambda: "railcni-doctor" not in world.kubectl("get", "pods", "--namespace=railcni").stdout  # noqa: E731
    assert world.kubelet.becomes(gone)


def test_reclaim_frees_no_address_in_use_and_frees_it_when_its_namespace_has_gone(world: World, tmp_path: Path) -> None:
    report, plugin = str(tmp_path / "report"), world.runtime.node.path(f"{TOP}/bin/railcni-macvlan")
    (lease,) = world.railcni("ipam", "leases")
    name = ("addressleases", lease["address"], "--namespace=kube-system")
    netns = world.kubectl("get", *name, "--output=jsonpath={.spec.netns}").stdout
    plugin.unlink()  # kubelet cannot end the pod's network
    world.cluster.delete("train")
    assert world.railcni("ipam", "audit", "--report", report)["findings"][0]["kind"] == "lease-without-pod"
    for result in ("skipped", "freed"):
        (one,) = world.railcni("ipam", "reclaim", "--from-report", report, "--grace", "0")
        assert (one["address"], one["result"]) == (lease["address"], result), one
        world.runtime.enter(["sh", "-ec", f"! mountpoint -q {netns} || umount -l {netns}; rm -f {netns}"])
    assert [one["attachments"]["live"] for one in world.railcni("status")] == [0]
    plugin.symlink_to(f"{PLUGINS}/railcni-macvlan")
