"""cni/shared/kernel/routes.py on a real kernel, with pyroute2 as the second opinion: what plugins do not come by."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from cni.shared.kernel import addresses, routes
from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netlink import KernelError
from tests.node import until
from tests.view import View

Namespaces = Callable[[], View]
Open = Callable[[View], Rtnl]


@pytest.fixture
def pod(namespaces: Namespaces, rtnl: Open) -> View:
    """A namespace with two links, up, that have addresses: net1 and net2."""
    view = namespaces()
    socket = rtnl(view)
    for number in (1, 2):
        view.add_veth(f"net{number}", f"wire{number}")
        addresses.add(socket, view.link(f"net{number}").index, f"192.0.{number}.1/24")
        addresses.add(socket, view.link(f"net{number}").index, f"2001:db8:{number}::1/64")
    return view


def by_dst(socket: Rtnl, view: View, name: str = "net1") -> dict[str, routes.KernelRoute]:
    return {r.dst: r for r in routes.list_of(socket, view.link(name).index)}


def test_the_routes_of_the_link_are_listed_as_pyroute2_lists_them(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    index = pod.link("net1").index
    routes.add(socket, index, "0.0.0.0/0", "192.0.1.254", priority=7)
    routes.add(socket, index, "::/0", "2001:db8:1::fe")
    routes.add(socket, pod.link("net2").index, "198.51.100.0/24")
    assert until(lambda: pod.link("net1").route("fe80::/64"))  # a moment after the link is up
    ours = {(r.dst, r.gw, r.priority, r.table, r.scope) for r in routes.list_of(socket, index)}
    assert ours == {(r.dst, r.gw, r.priority, r.table, r.scope) for r in pod.link("net1").routes}
    assert {"0.0.0.0/0", "::/0", "192.0.1.0/24", "2001:db8:1::/64", "fe80::/64"} == {r[0] for r in ours}
    with pytest.raises(KernelError) as refused:
        routes.list_of(socket, 99)
    assert refused.value.errno == errno.ENODEV


def test_a_destination_that_another_link_serves_is_served_by_both(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    for number in (1, 2):
        index = pod.link(f"net{number}").index
        routes.add(socket, index, "198.51.100.0/24", f"192.0.{number}.254")
        routes.add(socket, index, "2001:db8:ff::/48", f"2001:db8:{number}::fe", mtu=1400)
    for number in (1, 2):
        ours = by_dst(socket, pod, f"net{number}")
        assert ours["198.51.100.0/24"].gw == f"192.0.{number}.254"
        assert ours["2001:db8:ff::/48"].gw == f"2001:db8:{number}::fe"  # of a multipath route, the part by this link


@pytest.mark.parametrize(
    ("dst", "gw"), [("", ""), ("198.51.100.0/24", "nope"), ("nope/24", ""), ("2001:db8::/32", "2001:db8::g")]
)
def test_what_is_no_destination_or_gateway_is_refused(pod: View, rtnl: Open, dst: str, gw: str) -> None:
    with pytest.raises(ValueError):
        routes.add(rtnl(pod), pod.link("net1").index, dst, gw)


def default_link(socket: Rtnl) -> int:
    """The index of the default route's link; 0 without a default route."""
    route = routes.default_route(socket)
    return route.index if route else 0


def test_the_default_route_of_the_main_table_decides_ipv4_first_and_then_the_lowest_priority(
    pod: View, rtnl: Open
) -> None:
    socket = rtnl(pod)
    one, two = pod.link("net1").index, pod.link("net2").index
    assert default_link(socket) == 0
    routes.add(socket, two, "0.0.0.0/0", "192.0.2.254", table=1000)
    routes.add(socket, two, "128.0.0.0/1", "192.0.2.254")
    assert default_link(socket) == 0
    routes.add(socket, two, "::/0", "2001:db8:2::fe")
    assert default_link(socket) == two
    routes.add(socket, one, "0.0.0.0/0", "192.0.1.254", priority=100)
    assert default_link(socket) == one
    routes.add(socket, two, "0.0.0.0/0", "192.0.2.254", priority=50)
    assert default_link(socket) == two


def test_of_default_routes_alike_one_that_was_set_goes_before_an_advertised_one_and_the_older_link_before(
    pod: View, rtnl: Open
) -> None:
    socket = rtnl(pod)
    one, two = pod.link("net1").index, pod.link("net2").index
    # without a gateway the kernel does not take them for the ways of one route, as it does not those of its own making
    routes.add(socket, two, "::/0", priority=1024, protocol=routes.RA_PROTOCOL)
    assert default_link(socket) == two
    routes.add(socket, one, "::/0", priority=1024, protocol=routes.RA_PROTOCOL)
    assert default_link(socket) == one
    routes.add(socket, two, "::/0", "2001:db8:2::fe", priority=1024)
    assert default_link(socket) == two


def test_an_unreachable_default_route_has_no_link(pod: View, rtnl: Open) -> None:
    with pod.rtnl() as ipr:
        ipr.route("add", dst="0.0.0.0/0", type="unreachable", priority=1)
    socket = rtnl(pod)
    assert default_link(socket) == 0
    routes.add(socket, pod.link("net1").index, "0.0.0.0/0", "192.0.1.254", priority=100)
    assert default_link(socket) == pod.link("net1").index
