"""host-device with virtual functions of a network card, by their PCI address; killed it is in test_sriov.py."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import networks, pci
from tests.lab.machine import Machine
from tests.lab.networks import vf_net
from tests.node import until
from tests.view import lasting

MACHINES = ("sriov",)
Say = Callable[[str], None]


@pytest.fixture
def vf(machine: Machine) -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a function whose netdev is `ens1f0v0`, and how that is."""
    with pci.card(machine) as nic:
        machine.host.add_address("ens1f0v0", "10.7.0.1/24")
        machine.host.add_address("ens1f0v0", "fd00:7::1/64")
        machine.host.add_route("ens1f0v0", "10.17.0.0/16", gateway="10.7.0.254", priority=50)
        machine.remember()
        yield nic.vfs[0], lasting(machine.host.link("ens1f0v0"))


def test_a_VF_goes_into_the_pod_and_comes_back_whole(machine: Machine, vf: tuple[str, Any], say: Say) -> None:
    address, before = vf
    pod = machine.pod()
    reply = networks.call(machine, "ADD", vf_net(address), pod)
    reply.succeeded()
    inside = pod.view.link("net1")
    say(f"{address} is net1 {inside.mac} {inside.texts} of the pod, and {pci.netdev(address) or 'no netdev'} here")
    assert inside.texts == ["192.168.111.1/24"] and inside.up and inside.mac == before["identity"][2]
    assert pci.netdev(address) == ""
    networks.call(machine, "CHECK", vf_net(address) | {"prevResult": reply.document}, pod).succeeded()
    networks.call(machine, "DEL", vf_net(address), pod).succeeded()
    assert lasting(machine.host.link("ens1f0v0")) == before
    assert pci.netdev(address) == "ens1f0v0"
    assert machine.leftovers() == []


def test_a_VF_whose_pod_has_gone_comes_back_whole(machine: Machine, vf: tuple[str, Any], say: Say) -> None:
    address, before = vf
    pod = machine.pod()
    networks.call(machine, "ADD", vf_net(address), pod).succeeded()
    machine.delete_pod(pod)
    assert pci.wait_for_netdev(address)
    say(f"the kernel gave it back as {pci.netdev(address)}")
    networks.call(machine, "DEL", vf_net(address), pod).succeeded()
    assert until(lambda: lasting(machine.host.link("ens1f0v0")) == before, 10), machine.host.links()
    assert machine.leftovers() == []


def test_a_VF_that_another_pod_has_is_refused_and_stays_with_it(machine: Machine, vf: tuple[str, Any]) -> None:
    address, _ = vf
    first, second = machine.pod("pod1"), machine.pod("pod2")
    networks.call(machine, "ADD", vf_net(address), first).succeeded()
    reply = networks.call(machine, "ADD", vf_net(address), second)
    assert reply.status == 1 and "pod1" in reply.msg, reply.document
    networks.call(machine, "DEL", vf_net(address), second).succeeded()
    assert first.view.link("net1").texts == ["192.168.111.1/24"]
    networks.call(machine, "DEL", vf_net(address), first).succeeded()
    assert machine.leftovers() == []


def test_a_VF_without_a_visible_PF_is_attached(machine: Machine, vf: tuple[str, Any], tmp_path: Path) -> None:
    """As in a virtual machine that was given the function alone: there is no physfn in sysfs."""
    address, before = vf
    place = (pci.DEVICES / address).resolve()
    upper, work = tmp_path / "upper", tmp_path / "work"
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
    for path in (upper, work):
        path.mkdir()
    subprocess.run(["mknod", upper / "physfn", "c", "0", "0"], check=True)  # an overlay takes that for: deleted
    escaped = str(place).replace(":", "\\:")
    layers = f"lowerdir={escaped},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", place], check=True)
    try:
        assert not (place / "physfn").exists() and pci.netdev(address) == "ens1f0v0"
        pod = machine.pod()
        networks.call(machine, "ADD", vf_net(address), pod).succeeded()
        assert pod.view.link("net1").texts == ["192.168.111.1/24"]
        networks.call(machine, "DEL", vf_net(address), pod).succeeded()
        assert lasting(machine.host.link("ens1f0v0")) == before
    finally:
        subprocess.run(["umount", place], check=True)
        subprocess.run(["umount", tmp_path], check=True)
    assert machine.leftovers() == []
