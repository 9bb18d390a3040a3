"""What a device has on the host before an attachment it has afterwards: all of it, or the table of devices says otherwise."""

from __future__ import annotations

import fcntl
import itertools
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.test_host_device import PCI, bus
from tests.faults.inject import unavailable
from tests.hosts import dump
from tests.node import CHROOT, STATE, Call, Node, Pod, until
from tests.tools import needs_ip
from tests.view import View

pytestmark = [needs_ip, pytest.mark.forked]

needs_strace = pytest.mark.skipif(bool(unavailable() or CHROOT), reason=unavailable() or "strace is not in that root")

NETWORK = {"cniVersion": "1.1.0", "name": "pf-net", "type": "host-device", "device": "data0"}
LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
EXHAUSTED = {**LEASES, "range": "192.168.111.0/32", "exclude": ["192.168.111.0/32"]}


def sh(node: Node, text: str) -> str:
    """Run the lines of `text` in the node, each of which must succeed."""
    done = node.run(["sh", "-ec", text])
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@contextmanager
def unchanged(node: Node, *kinds: str) -> Iterator[Callable[[], None]]:
    """Assert that the host has the same afterwards as before, or, by the function, at any time: all, or lines of `kinds`."""

    def same() -> None:
        found = dump.restored(host, before, lambda d: bool(kinds) and d.line.kind not in kinds, 5)
        assert [str(each) for each in found] == []

    with closing(dump.Host(node.host)) as host:
        before = dump.settled(host)
        node.remember()
        yield same
        same()


@pytest.fixture
def pod(node: Node) -> Pod:
    """A node with two NICs, data0 (02:…:0a) and eth1, and their other ends on another host."""
    wire = node.outside("fabric")
    for key in ("accept_dad", "router_solicitations"):  # an address is tentative for a second or two else
        node.host.set_sysctl(f"net/ipv6/conf/default/{key}", 0)
    for number, name in enumerate(("data0", "eth1")):
        with node.host.rtnl() as ipr, open(wire.path) as fabric:
            peer = {"ifname": f"peer{number}", "net_ns_fd": fabric.fileno()}
            ipr.link("add", ifname=name, kind="veth", peer=peer, index=100 + number)
        wire.set(f"peer{number}", state="up")
    sh(node, "ip link set data0 address 02:00:00:00:00:0a; ip link set data0 up; ip link set eth1 up")
    node.remember()
    return node.pod()


def add(node: Node, pod: Pod, config: dict[str, Any] | None = None, **how: Any) -> Any:
    return node.cni("host-device", "ADD", config or NETWORK, netns=pod, **how)


def delete(node: Node, pod: Pod | str | None, config: dict[str, Any] | None = None, **how: Any) -> Any:
    return node.cni("host-device", "DEL", config or NETWORK, netns=pod, **how)


def deleted(node: Node, pod: Pod | str | None, *told: str, **how: Any) -> None:
    """A DEL succeeds, and its log has nothing, or one line with these words."""
    reply = delete(node, pod, **how)
    reply.succeeded()
    assert (reply.stderr.count("\n"), [word for word in told if word not in reply.stderr]) == (bool(told), [])


MULTIPATH = """
    ip address add 10.9.0.2/24 dev data0; ip address add 10.8.0.2/24 dev eth1
    ip address add fd00:9::2/64 dev data0 nodad; ip address add fd00:8::2/64 dev eth1 nodad
    ip route add 10.40.0.0/16 nexthop via 10.9.0.1 dev data0 weight 3 nexthop via 10.8.0.1 dev eth1
    ip route add 10.41.0.0/16 metric 5 nexthop via 10.8.0.1 dev eth1 weight 2 nexthop via 10.9.0.1 dev data0 nexthop via 10.9.0.7 dev data0
    ip -6 route add fd00:40::/64 nexthop via fd00:9::1 dev data0 weight 3 nexthop via fd00:8::1 dev eth1
    ip -6 route add fd00:41::/64 nexthop via fd00:8::1 dev eth1 weight 2 nexthop via fd00:9::1 dev data0 nexthop via fd00:9::7 dev data0"""
