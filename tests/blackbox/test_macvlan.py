"""macvlan against a real kernel: what it makes, what it refuses, what it finds, and that nothing is left behind."""

import socket
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from tests.node import GO_PLUGINS, STATE, Node, Pod, until
from tests.view import View

pytestmark = pytest.mark.forked

STORED = {"type": "whereabouts", "datastore": "file"}
LEASES = {**STORED, "range": "192.168.111.0/24"}
BOTH = {**STORED, "ipRanges": [{"range": "192.168.111.0/24"}, {"range": "fd00:111::/64"}]}
FORMS = ("0.2.0", "0.4.0", "1.0.0", "1.1.0")  # versions of which each has another form of a result


def network(version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    """The seed network: an RDMA netdev shared by many pods."""
    base = {
        "cniVersion": version,
        "name": "rdma-net",
        "type": "macvlan",
        "master": "ens2f0",
        "mtu": 9000,
        "ipam": LEASES,
    }
    return {key: value for key, value in {**base, **more}.items() if value is not None}


@pytest.fixture
def wire(node: Node) -> View:
    """The far end of the master's wire."""
    return node.master()


@pytest.fixture
def pod(node: Node, wire: View) -> Pod:
    return node.pod()


def add(node: Node, pod: Pod, config: dict[str, Any], **how: Any) -> dict[str, Any]:
    result: dict[str, Any] = node.cni("macvlan", "ADD", config, netns=pod, **how).succeeded()
    return result


def delete(node: Node, pod: Pod | str | None, config: dict[str, Any], **how: Any) -> None:
    assert node.cni("macvlan", "DEL", config, netns=pod, **how).succeeded() is None


def refused(node: Node, pod: Pod | str, config: dict[str, Any], code: int, *words: str, **how: Any) -> None:
    """ADD fails with `code` and leaves nothing; neither does the DEL that a runtime sends after it."""
    node.cni("macvlan", "ADD", config, netns=pod, **how).refused(code, *words)
    assert node.leftovers() == []
    node.cni("macvlan", "DEL", config, netns=pod, **how)
    assert node.leftovers() == []


# --- ADD: the result ---
@pytest.mark.parametrize("version", FORMS)
def test_an_add_answers_in_the_form_of_its_version(node: Node, pod: Pod, version: str) -> None:
    result = add(node, pod, network(version, dns={"nameservers": ["192.168.111.2"]}))
    link = pod.view.link("net1")
    dns = {"nameservers": ["192.168.111.2"]}
    if version < "0.3.0":
        assert result == {"cniVersion": version, "ip4": {"ip": "192.168.111.1/24"}, "dns": dns}
    else:
        interface: dict[str, Any] = {"name": "net1", "mac": link.mac, "sandbox": pod.path}
        address: dict[str, Any] = {"interface": 0, "address": "192.168.111.1/24"}
        if version < "1.0.0":
            address["version"] = "4"
        if version >= "1.1.0":
            interface["mtu"] = 9000
        assert result == {"cniVersion": version, "interfaces": [interface], "ips": [address], "dns": dns}
    node.ended("macvlan", network(version), netns=pod)


def test_an_old_version_that_cannot_say_no_address_is_refused(node: Node, pod: Pod) -> None:
    refused(node, pod, network("0.2.0", ipam={}), 1, "0.2.0", "0.3.0")


# --- ADD: the kernel's state ---
def test_the_link_is_what_the_configuration_says(node: Node, pod: Pod) -> None:
    result = add(node, pod, network())
    link = pod.view.link("net1")
    assert (link.kind, link.mode, link.mtu, link.up, link.carrier) == ("macvlan", "bridge", 9000, True, True)
    # `ip` shows the namespace as link-netnsid 0
    assert (link.lower, link.lower_netnsid) == (node.host.link("ens2f0").index, 0)
    assert link.broadcast == "ff:ff:ff:ff:ff:ff"
    assert int(link.mac[:2], 16) & 3 == 2  # unicast, locally administered
    assert result["interfaces"][0]["mac"] == link.mac
    (address,) = [a for a in link.addresses if a.text == "192.168.111.1/24"]
    assert (address.broadcast, address.scope, address.valid_for_ever) == ("192.168.111.255", 0, True)


def test_packets_of_the_whole_mtu_pass_between_two_pods(node: Node, pod: Pod) -> None:
    other = node.pod("pod2")
    add(node, pod, network(ipam=BOTH))
    add(node, other, network(ipam=BOTH), container_id="c2")
    for family, one, two, size in (
        (socket.AF_INET, "192.168.111.1", "192.168.111.2", 9000 - 28),
        (socket.AF_INET6, "fd00:111::1", "fd00:111::2", 9000 - 48),
    ):
        with pod.view.entered():
            sender = socket.socket(family, socket.SOCK_DGRAM)
        with other.view.entered():
            receiver = socket.socket(family, socket.SOCK_DGRAM)
        with sender, receiver:
            receiver.settimeout(5)
            receiver.bind((two, 4791))
            sender.bind((one, 0))
            if family == socket.AF_INET:
                sender.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: must not fragment
            sender.sendto(b"x" * size, (two, 4791))
            assert len(receiver.recv(65536)) == size


@pytest.mark.parametrize("mode", ["bridge", "private", "vepa", "passthru"])
def test_every_mode_is_set_and_reported_by_the_kernel(node: Node, pod: Pod, mode: str) -> None:
    config = network(mode=mode)
    result = add(node, pod, config)
    link = pod.view.link("net1")
    assert link.mode == mode
    if mode == "passthru":
        assert link.mac == node.host.link("ens2f0").mac
    checked = node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod)
    assert (checked.succeeded(), checked.stderr) == (None, "")
    node.ended("macvlan", config, netns=pod)


