"""What railcni reads of sysfs, on trees that real kernels showed (the lab's, Linux 6.1): one with soft-RoCE, one with igb.

The trees of other tests are built by code, for nobody here has such machines; that they have no file which the kernel does
not have is tested here too.
"""

import re
from pathlib import Path

import pytest

from cni.cli import rdma as views
from cni.cli.doctor import kernel, pcie, report
from cni.cli.doctor.facts import NodeFacts, NodePlaces
from cni.cli.doctor.finding import ADVICE, OK
from cni.node.inventory import devices as inventory
from cni.node.inventory import topology
from cni.shared.kernel import rdma_sysfs, sysfs
from tests import machines, recorded
from tests.sysfs import Tree

CARD, VIRTUAL = "0000:01:00.0", "0000:01:10.2"


@pytest.fixture(scope="module")
def roce(tmp_path_factory: pytest.TempPathFactory) -> str:
    """soft-RoCE mlx5_0 on the dummy ens2f0, a VLAN on top, and a macvlan net1 with 192.168.111.1 in a pod."""
    return recorded.lay("lab-roce", tmp_path_factory.mktemp("roce"))


@pytest.fixture(scope="module")
def sriov(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two cards of igb on a root port each, the first with two VFs."""
    return recorded.lay("lab-sriov", tmp_path_factory.mktemp("sriov"))


def test_soft_roce_is_read_with_its_netdev_mtu_and_the_gids_of_the_pod(roce: str) -> None:
    (port,) = inventory.ports(inventory.read(root=roce))
    assert (port.device, port.netdev, port.state, port.link_layer) == ("mlx5_0", "ens2f0", "ACTIVE", "Ethernet")
    assert (port.mtu, port.roce_mtu, port.room, port.carrier) == (9000, 4096, 1024, True)
    assert [(g.index, g.ndev, g.kind) for g in port.gids] == [
        (0, "ens2f0", "RoCE v2"), (1, "ens2f0.100", "RoCE v2"), (2, "net1", "RoCE v2"), (3, "net1", "RoCE v2"),
    ]  # fmt: skip
    assert port.gids[2].address == "192.168.111.1"
    assert list(views.ibdev2netdev(inventory.read(root=roce))) == ["mlx5_0 port 1 ==> ens2f0 (Up)"]


def test_the_port_below_a_vlan_is_found(roce: str) -> None:
    assert (
        rdma_sysfs.ports_of_netdev("ens2f0.100", roce) == rdma_sysfs.ports_of_netdev("ens2f0", roce) == [("mlx5_0", 1)]
    )
    assert rdma_sysfs.ports_of_netdev("lo", roce) == []


def test_doctor_finds_nothing_wrong_there_but_the_device_nodes_not_recorded(roce: str, tmp_path: Path) -> None:
    rest = {name: str(tmp_path / name) for name in ("proc", "dev", "state", "cache", "networks", "plugins")}
    plugins = (rest.pop("plugins"),)
    found = report.examine(NodeFacts(NodePlaces(sys=roce, plugins=plugins, live=False, **rest)))
    assert [(f.check, Path(f.subject).name) for f in found.faults] == [("nodes", "uverbs0"), ("nodes", "rdma_cm")]
    missing = [f for f in found.findings if f.check == "nodes"]
    assert sorted(f.healthy for f in missing) == ["character device 10:124", "character device 231:192"]


def test_a_card_with_virtual_functions_is_read_with_its_link_slot_and_settings(sriov: str) -> None:
    (function,) = pcie.read([("card", CARD)], sriov)
    assert (str(function.now), str(function.best), str(function.slot_best)) == (
        "2.5 GT/s x1", "2.5 GT/s x1", "16 GT/s x32",
    )  # fmt: skip
    assert isinstance(function.relaxed_ordering, bool)  # all of its configuration space was there
    assert [(f.level, f.found) for f in pcie.check_links([function])] == [(OK, "PCIe 2.5 GT/s x1")]
    (setting,) = pcie.check_settings([function], {})
    assert setting.level in (OK, ADVICE)


def test_a_virtual_function_is_known_with_its_physical_one_and_its_place(sriov: str) -> None:
    device = topology.device(VIRTUAL, sriov)
    assert (device.is_virtual_function, device.driver) == (True, "igbvf")
    assert device.above == ("pci0000:00", "0000:00:04.0")
    assert sysfs.physical_function_of(VIRTUAL, sriov) == CARD
    assert topology.Topology((), ()).distance(device, topology.device(CARD, sriov)) == topology.PIX
    assert topology.Topology((), ()).distance(device, topology.device("0000:02:00.0", sriov)) == topology.PHB
    assert [f.id for f in kernel.read_modules(sriov).functions] == [CARD, "0000:02:00.0"]


def names(root: str, folder: str) -> set[str]:
    """The files of a device, with N for each number in their paths."""
    top = Path(root, folder).resolve()
    return {re.sub(r"/\d+", "/N", f"/{file.relative_to(top)}") for file in top.rglob("*") if not file.is_dir()}


def test_trees_built_by_code_have_no_file_that_the_kernel_has_not(roce: str, sriov: str, tmp_path: Path) -> None:
    soft = machines.soft(tmp_path / "soft").root
    hgx = machines.hgx(tmp_path / "hgx").root
    tree = Tree(tmp_path / "tree")
    tree.pci("0000:3b:00.0", above=["0000:3a:00.0"], driver="mlx5_core")
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.verbs("mlx5_0", netdev="ens2f0", size=4)
    real = names(roce, "class/infiniband/mlx5_0")
    for root in (soft, tree.root):
        assert names(str(root), "class/infiniband/mlx5_0") <= real
        assert names(str(root), "class/net/ens2f0") <= names(sriov, "class/net/eth0")
    card = hgx / "class/infiniband/mlx5_0/device"
    flat = {name for name in names(str(card), ".") if name.count("/") == 1}
    assert flat <= names(sriov, f"bus/pci/devices/{CARD}")
