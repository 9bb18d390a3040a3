"""The key `rail`: ARP, source routing and one index on rails that share an Ethernet segment."""

from typing import Any

import pytest

from tests import fabric
from tests.blackbox.test_host_device import bus
from tests.each import quick
from tests.fabric import Fabric
from tests.node import GO_PLUGINS, STATE, Node, until

pytestmark = pytest.mark.forked


def test_rails_answer_and_send_for_themselves_alone_and_leave_nothing(node: Node) -> None:
    rails = Fabric(node, 2)
    one, two = node.pod("pod1"), node.pod("pod2")
    assert rails.attach(one, (1, 0)) == ["192.168.1.1", "192.168.0.1"]
    assert rails.attach(two, (0, 1)) == ["192.168.0.2", "192.168.1.2"]
    for rail in (0, 1):
        assert fabric.rules(one.view, 7000 + rail) == [(f"192.168.{rail}.1", 7000 + rail)]
        assert fabric.table(one.view, 7000 + rail) == [(f"192.168.{rail}.0/24", "")]
        settings = {
            name: one.view.sysctl(f"net/ipv4/conf/net{rail}/{name}")
            for name in ("arp_ignore", "arp_announce", "rp_filter")
        }
        assert settings == {"arp_ignore": "1", "arp_announce": "2", "rp_filter": "2"}
    macs = {(one.view.link(f"net{rail}").mac, f"192.168.{rail}.1") for rail in (0, 1)}
    with fabric.Arp(rails.switch, "br0") as arp:
        for rail in (0, 1):
            fabric.ping(one, f"192.168.{rail}.1", f"192.168.{rail}.2")
        assert arp.ask("192.168.0.1", "192.168.1.1") == macs
    rails.cni("DEL", one, 0).succeeded()
    assert fabric.rules(one.view) == [("192.168.1.1", 7001)]
    for _ in range(2):
        for pod in (one, two):
            for rail in (0, 1):
                rails.cni("DEL", pod, rail).succeeded()
    assert fabric.rules(one.view) == fabric.rules(two.view) == []
    assert node.leftovers() == []


def test_a_group_whose_record_is_lost_keeps_its_addresses_until_the_last_link_is_gone(node: Node) -> None:
    rails = Fabric(node, 3)
    pod = node.pod()
    rails.attach(pod, (0, 1))
    (record,) = node.path(f"{STATE}/attachments").glob("@gpu*:ipam")
    record.unlink()
    rails.cni("DEL", pod, 0).succeeded()
    assert sorted(node.leases()) == [f"192.168.{rail}.1" for rail in range(3)]
    for rail in (0, 1):
        rails.cni("DEL", pod, rail).succeeded()
    assert (node.leases(), node.leftovers()) == ([], [])


def test_without_the_routing_a_rail_answers_for_another(node: Node) -> None:
    rails = Fabric(node, 2)
    pod = node.pod()
    for rail in (0, 1):
        rails.cni("ADD", pod, rail, rails.network(rail, key={"routing": False})).succeeded()
    macs = {pod.view.link(f"net{rail}").mac for rail in (0, 1)}
    with fabric.Arp(rails.switch, "br0") as arp:
        both = until(lambda: {mac for mac, _ in arp.ask("192.168.0.1")} == macs, 20)
    assert both, "then the test above shows nothing"
    assert fabric.rules(pod.view) == []


def test_check_finds_what_of_a_rail_is_not_as_add_left_it(node: Node) -> None:
    rails = Fabric(node, 2)
    pod = node.pod()
    ipam = {"type": "whereabouts", "datastore": "file", "range": "192.168.1.0/24", "gateway": "192.168.1.254"}
    ipam["routes"] = [{"dst": "10.9.0.0/16"}]  # type: ignore[assignment]
    config = rails.network(1, ipam=ipam, key={"addressing": "plain"})
    result = rails.cni("ADD", pod, 1, config).succeeded()
    routes = [("10.9.0.0/16", "192.168.1.254"), ("192.168.1.0/24", ""), ("default/0", "192.168.1.254")]
    assert fabric.table(pod.view, 7001) == routes
    checked = {**config, "prevResult": result}
    rails.cni("CHECK", pod, 1, checked).succeeded()
    pod.view.set_sysctl("net/ipv4/conf/net1/arp_ignore", 0)
    with pod.view.rtnl() as ipr:
        ipr.flush_rules(table=7001)
        ipr.flush_routes(table=7001)
    reply = rails.cni("CHECK", pod, 1, checked)
    assert reply.code == 111 or reply.status == 1
    for words in (
        "arp_ignore of net1 is 0, was 1",
        "the rule from 192.168.1.1 to table 7001 is gone",
        "table 7001 has no default route by 192.168.1.254",
        "table 7001 has no route to 192.168.1.0/24",
    ):
        assert words in reply.msg, reply.msg
    rails.cni("DEL", pod, 1, config).succeeded()


