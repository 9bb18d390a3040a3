"""What a device has on the host before an attachment it has afterwards: all of it, or the table of devices says otherwise.

Each scene sets up a host as administrators run it; an independent dump (iproute2's) before and after must be equal. The
table is that of docs/devices.md; the broad matrix of hosts, plugins and ways of ending is the matter of tests/hosts.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.test_host_device import PCI, bus
from tests.faults.inject import unavailable
from tests.node import CHROOT, STATE, Call, Node, Pod, until
from tests.tools import needs_ip

pytestmark = needs_ip

needs_strace = pytest.mark.skipif(bool(unavailable() or CHROOT), reason=unavailable() or "strace is not in that root")

NETWORK = {"cniVersion": "1.1.0", "name": "pf-net", "type": "host-device", "device": "data0"}
LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}
EXHAUSTED = {**LEASES, "range": "192.168.111.0/32", "exclude": ["192.168.111.0/32"]}

# what the kernel counts or makes again by itself
_PASSING = re.compile(r"(valid_lft|preferred_lft|valid_life_time|preferred_life_time|expires|ifindex|stats|used)")


def sh(node: Node, text: str) -> str:
    """Run the lines of `text` in the node, each of which must succeed."""
    done = node.run(["sh", "-ec", text])
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def ip(node: Node, *words: str) -> Any:
    out = sh(node, "ip -j " + " ".join(words)).strip()
    return json.loads(out) if out else []


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        if "UP" not in value.get("flags", ["UP"]):  # what a link that is down had when it was up last
            value.pop("qdisc", None)
        return {key: _steady(v) for key, v in value.items() if not _PASSING.search(key)}
    return [_steady(v) for v in value] if isinstance(value, list) else value


_SHOWN = {  # by iproute2, in one shell, since a dump is made hundreds of times
    "links": "ip -j -d link show",
    "addresses": "ip -j -d address show",
    "ipv4": "ip -j -4 -d route show table all",
    "ipv6": "ip -j -6 -d route show table all",
    "rules of IPv4": "ip -j -4 rule show",
    "rules of IPv6": "ip -j -6 rule show",
    "neighbours": "ip -j neigh show nud permanent",
    "proxies": "ip -j neigh show proxy",
    "tokens": "ip token list",
}


def dump(node: Node, *links: str) -> dict[str, Any]:
    """Links, addresses, routes of all tables, rules, neighbours and parameters, as iproute2 and /proc/sys show them."""
    shown = sh(node, "; echo ---; ".join(_SHOWN.values())).split("---\n")
    found: dict[str, Any] = {
        key: (json.loads(text or "[]") if " -j " in command else text)
        for (key, command), text in zip(_SHOWN.items(), shown, strict=True)
    }
    found["neighbours"] = [*found["neighbours"], *found.pop("proxies")]
    found["parameters"] = {link: parameters(node, link) for link in links or ("data0",)}
    steady: dict[str, Any] = _steady(found)
    # the kernel's own order: of its local table, and of IPv6 routes by several links, of which the newest comes last
    local = [route for route in steady["ipv4"] if route.get("table") == "local"]
    steady["ipv4"] = [route for route in steady["ipv4"] if route not in local]
    for key, values in (
        ("local", local),
        ("ipv6", steady["ipv6"]),
        ("neighbours", steady["neighbours"]),
    ):
        steady[key] = sorted(values, key=str)
    return steady


def parameters(node: Node, link: str) -> dict[str, str]:
    """All of a link's below /proc/sys/net that can be read."""
    found = {}
    with node.host.entered():
        for family, kind in itertools.product(("ipv4", "ipv6"), ("conf", "neigh")):
            for path in Path(f"/proc/sys/net/{family}/{kind}/{link}").iterdir():
                with suppress(OSError):
                    found[f"{family}/{kind}/{path.name}"] = path.read_text()
    return found


def settled(node: Node) -> bool:
    """Whether no address is tentative, and each link that has carrier is running, which the kernel says up to 1 s later."""
    links, tentative = sh(node, "ip -j link show; ip -6 address show tentative").split("\n", 1)
    running = all(
        each["operstate"] in ("UP", "UNKNOWN", "DORMANT") for each in json.loads(links) if "LOWER_UP" in each["flags"]
    )
    return running and not tentative.strip()


@pytest.fixture
def pod(node: Node) -> Pod:
    """A node with two NICs, data0 (02:…:0a) and eth1, and their other ends on another host."""
    wire = node.outside("fabric")
    sh(
        node, "echo 0 > /proc/sys/net/ipv6/conf/default/dad_transmits"
    )  # an address is tentative for a second or two else
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


