"""`kubectl railcni` by the real kubectl: the nodes by their agents, the leases by the API server, doctor by a pod.

The API server is that of tests/docs/cluster.py. Its kubelet here is as slow and refuses as much as a real one: a pod is
ContainerCreating for a while, has no log then, and a sidecar and an init container that an admission webhook has added. What the
container of doctor does is done on this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.cli import cluster as command
from cni.cli import kubectl
from cni.cli.main import main
from ipam.stores.ippool import locks
from tests import tools
from tests.agent.rig import GONE, Rig, owner
from tests.callers import KUBECTL
from tests.command import LOCKS
from tests.docs import cluster as docs
from tests.docs.kubelet import creating, status_of
from tests.each import quick
from tests.node import BIN, railcni, until
from tests.stores.kubernetes_api import Refusal

pytestmark = [
    pytest.mark.skipif("tools.kubectl_version() < (1, 31)", reason="needs kubectl 1.31 or newer: `.ci/helm` gets it"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces and chroot: run the tests with sudo"),
]
ALONE = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc"]  # an install stops the workers that it sees
Document = dict[str, Any]
SECOND = 0.4  # that a pod takes to start
HERE = "/proc/self/ns/net"
SIDECAR = {"name": "a-mesh", "image": "mesh"}

RUNNING = {"initContainerStatuses": [], "containerStatuses": [{"name": "agent", "state": {"running": {}}}]}
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
NOT_PULLED = {
    "initContainerStatuses": [{"name": "install", "state": PULL}],
    "containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "PodInitializing"}}}],
}

# What the agent of a node answers without a fault.
WELL: Document = {"version": "1", "healthy": True, "faults": [], "attachments": {"live": 0, "gone": 0, "pending": 0}}


class Nodes:
    """The kubelets. `fate` is what becomes of a pod of doctor in place of a run: its statuses, one after the other."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder / "logs"
        self.folder.mkdir()
        self.fate: list[Document] = []
        self.made: Document = {}
        self.roots: dict[str, str] = {}
        self.answers: list[str] | None = None  # what an `exec` runs instead
        self.doctor: list[str] = []  # what a pod of doctor runs instead, where it does not matter what that finds
        self.is_over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def log(self, namespace: str, pod: str, container: str) -> bytes:
        return (self.folder / f"{pod}.{container}").read_bytes()

    def inside(self, namespace: str, name: str, container: str, argv: list[str]) -> list[str]:
        assert container == "agent"
        root = self.roots.get(name)
        if not root:
            return ["sh", "-c", "echo the node is gone >&2; exit 1"]
        return self.answers or [str(BIN / argv[0]), *(word.replace("/host", root) for word in argv[1:])]

    def pods(self) -> list[Document]:
        return [p for p in self.server.found("pods") if p["metadata"]["name"].startswith("railcni-doctor-")]

    def _look(self) -> None:
        known: set[str] = set()
        while not self.is_over.wait(0.02):
            for pod in self.pods():
                if pod["metadata"]["uid"] not in known:
                    known.add(pod["metadata"]["uid"])
                    self.made = pod
                    threading.Thread(target=self._serve, args=(pod,), daemon=True).start()
                elif "deletionTimestamp" in pod["metadata"]:
                    self.server.drop("pods", "railcni", pod["metadata"]["name"])

    def _serve(self, pod: Document) -> None:
        pod = json.loads(json.dumps(pod))
        (container,) = pod["spec"]["containers"]
        pod["spec"] |= {"containers": [SIDECAR, container], "initContainers": [{"name": "mesh-init", "image": "mesh"}]}
        self._write(pod, creating(pod))
        time.sleep(SECOND)
        for status in self.fate:
            if "delete" in status:
                self.server.drop("pods", "railcni", pod["metadata"]["name"])
            self._write(pod, status)
            time.sleep(SECOND / 4)
        if not self.fate:
            self._write(pod, status_of({"a-mesh": None, "doctor": None}, "Running", True))
            self._write(pod, status_of({"a-mesh": None, "doctor": self._run(pod, container)}, "Running", False))

    def _write(self, pod: Document, status: Document) -> None:
        if self.server.read("pods", "railcni", pod["metadata"]["name"]):
            self.server.keep("pods", "railcni", {**pod, "status": status})

    def _run(self, pod: Document, container: Document) -> int:
        """Run the command with this machine's file system at /host; its exit code."""
        host = self.folder / "host"
        host.mkdir(exist_ok=True)
        _, *arguments = [part.replace("'/host'", f"'{host}'") for part in container["command"]]
        enter = f'mount --rbind / {host} && exec "$@"'
        argv = ["unshare", "--mount", "--propagation=private", "sh", "-c", enter, "sh", sys.executable, *arguments]
        environ = {**os.environ, **{one["name"]: one["value"] for one in container["env"]}}
        with (self.folder / f"{pod['metadata']['name']}.doctor").open("wb") as log:
            return subprocess.run(self.doctor or argv, env=environ, stdout=log, stderr=log).returncode


