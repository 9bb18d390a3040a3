"""Requests to the JSON gateway of etcd: endpoints, authentication and errors.

A request tries the endpoints in their order, again and again until its time is over. A request that must not be made
twice (`once`) is not repeated after a lost reply, but raises OutcomeUnknown.
"""

from __future__ import annotations

import hashlib
import os
from time import monotonic
from typing import TYPE_CHECKING

from cni.shared.kernel import files
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores import http
from ipam.stores.base import OutcomeUnknown, Pauses, Unreachable
from ipam.stores.http import Failed, ServerAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    Reply = TypeVar("Reply")
    Read = Callable[[Any], Reply]

DEFAULT_PORT = 2379
TOKENS = "/run/railcni"  # a tmpfs; only root can read the tokens
_MOST_BYTES = 1 << 20  # of a certificate's file
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5  # seconds

# gRPC status codes, which the gateway puts into its errors
_INVALID, _DENIED, _EXHAUSTED, _PRECONDITION, _UNAVAILABLE, _DATA_LOSS, _UNAUTHENTICATED = 3, 7, 8, 9, 14, 15, 16
# With the header Accept, etcd does not take the CommonName of the gateway's own certificate as the name of a user
_HEADERS = "Accept: application/json\r\nContent-Type: application/json\r\n"
_OF_ETCD = "etcdserver: "  # the prefix of etcd's own errors; the gateway's errors have none
_NO_GATEWAY = (404, 405, 421, 501)  # HTTP statuses for a path, a method or a host that a server does not serve
_LATER = (408, 425, 429)  # HTTP statuses of a proxy that may pass the next attempt on
_TOKENS = 3  # tokens of one call: each but the last may be refused


def endpoint(text: str, tls: bool) -> ServerAddress:
    """The endpoint [http[s]://]HOST[:PORT]; without a scheme, https if `tls`. Raises ValueError for other texts."""
    found = ServerAddress(text.strip(), tls, (DEFAULT_PORT, DEFAULT_PORT))
    if found.base:
        raise ValueError("want host:port, such as 10.0.0.1:2379")
    return found