def comes_back(node: Node, pod: Pod, scene: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    sh(node, scene)
    assert until(lambda: settled(node))
    node.remember()
    before = dump(node, "data0", "eth1")
    add(node, pod).succeeded()
    assert "data0" not in node.host.names()
    meanwhile()
    reply = delete(node, pod)
    reply.succeeded()
    assert reply.stderr == ""
    assert until(lambda: settled(node))
    after = dump(node, "data0", "eth1")
    for key in before:
        assert after[key] == before[key], key
    assert node.leftovers() == []


ROUTING = {
    "a host address, its gateway on the link, and a network by the gateway": """
        ip address add 10.0.0.2/32 dev data0
        ip route add 10.0.0.1 dev data0 scope link
        ip route add 10.0.0.0/16 via 10.0.0.1""",
    "a chain of gateways in the worst order": """
        ip address add 10.9.0.2/24 dev data0
        ip route add 10.8.0.1 via 10.9.0.1 metric 7
        ip route add 10.7.0.0/16 via 10.9.0.7 onlink dev data0
        ip route add 10.7.0.0/24 dev data0 scope link
        ip route add 10.6.0.0/16 via 10.7.0.1
        ip route add default via 10.7.0.1 table 77""",
    "an address of a DHCP client with its routes": """
        ip address add 10.1.0.5/24 broadcast 10.1.0.77 dev data0 valid_lft 4000 preferred_lft 3000
        ip route add 10.20.0.0/16 via 10.1.0.1 proto dhcp src 10.1.0.5 metric 100""",
    "a source address of IPv6": """
        ip address add fd00:1::5/64 dev data0
        ip address add fd00:1::6/64 dev data0 nodad
        while ip -6 address show dev data0 tentative | grep -q inet6; do sleep 0.05; done
        ip route add fd00:2::/64 via fd00:1::1 dev data0 src fd00:1::5
        ip route add fd00:3::/64 via fd00:1::1 dev data0 src fd00:1::6 pref high""",
    "addresses of many kinds": """
        ip address add 10.2.0.1/24 dev data0
        ip address add 10.2.0.2/24 dev data0
        ip address add 10.3.0.1 peer 10.3.0.9/32 dev data0 label data0:p2p
        ip address add 10.4.0.1/24 broadcast 10.4.0.17 dev data0 scope link metric 50
        ip address add 10.5.0.1/24 dev data0 noprefixroute
        ip address add fd00:5::1/64 dev data0 noprefixroute home
        ip address add fd00:6::1 peer fd00:6::2/128 dev data0 nodad
        ip address add fd00:7::1/64 dev data0 nodad
        ip address add fd00:7::2/64 dev data0 valid_lft 4000 preferred_lft 0 nodad""",
    "prefix routes that the network manager sets itself": """
        ip address add 10.5.0.1/24 dev data0 noprefixroute
        ip route add 10.5.0.0/24 dev data0 proto kernel scope link src 10.5.0.1 metric 101
        ip address add fd00:5::1/64 dev data0 noprefixroute nodad
        ip route add fd00:5::/64 dev data0 proto kernel metric 101""",
    "prefix routes that an administrator has removed": """
        ip address add 10.5.0.1/24 dev data0
        ip route del 10.5.0.0/24 dev data0
        ip address add fd00:5::1/64 dev data0 nodad
        ip -6 route del fd00:5::/64 dev data0""",
    "every attribute of routes": """
        ip address add 10.9.0.2/24 dev data0
        ip address add fd00:9::2/64 dev data0 nodad
        ip route add 10.30.0.0/16 via 10.9.0.1 tos 0x10 initcwnd 20 initrwnd 30 mtu lock 1400 advmss 1300 rtt 100 rto_min 50 quickack 1
        ip route add 10.31.0.0/16 via 10.9.0.1 congctl reno features ecn hoplimit 9 realm 5
        ip route add 10.32.0.0/16 via inet6 fd00:9::1 dev data0
        ip route add 10.33.0.0/16 dev data0 table 1234 proto 77 metric 9 src 10.9.0.2
        ip route add local 10.34.0.0/24 dev data0
        ip route add multicast 232.0.0.0/8 dev data0
        ip -6 route add fd00:30::/64 via fd00:9::1 mtu 1400 initcwnd 20 hoplimit 9 metric 77 pref low expires 5000
        ip -6 route add fd00:31::/64 via fd00:9::1 table 1234 proto 77""",
    "multipath over both NICs": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.8.0.2/24 dev eth1
        ip address add fd00:9::2/64 dev data0 nodad; ip address add fd00:8::2/64 dev eth1 nodad
        ip route add 10.40.0.0/16 nexthop via 10.9.0.1 dev data0 weight 3 nexthop via 10.8.0.1 dev eth1
        ip route add 10.41.0.0/16 metric 5 nexthop via 10.8.0.1 dev eth1 weight 2 nexthop via 10.9.0.1 dev data0 nexthop via 10.9.0.7 dev data0
        ip -6 route add fd00:40::/64 nexthop via fd00:9::1 dev data0 weight 3 nexthop via fd00:8::1 dev eth1
        ip -6 route add fd00:41::/64 nexthop via fd00:8::1 dev eth1 weight 2 nexthop via fd00:9::1 dev data0 nexthop via fd00:9::7 dev data0""",
    "multipath over the device alone": """
        ip address add 10.9.0.2/24 dev data0
        ip address add fd00:9::2/64 dev data0 nodad
        ip route add 10.40.0.0/16 nexthop via 10.9.0.1 weight 3 nexthop via 10.9.0.7
        ip -6 route add fd00:40::/64 nexthop via fd00:9::1 weight 3 nexthop via fd00:9::7""",
    "routes of equal priority, of which the device's comes first": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.9.0.3/24 dev eth1
        ip route add 10.50.0.0/16 dev data0; ip route append 10.50.0.0/16 via 10.9.0.7 dev data0; ip route append 10.50.0.0/16 dev eth1""",
    "routes of equal priority, of which the other's comes first": """
        ip address add 10.9.0.3/24 dev eth1; ip address add 10.9.0.2/24 dev data0
        ip route add 10.50.0.0/16 dev eth1; ip route append 10.50.0.0/16 dev data0; ip route append 10.50.0.0/16 via 10.9.0.7 dev data0""",
    "multipath over both NICs behind a route of equal priority": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.8.0.2/24 dev eth1
        ip route add 10.40.0.0/16 via 10.8.0.77 dev eth1
        ip route append 10.40.0.0/16 nexthop via 10.9.0.1 dev data0 nexthop via 10.8.0.1 dev eth1
        ip route add 10.41.0.0/16 nexthop via 10.9.0.1 dev data0 nexthop via 10.8.0.1 dev eth1
        ip route append 10.41.0.0/16 via 10.8.0.77 dev eth1""",
    "a route of the other NIC with a source address of this one": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.8.0.2/24 dev eth1
        ip route add 10.60.0.0/16 via 10.8.0.1 dev eth1 src 10.9.0.2""",
    "an IPv6 route of the other NIC with a source address of this one": """
        ip address add fd00:9::2/64 dev data0 nodad; ip address add fd00:8::2/64 dev eth1 nodad
        ip -6 route add fd00:60::/64 via fd00:8::1 dev eth1 src fd00:9::2""",
    "policy rules that name the device": """
        ip address add 10.9.0.2/24 dev data0
        ip rule add iif data0 table 100 priority 1000; ip rule add oif data0 table 101 priority 1001
        ip rule add from 10.9.0.2 table 100 priority 1002; ip -6 rule add iif data0 table 100 priority 1000
        ip route add 10.61.0.0/16 via 10.9.0.1 table 100; ip route add blackhole default table 101""",
    "neighbours and proxies": """
        ip address add 10.9.0.2/24 dev data0; ip address add fd00:9::2/64 dev data0 nodad
        ip neigh add 10.9.0.7 lladdr 02:00:00:00:00:77 dev data0 nud permanent
        ip neigh add fd00:9::7 lladdr 02:00:00:00:00:77 dev data0 nud permanent router
        ip neigh add proxy 10.9.0.8 dev data0; ip neigh add proxy fd00:9::8 dev data0""",
    "a device that is down": """
        ip address add 10.9.0.2/24 dev data0
        ip link set data0 down""",
    "a device without IPv6": """
        sysctl -q -w net.ipv6.conf.data0.disable_ipv6=1
        ip address add 10.9.0.2/24 dev data0""",
    "a node whose new links have no IPv6": """
        sysctl -q -w net.ipv6.conf.default.disable_ipv6=1
        ip address add fd00:9::2/64 dev data0
        ip -6 route add fd00:30::/64 via fd00:9::1""",
}  # fmt: skip

LINK = {
    "txqueuelen, group and alias": "ip link set data0 txqueuelen 77; ip link set data0 group 5 alias 'rail 0'",
    "GSO and GRO sizes": "ip link set data0 gso_max_size 30000 gso_max_segs 77 gro_max_size 40000",
    "flags": "ip link set data0 promisc on; ip link set data0 allmulticast on; ip link set data0 multicast off; ip link set data0 dynamic on",
    "alternative names": "ip link property add dev data0 altname rail-0 altname enp59s0f0np0-longer-than-fifteen-bytes",
    "broadcast address of the link": "ip link set data0 broadcast ff:ff:ff:ff:ff:00",
    "MTU and link mode": "ip link set data0 down; ip link set data0 mtu 4200 mode dormant; ip link set data0 up",
    "address generation": "ip link set data0 addrgenmode none; ip address add fe80::5/64 dev data0 nodad",
    "stable addresses of a secret": "sysctl -q -w net.ipv6.conf.data0.stable_secret=2001:db8::1234; ip link set data0 down; ip link set data0 up",
    "stable addresses of a random secret": "ip link set data0 addrgenmode random; ip link set data0 down; ip link set data0 up",
    "interface identifier": "ip token set ::5 dev data0",
    "parameters of IPv4": "cd /proc/sys/net/ipv4/conf/data0; for p in arp_ignore arp_announce rp_filter arp_filter proxy_arp log_martians accept_local; do echo 1 > $p; done; echo 0 > promote_secondaries; echo 1 > forwarding; echo 7 > medium_id",
    "parameters of IPv6": "cd /proc/sys/net/ipv6/conf/data0; echo 1400 > mtu; echo 2 > accept_ra; echo 1 > forwarding; echo 7 > router_solicitation_interval; echo 99 > ra_defrtr_metric; echo 1 > proxy_ndp; echo 33 > hop_limit; echo 0 > autoconf; for p in regen_min_advance ra_honor_pio_life; do test ! -e $p || echo 1 > $p; done",
}  # fmt: skip


def in_part(scenes: Iterable[str], step: int = 5) -> list[Any]:
    """The scenes, each a second or two of waiting for the kernel: `make long` runs those that `make test` leaves out."""
    return [pytest.param(s, marks=() if n % step == 0 else pytest.mark.long) for n, s in enumerate(scenes)]


@pytest.mark.parametrize("scene", in_part(ROUTING))
def test_routing_comes_back_whole(node: Node, pod: Pod, scene: str) -> None:
    comes_back(node, pod, ROUTING[scene])


@pytest.mark.parametrize("scene", in_part(LINK))
def test_an_attribute_of_the_link_comes_back(node: Node, pod: Pod, scene: str) -> None:
    def changed() -> None:
        for change in ("txqueuelen 9", "promisc off", "allmulticast off", "multicast on", "group 9", "mtu 1300"):
            node.run(["nsenter", f"--net={pod.path}", "ip", "link", "set", "net1", *change.split()]).check_returncode()
        node.run(["nsenter", f"--net={pod.path}", "ip", "link", "set", "net1", "gso_max_size", "20000"])

    comes_back(node, pod, LINK[scene], changed)


@pytest.mark.parametrize("scene", in_part([*ROUTING, *LINK]))
def test_an_add_that_fails_before_it_moves_the_device_writes_nothing(node: Node, pod: Pod, scene: str) -> None:
    sh(node, ROUTING.get(scene) or LINK[scene])
    assert until(lambda: settled(node))
    before = dump(node, "data0", "eth1")
    monitor = node.start(["ip", "monitor", "link", "address", "route", "neigh"])
    assert monitor.stdout is not None
    config = {**NETWORK, "ipam": EXHAUSTED}
    reply = add(node, pod, config)
    assert reply.status, reply.document
    monitor.terminate()
    said = [
        line for line in monitor.communicate()[0].decode().splitlines() if "fe80::" not in line
    ]  # its peer's packets
    assert not any("data0" in line for line in said), said
    assert dump(node, "data0", "eth1") == before
    assert node.leases() == []


@pytest.mark.parametrize("scene", in_part(ROUTING))
def test_an_add_that_fails_behind_the_move_gives_the_device_back_whole(node: Node, pod: Pod, scene: str) -> None:
    sh(node, ROUTING[scene])
    assert until(lambda: settled(node))
    before = dump(node, "data0", "eth1")
    routes = [{"dst": "10.0.0.0/8", "gw": "203.0.113.1"}]
    add(node, pod, {**NETWORK, "ipam": {**LEASES, "routes": routes}}).refused(101, "10.0.0.0/8")
    assert until(lambda: settled(node))
    after = dump(node, "data0", "eth1")
    for key in before:
        assert after[key] == before[key], key


@pytest.mark.parametrize("then", ["DEL", "GC", "ADD"])
def test_after_an_add_that_was_killed_before_the_move_nothing_is_written_to_the_device(
    node: Node, pod: Pod, then: str
) -> None:
    sh(node, ROUTING["multipath over both NICs"] + "\n" + ROUTING["every attribute of routes"].partition("nodad")[2])
    assert until(lambda: settled(node))
    before = dump(node, "data0", "eth1")
    config = {**NETWORK, "ipam": {"type": "whereabouts", "range": "10.7.0.0/24", "datastore": "file"}}
    other = node.pod("pod2")
    for verb in ("ADD", "DEL"):  # the lease file is there
        node.cni("macvlan", verb, {**config, "master": "eth1"}, netns=other, container_id="c2").succeeded()
    with node.path(f"{STATE}/leases.db").open("rb") as leases:
        fcntl.flock(leases, fcntl.LOCK_EX)  # the ADD has written its record, and waits here
        call = node.start_cni("host-device", "ADD", config, netns=pod)
        assert call.process.stdin
        call.process.stdin.write(call._stdin)
        call.process.stdin.close()
        assert until(lambda: any(name.endswith(":link") for name in node.files()))
        call.process.kill()
        for stream in (call.process.stdout, call.process.stderr):
            assert stream
            stream.close()
        call.process.wait()
    assert dump(node, "data0", "eth1") == before
    monitor = node.start(["ip", "monitor", "link", "address", "route", "neigh"])
    if then == "ADD":
        add(node, pod, {**NETWORK, "ipam": {"type": "nowhere"}}).refused(7, "nowhere")
    elif then == "GC":
        node.cni("host-device", "GC", config | {"cni.dev/valid-attachments": []}).succeeded()
    else:
        delete(node, pod, config).succeeded()
    monitor.terminate()
    said = [
        line for line in monitor.communicate()[0].decode().splitlines() if "fe80::" not in line
    ]  # its peer's packets
    assert not any("data0" in line for line in said), said
    assert dump(node, "data0", "eth1") == before
    assert node.files() == []


def test_lifetimes_go_on_while_the_device_is_away(node: Node, pod: Pod) -> None:
    sh(node, "ip address add 10.1.0.5/24 dev data0 valid_lft 4000 preferred_lft 3000")
    add(node, pod).succeeded()
    delete(node, pod).succeeded()
    (address,) = ip(node, "-4 address show dev data0")[0]["addr_info"]
    assert 3000 < address["valid_life_time"] <= 4000
    assert 2000 < address["preferred_life_time"] <= 3000


def test_an_address_whose_lifetime_ended_meanwhile_does_not_come_back(node: Node, pod: Pod) -> None:
    sh(node, "ip address add 10.1.0.5/24 dev data0 valid_lft 1 preferred_lft 1; ip address add 10.2.0.5/24 dev data0")
    add(node, pod).succeeded()
    subprocess.run(["sleep", "1.1"], check=True)
    reply = delete(node, pod)
    reply.succeeded()
    assert [a["local"] for a in ip(node, "-4 address show dev data0")[0]["addr_info"]] == ["10.2.0.5"]


def test_the_legs_of_another_nic_carry_on_while_the_device_is_away(node: Node, pod: Pod) -> None:
    sh(node, ROUTING["multipath over both NICs"])
    add(node, pod).succeeded()
    assert "via 10.8.0.1 dev eth1" in sh(node, "ip route get 10.40.0.1")
    assert "via 10.8.0.1 dev eth1" in sh(node, "ip route get 10.41.0.1")
    assert "via fd00:8::1 dev eth1" in sh(node, "ip -6 route get fd00:40::1")
    delete(node, pod).succeeded()


def test_a_route_that_another_has_set_meanwhile_stays(node: Node, pod: Pod) -> None:
    sh(node, ROUTING["multipath over both NICs"])
    add(node, pod).succeeded()
    sh(node, "ip route replace 10.40.0.0/16 via 10.8.0.77 dev eth1")
    reply = delete(node, pod)
    reply.succeeded()
    assert sh(node, "ip route show 10.40.0.0/16").split() == ["10.40.0.0/16", "via", "10.8.0.77", "dev", "eth1"]
    assert "10.40.0.0/16" in reply.stderr
    assert reply.stderr.count("\n") == 1
    assert node.files() == []


def test_what_the_kernel_refuses_for_good_is_logged_and_the_delete_ends(node: Node, pod: Pod) -> None:
    sh(node, "ip address add fd00:9::2/64 dev data0 nodad; ip -6 route add fd00:30::/64 via fd00:9::1")
    sh(node, "ip address add 10.9.0.2/24 dev data0; ip route add 10.30.0.0/16 via 10.9.0.1 src 10.9.0.2")
    sh(node, "ip address add 10.77.0.1/24 dev eth1; ip route add 10.31.0.0/16 via 10.9.0.1 dev data0 src 10.77.0.1")
    add(node, pod).succeeded()
    sh(node, "ip address del 10.77.0.1/24 dev eth1")
    reply = delete(node, pod)
    reply.succeeded()
    assert reply.stderr.count("\n") == 1
    assert "10.31.0.0/16" in reply.stderr
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
    config = json.dumps(network).encode()
    environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "CNI_NETNS": pod.path}
    environ |= {"CNI_PATH": str(node.executables), "CNI_ARGS": ""}
    command = ["strace", "-qq", "-o", "/run/trace", *options, node.executables / "host-device"]
    return Call(node.start(command, env=environ), config).finish()


