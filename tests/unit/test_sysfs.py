"""cni/shared/kernel: sysfs.py on trees as they were seen on machines with the hardware; node.py, the node and its boots."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cni.shared.kernel import node, sysfs
from tests.sysfs import Tree

PF = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
VF = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2"
SF, RDMA = f"{PF}/mlx5_core.sf.4", f"{PF}/mlx5_core.rdma.0"
VIRTIO = "devices/pci0000:00/0000:00:03.0"
VMD = "devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0/10000:01:00.0"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A PF of a ConnectX with a VF and a scalable function, a VF for DPDK, one without a driver, a virtio NIC, a VMD."""
    tree = Tree(tmp_path)
    port = ["0000:3a:00.0"]
    for address, above, driver, netdevs in (
        ("0000:3b:00.0", port, "mlx5_core", ["ens2f0", "ens2f0_rep"]), ("0000:3b:00.2", port, "mlx5_core", ["ens2f0v0"]),
        ("0000:3b:00.3", port, "vfio-pci", []), ("0000:3b:00.4", port, "", []), ("0000:00:03.0", [], "virtio-pci", []),
        ("10000:01:00.0", ["0000:00:0e.0", "pci10000:00", "10000:00:01.0"], "mlx5_core", ["ens9"]),
    ):  # fmt: skip
        tree.pci(address, above, driver)
        for netdev in netdevs:
            tree.netdev(netdev, pci=address)
    for place, link in (
        (f"{VIRTIO}/virtio2/net/eth0", "class/net/eth0"), (f"{SF}/net/ens2f0s4", "class/net/ens2f0s4"),
        (SF, "bus/auxiliary/devices/mlx5_core.sf.4"), (RDMA, "bus/auxiliary/devices/mlx5_core.rdma.0"),
    ):  # fmt: skip
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        tree.link(link, tmp_path / place)
    tree.netdev("lo")
    return str(tree)


def test_the_netdevs_of_a_device_are_found_in_order_of_name(root: str) -> None:
    of_pci = {"0000:3b:00.0": ["ens2f0", "ens2f0_rep"], "0000:3b:00.2": ["ens2f0v0"], "0000:3b:00.3": [],
              "0000:99:00.0": [], "0000:00:03.0": ["eth0"]}  # fmt: skip
    of_auxiliary = {"mlx5_core.sf.4": ["ens2f0s4"], "mlx5_core.rdma.0": [], "mlx5_core.sf.5": []}
    of_path = {f"/sys/{VF}": ["ens2f0v0"], f"/sys/{VIRTIO}": ["eth0"], "/sys/devices/none": []}
    assert {name: sysfs.netdevs_of_pci(name, root) for name in of_pci} == of_pci
    assert {name: sysfs.netdevs_of("auxiliary", name, root) for name in of_auxiliary} == of_auxiliary
    assert {path: sysfs.netdevs_of_path(path, root) for path in of_path} == of_path


def test_the_driver_of_a_pci_device_is_named(root: str) -> None:
    drivers = [sysfs.driver_of_pci(f"0000:3b:00.{function}", root) for function in (0, 3, 4, 7)]
    assert drivers == ["mlx5_core", "vfio-pci", "", ""]


def test_an_identifier_of_another_bus_is_none_of_pci(root: str) -> None:
    assert sysfs.is_pci("0000:3b:00.2", root)
    assert not sysfs.is_pci("mlx5_core.sf.4", root)
    assert not sysfs.is_pci("17", root)  # the number of a share of an RDMA device


@pytest.mark.parametrize("identifier", ["", ".", "..", "../../../class/net/lo", "0000:3b:00.0/net/ens2f0", "a\0b"])
def test_an_identifier_is_never_a_way_to_another_place(root: str, identifier: str) -> None:
    assert not sysfs.is_pci(identifier, root)
    assert sysfs.netdevs_of_pci(identifier, root) == sysfs.netdevs_of("auxiliary", identifier, root) == []
    assert sysfs.driver_of_pci(identifier, root) == ""


def test_the_pci_path_of_a_netdev_is_that_of_the_nearest_pci_device(root: str) -> None:
    found = {name: sysfs.pci_path_of_netdev(name, root) for name in ("ens2f0", "ens2f0v0", "ens2f0s4", "eth0", "ens9")}
    assert found == {
        "ens2f0": f"/sys/{PF}", "ens2f0v0": f"/sys/{VF}", "ens2f0s4": f"/sys/{PF}", "eth0": f"/sys/{VIRTIO}",
        "ens9": f"/sys/{VMD}",
    }  # fmt: skip
    assert sysfs.pci_path_of_netdev("lo", root) == ""
    assert sysfs.pci_path_of_netdev("none", root) == ""


def test_the_path_of_a_device_of_a_bus_tells_the_pci_device_above_it(root: str) -> None:
    assert sysfs.path_of("pci", "0000:3b:00.2", root) == f"/sys/{VF}"
    assert [sysfs.path_of(*device, root) for device in (("pci", "none"), ("", "x"), ("pci", "../x"))] == ["", "", ""]
    assert sysfs.pci_above(f"/sys/{VF}") == sysfs.pci_above(f"/sys/{VF}/virtio2") == "0000:3b:00.2"
    assert sysfs.pci_above("/sys/devices/virtual/net") == sysfs.pci_above("") == ""


def test_copies_of_one_image_are_two_machines_that_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "machine-id", tmp_path / "product_uuid"
    monkeypatch.setattr(node, "_MACHINE", tuple(map(str, told)))
    assert node.machine_id() == ""
    told[0].write_text("uninitialized\n")
    assert node.machine_id() == ""
    told[0].write_text("0123456789abcdef\n")
    alone = node.machine_id()
    told[1].write_text("one\n")
    one = node.machine_id()
    told[1].write_text("two\n")
    assert len({alone, one, node.machine_id()}) == 3
    assert "0123456789abcdef" not in alone
    told[1].write_text("one")
    assert node.machine_id() == one


@pytest.mark.parametrize("call", ["listdir", "readlink", "stat"])
def test_an_unreadable_device_is_not_called_missing(root: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a DEL without memory would leave a VF's settings, and call a device vanished that is in a lost sandbox."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(os, call, refused)
    ask = {
        "listdir": lambda: sysfs.netdevs_of_pci("0000:3b:00.2", root),
        "readlink": lambda: sysfs.function_of("0000:3b:00.2", root),
        "stat": lambda: sysfs.has_netdev("pci", "0000:3b:00.2", root),
    }[call]
    with pytest.raises(OSError, match="no memory"):
        ask()


def test_a_host_name_that_is_not_utf_8_can_be_written_to_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="n\udcff"))
    assert node.host_name() == "n?"
