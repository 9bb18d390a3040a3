"""Machines with cards of many kinds, as their sysfs shows them: what doctor finds, and what the device plugin offers.

Each row is a card as its driver makes it, in a machine that is well but for what the row says.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cni.cli import rdma
from cni.cli.doctor import report
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.doctor.finding import ADVICE, FAULT
from cni.node.inventory import counters
from cni.node.inventory import devices as inventory
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.resources import config
from cni.resources.choose import resources
from cni.resources.node import read_host
from cni.shared.kernel import rdma_sysfs
from tests.device_plugin.scene import Machine

ADDRESS = "0000:30:00.0"
ETHERNET, INFINIBAND = "0x020000", "0x020700"
_OF_HOST = ("plugins", "networks", "store", "policy", "clock", "memlock", "warm", "access")  # not of the card


@dataclass(frozen=True)
class Card:
    """`make` adds the card to a machine. `findings` are the checks of doctor with a fault or advice, and words of each;
    `shared` and `exclusive` how many healthy devices it gives, of 1,000 and of 1."""

    make: Callable[[Machine], object]
    findings: tuple[tuple[str, str, str], ...] = ()
    shared: int = 0
    exclusive: int = 0


def nic(
    machine: Machine,
    driver: str,
    vendor: str,
    device: str,
    verbs: str = "",
    netdev: str = "ens1f0",
    kind: str = ETHERNET,
    address: str = ADDRESS,
    gids: tuple[tuple[str, str], ...] = (),
    link: dict[str, int] | None = None,
    **options: object,
) -> None:
    """A function of this driver, with its netdev and verbs device where they are named; `gids` are (address, type)."""
    machine.tree.pci(address, driver=driver, vendor=vendor, device=device, **{"class": kind})
    if netdev:
        machine.tree.netdev(netdev, pci=address, **(link or {}))
    if verbs:
        number = len(list((machine.root / "dev/infiniband").glob("uverbs*")))
        nodes = {f"uverbs{number}": "infiniband_verbs", **options.pop("nodes", {})}  # type: ignore[dict-item]
        machine.tree.verbs(verbs, pci=address, netdev=netdev, nodes=nodes, **options)  # type: ignore[arg-type]
        machine.node(f"infiniband/uverbs{number}")
    for gid, of_kind in gids:
        machine.tree.gid(verbs, gid, ndev=netdev, kind=of_kind)


def connectx(machine: Machine, **options: object) -> None:
    nic(machine, "mlx5_core", "0x15b3", "0x1021", "mlx5_0", gids=(("fe80::1", "IB/RoCE v1"),), **options)  # type: ignore[arg-type]


def infiniband(machine: Machine, **options: object) -> None:
    card = ("mlx5_core", "0x15b3", "0x1021", "mlx5_0", "ib0", INFINIBAND)
    nic(machine, *card, link={"type": 32, "mtu": 2044}, link_layer="InfiniBand", **options)  # type: ignore[arg-type]


def planes(machine: Machine) -> None:
    """A ConnectX-8 with several planes: beside its device one of the type SMI, by which a subnet manager configures the
    planes. The kernel gives that no uverbs."""
    infiniband(machine, rate="800 Gb/sec (4X XDR)", nodes={"umad0": "infiniband_mad"}, size=1)
    smi = {"link_layer": "InfiniBand", "rate": "200 Gb/sec (1X XDR)", "ports": 4, "size": 1, "fw_ver": "28.1.1"}
    machine.tree.verbs("smi1", pci=ADDRESS, nodes={"umad1": "infiniband_mad"}, **smi)  # type: ignore[arg-type]
    for node in ("umad0", "umad1"):
        machine.node(f"infiniband/{node}")


def virtual_function(machine: Machine) -> None:
    connectx(machine)
    machine.tree.put(machine.tree.pci(ADDRESS), {"sriov_numvfs": 1, "sriov_totalvfs": 8})
    machine.tree.pci("0000:30:00.1", physical=ADDRESS)
    nic(
        *(machine, "mlx5_core", "0x15b3", "0x101e", "mlx5_2", "ens1f0v0"),
        address="0000:30:00.1",
        node_guid="0000:0000:0000:0000",
    )


def bond(machine: Machine) -> None:
    """Two ports as one device (LAG)."""
    for port in (0, 1):
        machine.tree.pci(
            f"0000:30:00.{port}", driver="mlx5_core", vendor="0x15b3", device="0x1021", **{"class": ETHERNET}
        )
        machine.tree.netdev(f"ens1f{port}", pci=f"0000:30:00.{port}")
    machine.tree.netdev("bond0", lower=["ens1f0", "ens1f1"])
    machine.tree.verbs("mlx5_bond_0", pci=ADDRESS, netdev="bond0", nodes={"uverbs0": "infiniband_verbs"})
    machine.node("infiniband/uverbs0")


def bond_with_virtual_function(machine: Machine) -> None:
    """The function is the second port's, which has no verbs device of its own."""
    bond(machine)
    machine.tree.pci("0000:30:00.2", physical="0000:30:00.1")
    nic(machine, "mlx5_core", "0x15b3", "0x101e", "mlx5_2", "ens1f1v0", address="0000:30:00.2")


