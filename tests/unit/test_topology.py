"""cni.node.inventory.topology: distances between GPUs and NICs, from the PCI paths in sysfs."""

from pathlib import Path

from cni.node.inventory import topology
from cni.node.inventory.topology import PciDevice
from tests.machines import ASPEED, COMPUTE, ETHERNET, MELLANOX, NVIDIA, VGA, Machine

SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"  # a root port, and the upstream port of a switch below it


def device(path: str, numa: int = 0) -> PciDevice:
    *above, address = path.split("/")
    return PciDevice(address, tuple(above), numa)


def test_a_gpu_and_a_nic_on_one_switch_are_pix() -> None:
    gpu = device(f"{SWITCH}/0000:17:00.0/0000:18:00.0")
    nic = device(f"{SWITCH}/0000:17:01.0/0000:1a:00.0")
    assert topology.distance(gpu, nic) == topology.distance(nic, gpu) == "PIX"


def test_two_functions_of_one_card_are_pix() -> None:
    first, second = device("pci0000:15/0000:15:01.0/0000:16:00.0"), device("pci0000:15/0000:15:01.0/0000:16:00.1")
    assert topology.distance(first, second) == "PIX"


def test_a_nic_behind_a_second_switch_is_pxb() -> None:
    gpu = device(f"{SWITCH}/0000:17:00.0/0000:18:00.0")
    nic = device(f"{SWITCH}/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0")
    assert topology.distance(gpu, nic) == "PXB"
    assert topology.distance(gpu, device(f"{SWITCH}/0000:17:01.0/0000:19:00.0/0000:1a:00.0")) == "PXB"


def test_two_root_ports_of_one_host_bridge_are_phb() -> None:
    gpu, nic = device("pci0000:00/0000:00:01.0/0000:01:00.0"), device("pci0000:00/0000:00:02.0/0000:02:00.0")
    assert topology.distance(gpu, nic) == "PHB"


def test_host_bridges_of_one_numa_node_are_node_and_of_two_are_sys() -> None:
    gpu = device("pci0000:15/0000:15:01.0/0000:16:00.0", numa=0)
    assert topology.distance(gpu, device("pci0000:26/0000:26:01.0/0000:27:00.0", numa=0)) == "NODE"
    assert topology.distance(gpu, device("pci0000:97/0000:97:01.0/0000:98:00.0", numa=1)) == "SYS"


def test_an_unknown_numa_node_is_near_only_where_there_is_one() -> None:
    gpu = device("pci0008:00/0008:00:00.0/0008:01:00.0", numa=-1)
    nic = device("pci0002:00/0002:00:00.0/0002:01:00.0", numa=-1)
    assert topology.distance(gpu, nic) == "SYS"
    assert topology.distance(gpu, nic, one_node=True) == "NODE"


def test_a_function_is_itself() -> None:
    nic = device(f"{SWITCH}/0000:17:01.0/0000:1a:00.0")
    assert topology.distance(nic, nic) == "X"


def test_the_matrix_of_a_machine_has_a_row_for_each_gpu_and_a_column_for_each_nic(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nodes=2)
    machine.gpu(f"{SWITCH}/0000:17:00.0/0000:18:00.0")
    machine.gpu("pci0000:97/0000:97:01.0/0000:98:00.0", numa=1)
    machine.function(f"{SWITCH}/0000:17:01.0/0000:1a:00.0", MELLANOX, ETHERNET)
    machine.function("pci0000:00/0000:00:1c.0/0000:02:00.0", ASPEED, VGA)  # the console of a management controller
    found = topology.read([("mlx5_0", "0000:1a:00.0"), ("rxe0", "")], str(tmp_path))
    assert [gpu.address for gpu in found.gpus] == ["0000:18:00.0", "0000:98:00.0"]
    assert [name for name, _ in found.nics] == ["mlx5_0"]
    assert found.matrix() == [["PIX"], ["SYS"]]
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
    assert (found.gpus, found.nics, found.matrix()) == ((), (), [])
