"""HTTP/1.1 by `http.client` and `ssl`: one connection, kept for all requests of a call.

`http.client` reads the replies. This module adds limits: a deadline for every wait, a largest size of a reply, and a
largest size of its header lines, chunk sizes and trailers together. The module does not support redirects, proxies or
compression.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from http.client import HTTPException, HTTPResponse
from time import monotonic
from typing import Any

from cni import VERSION
from cni.shared.spec.errors import CniError
from ipam.stores import base

AGENT = f"railcni/{VERSION}"  # Kubernetes takes the part before the / as the field manager

_MOMENT = 0.25  # seconds for each host and port in the first round of `dial`
_MOST_BYTES = 64 << 20  # of a reply
_AT_ONCE = 1 << 16  # bytes that are received at once
_MOST_LINES = 1 << 18  # bytes of a reply's lines: headers, also of interim replies, sizes of chunks, and trailers
_MOST_KEPT, _KEPT_SECONDS = 4, 30.0  # connections; servers close an idle connection after a minute or more


class _Socket(socket.socket):
    """A socket that closes without a ResourceWarning when it is garbage-collected: no caller needs to close a store."""

    def __del__(self) -> None:
        self.close()


class _TlsSocket(ssl.SSLSocket):
    """A `_Socket` with TLS."""

    def __del__(self) -> None:
        self.close()


class ConnectionLost(OSError):
    """A request was sent at least in part, but no complete reply came. The server may have served the request."""


class Refused(OSError):
    """No place (host, port) that `dial` tried accepts a connection. `reasons` has a text for each place."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(errno.ECONNREFUSED, "; ".join(reasons))
        self.reasons = reasons


class Untrusted(OSError):
    """One side of a TLS connection rejects the other. If `by_peer` is true, the server rejects the client."""

    def __init__(self, reason: str, by_peer: bool) -> None:
        super().__init__(errno.EACCES, reason)
        self.by_peer = by_peer


