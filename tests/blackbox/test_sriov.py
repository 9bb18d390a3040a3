"""sriov where no VF is: what it refuses, and a VF whose PF is not to be seen, as in a virtual machine.

The VF's netdev is a veth end, and a tree of its own stands in for /sys/bus, as in the tests of host-device. Real VFs,
and what is set through their PF, are the lab's matter: tests/lab/test_sriov.py.
"""

import json
from typing import Any

import pytest

from tests.blackbox.test_host_device import LEASES, PCI, add, as_it_was, bus, delete, refused
from tests.node import STATE, Node, Pod
from tests.unit.test_attachment import make_newer

pytestmark = pytest.mark.forked

CACHE = "/var/lib/cni/sriov"
MAC = "02:00:00:00:00:aa"


def network(version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    base = {"cniVersion": version, "name": "vfs", "type": "sriov", "deviceID": PCI, "ipam": LEASES}
    return {key: value for key, value in {**base, **more}.items() if value is not None}


@pytest.fixture
def pod(node: Node) -> Pod:
    node.host.add_veth("ens9", "ens9-peer", mtu=4200)
    node.host.set("ens9", ifalias="vf 0", address="02:00:00:00:09:09")
    node.host.add_altname("ens9", "enp59s0f0v0")
    node.host.add_address("ens9", "10.9.0.1/24")
    node.remember()
    bus(node, "pci", PCI, "ens9", driver="mlx5_core")
    return node.pod()


@pytest.mark.parametrize("version", ("0.3.1", "1.0.0", "1.1.0"))
def test_a_vf_without_a_visible_pf_goes_into_the_pod_and_comes_back(node: Node, pod: Pod, version: str) -> None:
    before = as_it_was(node)
    result = add(node, pod, network(version, mac=MAC, mtu=1400))
    link = pod.view.link("net1")
    assert (link.mac, link.mtu, link.up, link.texts) == (MAC, 1400, True, ["192.168.111.1/24"])
    assert "ens9" not in node.host.names()
    if version == "1.1.0":
        wanted = {"name": "net1", "mac": MAC, "mtu": 1400, "sandbox": pod.path, "pciID": PCI}
        assert result["interfaces"] == [wanted]
    if version >= "0.4.0":
        node.cni("sriov", "CHECK", network(version, mac=MAC, mtu=1400, prevResult=result), netns=pod).succeeded()
    for _ in range(2):
        delete(node, pod, network(version, mac=MAC, mtu=1400))
        assert (node.leftovers(), as_it_was(node)) == ([], before)


def test_what_is_no_vf_of_the_node_is_refused_by_its_address(node: Node, pod: Pod) -> None:
    refused(node, pod, network(deviceID=None), 7, "no VF", "resourceName", "deviceID")
    refused(node, pod, network(deviceID="0000:ff:1f.7"), 7, "0000:ff:1f.7", "no PCI device")
    bus(node, "pci", "0000:3b:00.4")
    refused(node, pod, network(deviceID="0000:3b:00.4"), 7, "0000:3b:00.4", "no driver", "vfio-pci")
    node.path(f"/sys/bus/pci/devices/{PCI}/sriov_totalvfs").write_text("8\n")
    refused(node, pod, network(), 7, PCI, "physical function", "host-device")
    node.cni("sriov", "STATUS", network()).refused(50, PCI)


def test_a_vf_of_a_userspace_driver_stays_where_it_is_and_gets_its_addresses(node: Node, pod: Pod) -> None:
    address = "0000:3b:00.6"
    bus(node, "pci", address, driver="vfio-pci")
    config = network(deviceID=address)
    result = add(node, pod, config)
    assert result["interfaces"] == [{"name": "net1", "sandbox": pod.path, "pciID": address}]
    assert (pod.view.names(), node.leases()) == ([], ["192.168.111.1"])
    node.cni("sriov", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    other = node.pod("pod2")
    node.cni("sriov", "ADD", config, netns=other, container_id="c2").refused(11, address, "c1")
    node.delete_pod(pod)
    add(node, other, config, container_id="c2")  # the first one's sandbox has died
    delete(node, pod.path, config)
    node.cni("sriov", "ADD", config, netns=node.pod("pod3"), container_id="c3").refused(11, address, "c2")
    node.ended("sriov", config, container_id="c2", netns=other)


def test_a_default_route_that_a_router_advertised_to_a_vf_keeps_it_not_on_the_host(node: Node, pod: Pod) -> None:
    """As sriov-cni, which asks for no routes; where leaf switches advertise themselves every VF that is up has one."""
    node.host.add_address("ens9", "2001:db8::2/64")
    config = network(type="host-device", pciBusID=PCI)
    for protocol, code in ((9, 0), (3, 7)):  # RTPROT_RA, RTPROT_BOOT
        with node.host.rtnl() as ipr:
            (index,) = ipr.link_lookup(ifname="ens9")
            ipr.route("add", dst="::/0", gateway="2001:db8::1", oif=index, proto=protocol)
        words = ("default route (::/0 via", "set accept_ra 0 on ens9") if protocol == 9 else ("default route",)
        node.cni("host-device", "ADD", config, netns=pod).refused(7, *words)
        reply = node.cni("sriov", "ADD", network(), netns=pod)
        assert reply.code == code, reply
        node.ended("sriov", network(), netns=pod)


@pytest.mark.parametrize("first", ["sriov", "host-device"])
def test_a_late_delete_takes_nothing_from_the_pod_that_has_the_vf_by_now(node: Node, pod: Pod, first: str) -> None:
    """sriov-cni #219, when the VF's former sandbox died without a DEL."""
    before = as_it_was(node)
    config = network(type=first, **({"mac": MAC} if first == "sriov" else {"pciBusID": PCI}))
    node.cni(first, "ADD", config, netns=pod, container_id="old").succeeded()
    node.cni("sriov", "ADD", network(), netns=pod, container_id="new", ifname="net2").refused(11, PCI, "old", "net1")
    pod.view.move("net1", node.host)
    node.delete_pod(pod)
    second = node.pod("pod2")
    add(node, second, network(), container_id="new")
    link = second.view.link("net1")
    assert (link.mac, link.alias) == ("02:00:00:00:09:09", "ens9")  # restored in between
    node.cni(first, "DEL", config, netns=pod.path, container_id="old").succeeded()
    assert second.view.link("net1") == link
    delete(node, second, network(), container_id="new")
    assert (node.leftovers(), as_it_was(node)) == ([], before)


def test_a_vf_that_was_given_back_for_another_is_no_longer_the_first_ones_to_restore(node: Node, pod: Pod) -> None:
    add(node, pod, network(), container_id="old")
    pod.view.move("net1", node.host)
    node.delete_pod(pod)
    second = node.pod("pod2")
    add(node, second, network(), container_id="new")
    delete(node, second, network(), container_id="new")
    node.host.set("ens9", mtu=1300)  # its administrator's
    delete(node, pod.path, network(), container_id="old")
    assert (node.host.link("ens9").mtu, node.leftovers()) == (1300, [])


def test_a_function_that_a_record_of_a_newer_version_speaks_of_is_given_to_nobody_else(node: Node, pod: Pod) -> None:
    """A userspace driver holds it, so it stays on the host: nothing else tells that a pod uses it."""
    address = "0000:3b:00.5"
    bus(node, "pci", address, driver="vfio-pci")
    add(node, pod, network(deviceID=address))
    record = node.path(f"{STATE}/attachments/vfs:c1:net1:link")
    kept = record.read_bytes()
    make_newer(record)
    second = node.pod("pod2")
    how = {"netns": second, "container_id": "c2"}
    node.cni("sriov", "ADD", network(deviceID=address), **how).refused(5, record.name, "install that version again")
    node.cni("sriov", "ADD", network(), **how).succeeded()  # another VF
    node.cni("sriov", "DEL", network(), **how).succeeded()
    record.write_bytes(kept)
    node.ended("sriov", network(deviceID=address), netns=pod)


def test_alternative_names_that_others_have_are_no_hindrance_on_either_way(node: Node, pod: Pod) -> None:
    """sriov-cni's conflicts of alternative names: udev gives them, and a move takes all of them along or fails."""
    pod.view.add_veth("enp59s0f0v0", "other")
    node.remember()
    before = as_it_was(node)
    add(node, pod, network())
    assert pod.view.link("net1").altnames == ()
    delete(node, pod, network())
    assert (node.leftovers(), as_it_was(node)) == ([], before)
    add(node, pod, network(), ifname="net2")
    pod.view.add_altname("net2", "ens9")  # as udev in the pod may
    delete(node, pod, network(), ifname="net2")
    assert (node.leftovers(), as_it_was(node)) == ([], before)


# --- what Go's sriov-cni has left ---
def keep(node: Node, name: str, text: str) -> None:
    node.write(f"{CACHE}/{name}", text).parent.chmod(0o700)
    node.path(CACHE).chmod(0o700)


def test_a_vf_that_gos_plugin_has_given_to_a_pod_is_in_use_for_as_long_as_that_lives(node: Node, pod: Pod) -> None:
    other = node.pod("pod2")
    keep(node, f"pci/{PCI}", other.path)
    node.cni("sriov", "ADD", network(), netns=pod).refused(11, PCI, "Go's sriov-cni", other.path)
    node.delete_pod(other)
    add(node, pod, network())
    delete(node, pod, network())


def test_a_delete_of_gos_attachment_takes_nothing_from_one_that_has_the_vf_by_now(node: Node, pod: Pod) -> None:
    add(node, pod, network(), container_id="new")
    keep(node, "c1-net1", json.dumps({"deviceID": PCI, "OrigVfState": {"HostIFName": "ens9", "EffectiveMAC": MAC}}))
    keep(node, f"pci/{PCI}", "/run/netns/another")
    before = pod.view.link("net1")
    delete(node, "/run/netns/gone", network())
    assert pod.view.link("net1") == before
    assert f"sriov/pci/{PCI}" in node.files()
    assert "sriov/c1-net1" not in node.files()
    delete(node, pod, network(), container_id="new")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"deviceID": "a/b"}', '{"deviceID": "x", "OrigVfState": {"Vlan": "much"}}']
)
def test_a_file_of_gos_plugin_that_cannot_be_read_is_named(node: Node, pod: Pod, text: str) -> None:
    keep(node, "c1-net1", text)
    node.cni("sriov", "DEL", network(), netns=pod).refused(5, f"{CACHE}/c1-net1", "Go's sriov-cni")
