"""`railcni doctor`: each check on facts with and without its fault, and all of them on the sysfs of many machines."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from cni import VERSION
from cni.cli.doctor import command, kernel, pcie, pods, ports, report, setup
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.doctor.finding import ADVICE, FAULT, NOTE, OK, SKIPPED, UNKNOWN, Check, Observation
from cni.cli.doctor.kernel import LinkParameters
from cni.cli.doctor.kernel import check_parameters as namespaces_check
from cni.cli.doctor.kernel import read_parameters as namespaces_read
from cni.cli.doctor.pcie import PcieFunction, PcieLink
from cni.node.inventory import sandboxes, topology
from cni.node.inventory.devices import Gid, Port
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidNamespace
from cni.shared.spec.request import Attachment
from ipam import source
from ipam.stores.apiserver.resources import BINDINGS
from tests import http_server, machines
from tests.blackbox.command import run_any
from tests.blackbox.test_kubernetes import KUBECONFIG, PORT
from tests.machines import ETHERNET, MELLANOX, Machine
from tests.node import BIN, ROOT
from tests.sysfs import Tree
from tests.tools import needs_ip
from tests.users import AnotherUser
from tests.view import View

T = TypeVar("T")
MakeNode = Callable[[Callable[[Path], Machine]], NodeFacts]
MODULES = ("ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib")


def port(**changes: object) -> Port:
    gid = Gid(0, "", "RoCE v2", "fe80::1", "ens2f0")
    values: dict[str, object] = {
        "device": "mlx5_0", "number": 1, "netdev": "ens2f0", "state": "ACTIVE", "physical_state": "LinkUp",
        "link_layer": "Ethernet", "is_roce": changes.get("link_layer", "Ethernet") == "Ethernet",
        "rate": "100 Gb/sec (4X EDR)", "carrier": True, "mtu": 9000, "roce_mtu": 4096, "room": 10, "gids": (gid,),
    }  # fmt: skip
    return Port(**(values | changes))  # type: ignore[arg-type]


DOWN = {"state": "DOWN", "physical_state": "Disabled", "carrier": False}


def levels(findings: Iterable[Observation]) -> list[str]:
    return [finding.level for finding in findings]


def only(findings: Iterable[T]) -> T:
    (found,) = findings
    return found


@pytest.fixture
def node(tmp_path: Path) -> MakeNode:
    """The facts of a machine: its modules loaded, NVIDIA's peer memory too, and no container runtime."""

    def make(kind: Callable[[Path], Machine]) -> NodeFacts:
        machine = kind(tmp_path / "sys")
        for name in (*MODULES, "nvidia_peermem"):
            (machine.root / "module" / name).mkdir(parents=True)
        rest = {name: str(tmp_path / name) for name in ("proc", "dev", "state", "cache", "networks")}
        (tmp_path / "plugins").mkdir()
        return NodeFacts(NodePlaces(sys=str(machine.root), plugins=(str(tmp_path / "plugins"),), live=False, **rest))

    return make


# --- machines ---


@pytest.mark.parametrize("kind", [machines.hgx, machines.grace, machines.bond, machines.infiniband, machines.soft])
def test_a_healthy_machine_has_no_fault(node: MakeNode, kind: Callable[[Path], Machine]) -> None:
    assert report.examine(node(kind)).faults == []


@pytest.mark.parametrize(("kind", "devices", "gpu", "distances"), [
    (machines.hgx, 9, "0000:13:00.0", {"mlx5_0": "PIX", "mlx5_1": "NODE", "mlx5_7": "SYS"}),
    (machines.grace, 2, "0009:01:00.0", {"mlx5_0": "NODE", "mlx5_1": "NODE"}),
])  # fmt: skip
def test_the_report_holds_the_distance_of_each_gpu_to_each_nic(
    node: MakeNode, kind: Callable[[Path], Machine], devices: int, gpu: str, distances: dict[str, str]
) -> None:
    document = json.loads(json.dumps(report.examine(node(kind)).document()))
    assert document["healthy"] is True and len(document["devices"]) == devices
    assert distances.items() <= document["distances"][gpu].items()


def test_a_physical_function_whose_pcie_link_sysfs_does_not_tell_is_not_called_a_virtual_one(node: MakeNode) -> None:
    facts = node(machines.hgx)
    Path(facts.places.sys, "class/infiniband/mlx5_3/device/current_link_speed").write_text("Unknown\n")
    told = only([one for one in report.examine(facts).findings if one.check == "pcie" and one.level == UNKNOWN])
    assert told.subject == "mlx5_3 (0000:44:00.0)" and "virtual function" not in told.found
    assert "current_link_speed is Unknown" in told.found


# --- modules and nodes ---


def test_a_module_that_is_built_in_is_known_by_what_it_makes(tmp_path: Path) -> None:
    for name in ("class/infiniband", "class/infiniband_verbs", "class/misc/rdma_cm"):
        (tmp_path / name).mkdir(parents=True)
    assert levels(kernel.check_modules(kernel.read_modules(str(tmp_path)))) == [OK, OK, OK]


@pytest.mark.parametrize("built_in", [False, True])
def test_the_second_port_of_a_bond_needs_no_verbs_device_of_its_own(tmp_path: Path, built_in: bool) -> None:
    machines.bond(tmp_path)
    for name in () if built_in else ("ib_core", "mlx5_ib"):
        (tmp_path / "module" / name).mkdir(parents=True)
    found = [f for f in kernel.check_modules(kernel.read_modules(str(tmp_path))) if ":" in f.subject]
    assert [(f.level, f.found) for f in found] == [
        (OK, "mlx5_core, with a verbs device"),
        (OK, "mlx5_core, in a bond with the verbs device mlx5_bond_0"),
    ]