_HOME = "nlmsg_type=RTM_NEWLINK"


def _requests(node: Node) -> tuple[int, int]:
    """The first request after the device was moved home, and the last one, by their number."""
    sent = [line for line in node.path("/run/trace").read_text().splitlines() if line.startswith("sendto(")]
    moves = [number for number, line in enumerate(sent, 1) if _HOME in line]
    return moves[0] + 1, len(sent)


@needs_strace
@pytest.mark.parametrize("error", in_part(_ERRNOS, len(_ERRNOS)))
def test_a_refusal_that_happens_once_loses_nothing_of_a_device(node: Node, pod: Pod, error: str) -> None:
    sh(node, _EVERYTHING)
    assert until(lambda: settled(node))
    before = dump(node)
    add(node, pod).succeeded()
    pod.view.set("net1", mtu=1300)
    _disturbed(node, pod, NETWORK, "-e", "trace=sendto", "-v").succeeded()
    assert until(lambda: settled(node))
    first, last = _requests(node)
    for number in range(first + _ERRNOS.index(error) % 3, last + 1, 3):
        add(node, pod).succeeded()
        pod.view.set("net1", mtu=1300)
        reply = _disturbed(node, pod, NETWORK, "-e", "trace=sendto", "-e", f"inject=sendto:error={error}:when={number}")
        if reply.status:
            assert reply.code in (11, 101), reply.document
            delete(node, pod).succeeded()
        assert until(lambda: settled(node))
        assert dump(node) == before, number
        assert node.files() == []