def tls_context(authority: str, certificate: str, key: str) -> Any:
    """The SSLContext from the paths of three PEM files. If `authority` is "", the system's authorities are used. If
    `certificate` is "", there is no client certificate. Raises ValueError with the path of a file that cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = _TlsSocket
    try:
        if authority:
            context.load_verify_locations(authority)
        else:
            context.set_default_verify_paths()
    except OSError as fault:
        raise ValueError(f"{authority} cannot be used: {_why(fault)}") from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, b"")  # b"": never ask a terminal for a pass phrase
        except OSError as fault:
            raise ValueError(
                f"{certificate} with the key {key or 'in it'} cannot be used: {_why(fault)}; want PEM files that belong"
                " together, the key without a pass phrase"
            ) from None
    return context


class _Replies:
    """A reader of replies, with the methods that HTTPResponse calls on a socket's file. Raises ConnectionResetError
    when the connection closes within a line or a body of known size."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.unread = bytearray()

    def begin(self, deadline: float) -> None:
        """Begin a reply, which must be read by `deadline`."""
        self._deadline, self._bytes, self._lines = deadline, 0, 0

    def readline(self, size: int) -> bytes:
        while (at := self.unread.find(b"\n", 0, size)) < 0 and len(self.unread) < size:
            self._receive()
        line = self._take(at + 1 or size)
        self._lines += len(line)
        if self._lines > _MOST_LINES:
            raise _too_much(_MOST_LINES, "headers and sizes of chunks")
        return line

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes. If `size` is -1, all bytes until the connection closes."""
        if size > _MOST_BYTES:
            raise _too_much(_MOST_BYTES, "data")
        if size < 0:
            while self._receive(may_end=True):
                pass
            size = len(self.unread)
        while len(self.unread) < size:
            self._receive()
        return self._take(size)

    def close(self) -> None:
        """Do nothing. `http.client` closes its file after each reply, but this reader also serves later replies."""

    def _receive(self, may_end: bool = False) -> bool:
        """Wait for bytes. When the connection closes, return False if `may_end`, else raise ConnectionResetError."""
        _wait(self._socket, self._deadline)
        data = self._socket.recv(_AT_ONCE)
        if not data and not may_end:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        self.unread += data
        self._bytes += len(data)
        if self._bytes > _MOST_BYTES:
            raise _too_much(_MOST_BYTES, "data")
        return bool(data)

    def _take(self, size: int) -> bytes:
        data = bytes(self.unread[:size])
        del self.unread[:size]
        return data


class Connection:
    """An HTTP connection to `host` through `connected`, a socket from `dial`; with TLS unless `context` is None."""

    def __init__(self, connected: socket.socket, host: str, context: Any, deadline: float) -> None:
        """Do the TLS handshake by `deadline`. Raises Untrusted or OSError when it fails, and closes the socket."""
        self._socket = connected
        self._host = host if ":" not in host else f"[{host}]"
        self._tls = context is not None
        self.at = 0  # index of the endpoint, for a client with several endpoints
        self.reused = False
        self.answers = self._tls  # whether the server has sent a reply, or done a TLS handshake
        self.used = 0.0  # time.monotonic when the connection was kept
        self.retry_after = 0  # the Retry-After of the last reply, in seconds
        if context:
            try:
                self._socket = context.wrap_socket(
                    connected,
                    do_handshake_on_connect=False,
                    suppress_ragged_eofs=False,
                    server_hostname=host.encode(),  # a str loads the codec IDNA
                )
                _wait(self._socket, deadline)
                self._socket.do_handshake()  # type: ignore[attr-defined]
            except OSError as fault:
                self._socket.close()
                _refuse_untrusted(fault)
                why = _why(fault)
                if not isinstance(fault, TimeoutError) and (not getattr(fault, "reason", None) or " eof " in why):
                    why = "it closes the connection in the TLS handshake: does it speak TLS?"
                raise OSError(fault.errno, why) from None
        self._replies = _Replies(self._socket)

    def makefile(self, _mode: str) -> _Replies:
        """The reader of replies. HTTPResponse gets this connection in place of a socket, and calls this method."""
        return self._replies

    def request(self, method: str, target: str, headers: str, body: bytes, deadline: float) -> tuple[int, bytes]:
        """Send a request with the lines `headers`. Returns (status, body). Raises ConnectionLost or Untrusted."""
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: {AGENT}\r\n{headers}"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        try:
            left = memoryview(head.encode("latin-1") + body)
            while left:
                _wait(self._socket, deadline)
                left = left[self._socket.send(left) :]
            self._replies.begin(deadline)
            reply = HTTPResponse(self, method=method)  # type: ignore[arg-type]
            reply.begin()
            while reply.status // 100 == 1:  # http.client skips only 100
                reply.headers = None  # type: ignore[assignment]
                reply.begin()
            if reply.length is None and not reply.chunked and "content-length" in reply.headers:
                raise ValueError  # http.client would read until the end
            data = reply.read()
        except OSError as fault:
            raise self.lost(fault) from None
        except (HTTPException, ValueError):
            self.close()
            raise ConnectionLost(errno.EPROTO, "the reply is not HTTP") from None
        self.reused = self.answers = True
        asked = reply.headers.get("retry-after", "")
        self.retry_after = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
        if self._replies.unread or reply.will_close:  # bytes after a reply belong to no request
            self.close()
        return reply.status, data

    def lost(self, fault: OSError) -> ConnectionLost:
        """Close the connection after `fault`. Returns the error to raise. Raises Untrusted if a side rejected TLS."""
        self.close()
        _refuse_untrusted(fault)
        why = _why(fault)
        if fault.errno == errno.ECONNRESET and not self.reused and not self._tls:
            why += " (does it want TLS, https://?)"
        return ConnectionLost(fault.errno, why)

    def is_silent(self) -> bool:
        """Whether the connection is still open, and no data has come since the last reply."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()