class EtcdClient(http.Client):
    """The client of one etcd cluster. `tls` has the paths of the authority's certificate, the client's certificate and
    the client's key; "" if not set."""

    attempt_seconds = handshake_seconds = 3.0  # elections take one or two

    def __init__(
        self, endpoints: list[ServerAddress], tls: tuple[str, str, str], user: str, password: str, seconds: float
    ) -> None:
        super().__init__(seconds)
        self._endpoints = endpoints
        self._tls = tls
        self._user = user
        self._password = password
        self._token = ""
        self._refused = 0  # tokens that etcd has refused in this call

    def call(self, method: str, document: Any, read: Read[Reply], once: bool = False) -> Reply:
        """Post `document` to /v3/`method`; return `read(reply)`.

        Raises Unreachable when no endpoint serves in time, OutcomeUnknown after a lost reply to a request made `once`,
        InvalidConfig for a fault of the configuration, here or in etcd, and TryAgainLater when etcd is full or damaged.
        """
        self._refused = 0
        deadline = min(monotonic() + self.seconds, self.deadline)
        attempts = Pauses(deadline, _FIRST_PAUSE, _LONGEST_PAUSE)
        failure: CniError | None = None
        while True:
            sent = False  # whether etcd may carry out the request although no reply comes
            try:
                connection = self.kept(self._as_it_is) or self.connect_to(self._endpoints, self._tls_context, deadline)
                if self._user and not self._token:
                    self._log_in(connection, deadline)
                sent = once
                return self._exchange(connection, method, document, read, deadline)
            except Failed as failed:
                last = failed.failure
            except http.ConnectionLost as fault:
                last = self._lost(f"has not answered: {fault.strerror}", sent, "see that the member is well")
            except _Unserved as fault:
                last = self._lost(f"answers: {fault.said}", sent and fault.open, "see `etcdctl endpoint status`")
            if failure is None or monotonic() < deadline:  # an attempt cut off by the deadline shows no cause
                failure = last
            if not attempts.wait():
                raise failure

    def _lost(self, said: str, sent: bool, remedy: str) -> CniError:
        """Select the next endpoint; return the error to raise if no time is left. Raises OutcomeUnknown if the
        request was `sent`."""
        said = f"etcd at {self._where()} {said}"
        self.move_on(self._endpoints)
        if sent:
            raise OutcomeUnknown(f"{said}; {remedy}") from None
        return self._unreached([said])

    def _exchange(
        self, connection: http.Connection, method: str, document: Any, read: Read[Reply], deadline: float
    ) -> Reply:
        limit = max(min(deadline, monotonic() + self.attempt_seconds), monotonic() + 0.1)
        headers = _HEADERS
        if self._token:
            headers += f"Authorization: {self._token}\r\n"
        body = codec.dumps(document).encode()
        try:
            status, reply = connection.request("POST", f"/v3/{method}", headers, body, limit)
        except http.Untrusted as fault:
            self.drop()
            raise self.untrusted(fault) from None
        try:
            said = codec.loads_reply(reply)
            if status == 200:
                return read(said)
            code, text = said["code"], str(said.get("message") or said["error"])
        except (ValueError, TypeError, KeyError, AttributeError):
            if b"CommonName" in reply:
                raise InvalidConfig(
                    f"etcd at {self._where()} has users, and refuses a client certificate with a CommonName: set"
                    " etcd_username and etcd_password, and name a certificate without a CommonName in etcd_cert_file"
                ) from None
            code, text = -1, "with no message of etcd" if status == 200 else f"status {status}"
        if status in _NO_GATEWAY and not text.startswith(_OF_ETCD):
            raise InvalidConfig(
                f"etcd at {self._where()} does not serve /v3/{method} ({text}): want etcd 3.4 or newer with its JSON"
                " gateway (--enable-grpc-gateway, the default), etcd_host with an endpoint for clients, and in"
                " --host-whitelist its host"
            )
        if code == -1 and 400 <= status < 500 and status not in _LATER:
            raise InvalidConfig(
                f"a server at {self._where()} refuses /v3/{method} ({text}) in place of etcd: let that proxy pass this node's"
                " requests on, or name in etcd_host the client endpoints of etcd"
            )
        if code == _UNAVAILABLE and self._where().tls and not text.startswith(_OF_ETCD):
            text += (
                " (its JSON gateway cannot reach it: with --client-cert-auth, the certificate of --cert-file must also"
            )
            text += " be for clients, extendedKeyUsage clientAuth)"
        raise self._error(code, text)

    def _as_it_is(self) -> Any:
        """The key of a kept connection: endpoints and certificates. Raises OSError or ValueError for a bad file."""
        pems = [files.read_regular(path, _MOST_BYTES) if path else b"" for path in self._tls]
        return tuple(map(str, self._endpoints)), *pems

    def _tls_context(self, where: ServerAddress) -> Any:
        if where.tls and self._context is None:
            try:
                self._context = http.tls_context(*self._tls)
            except ValueError as fault:
                raise InvalidConfig(
                    f"the etcd store's {fault} (etcd_ca_cert_file, etcd_cert_file, etcd_key_file)"
                ) from None
        return self._context if where.tls else None

    def _log_in(self, connection: http.Connection, deadline: float) -> None:
        """Use the token that an earlier call has stored. Log in if there is none, or after etcd has refused a token."""
        text = "\0".join((*map(str, self._endpoints), "", self._user, self._password))
        digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16)
        name = f"etcd-{digest.hexdigest()}"  # cannot be guessed, since it depends on the password
        if not self._refused:
            self._token = _read_token(name)
        if self._token:
            return
        try:
            user = {"name": self._user, "password": self._password}
            self._token = self._exchange(connection, "auth/authenticate", user, _token_of, deadline)
        except _Unserved as fault:
            if fault.code != _PRECONDITION:
                raise
            self._user = ""  # authentication is not enabled
            return
        _write_token(name, self._token)

    def _where(self) -> ServerAddress:
        return self._endpoints[self._at]

    def unreachable(self, reasons: Sequence[tuple[ServerAddress, str]]) -> Unreachable:
        return self._unreached([f"{where}: {reason}" for where, reason in reasons])

    def _unreached(self, reasons: list[str]) -> Unreachable:
        return Unreachable(
            f"etcd could not be reached{self.within}: {'; '.join(reasons)}. Check that etcd runs and that"
            " etcd_host names its client endpoints",
            "\n".join(reasons),
        )

    def untrusted(self, fault: http.Untrusted) -> CniError:
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
        """The error for etcd's gRPC code and message `said` (etcd, api/v3rpc/rpctypes)."""
        where = self._where()
        said = said.removeprefix(_OF_ETCD)
        user = f'user "{self._user}"' if self._user else "a request without a user"
        if code == _UNAUTHENTICATED or "user name is empty" in said or "auth store is old" in said:
            if self._token or "is old" in said:  # the token has expired; the next attempt gets another
                self._token, self._refused = "", self._refused + 1
                if self._refused < _TOKENS:
                    return _Unserved(code, said, False)
                return InvalidConfig(
                    f"etcd at {where} refuses each token of {user}: {said}. Give all members the same --auth-token, and"
                    " correct their clocks"
                )
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
        if code == _INVALID:
            return InvalidConfig(f"etcd at {where} refuses the request: {said}. Want etcd 3.4 or newer")
        return _Unserved(code, said, code not in (_EXHAUSTED, _PRECONDITION))


class _Unserved(Exception):
    """Error: the etcd member does not serve now (no leader, timeout, overload). `open`: the outcome is unknown."""

    def __init__(self, code: int, said: str, open: bool) -> None:
        self.code = code
        self.said = said
        self.open = open


def _token_of(reply: Any) -> str:
    """The token in the reply to a login. Raises ValueError, TypeError or KeyError when there is no valid token."""
    token = reply["token"]
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise ValueError("not a token")
    return token


# --- tokens, kept on this node between two calls: each check of a password costs etcd 60 ms of bcrypt ---


def _read_token(name: str) -> str:
    """The token that an earlier call has stored; "" if there is none, or other users can write the file. A token ends
    after 5 minutes without a request."""
    try:
        files.check_private_directory(TOKENS)
        token = files.read_regular(f"{TOKENS}/{name}", _MOST_BYTES, os.O_NOFOLLOW, private=True).decode("ascii")
        return token if token.isprintable() else ""
    except (OSError, ValueError):
        return ""


def _write_token(name: str, token: str) -> None:
    """Store the token for later calls. A failure is ignored: the next call gets another token."""
    try:
        files.take_directory(TOKENS)
        files.write_whole(TOKENS, name, token.encode("ascii"))
    except (OSError, ValueError):
        pass
