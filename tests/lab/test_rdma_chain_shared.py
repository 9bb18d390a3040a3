"""rdma in RDMA's shared netns mode, which is the kernel's default: said so, with how to switch."""

from tests.lab.machine import Machine, verbs_devices
from tests.lab.test_rdma_chain import network

MACHINES = ("roce",)


def test_the_shared_mode_is_named_with_how_to_leave_it(machine: Machine) -> None:
    machine.dummy("ens2f0")
    machine.soft_roce("mlx5_0", "ens2f0")
    pod = machine.pod("pod1")
    words = ("shared", "rdma system set netns exclusive", "no other network namespace", "netns_mode=0")
    machine.cni("rdma", "ADD", network(pod), netns=pod).refused(101, *words)
    machine.cni("rdma", "STATUS", network(pod)).refused(50, *words)
    machine.cni("rdma", "DEL", network(pod), netns=pod).succeeded()
    assert (verbs_devices(), machine.files()) == (["mlx5_0"], [])