def test_a_device_that_is_moved_back_leaves_no_rule_of_either_family(node: Node) -> None:
    pod = node.pod()
    node.host.add_veth("ens9", "ens9-peer")
    node.remember()
    addresses = [{"address": "192.168.3.7/24"}, {"address": "fd00:3::7/64", "gateway": "fd00:3::1"}]
    store = (
        {"type": "static"}
        if node.path("/usr/lib/cni/static").exists()
        else {"type": "whereabouts", "datastore": "file"}
    )
    config: dict[str, Any] = {
        "cniVersion": "1.0.0", "name": "rail-3", "type": "host-device", "device": "ens9",
        "rail": {"index": 3, "group": "gpu", "tableBase": 500}, "ipam": {**store, "addresses": addresses},
    }  # fmt: skip
    node.cni("host-device", "ADD", config, netns=pod).succeeded()
    assert fabric.rules(pod.view) == [("192.168.3.7", 503), ("fd00:3::7", 503)]
    assert ("default/0", "fd00:3::1") in fabric.table(pod.view, 503)
    node.cni("host-device", "DEL", config, netns=pod).succeeded()
    assert (fabric.rules(pod.view), fabric.table(pod.view, 503), node.leftovers()) == ([], [], [])


def test_a_table_that_another_group_has_is_refused_by_its_key(node: Node) -> None:
    rails = Fabric(node, 2, addressing="plain")
    pod = node.pod()
    rails.cni("ADD", pod, 0).succeeded()
    other = rails.network(1, name="storage-0", key={"group": "storage", "index": 0})
    rails.cni("ADD", pod, 1, other).refused(7, "routing table 7000 is already in use", "rail.tableBase")
    other["rail"]["tableBase"] = 7100
    rails.cni("ADD", pod, 1, other).succeeded()
    assert fabric.rules(pod.view) == [("192.168.0.1", 7000), ("192.168.1.1", 7100)]


def test_all_faults_of_a_rail_are_told_at_once(node: Node) -> None:
    rails = Fabric(node, 1)
    pod = node.pod()
    config = rails.network(0, mtu="big", key={"index": -1, "routing": "no", "tableBase": 1, "group": ""})
    reply = rails.cni("ADD", pod, 0, config)
    reply.refused(7, "5 faults", "mtu", "rail.index")
    assert all(key in reply.msg for key in ("rail.routing", "rail.tableBase", "rail.group"))
    assert node.leftovers() == []


@pytest.mark.skipif(not (GO_PLUGINS / "host-local").exists(), reason="needs containernetworking-plugins")
def test_the_addressing_of_a_rail_is_refused_beside_another_ipam_plugin(node: Node) -> None:
    rails = Fabric(node, 1)
    foreign = rails.network(0, ipam={"type": "host-local", "subnet": "192.168.0.0/24"})
    rails.cni("ADD", node.pod(), 0, foreign).refused(7, "rail.addressing", "whereabouts of this suite")
    assert node.leftovers() == []


PCI = "0000:{:x}8:00.0"


