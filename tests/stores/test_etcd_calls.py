"""Calls of etcd's JSON gateway (ipam.stores.etcd.client) against a server that plays whatever HTTP/1.1 allows, and more.

A call ends in time. It is repeated when it was certainly not served, and its outcome is unknown when it may have been.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores import base
from ipam.stores.base import OutcomeUnknown, Unreachable
from ipam.stores.etcd import client
from ipam.stores.etcd.client import EtcdClient, endpoint
from tests import proxy

SECONDS = 0.6  # for one call
CLOSE = b""  # a piece of a reply: the connection ends

Play = bytes | Iterable[bytes]


def head(status: int = 200, *fields: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} Said", *fields, "")).encode("latin-1")


def raw(body: bytes, status: int = 200, *fields: str) -> bytes:
    return head(status, f"Content-Length: {len(body)}", *fields) + body


def message(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def reply(text: str = "first", *fields: str) -> bytes:
    return raw(message(text), 200, *fields)


def chunked(*chunks: bytes, extension: str = "", trailers: str = "") -> bytes:
    pieces = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension.encode(), chunk) for chunk in chunks)
    return head(200, "Transfer-Encoding: chunked") + pieces + f"0\r\n{trailers}\r\n".encode()


def failure(status: int, code: int, said: str) -> bytes:
    return raw(json.dumps({"error": said, "code": code, "message": said}).encode(), status)


class Server:
    """Answers the calls that come, over all connections, by `plays`; those after the last by "second"."""

    def __init__(self, *plays: Play) -> None:
        self._plays = list(plays)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.calls: list[tuple[int, str]] = []  # (connection, target)
        self.tokens: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        proxy.end(self._open)

    def end_connections(self) -> None:
        for s in self._open[1:]:
            s.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(peer)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(peer, len(self._open) - 1), daemon=True).start()

    def _serve(self, peer: socket.socket, which: int) -> None:
        try:
            while self._attend(peer.makefile("rb"), peer, which):
                pass
        except OSError:
            pass
        finally:
            peer.close()

    def _attend(self, stream: Any, peer: socket.socket, which: int) -> bool:
        """Answer one call; whether the connection goes on."""
        first = stream.readline().decode()
        if not first:
            return False
        fields = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        stream.read(int(fields["content-length"]))
        self.tokens.append(fields.get("authorization", ""))
        self.calls.append((which, first.split(" ")[1]))
        pieces = self._plays[len(self.calls) - 1] if len(self.calls) <= len(self._plays) else reply("second")
        for piece in [pieces] if isinstance(pieces, bytes) else pieces:
            if piece == CLOSE:
                return False
            peer.sendall(piece)
        return True


@contextmanager
def serving(*plays: Play) -> Iterator[tuple[Server, EtcdClient]]:
    server = Server(*plays)
    own = of(server)
    try:
        yield server, own
    finally:
        own.close()
        server.close()


def of(*servers: Server, user: str = "", seconds: float = SECONDS) -> EtcdClient:
    places = [endpoint(f"127.0.0.1:{server.port}", False) for server in servers]
    return EtcdClient(places, ("", "", ""), user, "s3cret", seconds)


def called(own: EtcdClient, content: str = "x") -> str:
    """What a claim is answered."""
    return own.call("kv/txn", {"text": content}, lambda said: str(said["text"]), once=True)


SERVED: dict[str, Play] = {
    "in one piece": reply(),
    "octet by octet": [bytes((octet,)) for octet in reply()],
    "after interim replies": head(100) + head(103, "Link: x") + reply(),
    "in chunks": chunked(b'{"te', b'xt": "fir', b'st"}'),
    "in chunks with extensions and trailers": chunked(
        message("first"), extension=";a=b", trailers="Grpc-Trailer-Content-Type: application/grpc\r\n"
    ),
    "with other letters and white space": raw(message("first")).replace(b"Content-Length: ", b"content-length:\t "),
    "with ends of lines of one octet": reply().replace(b"\r\n", b"\n"),
    "before the connection is to be closed": reply("first", "Connection: close"),
    "before the end of the connection": [head() + message("first"), CLOSE],
    "before what nobody asked for": reply() + reply("late"),
}
ENDS = ("the connection", "what nobody")


@pytest.mark.parametrize("case", SERVED)
def test_a_reply_is_read_however_it_comes(case: str) -> None:
    with serving(SERVED[case]) as (server, own):
        for text in ("first", "second", "second"):
            assert called(own) == text
        is_kept = not any(end in case for end in ENDS)
        assert [which for which, _ in server.calls] == ([1, 1, 1] if is_kept else [1, 2, 2])


NOT_SERVED: dict[str, Play] = {
    "too many requests": failure(429, 8, "etcdserver: too many requests"),
    "an old revision of users": failure(400, 3, "etcdserver: revision of auth store is old"),
}


@pytest.mark.parametrize("older", [0, 1])
@pytest.mark.parametrize("case", NOT_SERVED)
def test_a_claim_that_was_certainly_not_served_is_made_again(case: str, older: int) -> None:
    with serving(*[reply("second")] * older, NOT_SERVED[case]) as (server, own):
        for _ in range(older + 1):
            assert called(own) == "second"
        assert len(server.calls) == older + 2


MAYBE_SERVED: dict[str, tuple[Play, str]] = {  # and a word of the error
    "nothing": (CLOSE, "closed"),
    "half of a head": ([reply()[:30], CLOSE], "closed"),
    "half of a body": ([reply()[:-3], CLOSE], "closed"),
    "half of a chunk": ([chunked(message("first"))[:-10], CLOSE], "closed"),
    "silence": ([], "timed out"),
    "half of a reply, and silence": ([reply()[:-3]], "timed out"),
    "no leader": (failure(503, 14, "etcdserver: no leader"), "no leader"),
    "a member that ends": (failure(500, 2, "raft: stopped"), "raft: stopped"),
    "a failure of another version": (raw(b'{"code": 14, "message": "no leader", "details": []}', 503), "no leader"),
    "a failure of an older version": (raw(b'{"code": 14, "error": "no leader"}', 503), "no leader"),
    "a page of a proxy": (raw(b"<html>Sorry</html>", 503), "status 503"),
    "a busy proxy": (raw(b"<html>Sorry</html>", 429), "status 429"),
    "a redirection": (raw(b"", 307, "Location: /"), "status 307"),
    "text": (raw(b"welcome"), "no message of etcd"),
    "a compressed body": (raw(b"\x1f\x8b\x08", 200, "Content-Encoding: gzip"), "no message of etcd"),
    "another protocol": (b"220 smtp\r\n\r\n", "not HTTP"),
    "HTTP/2": (b"\0\0\0\4\0\0\0\0\0\r\n\r\n", "not HTTP"),
    "a status that is no number": (b"HTTP/1.1 OK\r\n\r\n", "not HTTP"),
    "a length that is no number": (head(200, "Content-Length: many") + b"{}", "not HTTP"),
    "a length below zero": (head(200, "Content-Length: -2") + b"{}", "not HTTP"),
    "a chunk whose size is no number": (head(200, "Transfer-Encoding: chunked") + b"xyz\r\n", "not HTTP"),
    "a chunk that goes on": (head(200, "Transfer-Encoding: chunked") + b"2\r\n{}{}\r\n0\r\n\r\n", "not HTTP"),
    "interim replies for ever": (repeat(head(100) * 1000), "KiB of headers"),
}


@pytest.mark.parametrize("older", [0, 1])
@pytest.mark.parametrize("case", MAYBE_SERVED)
def test_a_claim_that_may_have_been_served_is_not_made_again(case: str, older: int) -> None:
    play, word = MAYBE_SERVED[case]
    with serving(*[reply("second")] * older, play) as (server, own):
        for _ in range(older):
            assert called(own) == "second"
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown) as caught:
            called(own)
        assert time.monotonic() - began < SECONDS + 0.5
        assert word in caught.value.msg
        assert "TLS" not in caught.value.msg or word == "closed"
        assert called(own) == "second"
        assert [which for which, _ in server.calls] == [1, 1, 2][1 - older :]


REFUSED: dict[str, tuple[Play, type[CniError]]] = {
    "the path": (raw(b"404 page not found", 404), InvalidConfig),
    "the method": (raw(b"", 405), InvalidConfig),
    "the host": (raw(b"not whitelisted", 421), InvalidConfig),
    "rights": (failure(403, 7, "etcdserver: permission denied"), InvalidConfig),
    "users": (failure(400, 3, "etcdserver: user name is empty"), InvalidConfig),
    "a service": (failure(501, 12, "unknown service etcdserverpb.KV"), InvalidConfig),
    "a key twice": (failure(400, 3, "etcdserver: duplicate key given in txn request"), InvalidConfig),
    "a large request": (failure(400, 3, "etcdserver: request is too large"), InvalidConfig),
    "space": (failure(429, 8, "etcdserver: mvcc: database space exceeded"), TryAgainLater),
    **{f"a proxy, by {status}": (raw(b"<html>Sorry</html>", status), InvalidConfig) for status in (400, 401, 403, 407)},
    "damage": (failure(500, 15, "etcdserver: corrupt cluster"), TryAgainLater),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_server_refuses_is_not_tried_again_and_leaves_the_connection_in_step(case: str) -> None:
    play, kind = REFUSED[case]
    with serving(play) as (server, own):
        with pytest.raises(kind) as caught:
            called(own)
        assert not isinstance(caught.value, Unreachable)
        assert called(own) == "second"
        assert [which for which, _ in server.calls] == [1, 1]


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are kept below a directory of the test."""
    monkeypatch.setattr(client, "TOKENS", str(tmp_path / "tokens"))


