"""Masters: what the kernel puts a macvlan on, and the links that carry the node's default routes, which no pod may take."""

import json
import os
import signal
from typing import Any

import pytest

from cni.shared.records import _sealed, _unsealed
from tests.blackbox.test_host_device import PCI, bus
from tests.blackbox.test_sandbox_gone import descriptor
from tests.each import each_and
from tests.faults.inject import STOP, Command, Injector, begin, finished, unavailable
from tests.node import STATE, Node, Pod
from tests.tools import needs_ip

pytestmark = [needs_ip, pytest.mark.forked]

LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
POLICY = "/etc/cni/net.d/whereabouts.d/railcni.json"
KUBECONFIG = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"
RECORD = f"{STATE}/attachments/masters:c1:net1:link"
NOT_THERE = "this kernel has not the kind of link: {}"


def network(plugin: str = "macvlan", **more: Any) -> dict[str, Any]:
    selected = {"host-device": {"device": "ens2f0"}, "sriov": {"deviceID": PCI}, "macvlan": {"master": "ens2f0"}}
    base = {"cniVersion": "1.1.0", "name": "masters", "type": plugin, "ipam": LEASES}
    return {k: v for k, v in {**base, **selected[plugin], **more}.items() if v is not None}


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    return node.pod()


def ip(node: Node, *words: str) -> None:
    done = node.run(["ip", *words])
    assert done.returncode == 0, done.stderr


def made(node: Node, kind: str, *words: str) -> None:
    """`ip link add WORDS`, or the test is skipped where the kernel has no such kind."""
    done = node.run(["ip", "link", "add", *words])
    if b"Unknown device type" in done.stderr or b"Operation not supported" in done.stderr:
        pytest.skip(NOT_THERE.format(kind))
    assert done.returncode == 0, done.stderr


# --- what the link is on (macvlan_common_newlink, drivers/net/macvlan.c) ---
def stacked(node: Node, kind: str) -> str:
    """A master of this kind, and the netdev that the kernel puts a macvlan of it on."""
    words = {
        "macvlan": "link ens2f0 name upper0 type macvlan mode bridge",
        "macvtap": "link ens2f0 name upper0 type macvtap mode bridge",
        "vlan": "link ens2f0 name upper0 type vlan id 100",
        "vxlan": "upper0 type vxlan id 5 dstport 4789 dev ens2f0",
        "veth": "upper0 type veth peer name upper0-peer",
    }
    made(node, kind, *words.get(kind, f"upper0 type {kind}").split())
    if kind in ("bridge", "bond", "team"):
        ip(node, "link", "set", "ens2f0", "down")
        ip(node, "link", "set", "ens2f0", "master", "upper0")
        ip(node, "link", "set", "ens2f0", "up")
    ip(node, "link", "set", "upper0", "up")
    return "ens2f0" if kind in ("macvlan", "macvtap") else "upper0"


KINDS = ("macvlan", "macvtap", "vlan", "vxlan", "veth", "bridge", "bond", "team", "dummy")


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_master_stands_on_a_link_is_checked_and_deleted(node: Node, pod: Pod, kind: str) -> None:
    lower = stacked(node, kind)
    node.remember()
    for mac in (None, "02:00:00:00:77:01"):
        config = network(master="upper0", mac=mac)
        result = node.cni("macvlan", "ADD", config, netns=pod).succeeded()
        assert pod.view.link("net1").lower == node.host.link(lower).index
        node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
        for _ in range(2):
            node.ended("macvlan", config, netns=pod)


# A link on any other master in the sandbox is on no netdev of the host.
@pytest.mark.parametrize("kind", [*KINDS, "macvlan inside", "macvtap inside"])
def test_an_address_stays_reserved_while_its_link_lives_without_a_path(node: Node, pod: Pod, kind: str) -> None:
    """The link is gone or the address is kept: two pods must not have one address on a wire."""
    kind, _, in_sandbox = kind.partition(" ")
    stacked(node, kind)
    if in_sandbox:
        node.run(["ip", "link", "set", "upper0", "netns", "pod1", "up"]).check_returncode()
    config = network(master="upper0", linkInContainer=bool(in_sandbox))
    node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    with descriptor(node, pod) as inside:
        node.delete_pod(pod)
        reply = node.cni("macvlan", "DEL", config, netns=pod.path)
        if "net1" in inside.links():
            assert node.leases() == ["192.168.111.1"]
        else:
            reply.succeeded()


def test_an_address_is_freed_when_the_sandbox_ended_with_master_and_link(node: Node, pod: Pod) -> None:
    with pod.view.rtnl() as ipr:
        ipr.link("add", ifname="inner0", index=77_000, kind="veth", peer={"ifname": "inner1"})
    config = network(master="inner0", linkInContainer=True)
    node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    node.delete_pod(pod)
    node.ended("macvlan", config, netns=pod.path)