def subfunction(machine: Machine) -> None:
    """A part of a ConnectX on the auxiliary bus, beside the card itself."""
    connectx(machine)
    tree = machine.tree
    device = tree.pci(ADDRESS) / "mlx5_core.sf.4"
    link = {"mtu": 9000, "type": 1, "flags": "0x1003", "operstate": "up", "carrier": 1, "ifindex": 77, "dev_port": 0}
    tree.put(device / "net/en1f0s88", link)
    tree.link("class/net/en1f0s88", device / "net/en1f0s88")
    tree.link((device / "net/en1f0s88").relative_to(tree.root) / "device", device)
    verbs = device / "infiniband/mlx5_4"
    tree.put(verbs, {"node_type": "1: CA", "fw_ver": "28.39.1002", "node_guid": "0c42:a103:0012:3456"})
    port = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "100 Gb/sec", "link_layer": "Ethernet"}
    empty = ":".join(["0000"] * 8)
    tree.put(verbs / "ports/1", {**port, **{f"gids/{n}": empty for n in range(16)}})
    tree.link("class/infiniband/mlx5_4", verbs)
    tree.link(verbs.relative_to(tree.root) / "device", device)
    tree.put(device / "infiniband_verbs/uverbs1", {"ibdev": "mlx5_4"})
    tree.link("class/infiniband_verbs/uverbs1", device / "infiniband_verbs/uverbs1")
    tree.gid("mlx5_4", "fe80::7", ndev="en1f0s88")
    machine.node("infiniband/uverbs1")


def software(machine: Machine) -> None:
    machine.tree.netdev("eth0")
    machine.rxe("rxe0", "eth0", 0)


def software_iwarp(machine: Machine) -> None:
    machine.tree.netdev("eth0")
    nodes = {"uverbs0": "infiniband_verbs"}
    machine.tree.verbs("siw0", netdev="eth0", node_type="4: RNIC", size=1, nodes=nodes)
    machine.node("infiniband/uverbs0")


def efa(machine: Machine, **options: object) -> None:
    """The kernel gives it neither a netdev nor a node GUID, and calls its link layer unknown."""
    card = (machine, "efa", "0x1d0f", "0xefa2", "rdmap16s25", "")
    kind = {"link_layer": "Unknown", "node_type": "7: unspecified", "node_guid": "0000:0000:0000:0000"}
    nic(*card, size=1, **kind, **options)  # type: ignore[arg-type]


