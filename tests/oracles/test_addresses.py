"""cni/shared/kernel/addresses.py on a real kernel, with pyroute2 as the second opinion: what plugins do not come by."""

from __future__ import annotations

import errno
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
