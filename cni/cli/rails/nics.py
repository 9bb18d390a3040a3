"""What `railcni rails show` draws: the NICs of the node, the GPU that is nearest to each, and which rails they carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cni.cli.rails.attached import AttachedRail, look
from cni.library.inventory import devices as inventory
from cni.library.inventory import topology
from cni.shared.kernel import sysfs
from cni.shared.spec.errors import CniError


def read(rails: Sequence[AttachedRail], root: str = "/sys") -> list[dict[str, Any]]:
    """A NIC each: those with verbs devices and those that carry rails, the latter in the order of their rails."""
    devices = [d for d in inventory.read(root=root) if not d.is_virtual_function]
    known = {p.netdev: d for d in devices for p in d.ports if p.netdev}
    carriers = list(
        dict.fromkeys(a.carrier for a in sorted(rails, key=lambda a: (a.rail.group, a.rail.index)) if a.carrier)
    )
    names = [*carriers, *(name for name in known if name not in carriers)]
    places = {name: known[name].pci if name in known else _pci_of(name, root) for name in names}
    found = topology.read(((name, pci) for name, pci in places.items() if pci), root)
    return [_nic(name, places[name], known.get(name), found, rails) for name in names]


def _pci_of(netdev: str, root: str) -> str:
    last = sysfs.pci_path_of_netdev(netdev, root).rpartition("/")[2]
    return last if topology.is_address(last) else ""


def _nic(
    name: str, pci: str, device: inventory.VerbsDevice | None, found: topology.Topology, rails: Sequence[AttachedRail]
) -> dict[str, Any]:
    place = dict(found.nics).get(name)
    near = [
        (topology.NEAREST_FIRST.index(distance), f"GPU{number}", distance)
        for number, gpu in enumerate(found.gpus)
        if place and (distance := found.distance(gpu, place))
    ]
    best = min(near, default=None)
    return {
        "netdev": name,
        "verbsDevice": device.name if device else "",
        "pci": pci,
        "numaNode": place.numa_node if place and place.numa_node >= 0 else None,
        "gpu": best[1] if best else "",
        "distance": best[2] if best else "",
        "rails": [_rail(a) for a in rails if a.carrier == name],
    }


def _rail(attached: AttachedRail) -> dict[str, Any]:
    try:
        addresses = [str(a.ip) for a in look(attached).addresses]
    except CniError:  # the sandbox is gone
        addresses = []
    return {
        "group": attached.rail.group,
        "rail": attached.rail.index,
        "pod": attached.pod,
        "interface": attached.ifname,
        "addresses": addresses,
    }


COLUMNS = ("GPU", "distance", "NIC", "verbs device", "pci", "numa", "rail", "pod", "interface", "addresses")


def rows(found: Sequence[dict[str, Any]]) -> list[Sequence[object]]:
    """A line for each rail of each NIC; one for a NIC without."""
    lines: list[Sequence[object]] = []
    for nic in found:
        head = (nic["gpu"], nic["distance"], nic["netdev"], nic["verbsDevice"], nic["pci"], nic["numaNode"])
        for rail in nic["rails"]:
            what = f"{rail['group']}/{rail['rail']}"
            lines.append((*head, what, rail["pod"], rail["interface"], " ".join(rail["addresses"])))
        if not nic["rails"]:
            lines.append((*head, None, None, None, None))
    return lines