@pytest.mark.parametrize("kind", ["ipvlan", "ipvtap"])
def test_an_ipvlan_and_a_netdev_that_has_one_are_refused_as_master(node: Node, pod: Pod, kind: str) -> None:
    made(node, kind, "link", "ens2f0", "name", "upper0", "type", kind, "mode", "l2")
    node.remember()
    refusal = node.cni("macvlan", "ADD", network(master="upper0"), netns=pod)
    refusal.refused(7, f'"upper0" is an {kind}', "without ipvlans")
    refusal = node.cni("macvlan", "ADD", network(), netns=pod)
    refusal.refused(refusal.code, '"ens2f0"', "belongs to", "use another netdev")
    assert node.leftovers() == []


def test_DEL_knows_the_link_of_an_ADD_that_was_killed_before_it_wrote_down_its_lower(node: Node, pod: Pod) -> None:
    config = network(mac="02:00:00:00:77:01")
    node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    path = node.path(RECORD)
    record = _unsealed(path.read_bytes())
    record["link"]["lower"] = node.host.link("ens2f0").index + 1
    path.write_bytes(_sealed(record))
    node.cni("macvlan", "DEL", config, netns=pod).succeeded()
    assert pod.view.names() == []


@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.parametrize("allowed", [True, False], ids=["a permitted one", "one that the policy forbids"])
def test_a_master_that_is_replaced_before_the_link_is_made_is_judged_anew(node: Node, pod: Pod, allowed: bool) -> None:
    node.host.add_veth("ens9", "ens9-peer")
    index = node.host.link("ens9").index
    allow(node, "ens9", *(["ens2f0"] if allowed else []))
    config = network(master="ens9")
    environ = node.environ("ADD", netns=pod, path=[node.executables])
    with Injector(node) as injector:
        command = Command(node.executables / "macvlan", environ, json.dumps(config).encode())
        adding = injector.start(command, STOP, "rename:1")  # the record is in its place
        begin(adding)
        stopped = injector.stopped("rename:1", adding)
        assert stopped and recorded(node)["lower"] == index
        node.host.delete("ens9")
        words = f"link ens2f0 name ens9 index {index} type macvtap mode bridge"
        made(node, "macvtap", *words.split())
        ip(node, "link", "set", "ens9", "up")
        os.kill(stopped, signal.SIGCONT)
        reply = finished(adding).reply
    assert reply
    if allowed:
        reply.succeeded()
        lower = node.host.link("ens2f0").index
        assert (pod.view.link("net1").lower, recorded(node)["lower"]) == (lower, lower)
    else:
        reply.refused(7, 'master "ens2f0" is not in masters')
        assert (pod.view.names(), node.leases(), node.files()) == ([], [], [])
    node.cni("macvlan", "DEL", config, netns=pod).succeeded()
    assert (pod.view.names(), node.leases(), node.files()) == ([], [], [])


def allow(node: Node, *masters: str, **lists: list[str]) -> None:
    node.allow(**(lists or {"masters": masters}))


def recorded(node: Node) -> dict[str, Any]:
    """The `link` of the attachment's record."""
    link: dict[str, Any] = _unsealed(node.path(RECORD).read_bytes())["link"]
    return link


def test_the_policy_is_asked_about_the_netdev_that_the_link_is_on(node: Node, pod: Pod) -> None:
    stacked(node, "macvlan")
    node.remember()
    allow(node, "upper*")
    reply = node.cni("macvlan", "ADD", network(master="upper0"), netns=pod)
    reply.refused(7, 'master "ens2f0"', "upper*", "masters", POLICY)
    node.cni("macvlan", "STATUS", network(master="upper0")).refused(7, 'master "ens2f0"')
    assert node.leftovers() == []
    allow(node, "ens2f0")
    node.cni("macvlan", "ADD", network(master="upper0"), netns=pod).succeeded()


def test_the_policy_is_asked_about_the_hosts_netdev_below_a_master_in_the_sandbox(node: Node, pod: Pod) -> None:
    stacked(node, "macvtap")
    ip(node, "link", "set", "upper0", "down")
    node.run(["ip", "link", "set", "upper0", "netns", "pod1"]).check_returncode()
    pod.view.set("upper0", state="up")
    node.remember()
    allow(node, "ens9")
    config = network(master="upper0", linkInContainer=True)
    node.cni("macvlan", "ADD", config, netns=pod).refused(7, 'master "ens2f0"', "ens9", "masters")
    assert node.leftovers() == []
    allow(node, "ens2f0")
    result = node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    node.ended("macvlan", config, netns=pod)


# --- the links that carry the node's default routes ---