def test_ipv6_addresses_can_be_used_at_once(node: Node, pod: Pod) -> None:
    add(node, pod, network(ipam=BOTH))
    link = pod.view.link("net1")
    assert link.texts == ["192.168.111.1/24", "fd00:111::1/64"]
    (address,) = [a for a in link.addresses if a.text == "fd00:111::1/64"]
    assert (address.nodad, address.tentative, address.valid_for_ever) == (True, False, True)


def test_duplicate_address_detection_is_waited_for_when_asked(node: Node, pod: Pod) -> None:
    began = time.monotonic()
    add(node, pod, network(ipam=BOTH, dad=True))
    (address,) = [a for a in pod.view.link("net1").addresses if a.text == "fd00:111::1/64"]
    assert (address.nodad, address.tentative) == (False, False)
    assert time.monotonic() - began > 0.5  # the kernel listens for a second


def test_a_duplicate_ipv6_address_fails_the_add_that_asked_for_detection(node: Node, pod: Pod, wire: View) -> None:
    wire.add_address("peer", "fd00:111::1/64")
    refused(node, pod, network(ipam=BOTH, dad=True), 101, "fd00:111::1")


def test_an_address_in_use_is_not_given_again_for_a_while(node: Node, pod: Pod, wire: View) -> None:
    """Kubelet tries again with a new sandbox each time."""
    wire.add_address("peer", "fd00:111::1/64")
    wire.add_address("peer", "fd00:111::3/64")
    config = network(ipam={**STORED, "range": "fd00:111::/64"}, dad=True)
    args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID=u"
    node.cni("macvlan", "ADD", config, container_id="s1", netns=pod, args=args).refused(101, "fd00:111::1")
    assert node.cni("macvlan", "ADD", config, container_id="s2", netns=pod, args=args).addresses == ["fd00:111::2/64"]
    reply = node.cni("macvlan", "ADD", config, ifname="net2", container_id="s2", netns=pod, args=args)
    reply.refused(101, "fd00:111::3")
    assert "fd00:111::3/64 is in use by another host: this node avoids it for 600 s" in reply.stderr
    listed = node.railcni("ipam", "leases", "--data-dir", STATE)
    assert b"fd00:111::2" in listed.stdout and b"fd00:111::1/64 was found in use" in listed.stderr
    assert b"fd00:111::3/64 was found in use by another host: this node avoids it until" in listed.stderr


def test_an_address_in_use_is_tried_again_when_no_other_is_free(node: Node, pod: Pod, wire: View) -> None:
    wire.add_address("peer", "fd00:111::1/126")
    config = network(ipam={**STORED, "range": "fd00:111::/126"}, dad=True)
    node.cni("macvlan", "ADD", config, netns=pod, container_id="a").refused(101, "fd00:111::1/126")
    add(node, pod, config, container_id="b")
    node.cni("macvlan", "ADD", config, netns=pod, container_id="c", ifname="net2").refused(101, "fd00:111::1/126")
    wire.delete_address("peer", "fd00:111::1/126")
    assert add(node, pod, config, container_id="c", ifname="net2")["ips"][0]["address"] == "fd00:111::1/126"


