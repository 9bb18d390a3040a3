"""cni/shared/kernel/rdma_sysfs.py on trees of sysfs as machines with RDMA have them."""

from pathlib import Path
from typing import Any

import pytest

from cni.shared.kernel import rdma_sysfs
from tests.sysfs import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_node_without_rdma_has_no_devices(tree: Tree) -> None:
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    assert rdma_sysfs.devices(str(tree)) == []
    assert rdma_sysfs.ports_of_netdev("ens2f0", str(tree)) == []
    assert rdma_sysfs.ports("mlx5_0", str(tree)) == []
    assert rdma_sysfs.gids("mlx5_0", 1, str(tree)) == []
    assert rdma_sysfs.gid_table_size("mlx5_0", 1, str(tree)) == 0
    assert rdma_sysfs.PortState("mlx5_0", 1, str(tree)).state == ""


A, B = {"pci": "0000:3b:00.0"}, {"pci": "0000:5e:00.0"}
TWO = {
    "ens2f0": A, "ens2f1": {"pci": "0000:3b:00.1"}, "bond0": {"lower": ["ens2f0", "ens2f1"]},
    "bond0.100": {"lower": ["bond0"]},
}  # fmt: skip
OF_BOND = {"bond0": [("mlx5_bond_0", 1)], "bond0.100": [("mlx5_bond_0", 1)]}
# netdevs, verbs devices, and the ports that netdevs lead to
MACHINES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, list[tuple[str, int]]]]] = {
    "each netdev of a function has its own port, before its first GID": (
        {"ens1": {**A, "port": 1}, "ens1d1": {**A, "port": 2}}, {"mlx4_0": {**A, "ports": 2}},
        {"ens1": [("mlx4_0", 1)], "ens1d1": [("mlx4_0", 2)]}),
    "a representor beside the uplink has no verbs device of its own": (
        {"ens2f0": A, "ens2f0_rep0": A}, {"mlx5_0": {**A, "netdev": "ens2f0"}},
        {"ens2f0": [("mlx5_0", 1)], "ens2f0_rep0": []}),
    "a virtual function has one": (
        {"ens2f0": A, "ens2f0v0": {"pci": "0000:3b:00.2"}},
        {"mlx5_0": {**A, "netdev": "ens2f0"}, "mlx5_4": {"pci": "0000:3b:00.2", "netdev": "ens2f0v0"}},
        {"ens2f0v0": [("mlx5_4", 1)]}),
    "soft-RoCE is found by its parent, on top of hardware that has no RDMA, and without a GID to tell it": (
        {"eth0": B, "ens2f0": {}}, {"mlx5_0": {"netdev": "ens2f0"}, "rxe0": {"netdev": "eth0", "size": 0}},
        {"ens2f0": [("mlx5_0", 1)], "eth0": [("rxe0", 1)]}),
    "a bond, which its driver may call by itself": (TWO, {"mlx5_bond_0": {**A, "netdev": "bond0"}}, OF_BOND),
    "or by its first port": (TWO, {"mlx5_bond_0": {**A, "netdev": "ens2f0"}}, OF_BOND),
    "a bond of two verbs devices has both": (
        {"ens2f0": A, "ens3f0": B, "bond0": {"lower": ["ens2f0", "ens3f0"]}},
        {"mlx5_0": {**A, "netdev": "ens2f0"}, "mlx5_1": {**B, "netdev": "ens3f0"}},
        {"bond0": [("mlx5_0", 1), ("mlx5_1", 1)], "ens3f0": [("mlx5_1", 1)]}),
}  # fmt: skip


@pytest.mark.parametrize("case", MACHINES)
def test_a_netdev_leads_to_its_ports_and_a_port_to_its_netdev(tree: Tree, case: str) -> None:
    netdevs, devices, found = MACHINES[case]
    for name, options in netdevs.items():
        tree.netdev(name, **options)
    for name, options in devices.items():
        tree.verbs(name, **options)
    assert {name: rdma_sysfs.ports_of_netdev(name, str(tree)) for name in found} == found
    for name in {*found} - {"bond0", "bond0.100"}:
        assert [rdma_sysfs.netdev_of(*port, str(tree)) for port in found[name]] == [name] * len(found[name])
    assert rdma_sysfs.pci_of(next(iter(devices)), str(tree)) == next(iter(devices.values())).get("pci", "")


