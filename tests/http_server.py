"""An HTTP/1.1 server on loopback, which the test servers have in common: it keeps connections and logs nothing."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers each request by `answer`, which a subclass has."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self) -> None:
        raise NotImplementedError

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = lambda self: self.answer()

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, data: bytes, kind: str = "application/json", *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for header in (("Content-Type", kind), ("Content-Length", str(len(data))), *headers):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(data)


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