class Server(docs.Cluster):
    """`forbidden` has pairs of a verb and a resource, as an administrator's rules name them."""

    kubelet_of = Nodes
    kubelet: Nodes

    def streams(self, handler: Any) -> bool:
        return not self._is_forbidden(handler.command, handler.path) and super().streams(handler)

    def _answer(self, method: str, target: str, headers: Any, body: bytes) -> Any:
        verb = self._is_forbidden(method, target)
        if not verb:
            return super()._answer(method, target, headers, body)
        message = f'forbidden: User "a" cannot {verb[0]} resource "{verb[1]}" in API group "" in the namespace "n"'
        return 403, Refusal(403, "Forbidden", message).document

    def _is_forbidden(self, method: str, target: str) -> tuple[str, str] | None:
        found = re.search(r"/(pods|nodes|leases|resourceclaims)(?:/[^/?]+)?(/log|/exec)?(?:\?|$)", target)
        if not found:
            return None
        verb = {"POST": "create", "GET": "create" if found[2] == "/exec" else "get", "DELETE": "delete"}.get(method, "")
        pair = (verb, found[1] + (found[2] or ""))
        return pair if pair in self.forbidden else None


class Cluster:
    """What kubectl finds: three nodes, of which n1 and n2 have agents, and n1 an installation that is whole."""

    def __init__(self, rig: Rig, server: Server, folder: Path, installed: Path) -> None:
        self.folder = folder
        self.server = server
        self.nodes = server.kubelet
        self.plugins = rig.host("n1") / "opt/cni/bin"
        shutil.copytree(installed, self.plugins, symlinks=True, dirs_exist_ok=True)
        places = f"--plugin-dir={self.plugins} --state-dir={rig.host('n1')}/state"
        self.arguments = ["agent", "--root=/host", *places.split()]
        for name in ("railcni", "team"):
            server.keep("namespaces", "", {"metadata": {"name": name}})
        for name in ("n1", "n2", "n3"):
            labels = {"kubernetes.io/os": "linux"}
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            server.keep("nodes", "", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status})
        server.drop("nodes", "", "node-1")
        self.agent("railcni-n1", "n1", RUNNING)
        self.agent("railcni-n2", "n2", NOT_PULLED)
        self.nodes.roots["railcni-n1"] = "/"
        for name, spec in (("train", {"nodeName": "n1"}), ("new", {})):
            server.keep("pods", "team", {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": {}})
        self.environ = {**KUBECTL.environ, "KUBECONFIG": server.kubeconfig(folder), "HOME": str(folder)}
        self.environ["PATH"] = f"{Path(tools.find('kubectl')).parent}:{BIN}:{KUBECTL.environ['PATH']}"
        self.environ[LOCKS] = os.environ[LOCKS]

    def agent(self, name: str, node: str, status: Document) -> None:
        """A pod of the DaemonSet, in which the component of the device plugin has put its container first."""
        containers = [
            {"name": "device-plugin", "image": "r/railcni-device-plugin:1", "args": ["device-plugin", "--root=/host"]},
            {"name": "agent", "image": "r/railcni:1", "args": self.arguments},
        ]
        metadata = {"name": name, "namespace": "railcni", "labels": {"app.kubernetes.io/name": "railcni"}}
        spec = {"nodeName": node, "containers": containers}
        status = {"phase": "Pending", **status}
        self.server.keep("pods", "railcni", {"metadata": metadata, "spec": spec, "status": status})

    def argv(self, *argv: str) -> list[str]:
        return [tools.find("kubectl"), "railcni", *argv]

    def __call__(self, *argv: str) -> tuple[int, str, str]:
        """What `bin/kubectl-railcni` runs with these arguments."""
        return self._of(railcni("cluster", *argv, env={**self.environ, "RAILCNI_NAME": "kubectl railcni"}))

    def by_kubectl(self, *argv: str) -> tuple[int, str, str]:
        """`kubectl railcni` with these arguments."""
        return self._of(subprocess.run(self.argv(*argv), env=self.environ, capture_output=True, text=True))

    def away(self, mounts: str, argv: list[str]) -> subprocess.CompletedProcess[str]:
        """Run `argv` in a mount namespace of its own, after `mounts`."""
        words = ["unshare", "--mount", "--propagation=private", "sh", "-c", f'{mounts} && exec "$@"', "sh", *argv]
        return subprocess.run(words, env=self.environ, capture_output=True, text=True)

    @staticmethod
    def _of(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
        assert "Traceback" not in done.stderr + done.stdout
        return done.returncode, done.stdout, done.stderr

    def here(self, patch: pytest.MonkeyPatch, *argv: str) -> int:
        """The same in this process, where its deadlines can be short."""
        for name in ("KUBECONFIG", "HOME", "PATH"):
            patch.setenv(name, self.environ[name])
        patch.setattr(sys, "argv", ["railcni", "cluster", *argv])
        return main()

    def is_clean(self) -> bool:
        """Whether a pod of doctor was made, and none is left."""
        return bool(self.nodes.made) and until(lambda: not self.nodes.pods(), 10)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "locks"))
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))
    server = Server(0, tmp_path)
    found = Rig(server, tmp_path)
    yield found
    found.close()
    server.kubelet.is_over.set()
    server.close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin folder with the plugins of this checkout, and the command, which a checkout does not install."""
    folder = tmp_path_factory.mktemp("installed")
    plugins = folder / "bin"
    plugins.mkdir()
    subprocess.run([*ALONE, BIN / "railcni", "install", f"--to={plugins}", f"--link-dir={folder}"], check=True)
    (plugins / "railcni-bundle/current/bin/railcni").symlink_to(BIN / "railcni")
    return plugins


@pytest.fixture
def cluster(rig: Rig, installed: Path, tmp_path: Path) -> Cluster:
    folder = tmp_path / "kubectl"
    folder.mkdir()
    assert isinstance(rig.server, Server)
    return Cluster(rig, rig.server, folder, installed)


def test_status_tells_of_each_node_what_its_agent_finds_or_why_there_is_none(cluster: Cluster) -> None:
    code, told, _ = cluster.by_kubectl("status", "--output=json")
    assert code == 1
    found = {one["node"]: one for one in json.loads(told)}
    assert list(found) == ["n1", "n2", "n3"]
    assert (found["n1"]["healthy"], found["n1"]["faults"]) == (True, [])
    assert found["n1"]["version"]
    assert found["n2"]["faults"] == ["install: ImagePullBackOff: no such image"]
    assert found["n3"]["faults"] == ["no agent has this node"]
    code, told, said = cluster("--context=admin", "status")
    assert (code, 'context "admin" does not exist' in said) == (1, True)
    code, told, _ = cluster("--context=whereabouts-context", "status")
    assert (code, "ImagePullBackOff" in told, "whole" in told) == (1, True, True)


def test_status_counts_the_claims_whose_devices_are_of_a_node(cluster: Cluster) -> None:
    cluster.nodes.answers = ["echo", json.dumps(WELL)]
    assert "CLAIMS" not in cluster("status")[1]
    for name, *results in (
        ("two", ("railcni.io", "n1"), ("railcni.io", "n1")),
        ("gpu", ("gpu.example.com", "n1"), ("railcni.io", "n1")),
        ("other", ("gpu.example.com", "n1")),
        ("faulty", ("railcni.io", "n2")),
        ("waits",),
    ):
        given = [{"driver": driver, "pool": pool, "device": "d", "request": "r"} for driver, pool in results]
        status = {"allocation": {"devices": {"results": given}}} if given else {}
        claim = {"metadata": {"name": name, "namespace": "team"}, "status": status}
        cluster.server.keep("resourceclaims", "team", claim)
    assert [one["claims"] for one in json.loads(cluster("status", "--output=json")[1])] == [2, 1, 0]
    assert "CLAIMS" in cluster("status")[1]
    cluster.server.forbidden.add(("get", "resourceclaims"))
    assert "CLAIMS" not in cluster("status")[1]


def test_a_deleted_node_whose_agent_has_a_lease_is_told(cluster: Cluster) -> None:
    cluster.nodes.answers = ["echo", json.dumps(WELL)]
    for name in ("n1", "n9"):
        lease = {"metadata": {"name": f"node-{name}"}, "spec": {"holderIdentity": name}}
        cluster.server.keep("leases", "railcni-node-leases", lease)
    found = {one["node"]: one for one in json.loads(cluster("status", "--output=json")[1])}
    assert list(found) == ["n1", "n2", "n3", "n9"]
    assert found["n9"]["healthy"] is False
    assert "which has no Node object, renews the Lease node-n9" in found["n9"]["faults"][0]
    assert "which has no Node object, renews the Lease node-n9" in " ".join(cluster("doctor", "n9")[2].split())
    cluster.agent("railcni-n9", "n9", RUNNING)  # until the garbage collection of pods finds it
    found = {one["node"]: one for one in json.loads(cluster("status", "--output=json")[1])}
    assert "which has no Node object, renews the Lease node-n9" in found["n9"]["faults"][0]
    cluster.server.drop("pods", "railcni", "railcni-n9")
    cluster.server.forbidden.add(("get", "leases"))
    assert [one["node"] for one in json.loads(cluster("status", "--output=json")[1])] == ["n1", "n2", "n3"]
    assert "no agent on node n9" in cluster("doctor", "n9")[2]


def test_attachments_without_a_namespace_are_told_with_the_command_that_ends_them(cluster: Cluster) -> None:
    told = {**WELL, "attachments": {"live": 2, "gone": 3, "pending": 0}}
    cluster.nodes.answers = ["echo", json.dumps(told)]
    assert "3 attachments without a namespace: the node's next calls end them" in " ".join(cluster("status")[1].split())
    cluster.nodes.answers = ["echo", json.dumps({**told, "faults": ["a \x1b[2J node"]})]  # which an attacker has
    assert ("a ?[2J node" in (shown := cluster("status")[1]), "\x1b" in shown) == (True, False)
    cluster.nodes.answers = ["echo", json.dumps({**told, "attachments": None})]  # which the agent cannot read
    assert "without a namespace" not in cluster("status")[1]


def test_a_node_with_a_fault_and_one_that_does_not_answer_are_told_and_change_the_exit_code(cluster: Cluster) -> None:
    for name in ("n2", "n3"):
        cluster.server.drop("nodes", "", name)
    cluster.server.drop("pods", "railcni", "railcni-n2")
    assert cluster("status")[0] == 0
    (cluster.plugins / "railcni-macvlan").unlink()
    code, told, _ = cluster("status", "--output=json")
    assert code == 1
    assert "railcni-macvlan is missing" in json.loads(told)[0]["faults"][0]
    cluster.nodes.roots = {}
    code, told, _ = cluster("status", "--output=json")
    assert code == 1
    (fault,) = json.loads(told)[0]["faults"]
    assert fault.startswith("its agent does not answer: ")


def test_the_pod_that_runs_stands_for_its_node_and_not_one_that_was_evicted_there(cluster: Cluster) -> None:
    cluster.nodes.answers = ["echo", json.dumps(WELL)]
    cluster.agent("railcni-zz", "n1", {"phase": "Failed", "reason": "Evicted"})
    assert json.loads(cluster("status", "--output=json")[1])[0]["healthy"] is True


# The node and the namespace of a lease in each store, and what `kubectl railcni ipam reclaim` does with it.
ASKED = {
    "not in use there": ("n1", GONE, "addresslease", "freed"),
    "in use there": ("n1", HERE, "addresslease", "skipped"),
    "no agent runs there": ("n2", GONE, "addresslease", "kept"),
    "the node is unknown to all": ("n9", GONE, "addresslease", "freed"),
    "an IPPool, and a record of n1": ("n1", GONE, "kubernetes", "freed"),
    "an IPPool, and a record of n1 in use": ("n1", HERE, "kubernetes", "skipped"),
    "an IPPool, and no record": ("", "", "kubernetes", "kept"),
}


@pytest.mark.parametrize("case", quick(ASKED, "in use there", "no agent runs there", "an IPPool, and a record of n1"))
def test_reclaim_from_afar_asks_the_agent_of_each_lease(rig: Rig, cluster: Cluster, case: str) -> None:
    node, netns, kind, result = ASKED[case]
    holder = owner("c2", "team/gone", node=node, netns=netns)
    rig.hold(kind, 2, holder, "" if node else None)
    if kind == "kubernetes" and netns:
        rig.record("n1", 2, holder)
    report = str(cluster.folder / "report")
    found = json.loads(cluster("ipam", "audit", "--report", report, "-o", "json")[1])["findings"]
    (one,) = found
    assert (one["kind"], one["action"], one["address"]) == ("lease-without-pod", "reclaim", "10.0.0.2")
    boot = cluster.folder / "boot"  # the workstation's, which is another machine
    boot.write_text("11111111-1111-1111-1111-111111111111\n")
    argv = cluster.argv("ipam", "reclaim", "--from-report", report, "--grace", "0", "-o", "json")
    done = cluster.away(f"mount --bind {boot} /proc/sys/kernel/random/boot_id", argv)
    (one,) = json.loads(done.stdout)
    assert (one["result"], done.returncode) == (result, int(result == "kept")), (one["why"], done.stderr)
    assert rig.held(kind) == ([] if result == "freed" else [2])


def test_reclaim_in_a_container_of_the_node_believes_the_agent_and_not_what_it_sees_itself(
    rig: Rig, cluster: Cluster
) -> None:
    """The kernel of the container is the node's, and its boot; its /run/netns is empty."""
    folder = cluster.folder / "netns"
    folder.mkdir()
    (folder / "cni-1").symlink_to(f"/proc/{os.getpid()}/ns/net")
    rig.hold("addresslease", 2, owner("c2", "team/gone", netns=str(folder / "cni-1")), None)
    report = str(cluster.folder / "report")
    cluster("ipam", "audit", "--report", report)
    argv = cluster.argv("ipam", "reclaim", "--from-report", report, "--grace", "0")
    done = cluster.away(f"mount -t tmpfs none {folder}", argv)
    assert "skipped: 10.0.0.2 of 10.0.0.0-24: it is in use, or may be: node n1" in " ".join(done.stdout.split()), done
    assert rig.held("addresslease") == [2]


