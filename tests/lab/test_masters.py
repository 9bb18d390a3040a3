"""Masters that stand on the RDMA netdev, and MTUs: what an attachment has then, by the kernel that makes GIDs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lab import networks
from tests.lab.machine import Machine, command, gids
from tests.node import Pod, until

MACHINES = ("roce",)
RANGE = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
ADDRESS = "0000:0000:0000:0000:0000:ffff:c0a8:6f01"
Say = Callable[[str], None]


def config(master: str, **more: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": master, "ipam": RANGE} | more


@pytest.fixture
def node(machine: Machine) -> Machine:
    machine.dummy("ens2f0", mtu=9000)
    machine.soft_roce("mlx5_0", "ens2f0")
    return machine


def attached(node: Machine, master: str, say: Say, **more: Any) -> Pod:
    """A pod on `master`, whose address is in the GID table of the verbs device below; DEL takes both away."""
    before = gids()
    node.remember()
    pod = node.pod()
    result = networks.call(node, "ADD", config(master, **more), pod).succeeded()
    say("\n".join(f"GID {n} {gid} {kind} {link}" for n, (gid, kind, link) in gids().items()))
    assert (ADDRESS, "RoCE v2", "net1") in gids().values()
    networks.call(node, "CHECK", config(master, **more) | {"prevResult": result}, pod).succeeded()
    networks.call(node, "DEL", config(master, **more), pod).succeeded()
    assert until(lambda: gids() == before, 30), gids()
    assert node.leftovers() == []
    return pod


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


@pytest.mark.parametrize("master", ["ipvl0", "ens2f0"])
def test_an_ipvlan_as_master_and_a_netdev_that_has_one_are_refused_by_name(
    node: Machine, master: str, say: Say
) -> None:
    command("ip", "link", "add", "link", "ens2f0", "name", "ipvl0", "type", "ipvlan", "mode", "l2")
    command("ip", "link", "set", "ipvl0", "up")
    node.remember()
    reply = networks.call(node, "ADD", config(master), node.pod())
    words = ("is an ipvlan", "without ipvlans") if master == "ipvl0" else ("taken by", "use another netdev")
    reply.refused(7 if master == "ipvl0" else reply.code, f'"{master}"', *words)
    say(reply.msg)
    assert node.leftovers() == []


def test_an_MTU_above_the_masters_is_refused_with_both_numbers(node: Machine, say: Say) -> None:
    node.host.set("ens2f0", mtu=1500)
    node.remember()
    reply = networks.call(node, "ADD", config("ens2f0", mtu=9000), node.pod())
    reply.refused(7, "9000", "1500")
    say(reply.msg)
    assert node.leftovers() == []


@pytest.mark.parametrize("mtu", [1500, 4200, 9000])
def test_without_an_MTU_a_pod_has_the_masters(node: Machine, mtu: int) -> None:
    node.host.set("ens2f0", mtu=mtu)
    pod = node.pod()
    networks.call(node, "ADD", config("ens2f0"), pod).succeeded()
    assert pod.view.link("net1").mtu == mtu


def test_CHECK_finds_a_pods_MTU_that_shrank_with_the_masters(node: Machine, say: Say) -> None:
    pod = node.pod()
    result = networks.call(node, "ADD", config("ens2f0", mtu=9000), pod).succeeded()
    node.host.set("ens2f0", mtu=1500)
    node.host.set("ens2f0", mtu=9000)
    assert pod.view.link("net1").mtu == 1500
    reply = networks.call(node, "CHECK", config("ens2f0", mtu=9000) | {"prevResult": result}, pod)
    assert reply.status == 1 and "1500" in reply.msg, reply.document
    say(reply.msg)