OTHER_DEFAULT = """: the best default route goes by another link
    ip link add mgmt0 type veth peer name mgmt0-peer; ip link set mgmt0 up; ip link set mgmt0-peer up
    ip address add 10.1.0.1/24 dev mgmt0; ip route add default via 10.1.0.254 metric 1"""
WITH_IPV6 = OTHER_DEFAULT + "; ip address add 2001:db8::2/64 dev ens2f0 nodad"
MGMT0 = "ip link add mgmt0 type veth peer name mgmt0-peer; ip link set mgmt0 up; ip link set mgmt0-peer up"
VPN = """ip route add default dev {link} table 51820; ip rule add not fwmark 51820 table 51820
    ip rule add table main suppress_prefixlength 0"""
CARRIED = {
    "by ipv6": f"{WITH_IPV6}; ip -6 route add default via 2001:db8::1 dev ens2f0",
    "by a router advertisement": f"""{WITH_IPV6}; ip -6 route add default via 2001:db8::1 dev ens2f0 proto ra
        : no other link has a default route of IPv6""",
    "by a leg of a multipath route": f"{MGMT0}; ip route add default nexthop dev mgmt0 nexthop dev ens2f0",
    "by a nexthop object": "ip nexthop add id 7 dev ens2f0; ip route add default nhid 7",
    "by a group of nexthops that routes show by id alone": f"""{MGMT0}
        sysctl -q -w net.ipv4.nexthop_compat_mode=0; ip nexthop add id 7 dev ens2f0; ip nexthop add id 8 dev mgmt0
        ip nexthop add id 9 group 8/7; ip route add default nhid 9""",
    "by halves": f"""{OTHER_DEFAULT}; : as OpenVPN with redirect-gateway def1
        ip route add 0.0.0.0/1 dev ens2f0; ip route add 128.0.0.0/1 dev ens2f0""",
    "by the global unicast prefix": f"{WITH_IPV6}; ip -6 route add 2000::/3 via 2001:db8::1 dev ens2f0",
    "by a bridge on it": f"""{OTHER_DEFAULT}; ip link add br0 type bridge
        ip link set ens2f0 master br0; ip link set br0 up; ip -6 route add default dev br0""",
    "by a rule for all but the packets of a vpn": f"""{OTHER_DEFAULT}; {VPN.format(link="ens2f0")}
        : as wg-quick. mgmt0 carries the packets of the VPN itself, and the link of the VPN all others""",
    "by a route for a vpns own packets": f"""
        ip link add wg0 type veth peer name wg0-peer; ip link set wg0 up; ip link set wg0-peer up
        ip route add default dev ens2f0; {VPN.format(link="wg0")}""",
    "by a route without a metric beside others": f"""{MGMT0}
        ip route add default dev mgmt0 metric 100; ip route add default dev ens2f0""",
    "by a macvtap on it": f"""ip link add link ens2f0 name up0 type macvtap mode bridge; ip link set up0 up
        {WITH_IPV6}; ip -6 route add default dev up0""",
    "by a vlan on it": """ip link add link ens2f0 name ens2f0.5 type vlan id 5
        ip link set ens2f0.5 up; ip route add default dev ens2f0.5""",
    "by a bond on it": """ip link add bond0 type bond; ip link set ens2f0 down; ip link set ens2f0 master bond0
        ip link set ens2f0 up; ip link set bond0 up; ip route add default dev bond0""",
}


def play(node: Node, scene: str) -> None:
    """Run the lines of a scene, or skip the test where the kernel has no link of its kind."""
    done = node.run(["sh", "-ec", scene])
    if b"Unknown device type" in done.stderr or b"Operation not supported" in done.stderr:
        pytest.skip(NOT_THERE.format(done.stderr.decode().strip()))
    assert done.returncode == 0, done.stderr


VIRTUAL_FUNCTION_MAY = ("by a router advertisement",)  # README: its own RA route keeps no VF on the host
SHOWN = {"macvlan": ("ens2f0", "bridge"), "host-device": ("ens2f0",), "sriov": (PCI,)}  # how messages name the device


def taking(plugin: str, **more: Any) -> dict[str, Any]:
    """A network that takes the device away from the node."""
    return network(plugin, **({"mode": "passthru"} if plugin == "macvlan" else {}), **more)


@pytest.mark.parametrize("scene", CARRIED)
def test_the_link_of_a_default_route_in_use_is_not_taken_from_the_node(node: Node, pod: Pod, scene: str) -> None:
    play(node, CARRIED[scene])
    node.remember()
    before = routes(node)
    bus(node, "pci", PCI, "ens2f0", driver="mlx5_core")
    for plugin, words in SHOWN.items():
        if plugin == "sriov" and scene in VIRTUAL_FUNCTION_MAY:
            continue
        node.cni(plugin, "ADD", taking(plugin), netns=pod).refused(7, *words, "default route")
        assert (node.leftovers(), routes(node)) == ([], before)
        node.cni(plugin, "STATUS", taking(plugin)).refused(50, "default route")
    reply = node.cni("macvlan", "ADD", network(), netns=pod)  # in mode bridge the node keeps its traffic
    assert reply.status == 0 or "belongs to a bridge" in reply.msg, reply.document


