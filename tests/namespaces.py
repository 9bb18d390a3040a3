"""A mount and a network namespace that a thread of this process is in: what it starts is in them, and both end with it.

A thread costs a test a thirtieth of what a chain of unshare, sh and mount does, and one call in it a tenth of nsenter.
"""

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_FS, _CLONE_NEWNS, NEWNET = 0x200, 0x20000, 0x40000000
MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IFREQ = struct.Struct("16sh22x")
_HEADER, _IFINFO = (
    struct.Struct("=IHHII"),
    struct.Struct("=4xi8x"),
)  # struct nlmsghdr; ifinfomsg, of which we set the index
_RTM_NEWLINK, _CREATE = 16, 0x605  # NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE
_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 4, 18, 28
_OWN = "/proc/thread-self/ns/net"


class Namespaces:
    """The thread; `task` is its id, by which /proc/TASK/root and /proc/TASK/ns lead there. OSError, from the kernel."""

    def __init__(self, enter: Callable[[], None]) -> None:
        self._thread = ThreadPoolExecutor(1)
        try:
            self.task = self.call(threading.get_native_id)
            self.call(enter)
            self._net = self.call(os.open, _OWN, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            self._thread.shutdown()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call `function` in the thread."""
        return self._thread.submit(function, *args, **named).result()

    def call_in(self, net: str, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call `function` in the thread, which is in the network namespace at `net` meanwhile."""

        def there() -> T:
            try:
                setns(net, NEWNET)
                return function(*args, **named)
            finally:
                _done(_LIBC.setns(self._net, NEWNET), "setns")

        return self.call(there)

    def add(self, path: str) -> None:
        """Make a network namespace, with `lo` up, and mount it at `path`."""

        def make() -> None:
            os.close(os.open(path, os.O_CREAT | os.O_RDONLY))
            try:
                _done(_LIBC.unshare(NEWNET), "unshare")
                up("lo")
                mount(_OWN, path, flags=MS_BIND)
            finally:
                _done(_LIBC.setns(self._net, NEWNET), "setns")

        self.call(make)

    def unmount(self, path: str) -> None:
        """Take away what is mounted at `path`, even while it is in use."""
        self.call(lambda: _done(_LIBC.umount2(path.encode(), _MNT_DETACH), f"umount {path}"))

    def end(self) -> None:
        """End the thread. The kernel then takes the namespaces, unless a process is in them."""
        os.close(self._net)
        self._thread.shutdown()


def unshare() -> None:
    """Put the calling thread in a mount and a network namespace of its own."""
    _done(_LIBC.unshare(_CLONE_FS | _CLONE_NEWNS | NEWNET), "unshare")
    mount("none", "/", flags=_MS_REC | _MS_PRIVATE)


def hide(folders: Iterable[str]) -> None:
    """Put the calling thread, and those that it starts, in a mount namespace of its own, in which these are empty."""
    _done(_LIBC.unshare(_CLONE_NEWNS), "unshare")
    mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    for folder in folders:
        if os.path.isdir(folder):
            mount("tmpfs", folder, "tmpfs")


def join(process: str) -> None:
    """Put the calling thread in the mount and the network namespace of a process, by its folder of /proc."""
    setns(f"{process}/ns/net", NEWNET)
    join_mounts(f"{process}/ns/mnt")


def join_mounts(path: str) -> None:
    """Put the calling thread in a mount namespace."""
    _done(_LIBC.unshare(_CLONE_FS), "unshare")
    setns(path, _CLONE_NEWNS)


def new_net() -> int:
    """A descriptor of a new network namespace, in which the calling thread is from now on."""
    _done(_LIBC.unshare(NEWNET), "unshare")
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def setns(path: str, kind: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _done(_LIBC.setns(fd, kind), f"setns {path}")
    finally:
        os.close(fd)


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    _done(_LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, None), f"mount {target}")


def up(name: str) -> None:
    """Set the link `name` of the calling thread's network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = fcntl.ioctl(asking, _SIOCGIFFLAGS, _IFREQ.pack(name.encode(), 0))
        flags = _IFREQ.unpack(request)[1]
        fcntl.ioctl(asking, _SIOCSIFFLAGS, _IFREQ.pack(name.encode(), flags | _IFF_UP))


def add_veth(name: str, index: int, mtu: int, peer: str, there: str) -> None:
    """Make the link `name` in the calling thread's network namespace, and its `peer` in the one at the path `there`.

    By a message of our own: pyroute2 takes 6 ms for it, and nearly every test has such a link.
    """
    fd = os.open(there, os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = _IFINFO.pack(0) + _named(peer, mtu) + _attribute(_IFLA_NET_NS_FD, struct.pack("=I", fd))
        link = _attribute(1, b"veth") + _attribute(2, _attribute(1, other))  # IFLA_INFO_KIND; _DATA with VETH_INFO_PEER
        body = _IFINFO.pack(index) + _named(name, mtu) + _attribute(_IFLA_LINKINFO, link)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as rtnl:
            rtnl.send(_HEADER.pack(_HEADER.size + len(body), _RTM_NEWLINK, _CREATE, 1, 0) + body)
            (code,) = struct.unpack_from("=i", rtnl.recv(1 << 16), _HEADER.size)
    finally:
        os.close(fd)
    if code:
        raise OSError(-code, f"veth {name}: {os.strerror(-code)}")


def _named(name: str, mtu: int) -> bytes:
    return _attribute(_IFLA_IFNAME, name.encode() + b"\0") + _attribute(_IFLA_MTU, struct.pack("=I", mtu))


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _done(status: int, what: str) -> None:
    if status:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