# --- ADD: the announcement on the wire ---
def hears(listener: socket.socket, *wanted: Callable[[bytes], bool], seconds: float = 5.0) -> bool:
    """Whether a frame of each kind `wanted` arrives within `seconds`."""
    deadline = time.monotonic() + seconds
    missing = list(wanted)
    while missing and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            frame = listener.recv(65536)
        except TimeoutError:
            break
        missing = [is_it for is_it in missing if not is_it(frame)]
    return not missing


def listen(wire: View) -> socket.socket:
    with wire.entered():
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    listener.bind(("peer", 3))
    return listener


def gratuitous_arp(mac: str, address: str) -> Callable[[bytes], bool]:
    """RFC 5227, section 3: sender and target are the address itself."""
    sender, packed = bytes.fromhex(mac.replace(":", "")), socket.inet_aton(address)
    return lambda frame: (
        frame[12:14] == b"\x08\x06" and frame[22:28] == sender and frame[28:32] == frame[38:42] == packed
    )


def unsolicited_neighbour_advertisement(address: str) -> Callable[[bytes], bool]:
    """RFC 4861, section 7.2.6: to all nodes, type 136, the target is the address itself."""
    packed, to_all = (socket.inet_pton(socket.AF_INET6, text) for text in (address, "ff02::1"))
    return lambda frame: (
        frame[12:14] == b"\x86\xdd" and frame[38:54] == to_all and frame[54] == 136 and frame[62:78] == packed
    )


def test_addresses_of_both_families_are_announced_on_the_wire(node: Node, pod: Pod, wire: View) -> None:
    with listen(wire) as listener:
        mac = add(node, pod, network(ipam=BOTH))["interfaces"][0]["mac"]
        told = gratuitous_arp(mac, "192.168.111.1"), unsolicited_neighbour_advertisement("fd00:111::1")
        assert hears(listener, *told)
    assert pod.view.sysctl("net/ipv4/conf/net1/arp_notify") == "1"
    assert pod.view.sysctl("net/ipv6/conf/net1/ndisc_notify") == "1"


# --- masters ---
def test_a_master_that_is_down_is_no_error_of_add_but_of_status(node: Node, pod: Pod) -> None:
    node.host.set("ens2f0", state="down")
    node.cni("macvlan", "STATUS", network()).refused(51, "ens2f0", "down")
    reply = node.cni("macvlan", "ADD", network(), netns=pod)
    assert reply.status == 0 and 'master "ens2f0" is down: ip link set ens2f0 up' in reply.stderr
    node.host.set("ens2f0", state="up")
    assert until(lambda: pod.view.link("net1").carrier)
    assert node.cni("macvlan", "STATUS", network()).succeeded() is None


def test_status_names_a_master_that_is_missing(node: Node, pod: Pod) -> None:
    node.cni("macvlan", "STATUS", network(master="ens9f9")).refused(50, "ens9f9")


@pytest.mark.parametrize(
    ("setup", "keys", "code", "words"),
    [
        ("ip link add br0 type bridge; ip link set ens2f0 master br0", {}, 50, ["ens2f0", "belongs to a bridge"]),
        ("", {"mtu": 65000}, 50, ["mtu 65000", "ens2f0", "lower the key `mtu`"]),
        ("", {"master": "lo"}, 50, ["lo", "not an Ethernet link"]),
    ],
    ids=["port of a bridge", "mtu above the master's", "no Ethernet"],
)
def test_status_refuses_a_master_that_every_add_would_refuse(
    node: Node, setup: str, keys: Any, code: int, words: list[str], pod: Pod
) -> None:
    node.run(["sh", "-ec", setup]).check_returncode()
    assert node.cni("macvlan", "ADD", network(**keys), netns=pod).status
    node.cni("macvlan", "STATUS", network(**keys)).refused(code, *words)


def test_status_accepts_a_macvlan_as_master_that_is_a_port_of_a_bridge(node: Node, pod: Pod) -> None:
    """The kernel puts the new link on the netdev below it."""
    sh = "ip link add mv0 link ens2f0 type macvlan; ip link set mv0 up; ip link add br0 type bridge; ip link set mv0 master br0"
    node.run(["sh", "-ec", sh]).check_returncode()
    node.cni("macvlan", "STATUS", network(master="mv0")).succeeded()
    node.cni("macvlan", "ADD", network(master="mv0"), netns=pod).succeeded()