@needs_strace
@pytest.mark.parametrize("again", ["accepted", "refused again"])
def test_what_is_refused_to_the_end_is_tried_by_one_more_delete_and_the_lease_is_released(
    node: Node, pod: Pod, again: str
) -> None:
    sh(node, _EVERYTHING)
    assert until(lambda: settled(node))
    before = dump(node)
    config = {**NETWORK, "ipam": LEASES}
    add(node, pod, config).succeeded()
    pod.view.set("net1", mtu=1300)
    path = "/proc/sys/net/ipv4/conf/data0/arp_ignore"
    busy = ("-P", path, "-e", "trace=write", "-e", "inject=write:error=EBUSY")
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
    assert until(lambda: settled(node))
    assert dump(node) == before
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
    "a macvlan on it": ("ip link add up0 link data0 type macvlan mode bridge", ["up0", "macvlan", "remove it"]),
    "a VXLAN over it": ("ip link add up0 type vxlan id 7 dev data0 dstport 4789", ["up0", "vxlan", "remove it"]),
    "an entry of bridge fdb": (
        "bridge fdb add 02:77:77:77:77:77 dev data0 self permanent",
        ["02:77:77:77:77:77", "bridge fdb"],
    ),
}


@pytest.mark.parametrize("scene", TIED)
def test_a_device_that_another_link_needs_is_refused_with_the_remedy(node: Node, pod: Pod, scene: str) -> None:
    setup, words = TIED[scene]
    sh(node, setup)
    assert until(lambda: settled(node))
    node.remember()
    before = dump(node)
    add(node, pod).refused(7, "data0", *words)
    assert (dump(node), node.leftovers()) == (before, [])


