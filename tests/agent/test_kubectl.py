"""`kubectl railcni` beside an API server: the nodes by their agents, the leases by the API server, doctor by a pod.

tests/agent/kubectl.py stands for kubectl; the real one reads its configuration and makes the requests by path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import Rig, owner
from tests.node import BIN, ROOT

pytestmark = [
    pytest.mark.skipif(
        not shutil.which("kubectl"), reason="needs kubectl on PATH: install it, and run the tests again"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces and chroot: run the tests with sudo"),
]
ALONE = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc"]  # an install stops the workers that it sees

RUNNING = {"initContainerStatuses": [], "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
NOT_PULLED = {
    "initContainerStatuses": [{"name": "install", "state": PULL}],
    "containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "PodInitializing"}}}],
}


class Cluster:
    """What kubectl finds: three nodes, of which n1 and n2 have agents, and n1 an installation that is whole."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.folder = folder
        self.plugins = rig.host("n1") / "opt/cni/bin"
        subprocess.run([*ALONE, BIN / "railcni", "install", f"--to={self.plugins}", f"--link-dir={folder}"], check=True)
        (self.plugins / "railcni-bundle/current/bin/railcni").symlink_to(BIN / "railcni")  # a checkout installs none
        program = folder / "bin/kubectl"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/agent/kubectl.py" "$@"\n')
        program.chmod(0o755)
        arguments = ["agent", "--root=/host", f"--to={self.plugins}", f"--state-dir={folder}/state"]
        self.scene: dict[str, Any] = {
            "railcni": str(BIN / "railcni"),
            "nodes": [{"metadata": {"name": name}} for name in ("n1", "n2", "n3")],
            "pods": [self.pod("n1", RUNNING, arguments), self.pod("n2", NOT_PULLED, arguments)],
            "roots": {"railcni-n1": "/"},
            "others": {"train": {"spec": {"nodeName": "n1"}}, "new": {"spec": {}}},
        }
        self.environ = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "KUBECTL_SCENE": str(folder),
            "KUBECONFIG": rig.server.kubeconfig(folder),
        }

    def pod(self, node: str, status: dict[str, Any], arguments: list[str]) -> dict[str, Any]:
        container = {"name": "agent", "image": "r/railcni:1", "args": arguments}
        return {
            "metadata": {"name": f"railcni-{node}"},
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Pending", **status},
        }

    def __call__(self, *argv: str) -> tuple[int, str, str]:
        """`kubectl railcni` with these arguments."""
        (self.folder / "scene.json").write_text(json.dumps(self.scene))
        done = subprocess.run([BIN / "kubectl-railcni", *argv], env=self.environ, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def created(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "created").read_text())
        return document


@pytest.fixture
def cluster(rig: Rig, tmp_path: Path) -> Cluster:
    folder = tmp_path / "kubectl"
    folder.mkdir()
    return Cluster(rig, folder)


def test_status_tells_of_each_node_what_its_agent_finds_or_why_there_is_none(cluster: Cluster) -> None:
    code, told, _ = cluster("status", "--output=json")
    assert code == 1
    found = {one["node"]: one for one in json.loads(told)}
    assert list(found) == ["n1", "n2", "n3"]
    assert (found["n1"]["healthy"], found["n1"]["faults"]) == (True, [])
    assert found["n1"]["version"]
    assert found["n2"]["faults"] == ["install: ImagePullBackOff: no such image"]
    assert found["n3"]["faults"] == ["no agent has this node"]
    code, told, _ = cluster("--context=admin", "status")
    assert (code, "ImagePullBackOff" in told, "whole" in told) == (1, True, True)
    assert "--context=admin get pods" in (cluster.folder / "asked").read_text()


def test_a_node_with_a_fault_and_one_that_does_not_answer_are_told_and_change_the_exit_code(cluster: Cluster) -> None:
    cluster.scene |= {"nodes": cluster.scene["nodes"][:1], "pods": cluster.scene["pods"][:1]}
    assert cluster("status")[0] == 0
    (cluster.plugins / "railcni-macvlan").unlink()
    code, told, _ = cluster("status", "--output=json")
    assert code == 1
    assert "railcni-macvlan is missing" in json.loads(told)[0]["faults"][0]
    cluster.scene["roots"] = {}
    code, told, _ = cluster("status", "--output=json")
    assert code == 1
    assert json.loads(told)[0]["faults"] == [
        "its agent does not answer: error: unable to upgrade connection: the node is gone"
    ]


def test_doctor_runs_in_the_nodes_file_system_and_its_pod_goes(cluster: Cluster) -> None:
    code, told, said = cluster("doctor", "n1", "--output=json")
    findings = json.loads(told)
    assert code in (0, 1), said
    assert findings
    spec = cluster.created()["spec"]
    assert (spec["nodeName"], spec["hostNetwork"], spec["hostPID"]) == ("n1", True, True)
    assert spec["containers"][0]["image"] == "r/railcni:1"
    assert (cluster.folder / "deleted").read_text() == "railcni-doctor-x"


def test_doctor_of_a_pod_goes_to_its_node_and_names_the_pod(cluster: Cluster) -> None:
    cluster("doctor", "team/train")
    spec = cluster.created()["spec"]
    assert spec["nodeName"] == "n1"
    assert spec["containers"][0]["command"][4:] == [
        f"{cluster.plugins}/railcni-bundle/current/bin/railcni",
        "doctor",
        "--pod=team/train",
        "--output=table",
    ]


def test_a_pod_of_doctor_that_cannot_start_is_told_and_goes_too(cluster: Cluster) -> None:
    cluster.scene["waiting"] = PULL["waiting"]
    code, _, said = cluster("doctor", "n1")
    assert code == 1
    assert "doctor did not run on the node: ImagePullBackOff: no such image" in said
    assert (cluster.folder / "deleted").exists()


# What is asked for wrongly, and what the message names.
WRONG = {
    "a node without an agent": (("doctor", "n3"), "no agent on node n3: want one of n1, n2"),
    "a pod that is not there": (("doctor", "team/none"), 'pods "none" not found'),
    "a pod on no node": (("doctor", "team/new"), "pod team/new is on no node yet"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_cannot_be_done_is_refused_with_its_reason(cluster: Cluster, fault: str) -> None:
    argv, named = WRONG[fault]
    code, _, said = cluster(*argv)
    assert code == 1
    assert named in " ".join(said.split())
    assert "Traceback" not in said


def test_no_agents_and_no_kubectl_are_told(cluster: Cluster) -> None:
    cluster.scene["pods"] = []
    assert "no agent in namespace railcni" in cluster("status")[2]
    cluster.environ["PATH"] = ""
    assert "kubectl is not on PATH" in cluster("status")[2]


def test_leases_are_those_of_both_stores_of_the_cluster(rig: Rig, cluster: Cluster) -> None:
    rig.allocate(a1=("c1", "team/old"))
    assert [one["pod"] for one in json.loads(cluster("ipam", "leases", "--output=json")[1])] == ["team/old"]
    rig.lease(7, owner("c7", "team/train"), True)
    code, told, said = cluster("ipam", "leases", "--output=json")
    assert (code, [one["pod"] for one in json.loads(told)], said) == (0, ["team/train", "team/old"], "")
    code, told, _ = cluster("ipam", "audit", "--output=json")
    assert code == 1  # no pod has them
    assert not list(Path("/tmp").glob("railcni-*/kubeconfig"))
