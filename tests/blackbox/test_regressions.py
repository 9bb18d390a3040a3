"""Faults of the plugins that came before, as their users reported them: none of them here.

Each test is a row of tests/REGRESSIONS.md and names the upstream issue; rows that other tests answer are only there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.node import GO_PLUGINS, Node, Pod, Reply
from tests.view import Link, View

pytestmark = pytest.mark.forked

RANGE = {"range": "192.168.111.0/24"}
HOST_LOCAL = {"type": "host-local", "subnet": "192.168.111.0/24"}

needs_host_local = pytest.mark.skipif(not (GO_PLUGINS / "host-local").exists(), reason="needs Go's plugins")
each_plugin = pytest.mark.parametrize("plugin", ["macvlan", "host-device"])


def leases(**ipam: Any) -> dict[str, Any]:
    return {"type": "whereabouts", "datastore": "file", **ipam}


def network(plugin: str, **more: Any) -> dict[str, Any]:
    """A network of `plugin` with addresses of RANGE; None leaves a key out."""
    device = {"macvlan": {"master": "ens2f0"}, "host-device": {"device": "ens9"}}[plugin]
    base = {"cniVersion": "1.1.0", "name": "rdma-net", "type": plugin, **device, "ipam": leases(**RANGE), **more}
    return {key: value for key, value in base.items() if value is not None}


@pytest.fixture
def pod(node: Node) -> Pod:
    """A pod on a node that has a master for macvlan and a device for host-device."""
    node.host.add_veth("ens9", "ens9-peer", mtu=4200)
    node.host.set("ens9", address="02:00:00:00:09:09")
    node.host.add_address("ens9", "10.9.0.1/24")
    node.master()
    return node.pod()


def call(node: Node, verb: str, config: dict[str, Any], where: Pod | str | None, container: str = "c1") -> Reply:
    return node.cni(config["type"], verb, config, netns=where, container_id=container)


def as_it_was(link: Link) -> tuple[Any, ...]:
    addresses = sorted(text for text in link.texts)
    return link.name, link.mac, link.mtu, link.up, link.alias, link.altnames, addresses


# --- macvlan ---
def test_one_attachment_on_two_nodes_has_two_macs(node: Node, pod: Pod) -> None:
    """containernetworking/plugins #250: the same MAC address on separate nodes."""
    config = network("macvlan")
    first = call(node, "ADD", config, pod).succeeded()["interfaces"][0]["mac"]
    assert call(node, "ADD", config, pod).succeeded()["interfaces"][0]["mac"] == first
    with Node(node.executables) as other:
        other.reboot()
        other.master()
        assert call(other, "ADD", config, other.pod()).succeeded()["interfaces"][0]["mac"] != first


@pytest.mark.xfail(strict=True, reason="the link bears no mark: its name and its MAC are all it is known by")
@pytest.mark.parametrize("mode", ["bridge", "passthru"])
def test_a_link_that_the_pod_renamed_does_not_outlive_its_address(node: Node, pod: Pod, mode: str) -> None:
    """containernetworking/plugins #773, of host-device: what the pod renamed is not found by DEL. So for macvlan."""
    config = network("macvlan", mode=mode)
    call(node, "ADD", config, pod).succeeded()
    pod.view.set("net1", state="down")
    pod.view.set("net1", ifname="rail0")
    pod.view.set("rail0", state="up")
    if mode == "bridge":
        pod.view.set("rail0", address="02:00:00:00:77:77")
    call(node, "DEL", config, pod)
    assert (still_answering(node, pod.view), pod.view.names()) == ([], [])


def still_answering(node: Node, view: View) -> list[str]:
    """The addresses that a link in `view` answers to though nobody holds them any more."""
    held = node.leases()
    on_links = [text.partition("/")[0] for link in view.links().values() for text in link.texts]
    return [address for address in on_links if address not in held]


