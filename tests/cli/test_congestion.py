"""What `railcni doctor` says about PFC, the priority of RoCE's packets, and ECN."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.cli.doctor import ports
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.doctor.finding import ADVICE, OK, UNKNOWN
from cni.cli.doctor.pods import AttachedLink
from cni.cli.doctor.ports import Congestion
from cni.node.inventory import devices as inventory
from cni.node.inventory.devices import Port
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.shared.kernel import dcb
from cni.shared.kernel.netlink import attribute
from tests import machines
from tests.cli.test_cards import CARDS
from tests.device_plugin.scene import Machine
from tests.view import View

EIGHT = tuple(range(8))
ROCE = {"default_roce_tos": 106}  # DSCP 26
GOOD: dict[str, Any] = {"pfc": (3,), "trust": "dscp", "ecn": (3,), "classes": ROCE}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"pfc": (), "ecn": ()}, ["RoCE loses packets under load"]),
        ({"pfc": ()}, []),
        ({"trust": "pcp"}, ["packets are marked by DSCP, default_roce_tos 106, and get their priority by VLAN tags"]),
        ({"trust": "pcp", "classes": {}}, ["packets are marked by DSCP and get their priority by VLAN tags"]),
        ({"trust": "pcp", "classes": {}, "has_vlan": True}, []),
        ({"trust": "pcp", "pfc": (0, 3)}, []),
        ({"pfc": EIGHT}, ["a pause of RoCE stops all other traffic too"]),
        ({"ecn": ()}, ["without ECN on lossless priorities only pauses slow a sender down"]),
        ({"ecn": (0, 5)}, ["without ECN on lossless priorities only pauses slow a sender down"]),
        ({"ecn": (3, 5)}, []),
        (
            {"classes": {"traffic_class": 184}},
            ["traffic_class 184 is DSCP 46, which gets the priority 5, and lossless is 3"],
        ),
        ({"classes": {"traffic_class": 184}, "dscp": {46: 3}}, []),
        ({"dscp": {26: 0}}, ["default_roce_tos 106 is DSCP 26, which gets the priority 0, and lossless is 3"]),
        ({"trust": "pcp", "ecn": ()}, ["packets are marked by DSCP", "without ECN on"]),
        ({"pfc": EIGHT, "ecn": ()}, ["a pause of RoCE", "without ECN on"]),
    ],
)
def test_settings_that_do_not_go_together_are_advice_each_with_its_remedy(
    changes: dict[str, Any], words: list[str]
) -> None:
    found = list(ports.check_congestion({"ens2f0": Congestion(**(GOOD | changes))}))
    assert [one.level for one in found] == [ADVICE] * len(words) or [OK]
    for one, said in zip(found, words, strict=False):
        assert said in one.found and one.healthy and one.remedy


@pytest.mark.parametrize(
    ("changes", "driver", "tool"),
    [
        ({"ecn": None}, "mlx5_core", "mlnx_qos -i ens2f0, and mlxconfig -d 0000:3b:00.0 query"),
        ({"pfc": None, "ecn": None, "trust": ""}, "bnxt_en", "niccli"),
        ({"trust": ""}, "ionic", "nicctl"),
        ({"pfc": None, "ecn": None, "trust": ""}, "ice", "dcb pfc show dev ens2f0"),
    ],
)
def test_what_the_kernel_does_not_tell_is_unknown_with_the_vendors_command(
    changes: dict[str, Any], driver: str, tool: str
) -> None:
    (found,) = ports.check_congestion({"ens2f0": Congestion(**(GOOD | changes), driver=driver, pci="0000:3b:00.0")})
    assert (found.level, tool in found.found) == (UNKNOWN, True), found


def test_the_answer_of_dcb_tells_lossless_priorities_and_the_priority_of_each_dscp() -> None:
    pfc = attribute(2, struct.pack("=BBBxH2x", 8, 0b1001, 0, 0) + bytes(128))
    apps = attribute(3, attribute(1, struct.pack("=BBH", 5, 3, 26)) + attribute(1, struct.pack("=BBH", 1, 3, 0x8915)))
    body = b"\0\x15\0\0" + attribute(1, b"ens2f0\0") + attribute(13, pfc + apps)
    told = dcb.parse(body)
    assert (told.pfc, told.dscp) == ((0, 3), {26: 3})
    told = dcb.parse(b"\0\x15\0\0" + attribute(13, attribute(3, attribute(1, struct.pack("=BBH", 1, 3, 0x8915)))))
    assert (told.pfc, told.dscp) == (None, {})


def of_machine(root: Path) -> Port:
    (port,) = inventory.ports(inventory.read(root=str(root)))
    return port


def test_a_driver_without_dcb_says_nothing(namespaces: Callable[[], View], tmp_path: Path) -> None:
    machines.soft(tmp_path)
    view = namespaces()
    view.add_veth("ens2f0", "wire")
    with view.entered():
        assert ports.read_congestion(of_machine(tmp_path), "", str(tmp_path)) == Congestion()


@pytest.mark.parametrize(
    ("card", "ports"),
    [
        ("ConnectX with a virtual function without a GUID", 1),
        ("ConnectX with a subfunction", 1),
        ("ConnectX as a bond with a virtual function of its second port", 2),
    ],
)
def test_the_settings_of_a_virtual_function_or_subfunction_are_those_of_its_card(
    tmp_path: Path, card: str, ports: int
) -> None:
    machine = Machine(tmp_path)
    CARDS[card].make(machine)
    facts = NodeFacts(NodePlaces(sys=str(machine.tree), live=False))
    assert len(facts.active_netdevs) == 2
    settings = {"ens1f0": Congestion(driver="mlx5_core", pci="0000:30:00.0")}
    if ports == 2:
        settings["ens1f1"] = Congestion(driver="mlx5_core", pci="0000:30:00.1")
    assert facts.congestion == settings


def test_the_settings_of_a_pods_virtual_function_are_those_of_its_card_on_the_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    CARDS["ConnectX with a virtual function without a GUID"].make(machine)
    shutil.rmtree((machine.tree.root / "class/net/ens1f0v0").resolve())  # its netdev is in the pod
    (machine.tree.root / "class/net/ens1f0v0").unlink()
    facts = NodeFacts(NodePlaces(sys=str(machine.tree), live=False), "default/pod-1")
    inside = SandboxInterface("net1", "", 9000, True, (), bus="pci", device="0000:30:00.1")
    pod = NamespaceView("/run/netns/a", "default/pod-1", (inside,))
    ports = tuple(inventory.ports_of(inside, facts.devices, str(machine.tree)))
    facts.__dict__["attached"] = [AttachedLink(pod, inside, ports)]
    assert facts.ports and facts.congestion == {"ens1f0": Congestion(driver="mlx5_core", pci="0000:30:00.0")}


def test_what_sysfs_and_configfs_say_is_read(tmp_path: Path) -> None:
    machine = machines.soft(tmp_path)
    netdev, device = tmp_path / "class/net/ens2f0", tmp_path / "class/infiniband/mlx5_0"
    for end, on in (("roce_np", "11100000"), ("roce_rp", "01110000")):
        for priority, value in enumerate(on):
            machine.put(netdev, {f"ecn/{end}/enable/{priority}": value})
    machine.put(netdev, {"qos/trust": "dscp"})
    machine.put(device, {"tc/1/traffic_class": "Global tclass=184"})
    machine.put(tmp_path / "kernel/config/rdma_cm/mlx5_0/ports/1", {"default_roce_tos": "106"})
    (tmp_path / "0000:3b:00.0").mkdir()
    (netdev.resolve() / "device").symlink_to(tmp_path / "0000:3b:00.0")
    machine.netdev("ens2f0.7", lower=["ens2f0"], uevent="DEVTYPE=vlan")
    assert ports.read_congestion(of_machine(tmp_path), "mlx5_core", str(tmp_path), live=False) == Congestion(
        None, "dscp", (1, 2), {}, {"default_roce_tos": 106, "traffic_class": 184}, True, "mlx5_core", "0000:3b:00.0"
    )
