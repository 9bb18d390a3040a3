"""The models of conf/examples with functions of a real card, which has no RDMA, fewer VFs and a smaller MTU than they ask for."""

from collections.abc import Callable

import pytest

from tests.device_plugin.scene import Scene
from tests.device_plugin.test_overlay import RESOURCES, config_map, network
from tests.lab import networks, pci
from tests.lab.machine import Machine, command
from tests.lab.test_device_plugin import started

MACHINES = ("iommu",)
CARDS = {' "isRdma": true,': "", ', "isRdma": true': "", '"numVfs": 8': '"numVfs": 2', "9000": "1400"}
MAC = "02:00:00:00:00:c8"


@pytest.mark.parametrize("model", ["sriov-roce", "sriov-dpdk", "pf-passthrough"])
def test_the_function_of_a_model_is_offered_and_the_network_takes_it(
    machine: Machine, model: str, say: Callable[[str], None]
) -> None:
    machine.host.set_sysctl("net/ipv6/conf/default/accept_ra", 0)  # QEMU's network would give the VFs a default route
    card = pci.cards()[0]
    pci.set_vfs(card, 0)
    before = pci.netdev(card.name)
    command("ip", "link", "set", before, "down")
    command("ip", "link", "set", before, "name", "ens2f0")
    networks.keep_leases_in_a_file()
    resource, text = RESOURCES[model], config_map(model)
    for theirs, ours in CARDS.items():
        text = text.replace(theirs, ours)
    try:
        with Scene(real=True) as scene:
            started(scene, text)
            assert scene.kubelet.until(lambda: scene.kubelet.allocatable(resource)), scene.lines
            given = scene.kubelet.allocate("pod/bw-server", resource)
            address = given.envs["PCIDEVICE_" + resource.translate(str.maketrans("/.", "__")).upper()]
            machine.remember()
            pod = machine.pod("bw-server")
            asked = {"mac": MAC} if model == "sriov-dpdk" else {}
            config = network(model) | {"runtimeConfig": {"deviceID": address, **asked}}
            if "mtu" in config:
                config["mtu"] = 1400
            reply = networks.call(machine, "ADD", config, pod)
            reply.succeeded()
            if model == "sriov-dpdk":
                assert given.devices[0].host_path == "/dev/vfio/vfio" and pod.view.names() == []
                assert MAC in command("ip", "link", "show", "ens2f0")
            else:
                assert reply.addresses == ["192.168.111.1/24"] and pod.view.names() == ["net1"]
            say(f"{model}: {address} of {resource} is the pod's")
            networks.call(machine, "DEL", config, pod).succeeded()
            assert machine.leftovers() == []
    finally:
        pci.set_vfs(card, 0)
        command("ip", "link", "set", pci.wait_for_netdev(card.name), "down")
        command("ip", "link", "set", pci.netdev(card.name), "name", before)
