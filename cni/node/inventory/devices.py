"""The verbs devices of a node as plain values: the PCI function, the ports, and the owners of the GIDs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cni.node.inventory import topology
from cni.node.inventory.sandboxes import NamespaceView, SandboxInterface
from cni.node.inventory.topology import text
from cni.shared.kernel import rdma_sysfs
from cni.shared.kernel.files import names_in


@dataclass(frozen=True)
class Gid:
    """An entry of a GID table. `kind` is "RoCE v2", for example. `ndev` is the name of the entry's netdev in the
    netdev's namespace. `owner` is the pod or namespace with this netdev; "" for the command's own, or if unknown."""

    index: int
    value: str
    kind: str
    address: str
    ndev: str
    owner: str = ""


@dataclass(frozen=True)
class Port:
    """A port of a verbs device. `mtu` is the netdev's MTU, and `roce_mtu` the resulting RoCE MTU, both in bytes, or
    None if unknown; without RoCE, `roce_mtu` is None. `carrier` is None if the netdev is in another namespace. `room`
    is the size of the GID table. `links` are the netdevs of this namespace whose traffic passes the port; a GID with
    another `ndev` belongs to a pod."""

    device: str
    number: int
    netdev: str
    state: str
    physical_state: str
    link_layer: str
    is_roce: bool
    rate: str
    carrier: bool | None
    mtu: int | None
    roce_mtu: int | None
    room: int
    gids: tuple[Gid, ...]
    links: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.device} port {self.number}"

    @property
    def is_active(self) -> bool:
        """Whether the port can carry traffic."""
        return self.state == rdma_sysfs.ACTIVE

    @property
    def speed(self) -> float | None:
        """The rate in Gb/s; None when it is unknown."""
        return gigabits(self.rate)


@dataclass(frozen=True)
class VerbsDevice:
    """A verbs device. `pci`, `driver` and `model` are "" for a software device; `numa_node` is -1 if it is unknown."""

    name: str
    pci: str
    numa_node: int
    driver: str
    model: str
    firmware: str
    is_virtual_function: bool
    ports: tuple[Port, ...]


def read(sandboxes: Sequence[NamespaceView] = (), root: str = "/sys") -> list[VerbsDevice]:
    # reversed: if several namespaces have a link with this name and address, the first namespace counts
    links = {(i.name, a): (s.owner, i.mtu) for s in reversed(sandboxes) for i in s.interfaces for a in i.addresses}
    above: dict[tuple[str, int], set[str]] = {}  # the netdevs of this namespace whose traffic passes a port
    for netdev in names_in(f"{root}/class/net"):
        for port in rdma_sysfs.ports_of_netdev(netdev, root):
            above.setdefault(port, set()).add(netdev)
    found = []
    for name in rdma_sysfs.devices(root):
        address = rdma_sysfs.pci_of(name, root)
        function = topology.device(address, root) if address else topology.PciDevice("", ())
        device = VerbsDevice(
            name=name,
            pci=address,
            numa_node=function.numa_node,
            driver=function.driver,
            model=model_of(name, address, root),
            firmware=text(f"{root}{rdma_sysfs.CLASS}/{name}/fw_ver"),
            is_virtual_function=function.is_virtual_function,
            ports=tuple(_port(name, number, links, above, root) for number in rdma_sysfs.ports(name, root)),
        )
        found.append(device)
    return found


def gigabits(rate: str) -> float | None:
    """The Gb/s in a port's `rate`, such as 100 for "100 Gb/sec (4X EDR)"; None if `rate` has another form."""
    number, unit, _ = rate.partition(" Gb/sec")
    return float(number) if unit else None


def model_of(device: str, address: str, root: str = "/sys") -> str:
    """The vendor and product IDs of a verbs device with the PCI address `address`, and the board's ID if the driver
    shows it: boards of one product differ in rates and firmware. "" for a software device."""
    if not address:
        return ""
    product = ":".join(text(f"{root}/bus/pci/devices/{address}/{name}")[2:] for name in ("vendor", "device"))
    return f"{product} {text(f'{root}{rdma_sysfs.CLASS}/{device}/board_id')}".strip()


def ports(devices: Iterable[VerbsDevice]) -> list[Port]:
    return [port for device in devices for port in device.ports]


def ports_of(link: SandboxInterface, devices: Sequence[VerbsDevice], root: str = "/sys") -> list[Port]:
    """The RDMA ports that carry the traffic of `link`: those of its lower netdev, or those of its own PCI function."""
    below = rdma_sysfs.ports_of_netdev(link.lower, root) if link.lower else ()
    own = [device.name for device in devices if link.bus == "pci" and device.pci == link.device]
    return [port for port in ports(devices) if (port.device, port.number) in below or port.device in own]


_Links = dict[tuple[str, str], tuple[str, int]]
"""(owner, MTU) of each link, by (name, address)."""


def _port(device: str, number: int, links: _Links, above: Mapping[tuple[str, int], Collection[str]], root: str) -> Port:
    state = rdma_sysfs.PortState(device, number, root)
    gids = []
    for entry in rdma_sysfs.gids(device, number, root):
        if state.link_layer == rdma_sysfs.INFINIBAND:
            entry.kind = "IB"  # "IB/RoCE v1" of the kernel means either
        owner, _ = links.get((entry.ndev, entry.address), ("", 0))
        gids.append(Gid(**vars(entry), address=entry.address, owner=owner))
    netdev = rdma_sysfs.netdev_of(device, number, root)
    seen = f"{root}/class/net/{netdev}"
    mtu = text(f"{seen}/mtu") if netdev else ""
    is_here = mtu.isdigit()
    of_pod = [links[g.ndev, g.address][1] for g in gids if g.ndev == netdev and (g.ndev, g.address) in links]
    size = int(mtu) if is_here else next(iter(of_pod), None)  # the netdev may be in a pod
    is_roce = rdma_sysfs.is_roce(device, number, root)
    return Port(
        **vars(state),
        netdev=netdev,
        is_roce=is_roce,
        carrier=text(f"{seen}/carrier") == "1" if is_here or os.path.isdir(seen) else None,
        mtu=size,
        roce_mtu=rdma_sysfs.roce_mtu(size) if is_roce and size is not None else None,
        room=rdma_sysfs.gid_table_size(device, number, root),
        gids=tuple(gids),
        links=frozenset(above.get((device, number), ())),
    )
