"""Fixtures of the tests that need a kernel, but no node: network namespaces without a name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cni.shared.kernel.links import Rtnl
from cni.shared.kernel.netns import open_namespace
from tests.namespaces import new_net
from tests.view import View


@pytest.fixture
def namespaces() -> Iterator[Callable[[], View]]:
    """Makes a network namespace, as pyroute2 sees it; its `path` opens it."""
    made: list[int] = []

    def make() -> View:
        if os.geteuid() != 0:
            pytest.skip("needs root for network namespaces: run the tests with sudo")
        with ThreadPoolExecutor(1) as leaving:  # so that this thread stays where it is
            made.append(leaving.submit(new_net).result())
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