def test_a_nic_without_its_verbs_driver_or_without_a_driver_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.function("pci0000:3a/0000:3a:00.0/0000:3b:00.0", MELLANOX, ETHERNET, driver="mlx5_core")
    machine.function("pci0000:3a/0000:3a:01.0/0000:3c:00.0", MELLANOX, ETHERNET)
    found = [f for f in kernel.check_modules(kernel.read_modules(str(tmp_path))) if ":" in f.subject]
    assert levels(found) == [FAULT, FAULT]
    assert found[0].remedy == "modprobe mlx5_ib" and "mlx5_core" in found[1].remedy


def test_no_device_in_sight_is_no_fault_where_devices_are_moved_into_pods() -> None:
    known = kernel.Modules(frozenset({"ib_core"}), ())
    assert levels(kernel.check_devices([], known, moved=False)) == [FAULT]
    assert levels(kernel.check_devices([], known, moved=True)) == [NOTE]


def test_a_node_without_rdma_has_one_fault_that_names_all_modules() -> None:
    known = kernel.Modules(frozenset(), ())
    found = [*kernel.check_modules(known), *kernel.check_devices([], known, moved=False)]
    assert only(found).found == "none in /sys/class/infiniband: ib_core, ib_uverbs, rdma_ucm are not loaded"
    assert only(found).remedy.startswith("modprobe -a ib_core ib_uverbs rdma_ucm, and add them")


