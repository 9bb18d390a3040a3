"""Fixtures of the tests that need a kernel, but no node: network namespaces without a name."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netns import open_namespace
from tests.view import View

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000


def _unshared() -> int:
    """A descriptor of a new network namespace, which lives as long as it is open."""
    made: list[int] = []

    def leave() -> None:  # in a thread, so that ours stays where it is
        if _LIBC.unshare(_CLONE_NEWNET) == 0:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    if not made:
        pytest.skip("needs root for network namespaces: run the tests with sudo")
    return made[0]


@pytest.fixture
def namespaces() -> Iterator[Callable[[], View]]:
    """Makes a network namespace, as pyroute2 sees it; its `path` opens it."""
    made: list[int] = []

    def make() -> View:
        made.append(_unshared())
        return View(f"/proc/{os.getpid()}/fd/{made[-1]}")

    yield make
    for fd in made:
        os.close(fd)


@pytest.fixture
def rtnl() -> Iterator[Callable[[View], Rtnl]]:
    """Opens our own route socket in a namespace."""
    made: list[Rtnl] = []

    def make(view: View) -> Rtnl:
        namespace = open_namespace(view.path)
        with namespace.entered():
            made.append(Rtnl())
        namespace.close()
        return made[-1]

    yield make
    for socket in made:
        socket.close()