def routes(node: Node) -> list[bytes]:
    """The routes, but for those that the kernel makes by itself: of an IPv6 address some time after its link is up."""
    said = b"".join(node.run(["ip", family, "route", "show", "table", "all"]).stdout for family in ("-4", "-6"))
    return [line for line in said.splitlines() if b"proto kernel" not in line]


OF_A_SOURCE = f"""{OTHER_DEFAULT}; ip address add 10.9.0.2/24 dev ens2f0
    ip route add default via 10.9.0.1 dev ens2f0 table 10001; ip rule add from 10.9.0.2 table 10001"""
FREE = {
    "of no rule": "ip route add default dev ens2f0 table 100",
    "of a table for a source": f"""{OF_A_SOURCE}
        : as cloud images have it for each NIC but the first, by amazon-ec2-net-utils or cloud-init""",
    "of a table for a mark or link": f"""{OF_A_SOURCE}
        ip rule add fwmark 7 table 10001; ip rule add oif ens2f0 table 10001; ip rule add iif ens2f0 table 10001
        ip rule add to 198.51.100.0/24 table 10001; ip rule add ipproto udp dport 4791 table 10001""",
    "of a table for an ipv6 mark": f"""{WITH_IPV6}
        ip -6 route add default via 2001:db8::1 dev ens2f0 table 70000; ip -6 rule add fwmark 7 table 70000""",
    "of a worse metric": f"{OTHER_DEFAULT}; ip route add default dev ens2f0 metric 500",
    "of dhcp on each nic": f"""{MGMT0}; : as systemd-networkd, with one metric for all. The kernel takes the first
        ip address add 10.1.0.1/24 dev mgmt0; ip address add 10.9.0.2/24 dev ens2f0
        ip route append default proto dhcp metric 1024 via 10.1.0.254 dev mgmt0 src 10.1.0.1
        ip route append default proto dhcp metric 1024 via 10.9.0.1 dev ens2f0 src 10.9.0.2""",
    "of a router that advertises on every nic": f"""{WITH_IPV6}
        ip -6 route add default via 2001:db8::1 dev ens2f0 proto ra metric 1024
        ip -6 route append default via fe80::1 dev mgmt0 proto ra metric 1024""",
    "of a vrf": f"""ip link add data type vrf table 1001; ip link set data up
        {OTHER_DEFAULT}; ip route add default dev ens2f0 table 1001""",
    "that discards": """ip route add blackhole default metric 4000; ip route add unreachable default metric 4001
        ip -6 route add unreachable default metric 4001 dev lo""",
    "of the peer": """ip link add up0 type veth peer name up0-peer; ip link set up0 up; ip link set up0-peer up
        ip route add default dev up0""",
    "of another link": f"""{OTHER_DEFAULT}
        ip route add 10.0.0.0/8 dev ens2f0; ip -6 route add fd00::/8 dev ens2f0""",
    "that delivers to the node itself": """: as proxies have it, by TPROXY
        ip route add local default dev ens2f0 table 100; ip rule add fwmark 1 table 100
        ip route add default dev ens2f0 table local""",
}


@pytest.mark.parametrize("scene", FREE)
def test_a_default_route_that_carries_nothing_of_the_nodes_is_no_hindrance(node: Node, pod: Pod, scene: str) -> None:
    play(node, FREE[scene])
    for plugin in ("macvlan", "host-device"):
        for verb in ("STATUS", "ADD", "DEL"):
            node.cni(plugin, verb, taking(plugin), netns=pod).succeeded()


KEPT = {  # the links and routes, the kubeconfig, and the words of the refusal
    "to the api server": (
        "ip address add 10.9.0.2/24 dev ens2f0; ip route add 10.50.0.0/16 via 10.9.0.1",
        "clusters:\n- cluster:\n    server: https://10.50.0.1:6443\n  name: a\n",
        ("API server 10.50.0.1", "whereabouts.kubeconfig"),
    ),
    "to the api server by ipv6 and a vlan": (
        """ip link add link ens2f0 name ens2f0.5 type vlan id 5; ip link set ens2f0.5 up
        ip address add 2001:db8::2/64 dev ens2f0.5 nodad""",
        'clusters: [{cluster: {server: "https://api.example:6443"}}, {cluster: {server: "https://[2001:db8::9]:6443"}}]',
        ("ens2f0.5", "API server 2001:db8::9"),
    ),
    "as the address of a control plane at which its API server listens": (
        "ip address add 10.9.0.2/24 dev ens2f0",
        'clusters: [{cluster: {server: "https://10.9.0.2:6443"}}]',
        ("the node's address 10.9.0.2/24",),
    ),
}


