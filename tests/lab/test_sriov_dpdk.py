"""A VF that vfio-pci holds, for DPDK: set through its PF, not moved, its addresses allocated all the same."""

from collections.abc import Callable

from tests.lab.machine import Machine, command
from tests.lab.pci import card, rebind
from tests.lab.test_sriov import MAC, network

MACHINES = ("iommu",)


def test_a_vf_of_vfio_is_set_through_its_pf_and_stays_where_it_is(machine: Machine, say: Callable[[str], None]) -> None:
    with card(machine) as nic:
        rebind(nic.vfs[0], "vfio-pci")
        before = nic.state(0)
        pod, other = machine.pod("pod1"), machine.pod("pod2")
        config = network(nic.vfs[0], vlan=100, spoofchk="off", mac=MAC)
        result = machine.cni("sriov", "ADD", config, netns=pod).succeeded()
        wanted = {"name": "net1", "mac": MAC, "mtu": 1500, "sandbox": pod.path, "pciID": nic.vfs[0]}
        assert (result["interfaces"], pod.view.names()) == ([wanted], [])
        assert result["ips"][0]["address"] == "192.168.111.1/24"
        state = nic.state(0)
        say(f"{nic.vfs[0]} of vfio-pci: {state}")
        assert (state["vlan_list"][0]["vlan"], state["spoofchk"], state["address"]) == (100, False, MAC)
        machine.cni("sriov", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
        command("ip", "link", "set", nic.pf, "vf", "0", "vlan", "7")
        machine.cni("sriov", "CHECK", {**config, "prevResult": result}, netns=pod).refused(100, "vlan", "is 7, was 100")
        machine.cni("sriov", "ADD", config, netns=other, container_id="c2").refused(11, nic.vfs[0], "c1")
        machine.delete_pod(pod)
        second = network(nic.vfs[0], vlan=300)
        machine.cni("sriov", "ADD", second, netns=other, container_id="c2").succeeded()
        machine.cni("sriov", "DEL", config, netns=pod.path).succeeded()  # late
        assert nic.state(0)["vlan_list"][0]["vlan"] == 300
        machine.cni("sriov", "DEL", second, netns=other, container_id="c2").succeeded()
        assert (nic.state(0), machine.leases(), machine.files()) == (before, [], [])
