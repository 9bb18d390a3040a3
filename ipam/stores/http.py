"""HTTP/1.1 over `_socket` and `_ssl`: one connection, kept for all requests of a call.

Imports of `http.client` and `ssl` cost a process 21 ms, these two C modules 4, and without TLS nothing. A reply's body has
a Content-Length, comes in chunks, or ends with the connection; there are no redirects, proxies or compression. Every wait
has an end, and so has what a server may send in reply to a request: _MOST_BYTES, and lines of _MOST_LINES bytes.
"""

from __future__ import annotations

import _socket
import errno
import posix
import select
from time import monotonic
from typing import TYPE_CHECKING

from cni import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from cni.shared.spec.errors import CniError

AGENT = f"railcni/{VERSION}"  # Kubernetes notes the part before the / as a field's manager

_MOMENT = 0.25  # seconds for a place that others come after
_MOST_BYTES = 64 << 20  # of the body of a reply
_MOST_LINES = (
    1 << 18
)  # bytes of the other lines of a reply: heads, also those of interim replies, sizes of chunks, trailers
_PIECE = 1 << 14  # bytes; each line copies what is left of one
_LONGEST_LINE = 1 << 16
_MOST_KEPT, _KEPT_SECONDS = 4, 30.0  # servers close what is idle after a minute and more
_PROTOCOL_TLS_CLIENT = 16  # it verifies the certificate and the host name unless told otherwise


class _Socket(_socket.socket):
    """A socket that `_ssl` can refer to, and that may be forgotten: it is closed then."""

    __slots__ = ("__weakref__",)

    def __del__(self) -> None:
        self.close()


class Lost(OSError):
    """A request was sent, at least in part, and no whole reply came: the server may have served it."""


class _Ended(ConnectionResetError):
    """The other side has closed the connection."""


