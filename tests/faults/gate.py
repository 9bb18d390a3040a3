"""A gate before the server that keeps leases: every request of a node passes it, and is served, answered or cut as asked.

It listens in the node's network namespace, at the same port in every node; the server is outside."""

import http.client
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.trace import Call
from tests.view import View

CUT, RESET = "cut", "reset"  # the connection ends, in order or not, in place of an answer
REQUEST = "request"  # the name of the points of a sweep that are requests
_SECONDS = 30.0
_CHANGES = ("request_put", "request_delete_range", "request_txn")  # operations of etcd
_NO_LINGER = struct.pack("ii", 1, 0)

Answer = tuple[int, bytes]
Serve = Callable[[], Answer]


@dataclass(frozen=True)
class Request:
    """The `number`-th since the gate was told to count."""

    number: int
    method: str
    target: str
    body: bytes

    @property
    def changes(self) -> bool:
        """Whether it changes a lease, or forbids one."""
        if self.target == "/v3/kv/txn":
            asked = json.loads(self.body)
            return any(
                kind in _CHANGES for branch in ("success", "failure") for op in asked.get(branch, ()) for kind in op
            )
        return self.method != "GET"

    def call(self) -> Call:
        """The request as a point of a sweep."""
        where = f"{self.method} {self.target.partition('?')[0].rpartition('/namespaces/')[2]}"
        body = self.body.decode(errors="replace").replace('"', "'")  # in quotes a point has the path that an open names
        return Call(REQUEST, self.number, f"{where} {body}", str(self.changes), where)


Fault = Callable[[Request, Serve], Answer | str]


def no_fault(request: Request, serve: Serve) -> Answer | str:
    return serve()


class Gate:
    """Listens at `port` in the namespace of `view`, for the server at 127.0.0.1:`target`; `close` ends it."""

    def __init__(self, view: View, port: int, target: int) -> None:
        self._view, self._port, self._target = view, port, target
        self._lock = threading.Lock()
        self._clients: dict[socket.socket, bool] = {}  # whether a request of theirs is being served
        self._listener: socket.socket | None = None
        self.holds = False  # what is being served now is not waited for
        self.begin()
        self.open()

    def begin(self, fault: Fault = no_fault) -> None:
        """Count again, from 1."""
        self.fault = fault
        self.seen: list[Request] = []

    def open(self) -> None:
        with self._view.entered():
            self._listener = socket.create_server(("127.0.0.1", self._port), backlog=128)
        self._listener.setblocking(False)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections, and end those that there are."""
        with self._lock:
            listener, self._listener = self._listener, None
            for client in self._clients:
                _shut(client)
        if listener:
            _shut(listener)
            listener.close()

    def quiet(self) -> None:
        """Wait until all that was sent has been served, also by processes that have ended."""
        deadline = time.monotonic() + _SECONDS
        while not self._is_quiet():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server has not answered: {self.seen[-3:]}")
            time.sleep(0.001)

    def _is_quiet(self) -> bool:
        with self._lock:
            if not self.holds and any(self._clients.values()):
                return False
            waiting = [client for client, busy in self._clients.items() if not busy]
            waiting += [self._listener] if self._listener else []
            return not select.select(waiting, [], [], 0)[0]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                select.select([listener], [], [])
                with self._lock:
                    client, _ = listener.accept()
                    self._clients[client] = False
            except BlockingIOError:
                continue
            except (OSError, ValueError):  # it was closed
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def _attend(self, client: socket.socket) -> None:
        server = http.client.HTTPConnection("127.0.0.1", self._target, timeout=_SECONDS)
        answer: Answer | str = CUT
        try:
            while head := self._head(client):
                method, target, headers, body = head
                with self._lock:
                    request = Request(len(self.seen) + 1, method, target, body)
                    self.seen.append(request)
                answer = self.fault(request, lambda r=request, h=headers: self._passed_on(server, r, h))
                if isinstance(answer, str):
                    break
                client.sendall(_reply(*answer))
                with self._lock:
                    self._clients[client] = False
        except (OSError, ValueError, http.client.HTTPException):
            pass
        finally:
            server.close()
            with self._lock:
                del self._clients[client]
            if answer == RESET:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            client.close()

    def _head(self, client: socket.socket) -> tuple[str, str, dict[str, str], bytes] | None:
        """Method, target, headers and body of the next request; None at the end. From its first byte on it is busy."""
        data = b""
        while b"\r\n\r\n" not in data:
            if not (piece := self._piece(client)):
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            if not (piece := self._piece(client)):
                return None
            body += piece
        method, target, _ = first.split(" ")
        return method, target, headers, body

    def _piece(self, client: socket.socket) -> bytes:
        select.select([client], [], [])
        with self._lock:
            data = client.recv(1 << 20)
            self._clients[client] = True
        return data

    def _passed_on(self, server: Any, request: Request, headers: dict[str, str]) -> Answer:
        kept = {name: value for name, value in headers.items() if name not in ("host", "content-length")}
        server.request(request.method, request.target, request.body, kept)
        reply = server.getresponse()
        return reply.status, reply.read()


def _reply(status: int, body: bytes) -> bytes:
    """It is sent as one piece: each run then reads it by as many calls. tests.faults.trace knows it by its first bytes."""
    head = f"HTTP/1.1 {status} {http.client.responses.get(status, '')}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _shut(s: socket.socket) -> None:
    try:
        s.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
