"""The PCI network functions and the software verbs devices of a node, as plain values: their names, the attributes that
selectors compare, and their device nodes.

When a function is in a pod, sysfs hides the function's netdevs and, in RDMA's exclusive mode, its verbs devices. The
function's directories `net` and `infiniband` stay, and so do the directories of its character devices
(drivers/base/core.c, class_dir_create_and_add). Sources: Documentation/ABI/testing/sysfs-bus-pci,
Documentation/ABI/stable/sysfs-class-infiniband and Documentation/driver-api/vfio.rst of the kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cni.node.inventory import topology
from cni.node.inventory.topology import text
from cni.shared.kernel import rdma_sysfs, sysfs
from cni.shared.kernel.files import names_in, target_of

ETHER, INFINIBAND = "ether", "infiniband"  # as iproute2 calls them
_LINK_TYPES = {"1": ETHER, "32": INFINIBAND}  # include/uapi/linux/if_arp.h
_OF_LAYERS = {rdma_sysfs.ETHERNET: ETHER, rdma_sysfs.INFINIBAND: INFINIBAND}
_NETWORK = 0x02  # class of PCI functions
_NODES = {"uverbs": "infiniband_verbs", "umad": "infiniband_mad", "issm": "infiniband_mad"}


@dataclass(frozen=True)
class Function:
    """A network function. `id` is its PCI address, the name of a subfunction ("mlx5_core.sf.4", on the auxiliary bus),
    or the name of a software verbs device (rxe, siw).

    `vendor` and `product` are four hexadecimal digits, or "" for a software device. For a VF, `physical` is the PCI
    address of its PF, and `index` the VF's number; for a PF, `physical` is its own address, and `index` -1. `nodes` are
    names in /dev/infiniband: "uverbs0". `iommu_group` is the VFIO node's name: "42", or "noiommu-42" without IOMMU.
    """

    id: str
    vendor: str = ""
    product: str = ""
    driver: str = ""
    numa_node: int = -1
    netdevs: tuple[str, ...] = ()
    link_type: str = ""
    physical: str = ""
    physical_netdevs: tuple[str, ...] = ()
    index: int = -1
    has_virtual_functions: bool = False
    has_rdma: bool = False
    verbs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    iommu_group: str = ""

    @property
    def is_virtual(self) -> bool:
        return self.index >= 0

    @property
    def is_on_pci(self) -> bool:
        """Whether the function has a PCI address: Multus and the plugins can use no other function."""
        return topology.is_address(self.id)


def read(root: str = "/sys", before: Sequence[Function] = ()) -> list[Function]:
    """The PCI functions of the class "network" in the sysfs at `root`, sorted by address, then the subfunctions and the
    software verbs devices. sysfs hides netdevs in pods; their names are taken from `before`, an earlier result."""
    nodes = _nodes(root)
    former = {function.id: function for function in before}
    found = []
    for address in sorted(filter(topology.is_address, names_in(f"{root}/bus/pci/devices"))):
        device = topology.device(address, root)
        if device.kind >> 8 != _NETWORK:
            continue
        now = _function(device, nodes, root)
        old = former.get(address)
        if old and not now.netdevs and sysfs.has_netdev("pci", address, root):
            physical = now.physical_netdevs if now.is_virtual else old.netdevs
            kind = now.link_type or old.link_type
            now = replace(now, netdevs=old.netdevs, physical_netdevs=physical, link_type=kind)
        found.append(now)
    for name in rdma_sysfs.devices(root):
        if not rdma_sysfs.pci_of(name, root):
            found.append(_subfunction(name, nodes, root) or _software(name, nodes, root))
    return found


def _function(device: topology.PciDevice, nodes: dict[str, list[str]], root: str) -> Function:
    address = device.address
    folder = f"{root}/bus/pci/devices/{address}"
    netdevs = tuple(sysfs.netdevs_of_pci(address, root))
    verbs = tuple(rdma_sysfs.devices_of(address, root))
    physical, index = sysfs.function_of(address, root) or (address, -1)
    physical_netdevs = netdevs if index < 0 else tuple(sysfs.netdevs_of_pci(physical, root))
    group = os.path.basename(target_of(f"{folder}/iommu_group"))
    return Function(
        id=address,
        vendor=text(f"{folder}/vendor").removeprefix("0x"),
        product=text(f"{folder}/device").removeprefix("0x"),
        driver=device.driver,
        numa_node=device.numa_node,
        netdevs=netdevs,
        link_type=_link_type(verbs, (*netdevs, *physical_netdevs), root),
        physical=physical,
        physical_netdevs=physical_netdevs,
        index=index,
        has_virtual_functions=text(f"{folder}/sriov_numvfs") not in ("", "0"),
        has_rdma=os.path.isdir(f"{folder}/infiniband"),
        verbs=verbs,
        nodes=tuple(nodes.get(address, ())),
        iommu_group=f"noiommu-{group}" if text(f"{folder}/iommu_group/name") == "vfio-noiommu" else group,
    )


def _subfunction(name: str, nodes: dict[str, list[str]], root: str) -> Function | None:
    """The subfunction with the verbs device `name`; None for a software device. A subfunction is no PCI device."""
    place = os.path.realpath(f"{root}{rdma_sysfs.CLASS}/{name}/device")
    owner = sysfs.pci_above(place) if os.path.isdir(place) else ""
    if not owner:
        return None
    netdevs = tuple(sorted(names_in(f"{place}/net")))
    return replace(
        _function(topology.device(owner, root), nodes, root),
        id=os.path.basename(place),
        netdevs=netdevs,
        link_type=_link_type((name,), netdevs, root),
        has_virtual_functions=False,
        verbs=(name,),
        nodes=tuple(nodes.get(name, ())),
    )


def _software(name: str, nodes: dict[str, list[str]], root: str) -> Function:
    netdevs = tuple(filter(None, (rdma_sysfs.netdev_of(name, port, root) for port in rdma_sysfs.ports(name, root))))
    below = [sysfs.pci_above(sysfs.pci_path_of_netdev(netdev, root)) for netdev in netdevs]
    numa = [topology.device(address, root).numa_node for address in below if address]
    return Function(
        id=name,
        driver="siw" if rdma_sysfs.is_iwarp(name, root) else "rdma_rxe",
        numa_node=numa[0] if numa else -1,
        netdevs=netdevs,
        link_type=_link_type((name,), netdevs, root),
        has_rdma=True,
        verbs=(name,),
        nodes=tuple(nodes.get(name, ())),
    )


def _link_type(verbs: tuple[str, ...], netdevs: tuple[str, ...], root: str) -> str:
    """The link type of the first visible netdev, or else of the first verbs device; "" when it is unknown."""
    for netdev in netdevs:
        if kind := _LINK_TYPES.get(text(f"{root}/class/net/{netdev}/type")):
            return kind
    layers = [
        rdma_sysfs.PortState(name, port, root).link_layer for name in verbs for port in rdma_sysfs.ports(name, root)
    ]
    return _OF_LAYERS.get(layers[0], "") if layers else ""


def _nodes(root: str) -> dict[str, list[str]]:
    """The names of device nodes, by verbs device and also by PCI address, since sysfs may hide verbs devices."""
    found: dict[str, list[str]] = {}
    for kind, folder in _NODES.items():
        names = [name for name in names_in(f"{root}/class/{folder}") if name.removeprefix(kind).isdigit()]
        for name in sorted(names, key=lambda n: int(n.removeprefix(kind))):
            here = f"{root}/class/{folder}/{name}"
            for owner in {text(f"{here}/ibdev"), os.path.basename(os.path.realpath(f"{here}/device"))}:
                found.setdefault(owner, []).append(name)
    return found
