"""What a warm worker keeps of its connections (ipam.stores.http): they serve later calls, and none that they are not for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipam.stores import base, http
from ipam.stores.apiserver import Api
from tests.stores.kubernetes_api import ApiServer

pytestmark = pytest.mark.well("it only reads, and counts the connections")

POOLS = "ippools"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def path(server: ApiServer, tmp_path: Path) -> str:
    """Of a kubeconfig that names the server."""
    return server.kubeconfig(tmp_path)


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that were connected to, in a process that keeps connections."""
    found: list[int] = []
    real = http.dial

    def dial(places: Any, seconds: float) -> tuple[int, Any]:
        found.append(places[0][1])
        return real(places, seconds)

    monkeypatch.setattr(base, "connections", {})
    monkeypatch.setattr(http, "dial", dial)
    return found


def call(kubeconfig: str, *, is_closed: bool = False) -> None:
    """As a call of a plugin, and its end in a worker: what it opens is not closed, or is."""
    api = Api(kubeconfig, 5)
    api.list_all(POOLS)
    if is_closed:
        api.close()
    while base.at_end:
        base.at_end.pop()()


@pytest.mark.parametrize("is_closed", [False, True])
def test_calls_one_after_another_have_one_connection(
    server: ApiServer, dialled: list[int], path: str, is_closed: bool
) -> None:
    for _ in range(3):
        call(path, is_closed=is_closed)
    assert dialled == [server.port]


def test_what_a_cold_call_has_opened_ends_with_it_and_an_idle_connection_is_not_trusted(
    server: ApiServer, dialled: list[int], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(base, "connections", None)
        for _ in range(2):
            call(path)
    call(path)
    assert dialled == [server.port] * 3
    monkeypatch.setattr(http, "_KEPT_SECONDS", 0.0)
    call(path)
    assert dialled == [server.port] * 4


def test_a_connection_that_the_server_has_closed_is_made_anew(server: ApiServer, dialled: list[int], path: str) -> None:
    call(path)
    (connection,) = (base.connections or {}).values()
    connection._socket.shutdown(0)  # as when the server has closed it: its end is there to be read
    call(path)
    assert dialled == [server.port] * 2
    assert len(base.connections or {}) == 1


def test_another_kubeconfig_has_another_connection(dialled: list[int], tmp_path: Path) -> None:
    servers = [ApiServer() for _ in range(http._MOST_KEPT + 2)]
    try:
        for server in servers * 2:
            call(server.kubeconfig(tmp_path))
        assert dialled == [server.port for server in servers * 2]  # more than are kept: the oldest goes
        assert len(base.connections or {}) == http._MOST_KEPT
        call(servers[-1].kubeconfig(tmp_path))
        assert len(dialled) == 2 * len(servers)
    finally:
        for server in servers:
            server.close()


def test_credentials_that_change_have_another_connection(
    server: ApiServer, dialled: list[int], path: str, tmp_path: Path
) -> None:
    call(path)
    (tmp_path / "ca.crt").write_text("another authority")
    document = json.loads(Path(path).read_text())
    document["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / "ca.crt")
    Path(path).write_text(json.dumps(document))
    call(path)
    assert dialled == [server.port] * 2


@pytest.mark.parametrize("key", ["token", "tokenFile"])
def test_a_token_that_changes_is_used_on_the_connection_of_the_former(
    server: ApiServer, dialled: list[int], tmp_path: Path, key: str
) -> None:
    for token in ("first", "second"):
        (tmp_path / "token").write_text(token)
        server.tokens = {token}
        server.refused = {"first"} - server.tokens
        user = {"token": {"token": token}, "tokenFile": {"tokenFile": str(tmp_path / "token")}}[key]
        call(server.kubeconfig(tmp_path, user=user))
    assert dialled == [server.port]


def test_a_connection_that_is_lost_in_a_request_is_not_kept(server: ApiServer, dialled: list[int], path: str) -> None:
    call(path)
    server.faults = lambda method, resource, number: "drop after" if number == 2 else None
    call(path)
    assert dialled == [server.port] * 2
    assert not any(connection.closed for connection in (base.connections or {}).values())