def test_a_device_below_the_macvlan_of_a_pod_is_refused(node: Node, pod: Pod) -> None:
    macvlan = {"cniVersion": "1.1.0", "name": "rail", "type": "macvlan", "master": "data0"}
    other = node.pod("pod2")
    node.cni("macvlan", "ADD", macvlan, netns=other, container_id="c2").succeeded()
    mac = other.view.link("net1").mac
    add(node, pod).refused(7, "data0", mac, "macvlan")
    node.cni("macvlan", "DEL", macvlan, netns=other, container_id="c2").succeeded()
    add(node, pod).succeeded()


LOST = {
    "a queueing discipline": ("tc qdisc add dev data0 root tbf rate 1gbit burst 100k latency 5ms", "tc"),
    "a filter": ("tc qdisc add dev data0 clsact", "tc"),
    "a nexthop object": (
        "ip address add 10.9.0.2/24 dev data0; ip nexthop add id 5 via 10.9.0.1 dev data0; ip route add 10.30.0.0/16 nhid 5",
        "nexthop objects 5 and",
    ),
    "a nexthop object without a route": (
        "ip address add 10.9.0.2/24 dev data0; ip nexthop add id 5 via 10.9.0.1 dev data0; ip nexthop add id 6 group 5",
        "nexthop objects 5 and",
    ),
    "a nexthop object that routes name alone": (
        "sysctl -q -w net.ipv4.nexthop_compat_mode=0; ip address add 10.9.0.2/24 dev data0;"
        " ip nexthop add id 5 via 10.9.0.1 dev data0; ip route add 10.30.0.0/16 nhid 5",
        "nexthop objects 5 and",
    ),
    "a software verbs device": (
        "mount -t tmpfs tmpfs /sys/class; mkdir -p /sys/class/infiniband/rxe0/ports/1; echo data0 > /sys/class/infiniband/rxe0/parent",
        "its verbs device rxe0",
    ),
    "parameters of neighbours": (
        "cd /proc/sys/net; echo 17 > ipv4/neigh/data0/gc_stale_time; echo 12345 > ipv6/neigh/data0/base_reachable_time_ms",
        "its parameters net.ipv4.neigh and net.ipv6.neigh",
    ),
    "a multicast address": ("ip maddress add 33:33:00:00:00:77 dev data0", "33:33:00:00:00:77"),
}


