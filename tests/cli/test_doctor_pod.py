"""`railcni doctor --pod`: each fault that keeps one pod from RDMA is named, and what was not looked at is said.

Links and namespaces are real, /sys and /dev are trees of a machine with two NICs of which the pod has one.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni.cli.doctor import kernel, pods, report
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.doctor.finding import ADVICE, FAULT, NOTE, OK, SKIPPED, UNKNOWN, Observation
from cni.shared import policy
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from tests.sysfs import Tree
from tests.view import View

NIC, OTHER, GPU = "0000:3b:00.0", "0000:5e:00.0", "0000:16:00.0"
INSIDE = "import os, sys, time; os.chroot(sys.argv[1]); print('ready', flush=True); time.sleep(300)"


class Scene:
    """A healthy pod default/pod-1 with net1, 192.168.111.1, on ens2f0 of mlx5_0; mlx5_1 is of nobody."""

    def __init__(self, folder: Path, host: View, pod: View) -> None:
        self.folder, self.host, self.pod = folder, host, pod
        self.sys = Tree(folder / "sys")
        for module in ("ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib"):
            (self.sys.root / "module" / module).mkdir(parents=True)
        self.sys.put(self.sys.root / "class/misc/rdma_cm", {"dev": "1:3"})
        self.sys.put(self.sys.root / "devices/system/node", {"online": "0"})
        link = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
        lanes = {"current_link_width": 16, "max_link_width": 16}
        for number, (address, netdev) in enumerate(((NIC, "ens2f0"), (OTHER, "ens3f0"))):
            self.sys.pci(
                address, ["0000:3a:00.0"], "mlx5_core", vendor="0x15b3", **{"class": "0x020000"}, **link, **lanes
            )
            self.sys.netdev(netdev, pci=address)
            node = f"uverbs{number}"
            self.sys.verbs(f"mlx5_{number}", pci=address, netdev=netdev, size=8, nodes={node: "infiniband_verbs"})
            self.sys.put(self.sys.root / "class/infiniband_verbs" / node, {"dev": "1:3"})
        self.sys.gid("mlx5_0", "192.168.111.1", ndev="net1")
        for node in ("uverbs0", "uverbs1", "rdma_cm"):
            (folder / "dev/infiniband").mkdir(parents=True, exist_ok=True)
            (folder / "dev/infiniband" / node).symlink_to("/dev/null")
            (self.devices).mkdir(parents=True, exist_ok=True)
            (self.devices / node).touch()
        host.add_veth("ens2f0", "wire")
        with host.rtnl() as ipr:
            for name in ("ens2f0", "wire"):
                ipr.link("set", index=ipr.link_lookup(ifname=name)[0], mtu=9000, state="up")
            lower = ipr.link_lookup(ifname="ens2f0")[0]
            ipr.link("add", ifname="net1", kind="macvlan", link=lower, macvlan_mode="bridge", net_ns_fd=pod.path)
        pod.set("net1", mtu=9000, state="up")
        pod.add_address("net1", "192.168.111.1/24")
        record = {"netns": pod.path, "pod": ["default", "pod-1", "u1"], "addresses": ["192.168.111.1/24"]}
        Records(str(folder / "state")).write(Attachment("rdma-net", "c1", "net1"), "ipam", record)
        offered = {"Data": {"RegisteredDevices": {"rdma/hca_a": [f"{NIC}-0"]}}}
        (folder / "kubelet/device-plugins").mkdir(parents=True)
        (folder / "kubelet/device-plugins/kubelet_internal_checkpoint").write_text(json.dumps(offered))

    @property
    def devices(self) -> Path:
        """/dev/infiniband in the pod's container."""
        return self.folder / "root/dev/infiniband"

    def put(self, place: str, text: str) -> None:
        (self.sys.root / place).write_text(f"{text}\n")

    def places(self) -> NodePlaces:
        names = {name: str(self.folder / name) for name in ("sys", "dev", "state", "cache", "networks", "kubelet")}
        return NodePlaces(**names, plugins=(str(self.folder),), root=str(self.folder / "host"))

    def claim(self, function: str = NIC, prepared: bool = True, pod: str = "u1", **device: object) -> None:
        """A claim team/c of the pod, as kubelet and `railcni dra` remember it."""
        entry = {"ClaimUID": "c1", "ClaimName": "c", "Namespace": "team", "PodUIDs": {pod: {}}}
        data = json.dumps({"ClaimInfoStateList": [entry | {"DriverState": {"railcni.io": {"Devices": None}}}]})
        (self.folder / "kubelet/dra_manager_state").write_text(json.dumps({"Data": data, "Checksum": 1}))
        own, cdi = self.folder / "kubelet/plugins/railcni.io/claims", self.folder / "host/var/run/cdi"
        for folder in (own, cdi):
            folder.mkdir(parents=True)
        one = {"device": "hca-a", "resource": "rdma/hca_a", "function": function, "admin": False} | device
        if prepared:
            record = {
                "uid": "c1", "namespace": "team", "name": "c",
                "devices": [one | {"nodes": ["/dev/infiniband/uverbs0"], "variables": {}}],
            }  # fmt: skip
            (own / "c1.json").write_text(json.dumps(record))
            (cdi / "dra.railcni.io-c1.json").touch()

    def findings(self, peer: str = "") -> list[Observation]:
        with self.host.entered():
            return list(report.examine(NodeFacts(self.places(), "default/pod-1", peer)).findings)


