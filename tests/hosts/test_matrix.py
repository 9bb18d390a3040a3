"""The matrix itself: the dump sees what it is to see, and the sample is one of everything."""

from __future__ import annotations

import pytest

from tests.hosts import cells, dump, features, table
from tests.hosts.endings import ENDINGS
from tests.hosts.scenes import DEVICE, PLUGINS, SCENES, Special
from tests.node import Node, unusable
from tests.tools import needs_ip

needs_root = pytest.mark.skipif(bool(unusable()), reason=unusable())

CHANGES = {  # kind of the line that differs: commands that make it differ
    "address": "ip addr add 10.0.9.2/24 dev ens2f0",
    "route": "ip route add 10.9.0.0/16 via 10.0.0.254",
    "rule": "ip rule add from 10.0.0.2 table 100",
    "neighbour": "ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev ens2f0 nud permanent",
    "nexthop": "ip nexthop add id 5 via 10.0.0.254 dev ens2f0",
    "fdb": "ip maddr add 33:33:00:00:00:66 dev ens2f0",
    "qdisc": "tc qdisc add dev ens2f0 root handle 1: htb",
    "sysctl": "sysctl -qw net.ipv4.conf.ens2f0.arp_ignore=1",
    "link.mtu": "ip link set ens2f0 mtu 4200",
    "link.group": "ip link set ens2f0 group 7",
    "link.txqlen": "ip link set ens2f0 txqueuelen 500",
    "link.ifalias": "ip link set ens2f0 alias rail",
    "link.prop_list": "ip link property add dev ens2f0 altname rail0",
    "link.flags": "ip link set ens2f0 promisc on",
    "link.inet6_addr_gen_mode": "ip link set ens2f0 addrgenmode none",
    "link.gso_max_size": "ip link set ens2f0 gso_max_size 32000",
}


@needs_root
@needs_ip
def test_a_dump_sees_a_change_of_each_kind_and_nothing_when_nothing_changes() -> None:
    with Node() as node:
        node.master(DEVICE)
        node.run(["ip", "addr", "add", "10.0.0.2/24", "dev", DEVICE]).check_returncode()
        host = dump.Host(node.host)
        before = dump.settled(host)
        assert dump.differences(before, host.dump()) == []
        for kind, command in CHANGES.items():
            if kind == "qdisc" and features.missing(["htb"]):
                continue
            done = node.run(["sh", "-ec", command])
            assert done.returncode == 0, done.stderr
            after = host.dump()
            assert kind in {d.line.kind for d in dump.differences(before, after)}, command
            before = after
        host.close()


def lines(*texts: str, taken: float = 0.0, left: int = 0) -> dump.Dump:
    return dump.Dump(tuple(dump.Line("route", text, (left,) if left else ()) for text in texts), taken, True)


def test_a_difference_is_short_and_an_order_counts() -> None:
    assert [str(d) for d in dump.differences(lines("a", "b", "c"), lines("a", "x", "c"))] == ["- b", "+ x"]
    assert len(dump.differences(lines("a", "b"), lines("b", "a"))) == 2


def test_a_lifetime_may_differ_by_the_time_between_two_dumps_and_no_more() -> None:
    before = lines("a", left=3600)
    assert dump.differences(before, lines("a", taken=5, left=3595)) == []
    assert dump.differences(before, lines("a", taken=5, left=3600)) == []
    assert len(dump.differences(before, lines("a", taken=5, left=3500))) == 2
    assert len(dump.differences(before, lines("a", taken=5))) == 2


def test_the_sample_has_every_scene_every_plugin_with_every_ending_and_every_refusal() -> None:
    sample, every = cells.sample(), cells.every()
    assert len(sample) == len(set(sample)) and set(sample) <= set(every)
    assert {cell[0] for cell in sample} == set(SCENES)
    wanted = {(plugin, ending) for plugin in PLUGINS for ending in ENDINGS}
    without_skips = [cell for cell in sample if not SCENES[cell[0]].needs]
    assert wanted <= {cell[1:] for cell in without_skips}
    refusals = {
        cell[:2] for cell in every if cell[2] == cells.REFUSED and cell[1] in ("host-device", "macvlan-passthru")
    }
    assert refusals <= {cell[:2] for cell in sample}


def specials() -> dict[str, Special]:
    return {special.row: special for scene in SCENES.values() for special in scene.has}


@pytest.mark.parametrize("words", specials())
def test_what_may_be_lost_or_refused_stands_in_the_products_table(words: str) -> None:
    assert [row for row in table.rows() if words in row[0]]
