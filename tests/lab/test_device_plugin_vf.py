"""`railcni device-plugin` on functions of a real card, at a kubelet made for tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.cli.devices import PODS
from tests.containerd.runtime import MULTUS, conflist, multus
from tests.device_plugin.scene import Scene
from tests.device_plugin.test_overlay import HERE
from tests.lab import networks, pci
from tests.lab.machine import Machine, command
from tests.lab.test_device_plugin import nodes, offered, started
from tests.node import BIN, GO_PLUGINS
from tests.stores.cluster_api import ClusterServer

MACHINES = ("iommu",)
_TRIES = 10


def test_virtual_functions_are_offered_and_that_of_vfio_with_its_group(
    machine: Machine, card: Path, say: Callable[[str], None]
) -> None:
    first, second = pci.set_vfs(card, 2)
    pci.rebind(second, "vfio-pci")
    with Scene(real=True) as scene:
        netdev = {"resourceName": "netdev", "selectors": [{"rootDevices": [f"{card.name}#0"]}]}
        dpdk = {"resourceName": "dpdk", "selectors": [{"drivers": ["vfio-pci"]}]}
        started(scene, {"resourceList": [netdev, dpdk]})
        assert offered(scene, 1, "intel.com/netdev") and offered(scene, 1, "intel.com/dpdk"), scene.lines
        given = scene.kubelet.allocate("pod/netdev", "intel.com/netdev")
        assert (given.envs["PCIDEVICE_INTEL_COM_NETDEV"], nodes(given)) == (first, [])
        given = scene.kubelet.allocate("pod/dpdk", "intel.com/dpdk")
        group = (pci.DEVICES / second / "iommu_group").resolve().name
        say(f"{second} is offered with group {group} of the IOMMU")
        assert given.envs["PCIDEVICE_INTEL_COM_DPDK"] == second
        assert nodes(given) == ["/dev/vfio/vfio", f"/dev/vfio/{group}"]


def test_a_function_by_its_resource_name_goes_into_the_pod_stays_offered_and_comes_back(
    machine: Machine, card: Path, say: Callable[[str], None]
) -> None:
    """Multus passes the plugin the device of the NAD's resource as deviceID: so does this test, in its place."""
    pci.set_vfs(card, 2)
    machine.remember()
    with Scene(real=True) as scene:
        started(scene, {"resourceList": [{"resourceName": "vf", "selectors": [{"rootDevices": [card.name]}]}]})
        assert offered(scene, 2, "intel.com/vf"), scene.lines
        address = scene.kubelet.allocate("pod/vf", "intel.com/vf").envs["PCIDEVICE_INTEL_COM_VF"]
        config, pod = networks.vf_net(address), machine.pod()
        reply = networks.call(machine, "ADD", config, pod)
        reply.succeeded()
        say(f"{address} is net1 of the pod, with {reply.addresses[0]}")
        assert "net1" in pod.view.names() and pci.netdev(address) == ""
        known = scene.kubelet.resources["intel.com/vf"]
        assert not scene.kubelet.until(lambda: len(known.healthy) != 2, 5)
        assert scene.kubelet.free("intel.com/vf") == sorted(known.healthy - {address})
        networks.call(machine, "DEL", config, pod).succeeded()
        assert pci.wait_for_netdev(address) and machine.leftovers() == []


