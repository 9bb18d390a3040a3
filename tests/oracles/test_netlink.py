"""cni/shared/kernel/netlink.py on a real kernel: replies, refusals with their text, lists that change while they are read."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni.shared.kernel import addresses, routes
from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netlink import ACK, REQUEST, KernelError, pack_message
from tests.view import View

ROOT = Path(__file__).resolve().parents[2]
Namespaces = Callable[[], View]
Open = Callable[[View], Rtnl]


def test_a_refusal_has_the_number_and_the_words_of_the_kernel(namespaces: Namespaces, rtnl: Open) -> None:
    view = namespaces()
    view.add_veth("ens2f0", "peer")
    socket = rtnl(view)
    with pytest.raises(KernelError) as refused:
        socket.change_link(view.link("ens2f0").index, mtu=1_000_000)
    assert isinstance(refused.value, OSError)
    assert refused.value.errno == errno.EINVAL
    assert refused.value.text == "mtu greater than device maximum"
    assert str(refused.value) == "Invalid argument (mtu greater than device maximum)"


def test_a_refusal_without_words_has_those_of_its_number(namespaces: Namespaces, rtnl: Open) -> None:
    with pytest.raises(KernelError) as refused:
        rtnl(namespaces()).change_link(99, up=True)
    assert (refused.value.errno, refused.value.text, str(refused.value)) == (errno.ENODEV, "", "No such device")


def test_after_a_refusal_the_socket_serves_the_next_request(namespaces: Namespaces, rtnl: Open) -> None:
    socket = rtnl(namespaces())
    for _ in range(3):
        with pytest.raises(KernelError):
            socket.change_link(99, up=True)
        loopback = socket.link("lo")
        assert loopback is not None
        assert loopback.index == 1


def test_replies_left_from_an_exchange_that_was_broken_off_are_passed_over(namespaces: Namespaces, rtnl: Open) -> None:
    view = namespaces()
    view.add_veth("ens2f0", "peer")
    socket = rtnl(view)
    query = bytes(4) + (1).to_bytes(4, sys.byteorder) + bytes(8)  # struct ifinfomsg of lo
    socket._socket.send(pack_message(18, REQUEST | ACK, 99, query))
    assert sorted(link.name for link in socket.links()) == ["ens2f0", "lo", "peer"]


def test_a_socket_stays_in_the_namespace_in_which_it_was_opened(namespaces: Namespaces, rtnl: Open) -> None:
    a, b = namespaces(), namespaces()
    a.add_veth("ens2f0", "peer")
    here, there = rtnl(a), rtnl(b)
    assert [link.name for link in there.links()] == ["lo"]
    assert len(here.links()) == 3
    socket = rtnl(b)
    socket.close()
    socket.close()


def test_a_list_that_changes_while_it_is_read_is_read_again(namespaces: Namespaces, rtnl: Open) -> None:
    """With 120 links a list takes several replies; meanwhile a second process makes and removes one more."""
    view = namespaces()
    with view.rtnl() as ipr:
        for i in range(60):
            ipr.link("add", ifname=f"a{i}", kind="veth", peer=f"b{i}")
    expected = {f"{end}{i}" for end in "ab" for i in range(60)} | {"lo"}
    source = (
        "import sys; from cni.shared.kernel.netns import open_namespace; from cni.shared.kernel.links import Rtnl\n"
        "with open_namespace(sys.argv[1]).entered(): rtnl = Rtnl()\n"
        "index = rtnl.link('a0').index\n"
        "print(flush=True)\n"
        "while True:\n"
        "    rtnl.add_macvlan('extra', index, 'bridge')\n"
        "    rtnl.delete_link(rtnl.link('extra').index)\n"
    )
    socket = CountingRtnl.opened(view)
    changer = subprocess.Popen([sys.executable, "-c", source, view.path], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert changer.stdout is not None
        changer.stdout.readline()
        for _ in range(10_000):
            assert {link.name for link in socket.links()} - {"extra"} == expected
            if socket.exchanges > socket.calls + 3:
                break
        else:
            pytest.fail("the list never changed while it was read: this test shows nothing here")
    finally:
        changer.kill()
        changer.communicate()
        socket.close()


class CountingRtnl(Rtnl):
    """Counts the lists that were asked for, and the exchanges that they took."""

    __slots__ = ("calls", "exchanges")

    calls: int
    exchanges: int

    @classmethod
    def opened(cls, view: View) -> CountingRtnl:
        with view.entered():
            socket = cls()
        socket.calls = socket.exchanges = 0
        return socket

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        self.calls += 1
        return super().dump(kind, body)

    def _exchange(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        self.exchanges += 1
        return super()._exchange(kind, flags, body)


class OnceShortOfMemory:
    """A socket whose first reply tells that the kernel was short of memory."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.failed = False

    def send(self, data: bytes) -> int:
        return int(self.socket.send(data))

    def recv(self, size: int) -> bytes:
        if not self.failed:
            self.failed = True
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return bytes(self.socket.recv(size))

    def close(self) -> None:
        self.socket.close()


