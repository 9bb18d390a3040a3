"""Masters that stand on the RDMA netdev: what an attachment has then, by the kernel that makes GIDs."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.lab import networks
from tests.lab.machine import Machine, command, gids
from tests.node import until

MACHINES = ("roce",)
ADDRESS = "0000:0000:0000:0000:0000:ffff:c0a8:6f01"
Say = Callable[[str], None]


def config(master: str) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": master, "ipam": networks.RANGE}


@pytest.fixture
def node(machine: Machine) -> Machine:
    machine.dummy("ens2f0", mtu=9000)
    machine.soft_roce("mlx5_0", "ens2f0")
    return machine


def attached(node: Machine, master: str, say: Say) -> None:
    """A pod on `master`, whose address is in the GID table of the verbs device below; DEL takes both away."""
    before = gids()
    node.remember()
    pod = node.pod()
    result = networks.call(node, "ADD", config(master), pod).succeeded()
    say("\n".join(f"GID {n} {gid} {kind} {link}" for n, (gid, kind, link) in gids().items()))
    assert (ADDRESS, "RoCE v2", "net1") in gids().values()
    networks.call(node, "CHECK", config(master) | {"prevResult": result}, pod).succeeded()
    networks.call(node, "DEL", config(master), pod).succeeded()
    assert until(lambda: gids() == before, 30), gids()
    assert node.leftovers() == []


def test_a_VLAN_as_master(node: Machine, say: Say) -> None:
    command("ip", "link", "add", "link", "ens2f0", "name", "ens2f0.100", "type", "vlan", "id", "100")
    command("ip", "link", "set", "ens2f0.100", "up")
    attached(node, "ens2f0.100", say)


def test_a_bond_as_master(node: Machine, say: Say) -> None:
    command("ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "100")
    command("ip", "link", "set", "ens2f0", "down")
    command("ip", "link", "set", "ens2f0", "master", "bond0")
    command("ip", "link", "set", "ens2f0", "mtu", "9000", "up")
    command("ip", "link", "set", "bond0", "mtu", "9000", "up")
    assert until(lambda: node.host.link("bond0").carrier, 60)
    attached(node, "bond0", say)
