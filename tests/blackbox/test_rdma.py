"""The key `rdma` where there is no verbs device: nothing changes, and what is asked for in vain is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.each import each_and
from tests.node import Node, Pod, until
from tests.sysfs import Tree

pytestmark = pytest.mark.forked

LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
KEYS = ({"rdma": False}, {"rdma": {"ipv6LinkLocal": False, "waitSeconds": 60}})
ANOTHERS_IPAM = """#!/bin/sh
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.7/24"}]}'
"""

LINKS = ("macvlan", "host-device")
each_plugin = pytest.mark.parametrize("plugin", LINKS)


def network(plugin: str, **more: Any) -> dict[str, Any]:
    base = {"cniVersion": "1.1.0", "name": "n", "type": plugin, "ipam": LEASES, "mtu": 1500}
    return {**base, "master": "ens2f0", "device": "ens9", **more}


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    node.remember()
    return node.pod()


@each_plugin
def test_without_a_verbs_device_an_attachment_is_what_it_is_without_the_key(node: Node, pod: Pod, plugin: str) -> None:
    runtime = {"runtimeConfig": {"CNIDeviceInfoFile": "/run/k8s.cni.cncf.io/devinfo/cni/one.json"}}
    results = []
    for more in ({}, *KEYS):
        config = network(plugin, **more, **runtime)
        result = node.cni(plugin, "ADD", config, netns=pod).succeeded()
        results.append(result)
        assert node.cni(plugin, "CHECK", {**config, "prevResult": result}, netns=pod).succeeded() is None
        assert until(lambda: pod.view.link("net1").route("fe80::/64"))  # once the kernel has seen the carrier
        node.ended(plugin, config, netns=pod)
    assert all(result == results[0] for result in results)
    assert not node.path("/run/k8s.cni.cncf.io").exists()


@each_plugin
def test_every_bad_value_is_named_beside_those_of_the_plugin(node: Node, pod: Pod, plugin: str) -> None:
    faulty = {"rdma": {"required": 1, "waitSeconds": -1, "ipv6LinkLocal": "no"}, "mtu": "big"}
    reply = node.cni(plugin, "ADD", network(plugin, **faulty), netns=pod)
    reply.refused(7, "4 faults", 'mtu "big"', "rdma.required 1", "rdma.waitSeconds -1", 'rdma.ipv6LinkLocal "no"')
    node.cni(plugin, "STATUS", network(plugin, rdma="on")).refused(7, 'rdma "on"', '"auto"')
    assert node.leftovers() == []


@each_and("rdma", [True, {"required": True}], ids=str, plugins=LINKS)
def test_a_verbs_device_that_is_required_and_missing_is_refused(node: Node, pod: Pod, plugin: str, rdma: Any) -> None:
    netdev = {"macvlan": "ens2f0", "host-device": "ens9"}[plugin]
    config = network(plugin, rdma=rdma)
    node.cni(plugin, "ADD", config, netns=pod).refused(7, "rdma", "required", netdev, "no verbs device", "mlx5_ib")
    assert node.leftovers() == []
    node.cni(plugin, "STATUS", config).refused(50, "rdma", netdev, "no verbs device")


def test_a_master_in_the_sandbox_is_looked_at_there(node: Node, pod: Pod) -> None:
    pod.view.add_veth("inner", "inner-peer")
    node.remember()
    config = network("macvlan", rdma=True, master="inner", linkInContainer=True)
    node.cni("macvlan", "ADD", config, netns=pod).refused(7, "rdma", '"inner"', "no verbs device")
    assert node.leftovers() == []


def test_over_a_nic_the_result_and_the_device_info_file_name_its_pci_function(node: Node, tmp_path: Path) -> None:
    """Whoever gave the address."""
    node.master()
    tree = Tree(tmp_path)
    tree.pci("0000:3b:00.0", above=["0000:3a:00.0"], driver="mlx5_core")
    tree.netdev("ens2f0", pci="0000:3b:00.0", mtu=9000)
    tree.verbs("mlx5_0", pci="0000:3b:00.0", netdev="ens2f0", size=16)
    tree.gid("mlx5_0", "192.168.111.1", ndev="net1", index=5)
    tree.gid("mlx5_0", "10.9.0.7", ndev="net1", index=6)
    shutil.copytree(tree.root, node.path("/run/sys"), symlinks=True)
    node.run(["mount", "--bind", "/run/sys", "/sys"]).check_returncode()
    place = "/run/k8s.cni.cncf.io/devinfo/cni/default-pod1-net1"
    pod, second = node.pod(), node.pod("pod2")
    anothers = {"ipam": {"type": node.script("/run/others/anothers-ipam", ANOTHERS_IPAM).name}}
    for version, found, more, index in (
        ("1.1.0", "0000:3b:00.0", {}, {"192.168.111.1": 5}),
        ("1.0.0", None, {}, {"192.168.111.1": 5}),
        ("1.1.0", "0000:3b:00.0", anothers, {"10.9.0.7": 6}),
    ):
        runtime = {"CNIDeviceInfoFile": place}
        config = network("macvlan", cniVersion=version, rdma=True, mtu=9000, runtimeConfig=runtime, **more)
        path = [node.executables, "/run/others"]
        result = node.cni("macvlan", "ADD", config, netns=pod, path=path).succeeded()
        assert result["interfaces"][0].get("pciID") == found
        assert json.loads(node.path(place).read_text()) == {
            "type": "pci",
            "version": "1.1.0",
            "pci": {"pci-address": "0000:3b:00.0", "rdma-device": "mlx5_0"},
            "rdma": {"rdma-device": "mlx5_0", "port": 1, "gid-index": index, "attachment": ["n", "c1", "net1"]},
        }
        other = node.path(f"{place}-of-another")
        other.write_text('{"type": "pci", "pci": {"pci-address": "0000:3b:00.7"}}')
        hostile = {**config, "rdma": {"waitSeconds": 0}, "runtimeConfig": {"CNIDeviceInfoFile": f"{place}-of-another"}}
        how = {"netns": second, "container_id": "c2", "path": path}
        for named, code in ((config, 11), (hostile, 0)):
            before = {file.name: file.read_text() for file in other.parent.iterdir()}
            reply = node.cni("macvlan", "ADD", named, **how)
            assert (reply.code, place in reply.msg) == (code, bool(code))
            node.cni("macvlan", "DEL", named, **how).succeeded()
            assert {file.name: file.read_text() for file in other.parent.iterdir()} == before
        node.cni("macvlan", "DEL", config, netns=pod, path=path).succeeded()
        assert not node.path(place).exists()