def test_without_a_master_the_link_of_the_default_route_is_taken(node: Node, pod: Pod) -> None:
    refused(node, pod, network(master=None), 7, "master", "default route")
    node.host.add_address("ens2f0", "192.0.2.2/24")
    node.host.add_route("ens2f0", "default", gateway="192.0.2.1")
    for unset in (None, ""):
        add(node, pod, network(master=unset))
        assert pod.view.link("net1").lower == node.host.link("ens2f0").index
        node.ended("macvlan", network(master=unset), netns=pod)


@pytest.mark.parametrize("device", ["0000:99:00.0", "all-3", "../../net/ens2f0"])
def test_a_device_without_a_netdev_is_no_reason_to_take_the_default_route(node: Node, pod: Pod, device: str) -> None:
    node.host.add_address("ens2f0", "192.0.2.2/24")
    node.host.add_route("ens2f0", "default", gateway="192.0.2.1")
    refused(node, pod, network(master=None, deviceID=device), 7, f'deviceID "{device}"', "`master`")
    refused(node, pod, network(master=None, runtimeConfig={"deviceID": device}), 7, f'deviceID "{device}"')
    delete(node, pod, network(master=None, deviceID=device))
    add(node, pod, network(deviceID=device))  # a master that is named is the master
    assert pod.view.link("net1").lower == node.host.link("ens2f0").index
    node.ended("macvlan", network(deviceID=device), netns=pod)


def test_the_master_may_be_in_the_container(node: Node, pod: Pod) -> None:
    pod.view.add_veth("inner0", "inner1", mtu=4000)
    node.remember()
    config = network(master="inner0", mtu=None, linkInContainer=True)
    result = add(node, pod, config)
    link = pod.view.link("net1")
    assert (link.lower, link.mtu) == (pod.view.link("inner0").index, 4000)
    node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod).succeeded()
    node.ended("macvlan", config, netns=pod)


def test_a_master_of_the_host_is_not_found_in_the_container(node: Node, pod: Pod) -> None:
    refused(node, pod, network(linkInContainer=True), 7, "ens2f0", "sandbox")


def test_a_link_of_the_host_with_the_pods_ifname_is_no_hindrance(node: Node, pod: Pod) -> None:
    node.host.add_veth("net1", "net2")
    node.remember()
    before = node.host.link("net1")
    add(node, pod, network())
    for netns in (pod.path, None, "/proc/self/ns/net", "/run/netns/none"):
        node.cni("macvlan", "DEL", network(), netns=netns)
        assert (node.leftovers(), node.host.link("net1")) == ([], before)


# --- a retried ADD ---
def test_an_add_after_the_first_ones_link_was_lost_succeeds(node: Node, pod: Pod) -> None:
    first = add(node, pod, network())
    pod.view.delete("net1")
    assert add(node, pod, network())["ips"] == first["ips"]
    node.ended("macvlan", network(), netns=pod)


def test_an_add_in_a_new_sandbox_of_the_same_attachment_leaves_nothing_in_the_old_one(node: Node, pod: Pod) -> None:
    other = node.pod("pod2")
    add(node, pod, network())
    add(node, other, network())
    assert (pod.view.names(), other.view.names()) == ([], ["net1"])
    node.ended("macvlan", network(), netns=other)


def test_one_attachment_added_by_many_at_once_has_one_link(node: Node, pod: Pod) -> None:
    calls = [node.start_cni("macvlan", "ADD", network(), netns=pod) for _ in range(8)]
    answers = [reply.succeeded() for reply in node.cni_at_once(calls)]
    assert all(answer == answers[0] for answer in answers)
    assert pod.view.names() == ["net1"]
    node.ended("macvlan", network(), netns=pod)


# --- DEL ---
def test_a_delete_of_what_was_never_added_succeeds(node: Node, pod: Pod) -> None:
    delete(node, pod, network())
    node.path("/run/loop").symlink_to("loop")
    for nowhere in (None, "/run/loop", "/run/" + 256 * "x"):
        node.ended("macvlan", network(), netns=nowhere)


