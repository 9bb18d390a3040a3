"""The agent's HTTP endpoint, served between two steps of its work: no client is waited for, and none can hold it up."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable
from time import monotonic

from cni import VERSION
from cni.spec.errors import IoFailure

_CLIENT_SECONDS = 5.0  # a silent client is sent away then
_MOST_CLIENTS = 32
_REQUEST_BYTES = 16 << 10
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

Page = Callable[[], tuple[int, str, str]]  # status, content type, text
TEXT = "text/plain; charset=utf-8"


class Endpoint:
    """Listens on `address`, and answers GET and HEAD of the paths of `pages`. IoFailure when it cannot listen."""

    def __init__(self, address: tuple[str, int], pages: dict[str, Page], selector: selectors.BaseSelector) -> None:
        self._pages = pages
        self._selector = selector
        self._clients: dict[socket.socket, _Client] = {}
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._listener = socket.create_server(address, family=family, backlog=_MOST_CLIENTS)
        except OSError as fault:
            host, port = address
            raise IoFailure(
                f"cannot listen on {_shown(host, port)}: {os.strerror(fault.errno or 0)}; name an address of this node and a free port"
                " with --listen"
            ) from None
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self.url = f"http://{_shown(address[0], self._listener.getsockname()[1])}"

    def close(self) -> None:
        for client in list(self._clients):
            self._drop(client)
        self._selector.unregister(self._listener)
        self._listener.close()

    def expire(self) -> None:
        """Send clients away that have said nothing for too long."""
        now = monotonic()
        for client in [c for c, state in self._clients.items() if state.deadline < now]:
            self._drop(client)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # it has gone away already
        client.setblocking(False)
        if len(self._clients) >= _MOST_CLIENTS:
            self._drop(min(self._clients, key=lambda c: self._clients[c].deadline))
        self._clients[client] = _Client(monotonic() + _CLIENT_SECONDS)
        self._selector.register(client, selectors.EVENT_READ, lambda: self._serve(client))

    def _serve(self, client: socket.socket) -> None:
        state = self._clients.get(client)
        if state is None:
            return  # it has just been sent away
        try:
            if state.reply is None:
                data = client.recv(4096)
                state.request += data
                complete = b"\r\n\r\n" in state.request or b"\n\n" in state.request
                if not complete and data and len(state.request) < _REQUEST_BYTES:
                    return
                if not data and not complete:
                    self._drop(client)
                    return
                state.reply = self._answer(state.request)
                self._selector.modify(client, selectors.EVENT_WRITE, lambda: self._serve(client))
            state.reply = state.reply[client.send(state.reply) :]
        except BlockingIOError:
            return
        except OSError:  # it has gone away: nobody is left to be told
            self._drop(client)
            return
        if not state.reply:
            self._drop(client)

    def _answer(self, request: bytes) -> bytes:
        words = request.partition(b"\n")[0].decode("latin-1").split()
        kind = TEXT
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            status, text = 400, "want an HTTP request"
        elif words[0] not in ("GET", "HEAD"):
            status, text = 405, "want GET"
        elif page := self._pages.get(words[1].partition("?")[0]):
            status, kind, text = page()
        else:
            status, text = 404, f"want {', '.join(self._pages)}"
        body = (text if text.endswith("\n") else f"{text}\n").encode("utf-8", "replace")
        head = (
            f"HTTP/1.0 {status} {_REASONS[status]}\r\nServer: railcni/{VERSION}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode()
        return head + (body if words[:1] != ["HEAD"] else b"")

    def _drop(self, client: socket.socket) -> None:
        self._selector.unregister(client)
        del self._clients[client]
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        client.close()


class _Client:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.request = b""
        self.reply: bytes | None = None


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
