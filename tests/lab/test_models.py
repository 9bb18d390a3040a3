"""The models of conf/examples on soft-RoCE: their devices, their network, and the program of their pods, as the files have them."""

from collections.abc import Callable

import pytest

from tests.device_plugin.scene import Scene
from tests.device_plugin.test_overlay import RESOURCES, config_map, network, pods
from tests.lab import networks, traffic
from tests.lab.machine import Machine, command
from tests.lab.test_device_plugin import nodes, offered, started

MACHINES = ("roce",)
SUBNET, ADDRESSES = "192.168.111.0/24", ("192.168.111.200", "192.168.111.1")  # of server and client


@pytest.fixture
def node(machine: Machine) -> Machine:
    command("modprobe", "rdma_ucm")
    machine.dummy()
    machine.soft_roce()
    networks.keep_leases_in_a_file()
    machine.remember()
    return machine


def test_the_pods_of_roce_shared_measure_without_a_device_or_an_address_by_hand(
    node: Machine, say: Callable[[str], None]
) -> None:
    with Scene(real=True) as scene:
        started(scene, config_map("roce-shared"))
        assert scene.kubelet.until(lambda: scene.kubelet.allocatable(RESOURCES["roce-shared"])), scene.lines
        given = scene.kubelet.allocate("pod/bw-server", RESOURCES["roce-shared"])
        assert nodes(given) == ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"]
    made, programs = [], []
    for pod, asked, address in zip(pods("bandwidth"), ({"ips": [f"{ADDRESSES[0]}/24"]}, {}), ADDRESSES, strict=True):
        (container,) = pod["spec"]["containers"]
        environ = {one["name"]: one["value"] for one in container["env"]}
        environ["OPTIONS"] += " -F -q 1 -n 50"  # the guest is slow
        programs.append(["env", *(f"{key}={value}" for key, value in environ.items()), *container["command"]])
        made.append((node.pod(pod["metadata"]["name"]), {**network("roce-shared"), "runtimeConfig": asked}))
        reply = networks.call(node, "ADD", made[-1][1], made[-1][0])
        reply.succeeded()
        assert reply.addresses == [f"{address}/24"]
    with traffic.turned_round("ens2f0", SUBNET, ADDRESSES):
        text = traffic.between(made[0][0], made[1][0], *programs)
    say(traffic.shown(text))
    assert "rdma_cm QPs\t : ON" in text and "BW average" in text
    for at, config in made:
        networks.call(node, "DEL", config, at).succeeded()
    assert node.leftovers() == []


def test_a_nic_has_a_thousand_devices_for_pods_in_the_network_of_the_host(node: Machine) -> None:
    with Scene(real=True) as scene:
        started(scene, config_map("host-network"))
        assert offered(scene, 1000, RESOURCES["host-network"]), scene.lines