EQUAL = """
    ip address add 10.9.0.2/24 dev data0; ip address add 10.8.0.2/24 dev eth1
    ip route add 10.50.0.0/16 dev data0; ip route append 10.50.0.0/16 via 10.9.0.7 dev data0; ip route append 10.50.0.0/16 dev eth1
    ip route add 10.51.0.0/16 dev eth1; ip route append 10.51.0.0/16 dev data0; ip route append 10.51.0.0/16 via 10.9.0.7 dev data0
    ip route add 10.40.0.0/16 via 10.8.0.77 dev eth1
    ip route append 10.40.0.0/16 nexthop via 10.9.0.1 dev data0 nexthop via 10.8.0.1 dev eth1
    ip route add 10.41.0.0/16 nexthop via 10.9.0.1 dev data0 nexthop via 10.8.0.1 dev eth1
    ip route append 10.41.0.0/16 via 10.8.0.77 dev eth1"""
KEPT = {  # which no scene of tests/hosts has
    "routes": """
        ip address add 10.9.0.2/24 dev data0; ip address add fd00:9::2/64 dev data0 nodad
        ip route add 10.30.0.0/16 via 10.9.0.1 rtt 100 congctl reno features ecn hoplimit 9 realm 5
        ip route add 10.33.0.0/16 dev data0 table 1234 proto 77 metric 9 src 10.9.0.2
        ip -6 route add fd00:31::/64 via fd00:9::1 table 1234 proto 77
        : a chain of gateways in the worst order
        ip route add 10.8.0.1 via 10.9.0.1 metric 7
        ip route add 10.7.0.0/16 via 10.9.0.7 onlink dev data0
        ip route add 10.7.0.0/24 dev data0 scope link
        ip route add 10.6.0.0/16 via 10.7.0.1
        ip route add default via 10.7.0.1 table 77
        : prefix routes that an administrator has removed
        ip address add 10.5.0.1/24 dev data0; ip route del 10.5.0.0/24 dev data0
        ip address add fd00:5::1/64 dev data0 nodad; ip -6 route del fd00:5::/64 dev data0""",
    "routes of equal priority": EQUAL,
    "routes of the other NIC with a source address of this one": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.8.0.2/24 dev eth1
        ip route add 10.60.0.0/16 via 10.8.0.1 dev eth1 src 10.9.0.2
        ip address add fd00:9::2/64 dev data0 nodad; ip address add fd00:8::2/64 dev eth1 nodad
        ip -6 route add fd00:60::/64 via fd00:8::1 dev eth1 src fd00:9::2""",
    "flags, sizes, the broadcast address and parameters of the link": """
        ip link set data0 promisc on; ip link set data0 allmulticast on; ip link set data0 multicast off
        ip link set data0 dynamic on; ip link set data0 gso_max_size 30000 gso_max_segs 77 gro_max_size 40000
        ip link set data0 txqueuelen 77; ip link set data0 group 5 alias 'rail 0'
        ip link set data0 broadcast ff:ff:ff:ff:ff:00
        cd /proc/sys/net/ipv4/conf/data0; echo 1 > arp_filter; echo 1 > accept_local; echo 7 > medium_id
        cd /proc/sys/net/ipv6/conf/data0; echo 7 > router_solicitation_interval; echo 99 > ra_defrtr_metric
        for p in regen_min_advance ra_honor_pio_life; do test ! -e $p || echo 1 > $p; done""",
    "MTU and link mode of a device that is down": "ip link set data0 down; ip link set data0 mtu 4200 mode dormant",
    "stable addresses of a secret": """
        sysctl -q -w net.ipv6.conf.data0.stable_secret=2001:db8::1234; ip link set data0 down; ip link set data0 up""",
    "alternative names": "ip link property add dev data0 altname rail-0",
    "stable addresses of a random secret": """
        ip link set data0 addrgenmode random; ip link set data0 down; ip link set data0 up""",
}  # fmt: skip


_OF_THE_POD = """
    ip link set net1 txqueuelen 9; ip link set net1 promisc off; ip link set net1 allmulticast off
    ip link set net1 multicast on; ip link set net1 group 9; ip link set net1 mtu 1300; ip link set net1 gso_max_size 20000
    ip address add 10.66.0.1/24 dev net1; ip link set net1 down; ip link set net1 address 02:66:66:66:66:66
    ip link property add dev net1 altname from-the-pod; ip link property del dev net1 altname rail-0 || true"""


@pytest.mark.parametrize("scene", KEPT)
def test_what_a_device_has_comes_back_whatever_the_pod_has_made_of_it(node: Node, pod: Pod, scene: str) -> None:
    sh(node, KEPT[scene])
    with unchanged(node):
        add(node, pod).succeeded()
        assert "data0" not in node.host.names()
        node.run(["nsenter", f"--net={pod.path}", "sh", "-ec", _OF_THE_POD]).check_returncode()
        deleted(node, pod)
    assert node.leftovers() == []


def in_part(scenes: Iterable[str], step: int) -> list[Any]:
    """The scenes, each some seconds of waiting for the kernel: `make long` runs those that `make test` leaves out."""
    return [pytest.param(s, marks=() if n % step == 0 else pytest.mark.long) for n, s in enumerate(scenes)]


@contextmanager
def unwritten(node: Node, device: str = "data0") -> Iterator[None]:
    """Assert that nobody changes anything of the device meanwhile, as `ip monitor` hears it."""
    monitor = node.start(["ip", "monitor", "link", "address", "route", "neigh"])
    yield
    monitor.terminate()
    said = monitor.communicate()[0].decode().splitlines()
    assert [line for line in said if device in line and "fe80::" not in line] == []  # fe80: of its peer's packets


def test_an_add_that_fails_before_it_moves_the_device_writes_nothing(node: Node, pod: Pod) -> None:
    sh(node, EQUAL)
    with unchanged(node), unwritten(node):
        assert add(node, pod, {**NETWORK, "ipam": EXHAUSTED}).status
    assert node.leases() == []


@pytest.mark.parametrize("then", ["DEL", "GC", "ADD"])
def test_after_an_add_that_was_killed_before_the_move_nothing_is_written(node: Node, pod: Pod, then: str) -> None:
    sh(node, MULTIPATH)
    config = {**NETWORK, "ipam": {**LEASES, "range": "10.7.0.0/24"}, "cni.dev/valid-attachments": []}
    other = node.pod("pod2")
    for verb in ("ADD", "DEL"):  # the lease file is there
        node.cni("macvlan", verb, {**config, "master": "eth1"}, netns=other, container_id="c2").succeeded()
    with unchanged(node):
        with node.path(f"{STATE}/leases.db").open("rb") as leases:
            fcntl.flock(leases, fcntl.LOCK_EX)  # the ADD has written its record, and waits here
            call = node.start_cni("host-device", "ADD", config, netns=pod)
            assert call.process.stdin
            call.process.stdin.write(call._stdin)
            call.process.stdin.close()
            assert until(lambda: any(name.endswith(":link") for name in node.files()))
            node.end([call.process])
        with unwritten(node):
            if then == "ADD":
                add(node, pod, {**NETWORK, "ipam": {"type": "nowhere"}}).refused(7, "nowhere")
            else:
                node.cni("host-device", then, config, netns=pod).succeeded()
    assert node.files() == []


def test_an_address_whose_lifetime_ended_meanwhile_does_not_come_back(node: Node, pod: Pod) -> None:
    sh(node, "ip address add 10.1.0.5/24 dev data0 valid_lft 1 preferred_lft 1; ip address add 10.2.0.5/24 dev data0")
    add(node, pod).succeeded()
    subprocess.run(["sleep", "1.1"], check=True)
    delete(node, pod).succeeded()
    assert [text for text in node.host.link("data0").texts if ":" not in text] == ["10.2.0.5/24"]


def test_the_legs_of_another_nic_carry_on_while_the_device_is_away(node: Node, pod: Pod) -> None:
    sh(node, MULTIPATH)
    add(node, pod).succeeded()
    assert "via 10.8.0.1 dev eth1" in sh(node, "ip route get 10.40.0.1")
    assert "via 10.8.0.1 dev eth1" in sh(node, "ip route get 10.41.0.1")
    assert "via fd00:8::1 dev eth1" in sh(node, "ip -6 route get fd00:40::1")
    delete(node, pod).succeeded()


def test_a_route_that_another_has_set_meanwhile_stays(node: Node, pod: Pod) -> None:
    sh(node, MULTIPATH)
    add(node, pod).succeeded()
    sh(node, "ip route replace 10.40.0.0/16 via 10.8.0.77 dev eth1")
    deleted(node, pod, "10.40.0.0/16")
    assert sh(node, "ip route show 10.40.0.0/16").split() == ["10.40.0.0/16", "via", "10.8.0.77", "dev", "eth1"]
    assert node.files() == []


def test_what_the_kernel_refuses_for_good_is_logged_and_the_delete_ends(node: Node, pod: Pod) -> None:
    sh(node, "ip address add 10.9.0.2/24 dev data0; ip route add 10.30.0.0/16 via 10.9.0.1 src 10.9.0.2")
    sh(node, "ip address add 10.77.0.1/24 dev eth1; ip route add 10.31.0.0/16 via 10.9.0.1 dev data0 src 10.77.0.1")
    add(node, pod).succeeded()
    sh(node, "ip address del 10.77.0.1/24 dev eth1")
    deleted(node, pod, "10.31.0.0/16")
    assert "10.9.0.1" in sh(node, "ip route show 10.30.0.0/16")
    assert (node.files(), node.host.link("data0").up) == ([], True)
    add(node, pod, container_id="c2").succeeded()


_EVERYTHING = """
    ip link property add dev data0 altname rail-0; ip link set data0 alias 'rail 0'; ip link set data0 txqueuelen 77
    ip link set data0 promisc on
    for n in 2 3 4 5; do ip address add 10.9.0.$n/24 dev data0; done; ip address add fd00:9::2/64 dev data0 nodad
    ip route add 10.30.0.0/16 via 10.9.0.1; ip -6 route add fd00:30::/64 via fd00:9::1
    ip neigh add 10.9.0.7 lladdr 02:00:00:00:00:77 dev data0 nud permanent
    sysctl -q -w net.ipv4.conf.data0.arp_ignore=1"""
_ERRNOS = ("EBUSY", "EAGAIN", "ENOBUFS", "EINTR", "EIO", "ENOMEM")


def _disturbed(node: Node, pod: Pod, network: dict[str, Any], *options: str) -> Any:
    """A DEL to the system calls of which strace does what `options` say."""
    command = ["strace", "-qq", "-o", "/run/trace", *options, node.executables / "host-device"]
    process = node.start(command, env=node.environ("DEL", netns=pod, args=""))
    return Call(process, json.dumps(network).encode()).finish()


def _requests(node: Node) -> tuple[int, int]:
    """The first request after the device was moved home, and the last one, by their number."""
    sent = [line for line in node.path("/run/trace").read_text().splitlines() if line.startswith("sendto(")]
    moves = [number for number, line in enumerate(sent, 1) if "nlmsg_type=RTM_NEWLINK" in line]
    return moves[0] + 1, len(sent)


@needs_strace
@pytest.mark.parametrize("error", in_part(_ERRNOS, len(_ERRNOS)))
def test_a_refusal_that_happens_once_loses_nothing_of_a_device(node: Node, pod: Pod, error: str) -> None:
    sh(node, _EVERYTHING)
    add(node, pod).succeeded()
    pod.view.set("net1", mtu=1300)
    _disturbed(node, pod, NETWORK, "-e", "trace=sendto", "-v").succeeded()
    first, last = _requests(node)
    with unchanged(node) as same:
        for number in range(first + _ERRNOS.index(error) % 3, last + 1, 3):
            add(node, pod).succeeded()
            pod.view.set("net1", mtu=1300)
            failing = f"inject=sendto:error={error}:when={number}"
            reply = _disturbed(node, pod, NETWORK, "-e", "trace=sendto", "-e", failing)
            if reply.status:
                assert reply.code in (11, 101), reply.document
                delete(node, pod).succeeded()
            same()
            assert node.files() == []


@needs_strace
@pytest.mark.parametrize("again", ["accepted", "refused again"])
def test_what_is_refused_to_the_end_is_tried_by_one_more_delete_and_the_lease_is_released(
    node: Node, pod: Pod, again: str
) -> None:
    sh(node, _EVERYTHING)
    config = {**NETWORK, "ipam": LEASES}
    path = "/proc/sys/net/ipv4/conf/data0/arp_ignore"
    busy = ("-P", path, "-e", "trace=write", "-e", "inject=write:error=EBUSY")
    with unchanged(node):
        add(node, pod, config).succeeded()
        pod.view.set("net1", mtu=1300)
        reply = _disturbed(node, pod, config, *busy)
        reply.refused(11, "data0", "arp_ignore", "busy", "repeat the DEL")
        assert "data0" in node.host.names()
        assert node.leases() == []
        if again == "refused again":
            reply = _disturbed(node, pod, config, *busy)
            reply.succeeded()
            assert "arp_ignore" in reply.stderr
            sh(node, f"echo 1 > {path}")
        else:
            delete(node, pod, config).succeeded()
    assert node.files() == []


def test_an_address_that_the_other_nic_took_meanwhile_blocks_nobody(node: Node, pod: Pod) -> None:
    sh(node, "ip address add 10.9.0.2/24 dev data0; ip address add fd00:9::2/64 dev data0 nodad")
    add(node, pod).succeeded()
    sh(node, "ip address add 10.9.0.2/24 dev eth1; ip address add fd00:9::2/64 dev eth1 nodad")
    delete(node, pod).succeeded()
    assert "10.9.0.2/24" in node.host.link("data0").texts


# --- what is refused, and what is announced as lost ---

TIED = {
    "a bridge": ("ip link add br0 type bridge; ip link set data0 master br0", ["br0", "bridge", "nomaster"]),
    "a VXLAN over it": ("ip link add up0 type vxlan id 7 dev data0 dstport 4789", ["up0", "vxlan", "remove it"]),
    "an entry of bridge fdb": ("bridge fdb add 02:77:77:77:77:77 dev data0 self permanent", ["02:77:77:77:77:77", "bridge fdb"]),
}  # fmt: skip


@pytest.mark.parametrize("scene", TIED)
def test_a_device_that_another_link_needs_is_refused_with_the_remedy(node: Node, pod: Pod, scene: str) -> None:
    setup, words = TIED[scene]
    sh(node, setup)
    bus(node, "pci", PCI, "data0", driver="mlx5_core")
    with unchanged(node):
        add(node, pod).refused(7, "data0", *words)
        node.cni("sriov", "ADD", VF, netns=pod).refused(7, PCI, *words)
        node.cni("host-device", "STATUS", NETWORK).refused(50, "data0", *words)
        node.cni("sriov", "STATUS", {**VF, "deviceID": PCI}).refused(50, PCI, *words)
    assert node.leftovers() == []


def test_an_mtu_above_that_of_the_link_below_the_device_is_named(node: Node, pod: Pod) -> None:
    sh(node, "ip link add up0 link data0 type macvlan; ip link set up0 up")
    with unchanged(node):
        add(node, pod, {**NETWORK, "device": "up0", "mtu": 9000}).refused(7, "mtu 9000", "up0", "lower it")
    assert node.leftovers() == []


def test_a_device_on_top_of_one_that_followed_it_into_the_pod_waits_for_that(node: Node, pod: Pod) -> None:
    """Such as a VLAN and then its NIC; a macvlan in mode passthru shows no MAC of its own on the NIC either."""
    upper = {**NETWORK, "device": "up0", "ipam": LEASES}
    sh(
        node,
        "ip link add up0 link data0 type macvlan mode passthru; ip link set up0 up; ip address add 10.9.0.3/24 dev up0",
    )
    with unchanged(node, "index"):
        add(node, pod, upper).succeeded()
        add(node, pod, ifname="net2").succeeded()
        delete(node, pod, upper).refused(11, "up0", '"net2"', "end net2 of container c1", "repeat the DEL")
        assert len(node.leases()) == 1
        delete(node, pod, ifname="net2").succeeded()
        delete(node, pod, upper).succeeded()
    assert node.leftovers() == []


def test_a_device_below_the_macvlan_of_a_pod_is_refused(node: Node, pod: Pod) -> None:
    macvlan = {"cniVersion": "1.1.0", "name": "rail", "type": "macvlan", "master": "data0"}
    other = node.pod("pod2")
    node.cni("macvlan", "ADD", macvlan, netns=other, container_id="c2").succeeded()
    add(node, pod).refused(7, "data0", other.view.link("net1").mac, "macvlan")
    node.cni("macvlan", "DEL", macvlan, netns=other, container_id="c2").succeeded()
    add(node, pod).succeeded()


LOST = {
    "a nexthop object with a route, and what else is lost": (
        """
        ip address add 10.9.0.2/24 dev data0; ip nexthop add id 5 via 10.9.0.1 dev data0; ip route add 10.30.0.0/16 nhid 5
        tc qdisc add dev data0 root tbf rate 1gbit burst 100k latency 5ms
        mount -t tmpfs tmpfs /sys/class; mkdir -p /sys/class/infiniband/rxe0/ports/1; echo data0 > /sys/class/infiniband/rxe0/parent
        cd /proc/sys/net; echo 17 > ipv4/neigh/data0/gc_stale_time; echo 12345 > ipv6/neigh/data0/base_reachable_time_ms
        ip maddress add 33:33:00:00:00:77 dev data0""",
        ["nexthop objects 5 and", "tc", "its verbs device rxe0", "its parameters net.ipv4.neigh and net.ipv6.neigh", "33:33:00:00:00:77"],
    ),
    "a nexthop object without a route, and a filter": (
        """
        ip address add 10.9.0.2/24 dev data0; ip nexthop add id 5 via 10.9.0.1 dev data0; ip nexthop add id 6 group 5
        tc qdisc add dev data0 clsact""",
        ["nexthop objects 5 and", "tc"],
    ),
    "a nexthop object that routes name alone": (
        """
        sysctl -q -w net.ipv4.nexthop_compat_mode=0; ip address add 10.9.0.2/24 dev data0
        ip nexthop add id 5 via 10.9.0.1 dev data0; ip route add 10.30.0.0/16 nhid 5""",
        ["nexthop objects 5 and"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("scene", LOST)
def test_what_cannot_be_saved_is_said_by_the_add_in_one_line(node: Node, pod: Pod, scene: str) -> None:
    setup, words = LOST[scene]
    sh(node, setup)
    reply = add(node, pod)
    reply.succeeded()
    assert (reply.stderr.count("\n"), [word for word in ("data0", *words) if word not in reply.stderr]) == (1, [])
    delete(node, pod).succeeded()


_ATTRIBUTES = "flags, sizes, the broadcast address and parameters of the link"
_SOURCES = "routes of the other NIC with a source address of this one"
SHOWN_BY = {  # by scenes of tests/hosts, by those above, or by tests
    "name, MAC, MTU, alias, up or down": ["own-mac", "group-queue-and-mtu", "altnames-and-alias", "bare-and-down"],
    "index": ["test_a_device_whose_index_was_taken_meanwhile_comes_back"],
    "alternative names": ["altnames-and-alias", "test_a_name_that_a_pod_gave_its_device_stands_for_no_other_device"],
    "transmit queue length, group, broadcast address of the link, link mode, protodown": ["group-queue-and-mtu", _ATTRIBUTES, "MTU and link mode of a device that is down"],
    "largest GSO and GRO packets and segments": [_ATTRIBUTES],
    "promiscuous, all multicast, no ARP and the other flags that can be set": [_ATTRIBUTES],
    "IPv4 and IPv6 addresses": ["custom-broadcast", "ipv6-address-flags", "dhcp-lease"],
    "temporary IPv6 addresses (privacy extensions)": ["none: needs a router on the wire"],
    "routes of all tables": ["routes-with-attributes", "routes", "ecmp-over-two-nics"],
    "next hops of these routes through other devices": ["test_the_legs_of_another_nic_carry_on_while_the_device_is_away"],
    "IPv4 routes by other devices with an address of this one as their source": [_SOURCES],
    "routes that a router has advertised": ["dhcp-by-networkmanager", "router-advertisements-on-every-nic"],
    "routes by nexthop objects, and these objects": ["nexthop-objects", *(s for s in LOST if "nexthop" in s)],
    "rules that name the device (ip rule)": ["policy-rules-and-tables"],
    "permanent neighbours, proxies": ["permanent-neighbours"],
    "parameters net.ipv4.conf, net.ipv6.conf": ["sysctls-of-firewalld", "sysctls-of-a-router", "sysctls-of-ipv6-and-neighbours", "disable-ipv6-on-it"],
    "parameters net.ipv4.neigh, net.ipv6.neigh": ["sysctls-of-ipv6-and-neighbours"],
    "net.mpls.conf, the secret of stable addresses, the interface identifier (token)": ["stable addresses of a secret", "stable addresses of a random secret", "token"],
    "IPv6 routes by other devices with an address of this one as their source": [_SOURCES],
    "verbs devices that are software on top of it (rxe, siw)": ["a nexthop object with a route, and what else is lost"],
    "qdiscs, classes and filters of tc": ["qdisc", "a nexthop object without a route, and a filter"],
    "multicast groups that programs have joined, multicast addresses of the link": ["multicast-address"],
    "rules of nftables in a chain of the netdev family": ["none: they are not seen"],
    "XDP program, settings of ethtool and devlink": ["none: the kernel's move does not touch them"],
    "membership in a bridge, bond, team, VRF or another master": ["bridged", "a bridge"],
    "links on top of it: VLAN, macvlan, macvtap, ipvlan, VXLAN, tunnels, HSR; those in pods by the MAC that they receive": ["macvlan-on-top", "a VXLAN over it", "test_a_device_below_the_macvlan_of_a_pod_is_refused"],
    "further unicast addresses of the link (bridge fdb)": ["another-unicast-address", "an entry of bridge fdb"],
    "the node's own traffic: the default route in use, the way to the API server, the node's address; also by a link on top": ["default-route", "default-route-ipv6"],
}  # fmt: skip


# --- sriov, and a device whose sandbox died ---

VF = {**NETWORK, "type": "sriov", "deviceID": PCI}


def test_what_a_vf_has_on_the_host_comes_back(node: Node, pod: Pod) -> None:
    """All scenes of tests/hosts with virtual functions are the lab's matter."""
    bus(node, "pci", PCI, "data0", driver="mlx5_core")
    sh(node, _EVERYTHING)
    with unchanged(node):
        node.cni("sriov", "ADD", VF, netns=pod).succeeded()
        node.cni("sriov", "DEL", VF, netns=pod).succeeded()
        node.cni("sriov", "ADD", {**VF, "ipam": EXHAUSTED}, netns=pod).refused(7, "range")


def test_the_next_add_gives_a_device_its_state_back_that_came_home_from_a_dead_sandbox(node: Node, pod: Pod) -> None:
    sh(node, _EVERYTHING)
    with unchanged(node):
        add(node, pod).succeeded()
        pod.view.move("net1", node.host)
        node.delete_pod(pod)
        other = node.pod("pod2")
        add(node, other, container_id="c2").succeeded()
        delete(node, pod.path).succeeded()
        assert "data0" not in node.host.names()
        delete(node, other, container_id="c2").succeeded()


# --- whose device it is ---


def test_a_link_that_the_pod_made_in_place_of_the_device_stays_in_the_pod(node: Node, pod: Pod) -> None:
    add(node, pod).succeeded()
    pod.view.delete("net1")
    with pod.view.rtnl() as ipr:
        ipr.link("add", ifname="net1", index=100, kind="veth", peer={"ifname": "p"}, address="02:00:00:00:00:0a")
    pod.view.set("net1", ifalias="data0")
    delete(node, pod).succeeded()
    assert "data0" not in node.host.names()
    assert sorted(pod.view.names()) == ["net1", "p"]


needs_tun = pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="the kernel here has no tun")
_TUN = """
    ip tuntap add dev data1 mode tun; ip link set data1 up; ip address add 10.9.0.2/24 dev data1
    ip route add 10.30.0.0/16 via 10.9.0.1"""


