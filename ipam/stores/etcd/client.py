"""Requests to etcd: endpoints, authentication, and its errors.

A request goes to the endpoints in their order, and to all of them again until its time is over. One that must not be made
twice (`once`) is not repeated after a lost reply: Open is raised.
"""

from __future__ import annotations

import _blake2
import posix
from time import monotonic

from cni.shared.kernel import files
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores import http
from ipam.stores.base import Open, Pauses, Unreachable
from ipam.stores.etcd import grpc, txn
from ipam.stores.http import Endpoint, Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

DEFAULT_PORT = 2379
TOKENS = "/run/railcni"  # a tmpfs; only root can read the tokens
_MOST_BYTES = 1 << 20  # of a certificate's file
_ATTEMPT_SECONDS = 3.0  # for one endpoint's reply: elections take one or two
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds

# Codes of gRPC
_INVALID, _DENIED, _EXHAUSTED, _PRECONDITION, _DATA_LOSS, _UNAUTHENTICATED = 3, 7, 8, 9, 15, 16
_UNIMPLEMENTED = 12


def endpoint(text: str, tls: bool) -> Endpoint:
    """`text` is host, host:port, [IPv6]:port or one of these after http:// or https://, else `tls` decides; ValueError."""
    found = Endpoint(text.strip(), tls, (DEFAULT_PORT, DEFAULT_PORT))
    if found.base:
        raise ValueError("want host:port, such as 10.0.0.1:2379")
    return found


