"""Devices of a host, as a plugin of the kind of host-device moves them; and links that do nothing by themselves."""

import subprocess

from tests.view import View


def make(host: View, wire: View, name: str) -> None:
    """A device of the host that has something of everything that a move takes away; its other end is in `wire`."""
    number = name[-1]
    host.add_veth(name, f"{name}-peer", mtu=4200, index=100 + int(number))  # the same whenever it is made
    host.move(f"{name}-peer", wire)
    identify(wire, f"{name}-peer", f"02:00:00:00:01:0{number}")
    identify(host, name, f"02:00:00:00:00:0{number}")
    host.set(name, ifalias=f"rail {number}")
    host.add_altname(name, f"rdma-rail-{number}")
    host.add_address(name, f"10.{number}.0.1/24")
    host.add_address(name, f"fd00:{number}::1/64")
    host.add_route(name, f"10.1{number}.0.0/16", gateway=f"10.{number}.0.254", priority=50)


def route(host: View, name: str, beside: str) -> None:
    """Give a device that `make` has made the routing of a host that uses it: a gateway of no subnet, a lease with routes
    that need it, a route over two devices, two of one destination, a table of its own, a neighbour, a parameter."""
    own, other = name[-1], beside[-1]
    commands = f"""
        ip addr add 10.109.0.2/32 dev {name}
        ip route add 10.109.0.1 dev {name} scope link
        ip route add 10.109.0.0/16 via 10.109.0.1
        ip addr add 10.119.0.2/24 dev {name} valid_lft 86400 preferred_lft 43200
        ip route add 10.120.0.0/16 via 10.119.0.254 proto dhcp src 10.119.0.2
        ip route replace 10.77.0.0/16 nexthop via 10.{own}.0.254 dev {name} weight 2 nexthop via 10.{other}.0.254 dev {beside}
        ip -6 route replace fd00:77::/64 nexthop via fd00:{own}::fe dev {name} nexthop via fd00:{other}::fe dev {beside}
        ip route add 10.78.0.0/16 via 10.{own}.0.253 tos 0x10 initcwnd 20
        ip route add 10.78.0.0/16 via 10.{own}.0.254 table 100
        ip rule show | grep -q 'lookup 100' || ip rule add from 10.{own}.0.1 table 100
        ip neigh add 10.{own}.0.9 lladdr 02:00:00:00:00:99 dev {name} nud permanent
        sysctl -qw net.ipv4.conf.{name}.arp_ignore=1 net.ipv6.conf.{name}.accept_ra=0
    """
    with host.entered():
        subprocess.run(["sh", "-ec", commands], check=True, capture_output=True)


def quieten(view: View, link: str = "default") -> None:
    """Let IPv6 do nothing by itself after a link has come up; of `accept_dad` the kernel takes the larger of link and all."""
    for where, name in ((link, "accept_dad"), ("all", "accept_dad"), (link, "router_solicitations")):
        view.set_sysctl(f"net/ipv6/conf/{where}/{name}", 0)


def identify(view: View, name: str, mac: str) -> None:
    """Give a link a MAC, and the link-local address that comes of it."""
    view.set(name, state="down")
    view.set(name, address=mac)
    view.set(name, state="up")