@needs_tun
@pytest.mark.parametrize("is_deleted", [False, True], ids=["", "deleted in the pod"])
def test_a_tunnel_of_the_pod_is_not_taken_for_a_device_without_a_mac(node: Node, pod: Pod, is_deleted: bool) -> None:
    sh(node, _TUN)
    node.allow(uplinks=["data1"])
    index = node.host.link("data1").index
    tunnel = {**NETWORK, "device": "data1", "ipam": LEASES}
    own = f"nsenter --net={pod.path} ip tuntap add dev data1 mode tun"
    if not is_deleted:
        sh(node, own)
        assert pod.view.link("data1").index == index
    with nullcontext() if is_deleted else unchanged(node):
        result = add(node, pod, tunnel).succeeded()
        if is_deleted:
            pod.view.delete("net1")
            sh(node, own)
            assert pod.view.link("data1").index == index
            check = {**tunnel, "prevResult": result}
            node.cni("host-device", "CHECK", check, netns=pod).refused(100, 'no link "net1"')
        reply = delete(node, pod, tunnel)
        reply.succeeded()
    assert pod.view.names() == ["data1"]
    assert (node.leases(), node.files()) == ([], [])
    assert ("vanished" in reply.stderr) == is_deleted


@pytest.mark.parametrize("place", ["the pod", "the host"])
def test_a_device_whose_index_was_taken_meanwhile_comes_back(node: Node, pod: Pod, place: str) -> None:
    def take(view: View) -> None:
        with view.rtnl() as ipr:
            ipr.link("add", ifname="usurper", index=100, kind="veth", peer={"ifname": "p"})

    sh(node, MULTIPATH)
    with unchanged(node, "route"):
        if place == "the pod":
            take(pod.view)
        add(node, pod).succeeded()
        if place == "the host":
            take(node.host)
        deleted(node, pod)
        if place == "the host":
            node.host.delete("usurper")
    assert (node.host.link("data0").index == 100) == (place == "the pod")
    assert sorted(pod.view.names()) == (["p", "usurper"] if place == "the pod" else [])


