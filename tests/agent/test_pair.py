"""`kubectl railcni test` by the real kubectl: what it tells of two pods on two nodes, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipam.stores.ippool import locks
from tests import tools
from tests.agent import test_kubectl
from tests.agent.rig import Rig, owner
from tests.agent.test_kubectl import RUNNING, Cluster, Document, Server
from tests.command import LOCKS
from tests.docs.kubelet import NETWORKS, STATUS, creating, status_of
from tests.each import quick
from tests.node import BIN, until
from tests.stores.kubernetes_api import ADDRESSES

pytestmark = [*test_kubectl.pytestmark, tools.needs_ip]
# What the image of --image has: an ib_write_bw of which the server has to be there first, and a verbs device.
PERFTEST = """
mount -t tmpfs none /dev; mkdir -p /dev/infiniband; mknod /dev/null c 1 3; touch /dev/infiniband/uverbs0
mount -t tmpfs none /sys/class; mkdir -p /sys/class/infiniband_verbs/uverbs0
echo mlx5_0 > /sys/class/infiniband_verbs/uverbs0/ibdev
exec "$@"
"""
IB_WRITE_BW = """#!/bin/sh
case "$*" in *10.0.0.*) ;; *) touch {0}/listens; until [ -e {0}/done ]; do sleep 0.05; done; exit 0 ;; esac
[ -e {0}/listens ] || exit 1
touch {0}/done
echo "$*" > {0}/client
echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'
echo ' 65536      5000             97.81              97.52              0.186'
"""


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


class Kubelets:
    """The kubelets of n1 and n2, the scheduler, and Multus. `fault` is what goes wrong."""

    def __init__(self, server: TestServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.fault = ""
        self.made: dict[str, Document] = {}
        self.lock = threading.Lock()
        self.roots: dict[str, str] = {}
        self.is_over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def inside(self, namespace: str, name: str, container: str, argv: list[str]) -> list[str]:
        enter = ["ip", "netns", "exec", name]
        if container == "rdma":
            path = f"PATH={self.folder}/image:{os.environ['PATH']}" if self.fault != "no programs" else "PATH=/bin"
            devices = 'exec "$@"' if self.fault == "no device" else PERFTEST
            return [*enter, "env", path, "sh", "-ec", devices, "sh", *argv]
        return [*enter, str(BIN / argv[0]), *argv[1:]]

    def pods(self) -> list[Document]:
        return [p for p in self.server.found("pods") if p["metadata"]["name"].startswith("railcni-test-")]

    def _look(self) -> None:
        while not self.is_over.wait(0.02):
            for pod in self.pods():
                name = pod["metadata"]["name"]
                if "deletionTimestamp" in pod["metadata"]:
                    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
                    if self.fault != "a release fails":
                        for lease in self.server.names(ADDRESSES):
                            self.server.objects.pop((ADDRESSES, "kube-system", lease), None)
                    self.server.drop("pods", "railcni", name)
                elif name not in self.made:
                    self.made[name] = pod
                    self._serve(pod)

    def _serve(self, pod: Document) -> None:
        metadata, number = pod["metadata"], int(pod["metadata"]["name"][-1])
        pod["spec"].setdefault("nodeName", f"n{number}")
        self._write(pod, creating(pod))
        if self.fault == "the plugin fails":
            about = {"involvedObject": {"name": metadata["name"]}, "message": "Failed to create pod sandbox: no master"}
            self.server.keep(
                "events", "railcni", {"metadata": {"name": metadata["name"], "namespace": "railcni"}, **about}
            )
            return
        ip(f"netns add {metadata['name']}")
        ip(f"-n {metadata['name']} link set lo up")
        if number == 2:
            self._connect([metadata["name"][:-1] + "1", metadata["name"]])
        address = f"10.{9 if self.fault == 'another range' else 0}.0.{number}"
        told = [{"name": metadata["annotations"][NETWORKS], "interface": "net1", "ips": [address]}]
        if self.fault != "no Multus":
            metadata["annotations"][STATUS] = json.dumps(told)
        if self.fault != "another store":
            self.server.hold(number, metadata["name"])
        names = [one["name"] for one in pod["spec"]["containers"]]
        self._write(pod, status_of(dict.fromkeys(names), "Running", True))

    def _connect(self, names: list[str]) -> None:
        first, second = names
        ip(f"-n {first} link add net1 mtu 9000 type veth peer name net1 netns {second}")
        sizes = {"another MTU": (9000, 1500)}.get(self.fault, (9000, 9000))
        net = 9 if self.fault == "another range" else 0
        for number, (name, size) in enumerate(zip(names, sizes, strict=True), 1):
            ip(f"-n {name} address add 10.{net}.0.{number}/24 dev net1")
            ip(f"-n {name} link set net1 mtu {size} up")
        if self.fault == "no wire":
            ip(f"-n {second} address delete 10.0.0.2/24 dev net1")

    def _write(self, pod: Document, status: Document) -> None:
        if found := self.server.read("pods", "railcni", pod["metadata"]["name"]):
            mark = {key: value for key, value in found["metadata"].items() if key == "deletionTimestamp"}
            self.server.keep("pods", "railcni", {**pod, "metadata": {**pod["metadata"], **mark}, "status": status})


class TestServer(Server):
    __test__ = False
    kubelet_of: Any = Kubelets
    rig: Rig

    def hold(self, offset: int, pod: str) -> None:
        self.rig.hold("addresslease", offset, owner(f"c{offset}", f"railcni/{pod}", node=f"n{offset}"))


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(locks, "DIRECTORY", str(tmp_path / "locks"))
    monkeypatch.setenv(LOCKS, str(tmp_path / "locks"))
    server = TestServer(0, tmp_path)
    server.rig = Rig(server, tmp_path)
    folder = tmp_path / "kubectl"
    folder.mkdir()
    (tmp_path / "none").mkdir()
    found = Cluster(server.rig, server, folder, tmp_path / "none")
    found.agent("railcni-n2", "n2", RUNNING)
    ipam = {"type": "railcni-whereabouts", "range": "10.0.0.0/24"}
    config = {"cniVersion": "1.0.0", "name": "net", "type": "railcni-macvlan", "mtu": 9000, "ipam": ipam}
    nad = {"metadata": {"name": "net", "namespace": "railcni"}, "spec": {"config": json.dumps(config)}}
    server.keep("network-attachment-definitions", "railcni", nad)
    yield found
    server.kubelet.is_over.set()
    for name in server.kubelet.made:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    server.rig.close()
    server.close()


# For each fault: the checks that fail, the checks that are skipped (without those of RDMA), and a part of the message.
FAULTS: dict[str, tuple[set[str], set[str], str]] = {
    "": (set(), set(), "PASS"),
    "another MTU": ({"MTU", "ping from n1"}, set(), "raise the MTU of the switch ports"),
    "no wire": ({"ping from n1", "ping from n2"}, set(), "VLAN and switch ports"),
    "another range": ({"addresses"}, set(), "10.9.0.1"),
    "the plugin fails": ({"attached"}, set(), "Failed to create pod sandbox: no master. Remedy: `railcni nad lint`"),
    "no Multus": ({"attached"}, set(), "see that Multus runs"),
    "a release fails": ({"released"}, set(), "still leased. Remedy: `kubectl railcni ipam audit`"),
    "another store": (set(), {"released"}, "in no store of the cluster"),
}


@pytest.mark.parametrize("fault", quick(FAULTS, "another MTU", "the plugin fails"))
def test_each_fault_between_two_nodes_is_a_row_with_a_remedy_and_nothing_is_left(nodes: Cluster, fault: str) -> None:
    kubelets: Any = nodes.nodes
    kubelets.fault = fault
    failing, skipped, said = FAULTS[fault]
    short = ["--timeout=3"] if failing & {"attached", "released"} else ["--timeout=30"]
    code, told, errors = nodes("test", "railcni/net", *short)
    assert code == int(bool(failing)), told + errors
    rows = [line.split("  ")[0] for line in told.splitlines()[1:]]
    results = {
        result: {row for row, line in zip(rows, told.splitlines()[1:], strict=True) if f"  {result}  " in line}
        for result in ("FAIL", "skipped", "PASS")
    }
    assert results["FAIL"] == failing, told
    if "attached" not in failing:
        assert results["skipped"] == skipped | {"RDMA"}, told
        assert {"attached", "MTU"} <= results["PASS"]
    assert said in told
    assert all("Remedy: " in line for line in told.splitlines() if "  FAIL  " in line)
    assert until(lambda: not nodes.nodes.pods(), 10)


# The options, what is wrong, the level of the row RDMA, and what it tells.
RDMA = {
    "measured": ("", "ok", "97.52 Gb/s by ib_write_bw"),
    "no device": ("no device", "skipped", "name the resource of one with --resource"),
    "no programs": ("no programs", "skipped", "neither ib_write_bw nor rping"),
}


@pytest.mark.parametrize("case", quick(RDMA, "measured"))
def test_rdma_is_measured_by_the_programs_of_the_image_or_the_reason_is_told(nodes: Cluster, case: str) -> None:
    fault, level, said = RDMA[case]
    kubelets: Any = nodes.nodes
    kubelets.fault = fault
    program = kubelets.folder / "image/ib_write_bw"
    program.parent.mkdir()
    program.write_text(IB_WRITE_BW.format(kubelets.folder))
    program.chmod(0o755)
    options = ["--timeout=30", "--image=r/perftest:1", "--resource=rdma/hca", "--node=n2", "--node=n1", "-o", "json"]
    code, told, errors = nodes("test", "railcni/net", *options)
    (row,) = (one for one in json.loads(told) if one["check"] == "RDMA")
    assert (code, row["level"], said in row["found"]) == (0, level, True), (row, errors)
    specs = [pod["spec"] for pod in kubelets.made.values()]
    assert [spec["nodeName"] for spec in specs] == ["n2", "n1"]
    assert [spec["containers"][1]["resources"] for spec in specs] == [{"limits": {"rdma/hca": "1"}}] * 2
    if level == "ok":
        assert "-R -d mlx5_0" in (kubelets.folder / "client").read_text()


@pytest.mark.parametrize("number", quick((signal.SIGINT, signal.SIGTERM), signal.SIGTERM))
def test_a_signal_ends_the_test_and_removes_its_pods(nodes: Cluster, number: signal.Signals) -> None:
    kubelets: Any = nodes.nodes
    kubelets.fault = "the plugin fails"
    process = subprocess.Popen(
        nodes.argv("test", "railcni/net"),
        env=nodes.environ,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert until(lambda: len(kubelets.made) == 2, 20)
    os.killpg(process.pid, number)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    assert process.wait(30) == 1
    assert until(lambda: not kubelets.pods(), 10)


def test_what_cannot_be_tested_is_refused_before_a_pod_is_made(nodes: Cluster) -> None:
    for words, code, said in (
        ("railcni/none", 1, '"none" not found'),
        ("railcni/net --node=n9", 1, "no agent on node n9: want one of n1, n2"),
        ("railcni/net --node=n1 --node=n2 --node=n1", 2, "want one or two nodes"),
        ("", 2, "NAD"),
    ):
        result = nodes("test", *words.split())
        assert (result[0], said in " ".join(result[2].split())) == (code, True), result
    nodes.server.forbidden = {("create", "pods")}
    code, _, errors = nodes("test", "railcni/net")
    assert (code, "have this right granted" in errors) == (1, True)
    assert not nodes.nodes.made