class Refused(OSError):
    """No place accepts a connection; `reasons` has a text for each."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(errno.ECONNREFUSED, "; ".join(reasons))
        self.reasons = reasons


class Untrusted(OSError):
    """TLS: one side does not accept the other; `by_peer`: the server does not accept us."""

    def __init__(self, reason: str, by_peer: bool) -> None:
        super().__init__(errno.EACCES, reason)
        self.by_peer = by_peer


def tls_context(authority: str, certificate: str, key: str) -> Any:
    """The context of TLS connections, from PEM files; "" for the system's authorities or for no client certificate.

    ValueError names the file that cannot be used.
    """
    import _ssl

    context = _ssl._SSLContext(_PROTOCOL_TLS_CLIENT)
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


kept: dict[Any, Connection] | None = None
"""The open connections of a warm worker, by the keys for their use; None in a process that serves one call."""
at_end: list[Callable[[], None]] = []
"""A warm worker calls these functions when a call is over: each keeps or closes a connection."""


class Connection:
    """A connected socket, with TLS when there is a `context`, which `dial` made for `host`."""

    __slots__ = ("_buffer", "_host", "_lines", "_socket", "_tls", "answers", "at", "retry_after", "reused", "used")

    def __init__(self, socket: Any, host: str, context: Any, deadline: float) -> None:
        """Untrusted or OSError when TLS fails; the socket is closed then."""
        self._socket = socket
        self._host = host if ":" not in host else f"[{host}]"
        self._buffer = b""
        self._lines = 0  # bytes of the lines of the reply so far
        self._tls: Any = None
        self.at = 0  # index of its endpoint, for a client that has several
        self.reused = False
        self.answers = context is not None  # whether the other side has said anything, to TLS at least
        self.used = 0.0  # when it was kept
        self.retry_after = 0  # seconds that the last reply asks to wait for before another request
        if context:
            try:
                self._tls = context._wrap_socket(socket, False, host)
                self._wait(deadline)
                self._tls.do_handshake()
            except OSError as fault:
                socket.close()
                fault = _tls_fault(fault)
                if isinstance(fault, Untrusted):
                    raise fault from None
                why = _why(fault)
                if not isinstance(fault, TimeoutError) and (not getattr(fault, "reason", None) or " eof " in why):
                    why = "it closes the connection in the TLS handshake: does it speak TLS?"
                raise OSError(fault.errno, why) from None

    def request(self, method: str, target: str, headers: str, body: bytes, deadline: float) -> tuple[int, bytes]:
        """(status, body) of the reply. `headers` are whole lines. Lost, Untrusted; the connection is closed then."""
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: {AGENT}\r\n{headers}"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        try:
            self._send(head.encode("latin-1") + body, deadline)
            self._lines = 0
            status, fields = self._head(deadline)
            while status // 100 == 1:
                status, fields = self._head(deadline)
            reply = self._body(fields, deadline)
        except OSError as fault:
            raise self.lost(fault) from None
        except ValueError:
            self.close()
            raise Lost(errno.EPROTO, "the reply is not HTTP") from None
        self.reused = self.answers = True
        asked = fields.get("retry-after", "")
        self.retry_after = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
        # no request asked for what is left in the buffer
        if fields.get("connection", "").lower() == "close" or self._buffer:
            self.close()
        return status, reply

    def lost(self, fault: OSError) -> OSError:
        """The connection is closed: what a `fault` of it is to the caller, Untrusted or Lost."""
        self.close()
        fault = _tls_fault(fault)
        if isinstance(fault, Untrusted):
            return fault
        why = _why(fault)
        if fault.errno == errno.ECONNRESET and not self.reused and not self._tls:
            why += " (does it want TLS, https://?)"
        return Lost(fault.errno, why)

    def is_silent(self) -> bool:
        """Whether nothing has come since the last reply, not even the end of the connection."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not self._buffer and not poll.poll(0)

    @property
    def closed(self) -> bool:
        return bool(self._socket.fileno() < 0)

    def close(self) -> None:
        self._socket.close()

    def _wait(self, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        self._socket.settimeout(left)

    def _send(self, data: bytes, deadline: float) -> None:
        if not self._tls:
            self._wait(deadline)
            self._socket.sendall(data)
            return
        while data:
            self._wait(deadline)
            data = data[self._tls.write(data) :]

    def _more(self, deadline: float) -> None:
        self._wait(deadline)
        piece = self._tls.read(_PIECE) if self._tls else self._socket.recv(_PIECE)
        if not piece:
            raise _Ended(errno.ECONNRESET, "the connection was closed")
        self._buffer += piece

    def _line(self, deadline: float) -> str:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _LONGEST_LINE:
                raise ValueError
            self._more(deadline)
        self._lines += end + 1
        if self._lines > _MOST_LINES:
            raise _too_much(_MOST_LINES, "headers and sizes of chunks")
        line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
        return line.decode("latin-1").rstrip("\r")

    def _exactly(self, size: int, deadline: float, most: int = _MOST_BYTES) -> bytes:
        if size < 0:
            raise ValueError
        if size > most:
            raise _too_much(_MOST_BYTES, "data")
        pieces, have = [self._buffer], len(self._buffer)
        while have < size:
            self._buffer = b""
            self._more(deadline)
            pieces.append(self._buffer)
            have += len(self._buffer)
        data = b"".join(pieces)
        self._buffer = data[size:]
        return data[:size]

    def _head(self, deadline: float) -> tuple[int, dict[str, str]]:
        version, status, *_ = *self._line(deadline).split(" ", 2), ""
        if not version.startswith("HTTP/1."):
            raise ValueError
        return int(status), self._fields(deadline)

    def _fields(self, deadline: float) -> dict[str, str]:
        fields = {}
        while line := self._line(deadline):
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        return fields

    def _body(self, fields: dict[str, str], deadline: float) -> bytes:
        if fields.get("transfer-encoding", "").lower() == "chunked":
            chunks = []
            left = _MOST_BYTES
            while size := int(self._line(deadline).partition(";")[0], 16):
                chunks.append(self._exactly(size, deadline, left))
                left -= size
                if self._line(deadline):
                    raise ValueError
            self._fields(deadline)  # trailers
            return b"".join(chunks)
        if "content-length" in fields:
            return self._exactly(int(fields["content-length"]), deadline)
        pieces, have = [self._buffer], len(self._buffer)
        try:
            while have <= _MOST_BYTES:
                self._buffer = b""
                self._more(deadline)
                pieces.append(self._buffer)
                have += len(self._buffer)
        except _Ended:
            self.close()
            return b"".join(pieces)
        raise _too_much(_MOST_BYTES, "data")


class Endpoint:
    """Where a server listens. `base` begins the path of every request."""

    __slots__ = ("base", "host", "port", "tls")

    def __init__(self, text: str, tls: bool, ports: tuple[int, int]) -> None:
        """`text` is [scheme://]host[:port][/path]. `tls` counts where the scheme is absent, and one of `ports`, without and
        with TLS, where the port is. ValueError."""
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

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"


class Failed(Exception):
    """An attempt failed, and another may succeed; `failure` is the error when none does; `sent`: it may have been served."""

    def __init__(self, failure: CniError, sent: bool = False) -> None:
        self.failure = failure
        self.sent = sent


class Client:
    """The one connection of a client, which a warm worker keeps for its next call.

    `seconds` bound each request with all its attempts, and `deadline` (time.monotonic) bounds all requests. `hurries`: a
    connection that cannot be made is not tried again.
    """

    __slots__ = ("_connection", "_context", "_kept_as", "deadline", "hurries", "seconds")

    def __init__(self, seconds: float) -> None:
        self._connection: Connection | None = None
        self._context: Any = None  # of TLS
        self._kept_as: Any = None
        self.seconds = seconds
        self.deadline = float("inf")
        self.hurries = False

    @property
    def within(self) -> str:
        """How long a connection was tried, for a message."""
        return "" if self.hurries else f" within {self.seconds:g} s"

    def unreached(self, failure: CniError) -> Exception:
        """What to raise when no connection can be made: Failed, and where it hurries `failure`."""
        return failure if self.hurries else Failed(failure)

    def close(self) -> None:
        """Close the connection, or keep it for the next call."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if kept is None or self._kept_as is None or not connection.reused or connection.closed:
            connection.close()
            return
        while len(kept) >= _MOST_KEPT:
            kept.pop(next(iter(kept))).close()
        connection.used = monotonic()
        kept[self._kept_as] = connection

    def drop(self) -> None:
        """Close the connection for good."""
        self._kept_as = None
        self.close()

    def kept(self, key: Callable[[], Any]) -> Connection | None:
        """The connection, or the one that an earlier call has kept under `key`; None when neither serves.

        `key` reads all that a connection is made with; OSError and ValueError come again when one is made.
        """
        if self._connection is None or self._connection.closed:
            self._connection = None
            if kept is not None:
                try:
                    self._kept_as = key()
                except (OSError, ValueError):
                    self._kept_as = None
                at_end.append(self.close)
                found = kept.pop(self._kept_as, None)
                if found and found.is_silent() and monotonic() - found.used < _KEPT_SECONDS:
                    self._connection = found
                elif found:
                    found.close()
        return self._connection


def dial(places: Sequence[tuple[str, int]], seconds: float) -> tuple[int, Any]:
    """(index of the place, connected socket): the first of `places`, a host and a port each, that accepts.

    It tries all in their order for a moment each, so that a dead machine costs that moment alone, and then the silent ones
    for the rest of the time. Refused after `seconds`, or when all have refused.
    """
    deadline = monotonic() + seconds
    reasons = ["did not answer"] * len(places)
    left = list(_candidates(places, reasons))
    for patience in (_MOMENT, seconds / max(len(left), 1)):
        silent = []
        for index, entry in left:
            wait = min(patience, deadline - monotonic())
            try:
                return index, _connected(entry, max(wait, 0.01))
            except TimeoutError:
                silent.append((index, entry))
            except OSError as fault:
                reasons[index] = _why(fault)
        left = silent
    raise Refused(reasons)


def _candidates(places: Sequence[tuple[str, int]], reasons: list[str]) -> Iterator[tuple[int, Any]]:
    for index, (host, port) in enumerate(places):
        try:
            found = _socket.getaddrinfo(host.encode(), port, 0, _socket.SOCK_STREAM)  # a str loads the codec IDNA
        except OSError as fault:
            reasons[index] = f"the name cannot be resolved: {_why(fault)}"
            continue
        for entry in found:
            yield index, entry


def _connected(entry: Any, seconds: float) -> Any:
    family, kind, protocol, _, address = entry
    socket = _Socket(family, kind | _socket.SOCK_CLOEXEC, protocol)
    try:
        socket.settimeout(seconds)
        socket.connect(address)
        socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    except BaseException:
        socket.close()
        raise
    return socket


def _too_much(most: int, of: str) -> OSError:
    return OSError(errno.EMSGSIZE, f"its reply has more than {most >> 10} KiB of {of}")


def _tls_fault(fault: OSError) -> OSError:
    """Untrusted for what TLS says of certificates, else `fault`."""
    reason = str(getattr(fault, "reason", None) or "")
    verify = getattr(fault, "verify_message", None)
    if verify:
        return Untrusted(str(verify), False)
    if "ALERT" in reason and any(w in reason for w in ("CERT", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE")):
        return Untrusted(reason.partition("ALERT_")[2].replace("_", " ").lower(), True)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return Untrusted("the server does not speak TLS", False)
    return fault


def _why(fault: OSError) -> str:
    """A fault in words, without Python's."""
    reason = getattr(fault, "reason", None)
    if reason:
        return str(reason).replace("_", " ").lower()
    if fault.strerror:
        return fault.strerror
    if isinstance(fault, TimeoutError):
        return "timed out"
    return posix.strerror(fault.errno) if fault.errno else str(fault)