BOTH = {
    "the same subnet": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.9.0.3/24 dev eth1""",
    "routes of equal priority": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.9.0.3/24 dev eth1
        ip route add 10.50.0.0/16 dev data0; ip route append 10.50.0.0/16 via 10.9.0.7 dev data0; ip route append 10.50.0.0/16 dev eth1""",
    "multipath over both NICs": MULTIPATH,
    "multipath over both NICs and a third": """
        ip link add eth2 type veth peer name peer2; ip link set eth2 up; ip link set peer2 up
        ip address add 10.9.0.2/24 dev data0; ip address add 10.8.0.2/24 dev eth1; ip address add 10.7.0.2/24 dev eth2
        ip route add 10.40.0.0/16 nexthop via 10.9.0.1 dev data0 nexthop via 10.8.0.1 dev eth1 nexthop via 10.7.0.1 dev eth2""",
    "the same address": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.9.0.2/32 dev eth1""",
}  # fmt: skip


@pytest.mark.parametrize("scene", in_part(BOTH, 3))
def test_two_devices_that_share_routes_come_back_in_any_order(node: Node, pod: Pod, scene: str) -> None:
    sh(node, BOTH[scene])
    pods = {"data0": pod, "eth1": node.pod("pod2")}
    with unchanged(node) as same:
        for first, second in itertools.product((("data0", "eth1"), ("eth1", "data0")), repeat=2):
            for name in first:
                add(node, pods[name], {**NETWORK, "device": name}, container_id=name).succeeded()
            for name in second:
                deleted(node, pods[name], config={**NETWORK, "device": name}, container_id=name)
            same()
            assert node.leftovers() == []


@pytest.mark.parametrize("is_dead", [False, True], ids=["DEL in the pod", "the pod is gone"])
def test_a_name_that_a_pod_gave_its_device_stands_for_no_other_device(node: Node, pod: Pod, is_dead: bool) -> None:
    """Else the next pod would get the wrong device, and the right one could not return."""
    other, third = node.pod("pod2"), node.pod("pod3")
    of_eth1 = {**NETWORK, "device": "eth1"}
    add(node, other, of_eth1, container_id="c2").succeeded()
    add(node, pod).succeeded()
    sh(node, f"nsenter --net={pod.path} ip link property add dev net1 altname eth1")
    if is_dead:
        pod.view.move("net1", node.host)
        node.delete_pod(pod)
    delete(node, pod.path).succeeded()
    add(node, third, of_eth1, container_id="c3").refused(11, "eth1", "c2")
    delete(node, other, of_eth1, container_id="c2").succeeded()
    assert node.leftovers() == []
    assert node.host.link("data0").altnames == ()


def test_a_host_name_that_is_an_alternative_name_meanwhile_has_the_remedy_for_that(node: Node, pod: Pod) -> None:
    add(node, pod).succeeded()
    sh(node, "ip link property add dev eth1 altname data0")
    remedy = "ip link property del dev eth1 altname data0"
    delete(node, pod).refused(11, "data0", "eth1", remedy)
    sh(node, remedy)
    delete(node, pod).succeeded()
    assert node.leftovers() == []


def test_an_ifname_that_is_an_alternative_name_of_the_device_is_its_name_in_the_pod(node: Node, pod: Pod) -> None:
    sh(node, "ip link property add dev data0 altname net1 altname rail-0")
    before = node.host.link("data0").altnames
    add(node, pod).succeeded()
    assert pod.view.link("net1").altnames == ("rail-0",)
    delete(node, pod).succeeded()
    assert sorted(node.host.link("data0").altnames) == sorted(before)


def test_of_adds_that_race_for_one_device_one_gets_it_and_the_others_may_try_again(node: Node, pod: Pod) -> None:
    sh(node, MULTIPATH)
    with unchanged(node):
        pods = [node.pod(f"racer{number}") for number in range(15)]
        calls = [node.start_cni("host-device", "ADD", NETWORK, netns=p, container_id=p.name) for p in pods]
        replies = node.cni_at_once(calls)
        codes = sorted(reply.code for reply in replies)
        assert codes == [0] + [11] * 14, [r.document for r in replies if r.code not in (0, 11)]
        winner = next(number for number, reply in enumerate(replies) if reply.code == 0)
        for number in (winner - 1, winner):
            delete(node, pods[number], container_id=pods[number].name).succeeded()
        for each in pods:
            node.delete_pod(each)