@each_plugin
def test_a_conflists_delete_without_its_ipam_parameters_frees_the_address(node: Node, pod: Pod, plugin: str) -> None:
    """k8snetworkplumbingwg/multus-cni #755, #1449: the DEL of a conflist has nothing of `ipam` but its type."""
    before = as_it_was(node.host.link("ens9"))
    call(node, "ADD", network(plugin, mtu=1500, cniVersion="0.3.1"), pod).succeeded()
    bare = {"cniVersion": "0.3.1", "name": "rdma-net", "type": plugin, "ipam": {"type": "whereabouts"}, "dns": {}}
    call(node, "DEL", bare, pod).succeeded()
    assert (node.leftovers(), as_it_was(node.host.link("ens9"))) == ([], before)


@each_plugin
@pytest.mark.parametrize(
    "block", [leases(**RANGE), pytest.param(HOST_LOCAL, marks=needs_host_local)], ids=lambda block: str(block["type"])
)
@pytest.mark.parametrize("path", ["", "/run/netns/pod1"], ids=["no path", "a path that is gone"])
def test_addresses_are_given_back_after_a_reboot(node: Node, pod: Pod, plugin: str, block: Any, path: str) -> None:
    """containernetworking/plugins #1196, multus-cni #239, #323: no namespace after a reboot, so no DEL for the IPAM."""
    config = network(plugin, ipam=block, cniVersion="1.0.0")  # Debian's host-local knows no later one
    call(node, "ADD", config, pod).succeeded()
    node.delete_pod(pod)
    node.reboot()
    assert call(node, "DEL", config, path).succeeded() is None
    assert (node.leases(), node.files()) == ([], [])


# --- host-device ---
def test_a_delete_that_failed_is_completed_though_its_configuration_is_gone(node: Node, pod: Pod) -> None:
    """k8snetworkplumbingwg/multus-cni #355: after a DEL that failed, what the next one needs is no longer there."""
    before = as_it_was(node.host.link("ens9"))
    config = network("host-device", mtu=1500)
    call(node, "ADD", config, pod).succeeded()
    node.host.add_veth("ens9", "usurper")
    call(node, "DEL", config, pod).refused(11, "ens9")
    node.host.delete("ens9")
    bare = {"cniVersion": "1.1.0", "name": "rdma-net", "type": "host-device"}
    assert call(node, "DEL", bare, pod).succeeded() is None
    assert (node.leftovers(), as_it_was(node.host.link("ens9"))) == ([], before)


@contextmanager
def names_seen(view: View) -> Iterator[set[str]]:
    """Every name under which the kernel announced a link in `view`, as udev and NetworkManager hear it."""
    seen: set[str] = set()
    with view.rtnl() as ipr:
        ipr.bind()
        yield seen
        view.add_veth("the-end", "the-end-peer")
        while "the-end" not in seen:
            seen.update(m.get("ifname") for m in ipr.get() if m["event"] == "RTM_NEWLINK")
        view.delete("the-end")
    seen -= {"the-end", "the-end-peer"}


def test_a_device_has_no_other_name_on_the_way_to_the_pod_and_back(node: Node, pod: Pod) -> None:
    """containernetworking/plugins #1072: a temporary name races with udev and NetworkManager."""
    with names_seen(node.host) as names:
        call(node, "ADD", network("host-device"), pod).succeeded()
        call(node, "DEL", network("host-device"), pod).succeeded()
    assert names <= {"ens9", "ens9-peer"}


def test_a_device_whose_name_exists_in_the_pod_can_be_moved(node: Node, pod: Pod) -> None:
    """containernetworking/plugins #1002: ADD fails when the pod has a link of the device's name on the host."""
    pod.view.add_veth("ens9", "other")
    node.remember()
    before = as_it_was(node.host.link("ens9"))
    call(node, "ADD", network("host-device"), pod).succeeded()
    assert pod.view.link("net1").mac == before[1]
    call(node, "DEL", network("host-device"), pod).succeeded()
    assert (node.leftovers(), as_it_was(node.host.link("ens9"))) == ([], before)