@pytest.mark.parametrize("scene", KEPT)
def test_the_way_to_the_api_server_is_not_taken_from_the_node(node: Node, pod: Pod, scene: str) -> None:
    setup, text, words = KEPT[scene]
    play(node, f"{OTHER_DEFAULT}; {setup}")
    node.write(KUBECONFIG, text)
    node.remember()
    bus(node, "pci", PCI, "ens2f0", driver="mlx5_core")
    for plugin in SHOWN:
        node.cni(plugin, "ADD", taking(plugin), netns=pod).refused(7, *words, "`uplinks`")
        node.cni(plugin, "STATUS", taking(plugin)).refused(50, *words)
        assert node.leftovers() == []


def test_the_administrator_lets_networks_take_a_device_that_carries_the_nodes_traffic(node: Node, pod: Pod) -> None:
    ip(node, "route", "add", "default", "dev", "ens2f0")
    bus(node, "pci", PCI, "ens2f0", driver="mlx5_core")
    for plugin in SHOWN:
        allow(node, uplinks=["ens3*"])
        node.cni(plugin, "ADD", taking(plugin), netns=pod).refused(7, "`uplinks` of", "railcni.json")
        allow(node, uplinks=["ens2*"])
        for verb in ("STATUS", "ADD", "DEL"):
            node.cni(plugin, verb, taking(plugin), netns=pod).succeeded()


def test_passthru_on_a_macvlan_of_the_default_routes_link_is_refused_too(node: Node, pod: Pod) -> None:
    stacked(node, "macvtap")
    ip(node, "route", "add", "default", "dev", "ens2f0")
    reply = node.cni("macvlan", "ADD", network(master="upper0", mode="passthru"), netns=pod)
    reply.refused(7, "upper0", "ens2f0", "default route")


def test_passthru_tells_of_the_addresses_that_the_node_cannot_use_meanwhile(node: Node, pod: Pod) -> None:
    """Refused it is not: host-device takes such a NIC too, and a rail's NIC has an address of the node as a rule."""
    ip(node, "address", "add", "10.9.0.1/24", "dev", "ens2f0")
    reply = node.cni("macvlan", "ADD", network(mode="passthru"), netns=pod)
    reply.succeeded()
    assert "10.9.0.1/24" in reply.stderr and "ens2f0" in reply.stderr, reply.stderr
    other = node.cni("macvlan", "DEL", network(mode="passthru"), netns=pod)
    assert "10.9.0.1/24" not in other.stderr


def test_passthru_tells_that_the_link_does_not_get_the_mac_that_is_asked_for(node: Node, pod: Pod) -> None:
    reply = node.cni("macvlan", "ADD", network(mode="passthru", mac="02:00:00:00:77:07"), netns=pod)
    assert "02:00:00:00:77:07 is not set" in reply.stderr and reply.succeeded()["interfaces"][0]["mac"] in reply.stderr


def test_passthru_in_the_sandbox_asks_nothing_of_the_hosts_routes(node: Node, pod: Pod) -> None:
    pod.view.add_veth("inner0", "inner1")
    ip(node, "route", "add", "default", "dev", "ens2f0")
    config = network(master="inner0", mode="passthru", linkInContainer=True)
    node.cni("macvlan", "ADD", config, netns=pod).succeeded()


# --- what the node itself has on the wire ---


OWN: dict[str, tuple[str, ...]] = {
    # the link of the node that has the lowest addresses; the master; how the link is made
    "the master": ("ens2f0", "ens2f0"),
    "a macvlan on it": ("own", "ens2f0", "link ens2f0 name own type macvlan mode bridge"),
    "a VLAN on it": ("own", "ens2f0", "link ens2f0 name own type vlan id 7"),
    "its bridge": ("own", "ens2f0", "name own type bridge", "set ens2f0 master own"),
    "its port": ("ens2f0", "own", "name own type bridge", "set ens2f0 master own"),
    "the link of its macvlan": ("ens2f0", "own", "link ens2f0 name own type macvlan mode bridge"),
    "the master in a VRF": ("ens2f0", "ens2f0", "name own type vrf table 77", "set ens2f0 master own"),
    "the default route's link, without a master": ("ens2f0", ""),
}


