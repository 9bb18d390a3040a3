"""The HTTP endpoint of agent and device plugin, with clients that are slow, silent or many, over real sockets."""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from cni.node.service.endpoint import TEXT, HttpEndpoint

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Pages of /metrics are made once this is set."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def port(gate: threading.Event) -> Iterator[int]:
    def metrics() -> tuple[int, str, str]:
        gate.wait(30)
        return 200, TEXT, "m" * (8 << 20)  # more than a socket's buffers take

    pages = {"/healthz": lambda: (200, TEXT, "ok"), "/readyz": lambda: (200, TEXT, "ok"), "/metrics": metrics}
    endpoint = HttpEndpoint(("127.0.0.1", 0), pages)
    yield int(endpoint.url.rpartition(":")[2])
    endpoint.close()


def get(port: int, path: str) -> tuple[int, int]:
    """The status, and the length of the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, len(answer.read())


def probes(port: int) -> list[int]:
    return [get(port, path)[0] for path in ("/healthz", "/readyz")]


@pytest.mark.parametrize(("peers", "sent"), [
    pytest.param(1, b"", marks=pytest.mark.long),
    (1, b"GET /healthz HTTP/1.1\r\nX-Slow: "),
    pytest.param(1, b"GET /metrics HTTP/1.1\r\n\r\n", marks=pytest.mark.long),
    pytest.param(64, b"", marks=pytest.mark.long),
    (64, b"GET /metrics HTTP/1.1\r\n\r\n"),
], ids=["silent", "half a header", "slow readers of metrics", "silent from 64 addresses", "readers from 64 addresses"])  # fmt: skip
def test_slow_clients_take_no_probe_away(port: int, gate: threading.Event, peers: int, sent: bytes) -> None:
    gate.set()
    with contextlib.ExitStack() as slow:
        for number in range(80):
            address = ("127.0.0.1", port), 30, (f"127.0.1.{1 + number % peers}", 0)
            client = slow.enter_context(socket.create_connection(*address))
            with contextlib.suppress(OSError):  # it has been sent away
                client.sendall(sent)
        assert probes(port) == [200, 200]


def test_pages_of_metrics_that_are_slow_to_make_take_no_probe_away(port: int, gate: threading.Event) -> None:
    with contextlib.ExitStack() as waiting:
        for _ in range(80):
            client = waiting.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert probes(port) == [200, 200]
        assert get(port, "/metrics")[0] == 503, "few are made at once"
        gate.set()
    while get(port, "/metrics") != (200, (8 << 20) + 1):
        time.sleep(0.05)


def test_a_request_that_comes_byte_by_byte_has_an_end(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        with pytest.raises(OSError):
            for _ in range(400):  # far below the length of a line that is refused
                client.sendall(b"x")
                time.sleep(0.05)
        assert get(port, "/healthz")[0] == 200