@pytest.mark.parametrize("scene", LOST)
def test_what_cannot_be_saved_is_said_by_the_add(node: Node, pod: Pod, scene: str) -> None:
    setup, words = LOST[scene]
    sh(node, setup)
    reply = add(node, pod)
    reply.succeeded()
    assert reply.stderr.count("\n") == 1
    assert words in reply.stderr
    assert "data0" in reply.stderr
    delete(node, pod).succeeded()


SHOWN_BY = {
    "name, MAC, MTU, alias, up or down": ["txqueuelen, group and alias", "MTU and link mode", "a device that is down"],
    "index": ["test_a_device_whose_index_was_taken_in_the_pod_comes_back"],
    "alternative names": [
        "alternative names",
        "test_a_name_that_a_pod_gave_its_device_stands_for_no_other_device",
    ],
    "transmit queue length, group, broadcast address of the link, link mode, protodown": [
        "txqueuelen, group and alias",
        "broadcast address of the link",
        "MTU and link mode",
    ],
    "largest GSO and GRO packets and segments": ["GSO and GRO sizes"],
    "promiscuous, all multicast, no ARP and the other flags that can be set": ["flags"],
    "IPv4 and IPv6 addresses": ["addresses of many kinds", "an address of a DHCP client with its routes"],
    "temporary IPv6 addresses (privacy extensions)": ["none: needs a router on the wire"],
    "routes of all tables": ["every attribute of routes", "multipath over both NICs"],
    "next hops of these routes through other devices": [
        "test_the_legs_of_another_nic_carry_on_while_the_device_is_away"
    ],
    "IPv4 routes by other devices with an address of this one as their source": [
        "a route of the other NIC with a source address of this one"
    ],
    "routes that a router has advertised": ["none: needs a router on the wire"],
    "routes by nexthop objects, and these objects": [
        "a nexthop object",
        "a nexthop object without a route",
        "a nexthop object that routes name alone",
    ],
    "rules that name the device (ip rule)": ["policy rules that name the device"],
    "permanent neighbours, proxies": ["neighbours and proxies"],
    "parameters net.ipv4.conf, net.ipv6.conf": ["parameters of IPv4", "parameters of IPv6", "a device without IPv6"],
    "parameters net.ipv4.neigh, net.ipv6.neigh": ["parameters of neighbours"],
    "net.mpls.conf, the secret of stable addresses, the interface identifier (token)": [
        "stable addresses of a secret",
        "stable addresses of a random secret",
        "interface identifier",
    ],
    "IPv6 routes by other devices with an address of this one as their source": [
        "an IPv6 route of the other NIC with a source address of this one"
    ],
    "verbs devices that are software on top of it (rxe, siw)": ["a software verbs device"],
    "qdiscs, classes and filters of tc": ["a queueing discipline", "a filter"],
    "multicast groups that programs have joined, multicast addresses of the link": ["a multicast address"],
    "rules of nftables in a chain of the netdev family": ["none: they are not seen"],
    "XDP program, settings of ethtool and devlink": ["none: the kernel's move does not touch them"],
    "membership in a bridge, bond, team, VRF or another master": ["a bridge"],
    "links on top of it: VLAN, macvlan, macvtap, ipvlan, VXLAN, tunnels, HSR; those in pods by the MAC that they receive": [
        "a macvlan on it",
        "a VXLAN over it",
        "test_a_device_below_the_macvlan_of_a_pod_is_refused",
    ],
    "further unicast addresses of the link (bridge fdb)": ["an entry of bridge fdb"],
    "the node's own traffic: the default route in use, the way to the API server, the node's address; also by a link on top": [
        "test_the_link_of_the_default_route_is_refused",
    ],
}