@pytest.mark.parametrize("case", OWN)
def test_no_pod_gets_an_address_that_others_have_on_the_masters_wire(node: Node, pod: Pod, case: str) -> None:
    holder, master, *links = OWN[case]
    for words in links:
        if words.startswith("set"):
            ip(node, "link", *words.split())
        else:
            made(node, words.split("type ")[1].split()[0], *words.split())
            ip(node, "link", "set", "own", "up")
    for address in ("192.168.111.1/24", "fd00:111::1/64"):
        ip(node, "address", "add", address, "dev", holder, *(["nodad"] if ":" in address else []))
    add_neighbours(node, holder, "permanent", 2)
    ranges = {**LEASES, "ipRanges": [{"range": "fd00:111::/64"}]}
    reply = node.cni("whereabouts", "ADD", network(ipam=ranges, master=master), netns=pod)
    assert reply.addresses == ["192.168.111.3/24", "fd00:111::3/64"]


def test_an_address_of_the_node_or_a_neighbour_on_another_wire_is_given(node: Node, pod: Pod) -> None:
    node.host.add_veth("other", "other-peer")
    ip(node, "address", "add", "192.168.111.1/24", "dev", "other")
    add_neighbours(node, "other", "permanent", 2)
    for number in (1, 2):
        reply = node.cni("whereabouts", "ADD", network(), netns=pod, container_id=f"c{number}")
        assert reply.addresses == [f"192.168.111.{number}/24"]


def test_no_pod_gets_an_address_of_the_physical_function_of_its_virtual_one(node: Node, pod: Pod) -> None:
    bus(node, "pci", PCI)
    (node.path(f"/sys/bus/pci/devices/{PCI}") / "physfn/net/ens2f0").mkdir(parents=True)
    ip(node, "address", "add", "192.168.111.1/24", "dev", "ens2f0")
    config = network("sriov", deviceID=None, runtimeConfig={"deviceID": PCI})
    assert node.cni("whereabouts", "ADD", config, netns=pod).addresses == ["192.168.111.2/24"]
    config = network("sriov", deviceID="0000:03:02.7")
    assert node.cni("whereabouts", "ADD", config, netns=pod, ifname="net2").addresses == ["192.168.111.1/24"]


def test_no_index_is_given_whose_address_the_node_has_on_a_rail(node: Node, pod: Pod) -> None:
    node.host.add_veth("ens3f0", "ens3-peer")
    ip(node, "address", "add", "192.168.112.1/24", "dev", "ens3f0")
    rail = {"index": 0, "group": "gpu", "addressing": "same-index", "ranges": ["192.168.111.0/24", "192.168.112.0/24"]}
    assert node.cni("macvlan", "ADD", network(rail=rail), netns=pod).addresses == ["192.168.111.2/24"]


@each_and("whose", ["the node", "a neighbour"], plugins=("macvlan", "whereabouts"))
def test_an_exhausted_range_counts_what_node_and_neighbours_have(node: Node, pod: Pod, plugin: str, whose: str) -> None:
    """In this process, and as Go's macvlan calls it."""
    own = whose == "the node"
    if own:
        ip(node, "address", "add", "192.168.111.1/24", "dev", "ens2f0")
    else:
        add_neighbours(node, "ens2f0", "reachable")
    config = network(ipam={**LEASES, "range": "192.168.111.0/30"})
    how: dict[str, Any] = {"netns": pod}
    told = "1 of them by this node itself" + (" or a neighbour" if not own else "")
    assert node.cni(plugin, "ADD", config, container_id="a", **how).addresses == ["192.168.111.2/30"]
    reply = node.cni(plugin, "ADD", config, container_id="b", ifname="net2", **how)
    reply.refused(11, "is exhausted: 2 of the 2 addresses", told)
    node.cni("whereabouts", "STATUS", config).refused(50, told)
    if own:
        reply = node.cni(plugin, "ADD", network(), container_id="c", ifname="net3", args="IP=192.168.111.1", **how)
        reply.refused(11, "192.168.111.1 (pool", "is this node's own")
        ip(node, "address", "del", "192.168.111.1/24", "dev", "ens2f0")
    else:
        add_neighbours(node, "ens2f0", "failed")
    assert node.cni(plugin, "ADD", config, container_id="b", ifname="net2", **how).addresses == ["192.168.111.1/30"]


def test_a_pod_keeps_an_address_that_the_node_got_later(node: Node, pod: Pod) -> None:
    first = node.cni("whereabouts", "ADD", network(), netns=pod).addresses
    ip(node, "address", "add", first[0], "dev", "ens2f0")
    assert node.cni("whereabouts", "ADD", network(), netns=pod).addresses == first


def add_neighbours(node: Node, link: str, state: str, last: int = 1) -> None:
    """The kernel's next test of an entry is far off."""
    slow = [f"net.{family}.neigh.{link}.retrans_time_ms=60000" for family in ("ipv4", "ipv6")]
    assert node.run(["sysctl", "-q", "-w", *slow]).returncode == 0
    for network in ("192.168.111.", "fd00:111::"):
        mac = "02:00:00:00:00:01"
        ip(node, "neighbour", "replace", f"{network}{last}", "lladdr", mac, "dev", link, "nud", state)