@pytest.mark.parametrize("path", [None, "", "/run/netns/none", "/dev/null", "/run/some-file"])
def test_a_delete_with_a_path_that_is_no_namespace_succeeds(node: Node, pod: Pod, path: str | None) -> None:
    node.path("/run/some-file").write_text("")
    add(node, pod, network())
    node.ended("macvlan", network(), netns=path)


@pytest.mark.parametrize("master", ["ens2f0", "ens3f0"])
@pytest.mark.parametrize("changed", ["names", "names, with configured MACs", "MACs, as a bond does"])
def test_a_delete_spares_the_link_of_another_attachment_that_the_pod_made_look_like_this_one(
    node: Node, pod: Pod, changed: str, master: str
) -> None:
    node.host.add_veth("ens3f0", "ens3f0-peer", mtu=9000)
    configs = {"net1": network(), "net2": network(master=master)}
    indexes = {}
    for number, (name, config) in enumerate(configs.items(), 1):
        if "configured" in changed:
            config["runtimeConfig"] = {"mac": f"02:00:00:00:00:0{number}"}
            config["capabilities"] = {"mac": True}
        node.cni("macvlan", "ADD", config, netns=pod, ifname=name).succeeded()
        pod.view.set(name, state="down")
        indexes[name] = pod.view.link(name).index
    if changed.startswith("names"):
        for former, name in (("net1", "other"), ("net2", "net1"), ("other", "net2")):
            pod.view.set(former, ifname=name)
    else:
        pod.view.set("net2", address=pod.view.link("net1").mac)
    node.cni("macvlan", "DEL", configs["net1"], netns=pod, ifname="net1").succeeded()
    assert [link.index for link in pod.view.links().values()] == [indexes["net2"]]
    node.cni("macvlan", "DEL", configs["net2"], netns=pod, ifname="net2").succeeded()
    assert not pod.view.links() and node.leases() == []


def test_a_delete_leaves_a_link_that_is_not_ours(node: Node, pod: Pod) -> None:
    add(node, pod, network())
    pod.view.delete("net1")
    pod.view.add_veth("net1", "other")
    before = pod.view.link("net1")
    delete(node, pod, network())
    assert node.leases() == []
    assert pod.view.link("net1") == before


CHANGED = (
    {"master": "ens9f9"},
    {"ipam": {**LEASES, "range": "10.1.0.0/16"}},
    {"ipam": {}},
    {"mode": "sideways", "mtu": -1},
)


@pytest.mark.parametrize("keys", CHANGED, ids=str)
def test_a_delete_with_a_configuration_that_has_changed_since_leaves_nothing(node: Node, pod: Pod, keys: Any) -> None:
    add(node, pod, network())
    node.ended("macvlan", network(**keys), netns=pod)


def test_a_delete_after_the_master_has_gone_frees_the_address(node: Node, pod: Pod) -> None:
    add(node, pod, network())
    node.host.delete("ens2f0")  # takes its macvlans with it
    delete(node, pod, network())
    assert (node.leases(), node.files()) == ([], [])


@pytest.mark.skipif(not (GO_PLUGINS / "macvlan").exists(), reason="needs the package containernetworking-plugins")
def test_an_attachment_of_gos_macvlan_is_removed(node: Node, pod: Pod) -> None:
    config = network("1.0.0", ipam={"type": "host-local", "ranges": [[{"subnet": "192.168.111.0/24"}]]})
    node.cni(GO_PLUGINS / "macvlan", "ADD", config, netns=pod).succeeded()
    assert pod.view.names() == ["net1"]
    node.ended("macvlan", config, netns=pod)


# --- CHECK ---
def replace_by_veth(node: Node, pod: Pod) -> None:
    pod.view.delete("net1")
    pod.view.add_veth("net1", "other")


def move_to_another_master(node: Node, pod: Pod) -> None:
    mac = pod.view.link("net1").mac
    pod.view.delete("net1")
    with pod.view.rtnl() as ipr:
        ipr.link("add", ifname="dead0", kind="veth", peer={"ifname": "dead1"}, mtu=9000)
        (lower,) = ipr.link_lookup(ifname="dead0")
        ipr.link("add", ifname="net1", kind="macvlan", link=lower, macvlan_mode="bridge", address=mac)
    pod.view.set("net1", state="up")
    pod.view.add_address("net1", "192.168.111.1/24")


