"""Faults of the plugins that came before, as their users reported them: none of them here.

Each test is a row of tests/REGRESSIONS.md and names the upstream issue; rows that other tests answer are only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.node import GO_PLUGINS, STATE, Node, Pod, Reply
from tests.view import Link, View

pytestmark = pytest.mark.forked

RANGE = {"range": "192.168.111.0/24"}
HOST_LOCAL = {"type": "host-local", "subnet": "192.168.111.0/24"}

needs_host_local = pytest.mark.skipif(
    not (GO_PLUGINS / "host-local").exists(), reason="needs the package containernetworking-plugins"
)
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


def pod_args(name: str, uid: str = "") -> str:
    args = {"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "ns", "K8S_POD_NAME": name, "K8S_POD_UID": uid}
    return ";".join(f"{key}={value}" for key, value in args.items() if value)


def ipam(node: Node, verb: str, block: dict[str, Any], container: str = "c1", **how: Any) -> Reply:
    """The IPAM plugin alone."""
    config = {"cniVersion": "1.1.0", "name": "rdma-net", "type": "macvlan", "ipam": leases(**block), **how}
    variables = {key: config.pop(key) for key in ("args", "ifname") if key in config}
    return node.cni("whereabouts", verb, config, container_id=container, **{"netns": "/dev/null", **variables})


def given(node: Node, block: dict[str, Any], container: str = "c1", **how: Any) -> list[str]:
    reply = ipam(node, "ADD", block, container, **how)
    reply.succeeded()
    return reply.addresses


def freed(node: Node, block: dict[str, Any], container: str = "c1", **how: Any) -> None:
    assert ipam(node, "DEL", block, container, **how).succeeded() is None


def reboot(node: Node) -> None:
    """Another boot_id: a file stands in for the kernel's."""
    number = len(list(node.path("/run").glob("boot_id.*")))
    node.path(f"/run/boot_id.{number}").write_text(f"11111111-2222-3333-4444-{number:012}\n")
    command = ["mount", "--bind", f"/run/boot_id.{number}", "/proc/sys/kernel/random/boot_id"]
    node.run(command).check_returncode()


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
        reboot(other)
        other.master()
        assert call(other, "ADD", config, other.pod()).succeeded()["interfaces"][0]["mac"] != first


no_mark = pytest.mark.xfail(strict=True, reason="the link bears no mark: its name and its MAC are all it is known by")


@pytest.mark.parametrize(
    ("mode", "mac"),
    [
        ("bridge", None),
        pytest.param("bridge", "02:00:00:00:77:77", marks=no_mark),
        pytest.param("passthru", None, marks=no_mark),
    ],
    ids=["name", "name and MAC", "passthru"],
)
def test_a_link_that_the_pod_renamed_does_not_outlive_its_address(
    node: Node, pod: Pod, mode: str, mac: str | None
) -> None:
    """containernetworking/plugins #773, of host-device: what the pod renamed is not found by DEL. So for macvlan."""
    config = network("macvlan", mode=mode)
    call(node, "ADD", config, pod).succeeded()
    rename(pod.view, "net1", "rail0")
    if mac:
        pod.view.set("rail0", address=mac)
    call(node, "DEL", config, pod)
    assert still_answering(node, pod.view) == []
    assert pod.view.names() == []


def rename(view: View, old: str, new: str) -> None:
    view.set(old, state="down")
    view.set(old, ifname=new)
    view.set(new, state="up")


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
    assert node.leftovers() == []
    assert as_it_was(node.host.link("ens9")) == before


@each_plugin
@pytest.mark.parametrize(
    "block", [leases(**RANGE), pytest.param(HOST_LOCAL, marks=needs_host_local)], ids=lambda block: str(block["type"])
)
@pytest.mark.parametrize("path", ["", "/run/netns/pod1"], ids=["no path", "a path that is gone"])
def test_addresses_are_given_back_after_a_reboot(
    node: Node, pod: Pod, plugin: str, block: dict[str, Any], path: str
) -> None:
    """containernetworking/plugins #1196, multus-cni #239, #323: no namespace after a reboot, so no DEL for the IPAM."""
    config = network(plugin, ipam=block, cniVersion="1.0.0")  # Debian's host-local knows no later one
    call(node, "ADD", config, pod).succeeded()
    node.delete_pod(pod)
    reboot(node)
    assert call(node, "DEL", config, path).succeeded() is None
    assert (node.leases(), node.files()) == ([], [])