def test_an_agent_that_never_answers_is_told_after_a_while(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubectl, "SECONDS", 2.0)
    cluster.nodes.answers = ["sleep", "30"]
    assert cluster.here(monkeypatch, "status", "--output=json") == 1
    assert json.loads(capsys.readouterr().out)[0]["faults"] == ["its agent does not answer in 2 s: is the node ready?"]


def test_doctor_runs_in_the_nodes_file_system_and_its_pod_goes(cluster: Cluster) -> None:
    code, told, said = cluster("doctor", "n1", "--output=json")
    assert code in (0, 1), said
    assert json.loads(told)["node"] == "n1"
    spec = cluster.nodes.made["spec"]
    assert (spec["nodeName"], spec["hostNetwork"], spec["hostPID"]) == ("n1", True, True)
    assert spec["containers"][0]["image"] == "r/railcni:1"
    assert cluster.is_clean()


def test_doctor_of_a_pod_goes_to_its_node_and_names_the_pod(cluster: Cluster) -> None:
    cluster.nodes.doctor = ["echo", "well"]
    assert cluster("doctor", "team/train") == (0, "well\n", "")
    spec = cluster.nodes.made["spec"]
    assert spec["nodeName"] == "n1"
    executable = f"{cluster.plugins}/railcni-bundle/current/bin/railcni"
    assert spec["containers"][0]["command"][4:] == [executable, "doctor", "--pod=team/train", "--output=table"]
    assert cluster.is_clean()