# --- sriov, and a device whose sandbox died ---

VF = {**NETWORK, "type": "sriov", "deviceID": PCI}


@pytest.mark.parametrize(
    "scene",
    [
        "a host address, its gateway on the link, and a network by the gateway",
        "multipath over both NICs",
        "a node whose new links have no IPv6",
        "parameters of IPv4",
    ],
)
def test_what_a_vf_has_on_the_host_comes_back(node: Node, pod: Pod, scene: str) -> None:
    bus(node, "pci", PCI, "data0", driver="mlx5_core")
    sh(node, ROUTING.get(scene) or LINK[scene])
    assert until(lambda: settled(node))
    before = dump(node, "data0", "eth1")
    node.cni("sriov", "ADD", VF, netns=pod).succeeded()
    node.cni("sriov", "DEL", VF, netns=pod).succeeded()
    assert until(lambda: settled(node))
    assert dump(node, "data0", "eth1") == before
    node.cni("sriov", "ADD", {**VF, "ipam": EXHAUSTED}, netns=pod)
    assert dump(node, "data0", "eth1") == before


@pytest.mark.parametrize("scene", TIED)
def test_a_vf_that_another_link_needs_is_refused_with_the_remedy(node: Node, pod: Pod, scene: str) -> None:
    setup, words = TIED[scene]
    bus(node, "pci", PCI, "data0", driver="mlx5_core")
    sh(node, setup)
    node.cni("sriov", "ADD", VF, netns=pod).refused(7, PCI, *words)


def test_the_next_add_gives_a_device_its_state_back_that_came_home_from_a_dead_sandbox(node: Node, pod: Pod) -> None:
    sh(node, ROUTING["a host address, its gateway on the link, and a network by the gateway"])
    assert until(lambda: settled(node))
    before = dump(node)
    add(node, pod).succeeded()
    with node.host.entered(), open("/proc/thread-self/ns/net") as host:
        pod.view.set("net1", net_ns_fd=host.fileno())  # as the kernel does with a physical device of a dying namespace
    node.delete_pod(pod)
    other = node.pod("pod2")
    add(node, other, container_id="c2").succeeded()
    delete(node, pod.path).succeeded()
    assert "data0" not in node.host.names()
    delete(node, other, container_id="c2").succeeded()
    assert until(lambda: settled(node))
    assert dump(node) == before


# --- whose device it is ---


def test_a_link_that_the_pod_planted_stays_in_the_pod_and_the_device_comes_back(node: Node, pod: Pod) -> None:
    sh(node, "ip address add 10.9.0.2/24 dev data0")
    assert until(lambda: settled(node))
    before = dump(node)
    add(node, pod).succeeded()
    with pod.view.rtnl() as ipr:
        ipr.link("add", ifname="planted", index=50, kind="veth", peer={"ifname": "p"}, address="02:00:00:00:00:0a")
    pod.view.set("planted", ifalias="data0")
    delete(node, pod).succeeded()
    assert until(lambda: settled(node))
    assert dump(node) == before
    assert sorted(pod.view.names()) == ["p", "planted"]


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
    policy = node.path("/etc/cni/net.d/whereabouts.d/railcni.json")
    policy.parent.mkdir(parents=True, exist_ok=True)
    policy.write_text('{"uplinks": ["data1"]}')
    policy.chmod(0o600)
    assert until(lambda: settled(node))
    index = node.host.link("data1").index
    tunnel = {**NETWORK, "device": "data1", "ipam": LEASES}
    before = dump(node, "data1")
    own = f"nsenter --net={pod.path} ip tuntap add dev data1 mode tun"
    if not is_deleted:
        sh(node, own)
        assert pod.view.link("data1").index == index
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
    if is_deleted:
        assert "vanished" in reply.stderr
    else:
        assert until(lambda: settled(node))
        assert dump(node, "data1") == before


def test_a_device_whose_index_was_taken_in_the_pod_comes_back(node: Node, pod: Pod) -> None:
    with pod.view.rtnl() as ipr:
        ipr.link("add", ifname="other", index=100, kind="veth", peer={"ifname": "p"})
    comes_back_here = ROUTING["multipath over both NICs"]
    sh(node, comes_back_here)
    assert until(lambda: settled(node))
    before = dump(node)
    add(node, pod).succeeded()
    delete(node, pod).succeeded()
    assert until(lambda: settled(node))
    assert dump(node)["ipv4"] == before["ipv4"]
    assert node.host.link("data0").index == 100
    assert sorted(pod.view.names()) == ["other", "p"]


