"""The sysfs of machines that nobody here has: with GPUs, with bonds, with InfiniBand, with soft-RoCE alone.

Formats are the kernel's: Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-infiniband, sysfs-class-net,
Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/stable/sysfs-devices-node.
"""

from pathlib import Path

from tests.sysfs import Tree

MELLANOX, NVIDIA, ASPEED = 0x15B3, 0x10DE, 0x1A03
ETHERNET, VGA, COMPUTE, BRIDGE, INFINIBAND = 0x020000, 0x030000, 0x030200, 0x060400, 0x020700
DOWN = {"state": "1: DOWN", "physical_state": "3: Disabled"}
NIC_LINK = {
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "current_link_width": 16,
    "max_link_width": 16,
}


class Machine(Tree):
    """A machine with so many NUMA nodes, whose PCI functions say what they are and stand below bridges that do."""

    def __init__(self, root: Path, nodes: int = 1) -> None:
        super().__init__(root)
        self.put(root / "devices/system/node", {"online": "0" if nodes == 1 else f"0-{nodes - 1}"})

    def function(
        self, place: str, vendor: int, kind: int, numa: int = 0, driver: str = "", **attributes: object
    ) -> str:
        """A PCI function; `place` is its path below /sys/devices, its bridges are made as it needs them. Its address."""
        _, *above, address = place.split("/")
        for depth, bridge in enumerate(above):
            if not (self.root / "bus/pci/devices" / bridge).is_symlink():
                of_bridge = {"vendor": "0x8086", "class": f"{BRIDGE:#08x}", "numa_node": numa}
                self.pci(bridge, above[:depth], "pcieport", **of_bridge)
        own = {"vendor": f"{vendor:#06x}", "class": f"{kind:#08x}", "numa_node": numa}
        self.pci(address, above, driver, **own, **attributes)
        return address

    def gpu(self, place: str, numa: int = 0) -> None:
        self.function(place, NVIDIA, COMPUTE, numa, "nvidia")

    def nic(self, place: str, numa: int = 0, kind: int = ETHERNET) -> str:
        """A ConnectX, whose PCIe link is what it can be."""
        return self.function(place, MELLANOX, kind, numa, "mlx5_core", **NIC_LINK)


def hgx(root: Path) -> Machine:
    """Eight GPUs, each on a PCIe switch with a NIC of its own; a ninth NIC on a root port, for storage; two NUMA nodes."""
    machine = Machine(root, nodes=2)
    for i in range(8):
        numa, bus = i // 4, 0x10 + 0x10 * i
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        machine.gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", numa)
        nic = machine.nic(f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0", numa)
        netdev = f"ens{i}f0np0"
        machine.netdev(netdev, nic)
        machine.verbs(f"mlx5_{i}", nic, netdev, size=3, rate="400 Gb/sec (4X NDR)")
    nic = machine.nic("pci0000:00/0000:00:05.0/0000:06:00.0")
    machine.netdev("ens9f0np0", nic, mtu=1500, up=False)
    machine.verbs("mlx5_8", nic, size=5, rate="40 Gb/sec (4X QDR)", **DOWN)
    return machine


def grace(root: Path) -> Machine:
    """A Grace Hopper module: every device in a PCI domain of its own, so that no two share a host bridge."""
    machine = Machine(root)
    machine.gpu("pci0009:00/0009:00:00.0/0009:01:00.0")
    for number, domain in enumerate(("0000", "0002")):
        nic = machine.nic(f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0")
        netdev = f"enP{domain[-1]}p1s0f0np0"
        machine.netdev(netdev, nic)
        machine.verbs(f"mlx5_{number}", nic, netdev, size=5)
    return machine


def bond(root: Path) -> Machine:
    """Two ports of one NIC in a bond (LAG): one verbs device, whose netdev is the bond; a VLAN on top of it."""
    machine = Machine(root)
    first, second = (machine.nic(f"pci0000:3a/0000:3a:00.0/0000:3b:00.{n}") for n in (0, 1))
    machine.netdev("ens2f0np0", first)
    machine.netdev("ens2f1np1", second)
    machine.netdev("bond0", lower=["ens2f0np0", "ens2f1np1"])
    machine.netdev("bond0.100", lower=["bond0"], mtu=1500)
    machine.verbs("mlx5_bond_0", first, "bond0", size=5)
    machine.gid("mlx5_bond_0", "10.0.0.7", "bond0.100", index=3)
    return machine


def infiniband(root: Path) -> Machine:
    """An InfiniBand NIC, with IPoIB's netdev."""
    machine = Machine(root)
    nic = machine.nic("pci0000:3a/0000:3a:00.0/0000:3b:00.0", kind=INFINIBAND)
    machine.netdev("ibs2", nic, mtu=2044, type=32)
    machine.verbs("mlx5_0", nic, size=1, link_layer="InfiniBand", rate="200 Gb/sec (4X HDR)")
    machine.gid("mlx5_0", "fe80::c42:a103:12:3456", kind="IB/RoCE v1")
    return machine


def soft(root: Path) -> Machine:
    """soft-RoCE on a dummy, as the lab has it, with two pods' GIDs."""
    machine = Machine(root)
    machine.netdev("ens2f0")
    machine.verbs("mlx5_0", netdev="ens2f0", size=5)
    for address in ("192.168.111.1", "192.168.111.2"):
        machine.gid("mlx5_0", address, "net1")
    return machine