class Client(http.Client):
    """The client of one cluster.

    `tls` holds the paths of the authority's certificate, the client's certificate and its key.
    """

    __slots__ = ("_at", "_endpoints", "_password", "_refused", "_tls", "_token", "_user")

    def __init__(
        self, endpoints: list[Endpoint], tls: tuple[str, str, str], user: str, password: str, seconds: float
    ) -> None:
        super().__init__(seconds)
        self._endpoints = endpoints
        self._tls = tls
        self._user = user
        self._password = password
        self._token = ""
        self._refused = False  # whether etcd has refused a token
        self._at = 0  # index of the endpoint of the connection, or of the one to try first

    def call(self, method: str, message: bytes, once: bool = False) -> bytes:
        """etcd's answer to the call of `method`, SERVICE/NAME.

        Unreachable when no endpoint serves in time; Open after a lost reply to a request that is made `once`; InvalidConfig
        for a fault of the configuration, here or in etcd; TryAgainLater when etcd takes no more.
        """
        deadline = min(monotonic() + self.seconds, self.deadline)
        attempts = Pauses(deadline, _FIRST_PAUSE, _LONGEST_PAUSE)
        failure: CniError | None = None
        while True:
            try:
                return self._attempt(method, message, once, deadline)
            except Failed as failed:
                if failure is None or monotonic() < deadline:  # an attempt that our own deadline ends has no cause
                    failure = failed.failure
            if not attempts.wait():
                raise failure

    def _attempt(self, method: str, message: bytes, once: bool, deadline: float) -> bytes:
        """One attempt; Failed with the error to raise when no time is left for another."""
        connection = self._connected(deadline)
        sent = False
        try:
            if self._user and not self._token:
                self._log_in(connection, deadline)
            sent = once
            return self._exchange(connection, method, message, deadline)
        except http.Lost as fault:
            said = f"has not answered: {fault.strerror}"
            remedy = "see that the member is well"
        except _Unserved as fault:
            said, sent = f"answers: {fault.said}", sent and fault.open
            remedy = "see `etcdctl endpoint status`"
        said = f"etcd at {self._where()} {said}"
        self._move_on()
        if sent:
            raise Open(f"{said}; {remedy}")
        raise Failed(self._unreachable([said]))

    def _exchange(self, connection: grpc.Connection, method: str, message: bytes, deadline: float) -> bytes:
        limit = min(deadline, monotonic() + _ATTEMPT_SECONDS)
        try:
            code, reply = connection.call(method, message, self._token, max(limit, monotonic() + 0.1))
        except http.Untrusted as fault:
            raise self._untrusted(fault) from None
        except grpc.NoGrpc:
            raise InvalidConfig(
                f"etcd at {self._where()} does not speak gRPC: want etcd 3.4 or newer, and an endpoint for clients in"
                " etcd_host"
            ) from None
        except grpc.NotServed:
            raise _Unserved(-1, "it does not serve the call", False) from None
        if code:
            raise self._error(code, reply.decode("utf-8", "replace"))
        try:
            list(txn.fields(reply))
        except (ValueError, IndexError, OverflowError):
            raise _Unserved(-1, "with no message of etcd", True) from None
        return reply

    def _connected(self, deadline: float) -> grpc.Connection:
        """The connection, or a new one to the first endpoint after the last that failed."""
        connection = self.kept(self._as_it_is)
        if isinstance(connection, grpc.Connection):
            self._at = connection.at
            return connection
        turned = [*self._endpoints[self._at :], *self._endpoints[: self._at]]
        left = max(0.1, deadline - monotonic())
        try:
            index, socket = http.dial([(e.host, e.port) for e in turned], left)
        except http.Refused as fault:
            self._at = 0
            said = [f"{e}: {reason}" for e, reason in zip(turned, fault.reasons, strict=True)]
            raise self.unreached(self._unreachable(said)) from None
        self._at = (self._at + index) % len(self._endpoints)
        where = turned[index]
        try:
            limit = min(deadline, monotonic() + _ATTEMPT_SECONDS)
            context = self._tls_context() if where.tls else None
            self._connection = connection = grpc.Connection(socket, where.host, context, limit)
            connection.at = self._at
        except http.Untrusted as fault:
            raise self._untrusted(fault) from None
        except OSError as fault:
            lost = f"{where}: {fault.strerror or fault}"
            self._move_on()
            raise self.unreached(self._unreachable([lost])) from None
        return connection

    def _as_it_is(self) -> Any:
        """The key under which a connection may be kept, of all that it was made with; OSError, ValueError."""
        pems = [files.read_regular(path, _MOST_BYTES) if path else b"" for path in self._tls]
        return tuple(map(str, self._endpoints)), *pems

    def _tls_context(self) -> Any:
        if self._context is None:
            try:
                self._context = http.tls_context(*self._tls)
                self._context._set_alpn_protocols(b"\x02h2")
            except ValueError as fault:
                raise InvalidConfig(
                    f"the etcd store's {fault} (etcd_ca_cert_file, etcd_cert_file, etcd_key_file)"
                ) from None
        return self._context

    def _log_in(self, connection: grpc.Connection, deadline: float) -> None:
        """Use the token of an earlier call, unless etcd has refused it, or get another."""
        name = _token_name(self._endpoints, self._user, self._password)
        if not self._refused:
            self._token = _read_token(name)
        if self._token:
            return
        try:
            user = txn.field(1, self._user.encode()) + txn.field(2, self._password.encode())
            reply = dict(txn.fields(self._exchange(connection, "Auth/Authenticate", user, deadline)))
        except _Unserved as fault:
            if fault.code != _PRECONDITION:
                raise
            self._user = ""  # authentication is not enabled
            return
        self._token = reply.get(2, b"").decode("latin-1")
        if self._token:
            _write_token(name, self._token)

    def _move_on(self) -> None:
        self.drop()
        self._at = (self._at + 1) % len(self._endpoints)

    def _where(self) -> Endpoint:
        return self._endpoints[self._at]

    def _unreachable(self, reasons: list[str]) -> Unreachable:
        return Unreachable(
            f"etcd could not be reached{self.within}: {'; '.join(reasons)}. Check that etcd runs and that"
            " etcd_host names its client endpoints",
            "\n".join(reasons),
        )

    def _untrusted(self, fault: http.Untrusted) -> CniError:
        self.drop()
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

    def _error(self, code: int, said: str) -> Exception:
        """The error of a failed call (etcd, api/v3rpc/rpctypes)."""
        where = self._where()
        said = said.removeprefix("etcdserver: ")
        user = f'user "{self._user}"' if self._user else "a request without a user"
        if code == _UNAUTHENTICATED or "user name is empty" in said or "auth store is old" in said:
            if self._token or "is old" in said:  # it has expired; the next attempt gets another
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


class _Unserved(Exception):
    """The member does not serve now: no leader, a timeout, too many requests. `open`: it may have served the request."""

    def __init__(self, code: int, said: str, open: bool) -> None:
        self.code = code
        self.said = said
        self.open = open


# --- tokens, kept on this node between two calls: each check of a password costs etcd 60 ms of bcrypt ---


def _token_name(endpoints: Sequence[Endpoint], user: str, password: str) -> str:
    """The name of a token's file, which nobody finds without the password."""
    text = "\0".join((*map(str, endpoints), "", user, password)).encode("utf-8", "surrogateescape")
    return f"etcd-{_blake2.blake2b(text, digest_size=16).hexdigest()}"


def _read_token(name: str) -> str:
    """The token; "" for none, and for one in a file that others could write. etcd ends it after five unused minutes."""
    try:
        files.check_private_directory(TOKENS)
        return files.read_regular(f"{TOKENS}/{name}", _MOST_BYTES, posix.O_NOFOLLOW, private=True).decode("ascii")
    except (OSError, ValueError):
        return ""


def _write_token(name: str, token: str) -> None:
    """Keep the token; after a failure the next call gets another."""
    try:
        files.take_directory(TOKENS)
        files.write_whole(TOKENS, name, token.encode("ascii"))
    except (OSError, ValueError):
        pass
