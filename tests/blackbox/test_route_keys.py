"""Every value of every key of a route: ADD sets the route and CHECK finds it, or ADD refuses with code 7, key and value."""

from typing import Any

import pytest

from ipam.keys import ROUTE_KEYS
from tests.blackbox.test_foreign_ipam import Ipam, call
from tests.blackbox.test_foreign_ipam import network as foreign_network
from tests.blackbox.test_macvlan import network
from tests.node import Node

pytestmark = pytest.mark.forked

ADDRESSES = [
    {"address": "192.168.111.7/24", "gateway": "192.168.111.254"},
    {"address": "fd00:111::7/64", "gateway": "fd00:111::ff"},
]
NEIGHBOURS = {4: "192.168.111.200", 6: "fd00:111::fe"}
DESTINATIONS = {4: "10.8.{}.0/24", 6: "fd00:8:{}::/64"}
OF_FAMILY: dict[int, dict[str, tuple[Any, ...]]] = {
    4: {
        "dst": ("0.0.0.0/0", "0.0.0.0/1", "10.8.0.9/32", "192.168.111.0/24", "192.168.111.7/32", "224.0.0.0/4"),
        "gw": ("", "0.0.0.0", "192.168.111.200"),
    },
    6: {
        "dst": ("::/0", "fd00:8::9/128", "fd00:9::9/64", "fd00:111::/64", "fd00:111::7/128", "ff00::/8"),
        "gw": ("", "FD00:111:0::FE", "fe80::9"),
    },
}
VALUES: dict[str, tuple[Any, ...]] = {
    "mtu": (0, 1, 65520, 65521, 2**31 - 1),
    "advmss": (0, 1, 65495, 65496, 2**31 - 1),
    "priority": (0, 1, 256, 1024, 2**32 - 1),
    "table": (0, 70, 252, 253, 254, 255, 256, 2**32 - 1),
    "scope": (0, 200, 252, 253, 254, 255),
}


def is_refused(key: str, value: Any, family: int, has_gateway: bool) -> bool:
    """Whether the kernel has no such route: in IPv6 it ignores the scope."""
    return key == "scope" and (value == 255 or (value >= 253 and has_gateway and family == 4))


# Of 1.0.0 the prevResult has of a route `dst` and `gw` alone.
KEYS = [*((key.name, "1.1.0") for key in ROUTE_KEYS), ("table", "1.0.0")]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(("key", "version"), KEYS)
def test_a_route_is_set_and_found_with_every_value_or_refused(node: Node, key: str, version: str, family: int) -> None:
    node.master()
    pod = node.pod()
    ways = (("", False), (NEIGHBOURS[family], False), ("", True))
    for gw, gateways in ways if key in ("dst", "gw", "scope") else ways[1:]:
        routes = [
            {"dst": DESTINATIONS[family].format(n), "gw": gw, key: value}
            for n, value in enumerate((OF_FAMILY[family] | VALUES)[key])
        ]
        refused = [r for r in routes if is_refused(key, r[key], family, bool(gw) or gateways)]
        for some in ([r for r in routes if r not in refused], *([r] for r in refused)):
            addresses = ADDRESSES if gateways else [{"address": a["address"]} for a in ADDRESSES]
            ipam = {"type": "whereabouts", "datastore": "file", "addresses": addresses, "routes": some}
            config = network(version, ipam=ipam)
            reply = node.cni("macvlan", "ADD", config, netns=pod)
            if some[0] in refused:
                place = "ipam.routes[0]" if some[0][key] == 255 else f"route {some[0]['dst']}"
                reply.refused(7, place, f"{key} {some[0][key]}", "want")
            else:
                checked = config | {"prevResult": reply.succeeded()}
                node.cni("macvlan", "CHECK", checked, netns=pod).succeeded()
            node.cni("macvlan", "DEL", config, netns=pod).succeeded()


@pytest.mark.parametrize("key", VALUES)
def test_a_number_that_no_route_can_have_is_refused_when_another_ipam_plugin_gives_it(node: Node, key: str) -> None:
    node.master()
    ipam, pod = Ipam(node), node.pod()
    more = [("10.8.0.0/16", 255)] if key == "scope" else []
    for dst, value in (("10.8.0.0/16", -1), ("fd00:8::/64", 2**32), ("10.8.0.0/16", 2**64), *more):
        ipam.replies("ADD", {"cniVersion": "1.1.0", "ips": ADDRESSES, "routes": [{"dst": dst, key: value}]})
        call(node, "ADD", foreign_network("macvlan"), pod).refused(7, f"route {dst}", f"{key} {value}", "want 0 to ")
    assert "net1" not in pod.view.names()


FIRST = {"dst": "fd00:8::/64", "mtu": 1400}
KEPT: dict[str, list[dict[str, Any]]] = {
    "host bits": [{"dst": "fd00:8::9/64"}],
    "another spelling": [{"dst": "FD00:0008::/64", "gw": "FD00:0111::FE"}],
    "twice": [FIRST, FIRST | {"mtu": 1300}],
    "twice by number": [FIRST, FIRST | {"mtu": 1300, "priority": 1024, "table": 254}],
    "two next hops": [FIRST, FIRST | {"gw": "fd00:111::fe", "mtu": 1300}],
    "twice in IPv4": [{"dst": "10.8.0.0/16", "mtu": 1400}, {"dst": "10.8.0.0/16", "mtu": 1300}],
}


@pytest.mark.parametrize("routes", KEPT)
def test_the_routes_of_another_ipam_plugin_are_found_as_the_kernel_keeps_them(node: Node, routes: str) -> None:
    node.master()
    ipam, pod, config = Ipam(node), node.pod(), foreign_network("macvlan")
    ipam.replies("ADD", {"cniVersion": "1.1.0", "ips": ADDRESSES, "routes": KEPT[routes]})
    call(node, "CHECK", config | {"prevResult": call(node, "ADD", config, pod).succeeded()}, pod).succeeded()


@pytest.mark.parametrize(
    "dst", ["fd00:111::/64", "fd00:111::7/128", "192.168.111.0/24"], ids=["subnet", "address", "subnet of IPv4"]
)
@pytest.mark.parametrize("priority", [None, 256])
def test_a_route_that_the_kernel_has_set_too_is_found(node: Node, dst: str, priority: int | None) -> None:
    """The kernel's own route to a subnet in IPv6 stays as it is: a second one of its priority changes nothing."""
    node.master()
    pod = node.pod()
    route = {"dst": dst, "mtu": 1400, "advmss": 1300, **({"priority": priority} if priority else {})}
    addresses = [{"address": a["address"]} for a in ADDRESSES]
    ipam = {"type": "whereabouts", "datastore": "file", "addresses": addresses, "routes": [route]}
    config = network("1.1.0", ipam=ipam)
    result = node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    node.cni("macvlan", "CHECK", config | {"prevResult": result}, netns=pod).succeeded()


def test_a_next_hop_that_is_the_pods_own_address_is_refused_as_such(node: Node) -> None:
    """In IPv4 the kernel takes such a route for one without a next hop."""
    node.master()
    routes = [{"dst": "::/0", "gw": "FD00:111:0::7"}]
    ipam = {"type": "whereabouts", "datastore": "file", "addresses": ADDRESSES, "routes": routes}
    reply = node.cni("macvlan", "ADD", network(ipam=ipam), netns=node.pod())
    reply.refused(101, "fd00:111::7 is the pod's own address", "exclude", "gw")