# Of a neighbour's entry: the last part of the address that is given.
STATES = {"permanent": 2, "reachable": 2, "stale": 2, "delay": 2, "probe": 2, "noarp": 1, "failed": 1}


@each_and("state", list(STATES), plugins=("macvlan", "whereabouts"))  # in this process; as Go's macvlan calls it
def test_no_pod_gets_a_neighbours_address_while_another_is_free(node: Node, pod: Pod, plugin: str, state: str) -> None:
    ip(node, "address", "add", "fd00:111::7/64", "dev", "ens2f0", "nodad")
    add_neighbours(node, "ens2f0", state)
    ranges = {**LEASES, "ipRanges": [{"range": "fd00:111::/64"}]}
    last = STATES[state]
    reply = node.cni(plugin, "ADD", network(ipam=ranges), netns=pod)
    assert reply.addresses == [f"192.168.111.{last}/24", f"fd00:111::{last}/64"]


@pytest.mark.parametrize("state", ["reachable", "stale"])
def test_a_pod_gets_its_former_and_a_requested_address_that_a_neighbour_has(node: Node, pod: Pod, state: str) -> None:
    """The neighbour may be the pod's former self."""

    def given(container: str, args: str = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0") -> list[str]:
        how = {"netns": pod, "container_id": container, "args": args}
        addresses = node.cni("macvlan", "ADD", network(), **how).addresses
        node.cni("macvlan", "DEL", network(), **how).succeeded()
        return addresses

    add_neighbours(node, "ens2f0", "failed")
    first = given("c1")
    add_neighbours(node, "ens2f0", state)
    assert first == given("c2") == given("c3", "IP=192.168.111.1") == ["192.168.111.1/24"]
    assert given("c4", "") == ["192.168.111.2/24"]


@pytest.mark.parametrize("state", ["stale", "delay", "probe"])
def test_a_full_range_gives_the_addresses_of_neighbours_that_answered_once(node: Node, pod: Pod, state: str) -> None:
    """They may be of pods that have ended."""
    config = network(ipam={**LEASES, "range": "192.168.111.0/29", "exclude": ["192.168.111.4/30"]})
    for last in (1, 3):
        add_neighbours(node, "ens2f0", state, last)
    given = [
        node.cni("macvlan", "ADD", config, netns=pod, container_id=container, ifname=f"net{container}").addresses
        for container in ("1", "2", "3")
    ]
    assert given == [["192.168.111.2/29"], ["192.168.111.1/29"], ["192.168.111.3/29"]]
    node.cni("whereabouts", "STATUS", config).refused(50, "is exhausted: 3 of the 3 addresses")


def test_lint_names_an_address_of_the_master_in_the_range(node: Node, pod: Pod) -> None:
    ip(node, "address", "add", "192.168.111.1/24", "dev", "ens2f0")
    for ipam, count in ((LEASES, 1), ({**LEASES, "exclude": ["192.168.111.1"]}, 0)):
        node.write("/run/a.conf", network(ipam=ipam))
        said = node.railcni("nad", "lint", "/run/a.conf")
        assert (said.stdout + said.stderr).count(b"this machine has 192.168.111.1 on ens2f0") == count


# --- links that are the node's or another sandbox's by their kind ---

NOT_FOR_NETWORKS = {
    "host's end of a veth of a sandbox": "veth peer name eth0 netns pod1",
    "tunnel of the node (vxlan)": "vxlan id 5 dstport 4789",
    "tunnel of the node (geneve)": "geneve id 5 remote 10.9.0.7",
    "tunnel of the node (gretap)": "gretap remote 10.9.0.7 local 10.9.0.1",
    "tunnel of the node (ipip)": "ipip remote 10.9.0.7 local 10.9.0.1",
    "tunnel of the node (wireguard)": "wireguard",
    "bridge of the node": "bridge",
}


@pytest.mark.parametrize("reason", NOT_FOR_NETWORKS)
def test_no_network_takes_a_link_that_is_the_nodes_or_a_sandboxs_by_its_kind(node: Node, pod: Pod, reason: str) -> None:
    words = NOT_FOR_NETWORKS[reason].split()
    made(node, words[0], "not0", "type", *words)
    node.remember()
    for plugin, key in (("host-device", "device"), ("macvlan", "master")):
        config = taking(plugin, **{key: "not0"})
        reply = node.cni(plugin, "ADD", config, netns=pod)
        reply.refused(7, "not0", reason)
        assert f"list it in `uplinks` of {POLICY}" in reply.msg[:250]
        if plugin == "host-device":
            node.cni(plugin, "STATUS", config).refused(50, "not0", reason)
        assert node.leftovers() == []
        assert node.host.link("not0").index
        node.cni(plugin, "DEL", config, netns=pod).succeeded()


@pytest.mark.parametrize("directory", ["/run/netns", "/run/docker/netns"])
def test_a_sandboxs_end_is_known_wherever_runtimes_mount_its_namespace(node: Node, pod: Pod, directory: str) -> None:
    node.path(directory).mkdir(parents=True, exist_ok=True)
    other = node.namespace("other", directory)
    node.host.add_veth("not0", "eth0")
    node.host.move("eth0", other)
    reply = node.cni("host-device", "ADD", network("host-device", device="not0"), netns=pod)
    reply.refused(7, "not0", "host's end of a veth of a sandbox")


OF_NETWORKS = (
    "not0 type veth peer name not1",
    "not0 type dummy",
    "not0 type bond",
    "link ens2f0 name not0 type vlan id 100",
)


@pytest.mark.parametrize("words", OF_NETWORKS)
def test_a_bond_a_vlan_and_what_stands_for_a_NIC_need_no_policy(node: Node, pod: Pod, words: str) -> None:
    made(node, words.split("type ")[1].split()[0], *words.split())
    reply = node.cni("host-device", "ADD", network("host-device", device="not0"), netns=pod)
    if reply.status and "marks it as local" in reply.msg:
        pytest.skip("this kernel moves no bond")
    reply.succeeded()
    node.cni("host-device", "DEL", network("host-device", device="not0"), netns=pod).succeeded()
    assert node.host.link("not0").index


@pytest.mark.parametrize("mode", ["bridge", "private", "vepa"])
def test_no_network_has_a_link_in_one_wire_with_another_pod(node: Node, pod: Pod, mode: str) -> None:
    """It could answer for the pod's gateway, and get all that the pod sends."""
    node.pod("pod2")
    ip(node, "link", "add", "not0", "type", "veth", "peer", "name", "eth0", "netns", "pod2")
    ip(node, "link", "set", "not0", "up")
    node.remember()
    config = network(master="not0", mode=mode)
    reason = """master "not0" is refused: "not0" is the host's end of a veth of a sandbox: use another master"""
    node.cni("macvlan", "ADD", config, netns=pod).refused(7, reason, f"list it in `uplinks` of {POLICY}")
    node.cni("macvlan", "STATUS", config).refused(50, reason)
    assert node.leftovers() == []
    allow(node, uplinks=["not0"])
    node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    allow(node, uplinks=[])
    node.cni("macvlan", "DEL", config, netns=pod).succeeded()  # no policy stops a DEL


def taken(node: Node, pod: Pod, refusal: str) -> None:
    """Assert that networks take ens2f0, or are refused with `refusal`."""
    for plugin in ("host-device", "macvlan"):
        reply = node.cni(plugin, "ADD", taking(plugin), netns=pod)
        if refusal:
            reply.refused(7, "ens2f0", refusal, "uplinks")
        else:
            reply.succeeded()
        node.cni(plugin, "DEL", taking(plugin), netns=pod).succeeded()


PROTOCOLS = {"BGP": ("186", True), "BIRD": ("12", True), "an administrator": ("4", False), "DHCP": ("16", False)}


@pytest.mark.parametrize("whose", PROTOCOLS)
def test_a_NIC_that_carries_a_routing_daemons_routes_stays_with_the_node(node: Node, pod: Pod, whose: str) -> None:
    protocol, is_refused = PROTOCOLS[whose]
    ip(node, "address", "add", "10.77.0.1/24", "dev", "ens2f0")
    ip(node, "route", "add", "10.88.0.0/16", "via", "10.77.0.254", "dev", "ens2f0", "proto", protocol)
    words = "carries the route 10.88.0.0/16 via 10.77.0.254 of a routing daemon"
    taken(node, pod, words if is_refused else "")


@pytest.mark.parametrize("server", ["10.77.0.9", "10.99.0.9", "not.an.address"])
def test_a_NIC_that_carries_the_nodes_storage_stays_with_the_node(node: Node, pod: Pod, server: str) -> None:
    is_refused = server == "10.77.0.9"
    ip(node, "address", "add", "10.77.0.1/24", "dev", "ens2f0")
    node.run(["mount", "-t", "tmpfs", "tmpfs", "/sys/class"]).check_returncode()
    connection = node.path("/sys/class/iscsi_connection/connection1:0")
    connection.mkdir(parents=True)
    (connection / "address").write_text(f"{server}\n")
    taken(node, pod, "carries the route to the iSCSI server 10.77.0.9" if is_refused else "")
    allow(node, uplinks=["ens2f0"])
    taken(node, pod, "")
