"""An HTTP/1.1 server on loopback, which the test servers have in common: it keeps connections and logs nothing."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Headers(dict[str, str]):
    """The headers of a request, by names of any case."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class Handler(BaseHTTPRequestHandler):
    """Answers each request by `answer`, which a subclass has."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    headers: Headers  # type: ignore[assignment]
    raw_requestline: bytes  # as the standard library reads it

    def parse_request(self) -> bool:
        """Read the request line and the headers; the standard library reads them by its parser of e-mail, which takes longer
        than all that a test server does."""
        self.requestline = self.raw_requestline.decode("latin-1").rstrip("\r\n")
        words = self.requestline.split()
        if len(words) != 3 or words[2] != "HTTP/1.1":
            return super().parse_request()
        self.command, self.path, self.request_version = words
        self.headers = Headers()
        while line := self.rfile.readline().decode("latin-1").rstrip("\r\n"):
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self.close_connection = self.headers.get("Connection", "").lower() == "close"
        return True

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self) -> None:
        raise NotImplementedError

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = lambda self: self.answer()

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(
        self,
        status: int,
        data: bytes,
        kind: str = "application/json",
        *headers: tuple[str, str],
        sent: int | None = None,
    ) -> None:
        """Answer with `data`, of which the first `sent` bytes are sent."""
        reason = HTTPStatus(status).phrase
        lines = [f"{name}: {value}\r\n" for name, value in (("Content-Type", kind), *headers)]
        head = f"HTTP/1.1 {status} {reason}\r\nContent-Length: {len(data)}\r\n{''.join(lines)}\r\n"
        self.wfile.write(head.encode() + data[:sent])


class Server(ThreadingHTTPServer):
    """`with Server(handler) as server`: it serves at 127.0.0.1:`server.server_port` until then or `close`."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handler: type[Handler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def handle_error(self, *arguments: object) -> None:
        pass  # the client has gone

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