def test_the_capabilities_of_the_component_vfs_are_enough_to_make_them(
    machine: Machine, card: Path, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """The number of a card's VFs, their drivers and MTUs, and whether a process has the node of one open."""
    (container,) = yaml.safe_load((HERE / "vfs/daemonset.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    added = [f"+{name.lower()}" for name in container["securityContext"]["capabilities"]["add"]]
    file = tmp_path / "config.json"
    selector = {"rootDevices": [f"{card.name}#1"]}
    dpdk = {"nicSelector": selector, "numVfs": 2, "deviceType": "vfio-pci"}
    rest = {"nicSelector": {"rootDevices": [card.name]}, "numVfs": 2, "mtu": 1400}
    file.write_text(json.dumps({"virtualFunctions": [dpdk, rest]}))

    def applied(capabilities: list[str]) -> str:
        bounded = ("setpriv", f"--bounding-set={','.join(['-all', *capabilities])}", str(BIN / "railcni"))
        return command(*bounded, "vfs", "apply", f"--config={file}", "--output=json")

    with pytest.raises(AssertionError, match="CAP_NET_ADMIN"):
        applied(["+sys_ptrace"])
    pci.set_vfs(card, 0)
    say(applied(added))
    first, second = ((card / f"virtfn{number}").resolve().name for number in (0, 1))
    assert Path(f"/sys/class/net/{pci.netdev(first)}/mtu").read_text().strip() == "1400"
    assert (pci.DEVICES / second / "driver").resolve().name == "vfio-pci"
    file.write_text(json.dumps({"virtualFunctions": [rest | {"numVfs": 1}]}))
    with pytest.raises(AssertionError, match="without CAP_SYS_PTRACE"):
        applied(["+net_admin"])
    applied(added)
    assert (card / "sriov_numvfs").read_text().strip() == "1"


class Server(ClusterServer):
    """It has pods and NADs to be read; the status and the events that Multus writes are not kept."""

    def _answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any] | None:
        return super()._answer("GET", target.removesuffix("/status"), headers, b"")


@pytest.mark.skipif(not MULTUS, reason="RAILCNI_TEST_MULTUS is to name an executable of Multus")
def test_a_function_of_the_resource_of_a_NAD_becomes_net1_by_multus_and_comes_back(
    machine: Machine, card: Path, tmp_path: Path, say: Callable[[str], None]
) -> None:
    """Multus asks the tests' API server for the pod and its NAD, and the tests' kubelet for the device of its resource."""
    pci.set_vfs(card, 2)
    machine.dummy()
    machine.remember()
    server = Server()
    try:
        with Scene(real=True) as scene:
            scene.kubelet.pods = Path(PODS)
            started(scene, {"resourceList": [{"resourceName": "vf", "selectors": [{"rootDevices": [card.name]}]}]})
            assert offered(scene, 2, "intel.com/vf"), scene.lines
            address = scene.kubelet.allocate("team/one/main", "intel.com/vf").envs["PCIDEVICE_INTEL_COM_VF"]
            network = {"cniVersion": "1.0.0", "name": "vf-net", "type": "host-device", "ipam": networks.RANGE}
            named = {"annotations": {"k8s.v1.cni.cncf.io/resourceName": "intel.com/vf"}}
            nads = "network-attachment-definitions"
            server.add(nads, "team", "vf-net", metadata=named, spec={"config": json.dumps(network)})
            asks = {"annotations": {"k8s.v1.cni.cncf.io/networks": "vf-net"}}
            made = server.add("pods", "team", "one", metadata=asks, spec={"containers": []})
            first = multus(conflist(subnet="192.168.222.0/24"), kubeconfig=server.kubeconfig(tmp_path))
            config = {"cniVersion": "1.0.0", **first["plugins"][0]}
            pod = machine.pod("one")
            args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=team;K8S_POD_NAME=one;K8S_POD_UID={made['metadata']['uid']}"
            how: dict[str, Any] = {"ifname": "eth0", "netns": pod, "path": [machine.executables, GO_PLUGINS]}
            how["args"] = f"{args};K8S_POD_INFRA_CONTAINER_ID=c1"
            for _ in range(_TRIES):  # Multus waits 2.5 s for the server, which is slow here; a runtime calls again, too
                reply = machine.cni(Path(MULTUS), "ADD", config, **how)
                if reply.status == 0:
                    break
                machine.cni(Path(MULTUS), "DEL", config, **how)
            reply.succeeded()
            say(f"{address} is net1 of the pod by Multus")
            assert {"eth0", "net1"} <= set(pod.view.names()) and pci.netdev(address) == ""
            assert machine.leases() == ["192.168.111.1", "192.168.222.1"]
            machine.cni(Path(MULTUS), "DEL", config, **how).succeeded()
            assert pci.wait_for_netdev(address) and machine.leftovers(settle=30) == []
    finally:
        server.close()