def all_rails(rails: Fabric, device: str, key: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One network that is every rail, with the device that was allocated, as Multus passes it."""
    ranges = [{"range": f"192.168.{r}.0/24", "gateway": f"192.168.{r}.1"} for r in range(rails.count)]
    nics = [PCI.format(r) for r in range(rails.count)]
    rail = {"group": "gpu", "addressing": "same-index", "ranges": ranges, "nics": nics, **(key or {})}
    ipam = {"type": "whereabouts", "datastore": "file", **more.pop("ipam", {})}
    network = {"cniVersion": "1.1.0", "name": "gpu", "type": "macvlan", "mtu": 4200, "rail": rail, "ipam": ipam}
    return {**network, **({"deviceID": device} if device else {}), **more}


def allocated(node: Node, count: int) -> Fabric:
    """The rails, whose NICs have PCI addresses."""
    rails = Fabric(node, count)
    for rail in range(count):
        bus(node, "pci", PCI.format(rail), f"eth_r{rail}")
    return rails


@pytest.mark.parametrize("nics", quick([PCI, "eth_r{}"], PCI))
def test_one_network_gives_each_allocated_nic_the_subnet_of_its_rail_and_the_same_index(node: Node, nics: str) -> None:
    rails = allocated(node, 8)
    other, pod = node.pod("other"), node.pod()
    key = {"nics": [nics.format(r) for r in range(8)]}
    rails.attach(other, (3,))  # a network of a rail has the same group
    order = (5, 0, 7, 1, 2, 3, 6, 4)  # the scheduler's
    networks = {number: all_rails(rails, f"{PCI.format(rail)}-{number}", key) for number, rail in enumerate(order)}
    results = {number: rails.cni("ADD", pod, number, network).succeeded() for number, network in networks.items()}
    for number, rail in enumerate(order):
        (ip,) = results[number]["ips"]
        assert (ip["address"], ip["gateway"]) == (f"192.168.{rail}.2/24", f"192.168.{rail}.1")
        assert pod.view.link(f"net{number}").lower == node.host.link(f"eth_r{rail}").index
        assert fabric.table(pod.view, 7000 + rail) == [(f"192.168.{rail}.0/24", ""), ("default/0", f"192.168.{rail}.1")]
        rails.cni("CHECK", pod, number, {**networks[number], "prevResult": results[number]}).succeeded()
    node.run(["umount", "/sys/bus"]).check_returncode()  # the devices are gone
    for number, network in networks.items():
        rails.cni("DEL", pod, number, network).succeeded()
    rails.cni("DEL", other, 3).succeeded()
    assert (node.leases(), node.leftovers()) == ([], [])


ONE = PCI.format(1)
OF_NO_RAIL: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("", {}, ("rail.nics need a deviceID", "k8s.v1.cni.cncf.io/resourceName")),
    ("0000:99:00.0", {}, ('deviceID "0000:99:00.0"', "0000:08:00.0, 0000:18:00.0", "resourceName")),
    (ONE, {"key": {"index": 0}}, ("is on the NIC of rail 1 (0000:18:00.0)", "rail.index is 0", "resourceName")),
    (ONE, {"master": "eth_r0"}, ("master is of one rail", "remove it")),
    (ONE, {"ipam": {"range": "192.168.0.0/24"}}, ("ipam.range is of one rail", "remove it")),
    (ONE, {"key": {"addressing": "plain"}}, ("rail.nics", "same-index")),
    (ONE, {"key": {"nics": [PCI.format(r) for r in range(3)]}}, ("rail.nics", "are 3, and rail.ranges 2")),
    (ONE, {"key": {"nics": [ONE] * 2}}, ("rail.nics", "have a NIC twice")),
]


@pytest.mark.parametrize(("device", "more", "words"), OF_NO_RAIL)
def test_a_device_of_none_of_the_networks_rails_is_refused(node: Node, device: str, more: Any, words: Any) -> None:
    rails = allocated(node, 2)
    pod = node.pod()
    network = all_rails(rails, device, **more)
    rails.cni("ADD", pod, 0, network).refused(7, *words)
    rails.cni("DEL", pod, 0, network).succeeded()
    assert node.leftovers() == []


def test_without_a_record_a_delete_releases_the_rail_of_the_device_and_no_other(node: Node) -> None:
    """So does that of a link which another suite's plugin has made: it calls the IPAM plugin alone."""
    rails = allocated(node, 2)
    pod = node.pod()
    for rail in (0, 1):
        network = {**all_rails(rails, PCI.format(rail)), "type": "whereabouts"}
        rails.cni("ADD", pod, rail, network).succeeded()
    (record,) = node.path(f"{STATE}/attachments").glob("@gpu*:ipam")
    record.unlink()
    network = {**all_rails(rails, "0000:99:00.0"), "type": "whereabouts"}  # a device that is gone
    rails.cni("DEL", pod, 0, network).succeeded()
    assert sorted(node.leases()) == ["192.168.0.2", "192.168.1.2"]
    for left, rail in (["192.168.0.2"], 1), ([], 0):
        rails.cni("DEL", pod, rail, {**all_rails(rails, PCI.format(rail)), "type": "whereabouts"}).succeeded()
        assert node.leases() == left
