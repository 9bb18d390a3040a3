"""Requests to etcd's JSON gateway: endpoints, authentication, and what its errors mean.

The endpoints are tried in their order; one that fails is left for the next, and all of them again until the time is
over. A request that must not be made twice (`once`) is not repeated when its outcome is open: Open is raised.
"""

from __future__ import annotations

import errno
import posix
import time
from time import monotonic

from cni.spec import codec
from cni.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores import http
from ipam.stores.base import Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_PORT = 2379
_ATTEMPT_SECONDS = 3.0  # for one endpoint's reply: elections take one or two
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds
_HEADERS = "Content-Type: application/json\r\n"

# Codes of gRPC, in the member `code` of an error
_INVALID, _DENIED, _EXHAUSTED, _PRECONDITION, _DATA_LOSS, _UNAUTHENTICATED = 3, 7, 8, 9, 15, 16
_UNIMPLEMENTED = 12


class Open(Unreachable):
    """A request was sent and no answer came: whether it was carried out is open."""


class Endpoint:
    """Where a member of the cluster listens for clients."""

    __slots__ = ("host", "port", "tls")

    def __init__(self, host: str, port: int, tls: bool) -> None:
        self.host = host
        self.port = port
        self.tls = tls

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def endpoint(text: str, tls: bool) -> Endpoint:
    """`text` is host, host:port, [IPv6]:port or one of these behind http:// or https://, else `tls` decides; ValueError."""
    scheme, found, rest = text.strip().rpartition("://")
    if found:
        if scheme not in ("http", "https"):
            raise ValueError("want http:// or https://")
        tls = scheme == "https"
    rest = rest.rstrip("/")
    if rest.startswith("["):
        host, closed, port = rest[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            raise ValueError("want [address]:port")
        port = port[1:]
    elif rest.count(":") > 1:
        host, port = rest, ""
    else:
        host, _, port = rest.partition(":")
    if not host or any(c in host for c in "/@?# \t") or not host.isascii():
        raise ValueError("want host:port, such as 10.0.0.1:2379")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("want a port from 1 to 65535")
    return Endpoint(host, int(port or DEFAULT_PORT), tls)


class Gateway:
    """The gateway of one cluster. `seconds` bound each call, with all its attempts. Nothing is opened before it is needed.

    None takes longer than until `deadline` (time.monotonic), either.

    `tls` holds the paths of the authority's certificate, the client's certificate and its key.
    """

    __slots__ = (
        *("_at", "_connection", "_context", "_endpoints", "_password"),
        *("_refused", "_tls", "_token", "_user", "deadline", "seconds"),
    )

    def __init__(
        self, endpoints: list[Endpoint], tls: tuple[str, str, str], user: str, password: str, seconds: float
    ) -> None:
        self._endpoints = endpoints
        self._tls = tls
        self._user = user
        self._password = password
        self._token = ""
        self._refused = False  # whether etcd has refused a token
        self._context: Any = None
        self._connection: http.Connection | None = None
        self._at = 0  # index of the endpoint of the connection, or of the one to try first
        self.seconds = seconds
        self.deadline = float("inf")

    def call(self, method: str, document: dict[str, Any], once: bool = False) -> dict[str, Any]:
        """What the gateway answers to POST /v3/`method`.

        Unreachable when no endpoint serves in time; Open when it is open what became of a request that is made `once`;
        InvalidConfig for what must be corrected here or in etcd; TryAgainLater when etcd takes no more.
        """
        deadline = min(monotonic() + self.seconds, self.deadline)
        pause = _FIRST_PAUSE
        failure: CniError | None = None
        while True:
            try:
                return self._attempt(method, document, once, deadline)
            except _Failed as failed:
                if failure is None or monotonic() < deadline:  # what our own deadline cuts off tells no cause
                    failure = failed.failure
            if monotonic() + pause > deadline:
                raise failure
            time.sleep(pause * (0.5 + posix.urandom(1)[0] / 256))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def _attempt(self, method: str, document: dict[str, Any], once: bool, deadline: float) -> dict[str, Any]:
        """One attempt; _Failed with the error to raise when there is time for no other."""
        connection = self._connected(deadline)
        if self._user and not self._token:
            self._log_in(connection, deadline)
        try:
            return self._exchange(connection, method, document, deadline)
        except http.Lost as fault:
            lost = f"etcd at {self._where()} has not answered: {fault.strerror}"
            if fault.errno == errno.ECONNRESET and not connection.reused and not self._where().tls:
                lost += " (does it want TLS, https://?)"
            self._move_on()
            if once:
                raise Open(f"{lost}; see that the member is well") from None
            raise _Failed(self._unreachable([lost])) from None
        except _Unserved as fault:
            served = f"etcd at {self._where()} answers: {fault.said}"
            self._move_on()
            if once and fault.open:
                raise Open(f"{served}; see `etcdctl endpoint status`") from None
            raise _Failed(self._unreachable([served])) from None

    def _exchange(
        self, connection: http.Connection, method: str, document: dict[str, Any], deadline: float
    ) -> dict[str, Any]:
        headers = f"{_HEADERS}Authorization: {self._token}\r\n" if self._token else _HEADERS
        limit = min(deadline, monotonic() + _ATTEMPT_SECONDS)
        try:
            status, body = connection.request(
                "POST", f"/v3/{method}", headers, codec.dumps(document).encode(), max(limit, monotonic() + 0.1)
            )
        except http.Untrusted as fault:
            raise self._untrusted(fault) from None
        try:
            reply = codec.loads(body)
        except ValueError:
            reply = None
        if status == 200 and isinstance(reply, dict):
            return reply
        raise self._error(status, reply, body)

    def _connected(self, deadline: float) -> http.Connection:
        """The connection, or a new one; from the endpoint after the last that failed."""
        if self._connection and not self._connection.closed:
            return self._connection
        turned = [*self._endpoints[self._at :], *self._endpoints[: self._at]]
        left = max(0.1, deadline - monotonic())
        try:
            index, socket = http.dial([(e.host, e.port) for e in turned], left)
        except http.Refused as fault:
            self._at = 0
            raise _Failed(
                self._unreachable([f"{e}: {reason}" for e, reason in zip(turned, fault.reasons, strict=True)])
            ) from None
        self._at = (self._at + index) % len(self._endpoints)
        where = turned[index]
        try:
            limit = min(deadline, monotonic() + _ATTEMPT_SECONDS)
            self._connection = http.Connection(socket, where.host, self._tls_context() if where.tls else None, limit)
        except http.Untrusted as fault:
            raise self._untrusted(fault) from None
        except OSError as fault:
            lost = f"{where}: {fault.strerror or fault}"
            self._move_on()
            raise _Failed(self._unreachable([lost])) from None
        return self._connection

    def _tls_context(self) -> Any:
        if self._context is None:
            try:
                self._context = http.tls_context(*self._tls)
            except ValueError as fault:
                raise InvalidConfig(
                    f"the etcd store's {fault} (etcd_ca_cert_file, etcd_cert_file, etcd_key_file)"
                ) from None
        return self._context

    def _log_in(self, connection: http.Connection, deadline: float) -> None:
        """Take the token that an earlier call has left, unless it was refused, or get another."""
        from ipam.stores import etcd_tokens

        name = etcd_tokens.name_of(map(str, self._endpoints), self._user, self._password)
        if not self._refused:
            self._token = etcd_tokens.read(name)
        if not self._token:
            self._token = token = self._authenticate(connection, deadline)
            if token:
                etcd_tokens.write(name, token)

    def _authenticate(self, connection: http.Connection, deadline: float) -> str:
        """A new token; "" where etcd asks for none."""
        try:
            reply = self._exchange(
                connection, "auth/authenticate", {"name": self._user, "password": self._password}, deadline
            )
            return str(reply.get("token") or "")
        except http.Lost as fault:
            lost = f"etcd at {self._where()} has not answered: {fault.strerror}"
            self._move_on()
            raise _Failed(self._unreachable([lost])) from None
        except _Unserved as fault:
            if fault.code == _PRECONDITION:  # authentication is not enabled: no token is needed
                self._user = ""
                return ""
            served = f"etcd at {self._where()} answers: {fault.said}"
            self._move_on()
            raise _Failed(self._unreachable([served])) from None

    def _move_on(self) -> None:
        self.close()
        self._at = (self._at + 1) % len(self._endpoints)

    def _where(self) -> Endpoint:
        return self._endpoints[self._at]

    def _unreachable(self, reasons: list[str]) -> Unreachable:
        return Unreachable(
            f"etcd could not be reached within {self.seconds:g} s: {'; '.join(reasons)}. See that etcd runs and that"
            " etcd_host names its client endpoints",
            "\n".join(reasons),
        )

    def _untrusted(self, fault: http.Untrusted) -> CniError:
        self.close()
        where = self._where()
        if fault.by_peer:
            return InvalidConfig(
                f"etcd at {where} does not accept the client certificate {self._tls[1] or '(there is none)'}:"
                f" {fault.strerror}. etcd_cert_file and etcd_key_file must be signed by its --trusted-ca-file"
            )
        if "not speak TLS" in (fault.strerror or ""):
            return InvalidConfig(f"etcd at {where}: {fault.strerror}. Write http:// before it in etcd_host")
        return InvalidConfig(
            f"etcd at {where} is not trusted: {fault.strerror}. etcd_ca_cert_file"
            f" ({self._tls[0] or 'not set: the authorities of the system'}) must hold the authority that signed its"
            " certificate, and the certificate the host that etcd_host names"
        )

    def _error(self, status: int, reply: Any, body: bytes) -> Exception:
        """What to raise for a reply that is an error (etcd, api/v3rpc/rpctypes)."""
        where = self._where()
        if not isinstance(reply, dict) or "code" not in reply:
            said = body[:100].decode("utf-8", "replace").strip()
            if "HTTPS server" in said:
                return InvalidConfig(f"etcd at {where} wants TLS: write https:// before it in etcd_host")
            if status == 404:
                return InvalidConfig(
                    f"etcd at {where} has no JSON gateway at /v3: want etcd 3.4 or newer, with --enable-grpc-gateway, and"
                    " an endpoint for clients in etcd_host"
                )
            return _Unserved(-1, f"status {status}, {said}", True)
        code, said = reply["code"], str(reply.get("message") or reply.get("error"))
        said = said.removeprefix("etcdserver: ")
        user = f'user "{self._user}"' if self._user else "a request without a user"
        if code == _UNAUTHENTICATED or "user name is empty" in said or "auth store is old" in said:
            if self._token:  # it has expired; the next attempt gets another
                self._token, self._refused = "", True
                return _Unserved(code, said, False)
            return InvalidConfig(f"etcd at {where} asks for authentication: set etcd_username and etcd_password")
        if "authentication failed" in said:
            return InvalidConfig(f"etcd at {where} refuses {user}: {said}. Correct etcd_username and etcd_password")
        if code == _DENIED:
            return InvalidConfig(
                f"etcd at {where} denies {user} access: grant its role with `etcdctl role grant-permission ROLE --prefix=true"
                " readwrite PREFIX/`, PREFIX as in etcd_prefix"
            )
        if code == _EXHAUSTED and "space exceeded" in said:
            return TryAgainLater(
                f"etcd at {where} takes no more: {said} (alarm NOSPACE). Compact and defragment it, raise"
                " --quota-backend-bytes, then `etcdctl alarm disarm`"
            )
        if code == _DATA_LOSS or "corrupt" in said:
            return TryAgainLater(f"etcd at {where} is damaged: {said} (alarm CORRUPT). Replace that member")
        if code == _INVALID and ("too many operations" in said or "too large" in said):
            return InvalidConfig(
                f"etcd at {where}: {said}. An attachment with that many ranges needs etcd with a higher --max-txn-ops"
                " (default 128) and --max-request-bytes; or give fewer ranges"
            )
        if code in (_INVALID, _UNIMPLEMENTED):
            return InvalidConfig(f"etcd at {where} refuses the request: {said}. Want etcd 3.4 or newer")
        return _Unserved(code, said, code not in (_EXHAUSTED, _PRECONDITION))


class _Failed(Exception):
    """An attempt failed and another may do better; `failure` is the error when none does."""

    def __init__(self, failure: CniError) -> None:
        self.failure = failure


class _Unserved(Exception):
    """The member does not serve now: no leader, a timeout, too many requests. `open`: it may have carried it out."""

    def __init__(self, code: int, said: str, open: bool) -> None:
        self.code = code
        self.said = said
        self.open = open
