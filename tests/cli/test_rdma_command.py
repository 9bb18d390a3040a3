"""`railcni rdma` on the sysfs of machines of many kinds, and on the namespaces of this kernel."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cni.cli import rdma as views
from cni.node.inventory import devices as inventory
from cni.node.inventory import sandboxes
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.node.runtime.cache import Cache, CachedResult, Parameters
from cni.shared.kernel.links import Rtnl
from cni.shared.spec.errors import InvalidConfig
from tests import machines
from tests.blackbox.command import run_any
from tests.view import View


def box(number: int, name: str = "net1", *more: str) -> NamespaceView:
    """The namespace of pod default/pod-N, with the address 192.168.111.N on the link of this name."""
    link = SandboxInterface(name, "macvlan", 9000, True, (f"192.168.111.{number}", *more))
    return NamespaceView(f"/run/netns/{number}", f"default/pod-{number}", (link,))


POD = box(1, "net1", "fe80::1")


def test_ibdev2netdev_has_a_line_for_each_netdev_up_where_it_has_carrier(tmp_path: Path) -> None:
    machines.hgx(tmp_path / "hgx")
    lines = list(views.ibdev2netdev(inventory.read(root=str(tmp_path / "hgx"))))
    assert (lines[0], lines[8:]) == ("mlx5_0 port 1 ==> ens0f0np0 (Up)", ["mlx5_8 port 1 ==> ens9f0np0 (Down)"])
    machine = machines.Machine(tmp_path / "other")
    machine.netdev("ens2f0")
    machine.verbs("mlx5_0", netdev="ens2f0", **machines.DOWN)  # the state of the port does not count
    assert list(views.ibdev2netdev(inventory.read(root=str(machine)))) == ["mlx5_0 port 1 ==> ens2f0 (Up)"]


def test_a_port_says_its_device_netdev_pci_function_and_numa_node(tmp_path: Path) -> None:
    machines.hgx(tmp_path)
    (row,) = [r for r in views.port_rows(inventory.read(root=str(tmp_path))) if r[0] == "mlx5_5"]
    said = ("mlx5_5", 1, "ens5f0np0", "0000:64:00.0", 1, "ACTIVE", "400 Gb/s", "Ethernet", 9000, 4096)
    assert row == (*said, "1/3")


def test_the_netdev_of_a_bond_is_the_bond_and_a_vlan_has_gids_of_its_own(tmp_path: Path) -> None:
    machines.bond(tmp_path)
    (port,) = inventory.ports(inventory.read(root=str(tmp_path)))
    assert port.netdev == "bond0"
    assert [(g.index, g.ndev, g.address) for g in port.gids][1] == (3, "bond0.100", "10.0.0.7")


def test_an_infiniband_port_has_no_roce_mtu_and_gids_of_type_ib(tmp_path: Path) -> None:
    machines.infiniband(tmp_path)
    (device,) = views.document(inventory.read(root=str(tmp_path)))
    (port,) = device["ports"]
    assert (port["linkLayer"], port["netdev"], port["roceMTU"]) == ("InfiniBand", "ibs2", None)
    assert [gid["type"] for gid in port["gids"]] == ["IB"]  # the kernel has one name for it and RoCE v1
    assert device["pciAddress"] == "0000:3b:00.0"


def test_a_gid_belongs_to_the_pod_that_has_its_address_on_a_link_of_that_name(tmp_path: Path) -> None:
    machines.soft(tmp_path)
    rows = views.gid_rows(inventory.read([POD, box(2)], str(tmp_path)))
    assert [row[-1] for row in rows] == ["", "default/pod-1", "default/pod-2"]
    assert {row[-1] for row in views.gid_rows(inventory.read([box(1, "eth0")], str(tmp_path)))} == {""}


def test_a_device_that_was_moved_into_a_pod_has_the_mtu_of_its_link_there(tmp_path: Path) -> None:
    machine = machines.Machine(tmp_path)
    machine.verbs("mlx5_0", machine.nic("pci0000:3a/0000:3a:00.0/0000:3b:00.0"), size=5)
    machine.gid("mlx5_0", "192.168.111.1", "net1")
    (port,) = inventory.ports(inventory.read([POD], str(tmp_path)))
    assert (port.netdev, port.mtu, port.roce_mtu, port.carrier) == ("net1", 9000, 4096, None)


def test_the_pods_of_this_kernel_are_found_in_libcnis_cache_with_their_links(
    namespaces: Callable[[], View], rtnl: Callable[[View], Rtnl], tmp_path: Path
) -> None:
    host, pod = namespaces(), namespaces()
    host.add_veth("ens2f0", "wire", mtu=9000)
    fd = os.open(pod.path, os.O_RDONLY)
    rtnl(host).add_macvlan("net1", host.link("ens2f0").index, mode="bridge", netns_fd=fd)
    os.close(fd)
    pod.set("net1", state="up")
    pod.add_address("net1", "192.168.111.1/24")
    args = (("K8S_POD_NAMESPACE", "default"), ("K8S_POD_NAME", "pod-1"))
    cache = Cache(str(tmp_path))
    cache.write(CachedResult("rdma-net", Parameters("c1", pod.path, "net1", args), b"{}", {"cniVersion": "1.0.0"}))
    with host.entered():
        found = sandboxes.read(str(tmp_path / "state"), str(tmp_path))
        assert sandboxes.find("default/pod-1", found).netns == pod.path
        assert sandboxes.find(pod.path, found).owner == "default/pod-1"
        assert sandboxes.find(host.path, found) == found[0]
        with pytest.raises(InvalidConfig, match="no namespace of pod default/pod-2"):
            sandboxes.find("default/pod-2", found)
    net1 = next(i for s in found if s.owner == "default/pod-1" for i in s.interfaces if i.name == "net1")
    assert (net1.kind, net1.lower, net1.mtu, net1.global_addresses) == ("macvlan", "ens2f0", 9000, ["192.168.111.1"])
    assert [i.lower for i in found[0].interfaces if i.name == "ens2f0"] == [""]


def test_the_command_without_rdma_says_so_and_its_json_is_an_empty_list() -> None:
    if os.path.isdir("/sys/class/infiniband"):
        pytest.skip("this machine has RDMA; one without shows it")
    assert run_any("rdma", data=True) == []
    assert "no verbs device" in run_any("rdma")
