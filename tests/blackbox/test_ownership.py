"""Whose link, device or address it is: what a call removes, and what it leaves alone."""

import os
from typing import Any

import pytest

from tests.faults.inject import begin
from tests.node import GO_PLUGINS, Node, Pod, until

L2 = {"cniVersion": "1.0.0", "name": "rdma", "type": "macvlan", "master": "ens2f0"}
pytestmark = pytest.mark.forked

WITH_HOST_LOCAL = {**L2, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}

needs_go = pytest.mark.skipif(not (GO_PLUGINS / "macvlan").exists(), reason="needs containernetworking-plugins")


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    return node.pod("pod1")


def test_a_delete_of_another_attachment_spares_the_link_that_has_the_ifname(node: Node, pod: Pod) -> None:
    node.cni("macvlan", "ADD", L2, netns=pod).succeeded()
    before = node.leftovers()
    for container, config in (("c2", L2), ("c1", {**L2, "name": "storage"})):
        node.cni("macvlan", "DEL", config, netns=pod, container_id=container).succeeded()
        assert node.leftovers() == before
    node.ended("macvlan", L2, netns=pod)


def test_a_delete_whose_add_was_refused_spares_the_link_that_was_in_the_way(node: Node, pod: Pod) -> None:
    node.cni("macvlan", "ADD", L2, netns=pod).succeeded()
    node.cni("macvlan", "ADD", {**L2, "name": "storage"}, netns=pod).refused(4, "net1", "exists already")
    node.cni("macvlan", "DEL", {**L2, "name": "storage"}, netns=pod).succeeded()
    assert "pod1: link net1" in node.leftovers()


@pytest.mark.parametrize("plugin", ["macvlan", "host-device"])
def test_an_ifname_that_a_link_of_the_sandbox_has_is_refused_with_its_kind(node: Node, pod: Pod, plugin: str) -> None:
    node.host.add_veth("ens9", "ens9-peer")
    pod.view.add_veth("net1", "peer1")
    before = node.leftovers()
    config = {"cniVersion": "1.1.0", "name": "rail", "type": plugin, "master": "ens2f0", "device": "ens9"}
    said = "net1", "exists already", pod.path, "a veth link that this attachment did not make"
    node.cni(plugin, "ADD", config, netns=pod).refused(4, *said)
    assert (node.leftovers(), node.host.link("ens9").name) == (before, "ens9")


SELECTORS: tuple[dict[str, Any], ...] = (
    {"device": "ens2f0"}, {"hwaddr": "02:00:00:00:09:09"}, {"kernelpath": "/sys/devices/pci0000:3a/0000:3b:00.0"},
    {"pciBusID": "0000:3b:00.0"}, {"runtimeConfig": {"deviceID": "mlx5_core.sf.4"}},
)  # fmt: skip


@pytest.mark.parametrize("selector", SELECTORS, ids=str)
def test_a_delete_without_a_record_spares_a_link_with_another_alias(node: Node, pod: Pod, selector: Any) -> None:
    """Go's host-device gives a device its name on the host as alias; other programs write other texts there."""
    node.host.add_veth("other0", "other0-peer")
    node.host.move("other0", pod.view, ifname="net1", ifalias="other0")
    node.remember()
    config = {"cniVersion": "1.0.0", "name": "pf-net", "type": "host-device", **selector}
    node.ended("host-device", config, netns=pod)


@needs_go
def test_an_add_repeated_over_an_ipam_plugin_that_refuses_repetition_leaves_one_address(node: Node, pod: Pod) -> None:
    node.cni("macvlan", "ADD", WITH_HOST_LOCAL, netns=pod).succeeded()
    again = node.cni("macvlan", "ADD", WITH_HOST_LOCAL, netns=pod)
    assert len(again.addresses) == 1
    reserved = node.path("/var/lib/cni/networks/rdma")
    assert [p.name for p in reserved.iterdir() if p.name[0].isdigit()] == [again.addresses[0].split("/")[0]]
    node.ended("macvlan", WITH_HOST_LOCAL, netns=pod)


@needs_go
def test_an_add_repeated_with_another_ipam_plugin_gives_the_first_ones_address_back(node: Node, pod: Pod) -> None:
    node.cni("macvlan", "ADD", WITH_HOST_LOCAL, netns=pod).succeeded()
    ours = {**L2, "ipam": {"type": "whereabouts", "range": "10.2.0.0/24"}}
    node.cni("macvlan", "ADD", ours, netns=pod).succeeded()
    assert [p.name for p in node.path("/var/lib/cni/networks/rdma").iterdir() if p.name[0].isdigit()] == []
    node.ended("macvlan", ours, netns=pod)


MAC, PASSTHRU = {"mac": "02:00:00:00:00:01"}, {"mode": "passthru"}
IN_THE_WAY: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "MAC in use": (MAC, MAC), "passthru beside bridge": ({}, PASSTHRU),
    "passthru beside passthru": (PASSTHRU, PASSTHRU), "bridge beside passthru": (PASSTHRU, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_THE_WAY)
def test_an_add_that_the_kernel_refuses_spares_the_link_in_its_way(node: Node, pod: Pod, case: str) -> None:
    first, second = IN_THE_WAY[case]
    word = MAC["mac"] if first is MAC else "passthru"
    node.cni("macvlan", "ADD", {**L2, **first}, netns=pod).succeeded()
    before = node.leftovers()
    other = {"container_id": "c2", "ifname": "net2", "netns": pod}
    node.cni("macvlan", "ADD", {**L2, **second}, **other).refused(101, "ens2f0", word)
    assert node.leftovers() == before
    node.cni("macvlan", "DEL", {**L2, **second}, **other).succeeded()
    assert node.leftovers() == before


# Another's IPAM plugin. The DEL of c0 does not end before the test says so.
SLOW_IPAM = """#!/bin/sh
cat >/dev/null
[ "$CNI_COMMAND $CNI_CONTAINERID" = "DEL c0" ] && touch /run/others/waiting && cat /run/others/go
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.7/24"}]}'
exit 0
"""


def test_gc_spares_what_was_attached_after_it_began(node: Node, pod: Pod) -> None:
    """The GC is held up at c0; meanwhile c1 is attached again, which no list of before can speak of."""
    node.script("/run/others/slow-ipam", SLOW_IPAM)
    os.mkfifo(node.path("/run/others/go"))
    config = {**L2, "cniVersion": "1.1.0", "ipam": {"type": "slow-ipam"}}
    how: dict[str, Any] = {"path": ["/run/others"]}
    first = node.pod("pod0")
    node.cni("macvlan", "ADD", config, netns=first, container_id="c0", **how).succeeded()
    node.cni("macvlan", "ADD", config, netns=pod, container_id="c1", **how).succeeded()
    collection = node.start_cni("macvlan", "GC", {**config, "cni.dev/valid-attachments": []}, **how)
    begin(collection)
    assert until(node.path("/run/others/waiting").exists, 20)
    for verb in ("DEL", "ADD"):
        node.cni("macvlan", verb, config, netns=pod, container_id="c1", **how).succeeded()
    with node.path("/run/others/go").open("w") as go:
        go.write("on")
    collection._stdin = None  # type: ignore[assignment]
    collection.finish().succeeded()
    assert (first.view.names(), pod.view.names()) == ([], ["net1"])
