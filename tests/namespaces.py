"""A mount and a network namespace that a thread of this process is in: what it starts is in them, and both end with it.

A thread costs a test a thirtieth of what a chain of unshare, sh and mount does, and one call in it a tenth of nsenter.
"""

from __future__ import annotations

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
_CLONE_FS, _CLONE_NEWNS, _CLONE_NEWNET = 0x200, 0x20000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IFREQ = struct.Struct("16sh22x")
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
                setns(net, _CLONE_NEWNET)
                return function(*args, **named)
            finally:
                _done(_LIBC.setns(self._net, _CLONE_NEWNET), "setns")

        return self.call(there)

    def add(self, path: str) -> None:
        """Make a network namespace, with `lo` up, and mount it at `path`."""

        def make() -> None:
            os.close(os.open(path, os.O_CREAT | os.O_RDONLY))
            try:
                _done(_LIBC.unshare(_CLONE_NEWNET), "unshare")
                up("lo")
                mount(_OWN, path, flags=_MS_BIND)
            finally:
                _done(_LIBC.setns(self._net, _CLONE_NEWNET), "setns")

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
    _done(_LIBC.unshare(_CLONE_FS | _CLONE_NEWNS | _CLONE_NEWNET), "unshare")
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
    _done(_LIBC.unshare(_CLONE_FS), "unshare")
    setns(f"{process}/ns/net", _CLONE_NEWNET)
    setns(f"{process}/ns/mnt", _CLONE_NEWNS)


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


def _done(status: int, what: str) -> None:
    if status:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
