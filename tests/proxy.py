"""A TCP proxy that does to a connection what networks do: it loses replies, loses requests, holds them back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

_QUIET = 0.3  # seconds: an answer is whole when no more has come for so long


class Proxy:
    """`with Proxy(port) as proxy`: connections to `proxy.port` reach 127.0.0.1:`port`, or another `host`: the `target`. It
    listens `at` an address; `connect` is how the target is reached, from another network namespace for one.

    `fault(data)` is asked for each piece that a client sends: "" passes it on; "reply" passes it on, and cuts the
    connection when the answer comes; "request" cuts the connection without passing it on; "hold" keeps it until `let_go`.
    """

    def __init__(
        self,
        port: int,
        fault: Callable[[bytes], str] = lambda data: "",
        host: str = "127.0.0.1",
        at: tuple[str, int] = ("127.0.0.1", 0),
        connect: Callable[[tuple[str, int]], socket.socket] = socket.create_connection,
    ) -> None:
        self.target = (host, port)
        self.fault = fault
        self._held = threading.Event()
        self.holds = threading.Event()  # set once something is held back
        self.done = threading.Event()  # set once what was held back has been answered
        self._connect = connect
        self._server = socket.create_server(at)
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = [self._server]

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.set()
        end(self._open)

    def let_go(self) -> None:
        self._held.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = self._connect(self.target)
            for end in (client, server):  # or an answer in two pieces takes 40 ms: the second awaits a delayed ACK
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [client, server]
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        losing, held = threading.Event(), threading.Event()
        threading.Thread(target=self._answer, args=(client, server, losing, held), daemon=True).start()
        try:
            while data := client.recv(1 << 20):
                fault = self.fault(data)
                if fault == "request":
                    break
                if fault == "hold":
                    self.holds.set()
                    self._held.wait(30)
                    held.set()
                if fault == "reply":
                    losing.set()
                server.sendall(data)
                if fault == "hold":
                    self.done.wait(10)  # the client may have gone, and what follows would cut off the answer
        except OSError:
            pass
        _shut(client, server)

    def _answer(
        self, client: socket.socket, server: socket.socket, losing: threading.Event, held: threading.Event
    ) -> None:
        """Pass on what the server says, until a reply is to be lost."""
        try:
            while data := server.recv(1 << 20):
                if losing.is_set() or held.is_set():
                    server.settimeout(_QUIET)
                if not losing.is_set():
                    client.sendall(data)
        except OSError:
            pass
        if held.is_set():
            self.done.set()
        _shut(client, server)


def _shut(*sockets: socket.socket) -> None:
    for s in sockets:
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def end(sockets: Sequence[socket.socket]) -> None:
    """Close `sockets`, and end what other threads do with them."""
    _shut(*sockets)
    for s in sockets:
        s.close()