def test_links_that_are_on_top_of_one_another_in_a_ring_end(tree: Tree) -> None:
    tree.netdev("a")
    tree.netdev("b", lower=["a"])
    tree.link("class/net/a/lower_b", tree.root / "class/net/b")
    assert rdma_sysfs.ports_of_netdev("a", str(tree)) == []


def test_gids_are_told_with_index_type_address_and_link(tree: Tree) -> None:
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.verbs("mlx5_0", pci="0000:3b:00.0", netdev="ens2f0", size=16)
    tree.gid("mlx5_0", "192.168.111.1", ndev="net1", kind="IB/RoCE v1")
    tree.gid("mlx5_0", "192.168.111.1", ndev="net1", index=5)
    tree.gid("mlx5_0", "fd00:111::7", index=11)
    found = [(g.index, g.kind, g.address, g.ndev) for g in rdma_sysfs.gids("mlx5_0", 1, str(tree))]
    assert found == [
        (0, "RoCE v2", "fe80::1", "ens2f0"), (1, "IB/RoCE v1", "192.168.111.1", "net1"),
        (5, "RoCE v2", "192.168.111.1", "net1"), (11, "RoCE v2", "fd00:111::7", ""),
    ]  # fmt: skip
    assert rdma_sysfs.gid_table_size("mlx5_0", 1, str(tree)) == 16


def test_an_address_and_its_gid_are_told_apart_and_back() -> None:
    assert rdma_sysfs.gid_of("192.168.111.1") == "0000:0000:0000:0000:0000:ffff:c0a8:6f01"
    assert rdma_sysfs.gid_of("fd00:111::7") == "fd00:0111:0000:0000:0000:0000:0000:0007"
    for address in ("192.168.111.1", "fd00:111::7", "fe80::1"):
        assert rdma_sysfs.address_of(rdma_sysfs.gid_of(address)) == address
    assert rdma_sysfs.address_of("nonsense") == "nonsense"
    for text in ("", "192.168.111.1/24", "net1"):
        with pytest.raises(ValueError, match="no IP address"):
            rdma_sysfs.gid_of(text)


@pytest.mark.parametrize(
    ("mtu", "expected"),
    [(9000, 4096), (4192, 4096), (4191, 2048), (2144, 2048), (1500, 1024), (1119, 512), (352, 256), (351, 0)],
)
def test_the_roce_mtu_is_the_largest_that_fits_with_its_headers(mtu: int, expected: int) -> None:
    assert rdma_sysfs.roce_mtu(mtu) == expected


def test_only_ethernet_ports_of_channel_adapters_have_gids_of_addresses(tree: Tree) -> None:
    tree.verbs("mlx5_0", pci="0000:3b:00.0")
    tree.verbs("mlx5_1", pci="0000:5e:00.0", link_layer="InfiniBand")
    tree.verbs("siw0", netdev="eth0", node_type="4: RNIC")
    assert [rdma_sysfs.is_roce(name, 1, str(tree)) for name in ("mlx5_0", "mlx5_1", "siw0")] == [True, False, False]


@pytest.mark.parametrize(("device", "name"), [
    ("0000:3b:00.0", "ens2f0"),
    ("0000:3b:00.0-7", "ens2f0"),  # of a device plugin that shares the NIC
    ("0000:3b:00.1", ""), ("rxe0", "ens3f0"), ("rxe0-12", "ens3f0"), ("5", ""), ("all-3", ""), ("", ""),
    ("../../net/ens2f0", ""),
])  # fmt: skip
def test_the_default_master_is_the_netdev_of_the_allocated_device(tmp_path: Path, device: str, name: str) -> None:
    tree = Tree(tmp_path)
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.netdev("ens3f0")
    tree.verbs("rxe0", netdev="ens3f0")
    assert rdma_sysfs.netdevs_of_device(device, str(tree)) == ([name] if name else [])


@pytest.mark.parametrize(("device", "names"), [
    ("0000:3b:00.0-7", {"0000:3b:00.0", "ens2f0"}),
    ("0000:3b:00.2", {"0000:3b:00.2", "0000:3b:00.0", "ens2f0"}),
    ("rxe0-12", {"rxe0", "ens3f0"}), ("5", {"5"}),
])  # fmt: skip
def test_a_virtual_nic_has_the_names_of_its_physical_function(tmp_path: Path, device: str, names: set[str]) -> None:
    tree = Tree(tmp_path)
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.pci("0000:3b:00.2", physical="0000:3b:00.0")
    tree.netdev("ens3f0")
    tree.verbs("rxe0", netdev="ens3f0")
    assert rdma_sysfs.names_of_nic(device, str(tree)) == names
