"""The walk-through: two pods by a NAD, as Multus calls the plugins, on one RDMA master; traffic; nothing is left.

The tests of this file are steps: each goes on where the one before ended.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.lab import networks, traffic
from tests.lab.machine import Machine, command, gids
from tests.node import Pod, until

MACHINES = ("roce",)
SUBNET, ADDRESSES = "192.168.111.0/24", ("192.168.111.1", "192.168.111.2")
Say = Callable[[str], None]
Table = dict[int, tuple[str, str, str]]


@pytest.fixture(scope="module")
def node() -> Iterator[Machine]:
    with Machine() as fresh:
        fresh.dummy("ens2f0", mtu=9000)
        fresh.soft_roce("mlx5_0", "ens2f0")
        networks.keep_leases_in_a_file()
        fresh.remember()
        for name in ("rdma-pod-1", "rdma-pod-2"):
            fresh.pod(name)
        yield fresh


@pytest.fixture(scope="module")
def before(node: Machine) -> Table:
    """The GIDs before anything is attached."""
    return gids()


@pytest.fixture
def pods(node: Machine) -> list[Pod]:
    return list(node.pods.values())


def test_two_pods_are_attached_and_what_ADD_has_given_has_a_GID(
    node: Machine, before: Table, pods: list[Pod], say: Say
) -> None:
    config = networks.nad("rdma-net-ipam")
    for pod, address in zip(pods, ADDRESSES, strict=True):
        reply = networks.call(node, "ADD", config, pod)
        reply.succeeded()
        assert reply.addresses == [f"{address}/24"]
        assert (_mapped(address), "RoCE v2", "net1") in gids().values()
        say(command("ip", "netns", "exec", pod.name, "ip", "addr", "show", "dev", "net1").rstrip())
    say("\n".join(f"mlx5_0 port 1 GID {n:2}  {gid}  {kind}  {link}" for n, (gid, kind, link) in gids().items()))


def test_a_ping_of_the_whole_mtu_crosses(node: Machine, pods: list[Pod], say: Say) -> None:
    ping = command("ip", "netns", "exec", pods[0].name, "ping", "-c", "3", "-M", "do", "-s", "8972", ADDRESSES[1])
    say("\n".join(ping.splitlines()[-2:]))
    assert " 0% packet loss" in ping


def test_ib_write_bw_with_the_GID_index_of_each_pod(node: Machine, pods: list[Pod], say: Say) -> None:
    server, client = (["-d", "mlx5_0", "-x", str(_index(address))] for address in ADDRESSES)
    with traffic.turned_round("ens2f0", SUBNET, ADDRESSES):
        text = traffic.write_bw(pods[0], pods[1], ADDRESSES[0], server, client)
    say(traffic.shown(text))
    assert "GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:111:01" in text
    assert "GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:111:02" in text
    assert "4096[B]" in text and "Link type       : Ethernet" in text


def test_ib_write_bw_with_rdma_cm(node: Machine, pods: list[Pod], say: Say) -> None:
    with traffic.turned_round("ens2f0", SUBNET, ADDRESSES):
        text = traffic.write_bw(pods[0], pods[1], ADDRESSES[0], ["-d", "mlx5_0", "-R"], ["-d", "mlx5_0", "-R"])
    say(traffic.shown(text))
    assert "rdma_cm QPs\t : ON" in text


def test_rping(node: Machine, pods: list[Pod], say: Say) -> None:
    target = ["-a", ADDRESSES[0], "-C", "3", "-v"]
    with traffic.turned_round("ens2f0", SUBNET, ADDRESSES):
        text = traffic.between(pods[0], pods[1], ["rping", "-s", *target], ["rping", "-c", *target])
    say(text)
    assert text.count("ping data: rdma-ping-") == 3


def test_deletes_leave_nothing(node: Machine, before: Table, pods: list[Pod], say: Say) -> None:
    config = networks.nad("rdma-net-ipam")
    for pod in pods:
        assert networks.call(node, "DEL", config, pod).succeeded() is None
    assert until(lambda: gids() == before, 30), gids()
    assert node.leftovers() == []
    say(f"no lease, record, link or GID beside those of ens2f0: {len(gids())} GID")


def test_an_address_goes_from_the_GID_table_with_its_pod(node: Machine, before: Table, pods: list[Pod]) -> None:
    config = networks.nad("rdma-net-ipam")
    networks.call(node, "ADD", config, pods[0]).succeeded()
    assert gids() != before
    node.delete_pod(pods[0])
    assert until(lambda: gids() == before, 30), gids()
    assert networks.call(node, "DEL", config, pods[0]).succeeded() is None
    assert node.leases() == []


def _index(address: str) -> int:
    return next(n for n, (gid, _, link) in gids().items() if gid == _mapped(address) and link == "net1")


def _mapped(address: str) -> str:
    """The GID of an IPv4 address: ::ffff:ADDRESS, as sysfs writes it."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