def test_checks_skipped_for_one_reason_are_told_in_one_row(node: MakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    found = report.examine(node(Machine))
    assert [f.check for f in found.faults] == ["devices"] and any(f.check == "store" for f in found.findings)
    why = "not looked at: first mend the fault of verbs devices"
    for verbose in (False, True):
        command._print(found, verbose=verbose)
        told = capsys.readouterr().out
        assert len(re.findall(f"^skipped +13 checks .*, ports, MTU, .*: {why}$", told, re.M)) == verbose
        assert ", 13 skipped" in told


def test_what_is_the_same_of_eight_nics_is_said_once(node: MakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    facts = node(machines.hgx)
    found = report.examine(facts)
    command._print(found, verbose=False)
    told = capsys.readouterr().out
    assert len(re.findall("^unknown .*rp_filter cannot be read$", told, re.M)) == 1
    assert f"{', '.join(f'ens{n}f0np0' for n in range(8))}: PFC unknown" in told
    assert told.count("mlxconfig -d 0000:14:00.0 query") == told.count("mlxconfig") == 1
    assert f"{sum(f.level == UNKNOWN for f in found.findings)} unknown" in told


# --- ports ---


def test_a_port_that_is_down_is_a_fault_where_it_is_used_or_the_only_one() -> None:
    spare = port(device="mlx5_1", netdev="ens3f0", **DOWN)
    assert levels(ports.check_state([port(), spare], {}, {})) == [OK, NOTE]
    assert levels(ports.check_state([port(), spare], {"ens3f0": "network a"}, {})) == [OK, FAULT]
    assert levels(ports.check_state([spare], {}, {})) == [FAULT]


def test_the_remedy_of_a_port_that_is_down_depends_on_what_keeps_it_down() -> None:
    def remedy(up: dict[str, bool], **changes: object) -> str:
        return only(ports.check_state([port(**(DOWN | changes))], {}, up)).remedy

    assert remedy({"ens2f0": False}).startswith("ip link set ens2f0 up")
    assert remedy({"ens2f0": True}).startswith("no carrier on ens2f0")
    assert "subnet manager" in remedy({}, link_layer="InfiniBand", state="INIT")


@pytest.mark.parametrize(("changes", "uplinks", "judged"), [
    ({"mtu": 9000, "roce_mtu": 4096}, (), [(OK, "RoCE MTU 4096")]),
    ({"mtu": 4192, "roce_mtu": 4096}, (), [(OK, "RoCE MTU 4096")]),
    ({"mtu": 4191, "roce_mtu": 2048}, (), [(FAULT, "RoCE MTU 2048")]),
    ({"mtu": 1500, "roce_mtu": 1024}, {"ens2f0"}, [(ADVICE, "RoCE MTU 1024")]),
    ({"link_layer": "InfiniBand", "roce_mtu": None}, (), []), ({"mtu": 1500, **DOWN}, (), []),
])  # fmt: skip
def test_an_mtu_below_4192_is_a_fault_unless_the_link_has_the_default_route(
    changes: dict[str, object], uplinks: Collection[str], judged: list[tuple[str, str]]
) -> None:
    found = list(ports.check_mtu([port(**changes)], uplinks))
    assert [(f.level, words in f.found) for f, (_, words) in zip(found, judged, strict=True)] == [
        (level, True) for level, _ in judged
    ]
    assert not uplinks or ("another NIC" in found[0].remedy and "ip link set" not in found[0].remedy)


@pytest.mark.parametrize(("used", "level"), [(7, OK), (8, FAULT), (10, FAULT)])
def test_a_gid_table_is_nearly_full_from_four_fifths_on(used: int, level: str) -> None:
    gids = tuple(Gid(i, "", "RoCE v2", "fe80::1" if i else "10.0.0.1", "net1") for i in range(used))
    found = only(ports.check_gids([port(gids=gids)]))
    words = (f"{used} of 10", f"{used - 1} of them are link-local") if level == FAULT else ("", "")
    assert (found.level, words[0] in found.found, words[1] in found.remedy) == (level, True, True)
    first = Gid(0, "", "IB/RoCE v1", "fe80::1", "ens2f0")
    assert only(ports.check_gids([port(gids=(first,))])).found == "1 GIDs, none of RoCE v2"


# --- namespaces ---


def test_exclusive_mode_is_a_fault_unless_devices_are_moved_and_nobody_shares() -> None:
    def level(mode: str, moves: bool = False, sharing: tuple[str, ...] = ()) -> str:
        return only(kernel.check_mode(mode, moves, sharing)).level

    assert [level("shared"), level("exclusive"), level("exclusive", True), level("")] == [OK, FAULT, NOTE, UNKNOWN]
    assert level("exclusive", True, ("net1 of default/pod-1",)) == FAULT


@pytest.mark.parametrize(("every", "own", "counts"), [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 2, 2)])
def test_of_the_reverse_path_filters_the_larger_one_counts(tmp_path: Path, every: int, own: int, counts: int) -> None:
    for where, value in (("all", every), ("ens2f0", own)):
        folder = tmp_path / f"sys/net/ipv4/conf/{where}"
        folder.mkdir(parents=True)
        for name in ("rp_filter", "arp_ignore", "arp_announce"):
            (folder / name).write_text(f"{value}\n" if name == "rp_filter" else "0\n")
    assert kernel.read_parameters("ens2f0", proc=str(tmp_path)).rp_filter == counts


@needs_ip
def test_a_strict_reverse_path_filter_is_judged_by_where_answers_go(
    namespaces: Callable[[], View],
) -> None:
    view = namespaces()

    def judged(name: str = "ens2f0") -> tuple[str, str]:
        with view.entered():
            read = namespaces_read(name, [text for text in view.link(name).texts if ":" not in text])
        finding = only(namespaces_check({name: read}, {}))
        return finding.level, finding.found

    for name in ("eth0", "ens2f0", "ens3f0"):
        view.add_veth(name, f"{name}-peer")
        for end in (name, f"{name}-peer"):
            view.set(end, state="up")
    view.set_sysctl("net/ipv4/conf/ens2f0/rp_filter", 1)
    assert judged() == (OK, "rp_filter 1, strict: the link has no IPv4 address")
    view.add_address("ens2f0", "10.1.0.1/24")
    assert judged() == (ADVICE, "rp_filter is 1, strict, and other answers leave by no link: what comes in here but from 10.1.0.0/24 is dropped")  # fmt: skip
    view.add_address("eth0", "10.9.0.2/24")
    view.add_route("eth0", "0.0.0.0/0", gateway="10.9.0.1")
    assert judged()[0] == ADVICE and "other answers leave by eth0" in judged()[1]
    view.add_address("ens3f0", "10.1.0.2/24")
    assert judged()[0] == ADVICE  # of two links in a subnet the first has the route
    view.set_sysctl("net/ipv4/conf/ens3f0/rp_filter", 1)
    assert judged("ens3f0") == (FAULT, "rp_filter is 1, strict, and answers to 10.1.0.0/24 leave by ens2f0: what comes in here is dropped")  # fmt: skip
    view.set_sysctl("net/ipv4/conf/ens3f0/rp_filter", 2)
    assert judged("ens3f0") == (OK, "rp_filter 2")
    with view.entered():
        for command in ("route add default dev ens2f0 table 100", "rule add from 10.1.0.1 lookup 100"):
            subprocess.run(["ip", *command.split()], check=True)
    assert judged() == (OK, "rp_filter 1, strict: answers leave by the link itself")


def test_links_of_one_subnet_that_answer_arp_for_one_another_are_named() -> None:
    loose, tight = LinkParameters(0, 0, 0), LinkParameters(0, 1, 2)
    subnets = {"10.1.0.0/24": ["ens2f0", "ens3f0"]}
    assert FAULT in levels(kernel.check_parameters({"ens2f0": loose, "ens3f0": tight}, subnets))
    assert FAULT not in levels(kernel.check_parameters({"ens2f0": tight, "ens3f0": tight}, subnets))
    apart = {"10.1.0.0/24": ["ens2f0"], "10.2.0.0/24": ["ens3f0"]}
    assert FAULT not in levels(kernel.check_parameters({"ens2f0": loose, "ens3f0": loose}, apart))


def test_the_links_that_the_node_needs_are_read_of_both_families_and_with_those_below(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    for name, *lower in (["eth0"], ["eth1"], ["ens2f0"], ["ens3f0"], ["bond0", "ens2f0"], ["eth2", "bond0"]):
        tree.netdev(name, lower=lower)
    (tmp_path / "net").mkdir()
    (tmp_path / "net/route").write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "ens3f0\t00000000\t010011AC\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth1\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    zero = "0" * 32
    (tmp_path / "net/ipv6_route").write_text(
        f"{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth2\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
    )
    found = topology.uplinks(str(tmp_path), str(tree))
    assert found == {
        "eth0": '"eth0" carries the default route (0.0.0.0/0 via 172.17.0.1, table main)',
        "eth2": '"eth2" carries the default route (::/0 via fe80::1, metric 1024, table main)',
        "bond0": '"eth2", on top of "bond0", carries the default route (::/0 via fe80::1, metric 1024, table main)',
        "ens2f0": '"eth2", on top of "ens2f0", carries the default route (::/0 via fe80::1, metric 1024, table main)',
    }


# --- PCI ---


def config(device_control: int = 0x2810, acs: int | None = None) -> bytes:
    """A configuration space: a power capability, then PCI Express; AER, then ACS."""
    space = bytearray(4096)
    space[0x34] = 0x40
    space[0x40:0x42] = (0x01, 0x60)
    space[0x60:0x62] = (0x10, 0x00)
    space[0x68:0x6A] = device_control.to_bytes(2, "little")
    space[0x100:0x104] = (0x0001 | 1 << 16 | (0x150 if acs is not None else 0) << 20).to_bytes(4, "little")
    if acs is not None:
        space[0x150:0x154] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x156:0x158] = acs.to_bytes(2, "little")
    return bytes(space)


def test_relaxed_ordering_and_acs_are_read_from_the_configuration_space() -> None:
    assert pcie.relaxed_ordering(config(0x2810)) is True
    assert pcie.relaxed_ordering(config(0x2800)) is False
    assert pcie.redirects_peers(config(acs=0x1D)) is True
    assert pcie.redirects_peers(config(acs=0x01)) is False
    assert pcie.redirects_peers(config()) is False
    first = config(acs=0x1D)[:64]  # which is what others than root get
    assert (pcie.relaxed_ordering(first), pcie.redirects_peers(first)) == (None, None)


@pytest.mark.parametrize(("space", "why"), [
    (None, "the file `config` in sysfs is missing or cannot be read"),
    (config()[:64], "only root can read it"),
    (config()[:0x60], "the configuration space has no such register"),
])  # fmt: skip
def test_a_register_is_for_root_alone_if_the_file_has_64_bytes(space: bytes | None, why: str, tmp_path: Path) -> None:
    machine = machines.hgx(tmp_path)
    for address in ("0000:12:01.0", "0000:14:00.0"):
        place = (machine.root / "bus/pci/devices" / address).resolve() / "config"
        place.unlink(missing_ok=True)
        if space is not None:
            place.write_bytes(space)
    facts = NodeFacts(NodePlaces(sys=str(tmp_path), live=False))
    bridges = {name: told for name, told in pcie.read_bridges(facts.topology, str(tmp_path)).items() if "12:01" in name}
    found = [
        one for one in pcie.check_settings(facts.functions, bridges) if "0000:14" in one.subject or "A" in one.subject
    ]
    assert [one.found for one in found] == [f"relaxed ordering: {why}", f"of 1 bridge: {why}"]


def test_a_list_of_capabilities_that_is_a_ring_ends() -> None:
    space = bytearray(config())
    space[0x61] = 0x40
    space[0x60] = 0x05
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert pcie.relaxed_ordering(bytes(space)) is None
    assert pcie.redirects_peers(bytes(space)) is False


def function(now: PcieLink, best: PcieLink, slot: PcieLink, **more: object) -> PcieFunction:
    return PcieFunction("mlx5_0", "0000:3b:00.0", now, best, slot, **more)  # type: ignore[arg-type]


def test_a_pcie_link_below_what_both_ends_can_is_a_fault_and_a_slow_slot_advice() -> None:
    gen5, gen4, gen3 = PcieLink(32, 16), PcieLink(16, 16), PcieLink(8, 16)
    assert levels(pcie.check_links([function(gen5, gen5, gen5)])) == [OK]
    assert levels(pcie.check_links([function(gen3, gen5, gen4)])) == [FAULT]
    assert levels(pcie.check_links([function(gen4, gen5, gen4)])) == [ADVICE]
    assert levels(pcie.check_links([function(PcieLink(32, 8), gen5, gen5)])) == [FAULT]
    assert levels(pcie.check_links([function(PcieLink(), PcieLink(), PcieLink())])) == [UNKNOWN]


def test_acs_between_gpu_and_nic_an_iommu_that_translates_and_ordered_writes_are_advice(tmp_path: Path) -> None:
    machine = machines.hgx(tmp_path)
    bridge = (machine.root / "bus/pci/devices/0000:12:01.0").resolve()
    (bridge / "config").write_bytes(config(acs=0x1D))
    nic = (machine.root / "class/infiniband/mlx5_0/device").resolve()
    (nic / "config").write_bytes(config(0x2800))
    (nic / "iommu_group").mkdir()
    (nic / "iommu_group/type").write_text("DMA-FQ\n")
    facts = NodeFacts(NodePlaces(sys=str(tmp_path), live=False))
    found = list(pcie.check_settings(facts.functions, pcie.read_bridges(facts.topology, facts.places.sys)))
    advice = [(f.subject, f.found) for f in found if f.level == ADVICE]
    assert advice[0] == ("mlx5_0 (0000:14:00.0)", "relaxed ordering is off")
    assert "translates its DMA (DMA-FQ)" in advice[1][1]
    assert advice[2][0] == "ACS" and "0000:12:01.0" in advice[2][1]


# --- GPUs ---


def test_the_memory_of_gpus_is_reached_by_either_module_or_by_the_open_ones(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.gpu("pci0000:15/0000:15:01.0/0000:16:00.0")
    seen = topology.read([], str(tmp_path))
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15"
    opened = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15"

    def level(module: str, driver: str, release: str) -> str:
        root = tmp_path / f"{module} {driver} {release}"
        (root / "module" / module).mkdir(parents=True)
        for name, said in (("driver/nvidia/version", driver), ("sys/kernel/osrelease", release)):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(said and f"{said}\nmore\n")
        return only(pcie.check_memory(seen, str(root), str(root))).level

    assert level("nvidia_peermem", closed, "6.1.0") == level("nv_peer_mem", closed, "6.1.0") == OK
    assert level("", opened, "6.1.0-37-amd64") == OK
    assert level("", opened, "5.4.0") == FAULT
    assert level("", closed, "6.1.0") == FAULT
    assert level("", "", "6.1.0") == UNKNOWN
    assert list(pcie.check_memory(topology.Topology((), ()), str(tmp_path))) == []


# --- pods ---

POD = NamespaceView("/run/netns/a", "default/pod-1", ())
NET1 = SandboxInterface("net1", "macvlan", 9000, True, ("192.168.111.1", "fe80::2"), "ens2f0")
WITH_GID = port(gids=(Gid(3, "", "RoCE v2", "192.168.111.1", "net1"),))


def test_a_recorded_address_that_is_gone_is_a_fault_and_a_link_with_a_smaller_mtu_than_its_ports_advice() -> None:
    lost = SandboxInterface("net1", "macvlan", 9000, True, ("fe80::2",), "ens2f0")
    found = only(pods.check([pods.AttachedLink(POD, lost, (WITH_GID,), ("192.168.111.1",))]))
    assert found.level == FAULT and "192.168.111.1 is recorded" in found.found
    small = SandboxInterface("net1", "macvlan", 1500, True, ("192.168.111.1",), "ens2f0")
    assert levels(pods.check([pods.AttachedLink(POD, small, (WITH_GID,), ())])) == [OK, ADVICE]


def test_links_are_over_a_port_by_the_link_below_or_by_their_pci_function(tmp_path: Path) -> None:
    machine = Tree(tmp_path)
    machine.netdev("ens2f0", pci="0000:5e:00.0")
    machine.verbs("mlx5_0", pci="0000:5e:00.0", netdev="ens2f0")
    machine.verbs("mlx5_1", pci="0000:3b:00.0", netdev="net2")
    moved = SandboxInterface("net2", "", 9000, True, ("10.0.0.2",), "", "pci", "0000:3b:00.0")
    plain = SandboxInterface("eth0", "veth", 1500, True, ("10.244.0.2",))
    facts = NodeFacts(NodePlaces(sys=str(machine), live=False))
    facts._seen = ([NamespaceView("/run/netns/a", "default/pod-1", (NET1, moved, plain))], [])
    facts._recorded = {("/run/netns/a", "net1"): ["a"]}
    assert [(a.interface.name, [p.device for p in a.ports], a.recorded) for a in facts.attached] == [
        ("net1", ["mlx5_0"], ("a",)),
        ("net2", ["mlx5_1"], ()),
    ]


def test_a_pod_without_rdma_without_device_nodes_or_with_little_to_lock_is_told_so() -> None:
    bare = NamespaceView("/run/netns/a", "default/pod-1", (SandboxInterface("eth0", "veth", 1500, True, ()),))
    found = list(
        pods.check_pod(bare, [], [pods.PodProcess(7, (), 64 << 10), pods.PodProcess(8, ("rdma_cm", "uverbs0"), -1)])
    )
    assert levels(found) == [FAULT, FAULT, OK, ADVICE, OK]
    assert "eth0" in found[0].found and "no /dev/infiniband" in found[1].found and "64 KiB" in found[3].found


def test_a_pod_without_the_node_of_its_nic_is_told_which_resource_brings_it(tmp_path: Path) -> None:
    machine = Tree(tmp_path / "sys")
    kind = {"vendor": "0x15b3", "device": "0x101d", "class": "0x020000"}
    for number, address in enumerate(("0000:5e:00.0", "0000:3b:00.0")):
        machine.pci(address, **kind)
        machine.netdev(f"ens{number}f0", pci=address)
        machine.verbs(
            f"mlx5_{number}", pci=address, netdev=f"ens{number}f0", nodes={f"uverbs{number}": "infiniband_verbs"}
        )
    registered = {
        "rdma/hca_a": ["0000:5e:00.0-0", "0000:5e:00.0-1"], "rdma/hca_b": ["0000:3b:00.0-0"],
        "intel.com/pf": ["0000:5e:00.0"], "rdma/theirs": ["0", "1"],
    }  # fmt: skip
    folder = tmp_path / "kubelet/device-plugins"
    folder.mkdir(parents=True)
    (folder / "kubelet_internal_checkpoint").write_text(json.dumps({"Data": {"RegisteredDevices": registered}}))
    places = NodePlaces(sys=str(machine), live=False, kubelet=str(tmp_path / "kubelet"))
    box = NamespaceView("/run/netns/a", "default/pod-1", (NET1,))
    facts = NodeFacts(places)
    facts.attached = [pods.AttachedLink(box, NET1, (WITH_GID,))]
    assert facts.pod_needs == [pods.PodNeed("net1", "mlx5_0", "uverbs0", ("intel.com/pf", "rdma/hca_a"))]
    nodes = ((), ("rdma_cm", "uverbs1"), ("rdma_cm", "uverbs0"))
    processes = [pods.PodProcess(7 + number, seen, -1) for number, seen in enumerate(nodes)]
    offered, none, other, right, *_ = pods.check_pod(box, facts.attached, processes, facts.pod_needs)
    assert (offered.level, offered.found) == (OK, "mlx5_0 is offered by intel.com/pf, rdma/hca_a")
    remedy = "ask for intel.com/pf or rdma/hca_a in the container: limits and requests of 1"
    assert (none.level, none.remedy) == (FAULT, remedy)
    assert (other.level, other.healthy, other.remedy) == (FAULT, "/dev/infiniband/uverbs0", remedy)
    assert other.found == "net1 is over mlx5_0, and /dev/infiniband has rdma_cm, uverbs1 alone"
    assert right.level == OK
    (folder / "kubelet_internal_checkpoint").write_text("{")
    assert NodeFacts(places)._registered == {}


# --- runtime, CNI ---


def test_a_runtime_whose_containers_may_lock_little_is_advice(tmp_path: Path) -> None:
    for pid, name, limit in ((1, "systemd", "65536"), (17, "containerd", "8388608"), (9, "crio", "unlimited")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(name + "\n")
        limits = f"Limit                     Soft Limit           Hard Limit           Units     \n{'Max locked memory':26}{limit:21}{limit:21}bytes     \n"
        (tmp_path / str(pid) / "limits").write_text(limits)
    found = list(setup.check_runtimes(str(tmp_path)))
    assert [(f.level, f.subject) for f in found] == [
        (OK, "memlock of crio (9)"),
        (ADVICE, "memlock of containerd (17)"),
    ]
    assert found[1].found.startswith("8 MiB")


def plugin(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("user", "effective", "uid_map", "level", "remedy"), [
    (0, 1 << 14, "0 0 4294967295", OK, ""),
    (1000, 1 << 14, "0 0 4294967295", OK, ""),  # by a file's capabilities
    (0, 1 << 13, "0 0 4294967295", ADVICE, "or the capability IPC_LOCK in the container"),
    (1000, 0, "0 0 4294967295", ADVICE, "does nothing for a process that is not root, as this one (user 1000)"),
    (0, 1 << 14, "0 100000 65536", ADVICE, "LimitMEMLOCK=infinity"),  # of its own user namespace alone
])  # fmt: skip
def test_a_process_may_lock_memory_if_the_capability_is_effective_where_the_kernel_looks(
    tmp_path: Path, user: int, effective: int, uid_map: str, level: str, remedy: str
) -> None:
    status = f"Name:\tsleep\nUid:\t{user}\t{user}\t{user}\t{user}\nCapEff:\t{effective:016x}\n"
    (tmp_path / "status").write_text(status)
    (tmp_path / "uid_map").write_text(f"{uid_map}\n")
    process = str(tmp_path)
    found = setup.check_process("p", 8 << 20, setup.may_lock(process), setup.user_of(process))
    assert (found.level, remedy in found.remedy) == (level, True), found


PLUGINS: dict[str, tuple[str, str, str]] = {  # what it says when called bare and with --version; its version
    "macvlan": ("CNI macvlan plugin version unknown", "", "unknown"),
    "ipvlan": ("CNI ipvlan plugin v1.4.0", "", "v1.4.0"),
    "whereabouts": ("whereabouts v0.9.4 linux/amd64", "", "v0.9.4"),
    "rdma": ("", "rdma-cni cni version:v1.2.0, commit:3ab1, date:2024-05-01", "v1.2.0"),
    "multus-shim": ("meta-plugin that delegates", "multus-shim: version:v4.2.2(clean,released), commit:9a", "v4.2.2"),
    "ipoib": ("", "", ""),
}  # fmt: skip


def test_plugins_say_whose_they_are_and_their_version_in_whatever_words(tmp_path: Path) -> None:
    for name, (about, asked, _) in PLUGINS.items():
        versions = 'exec echo \'{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}\''
        said = f"""[ "$1" = --version ] && echo '{asked}' || echo '{about}' >&2"""
        plugin(tmp_path / name, f'[ -z "$CNI_COMMAND" ] || {versions}\n{said}')
    plugin(tmp_path / "host-device", "exit 3")
    plugin(tmp_path / "sriov", "")
    (tmp_path / "sriov").write_bytes(b"\x7fELFnothing")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/macvlan").symlink_to(BIN / "macvlan")
    found = {os.path.basename(f.subject): f for f in setup.check_plugins([str(tmp_path)])}
    assert [found.pop(name).level for name in ("host-device", "sriov")] == [FAULT, FAULT]
    assert {name: (f.level, f.found) for name, f in found.items()} == {
        name: (OK, f"another's,{f' version {version},' if version else ''} CNI up to 1.0.0")
        for name, (_, _, version) in PLUGINS.items()
    }
    assert only(setup.check_plugins([str(tmp_path / "ours")])).found.startswith(f"railcni, version {VERSION}, CNI")


def test_a_plugin_that_answers_too_late_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin(tmp_path / "macvlan", "exec sleep 60")
    monkeypatch.setattr(setup, "_PLUGIN_SECONDS", 0.2)
    assert levels(setup.check_plugins([str(tmp_path)])) == [UNKNOWN]


def test_networks_with_faults_or_without_their_plugins_are_named(tmp_path: Path) -> None:
    (tmp_path / "10-a.conflist").write_text(
        '{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}}]}'
    )
    (tmp_path / "20-b.conf").write_text('{"cniVersion": "1.0.0", "name": "b" "type": "macvlan"}')
    (tmp_path / "bridge").write_text("")
    files = setup.network_files(str(tmp_path))
    faults = [f for f in setup.check_networks(files, [str(tmp_path)], str(tmp_path)) if f.level == FAULT]
    assert any("plugin host-local of a" in f.found for f in faults)
    assert any(f.subject.startswith(f"{tmp_path}/20-b.conf:1:") for f in faults)


def test_a_slow_store_of_the_flat_file_is_advice_and_an_absent_one_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = tmp_path / "whereabouts.conf"
    flat.write_text(json.dumps({"datastore": "file", "dataDir": str(tmp_path)}))
    found = only(setup.check_store(str(flat)))
    assert (found.level, found.subject) == (OK, f"store: {tmp_path}")
    monkeypatch.setattr(setup, "_SLOW_SECONDS", 0)
    assert only(setup.check_store(str(flat))).level == ADVICE
    flat.write_text(json.dumps({"datastore": "etcd", "etcd_host": "127.0.0.1:1"}))
    found = only(setup.check_store(str(flat)))
    assert found.level == FAULT and "etcd at http://127.0.0.1:1" in found.subject


def test_a_flat_file_that_names_no_store_is_told_with_its_misspelt_keys(tmp_path: Path) -> None:
    flat = tmp_path / "whereabouts.conf"
    flat.write_text(json.dumps({"etcd_hos": "http://127.0.0.1:2379", "dataDir": str(tmp_path)}))
    misspelt, unnamed = setup.check_store(str(flat))
    assert misspelt.level == ADVICE
    assert 'etcd_hos, and it is ignored: write "etcd_host"' in misspelt.found
    assert unnamed.level == NOTE and f"{flat} names none: the agent writes it, or copy one of" in unnamed.found


@pytest.mark.parametrize("text", ["{", "[]", '{"datastore": "fil"}', '{"datastore": "etcd"}'])
def test_the_remedy_of_a_wrong_flat_file_is_to_correct_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    flat = tmp_path / "whereabouts.conf"
    flat.write_text(text)
    monkeypatch.setattr(source, "PATHS", (str(tmp_path / "none"), str(flat)))
    for config in (str(flat), ""):
        found = only(setup.check_store(config))
        remedy = f"correct {flat}: an ADD whose network names no store fails meanwhile"
        assert (found.level, found.remedy) == (FAULT, remedy)


def test_a_state_directory_in_which_no_add_can_write_is_a_fault(tmp_path: Path) -> None:
    assert [*setup.check_state(str(tmp_path / "new"))] == []
    (tmp_path / "file").write_text("")
    found, *_ = setup.check_state(str(tmp_path / "file"))
    assert found.level == FAULT and "/file: it is no directory; " in found.found


class Bindings(http_server.Handler):
    """An API server with these bindings of admission policies; `status` is the reply to all, if it is not 0."""

    names: Collection[str] = ()
    status = 0

    def answer(self) -> None:
        name = self.path.rpartition("/")[2]
        assert self.path == f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{name}"
        status = self.status or (200 if name in self.names else 404)
        reply = {"metadata": {"name": name}, "reason": "NotFound", "message": "no", "details": {"name": name}}
        body = b"404 page not found\n" if self.status == 404 else json.dumps(reply).encode()
        self.reply(status, body)


NODES, DRA = setup.POLICIES["admission.yaml"], setup.POLICIES["dra/rbac.yaml"]


@pytest.mark.parametrize(
    ("names", "has_dra", "status", "said"),
    [
        (NODES, False, 0, [(OK, f"{len(NODES)} bindings")]),
        (NODES[2:], False, 0, [(ADVICE, "missing: railcni-addressleases, railcni-abandoned")]),
        (NODES + DRA, True, 0, [(OK, f"{len(NODES + DRA)} bindings")]),
        (NODES, True, 0, [(ADVICE, "missing: railcni-dra, railcni-dra-claims")]),
        ((), True, 404, [(ADVICE, "missing: the server knows no such policies")]),
        ((), True, 403, []),
    ],
    ids=["all", "some", "all with the DRA driver's", "without the DRA driver's", "an old server", "no right"],
)
def test_missing_admission_policies_are_advice_where_they_may_be_read(
    tmp_path: Path, names: Collection[str], has_dra: bool, status: int, said: list[tuple[str, str]]
) -> None:
    handler = type("Handler", (Bindings,), {"names": names, "status": status})
    with http_server.Server(handler) as server:
        (tmp_path / "kubeconfig").write_text(KUBECONFIG.replace(f":{PORT}", f":{server.server_port}"))
        flat = {"datastore": "addresslease", "kubernetes": {"kubeconfig": str(tmp_path / "kubeconfig")}}
        (tmp_path / "whereabouts.conf").write_text(json.dumps(flat))
        found = list(setup.check_admission(has_dra, str(tmp_path / "whereabouts.conf")))
    assert [(f.level, f.found) for f in found] == said


def test_the_policies_that_doctor_asks_for_are_those_that_are_installed() -> None:
    for file, names in setup.POLICIES.items():
        documents = list(yaml.safe_load_all((ROOT / "conf/kubernetes" / file).read_text()))
        kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        for kind in kinds:
            assert [d["metadata"]["name"] for d in documents if d["kind"] == kind] == list(names)
    rights = yaml.safe_load_all((ROOT / "conf/kubernetes/rbac.yaml").read_text())
    (rule,) = (r for d in rights for r in d.get("rules", ()) if r["resources"] == [BINDINGS])
    assert rule["resourceNames"] == [name for names in setup.POLICIES.values() for name in names]


def test_where_no_flat_file_is_installed_no_store_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PATHS", ())
    assert only(setup.check_store()).level == NOTE


# --- the report ---


def test_a_check_is_skipped_behind_a_fault_of_what_it_needs_and_of_what_that_needs() -> None:
    def one(level: str) -> Callable[[object], list[Observation]]:
        return lambda _: [Observation(level, "it", "")]

    checks = [
        Check("a", "A", one(FAULT)), Check("b", "B", one(OK), ("a",)), Check("c", "C", one(OK), ("b",)),
        Check("d", "D", one(OK)),
    ]  # fmt: skip
    assert [(f.check, f.level) for f in report.run(checks, NodeFacts())] == [
        ("a", FAULT), ("b", SKIPPED), ("c", SKIPPED), ("d", OK),
    ]  # fmt: skip


def test_what_cannot_be_read_is_unknown_and_stops_no_other_check() -> None:
    def broken(_: object) -> list[Observation]:
        raise PermissionError(13, "Permission denied")

    found = report.run(
        [Check("a", "A", broken), Check("b", "B", lambda _: [Observation(OK, "it", "")], ("a",))], NodeFacts()
    )
    assert levels(found) == [UNKNOWN, OK]


@pytest.fixture
def of_root(another_user: AnotherUser) -> Iterator[Path]:
    """A folder with a record, a cache, a network, a plugin and a store that root alone may read; the test is another user's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        Records(f"{name}/state").write(Attachment("net", "c1", "net1"), "ipam", {"netns": "/run/netns/x"})
        for closed in ("results", "leases"):
            (folder / closed).mkdir(mode=0o700)
        for path, text, mode in (("net.d/10-net.conf", "{}", 0o600), ("bin/macvlan", "#!/bin/sh\n", 0o700)):
            (folder / path).parent.mkdir()
            (folder / path).write_text(text)
            (folder / path).chmod(mode)
        (folder / "flat.conf").write_text(json.dumps({"datastore": "file", "dataDir": f"{name}/leases"}))
        with another_user:
            yield folder


def test_what_root_alone_may_read_is_unknown_to_others_and_no_fault(
    of_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = NodePlaces(
        state=str(of_root / "state"), cache=str(of_root), networks=str(of_root / "net.d"),
        plugins=(str(of_root / "bin"),),
    )  # fmt: skip
    checks = [check for check in report.CHECKS if check.name in ("access", "plugins", "networks", "store")]
    facts = NodeFacts(places)
    monkeypatch.setattr(setup, "check_store", partial(setup.check_store, str(of_root / "flat.conf")))
    found = report.run(checks, facts)
    assert {f.check for f in found if f.level == UNKNOWN} == {"access", "plugins", "networks", "store"}
    assert {f.remedy for f in found if f.level == UNKNOWN} == {"run it as root"}
    assert FAULT not in levels(found) and report.DoctorReport(facts, found).is_healthy
    assert [s.netns for s in facts.sandboxes[:1]] == [""] and "lo" in [i.name for i in facts.sandboxes[0].interfaces]


def test_a_namespace_that_a_user_may_not_enter_is_told(
    namespaces: Callable[[], View], another_user: AnotherUser
) -> None:
    path = namespaces().path
    with (
        another_user,
        pytest.raises(InvalidNamespace, match="cannot be entered: Operation not permitted; run it as root"),
    ):
        sandboxes.find(path, [NamespaceView("", "", ())])


def test_what_its_user_may_not_read_is_no_reason_for_an_exit_code(
    of_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "CHECKS", [check for check in report.CHECKS if check.name in ("access", "networks")])
    said = run_any("doctor", "--conf-dir", str(of_root / "net.d"))
    assert "remedy:   run it as root" in said and said.splitlines()[-1].startswith("healthy: "), said


def test_the_feature_file_has_a_label_a_line_and_is_written_in_one_step(node: MakeNode, tmp_path: Path) -> None:
    path = tmp_path / "features.d/railcni"
    command.write_features(report.examine(node(machines.grace)), str(path))
    lines = path.read_text().splitlines()
    assert {"railcni.io/rdma=true", "railcni.io/rdma.healthy=true", "railcni.io/rdma.devices=2"} <= {*lines}
    assert {"railcni.io/rdma.active-ports=2", "railcni.io/rdma.rate-gbps=100", "railcni.io/rdma.gpus=1"} <= {*lines}
    assert os.listdir(path.parent) == ["railcni"]


def test_the_command_tells_faults_with_their_remedy_and_has_exit_code_1(tmp_path: Path) -> None:
    if os.path.isdir("/sys/class/infiniband"):
        pytest.skip("this machine has RDMA; one without shows it")
    said = run_any("doctor", "--conf-dir", str(tmp_path), "--cni-path", str(tmp_path), code=1)
    assert "verbs devices: none in /sys/class/infiniband" in said and "remedy:" in said
    assert said.splitlines()[-1].startswith("not healthy: ")


def test_a_pod_that_is_not_here_a_wrong_option_and_a_file_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    assert "no namespace of pod default/none" in run_any("doctor", "--pod", "default/none", code=2)
    run_any("doctor", "--pods", code=2)
    (tmp_path / "features.d").touch()
    said = run_any("doctor", "-o", "json", "--nfd", str(tmp_path / "features.d/railcni"), code=1)
    assert "findings" in json.JSONDecoder().raw_decode(said)[0] and f"railcni: {tmp_path}/features.d: " in said
