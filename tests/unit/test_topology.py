"""cni.node.inventory.topology: distances between GPUs and NICs, from the PCI paths in sysfs."""

from pathlib import Path

import pytest

from cni.node.inventory import topology
from cni.node.inventory.topology import PciDevice
from tests.machines import ASPEED, COMPUTE, ETHERNET, MELLANOX, NVIDIA, VGA, Machine

SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"  # a root port, and the upstream port of a switch below it


def device(path: str, numa: int = 0) -> PciDevice:
    *above, address = path.split("/")
    return PciDevice(address, tuple(above), numa)


def distance(one: PciDevice, other: PciDevice, one_node: bool = False) -> str:
    return topology.Topology((), (), one_node).distance(one, other)


GPU, NIC = device(f"{SWITCH}/0000:17:00.0/0000:18:00.0"), device(f"{SWITCH}/0000:17:01.0/0000:1a:00.0")
BRIDGED = device(f"{SWITCH}/0000:17:01.0/0000:19:00.0/0000:1a:00.0")
ALONE = "pci0000:15/0000:15:01.0/0000:16:00.{}"
UNKNOWN = [device(f"pci{n}:00/{n}:00:00.0/{n}:01:00.0", numa=-1) for n in ("0008", "0002")]
DISTANCES: dict[str, tuple[PciDevice, PciDevice, str]] = {
    "a function and itself": (NIC, NIC, "X"), "on one switch": (GPU, NIC, "PIX"),
    "two functions of one card": (device(ALONE.format(0)), device(ALONE.format(1)), "PIX"),
    "behind a second switch": (GPU, BRIDGED, "PXB"),
    "behind a third": (GPU, device(f"{SWITCH}/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0"), "PXB"),
    "two root ports of one host bridge": (*(device(f"pci0000:00/0000:00:0{n}.0/0000:0{n}:00.0") for n in (1, 2)), "PHB"),
    "host bridges of one NUMA node": (GPU, device("pci0000:26/0000:26:01.0/0000:27:00.0"), "NODE"),
    "host bridges of two NUMA nodes": (GPU, device("pci0000:97/0000:97:01.0/0000:98:00.0", numa=1), "SYS"),
    "of NUMA nodes that are not known": (*UNKNOWN, "SYS"),
}  # fmt: skip


@pytest.mark.parametrize("case", DISTANCES)
def test_a_distance_is_that_of_the_last_bridge_that_both_have(case: str) -> None:
    gpu, nic, expected = DISTANCES[case]
    assert distance(gpu, nic) == distance(nic, gpu) == expected


def test_an_unknown_numa_node_is_near_where_there_is_one() -> None:
    assert distance(*UNKNOWN, one_node=True) == "NODE"


def test_the_matrix_of_a_machine_has_a_row_for_each_gpu_and_a_column_for_each_nic(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nodes=2)
    machine.gpu(f"{SWITCH}/0000:17:00.0/0000:18:00.0")
    machine.gpu("pci0000:97/0000:97:01.0/0000:98:00.0", numa=1)
    machine.function(f"{SWITCH}/0000:17:01.0/0000:1a:00.0", MELLANOX, ETHERNET)
    machine.function("pci0000:00/0000:00:1c.0/0000:02:00.0", ASPEED, VGA)  # the console of a management controller
    found = topology.read([("mlx5_0", "0000:1a:00.0"), ("rxe0", "")], str(tmp_path))
    assert [gpu.address for gpu in found.gpus] == ["0000:18:00.0", "0000:98:00.0"]
    assert [name for name, _ in found.nics] == ["mlx5_0"]
    assert [row[3:] for row in topology.table(found)[1]] == [("PIX",), ("SYS",)]
    assert found.nearest(found.gpus[0]) == ["mlx5_0"]
    columns, rows = topology.table(found)
    assert columns == ("gpu", "pci", "numa", "mlx5_0")
    assert rows[1] == ("GPU1", "0000:98:00.0", "1", "SYS")


def test_gpus_are_numbered_by_domain_bus_and_device_and_virtual_functions_are_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for domain in ("0018", "0008", "10000"):
        machine.gpu(f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0")
    virtual = machine.function("pci0008:00/0008:00:00.0/0008:01:00.4", NVIDIA, COMPUTE)
    machine.pci(virtual, physical="0008:01:00.0")
    found = topology.read([], str(tmp_path))
    assert [gpu.address for gpu in found.gpus] == ["0008:01:00.0", "0018:01:00.0", "10000:01:00.0"]


def test_where_there_is_no_pci_bus_there_is_nothing(tmp_path: Path) -> None:
    found = topology.read([("mlx5_0", "0000:1a:00.0")], str(tmp_path / "absent"))
    assert (found.gpus, found.nics, topology.table(found)[1]) == ((), (), [])