def test_a_token_that_has_expired_is_replaced_and_the_claim_made_again(tokens: None) -> None:
    expired = failure(401, 16, "etcdserver: invalid auth token")
    with serving(raw(b'{"token": "t1"}'), reply(), expired, raw(b'{"token": "t2"}')) as (server, _):
        own = of(server, user="railcni")
        assert [called(own), called(own)] == ["first", "second"]
    login, claim = "/v3/auth/authenticate", "/v3/kv/txn"
    assert [target for _, target in server.calls] == [login, claim, claim, login, claim]
    assert server.tokens == ["", "t1", "t1", "", "t2"]


@pytest.mark.parametrize("said", [(401, 16, "invalid auth token"), (400, 3, "revision of auth store is old")])
def test_a_server_that_refuses_each_new_token_is_not_asked_until_the_time_is_over(
    tokens: None, said: tuple[int, int, str]
) -> None:
    refused = failure(said[0], said[1], f"etcdserver: {said[2]}")
    with serving(*[raw(b'{"token": "t1"}'), refused] * 3) as (server, _):
        with pytest.raises(InvalidConfig, match='each token of user "railcni": .*--auth-token'):
            called(of(server, user="railcni", seconds=60))
        assert len(server.calls) == 6


@pytest.mark.parametrize("token", ["", "t\r\nX: y", "\u00e9", None, 1, []], ids=repr)
def test_what_is_no_token_is_sent_in_no_header(tokens: None, token: object) -> None:
    with serving(*[raw(json.dumps({"token": token}).encode())] * 100) as (server, _):
        with pytest.raises(Unreachable, match="no message of etcd"):
            called(of(server, user="railcni"))
        assert set(server.tokens) == {""}


# --- kept connections ---


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "connections", {})
    monkeypatch.setattr(base, "at_end", [])


def test_a_kept_connection_serves_no_other_cluster_whose_first_endpoint_is_the_same(kept: None) -> None:
    dead, one, other = Server(), Server(), Server()
    dead.close()
    for server in (one, other, one, other):
        own = of(dead, server)
        assert called(own) == "second"
        own.close()
    assert [len(server.calls) for server in (one, other)] == [2, 2]
    assert {which for server in (one, other) for which, _ in server.calls} == {1}
    one.close()
    other.close()


def test_an_error_names_the_endpoint_of_a_kept_connection(kept: None) -> None:
    dead, one = Server(), Server(reply("second"), CLOSE)
    dead.close()
    own = of(dead, one)
    assert called(own) == "second"
    own.close()
    with pytest.raises(OutcomeUnknown, match=f"127.0.0.1:{one.port} has not answered"):
        called(of(dead, one))
    one.close()
