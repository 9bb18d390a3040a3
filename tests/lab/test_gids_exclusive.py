"""The key `rdma` in exclusive netns mode: the verbs device of a master is the host's alone."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.machine import Machine, command
from tests.node import Pod

MACHINES = ("exclusive",)


def network(**more: Any) -> dict[str, Any]:
    leases = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
    base = {"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0", "ipam": leases}
    return {**base, **more}


@pytest.fixture
def pod(machine: Machine) -> Pod:
    machine.dummy()
    machine.soft_roce()
    machine.remember()
    return machine.pod()


def test_a_macvlan_says_that_its_pod_cannot_open_the_verbs_device(
    machine: Machine, pod: Pod, say: Callable[[str], None]
) -> None:
    reply = machine.cni("macvlan", "ADD", network(), netns=pod)
    reply.succeeded()
    (line,) = reply.stderr.splitlines()
    say(line)
    assert "exclusive netns mode" in line and "mlx5_0" in line and "ens2f0" in line and "host-device" in line
    assert "mlx5_0" not in command("ip", "netns", "exec", "pod1", "rdma", "dev")
    machine.cni("macvlan", "STATUS", network()).succeeded()
    machine.cni("macvlan", "DEL", network(), netns=pod).succeeded()
    assert machine.leftovers() == []


def test_where_it_is_required_that_is_an_error(machine: Machine, pod: Pod, say: Callable[[str], None]) -> None:
    reply = machine.cni("macvlan", "ADD", network(rdma=True), netns=pod)
    reply.refused(7, "exclusive netns mode", "mlx5_0", "ens2f0", "host-device", "netns_mode=1")
    say(reply.msg)
    assert machine.leftovers() == []
    machine.cni("macvlan", "STATUS", network(rdma=True)).refused(50, "exclusive netns mode", "mlx5_0")


def test_a_verbs_device_that_was_moved_into_the_sandbox_is_not_missed(machine: Machine, pod: Pod) -> None:
    result = machine.cni("macvlan", "ADD", network(), netns=pod).succeeded()
    command("rdma", "dev", "set", "mlx5_0", "netns", "pod1")
    asked = {**network(), "prevResult": result}
    machine.cni("macvlan", "CHECK", asked, netns=pod).succeeded()
    command("ip", "netns", "exec", "pod1", "rdma", "link", "delete", "mlx5_0")
    reply = machine.cni("macvlan", "CHECK", asked, netns=pod)
    assert reply.code == 100 and "verbs device mlx5_0 is gone" in reply.msg
    machine.cni("macvlan", "DEL", network(), netns=pod).succeeded()
    assert machine.leftovers() == []