def test_a_list_of_which_the_kernel_lost_a_part_is_read_again(namespaces: Namespaces) -> None:
    view = namespaces()
    view.add_veth("ens2f0", "peer")
    socket = CountingRtnl.opened(view)
    socket._socket = OnceShortOfMemory(socket._socket)  # type: ignore[assignment]
    assert sorted(link.name for link in socket.links()) == ["ens2f0", "lo", "peer"]
    assert (socket.calls, socket.exchanges) == (1, 2)
    socket.close()


def test_a_change_of_which_the_reply_is_lost_is_an_error_and_not_made_twice(namespaces: Namespaces) -> None:
    view = namespaces()
    view.add_veth("ens2f0", "peer")
    socket = CountingRtnl.opened(view)
    socket._socket = OnceShortOfMemory(socket._socket)  # type: ignore[assignment]
    with pytest.raises(KernelError) as refused:
        socket.change_link(view.link("ens2f0").index, mtu=1400)
    assert (refused.value.errno, socket.exchanges) == (errno.ENOBUFS, 1)
    loopback = socket.link("lo")  # the reply that came after all is not taken for this one's
    assert loopback is not None
    assert loopback.name == "lo"
    socket.close()


def test_a_kernel_that_does_not_filter_lists_gives_the_same_answers(namespaces: Namespaces, rtnl: Open) -> None:
    view = namespaces()
    view.add_veth("net1", "wire1")
    view.add_veth("net2", "wire2")
    one, two = view.link("net1").index, view.link("net2").index
    socket = rtnl(view)
    for index, net in ((one, 1), (two, 2)):
        addresses.add(socket, index, f"192.0.{net}.1/24")
        routes.add(socket, index, f"198.51.{net}.0/24", f"192.0.{net}.254")
    routes.add(socket, two, "0.0.0.0/0", "192.0.2.254", table=1000)
    socket._socket.setsockopt(270, 12, 0)  # SOL_NETLINK, NETLINK_GET_STRICT_CHK: as before kernel 4.20
    assert [a.text for a in addresses.list_of(socket, one) if ":" not in a.text] == ["192.0.1.1/24"]
    assert {r.dst for r in routes.list_of(socket, one) if ":" not in r.dst} == {"192.0.1.0/24", "198.51.1.0/24"}
    assert routes.default_route(socket) is None
    routes.add(socket, one, "0.0.0.0/0", "192.0.1.254")
    default = routes.default_route(socket)
    assert default and default.index == one


def test_a_request_that_a_thread_could_not_send_is_an_error(namespaces: Namespaces, rtnl: Open) -> None:
    socket = rtnl(namespaces())
    with pytest.raises(KernelError) as refused:
        socket.request_and_leave(17, bytes(1 << 24))
    assert refused.value.errno == errno.EMSGSIZE
    assert [link.name for link in socket.links()] == ["lo"]


def test_without_a_thread_a_request_is_sent_all_the_same(
    namespaces: Namespaces, rtnl: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    view = namespaces()
    view.add_veth("ens2f0", "peer")
    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert rtnl(view).delete_link(view.link("peer").index)
    assert view.names() == []
