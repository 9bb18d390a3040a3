"""`railcni vfs` and the device plugin make virtual functions of a real card, and never while one that would go is in use."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cni.resources.config import read
from cni.resources.vfs import cards
from cni.resources.vfs.apply import apply
from tests.device_plugin.scene import Scene
from tests.lab import networks, pci
from tests.lab.machine import Machine, command
from tests.lab.test_device_plugin import offered, started
from tests.node import BIN, until

MACHINES = ("iommu",)


def policies(card: Path, number: int) -> list[dict[str, Any]]:
    """VF 1 for vfio-pci, the others with netdevs."""
    dpdk = {"nicSelector": {"rootDevices": [f"{card.name}#1"]}, "numVfs": number, "deviceType": "vfio-pci"}
    rest = {"nicSelector": {"pfNames": [pci.netdev(card.name)]}, "numVfs": number, "mtu": 1400}
    return [dpdk | {"resourceName": "dpdk"}, rest]


def applied(card: Path, number: int) -> tuple[list[str], list[str]]:
    """What was done, and what was refused."""
    config = read([("config.json", json.dumps({"virtualFunctions": policies(card, number)}))])
    assert config.findings == []
    done: list[str] = []
    refused = apply(config.policies, "", "", lambda step: done.append(step.sentence))
    return done, refused


def functions(card: Path) -> dict[int, tuple[str, str]]:
    """Driver and MTU of each VF."""
    (found,) = [c for c in cards.read().cards if c.function.id == card.name]
    mtus = cards.read().mtus
    return {n: (vf.driver, str(mtus.get(vf.netdevs[0], "")) if vf.netdevs else "") for n, vf in found.vfs.items()}


def test_the_command_makes_vfs_and_does_nothing_the_second_time(
    card: Path, tmp_path: Path, say: Callable[[str], None]
) -> None:
    file = tmp_path / "policies.json"
    spec, rest = policies(card, 2)
    kind = {"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetworkNodePolicy"}
    items = [{**kind, "metadata": {"name": f"policy-{n}"}, "spec": one} for n, one in enumerate((spec, rest))]
    file.write_text(json.dumps({"kind": "List", "items": items}))
    command("ip", "link", "set", pci.netdev(card.name), "down")
    said = command(str(BIN / "railcni"), "vfs", "apply", f"--config={file}")
    say(said)
    assert functions(card) == {0: ("igbvf", "1400"), 1: ("vfio-pci", "")}
    assert "UP" in command("ip", "link", "show", pci.netdev(card.name))
    assert (card / "sriov_drivers_autoprobe").read_text().strip() == "1"
    assert applied(card, 2) == ([], [])
    say(command(str(BIN / "railcni"), "vfs", "show"))


def macs(card: Path) -> list[tuple[str, str]]:
    """Of each VF with a netdev the administrative MAC, and the MAC that its netdev has."""
    (found,) = [c for c in cards.read().cards if c.function.id == card.name]
    return [
        (found.macs[n], Path(f"/sys/class/net/{netdev}/address").read_text().strip())
        for n, vf in found.vfs.items()
        for netdev in vf.netdevs
    ]


def test_vfs_have_the_same_macs_each_time_and_keep_those_that_are_set(card: Path, say: Callable[[str], None]) -> None:
    assert applied(card, 3)[1] == []
    made = macs(card)
    say(str(made))
    assert len(made) == len(dict(made)) == 2
    assert all(given == own and int(given[:2], 16) & 3 == 2 for given, own in made)
    assert applied(card, 0)[1] == applied(card, 3)[1] == []
    assert macs(card) == made
    command("ip", "link", "set", pci.netdev(card.name), "vf", "0", "mac", "02:00:00:00:00:07")
    assert applied(card, 3) == ([], [])


def test_a_vf_in_a_pod_keeps_its_card_as_it_is(machine: Machine, card: Path, say: Callable[[str], None]) -> None:
    assert applied(card, 2)[1] == []
    (vf,) = [(card / "virtfn0").resolve().name]
    config, pod = networks.vf_net(vf), machine.pod("holder")
    networks.call(machine, "ADD", config, pod).succeeded()
    done, (reason,) = applied(card, 3)
    say(reason)
    assert done == [] and f"VF 0 {vf} by" in reason and "holder" in reason
    assert len(functions(card)) == 2
    networks.call(machine, "DEL", config, pod).succeeded()
    assert applied(card, 3)[1] == []
    assert functions(card) == {0: ("igbvf", "1400"), 1: ("vfio-pci", ""), 2: ("igbvf", "1400")}


def test_an_open_group_of_vfio_keeps_its_vf_as_it_is(card: Path, say: Callable[[str], None]) -> None:
    assert applied(card, 2)[1] == []
    group = (card / "virtfn1/iommu_group").resolve().name
    with open(f"/dev/vfio/{group}", "rb+", buffering=0):
        done, (reason,) = applied(card, 3)
    say(reason)
    assert done == [] and "VF 1" in reason and "process" in reason
    assert applied(card, 0)[1] == []
    assert functions(card) == {}


def test_the_device_plugin_makes_the_vfs_at_its_start_and_offers_them(card: Path, say: Callable[[str], None]) -> None:
    with Scene(real=True) as scene:
        started(scene, {"virtualFunctions": policies(card, 2)})
        assert offered(scene, 1, "openshift.io/dpdk"), scene.lines
        assert functions(card)[1][0] == "vfio-pci"
        assert scene.said("numVfs from 0 to 2")
        say("\n".join(line for line in scene.lines if "VF " in line or "numVfs" in line))
        given = scene.kubelet.allocate("pod/dpdk", "openshift.io/dpdk")
        assert given.envs["PCIDEVICE_OPENSHIFT_IO_DPDK"] == (card / "virtfn1").resolve().name
    assert until(lambda: len(functions(card)) == 2, 1)