DOWN = {"state": "1: DOWN", "physical_state": "3: Disabled"}
IWARP = {"node_type": "4: RNIC", "size": 1}
MAC_GID = (("b496:9112:3456::", "IB/RoCE v1"),)
CARDS = {
    "ConnectX": Card(connectx, shared=63, exclusive=1),
    "ConnectX with a virtual function without a GUID": Card(
        virtual_function, ((FAULT, "node-guids", "mlx5_2"),), shared=63 + 127, exclusive=1),
    "ConnectX as a bond": Card(bond, shared=127, exclusive=2),
    "ConnectX as a bond with a virtual function of its second port": Card(
        bond_with_virtual_function, shared=127 + 127, exclusive=3),
    "ConnectX-8 with several planes": Card(planes, shared=1000, exclusive=1),
    "ConnectX with a subfunction": Card(subfunction, shared=63 + 7, exclusive=1),
    "ConnectX with 1 of 4 lanes": Card(lambda m: connectx(m, rate="25 Gb/sec (1X EDR)"), shared=63, exclusive=1),
    "ConnectX on InfiniBand": Card(infiniband, shared=1000, exclusive=1),
    "ConnectX on InfiniBand without a netdev": Card(
        lambda m: nic(*(m, "mlx5_core", "0x15b3", "0x1021", "mlx5_0", "", INFINIBAND), link_layer="InfiniBand", size=1),
        shared=1000, exclusive=1),
    "virtual function of a ConnectX in a virtual machine": Card(
        lambda m: nic(m, "mlx5_core", "0x15b3", "0x101e", "mlx5_0", "eth1"), shared=127, exclusive=1),
    "ConnectX on InfiniBand without a subnet manager": Card(
        lambda m: infiniband(m, state="2: INIT"), ((FAULT, "ports", "INIT"),), exclusive=1),
    "Broadcom": Card(lambda m: nic(m, "bnxt_en", "0x14e4", "0x1760", "bnxt_re0"), shared=127, exclusive=1),
    "Broadcom without its verbs driver": Card(
        lambda m: nic(m, "bnxt_en", "0x14e4", "0x1760"),
        ((ADVICE, "modules", "bnxt_en without bnxt_re"), (FAULT, "devices", "none in")), exclusive=1),
    "Intel E810 in RoCE mode": Card(lambda m: nic(m, "ice", "0x8086", "0x1592", "irdma0"), shared=127, exclusive=1),
    "Intel E810 in iWARP mode": Card(
        lambda m: nic(m, "ice", "0x8086", "0x1592", "irdma0", gids=(), **IWARP),  # type: ignore[arg-type]
        shared=1000,
        exclusive=1,
    ),
    "Intel E810 in iWARP mode, down": Card(
        lambda m: nic(m, "ice", "0x8086", "0x1592", "irdma0", link={"carrier": 0}, **IWARP, **DOWN),  # type: ignore[arg-type]
        ((FAULT, "ports", "no carrier on ens1f0"),),
        exclusive=1,
    ),
    "Alibaba eRDMA": Card(
        lambda m: nic(m, "erdma", "0x1ded", "0x107f", "erdma_0", "", "0x028000", gids=(), **IWARP),  # type: ignore[arg-type]
        shared=1000,
        exclusive=1,
    ),
    "Amazon EFA": Card(efa, shared=1000, exclusive=1),
    "Amazon EFA that is down": Card(
        lambda m: efa(m, **DOWN), ((FAULT, "ports", "see `dmesg` for messages of its driver"),), exclusive=1),
    "Huawei": Card(lambda m: nic(m, "hns3", "0x19e5", "0xa222", "hns_0"), shared=127, exclusive=1),
    "AMD Pollara without its verbs driver": Card(
        lambda m: nic(m, "ionic", "0x1dd8", "0x1002"),
        ((ADVICE, "modules", "ionic without ionic_rdma"), (FAULT, "devices", "none in")), exclusive=1),
    "ConnectX for DPDK": Card(
        lambda m: nic(m, "vfio-pci", "0x15b3", "0x101e", netdev=""),
        ((FAULT, "devices", "bind 0000:30:00.0 to the vendor's driver: vfio-pci is for DPDK"),)),
    "Azure MANA without its verbs driver": Card(
        lambda m: nic(m, "mana", "0x1414", "0x00ba"),
        ((ADVICE, "modules", "mana without mana_ib"), (FAULT, "devices", "none in")), exclusive=1),
    "Chelsio T6": Card(
        lambda m: nic(m, "cxgb4", "0x1425", "0x6407", "cxgb4_0", **IWARP),  # type: ignore[arg-type]
        shared=1000,
        exclusive=1,
    ),
    "soft-RoCE": Card(software, shared=127), "soft-iWARP": Card(software_iwarp, shared=1000),
}  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    for name in ("ib_core", "ib_uverbs", "rdma_ucm", "mlx5_ib"):
        (machine.tree.root / "module" / name).mkdir(parents=True)
    return machine


