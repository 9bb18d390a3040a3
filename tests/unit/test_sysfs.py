"""cni/shared/kernel: sysfs.py on trees as they were seen on machines with the hardware; node.py, the node and its boots."""

import errno
import os
from pathlib import Path

import pytest

from cni.shared.kernel import node, sysfs

PF = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
VF = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.2"
VFIO = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.3"
UNBOUND = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.4"
SF = f"{PF}/mlx5_core.sf.4"
VIRTIO = "devices/pci0000:00/0000:00:03.0"
VMD = "devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0/10000:01:00.0"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A PF of a ConnectX with a VF and a scalable function, a VF for DPDK, one without a driver, a virtio NIC, a VMD."""
    for device, driver, netdevs in (
        (PF, "mlx5_core", ["net/ens2f0", "net/ens2f0_rep"]),
        (VF, "mlx5_core", ["net/ens2f0v0"]),
        (VFIO, "vfio-pci", []),
        (UNBOUND, "", []),
        (VIRTIO, "virtio-pci", ["virtio2/net/eth0"]),
        (VMD, "mlx5_core", ["net/ens9"]),
    ):
        folder = tmp_path / device
        folder.mkdir(parents=True, exist_ok=True)
        link(tmp_path / "bus/pci/devices" / folder.name, folder)
        if driver:
            target = tmp_path / "bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            link(folder / "driver", target)
        for netdev in netdevs:
            add_netdev(tmp_path, folder / netdev)
    add_netdev(tmp_path, tmp_path / SF / "net/ens2f0s4")
    link(tmp_path / "bus/auxiliary/devices/mlx5_core.sf.4", tmp_path / SF)
    link(tmp_path / "bus/auxiliary/devices/mlx5_core.rdma.0", tmp_path / PF / "mlx5_core.rdma.0")
    (tmp_path / PF / "mlx5_core.rdma.0").mkdir()
    add_netdev(tmp_path, tmp_path / "devices/virtual/net/lo")
    return str(tmp_path)


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(target, place.parent))


def add_netdev(root: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    link(root / "class/net" / folder.name, folder)


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


def test_every_netdev_of_this_machine_is_found_again_by_its_pci_path() -> None:
    names = os.listdir("/sys/class/net") if Path("/sys/class/net").is_dir() else []
    paths = {name: path for name in names if (path := sysfs.pci_path_of_netdev(name))}
    if not paths:
        pytest.skip("this machine has no netdev on a PCI device: run on one that has")
    for name, path in paths.items():
        address = path.rpartition("/")[2]
        assert sysfs.is_pci(address)
        assert sysfs.driver_of_pci(address)
        assert name in sysfs.netdevs_of_path(path) or sysfs.netdevs_of_pci(address)


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
