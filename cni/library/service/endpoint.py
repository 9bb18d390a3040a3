"""The HTTP endpoint of a program, in threads of its own, so that neither a silent client nor slow work delays a probe."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cni import VERSION
from cni.shared.spec.errors import IoFailure

_CLIENT_SECONDS = 5.0  # after which a silent client is sent away
_MOST_CLIENTS = 64

Page = Callable[[], tuple[int, str, str]]  # status, content type, text
TEXT = "text/plain; charset=utf-8"


class HttpEndpoint:
    """Listens on `address`, and answers GET and HEAD of the paths of `pages`. IoFailure when it cannot listen."""

    def __init__(self, address: tuple[str, int], pages: dict[str, Page]) -> None:
        host, port = address
        try:
            self._server = _Server(address, pages)
        except OSError as fault:
            raise IoFailure(
                f"cannot listen on {_shown(host, port)}: {os.strerror(fault.errno or 0)}; name an address of this node and a"
                " free port with --listen"
            ) from None
        self.url = f"http://{_shown(host, self._server.server_address[1])}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_CLIENTS

    def __init__(self, address: tuple[str, int], pages: dict[str, Page]) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(_MOST_CLIENTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes the connection is not logged."""


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = f"railcni/{VERSION}", ""
    timeout = _CLIENT_SECONDS
    server: _Server

    def do_GET(self) -> None:
        pages = self.server.pages
        page = pages.get(self.path.partition("?")[0])
        status, kind, text = page() if page else (404, TEXT, f"want {', '.join(pages)}")
        body = (text if text.endswith("\n") else f"{text}\n").encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """The log is for what the agent does."""


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
