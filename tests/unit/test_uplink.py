"""Which links the node needs for its default routes."""

from __future__ import annotations

from typing import Any

from cni.plugins import uplink
from cni.shared.kernel.links import Link, ifinfo
from cni.shared.kernel.routes import BOOT_PROTOCOL, MAIN_TABLE, RA_PROTOCOL, Route


def link(name: str, index: int, **attributes: Any) -> Link:
    found = Link(ifinfo(index))
    below = attributes.get("lower_index", 0)
    defaults = {"name": name, "lowers": (below,) if below and attributes.get("kind") != "veth" else ()}
    for each, value in {**defaults, **attributes}.items():
        setattr(found, each, value)
    return found


def default(index: int, dst: str = "0.0.0.0/0", table: int = MAIN_TABLE, protocol: int = BOOT_PROTOCOL) -> Route:
    found = Route.__new__(Route)
    found.index, found.dst, found.table, found.protocol = index, dst, table, protocol
    return found


def test_the_device_below_a_default_routes_link_is_needed_through_every_layer() -> None:
    nic, other = link("ens1", 1, master_index=3), link("ens2", 2, master_index=3)
    bond, vlan = link("bond0", 3, kind="bond"), link("bond0.5", 4, lower_index=3)
    free, peer = link("ens9", 9), link("veth1", 11, kind="veth", lower_index=9)
    links = [nic, other, bond, vlan, free, peer]
    for device in (nic, other, bond):
        assert f'"bond0.5", on top of "{device.name}", carries' in uplink.needed(device, links, [default(4)])
    assert uplink.needed(vlan, links, [default(4)]) == '"bond0.5" carries the default route (0.0.0.0/0, table main)'
    assert uplink.needed(free, links, [default(4)]) == ""
    assert uplink.needed(free, links, [default(11)]) == ""  # a veth's lower index is its peer
    assert uplink.needed(nic, links, []) == ""
    assert uplink.needed(nic, links, [default(77)]) == ""  # its link has gone meanwhile


def test_the_lower_index_in_another_namespace_is_none_of_this_one() -> None:
    assert (
        uplink.needed(link("ens1", 1), [link("ens1", 1), link("mv", 2, lower_index=1, lower_netnsid=0)], [default(2)])
        == ""
    )


def test_links_on_each_other_in_a_circle_end_the_search() -> None:
    links = [link("a", 1, lower_index=2), link("b", 2, lower_index=1), link("c", 3)]
    assert uplink.needed(links[2], links, [default(1)]) == ""


def test_the_route_that_tells_most_is_named() -> None:
    nic, vlan = link("ens1", 1), link("ens1.5", 2, lower_index=1)
    defaults = [default(2), default(1, protocol=RA_PROTOCOL), default(1, "::/0", table=100)]
    assert uplink.needed(nic, [nic, vlan], defaults) == '"ens1" carries the default route (::/0, table 100)'
    assert "accept_ra 0" in uplink.needed(nic, [nic, vlan], defaults[1:2])
