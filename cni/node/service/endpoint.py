"""The HTTP endpoint of a program. Each connection has a thread, so a silent client or a slow page delays no probe."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cni import VERSION
from cni.shared.spec.errors import IoFailure

_CLIENT_SECONDS = 5.0  # the time limit for a request with its answer
_MOST_CLIENTS = 64
_PROBES = ("/healthz", "/readyz")
_MOST_OTHERS = 4  # the most pages, apart from probes, that are made at the same time

Page = Callable[[], tuple[int, str, str]]  # status, content type, text
TEXT = "text/plain; charset=utf-8"


def readiness(faults: Sequence[str], lacks: Sequence[str]) -> tuple[int, str, str]:
    """The answer to a probe, as (HTTP status, content type, text): 503 with `faults` or, without faults, 200 with "ok"
    and `lacks`, the functions that the program lacks at present."""
    return (503, TEXT, "\n".join(faults)) if faults else (200, TEXT, "\n".join(["ok", *lacks]))


class HttpEndpoint:
    """An HTTP server on `address` for GET and HEAD of the paths in `pages`. Raises IoFailure if it cannot listen."""

    def __init__(self, address: tuple[str, int], pages: dict[str, Page]) -> None:
        host, port = address
        try:
            self._server = _Server(address, pages)
        except OSError as fault:
            message = f"cannot listen on {_shown(host, port)}: {os.strerror(fault.errno or 0)}; name an address of this node and a free port with --listen"
            raise IoFailure(message) from None
        self.url = f"http://{_shown(host, self._server.server_address[1])}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A server that closes its oldest connection when it has too many. A probe sends its request at once, so it is
    answered before its connection is the oldest."""

    daemon_threads = True
    request_queue_size = _MOST_CLIENTS

    def __init__(self, address: tuple[str, int], pages: dict[str, Page]) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.others = threading.BoundedSemaphore(_MOST_OTHERS)
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, float] = {}  # the open connections with their start times, the oldest first
        super().__init__(address, _PageHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if threading.active_count() > 2 * _MOST_CLIENTS:  # threads of closed connections may still make pages
            return super().shutdown_request(request)
        with self._lock:
            if len(self._clients) >= _MOST_CLIENTS:
                self._send_away(next(iter(self._clients)))
            self._clients[request] = time.monotonic()
        return super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections older than _CLIENT_SECONDS. serve_forever calls this method twice a second."""
        latest = time.monotonic() - _CLIENT_SECONDS
        with self._lock:
            for client in [client for client, begin in self._clients.items() if begin <= latest]:
                self._send_away(client)

    def _send_away(self, client: socket.socket) -> None:
        """Shut the connection down; the thread that serves it then closes it and ends."""
        del self._clients[client]
        with contextlib.suppress(OSError):  # the client has closed the connection
            client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log errors of a request, such as a connection that the client has closed."""


class Handler(BaseHTTPRequestHandler):
    """An HTTP handler that sends each answer whole. It logs no requests: the log is for the program's actions."""

    server_version, sys_version = f"railcni/{VERSION}", ""

    def send(self, status: int, kind: str, text: str) -> None:
        """Send an answer with the HTTP status and the content type `kind`; the body is `text`, but empty for HEAD."""
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _PageHandler(Handler):
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in _PROBES:
            return self.send(*self._page(path))
        if not self.server.others.acquire(blocking=False):
            return self.send(503, TEXT, "busy: ask again\n")
        try:
            answer = self._page(path)
        finally:
            self.server.others.release()
        return self.send(*answer)

    def _page(self, path: str) -> tuple[int, str, str]:
        pages = self.server.pages
        page = pages.get(path)
        status, kind, text = page() if page else (404, TEXT, f"want {', '.join(pages)}")
        return status, kind, text.removesuffix("\n") + "\n"

    do_HEAD = do_GET


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
