"""Which links the node needs for its own traffic."""

from pathlib import Path
from typing import Any

import pytest

from cni.link.plugins import uplink
from cni.shared.kernel.links import Link, ifinfo
from cni.shared.kernel.routes import BOOT_PROTOCOL, MAIN_TABLE, RA_PROTOCOL, KernelRoute


def link(name: str, index: int, **attributes: Any) -> Link:
    found = Link(ifinfo(index))
    below = attributes.get("lower_index", 0)
    defaults = {"name": name, "lowers": (below,) if below and attributes.get("kind") != "veth" else ()}
    for each, value in {**defaults, **attributes}.items():
        setattr(found, each, value)
    return found


def default(index: int, dst: str = "0.0.0.0/0", **attributes: Any) -> KernelRoute:
    found = KernelRoute.__new__(KernelRoute)
    usual = {"table": MAIN_TABLE, "protocol": BOOT_PROTOCOL, "priority": 0, "gw": "", "body": bytes(bytearray(8))}
    for each, value in {"index": index, "dst": dst, **usual, **attributes}.items():
        setattr(found, each, value)
    return found


def advertised(index: int, priority: int = 1024) -> KernelRoute:
    return default(index, "::/0", protocol=RA_PROTOCOL, priority=priority)


def test_the_device_below_a_links_way_is_needed_through_every_layer() -> None:
    nic, other = link("ens1", 1, master_index=3), link("ens2", 2, master_index=3)
    bond, vlan = link("bond0", 3, kind="bond"), link("bond0.5", 4, lower_index=3)
    free, peer = link("ens9", 9), link("veth1", 11, kind="veth", lower_index=9)
    links = [nic, other, bond, vlan, free, peer]
    for device in (nic, other, bond):
        assert uplink.carried(device, links, [(4, "carries it")]) == f'"bond0.5", on top of "{device.name}", carries it'
    assert uplink.carried(vlan, links, [(4, "carries it")]) == '"bond0.5" carries it'
    assert uplink.carried(free, links, [(4, "carries it")]) == ""
    assert uplink.carried(free, links, [(11, "carries it")]) == ""  # a veth's lower index is its peer
    assert uplink.carried(nic, links, []) == ""
    assert uplink.carried(nic, links, [(77, "carries it")]) == ""  # its link has gone meanwhile
    assert uplink.carried(nic, links, [(4, "far"), (1, "near")]) == '"ens1" near'


def test_a_lower_index_of_another_namespace_is_none_here_and_a_circle_ends_the_search() -> None:
    links = [link("ens1", 1), link("mv", 2, lower_index=1, lower_netnsid=0)]
    assert uplink.carried(links[0], links, [(2, "")]) == ""
    links = [link("a", 1, lower_index=2), link("b", 2, lower_index=1), link("c", 3)]
    assert uplink.carried(links[2], links, [(1, "")]) == ""


STORAGE = {
    "nfs": ({"net/nfsfs/servers": "NV SERVER   PORT USE HOSTNAME\nv4 0a000064  801   1 nas\n"},
            {("10.0.0.100", "NFS")}),
    "nfs over IPv6": (
        {"net/nfsfs/servers": "NV SERVER   PORT USE HOSTNAME\nv3 fd000000000000000000000000000007  801   3 nas\n"},
        {("fd00::7", "NFS")}),
    "no server of nfs": ({"net/nfsfs/servers": "NV SERVER   PORT USE HOSTNAME\n"}, set()),
    "iscsi": ({"class/iscsi_connection/connection1:0/address": "10.0.0.5\n"}, {("10.0.0.5", "iSCSI")}),
    "nvme over tcp": ({"class/nvme/nvme1/address": "traddr=10.0.0.6,trsvcid=4420,src_addr=10.0.0.1\n"},
                      {("10.0.0.6", "NVMe")}),
    "a local nvme": ({"class/nvme/nvme0/address": "0000:01:00.0\n"}, set()),
    "nothing": ({}, set()),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORAGE)
def test_the_servers_of_storage_are_those_that_the_kernel_lists(tmp_path: Path, kind: str) -> None:
    files, servers = STORAGE[kind]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert set(uplink.storage_servers(f"{tmp_path}/net", f"{tmp_path}/class")) == servers


_HOPS = bytes(bytearray(9))  # the message of one route


@pytest.mark.parametrize(("defaults", "used"), [
    ([default(1, priority=5), default(2, priority=3)], {2}),
    ([default(1), default(2)], {1}),  # the kernel takes the first
    ([default(1, body=_HOPS), default(2, body=_HOPS)], {1, 2}),
    ([default(1), default(2, "::/0")], {1, 2}),
    ([default(1), default(2, "0.0.0.0/1"), default(3, "128.0.0.0/1")], {1, 2, 3}),
    ([default(1), default(2, table=51820)], {1, 2}),  # of a rule for all packets
    ([default(1), advertised(2)], {1, 2}), ([default(1), *map(advertised, range(2, 10))], {1}),
    ([default(1), *map(advertised, range(1, 10))], {1}), ([default(1, "::/0", priority=2048), advertised(2)], {1}),
    ([advertised(1), advertised(2), advertised(3, 100)], {3}),  # without IPv4 the node needs one
    ([advertised(3), advertised(2)], {2}), ([], set()),
])  # fmt: skip
def test_of_default_routes_those_count_that_the_kernel_prefers(defaults: list[KernelRoute], used: set[int]) -> None:
    assert {route.index for route in uplink.in_use(defaults)} == used


def test_the_route_is_named_with_what_tells_it_from_others() -> None:
    route = default(2, gw="10.0.0.1", priority=100)
    assert uplink.text_of(route) == "carries the default route (0.0.0.0/0 via 10.0.0.1, metric 100, table main)"
    assert "table 51820" in uplink.text_of(default(2, table=51820))
    links = [link("ens1", 1), link("ens1.5", 2, lower_index=1)]
    assert "set accept_ra 0 on ens1.5" in uplink.carried(links[0], links, [(2, uplink.text_of(advertised(2)))])


@pytest.mark.parametrize(("text", "addresses"), [
    ("clusters:\n- cluster:\n    server: https://10.0.0.1:6443\n  name: x\n", ["10.0.0.1"]),
    ('{"clusters": [{"cluster": {"server": "https://[fd00::1]:6443"}}]}', ["fd00::1"]),
    ("a: {server: 'https://10.0.0.1'}\nb: {server: http://10.0.0.2:80/api}", ["10.0.0.1", "10.0.0.2"]),
    ("server: https://api.example:6443\n", []), ("server:\n", []), ("server: https://", []), ("", []),
])  # fmt: skip
def test_the_addresses_of_api_servers_are_read_from_a_kubeconfig(text: str, addresses: list[str]) -> None:
    assert uplink.servers_of(text) == addresses