def change_mode(node: Node, pod: Pod) -> None:
    with pod.view.rtnl() as ipr:
        (index,) = ipr.link_lookup(ifname="net1")
        ipr.link("set", index=index, kind="macvlan", macvlan_mode="vepa")


def shrink_the_master(node: Node, pod: Pod) -> None:
    node.host.set("ens2f0", mtu=1500)
    node.host.set("ens2f0", mtu=9000)  # and the pod's link does not grow back


DIFFERENCES: dict[str, tuple[Any, list[str]]] = {
    "the link is gone": (lambda node, pod: pod.view.delete("net1"), ["net1"]),
    "the link is down": (lambda node, pod: pod.view.set("net1", state="down"), ["down"]),
    "another kind": (replace_by_veth, ["veth", "macvlan"]),
    "another master": (move_to_another_master, ["ens2f0"]),
    "another mode": (change_mode, ["vepa", "bridge"]),
    "another MTU": (lambda node, pod: pod.view.set("net1", mtu=8000), ["8000", "9000"]),
    "the master's MTU had shrunk": (shrink_the_master, ["1500", "9000"]),
    "another MAC": (lambda node, pod: pod.view.set("net1", address="02:00:00:00:00:99"), ["02:00:00:00:00:99"]),
    "an address is gone": (lambda node, pod: pod.view.delete_address("net1", "192.168.111.1/24"), ["192.168.111.1/24"]),
    "a route is gone": (lambda node, pod: pod.view.delete_route("net1", "10.0.0.0/8"), ["10.0.0.0/8"]),
}


@pytest.mark.parametrize(("version", "difference"), zip(cycle(("0.4.0", "1.0.0", "1.1.0")), DIFFERENCES, strict=False))
def test_check_names_what_differs(node: Node, pod: Pod, difference: str, version: str) -> None:
    change, words = DIFFERENCES[difference]
    config = network(version, mtu=9000, ipam={**LEASES, "routes": [{"dst": "10.0.0.0/8", "gw": "192.168.111.200"}]})
    result = add(node, pod, config)
    change(node, pod)
    node.cni("macvlan", "CHECK", {**config, "prevResult": result}, netns=pod).refused(100, *words)


def test_check_names_all_that_differs_and_a_lease_that_is_gone(node: Node, pod: Pod) -> None:
    config = network() | {"prevResult": add(node, pod, network())}
    pod.view.set("net1", mtu=8000)
    pod.view.delete_address("net1", "192.168.111.1/24")
    node.cni("macvlan", "CHECK", config, netns=pod).refused(100, "8000", "192.168.111.1", "detach and attach it again")
    node.cni("whereabouts", "DEL", network(), netns=pod).succeeded()
    node.cni("macvlan", "CHECK", config, netns=pod).refused(100, "192.168.111.1/24 is not leased")


def test_check_without_a_previous_result_is_refused(node: Node, pod: Pod) -> None:
    add(node, pod, network())
    node.cni("macvlan", "CHECK", network(), netns=pod).refused(7, "prevResult")


def test_check_in_another_sandbox_is_refused(node: Node, pod: Pod) -> None:
    result = add(node, pod, network())
    other = node.pod("pod2")
    reply = node.cni("macvlan", "CHECK", {**network(), "prevResult": result}, netns=other)
    assert reply.status == 1 and "net1" in reply.msg


# --- GC and STATUS ---
def valid(*attachments: str) -> dict[str, Any]:
    return {"cni.dev/valid-attachments": [{"containerID": c, "ifname": "net1"} for c in attachments]}


def test_gc_removes_what_the_runtime_no_longer_knows(node: Node, pod: Pod) -> None:
    pods = [pod, node.pod("pod2"), node.pod("pod3")]
    for number, each in enumerate(pods, 1):
        add(node, each, network(), container_id=f"c{number}")
    assert node.cni("macvlan", "GC", network() | valid("c2")).succeeded() is None
    assert node.leases() == ["192.168.111.2"]
    assert [each.view.names() for each in pods] == [[], ["net1"], []]
    assert node.cni("macvlan", "GC", network() | valid()).succeeded() is None
    assert node.leftovers() == []


def test_gc_touches_no_other_network(node: Node, pod: Pod) -> None:
    add(node, pod, network(name="other"))
    node.cni("macvlan", "GC", network() | valid()).succeeded()
    assert (node.leases(), pod.view.names()) == (["192.168.111.1"], ["net1"])
