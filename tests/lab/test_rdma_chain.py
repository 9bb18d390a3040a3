"""rdma in RDMA's exclusive netns mode: the verbs device goes into the sandbox and comes back, whatever becomes of it.

A helper module of the lab lets soft-RoCE change namespaces. Its netdev stays on the host, so `verbsDevice` names the device."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.blackbox import test_chains as chains
from tests.lab import networks
from tests.lab.machine import Machine, command, verbs_devices
from tests.node import Pod

MACHINES = ("exclusive",)


@pytest.fixture
def pod(machine: Machine) -> Pod:
    machine.dummy("ens2f0")
    machine.soft_roce("mlx5_0", "ens2f0")
    return machine.pod("pod1")


def network(pod: Pod, **more: Any) -> dict[str, Any]:
    interfaces = [{"name": "net1", "sandbox": pod.path, "unheardOf": 7}]
    result = {"cniVersion": "1.1.0", "interfaces": interfaces, "ips": [], "dns": {}, "strange": True}
    return {"cniVersion": "1.1.0", "name": "rd", "type": "rdma", "verbsDevice": "mlx5_0", "prevResult": result, **more}


def of_pod(pod: Pod) -> list[str]:
    """The verbs devices of a pod, by rdma-dev(8)."""
    with pod.view.entered():
        return [device["ifname"] for device in json.loads(command("rdma", "-j", "dev"))]


def test_the_verbs_device_goes_into_the_sandbox_and_comes_back(
    machine: Machine, pod: Pod, say: Callable[[str], None]
) -> None:
    config = network(pod)
    assert machine.cni("rdma", "ADD", config, netns=pod).succeeded() == config["prevResult"]
    assert (of_pod(pod), verbs_devices()) == (["mlx5_0"], [])
    say(f"mlx5_0 is in {pod.name}, and the host has {verbs_devices() or 'none'}")
    machine.cni("rdma", "CHECK", config, netns=pod).succeeded()
    other = machine.pod("pod2")
    machine.cni("rdma", "ADD", network(other), netns=other, container_id="c2").refused(11, "mlx5_0", "c1", "net1")
    for _ in range(2):
        machine.cni("rdma", "DEL", config, netns=pod).succeeded()
        assert (of_pod(pod), verbs_devices(), machine.files()) == ([], ["mlx5_0"], [])
    machine.cni("rdma", "CHECK", config, netns=pod).succeeded()  # there is nothing to compare with


def test_a_verbs_device_that_the_pod_renamed_comes_back_under_its_name(machine: Machine, pod: Pod) -> None:
    config = network(pod)
    machine.cni("rdma", "ADD", config, netns=pod).succeeded()
    with pod.view.entered():
        command("rdma", "dev", "set", "mlx5_0", "name", "hca")
    machine.cni("rdma", "CHECK", config, netns=pod).refused(100, "mlx5_0")
    machine.cni("rdma", "DEL", config, netns=pod).succeeded()
    assert (of_pod(pod), verbs_devices()) == ([], ["mlx5_0"])


def test_a_sandbox_that_died_has_given_its_verbs_device_back(machine: Machine, pod: Pod) -> None:
    config = network(pod)
    machine.cni("rdma", "ADD", config, netns=pod).succeeded()
    machine.delete_pod(pod)
    machine.cni("rdma", "GC", {**config, "cni.dev/valid-attachments": []}).succeeded()
    assert machine.files() == []
    second = machine.pod("pod2")
    machine.cni("rdma", "ADD", network(second), netns=second, container_id="c2").succeeded()
    machine.cni("rdma", "DEL", config, netns=pod.path).succeeded()  # late
    assert of_pod(second) == ["mlx5_0"]
    machine.cni("rdma", "GC", {**config, "cni.dev/valid-attachments": []}).succeeded()
    assert (of_pod(second), verbs_devices()) == ([], ["mlx5_0"])


def test_an_add_that_is_repeated_or_comes_after_a_killed_one_ends_alike(machine: Machine, pod: Pod) -> None:
    config = network(pod)
    for number in range(1, 14):
        networks.killed(machine, "ADD", config, pod, f"sendto:{number}")
        if number % 2:
            machine.cni("rdma", "ADD", config, netns=pod).succeeded()
            assert of_pod(pod) == ["mlx5_0"]
        machine.cni("rdma", "DEL", config, netns=pod).succeeded()
        assert (of_pod(pod), verbs_devices(), machine.files()) == ([], ["mlx5_0"], []), number


def test_what_gos_rdma_cni_has_moved_comes_back(machine: Machine, pod: Pod) -> None:
    command("rdma", "dev", "set", "mlx5_0", "netns", "pod1")
    path = machine.path("/var/lib/cni/rdma/rd-c1-net1")
    path.parent.mkdir(mode=0o700, parents=True)
    path.write_text(json.dumps({"version": "1.0", "deviceID": "", "containerRdmaDevName": "mlx5_0"}))
    os.chmod(path, 0o600)
    machine.cni("rdma", "DEL", network(pod), netns=pod).succeeded()
    assert (of_pod(pod), verbs_devices(), machine.files()) == ([], ["mlx5_0"], [])


def test_what_cannot_be_told_or_found_is_said_so(machine: Machine, pod: Pod) -> None:
    machine.cni("rdma", "STATUS", network(pod)).succeeded()
    machine.cni("rdma", "ADD", network(pod, verbsDevice="mlx5_9"), netns=pod).refused(7, "mlx5_9", "not on the host")
    machine.cni("rdma", "ADD", network(pod, verbsDevice=""), netns=pod).refused(7, "net1", "not in the sandbox")
    unknown = network(pod, verbsDevice="", deviceID="0000:ff:1f.7")
    machine.cni("rdma", "ADD", unknown, netns=pod).refused(7, "0000:ff:1f.7", "not on the host")
    assert (verbs_devices(), machine.files()) == (["mlx5_0"], [])


@chains.needs_go
@pytest.mark.parametrize("plugin", ["macvlan", "host-device"])
@pytest.mark.parametrize("chain", [
    (chains.SELF, "rdma", "tuning"),
    ("loopback", chains.SELF, "tuning", "rdma", "portmap"),
    (chains.SELF, "sbr", "rdma"),
], ids=" ".join)  # fmt: skip
def test_rdma_stands_behind_and_before_plugins_of_others(
    machine: Machine, pod: Pod, chain: tuple[str, ...], plugin: str, say: Callable[[str], None]
) -> None:
    """host-device moves another netdev: with its own the soft-RoCE device would be deleted."""
    machine.dummy("ens3f0")
    machine.remember()
    own = {"rdma": {"type": "rdma", "verbsDevice": "mlx5_0"}}
    own[chains.SELF] = chains.member(chains.SELF, plugin)
    own[chains.SELF] |= {"device": "ens3f0"} if plugin == "host-device" else {}
    calls = chains.Chain(machine, pod, "1.0.0", [own.get(name) or chains.MEMBERS[name] for name in chain])
    result = calls.add()
    assert (of_pod(pod), verbs_devices()) == (["mlx5_0"], [])
    say(f"net1 {result['ips'][0]['address']} with mlx5_0 in {pod.name}")
    calls.check()
    for _ in range(1 if "sbr" in chain else 2):  # sbr's DEL refuses where there is no link
        calls.delete()
        assert (of_pod(pod), verbs_devices(), machine.leftovers()) == ([], ["mlx5_0"], [])