class ServerAddress:
    """The address at which a server listens. `base` is the path prefix of every request."""

    def __init__(self, text: str, tls: bool, ports: tuple[int, int]) -> None:
        """`text` is [scheme://]host[:port][/path]. Without a scheme, `tls` tells whether to use TLS. `ports` are the
        default ports (without TLS, with TLS). Raises ValueError for any other text."""
        scheme, found, rest = text.rpartition("://")
        if found and scheme not in ("http", "https"):
            raise ValueError("want http:// or https://")
        place, slash, path = rest.partition("/")
        if place.startswith("["):
            host, closed, port = place[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                raise ValueError("want [address]:port")
            port = port[1:]
        else:
            host, port = (place, "") if place.count(":") > 1 else place.partition(":")[::2]
        if not host or not text.isascii() or any(c in text for c in " @?#\t\r\n"):
            raise ValueError("want host:port, such as 10.0.0.1:2379")
        if port and not (port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("want a port from 1 to 65535")
        self.tls = scheme == "https" if scheme else tls
        self.host = host
        self.port = int(port or ports[self.tls])
        self.base = (slash + path).rstrip("/")
        self.verified_name = host  # the name in the server's certificate

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"


class Failed(Exception):
    """A failed attempt, which may be repeated. `failure` is the error to raise if no attempt succeeds. If `sent` is
    true, the server may have served the request."""

    def __init__(self, failure: CniError, sent: bool = False) -> None:
        self.failure = failure
        self.sent = sent


class Client:
    """A client with one connection, which a warm worker keeps for its next call.

    `seconds` is the most time for one request with all its attempts; 0 means SHARED_SECONDS. `deadline` is the
    time.monotonic() at which all requests must have ended. If `hurries` is true, a failed connection is not repeated.
    """

    attempt_seconds = 10.0  # for one endpoint's reply
    handshake_seconds = float("inf")  # for one endpoint's TLS handshake

    def __init__(self, seconds: float) -> None:
        self._connection: Connection | None = None
        self._context: Any = None  # of TLS
        self._kept_as: Any = None
        self._at = 0  # index of the endpoint of the connection, or of the one to try first
        self.seconds = seconds or base.SHARED_SECONDS
        self.deadline = float("inf")
        self.hurries = False

    @property
    def within(self) -> str:
        """The text " within N s" for the message that no connection can be made; "" if `hurries` is true."""
        return "" if self.hurries else f" within {self.seconds:g} s"

    def unreachable(self, reasons: Sequence[tuple[ServerAddress, str]]) -> CniError:
        """The error when no connection can be made. `reasons` has a text for each endpoint."""
        raise NotImplementedError

    def untrusted(self, fault: Untrusted) -> CniError:
        """The error when one side of a TLS connection rejects the other."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection, or keep it for the next call."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if base.connections is None or self._kept_as is None or not connection.reused or connection.closed:
            connection.close()
            return
        while len(base.connections) >= _MOST_KEPT:
            base.connections.pop(next(iter(base.connections))).close()
        connection.used = monotonic()
        base.connections[self._kept_as] = connection

    def drop(self) -> None:
        """Close the connection for good."""
        self._kept_as = None
        self.close()

    def kept(self, key: Callable[[], Any]) -> Connection | None:
        """The open connection, or a usable connection that an earlier call of this process has kept; None without one.

        `key()` returns the key of a kept connection: the server's address and all certificates. If it returns None, or
        raises OSError or ValueError, no connection is kept. The next attempt to connect then reports the error.
        """
        if self._connection is None or self._connection.closed:
            self._connection = None
            if base.connections is not None:
                try:
                    self._kept_as = key()
                except (OSError, ValueError):
                    self._kept_as = None
                base.at_end.append(self.close)
                found = base.connections.pop(self._kept_as, None)
                if found and found.is_silent() and monotonic() - found.used < _KEPT_SECONDS:
                    self._connection, self._at = found, found.at
                elif found:
                    found.close()
        return self._connection

    def connect_to(
        self, endpoints: Sequence[ServerAddress], context: Callable[[ServerAddress], Any], deadline: float
    ) -> Connection:
        """Make a connection to one of `endpoints`. They are tried in turn, first the one that `move_on` has selected.

        `context` returns the SSLContext of an endpoint. Raises the error of `untrusted` if one side rejects the other,
        else Failed. If `hurries` is true, raises the error of `unreachable` instead of Failed.
        """
        turned = [*endpoints[self._at :], *endpoints[: self._at]]
        try:
            index, connected = dial([(e.host, e.port) for e in turned], max(0.1, deadline - monotonic()))
            self._at = (self._at + index) % len(endpoints)
            where = turned[index]
            limit = min(deadline, monotonic() + self.handshake_seconds)
            self._connection = Connection(connected, where.verified_name, context(where), limit)
            self._connection.at = self._at
            return self._connection
        except Untrusted as fault:
            self.drop()
            raise self.untrusted(fault) from None
        except Refused as fault:
            self._at = 0
            reasons = list(zip(turned, fault.reasons, strict=True))
        except OSError as fault:
            reasons = [(where, fault.strerror or str(fault))]
            self.move_on(endpoints)
        failure = self.unreachable(reasons)
        raise failure if self.hurries else Failed(failure)

    def move_on(self, endpoints: Sequence[ServerAddress]) -> None:
        """Close the connection for good, and select the next endpoint for the next connection."""
        self.drop()
        self._at = (self._at + 1) % len(endpoints)


def dial(places: Sequence[tuple[str, int]], seconds: float) -> tuple[int, socket.socket]:
    """Connect to the first of `places`, each (host, port), that accepts. Returns (index of the place, socket).

    The first round tries each place for at most 0.25 s, so that a dead machine does not delay the next place longer.
    The second round repeats the places that did not answer. Raises Refused after `seconds`, or when all places have
    refused.
    """
    deadline = monotonic() + seconds
    reasons = ["did not answer"] * len(places)
    left: list[Any] = []
    for index, (host, port) in enumerate(places):
        try:
            found = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)  # a str loads the codec IDNA
            left += [(index, *entry) for entry in found]
        except OSError as fault:
            reasons[index] = f"the name cannot be resolved: {_why(fault)}"
    for patience in (_MOMENT, seconds / max(len(left), 1)):
        tried, left = left, []
        for index, family, kind, protocol, name, address in tried:
            try:
                made = _Socket(family, kind, protocol)
                made.settimeout(max(min(patience, deadline - monotonic()), 0.01))
                made.connect(address)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return index, made
            except TimeoutError:
                left.append((index, family, kind, protocol, name, address))
            except OSError as fault:
                reasons[index] = _why(fault)
    raise Refused(reasons)


def _wait(connected: socket.socket, deadline: float) -> None:
    """Limit the socket's next operation to the time until `deadline`. Raises TimeoutError if no time is left."""
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError(errno.ETIMEDOUT, "timed out")
    connected.settimeout(left)


def _too_much(most: int, of: str) -> OSError:
    return OSError(errno.EMSGSIZE, f"its reply has more than {most >> 10} KiB of {of}")


def _refuse_untrusted(fault: OSError) -> None:
    """Raise Untrusted for a TLS fault that is about certificates, or about a peer without TLS."""
    reason = str(getattr(fault, "reason", None) or "")
    verify = getattr(fault, "verify_message", None)
    if verify:
        raise Untrusted(str(verify), False) from None
    if "ALERT" in reason and any(w in reason for w in ("CERT", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE")):
        raise Untrusted(reason.partition("ALERT_")[2].replace("_", " ").lower(), True) from None
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        raise Untrusted("the server does not speak TLS", False) from None


def _why(fault: OSError) -> str:
    """A fault as text, without the prefixes that Python adds."""
    reason = getattr(fault, "reason", None)
    if reason:
        return str(reason).replace("_", " ").lower()
    if fault.strerror:
        return fault.strerror
    if isinstance(fault, TimeoutError):
        return "timed out"
    return os.strerror(fault.errno) if fault.errno else str(fault)
