"""A function that is bound to vfio-pci, for DPDK or a virtual machine: it has no netdev to move."""

from collections.abc import Callable
from pathlib import Path

from tests.lab import networks, pci
from tests.lab.machine import Machine

MACHINES = ("iommu",)


def test_a_function_bound_to_vfio_stays_where_it_is_and_its_pod_gets_an_address(
    machine: Machine, card: Path, say: Callable[[str], None]
) -> None:
    address = pci.set_vfs(card, 1)[0]
    pci.rebind(address, "vfio-pci")
    machine.remember()
    group = (pci.DEVICES / address / "iommu_group").resolve().name
    say(f"{address} is bound to vfio-pci, as group {group} of the IOMMU")
    config, pod = networks.vf_net(address), machine.pod()
    reply = networks.call(machine, "ADD", config, pod)
    reply.succeeded()
    assert reply.addresses == ["192.168.111.1/24"] and pod.view.names() == []
    assert machine.leases() == ["192.168.111.1"]
    assert (pci.DEVICES / address / "driver").resolve().name == "vfio-pci"
    networks.call(machine, "DEL", config, pod).succeeded()
    assert machine.leftovers() == []
    assert (pci.DEVICES / address / "driver").resolve().name == "vfio-pci"
