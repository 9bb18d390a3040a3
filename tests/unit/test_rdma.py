"""cni/shared/kernel/rdma_sysfs.py on trees of sysfs as machines with RDMA have them."""

from pathlib import Path

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


def test_a_port_is_described_in_the_kernels_words(tree: Tree) -> None:
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.verbs("mlx5_0", pci="0000:3b:00.0", netdev="ens2f0")
    port = rdma_sysfs.PortState("mlx5_0", 1, str(tree))
    assert (port.state, port.physical_state, port.link_layer) == ("ACTIVE", "LinkUp", "Ethernet")
    assert port.rate == "100 Gb/sec (4X EDR)"
    assert rdma_sysfs.pci_of("mlx5_0", str(tree)) == "0000:3b:00.0"


def test_each_netdev_of_a_function_is_of_its_own_port(tree: Tree) -> None:
    tree.netdev("ens1", pci="0000:21:00.0", port=1)
    tree.netdev("ens1d1", pci="0000:21:00.0", port=2)
    tree.verbs("mlx4_0", pci="0000:21:00.0", ports=2)  # its first GIDs are not there yet
    assert [rdma_sysfs.netdev_of("mlx4_0", port, str(tree)) for port in (1, 2)] == ["ens1", "ens1d1"]
    assert rdma_sysfs.ports_of_netdev("ens1", str(tree)) == [("mlx4_0", 1)]
    assert rdma_sysfs.ports_of_netdev("ens1d1", str(tree)) == [("mlx4_0", 2)]


def test_a_representor_beside_the_uplink_has_no_verbs_device_of_its_own(tree: Tree) -> None:
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.netdev("ens2f0_rep0", pci="0000:3b:00.0")
    tree.verbs("mlx5_0", pci="0000:3b:00.0", netdev="ens2f0")
    assert rdma_sysfs.ports_of_netdev("ens2f0", str(tree)) == [("mlx5_0", 1)]
    assert rdma_sysfs.ports_of_netdev("ens2f0_rep0", str(tree)) == []


def test_a_virtual_function_has_a_verbs_device_of_its_own(tree: Tree) -> None:
    for name, address, device in (("ens2f0", "0000:3b:00.0", "mlx5_0"), ("ens2f0v0", "0000:3b:00.2", "mlx5_4")):
        tree.netdev(name, pci=address)
        tree.verbs(device, pci=address, netdev=name)
    assert rdma_sysfs.ports_of_netdev("ens2f0v0", str(tree)) == [("mlx5_4", 1)]


def test_soft_roce_is_found_by_its_parent(tree: Tree) -> None:
    tree.netdev("eth0", pci="0000:00:03.0")
    tree.netdev("ens2f0")
    tree.verbs("mlx5_0", netdev="ens2f0")
    tree.verbs("rxe0", netdev="eth0", size=0)  # on top of hardware that has no RDMA; without a GID to tell it
    assert rdma_sysfs.netdev_of("mlx5_0", 1, str(tree)) == "ens2f0"
    assert rdma_sysfs.pci_of("mlx5_0", str(tree)) == ""
    assert rdma_sysfs.ports_of_netdev("ens2f0", str(tree)) == [("mlx5_0", 1)]
    assert rdma_sysfs.ports_of_netdev("eth0", str(tree)) == [("rxe0", 1)]


@pytest.mark.parametrize("first", ["bond0", "ens2f0"])  # by driver and mode: mlx5 says either
def test_a_bond_and_a_vlan_on_it_lead_to_the_port_of_the_bond(tree: Tree, first: str) -> None:
    for name, address in (("ens2f0", "0000:3b:00.0"), ("ens2f1", "0000:3b:00.1")):
        tree.netdev(name, pci=address)
    tree.netdev("bond0", lower=["ens2f0", "ens2f1"])
    tree.netdev("bond0.100", lower=["bond0"])
    tree.verbs("mlx5_bond_0", pci="0000:3b:00.0", netdev=first)
    assert rdma_sysfs.ports_of_netdev("bond0", str(tree)) == [("mlx5_bond_0", 1)]
    assert rdma_sysfs.ports_of_netdev("bond0.100", str(tree)) == [("mlx5_bond_0", 1)]


def test_a_bond_of_two_verbs_devices_has_both(tree: Tree) -> None:
    for name, address, device in (("ens2f0", "0000:3b:00.0", "mlx5_0"), ("ens3f0", "0000:5e:00.0", "mlx5_1")):
        tree.netdev(name, pci=address)
        tree.verbs(device, pci=address, netdev=name)
    tree.netdev("bond0", lower=["ens2f0", "ens3f0"])
    assert rdma_sysfs.ports_of_netdev("bond0", str(tree)) == [("mlx5_0", 1), ("mlx5_1", 1)]
    assert rdma_sysfs.ports_of_netdev("ens3f0", str(tree)) == [("mlx5_1", 1)]


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
        (0, "RoCE v2", "fe80::1", "ens2f0"),
        (1, "IB/RoCE v1", "192.168.111.1", "net1"),
        (5, "RoCE v2", "192.168.111.1", "net1"),
        (11, "RoCE v2", "fd00:111::7", ""),
    ]
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


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("0000:3b:00.0", "ens2f0"),
        ("0000:3b:00.0-7", "ens2f0"),  # of a device plugin that shares the NIC
        ("0000:3b:00.1", ""),
        ("rxe0", "ens3f0"),
        ("rxe0-12", "ens3f0"),
        ("5", ""),
        ("all-3", ""),
        ("", ""),
        ("../../net/ens2f0", ""),
    ],
)
def test_the_default_master_is_the_netdev_of_the_allocated_device(tmp_path: Path, device: str, name: str) -> None:
    tree = Tree(tmp_path)
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.netdev("ens3f0")
    tree.verbs("rxe0", netdev="ens3f0")
    assert rdma_sysfs.netdevs_of_device(device, str(tree)) == ([name] if name else [])


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("0000:3b:00.0-7", {"0000:3b:00.0", "ens2f0"}),
        ("0000:3b:00.2", {"0000:3b:00.2", "0000:3b:00.0", "ens2f0"}),
        ("rxe0-12", {"rxe0", "ens3f0"}),
        ("5", {"5"}),
    ],
)
def test_a_nic_has_the_names_of_the_physical_function_of_its_virtual_ones(
    tmp_path: Path, device: str, names: set[str]
) -> None:
    tree = Tree(tmp_path)
    tree.netdev("ens2f0", pci="0000:3b:00.0")
    tree.pci("0000:3b:00.2", physical="0000:3b:00.0")
    tree.netdev("ens3f0")
    tree.verbs("rxe0", netdev="ens3f0")
    assert rdma_sysfs.names_of_nic(device, str(tree)) == names