def waits(reason: str, message: str = "") -> Document:
    state = {"name": "doctor", "state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "containerStatuses": [state]}


def ends(code: int, reason: str, message: str = "") -> Document:
    state = {"name": "doctor", "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}
    return {"phase": "Failed", "containerStatuses": [state]}


# What kubelet makes of a pod in place of a run of doctor, and what the command says.
FATES = {
    "its image cannot be pulled": ([waits("ErrImagePull"), waits("ImagePullBackOff", "no such image")], "Off: no such"),
    "its image may not be pulled": ([waits("ErrImageNeverPull", "not present with pull policy of Never")], "Never"),
    "kubelet refuses it": ([{"phase": "Failed", "reason": "OutOfpods", "message": "Node didn't have enough"}], "OutOf"),
    "it is evicted while it runs": (
        [{**ends(137, "Error"), "reason": "Evicted", "message": "low on memory"}],
        "low on",
    ),
    "its container has no python3": ([ends(128, "StartError", "exec: no such file")], "StartError: exec: no such file"),
    "the kernel kills it": ([ends(137, "OOMKilled")], "OOMKilled"),
    "it takes too long": ([{"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active"}], "Exceeded"),
    "somebody deletes it": ([{"phase": "Running", "delete": True}], "NotFound"),
}


@pytest.mark.parametrize("fate", quick(FATES, "its image cannot be pulled", "somebody deletes it"))
def test_a_pod_of_doctor_that_does_not_run_is_told_with_a_remedy_and_goes_too(cluster: Cluster, fate: str) -> None:
    cluster.nodes.fate, named = FATES[fate]
    code, told, said = cluster("doctor", "n1")
    assert (code, told) == (1, "")
    assert named in said
    assert "`kubectl get events --namespace=railcni --field-selector=" in said or "NotFound" in said
    assert cluster.is_clean()


def test_a_pod_of_doctor_that_never_starts_is_told_and_goes_too(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "_START", 2.0)
    cluster.nodes.fate = [waits("ContainerCreating")]
    assert cluster.here(monkeypatch, "doctor", "n1") == 1
    assert "did not run on the node: ContainerCreating. For more: `kubectl get events" in capsys.readouterr().err
    assert cluster.is_clean()


@pytest.mark.parametrize("form", quick(["table", "json", "yaml"], "json"))
def test_a_node_whose_installation_is_gone_is_told_in_place_of_a_traceback(cluster: Cluster, form: str) -> None:
    shutil.rmtree(cluster.plugins / "railcni-bundle")
    code, told, said = cluster("doctor", "n1", f"--output={form}")
    assert (code, told) == (1, "")
    assert "railcni-bundle/current/bin/railcni of the node cannot be run: No such file or directory" in said
    assert cluster.is_clean()


def test_a_doctor_that_refuses_is_told_and_its_message_is_no_json(cluster: Cluster) -> None:
    code, told, said = cluster("doctor", "team/train", "--output=json")
    assert (code, told) == (1, "")
    assert "doctor did not run on node n1: railcni: " in said


@pytest.mark.parametrize("number", quick([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], signal.SIGINT))
def test_a_signal_ends_the_command_and_removes_its_pod(cluster: Cluster, number: signal.Signals) -> None:
    """As a terminal does, the signal goes to kubectl too, and comes twice."""
    cluster.nodes.fate = [waits("ContainerCreating")]
    process = subprocess.Popen(
        cluster.argv("doctor", "n1"),
        env=cluster.environ,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a run in the background ignores SIGINT
    )
    assert until(cluster.nodes.pods, 20)
    os.killpg(process.pid, number)
    time.sleep(0.05)
    os.killpg(process.pid, number)
    assert process.wait(30) in (1, -number)  # the second one may come while Python exits
    assert cluster.is_clean()


# The rights that a user lacks, by what then fails.
RIGHTS = {
    ("status", "get", "pods"): "cannot get resource",
    ("status", "get", "nodes"): "cannot get resource",
    ("status", "create", "pods/exec"): "exec",
    ("doctor n1", "create", "pods"): "cannot create resource",
    ("doctor n1", "get", "pods/log"): "pods/log",
}


@pytest.mark.parametrize(
    "lacking", quick(RIGHTS, ("status", "create", "pods/exec"), ("doctor n1", "create", "pods")), ids=" ".join
)
def test_a_right_that_the_user_lacks_is_named_with_a_remedy(cluster: Cluster, lacking: tuple[str, str, str]) -> None:
    words, *right = lacking
    cluster.server.forbidden = {(right[0], right[1])}
    code, told, said = cluster(*words.split())
    assert code == 1
    assert RIGHTS[lacking] in told + said
    assert "have this right granted to you" in told + said
    assert said.count("(Forbidden)") == bool(said), "once"
    assert until(lambda: not cluster.nodes.pods(), 10)


def test_a_pod_that_may_not_be_deleted_is_named(cluster: Cluster) -> None:
    cluster.nodes.doctor = ["echo", "well"]
    cluster.server.forbidden = {("delete", "pods")}
    _, _, said = cluster("doctor", "n1")
    name = cluster.nodes.made["metadata"]["name"]
    assert f"pod {name} is left: `kubectl delete pod {name} --namespace=railcni` removes it" in said


def test_a_users_defaults_of_kubectl_change_nothing(cluster: Cluster) -> None:
    cluster.nodes.doctor = ["echo", "well"]
    folder = cluster.folder / ".kube"
    folder.mkdir()
    (folder / "kuberc").write_text(
        """{apiVersion: kubectl.config.k8s.io/v1beta1, kind: Preference,
        defaults: [{command: delete, options: [{name: interactive, default: "true"}]}]}"""
    )
    assert cluster("doctor", "n1")[0] == 0
    assert cluster.is_clean()


def test_what_cannot_be_done_is_refused_with_its_reason(cluster: Cluster) -> None:
    for place, named in (
        ("n3", "no agent on node n3: want one of n1, n2"),
        ("team/none", 'pods "none" not found'),
        ("team/new", "pod team/new is on no node yet"),
    ):
        code, _, said = cluster("doctor", place)
        assert (code, named in " ".join(said.split())) == (1, True), said


def test_no_agents_and_no_kubectl_are_told(cluster: Cluster) -> None:
    for name in ("railcni-n1", "railcni-n2"):
        cluster.server.drop("pods", "railcni", name)
    assert "no agent in namespace railcni" in cluster("status")[2]
    cluster.environ["PATH"] = ""
    alone = subprocess.run([BIN / "kubectl-railcni", "status"], env=cluster.environ, capture_output=True, text=True)
    assert "kubectl is not on PATH" in alone.stderr


LOG = 'E1128 04:25:00.123456   21 memcache.go:265] "Unhandled Error" err="dial tcp"\n'
NO_CLUSTER = "no kubeconfig names a current cluster: give one with --kubeconfig FILE or KUBECONFIG, or a context with --context\n"
SAID = {  # the stderr of kubectl, and the end of our message
    f"{LOG}{LOG}error: no route\n": "failed: error: no route\n",
    LOG: f"failed: {LOG}",
    "error: EOF\n": "the context names no user: see `kubectl config view --minify`\n",
    "The connection to the server localhost:8080 was refused - did you specify the right host or port?\n": NO_CLUSTER,
    "error: current-context must exist in order to minify\n": NO_CLUSTER,
    "": "failed: it said nothing\n",
    "error: a node says \x1b]0;owned\x07\n": "failed: error: a node says ?]0;owned?\n",
}


@pytest.mark.parametrize("stderr", SAID)
def test_of_what_kubectl_writes_the_error_is_told_without_its_log(stderr: str, tmp_path: Path) -> None:
    (tmp_path / "said").write_text(stderr)
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\nread -r line\ncat {tmp_path}/said >&2\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = railcni("cluster", "status", env=environ)
    assert done.returncode == 1 and done.stderr.endswith(SAID[stderr]), done.stderr
    assert done.stderr.count("E1128") == (stderr == LOG)


def test_a_fault_of_kubectls_configuration_names_no_temporary_file(tmp_path: Path) -> None:
    cluster = {"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "proxy-url": "http://10.0.0.2"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    known = {"current-context": "x", "contexts": [context], "clusters": [cluster], "users": [{"name": "u", "user": {}}]}
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\necho '{json.dumps(known)}'\n")
    (tmp_path / "kubectl").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = railcni("cluster", "ipam", "leases", env=environ)
    assert done.stderr.startswith("railcni: kubectl's configuration: proxy-url is not supported"), done.stderr


def test_leases_are_those_of_both_stores_of_the_cluster(rig: Rig, cluster: Cluster) -> None:
    rig.allocate(a1=("c1", "team/old"))
    assert [one["pod"] for one in json.loads(cluster("ipam", "leases", "--output=json")[1])] == ["team/old"]
    hint = ": -n is the namespace of these objects, not of the pods\n"
    assert cluster("ipam", "leases", "-n", "team")[2].endswith(hint)
    assert hint not in cluster("ipam", "leases", "--pod", "nobody")[2]
    rig.lease(7, owner("c7", "team/train"), True)
    code, told, said = cluster("ipam", "leases", "--output=json")
    assert (code, [one["pod"] for one in json.loads(told)], said) == (0, ["team/train", "team/old"], "")
    code, told, _ = cluster("ipam", "audit", "--output=json")
    assert code == 1  # no pod has them
    assert not list(Path("/tmp").glob("railcni-*/kubeconfig"))


def test_files_that_a_kubeconfig_names_by_relative_paths_are_found(rig: Rig, cluster: Cluster) -> None:
    """kubectl passes these paths on as they are; with several kubeconfigs they are those of the file that has them."""
    rig.allocate(a1=("c1", "team/old"))
    folder = cluster.folder / "elsewhere/bin"
    folder.mkdir(parents=True)
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}
    (folder / "helper").write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    (folder / "helper").chmod(0o755)
    (folder.parent / "token").write_text("t")
    cluster.server.tokens = {"t"}
    version = "client.authentication.k8s.io/v1"
    helper = {"exec": {"apiVersion": version, "command": "bin/helper", "interactiveMode": "Never"}}
    for user in (helper, {"tokenFile": "token"}):
        path = cluster.server.kubeconfig(folder.parent, user=user)
        cluster.environ["KUBECONFIG"] = f"{cluster.folder}/none:{path}"
        code, told, said = cluster("ipam", "leases", "--output=json")
        assert (code, said) == (0, "")
        assert [one["pod"] for one in json.loads(told)] == ["team/old"]
