"""cni/shared/kernel/links.py on a real kernel, with pyroute2 as the second opinion."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netlink import KernelError
from tests.view import View

Namespaces = Callable[[], View]
Open = Callable[[View], Rtnl]


@pytest.fixture
def host(namespaces: Namespaces) -> View:
    """A namespace with a master, ens2f0, of MTU 9000."""
    view = namespaces()
    view.add_veth("ens2f0", "wire", mtu=9000)
    return view


@pytest.fixture
def pod(namespaces: Namespaces) -> View:
    return namespaces()


def found(socket: Rtnl, name: str) -> Link:
    link = socket.link(name)
    assert link is not None
    return link


def macvlan(host: View, pod: View, socket: Rtnl, name: str = "net1", **changes: Any) -> None:
    """A macvlan over ens2f0 in the pod, made through `socket` of the host."""
    fd = os.open(pod.path, os.O_RDONLY)
    try:
        arguments: dict[str, Any] = {"mode": "bridge", "netns_fd": fd, **changes}
        socket.add_macvlan(name, host.link("ens2f0").index, **arguments)
    finally:
        os.close(fd)


def test_a_link_is_found_by_index_by_name_and_by_alternative_name(host: View, rtnl: Open) -> None:
    socket = rtnl(host)
    index = host.link("ens2f0").index
    long_name = "enp59s0f0np0-rail-0"  # more than the 15 bytes of a name
    socket.add_altname(index, long_name)
    socket.add_altname(index, "rail0")
    assert [found(socket, name).index for name in ("ens2f0", long_name, "rail0")] == [index] * 3
    by_index = socket.link(index=index)
    assert by_index is not None
    assert by_index.name == "ens2f0"


@pytest.mark.parametrize("name", ["missing", "", "x" * 15, "x" * 16, "x" * 127, "x" * 128, "ü" * 70])
def test_there_is_no_link_of_a_name_that_none_has(pod: View, rtnl: Open, name: str) -> None:
    assert rtnl(pod).link(name) is None
    assert rtnl(pod).link(index=99) is None


def test_alternative_names_come_and_go(host: View, rtnl: Open) -> None:
    socket = rtnl(host)
    index = host.link("ens2f0").index
    socket.add_altname(index, "rail0")
    socket.add_altname(index, "x" * 127)
    assert host.link("ens2f0").altnames == ("rail0", "x" * 127)
    assert sorted(found(socket, "ens2f0").altnames) == ["rail0", "x" * 127]
    with pytest.raises(KernelError) as refused:
        socket.add_altname(host.link("wire").index, "rail0")
    assert refused.value.errno == errno.EEXIST
    socket.remove_altname(index, "rail0")
    assert host.link("ens2f0").altnames == ("x" * 127,)
    with pytest.raises(KernelError) as refused:
        socket.remove_altname(index, "rail0")
    assert refused.value.errno == errno.ENOENT


def test_a_move_to_a_taken_name_ends_with_the_link_moved_under_its_old_name(host: View, pod: View, rtnl: Open) -> None:
    pod.add_veth("net1", "other")
    fd = os.open(pod.path, os.O_RDONLY)
    try:
        with pytest.raises(KernelError) as refused:
            rtnl(host).change_link(host.link("ens2f0").index, name="net1", netns_fd=fd)
    finally:
        os.close(fd)
    assert refused.value.errno == errno.EEXIST
    assert pod.names() == ["ens2f0", "net1", "other"]


def test_a_removed_link_is_gone_and_removing_it_again_is_no_error(host: View, pod: View, rtnl: Open) -> None:
    macvlan(host, pod, rtnl(host))
    socket = rtnl(pod)
    index = found(socket, "net1").index
    assert socket.delete_link(index) is True
    assert socket.delete_link(index) is False
    assert pod.names() == []


def test_a_removed_link_is_off_its_master_at_once(host: View, pod: View, rtnl: Open) -> None:
    """Also while the kernel still frees its memory: nothing answers for it, and the master is free for another."""
    there, here = rtnl(host), rtnl(pod)
    master = host.link("ens2f0").index
    for _ in range(5):
        macvlan(host, pod, there)
        link = found(here, "net1")
        here.change_link(link.index, up=True)
        assert link.mac in [mac.hex(":") for mac in there.received(master)]
        assert here.delete_link(link.index)
        assert link.mac not in [mac.hex(":") for mac in there.received(master)]
        fd = os.open(pod.path, os.O_RDONLY)
        try:
            there.add_macvlan("net1", master, "passthru", netns_fd=fd)  # EINVAL beside another
        finally:
            os.close(fd)
        assert here.delete_link(found(here, "net1").index)


def test_a_link_that_cannot_be_removed_is_an_error(pod: View, rtnl: Open) -> None:
    with pytest.raises(KernelError) as refused:
        rtnl(pod).delete_link(1)  # lo
    assert refused.value.errno == errno.EOPNOTSUPP


def test_the_id_of_a_namespace_is_that_which_its_links_show(host: View, pod: View, rtnl: Open) -> None:
    macvlan(host, pod, rtnl(host))
    fds = [os.open(view.path, os.O_RDONLY) for view in (host, pod)]
    try:
        link = found(rtnl(pod), "net1")
        assert link.lower_netnsid is not None
        assert rtnl(pod).netns_id(fds[0]) == link.lower_netnsid == pod.link("net1").lower_netnsid
        assert rtnl(host).netns_id(fds[1]) is None  # no link of the host says that it reaches into the pod
    finally:
        for fd in fds:
            os.close(fd)
