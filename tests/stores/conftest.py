"""The stores of these tests, and the rule that each test meets an unwell server too (tests/served.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipam.stores import base
from ipam.stores.base import Store
from tests import served
from tests.stores import certificates, kubernetes_proxy
from tests.stores.kinds import KINDS, Kind
from tests.stores.kubernetes_api import ApiServer
from tests.stores.places import MAKERS, SHARED, Place, made
from tests.stores.unwell import Hurry, ailing

# An unwell server is the matter of the state machine and of test_unwell_servers.py; the long tests run the contract over it.
_PARAMS = [pytest.param(kind, marks=pytest.mark.long if kind.unwell else ()) for kind in KINDS]


def pytest_runtest_logstart() -> None:
    served.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    if served.is_faulty(item):
        pytest.fail(served.MESSAGE, pytrace=False)


@pytest.fixture(params=_PARAMS, ids=lambda kind: kind.name)
def reopen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Store]]:
    """Opens the same store once more, as another process would."""
    kind: Kind = request.param
    if kind.unusable():
        pytest.skip(kind.unusable())
    monkeypatch.setattr(base, "time", Hurry)
    open_store, remove = kind.make()
    yield open_store
    remove()


@pytest.fixture(params=["well", "unwell"])
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    server = kubernetes_proxy.start()
    if request.param == "well":
        yield server
    else:
        server.lag()
        with ailing(server.port) as unwell:
            server.url = server.url.replace(f":{server.port}", f":{unwell.port}")
            yield server
    server.close()


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates."""
    directory = tmp_path_factory.mktemp("pki")
    certificates.make(directory)
    return directory


@pytest.fixture
def store(reopen: Callable[[], Store]) -> Store:
    """A store without leases."""
    return reopen()


@pytest.fixture(params=MAKERS)
def place(request: pytest.FixtureRequest, tmp_path: Path, free_paths: None) -> Iterator[Place]:
    yield from made(request, tmp_path)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Path, free_paths: None) -> Iterator[Place]:
    yield from made(request, tmp_path)
