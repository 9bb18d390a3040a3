"""Devices of a host, as a plugin of the kind of host-device moves them; and links that do nothing by themselves."""

from __future__ import annotations

import os

from tests.view import View


def make(host: View, wire: View, name: str) -> None:
    """A device of the host that has something of everything that a move takes away; its other end is in `wire`."""
    number = name[-1]
    host.add_veth(name, f"{name}-peer", mtu=4200, index=100 + int(number))  # the same whenever it is made
    with wire.entered():
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        host.set(f"{name}-peer", net_ns_fd=fd)
    finally:
        os.close(fd)
    identify(wire, f"{name}-peer", f"02:00:00:00:01:0{number}")
    identify(host, name, f"02:00:00:00:00:0{number}")
    host.set(name, ifalias=f"rail {number}")
    with host.rtnl() as ipr:
        ipr.link("property_add", index=ipr.link_lookup(ifname=name)[0], altname=f"rdma-rail-{number}")
    host.add_address(name, f"10.{number}.0.1/24")
    host.add_address(name, f"fd00:{number}::1/64")
    host.add_route(name, f"10.1{number}.0.0/16", gateway=f"10.{number}.0.254", priority=50)


def quieten(view: View, link: str = "default") -> None:
    """Let IPv6 do nothing by itself some seconds after a link has come up: all cases shall meet the same."""
    for name in ("accept_dad", "router_solicitations"):
        view.set_sysctl(f"net/ipv6/conf/{link}/{name}", 0)


def identify(view: View, name: str, mac: str) -> None:
    """Give a link a MAC, and the link-local address that comes of it."""
    view.set(name, state="down")
    view.set(name, address=mac)
    view.set(name, state="up")