@contextmanager
def in_container(scene: Scene) -> Iterator[Scene]:
    """With a process of a container in the pod."""
    inside = ["nsenter", f"--net={scene.pod.path}", sys.executable, "-IS", "-c", INSIDE, str(scene.folder / "root")]
    with subprocess.Popen(inside, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield scene
        finally:
            process.kill()


@pytest.fixture
def scene(tmp_path: Path, namespaces: Callable[[], View]) -> Iterator[Scene]:
    with in_container(Scene(tmp_path, namespaces(), namespaces())) as made:
        yield made


def of_level(found: list[Observation], *levels: str) -> list[tuple[str, str]]:
    return [(f.check, f.subject) for f in found if f.level in levels]


def test_a_healthy_pod_has_no_fault_and_each_part_of_its_way_was_looked_at(scene: Scene) -> None:
    """Neither is a NIC that it does not use its own, nor the record of a group of rails a link."""
    scene.put("class/infiniband/mlx5_1/ports/1/state", "1: DOWN")
    scene.put("class/net/ens3f0/mtu", "1500")
    (scene.folder / "dev/infiniband/uverbs1").unlink()
    record = {"netns": scene.pod.path, "pod": ["default", "pod-1", "u1"], "members": [["net", "net1"]]}
    Records(str(scene.folder / "state")).write(Attachment("@gpu", "c1", "rails of gpu"), "ipam", record)
    found = scene.findings()
    assert of_level(found, FAULT) == []
    seen = {f.check for f in found if f.level == OK}
    assert {"modules", "devices", "nodes", "ports", "mtu", "gids", "pods", "pcie", "links", "policy", "pod"} <= seen
    assert ("pod", "resource of net1") in of_level(found, OK)
    assert of_level(found, SKIPPED) == [("peer", "a peer"), ("node", "the node")]
    rest = next(f.found for f in found if f.check == "node")
    assert "CNI plugins" in rest and "store of leases" in rest and "ports" not in rest


@pytest.mark.parametrize("place, text", [("ports/1/link_layer", "InfiniBand"), ("node_type", "4: RNIC")])
def test_a_healthy_pod_over_infiniband_or_iwarp_has_no_fault(scene: Scene, place: str, text: str) -> None:
    scene.put(f"class/infiniband/mlx5_0/{place}", text)
    found = scene.findings()
    assert of_level(found, FAULT) == []
    assert "needs no GID" in next(f.found for f in found if f.check == "pods")


def unplug(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    scene.host.set("wire", state="down")
    while scene.pod.link("net1").carrier:  # the kernel tells it a moment later
        time.sleep(0.05)


def exclusive(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernel, "netns_mode", lambda: "exclusive")


def gpu(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    scene.sys.pci(GPU, vendor="0x10de", **{"class": "0x030200"})
    (scene.devices.parent / "nvidia0").touch()
    proc = scene.folder / "nvidia"
    (proc / "driver/nvidia").mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n")
    from cni.cli.doctor import pcie

    patch.setattr(pcie, "check_memory", lambda of, *_, check=pcie.check_memory: check(of, str(scene.sys), str(proc)))


def forbid(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    path = scene.folder / "railcni.json"
    path.write_text('{"masters": ["ens9"]}')
    path.chmod(0o600)
    patch.setattr(policy, "PATHS", (str(path),))


def fill_gids(scene: Scene, patch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        scene.sys.gid("mlx5_0", f"192.168.111.{number + 10}", ndev=f"x{number}")


FAULTS: dict[str, tuple[Callable[[Scene, pytest.MonkeyPatch], object], str, str]] = {
    "its port is DOWN": (lambda s, _: s.put("class/infiniband/mlx5_0/ports/1/state", "1: DOWN"), "ports",
                         "used by net1 of default/pod-1"),
    "its master's MTU is 1500": (lambda s, _: s.put("class/net/ens2f0/mtu", "1500"), "mtu", "so RoCE MTU 1024"),
    "rdma_ucm is not loaded": (
        lambda s, _: [shutil.rmtree(s.sys.root / p) for p in ("module/rdma_ucm", "class/misc/rdma_cm")], "modules",
        "not loaded: RDMA CM needs it"),
    "the NIC's verbs driver is not loaded": (
        lambda s, _: [
            shutil.rmtree(s.sys.root / "module/mlx5_ib"),
            *((s.sys.root / f"class/infiniband/mlx5_{n}").unlink() for n in (0, 1)),
            *(
                shutil.rmtree((s.sys.root / f"bus/pci/devices/{nic}").resolve() / folder)
                for nic in (NIC, OTHER)
                for folder in ("infiniband", "infiniband_verbs")
            ),
        ],
        "modules", "mlx5_core without mlx5_ib",
    ),
    "its address has no GID": (
        lambda s, _: s.sys.gid("mlx5_0", "192.168.111.1", ndev="net9", index=1), "pods",
        "no RoCE v2 GID of 192.168.111.1"),
    "the GID table is full": (fill_gids, "gids", "GID table full"),
    "the node lacks the device node": (
        lambda s, _: (s.folder / "dev/infiniband/uverbs0").unlink(), "nodes", "not there"),
    "a file is in the place of the device node": (
        lambda s, _: [(s.folder / "dev/infiniband/uverbs0").unlink(), (s.folder / "dev/infiniband/uverbs0").touch()],
        "nodes", "no character device"),
    "the container has another NIC's device node": (
        lambda s, _: (s.devices / "uverbs0").unlink(), "pod",
        "net1 is over mlx5_0, and /dev/infiniband has rdma_cm, uverbs1 alone"),
    "its master is down": (lambda s, _: s.host.set("ens2f0", state="down"), "links",
                           "on ens2f0, MTU 9000, which is down"),
    "its master has no carrier": (unplug, "links", "up without carrier"),
    "its link is down": (lambda s, _: s.pod.set("net1", state="down"), "links", "MTU 9000, down"),
    "its recorded link is gone": (
        lambda s, _: Records(str(s.folder / "state")).write(
            Attachment("rdma-net-2", "c1", "net2"), "ipam", {"netns": s.pod.path, "pod": ["default", "pod-1", "u1"]}),
        "links", "no link of this name is there",
    ),
    "the policy has no place for its master": (forbid, "policy", "ens2f0 is not in its `masters` (ens9)"),
    "its NIC has lost lanes": (
        lambda s, _: s.put(f"bus/pci/devices/{NIC}/current_link_width", "8"), "pcie", "PCIe 32 GT/s x8"),
    "verbs devices are not shared": (exclusive, "netns-mode", "see no verbs device; net1 of default/pod-1"),
    "its claim is not prepared": (
        lambda s, _: s.claim(prepared=False), "claims", "railcni.io has not prepared it here"),
    "its claim has another NIC than its network": (
        lambda s, _: s.claim(OTHER), "claims", f"no link of the pod is on {OTHER}: it has net1 on ens2f0"),
    "its claim has a device that is gone": (lambda s, _: s.claim("0000:99:00.0"), "claims", "0000:99:00.0 is gone"),
    "the NIC of its claim is down": (
        lambda s, _: [s.claim(OTHER), s.put("class/infiniband/mlx5_1/ports/1/state", "1: DOWN")], "claims",
        "mlx5_1 port 1 is DOWN"),
    "the runtime does not know its claim": (
        lambda s, _: [s.claim(), (s.folder / "host/var/run/cdi/dra.railcni.io-c1.json").unlink()], "claims",
        "its specification in /var/run/cdi is gone"),
    "its GPU's memory is not reached": (gpu, "peer-memory", "neither nvidia_peermem"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_what_the_pod_uses_is_named(fault: str, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, check, words = FAULTS[fault]
    plant(scene, monkeypatch)
    named = [f for f in scene.findings() if f.level == FAULT]
    assert any(f.check == check and words in f.found for f in named), [(f.check, f.subject, f.found) for f in named]
    assert all(f.remedy for f in named)


@pytest.mark.parametrize(("given", "wanted"), [
    ({}, [(OK, "prepared, rdma/hca_a, 0000:3b:00.0")]),
    ({"function": OTHER, "admin": True}, [(OK, f"prepared, rdma/hca_a, {OTHER}")]),
    ({"function": "all"}, [(OK, "prepared, rdma/hca_a, all")]),
    ({"function": OTHER, "pod": "u2"}, []),
])  # fmt: skip
def test_a_right_claim_or_another_pods_is_no_fault(
    given: dict[str, Any], wanted: list[tuple[str, str]], scene: Scene
) -> None:
    scene.claim(**given)
    assert [(f.level, f.found) for f in scene.findings() if f.check == "claims"] == wanted


@pytest.mark.parametrize("lost", ["kubelet/pods/u1", "kubelet/dra_manager_state", ""])
def test_a_claim_whose_pod_is_gone_is_named_on_its_node(lost: str, scene: Scene) -> None:
    scene.claim()
    (scene.folder / "kubelet/pods/u1").mkdir(parents=True)
    if lost:
        path = scene.folder / lost
        path.rmdir() if path.is_dir() else path.unlink()
    found = [
        (f.level, f.subject, f.found)
        for f in pods.check_node_claims(NodeFacts(scene.places()).node_claims, scene.places().kubelet)
    ]
    count = (NOTE, "ResourceClaims", f"1 prepared, {int(bool(lost))} of them without a pod")
    gone = (ADVICE, "ResourceClaim team/c", "prepared, and its pods are gone")
    assert found == [count, *([gone] if lost else [])]


def test_a_kubelet_that_has_had_no_claim_has_none_and_an_unreadable_memory_is_unknown(scene: Scene) -> None:
    """Its file, as kubelet 1.36.2 wrote it."""
    about = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": None}
    state = {"Data": json.dumps(about, separators=(",", ":")), "Checksum": 4010664294}
    (scene.folder / "kubelet/dra_manager_state").write_text(json.dumps(state))
    assert pods.read_claims(scene.places().kubelet) == []
    (scene.folder / "kubelet/dra_manager_state").write_text("{}")
    assert ("claims", "the pod's claims") in of_level(scene.findings(), UNKNOWN)


def test_what_cannot_be_known_of_its_processes_is_said(tmp_path: Path, namespaces: Callable[[], View]) -> None:
    found = Scene(tmp_path, namespaces(), namespaces()).findings()
    assert ("pod", "processes of default/pod-1") in of_level(found, UNKNOWN)


def test_a_container_without_rdma_cm_is_told_what_fails(scene: Scene) -> None:
    (scene.devices / "rdma_cm").unlink()
    assert "/dev/infiniband/rdma_cm" in [f.healthy for f in scene.findings() if f.level == ADVICE and f.check == "pod"]


def test_a_peer_is_asked_with_small_packets_and_the_whole_mtu(scene: Scene, namespaces: Callable[[], View]) -> None:
    peer = namespaces()
    with scene.host.rtnl() as ipr:
        lower = ipr.link_lookup(ifname="wire")[0]
        ipr.link("add", ifname="net1", kind="macvlan", link=lower, macvlan_mode="bridge", net_ns_fd=peer.path)
    peer.set("net1", mtu=9000, state="up")
    peer.add_address("net1", "192.168.111.2/24")

    def told(address: str) -> list[tuple[str, str]]:
        return [(f.level, f.found.partition(" bytes")[0]) for f in scene.findings(address) if f.check == "peer"]

    assert told("192.168.111.2") == [(OK, "84"), (OK, "9000")]
    scene.host.set("wire", mtu=1500)
    assert told("192.168.111.2") == [(OK, "84"), (FAULT, "9000")]
    assert told("192.168.111.3") == [(FAULT, "84"), (FAULT, "9000")]
    assert told("fd00::1") == [(FAULT, "0")]


def test_a_fault_is_printed_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.put("class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    from cni.cli.doctor import command

    with scene.host.entered():
        command._print(report.examine(NodeFacts(scene.places(), "default/pod-1")), False)
    assert os.linesep.join(capsys.readouterr().out.splitlines()).count("DOWN") == 1
