"""cni/shared/kernel/addresses.py on a real kernel, with pyroute2 as the second opinion."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

import pytest

from cni.shared.kernel import addresses
from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netlink import KernelError
from tests.view import View

Namespaces = Callable[[], View]
Open = Callable[[View], Rtnl]


@pytest.fixture
def pod(namespaces: Namespaces) -> View:
    """A namespace with net1, up, and its other end."""
    view = namespaces()
    view.add_veth("net1", "wire")
    return view


def listed(socket: Rtnl, view: View, name: str = "net1") -> dict[str, addresses.Address]:
    """The addresses but those that the kernel made for IPv6."""
    found = addresses.list_of(socket, view.link(name).index)
    return {a.text: a for a in found if not a.text.startswith("fe80:")}


def test_an_ipv4_address_is_global_permanent_and_has_its_broadcast_address(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    addresses.add(socket, pod.link("net1").index, "192.168.111.1/24")
    [seen] = [a for a in pod.link("net1").addresses if ":" not in a.text]
    assert (seen.text, seen.broadcast, seen.scope, seen.valid_for_ever) == (
        "192.168.111.1/24",
        "192.168.111.255",
        0,
        True,
    )
    [ours] = listed(socket, pod).values()
    assert (ours.text, ours.broadcast, ours.scope, ours.permanent) == (
        "192.168.111.1/24",
        "192.168.111.255",
        0,
        True,
    )
    assert (ours.label, ours.peer, ours.metric, ours.index) == ("net1", "", 0, pod.link("net1").index)


@pytest.mark.parametrize(
    ("text", "broadcast"),
    [
        ("10.1.2.3/8", "10.255.255.255"),
        ("10.1.2.3/30", "10.1.2.3"),
        ("10.1.2.2/31", ""),
        ("10.1.2.3/32", ""),
        ("10.1.2.3/0", "255.255.255.255"),
    ],
)
def test_the_broadcast_address_follows_from_the_prefix(pod: View, rtnl: Open, text: str, broadcast: str) -> None:
    socket = rtnl(pod)
    addresses.add(socket, pod.link("net1").index, text)
    assert listed(socket, pod)[text].broadcast == broadcast
    assert next(a for a in pod.link("net1").addresses if a.text == text).broadcast == broadcast


def test_an_address_can_go_without_a_broadcast_address(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    addresses.add(socket, pod.link("net1").index, "192.168.111.1/24", broadcast=False)
    assert listed(socket, pod)["192.168.111.1/24"].broadcast == ""


def test_an_ipv6_address_is_usable_at_once(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    addresses.add(socket, pod.link("net1").index, "2001:db8::1/64")
    ours = listed(socket, pod)["2001:db8::1/64"]
    assert (ours.tentative, ours.permanent, bool(ours.flags & addresses.NODAD)) == (False, True, True)


def test_an_ipv6_address_with_duplicate_detection_is_tentative_until_that_ends(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    addresses.add(socket, pod.link("net1").index, "2001:db8::1/64", nodad=False)
    assert listed(socket, pod)["2001:db8::1/64"].tentative
    until = time.monotonic() + 20
    while listed(socket, pod)["2001:db8::1/64"].tentative:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not listed(socket, pod)["2001:db8::1/64"].duplicate


def test_an_ipv6_address_that_a_neighbour_has_is_reported_as_duplicate(namespaces: Namespaces, rtnl: Open) -> None:
    pod, other = namespaces(), namespaces()
    pod.add_veth("net1", "wire")
    with pod.rtnl() as ipr, other.entered():
        fd = open("/proc/thread-self/ns/net")  # noqa: SIM115
        ipr.link("set", index=ipr.link_lookup(ifname="wire")[0], net_ns_fd=fd.fileno())
        fd.close()
    other.set("wire", state="up")
    theirs, ours = rtnl(other), rtnl(pod)
    addresses.add(theirs, other.link("wire").index, "2001:db8::1/64")
    addresses.add(ours, pod.link("net1").index, "2001:db8::1/64", nodad=False)
    until = time.monotonic() + 20
    while not listed(ours, pod)["2001:db8::1/64"].duplicate:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not listed(theirs, other, "wire")["2001:db8::1/64"].duplicate


def test_an_address_with_an_end_is_not_permanent(pod: View, rtnl: Open) -> None:
    with pod.rtnl() as ipr:
        ipr.addr(
            "add",
            index=pod.link("net1").index,
            address="192.0.2.5",
            prefixlen=24,
            IFA_CACHEINFO={"ifa_preferred": 100, "ifa_valid": 200, "cstamp": 0, "tstamp": 0},
        )
    assert not listed(rtnl(pod), pod)["192.0.2.5/24"].permanent


def test_only_the_addresses_of_the_link_are_listed(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    addresses.add(socket, pod.link("net1").index, "192.0.2.1/24")
    addresses.add(socket, pod.link("wire").index, "192.0.2.2/24")
    addresses.add(socket, pod.link("wire").index, "2001:db8::2/64")
    assert list(listed(socket, pod)) == ["192.0.2.1/24"]
    assert sorted(listed(socket, pod, "wire")) == ["192.0.2.2/24", "2001:db8::2/64"]
    with pytest.raises(KernelError) as refused:
        addresses.list_of(socket, 99)
    assert refused.value.errno == errno.ENODEV


def test_an_address_comes_back_as_it_was_read(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    index = pod.link("net1").index
    addresses.add(socket, index, "192.0.2.1/32", scope=253, label="net1:a", peer="192.0.2.9", metric=7)
    addresses.add(socket, index, "192.0.2.65/26", flags=addresses.NOPREFIXROUTE)
    addresses.add(socket, index, "2001:db8::1/64", flags=addresses.NOPREFIXROUTE, metric=9)

    def facts() -> list[tuple[str, str, int, str, str, int, int]]:
        return sorted(
            (a.text, a.broadcast, a.scope, a.label, a.peer, a.flags, a.metric) for a in listed(socket, pod).values()
        )

    before = facts()
    assert [bool(fact[5] & addresses.NOPREFIXROUTE) for fact in before] == [False, True, True]
    assert before[0] == ("192.0.2.1/32", "", 253, "net1:a", "192.0.2.9", 0x80, 7)
    again = list(listed(socket, pod).values())
    for a in again:
        addresses.remove(socket, index, a.text)
    assert listed(socket, pod) == {}
    for a in again:
        flags = a.flags & addresses.NOPREFIXROUTE
        addresses.add(socket, index, a.text, bool(a.broadcast), True, a.scope, a.label, a.peer, flags, a.metric)
    assert facts() == before


def test_an_address_that_is_there_or_is_not_is_an_error(pod: View, rtnl: Open) -> None:
    socket = rtnl(pod)
    index = pod.link("net1").index
    for text in ("192.0.2.1/24", "2001:db8::1/64"):
        addresses.add(socket, index, text)
        with pytest.raises(KernelError) as refused:
            addresses.add(socket, index, text)
        assert refused.value.errno == errno.EEXIST
        addresses.remove(socket, index, text)
        with pytest.raises(KernelError) as refused:
            addresses.remove(socket, index, text)
        assert refused.value.errno == errno.EADDRNOTAVAIL