def test_a_device_whose_index_was_taken_on_the_host_comes_back_with_its_routes(node: Node, pod: Pod) -> None:
    sh(node, ROUTING["multipath over both NICs"])
    assert until(lambda: settled(node))
    before = dump(node)
    add(node, pod).succeeded()
    with node.host.rtnl() as ipr:
        ipr.link("add", ifname="usurper", index=100, kind="veth", peer={"ifname": "p"})
    reply = delete(node, pod)
    reply.succeeded()
    assert reply.stderr == ""
    node.host.delete("usurper")
    assert until(lambda: settled(node))
    after = dump(node)
    assert (after["ipv4"], after["ipv6"]) == (before["ipv4"], before["ipv6"])


BOTH = {
    "the same subnet": """
        ip address add 10.9.0.2/24 dev data0; ip address add 10.9.0.3/24 dev eth1""",
    "routes of equal priority": ROUTING["routes of equal priority, of which the device's comes first"],
    "multipath over both NICs": ROUTING["multipath over both NICs"],
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
    assert until(lambda: settled(node))
    node.remember()
    before = dump(node, "data0", "eth1")
    pods = {"data0": pod, "eth1": node.pod("pod2")}
    for first, second in itertools.product((("data0", "eth1"), ("eth1", "data0")), repeat=2):
        for name in first:
            add(node, pods[name], {**NETWORK, "device": name}, container_id=name).succeeded()
        for name in second:
            reply = delete(node, pods[name], {**NETWORK, "device": name}, container_id=name)
            reply.succeeded()
            assert reply.stderr == ""
        assert until(lambda: settled(node))
        assert dump(node, "data0", "eth1") == before, (first, second)
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
        with node.host.entered(), open("/proc/thread-self/ns/net") as host:
            pod.view.set("net1", net_ns_fd=host.fileno())  # as the kernel does with a physical device
        node.delete_pod(pod)
    delete(node, pod.path).succeeded()
    add(node, third, of_eth1, container_id="c3").refused(11, "eth1", "c2")
    delete(node, other, of_eth1, container_id="c2").succeeded()
    assert node.leftovers() == []
    assert node.host.link("data0").altnames == ()


def test_a_host_name_that_is_an_alternative_name_meanwhile_has_the_remedy_for_that(node: Node, pod: Pod) -> None:
    add(node, pod).succeeded()
    sh(node, "ip link property add dev eth1 altname data0")
    node.cni("host-device", "DEL", NETWORK, netns=pod).refused(
        11, "data0", "eth1", "ip link property del dev eth1 altname data0"
    )
    sh(node, "ip link property del dev eth1 altname data0")
    delete(node, pod).succeeded()
    assert node.leftovers() == []


def test_an_ifname_that_is_an_alternative_name_of_the_device_is_its_name_in_the_pod(node: Node, pod: Pod) -> None:
    sh(node, "ip link property add dev data0 altname net1 altname rail-0")
    assert until(lambda: settled(node))
    before = dump(node)
    add(node, pod).succeeded()
    assert pod.view.link("net1").altnames == ("rail-0",)
    delete(node, pod).succeeded()
    assert until(lambda: settled(node))
    after = dump(node)
    for each in (before, after):
        for link in each["links"] + each["addresses"]:
            link["altnames"] = sorted(link.get("altnames", []))
    assert after == before


@pytest.mark.parametrize("ifname", ["net%d", "all", "default"])
@pytest.mark.parametrize("plugin", ["macvlan", "host-device", "sriov", "whereabouts"])
def test_an_ifname_that_runtimes_take_and_the_kernel_does_not_is_refused_and_its_delete_ends(
    node: Node, pod: Pod, plugin: str, ifname: str
) -> None:
    config = {**NETWORK, "type": plugin, "master": "data0", "deviceID": PCI, "ipam": LEASES}
    node.cni(plugin, "ADD", config, netns=pod, ifname=ifname).refused(4, ifname)
    node.cni(plugin, "DEL", config, netns=pod, ifname=ifname).succeeded()
    assert (pod.view.names(), node.leftovers()) == ([], [])


def test_of_adds_that_race_for_one_device_one_gets_it_and_the_others_may_try_again(node: Node, pod: Pod) -> None:
    sh(node, ROUTING["multipath over both NICs"])
    assert until(lambda: settled(node))
    before = dump(node)
    for turn in range(3):
        pods = [node.pod(f"racer{turn}-{number}") for number in range(15)]
        calls = [node.start_cni("host-device", "ADD", NETWORK, netns=p, container_id=p.name) for p in pods]
        replies = node.cni_at_once(calls)
        codes = sorted(reply.code for reply in replies)
        assert codes == [0] + [11] * 14, [r.document for r in replies if r.code not in (0, 11)]
        winner = next(number for number, reply in enumerate(replies) if reply.code == 0)
        for number in (winner - 1, winner):
            delete(node, pods[number], container_id=pods[number].name).succeeded()
        for each in pods:
            node.delete_pod(each)
        assert until(lambda: settled(node))
        assert dump(node) == before