@pytest.mark.parametrize("name", CARDS)
def test_doctor_finds_what_is_wrong_with_a_card_and_no_more(machine: Machine, name: str) -> None:
    CARDS[name].make(machine)
    places = {key: str(machine.root / key) for key in ("proc", "dev", "state", "cache", "networks")}
    facts = NodeFacts(NodePlaces(sys=str(machine.tree), plugins=("/nowhere",), live=False, **places))
    found = [
        one
        for one in report.examine(facts).findings
        if one.level in (FAULT, ADVICE) and one.check not in (*_OF_HOST, "nodes")
    ]
    assert len(found) == len(CARDS[name].findings), found
    for one, (level, check, words) in zip(found, CARDS[name].findings, strict=True):
        assert (one.level, one.check) == (level, check) and words in f"{one.subject} {one.found} {one.remedy}"
        assert "no RDMA NIC" not in one.remedy


@pytest.mark.parametrize("name", CARDS)
def test_the_device_plugin_offers_a_card_as_often_as_its_gids_allow(machine: Machine, name: str) -> None:
    CARDS[name].make(machine)
    host = read_host(str(machine.root))
    drivers = sorted({function.driver for function in host.functions})
    document = {
        "configList": [{"resourceName": "shared", "rdmaHcaMax": 1000, "selectors": {"drivers": drivers}}],
        "resourceList": [{"resourceName": "whole", "selectors": [{"drivers": drivers}]}],
    }
    read = config.read([("config.json", json.dumps(document))])
    shared, exclusive = resources(read.resources, host)
    assert (shared.healthy, exclusive.healthy) == (CARDS[name].shared, CARDS[name].exclusive), (shared, exclusive)
    assert bool(shared.offers) != bool(shared.unchosen)


def test_a_device_for_the_subnet_manager_alone_is_no_nic_for_any_command(machine: Machine) -> None:
    planes(machine)
    sys = str(machine.tree)
    assert rdma_sysfs.devices_of(ADDRESS, sys) == rdma_sysfs.devices(sys) == ["mlx5_0"]
    assert rdma_sysfs.ports_of_netdev("ib0", sys) == [("mlx5_0", 1)]
    assert {key[0] for values in (counters.samples(sys), *counters.siblings(sys)) for key in values} <= {"mlx5_0"}
    (function,) = read_host(str(machine.root)).functions
    assert (function.verbs, function.nodes) == (("mlx5_0",), ("uverbs0", "umad0", "umad1"))
    devices = inventory.read(root=sys)
    inside = SandboxInterface("net1", "", 2044, True, ("10.0.0.5",), bus="pci", device=ADDRESS)
    variables, _ = rdma.nccl_advice(NamespaceView("/run/netns/a", "default/pod-1", (inside,)), devices, sys)
    assert variables["NCCL_IB_HCA"] == "=mlx5_0:1"
    shutil.rmtree((machine.tree.root / "class/infiniband_verbs/uverbs0").resolve())  # ib_uverbs is not loaded
    assert rdma_sysfs.devices(sys) == ["mlx5_0", "smi1"]
