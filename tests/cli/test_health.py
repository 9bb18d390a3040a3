"""What `railcni doctor` says of ports: their counters, NICs behind their siblings, node GUIDs; PFC, RoCE's priority and ECN."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.cli.doctor import ports
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.doctor.finding import ADVICE, FAULT, OK, UNKNOWN
from cni.cli.doctor.pods import AttachedLink
from cni.cli.doctor.ports import Congestion
from cni.node.inventory import devices as inventory
from cni.node.inventory.counters import ERRORS, ErrorCounter, siblings
from cni.node.inventory.devices import Port
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.shared.kernel import dcb
from cni.shared.kernel.netlink import attribute
from tests import machines
from tests.cli.test_cards import CARDS
from tests.device_plugin.scene import Machine
from tests.sysfs import Tree
from tests.view import View

CARD = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020000"}


class Rails:
    """A node with `number` rails, each of them a card of one kind; `changes` are attributes of the last one."""

    def __init__(self, root: Path, number: int, **changes: Any) -> None:
        self.tree = Tree(root)
        for rail in range(number):
            address = f"0000:{0x30 + rail:02x}:00.0"
            self.tree.pci(address, driver="mlx5_core", **CARD)
            self.tree.netdev(f"ens{rail}f0", pci=address)
            self.tree.verbs(
                f"mlx5_{rail}", pci=address, netdev=f"ens{rail}f0", size=4, **(changes if rail == number - 1 else {})
            )
        self.devices = inventory.read(root=str(root))

    def count(self, rail: int, **counters: int) -> None:
        places = {counter.name: counter.place for counter in ERRORS}
        port = self.tree.root / f"class/infiniband/mlx5_{rail}/ports/1"
        netdev = self.tree.root / f"class/net/ens{rail}f0"
        for name, value in counters.items():
            self.tree.put(
                netdev if places[name].startswith("netdev/") else port, {places[name].removeprefix("netdev/"): value}
            )

    def siblings(self) -> list[tuple[str, str, str]]:
        found = ports.check_siblings(inventory.read(root=str(self.tree)))
        return [(one.level, one.subject, one.found) for one in found]

    def facts(self, watch: float = 0.0) -> NodeFacts:
        return NodeFacts(NodePlaces(sys=str(self.tree), live=False), watch=watch)


SLOW = "25 Gb/sec (1X EDR)"


@pytest.mark.parametrize(("number", "changes", "more", "findings"), [
    (8, {}, {}, None), (8, {"rate": SLOW}, {}, ("mlx5_7 port 1", f"runs at {SLOW}")),
    (8, {"fw_ver": "28.9.2000"}, {}, ("mlx5_7", "firmware 28.9.2000")),
    (3, {"rate": SLOW}, {"class/infiniband/mlx5_2/board_id": "MT_0000000834"}, None),
    (3, {"rate": SLOW}, {"class/infiniband/mlx5_2/ports/1/link_layer": "InfiniBand"}, None),
    (3, {"fw_ver": "16.35.1012"}, {"bus/pci/devices/0000:32:00.0/device": "0x1017"}, None),
    (3, {"rate": SLOW, "state": "1: DOWN"}, {}, None),
])  # fmt: skip
def test_a_rail_that_runs_slower_or_with_older_firmware_than_its_siblings_is_named(
    tmp_path: Path, number: int, changes: dict[str, str], more: dict[str, str], findings: tuple[str, str] | None
) -> None:
    rails = Rails(tmp_path, number, **changes)
    rails.tree.put(tmp_path, more)
    found = rails.siblings()
    assert [(subject, said) for level, subject, said in found if level != OK] == ([findings] if findings else [])
    assert {level for level, _, _ in found} == {ADVICE if findings else OK}


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slower_one_of_two_rails_is_named_whichever_comes_first(tmp_path: Path, slow: int) -> None:
    rails = Rails(tmp_path, 2)
    rails.tree.put(tmp_path, {f"class/infiniband/mlx5_{slow}/ports/1/rate": SLOW})
    assert rails.siblings() == [(ADVICE, f"mlx5_{slow} port 1", f"runs at {SLOW}")]


@pytest.mark.parametrize("counter", ERRORS, ids=lambda counter: counter.name)
def test_many_errors_since_the_start_are_advice_and_few_are_not(tmp_path: Path, counter: ErrorCounter) -> None:
    rails = Rails(tmp_path, 1)
    for count, level in ((counter.many - 1, OK), (counter.many, ADVICE)):
        rails.count(0, **{counter.name: count})
        assert [one.level for one in ports.check_counters(*rails.facts().counts)] == [level]


def test_errors_that_come_while_a_port_is_watched_are_a_fault_with_their_rate(tmp_path: Path) -> None:
    rails = Rails(tmp_path, 2)
    for rail in (0, 1):
        rails.count(rail, link_downed=57, out_of_sequence=1_000_000)
    now, before, seconds = rails.facts(watch=0.01).counts
    assert now == before and seconds == 0.01
    rails.count(1, out_of_sequence=1_000_150)
    found = list(ports.check_counters(rails.facts().counts[0], before, 10))
    assert [(one.level, one.subject, one.found) for one in found] == [
        (OK, "mlx5_0 port 1", "no error in 10 s"),
        (FAULT, "mlx5_1 port 1", "150 packets out of sequence in 10 s (15/s)"),
    ]


def test_a_roce_port_that_flaps_is_told_by_the_carrier_of_its_netdev(tmp_path: Path) -> None:
    rails = Rails(tmp_path, 1)
    said = []
    before: Any = {}
    for count, seconds in ((57, 0), (59, 10)):
        rails.count(0, carrier_down_count=count)
        (found,) = ports.check_counters(now := rails.facts().counts[0], before, seconds)
        said.append((found.level, found.found.partition(" since")[0]))
        before = now
    words = "times that the netdev lost its carrier"
    assert said == [(ADVICE, f"57 {words}"), (FAULT, f"2 {words} in 10 s (0.2/s)")]


def test_a_bond_flaps_with_each_of_its_ports(tmp_path: Path) -> None:
    machine = machines.bond(tmp_path)
    for netdev, count in {"ens2f0np0": 30, "ens2f1np1": 12, "bond0": 1}.items():
        machine.put(tmp_path / "class/net" / netdev, {"carrier_down_count": count})
    facts = NodeFacts(NodePlaces(sys=str(tmp_path), live=False))
    (found,) = ports.check_counters(*facts.counts)
    assert found.found.startswith("42 times that the netdev lost its carrier")


def test_rate_and_firmware_of_active_physical_nics_are_told_with_their_model(tmp_path: Path) -> None:
    rails = Rails(tmp_path, 3, state="1: DOWN")
    rails.tree.pci("0000:30:00.1", physical="0000:30:00.0", **CARD)
    rails.tree.verbs("mlx5_9", pci="0000:30:00.1", size=4)
    rails.tree.put(tmp_path / "class/infiniband/mlx5_1", {"board_id": "MT_0000000838"})
    rates, firmware = siblings(str(rails.tree))
    models = {"mlx5_0": "15b3:1021", "mlx5_1": "15b3:1021 MT_0000000838"}
    assert rates == {(device, "1", model, "Ethernet"): 12.5e9 for device, model in models.items()}
    assert {(device, model) for device, model, _ in firmware} == {*models.items()}


@pytest.mark.parametrize(("layer", "given"), [("Ethernet", "vf N mac MAC,"), ("InfiniBand", "vf N node_guid GUID")])
def test_a_nic_without_a_node_guid_is_a_fault_and_software_is_not(tmp_path: Path, layer: str, given: str) -> None:
    rails = Rails(tmp_path, 2, node_guid="0000:0000:0000:0000", link_layer=layer)
    rails.tree.netdev("eth0")
    rails.tree.verbs("rxe0", netdev="eth0", node_guid="0000:0000:0000:0000")
    devices = inventory.read(root=str(tmp_path))
    (found,) = ports.check_guids(devices, str(tmp_path))
    assert (found.level, found.subject) == (FAULT, "mlx5_1") and given in found.remedy


EIGHT = tuple(range(8))
ROCE = {"default_roce_tos": 106}  # DSCP 26
GOOD: dict[str, Any] = {"pfc": (3,), "trust": "dscp", "ecn": (3,), "classes": ROCE}


@pytest.mark.parametrize(("changes", "words"), [
    ({}, []),
    ({"pfc": (), "ecn": ()}, ["RoCE loses packets under load"]),
    ({"pfc": ()}, []),
    ({"trust": "pcp"}, ["packets are marked by DSCP, default_roce_tos 106, and get their priority by VLAN tags"]),
    ({"trust": "pcp", "classes": {}}, ["packets are marked by DSCP and get their priority by VLAN tags"]),
    ({"trust": "pcp", "classes": {}, "has_vlan": True}, []), ({"trust": "pcp", "pfc": (0, 3)}, []),
    ({"pfc": EIGHT}, ["a pause of RoCE stops all other traffic too"]),
    ({"ecn": ()}, ["without ECN on lossless priorities only pauses slow a sender down"]),
    ({"ecn": (0, 5)}, ["without ECN on lossless priorities only pauses slow a sender down"]),
    ({"ecn": (3, 5)}, []),
    ({"classes": {"traffic_class": 184}}, ["traffic_class 184 is DSCP 46, which gets the priority 5, and lossless is 3"]),
    ({"classes": {"traffic_class": 184}, "dscp": {46: 3}}, []),
    ({"dscp": {26: 0}}, ["default_roce_tos 106 is DSCP 26, which gets the priority 0, and lossless is 3"]),
    ({"trust": "pcp", "ecn": ()}, ["packets are marked by DSCP", "without ECN on"]),
    ({"pfc": EIGHT, "ecn": ()}, ["a pause of RoCE", "without ECN on"]),
])  # fmt: skip
def test_settings_that_do_not_go_together_are_advice_with_a_remedy(changes: dict[str, Any], words: list[str]) -> None:
    found = list(ports.check_congestion({"ens2f0": Congestion(**(GOOD | changes))}))
    assert [one.level for one in found] == [ADVICE] * len(words) or [OK]
    for one, said in zip(found, words, strict=False):
        assert said in one.found and one.healthy and one.remedy


@pytest.mark.parametrize(("changes", "driver", "tool"), [
    ({"ecn": None}, "mlx5_core", "mlnx_qos -i ens2f0, and mlxconfig -d 0000:3b:00.0 query"),
    ({"pfc": None, "ecn": None, "trust": ""}, "bnxt_en", "niccli"),
    ({"trust": ""}, "ionic", "nicctl"),
    ({"pfc": None, "ecn": None, "trust": ""}, "ice", "dcb pfc show dev ens2f0"),
])  # fmt: skip
def test_untold_settings_are_unknown_with_the_vendors_command(changes: dict[str, Any], driver: str, tool: str) -> None:
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


@pytest.mark.parametrize(("card", "ports"), [
    ("ConnectX with a virtual function without a GUID", 1), ("ConnectX with a subfunction", 1),
    ("ConnectX as a bond with a virtual function of its second port", 2),
])  # fmt: skip
def test_the_settings_of_a_virtual_or_subfunction_are_those_of_its_card(tmp_path: Path, card: str, ports: int) -> None:
    machine = Machine(tmp_path)
    CARDS[card].make(machine)
    facts = NodeFacts(NodePlaces(sys=str(machine.tree), live=False))
    assert len(facts.parameters) == 2
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