@each_plugin
def test_a_delete_is_served_when_the_namespace_was_unmounted_and_its_file_is_still_there(
    node: Node, pod: Pod, plugin: str
) -> None:
    """cri-o/cri-o #438: "unknown FS magic" of the file that is left where the namespace was, and the pod stays."""
    call(node, "ADD", network(plugin), pod).succeeded()
    node.delete_pod(pod)
    node.path(pod.path).touch()
    assert call(node, "DEL", network(plugin), pod.path).succeeded() is None
    assert (node.leases(), node.files()) == ([], [])


@each_plugin
def test_adds_that_a_full_disk_refuses_hold_no_address(node: Node, pod: Pod, plugin: str) -> None:
    """containernetworking/plugins #498: each retry on a full disk left an empty reservation, until none was free."""
    node.path(STATE).mkdir(parents=True, mode=0o700)
    node.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=700", "tmpfs", STATE]).check_returncode()
    node.remember()
    node.run(["dd", "if=/dev/zero", f"of={STATE}/filler", "bs=4k"])
    before = as_it_was(node.host.link("ens9"))
    for number in range(5):
        call(node, "ADD", network(plugin), pod, f"retry-{number}").refused(5, STATE)
        assert pod.view.names() == []
    node.path(f"{STATE}/filler").unlink()
    assert node.leftovers() == []
    assert as_it_was(node.host.link("ens9")) == before
    assert call(node, "ADD", network(plugin), pod, "retry-5").addresses == ["192.168.111.1/24"]


# --- host-device ---


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


def test_a_device_that_leaves_the_host_has_no_other_name_on_the_way(node: Node, pod: Pod) -> None:
    """containernetworking/plugins #1072: a temporary name races with udev and NetworkManager."""
    with names_seen(node.host) as names:
        call(node, "ADD", network("host-device"), pod).succeeded()
    assert names <= {"ens9", "ens9-peer"}


def test_a_device_that_returns_to_the_host_has_no_other_name_on_the_way(node: Node, pod: Pod) -> None:
    """containernetworking/plugins #1072, for DEL."""
    call(node, "ADD", network("host-device"), pod).succeeded()
    with names_seen(node.host) as names:
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
    assert node.leftovers() == []
    assert as_it_was(node.host.link("ens9")) == before


def test_a_device_that_the_pod_renamed_comes_back(node: Node, pod: Pod) -> None:
    """containernetworking/plugins #773: DEL fails when the device was renamed in the container."""
    before = as_it_was(node.host.link("ens9"))
    call(node, "ADD", network("host-device"), pod).succeeded()
    rename(pod.view, "net1", "rail0")
    call(node, "DEL", network("host-device"), pod).succeeded()
    assert node.leftovers() == []
    assert as_it_was(node.host.link("ens9")) == before


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
    assert node.leftovers() == []
    assert as_it_was(node.host.link("ens9")) == before


# --- whose address it is ---


def test_a_late_delete_after_a_crash_frees_nothing_that_was_given_on(node: Node) -> None:
    """k8snetworkplumbingwg/whereabouts #75: the crashed node comes up and deletes what has gone to another pod."""
    full = {"range": "10.0.0.0/30"}
    given(node, full, "crashed", args=pod_args("pod-a"))
    given(node, full, "crashed-too", args=pod_args("pod-b"))
    reboot(node)
    assert given(node, full, "next", args=pod_args("pod-c")) == ["10.0.0.1/30"]
    freed(node, full, "crashed", args=pod_args("pod-a"))
    assert "10.0.0.1" in node.leases()
    assert given(node, full, "next", args=pod_args("pod-c")) == ["10.0.0.1/30"]


def test_the_delete_after_an_add_that_found_no_address_succeeds(node: Node, pod: Pod) -> None:
    """k8snetworkplumbingwg/whereabouts #70: "Did not find reserved IP", and the pod can be neither made nor removed."""
    config = network("macvlan", ipam=leases(range="10.0.0.0/32"))
    call(node, "ADD", config, pod).succeeded()
    second = node.pod("pod2")
    for _ in range(2):
        call(node, "ADD", config, second, "c2").refused(11, "10.0.0.0")
        for _ in range(2):
            assert call(node, "DEL", config, second, "c2").succeeded() is None
    assert node.leases() == ["10.0.0.0"]
    call(node, "DEL", config, pod).succeeded()
    assert call(node, "ADD", config, second, "c2").addresses == ["10.0.0.0/32"]
