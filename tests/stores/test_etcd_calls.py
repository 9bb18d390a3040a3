"""Calls of gRPC to etcd (ipam.stores.etcd.grpc, client) against a server that plays whatever HTTP/2 allows, and more.

A call ends in time. It is repeated when it was certainly not served, and is open (Open) when it may have been.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import grpc as grpcio
import hpack
import pytest

from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores import http
from ipam.stores.base import Open, Unreachable
from ipam.stores.etcd import client, grpc, txn
from ipam.stores.etcd.client import Client, endpoint
from tests import proxy

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)  # kinds of frames
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 0x20  # flags
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SECONDS = 0.6  # for one call
CLOSE = b""  # a piece of a reply: the connection ends


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content


def number(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "big") for value in values)


def headers(stream: int, flags: int = END_HEADERS, **fields: str) -> bytes:
    """`status` is :status; _ is - in the other names."""
    named = [(":status" if name == "status" else name.replace("_", "-"), value) for name, value in fields.items()]
    return frame(HEADERS, flags, stream, hpack.Encoder().encode(named))


def trailers(stream: int, **fields: str) -> bytes:
    return headers(stream, END_HEADERS | END_STREAM, **fields)


def message(text: bytes) -> bytes:
    """A message of gRPC whose field 1 is `text`."""
    content = txn.field(1, text)
    return b"\0" + number(len(content)) + content


def reply(s: int, text: bytes = b"first") -> bytes:
    return headers(s, status="200") + frame(DATA, 0, s, message(text)) + trailers(s, grpc_status="0")


def raw(s: int, data: bytes) -> bytes:
    """A reply that succeeds with `data` in place of a message."""
    return headers(s, status="200") + frame(DATA, 0, s, data) + trailers(s, grpc_status="0")


def failure(s: int, code: int, said: str = "") -> bytes:
    return trailers(s, status="200", content_type="application/grpc", grpc_status=str(code), grpc_message=said)


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(key.to_bytes(2, "big") + number(value) for key, value in pairs))


def goaway(last: int, code: int = 0) -> bytes:
    return frame(GOAWAY, 0, 0, number(last, code) + b"why")


def html(s: int, status: str) -> bytes:
    return headers(s, status=status, content_type="text/html") + frame(DATA, END_STREAM, s, b"<html>Sorry</html>")


Play = Callable[[int], "bytes | Iterable[bytes]"]  # from the number of a stream


class Server:
    """Answers the calls that come, over all connections, by `plays`; those after the last by b"second"."""

    def __init__(self, *plays: Play, first: bytes = b"", room: bool = True) -> None:
        self._plays = list(plays)
        self._first, self._room = first, room
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.calls: list[tuple[int, int, str]] = []  # (connection, stream, method)
        self.tokens: list[str] = []
        self.given = 0  # room for what it sends
        self.faults: list[str] = []  # what a client must not send
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
            self._attend(peer, which)
        except OSError:
            pass
        except Exception as fault:
            self.faults.append(repr(fault))
        finally:
            peer.close()

    def _attend(self, peer: socket.socket, which: int) -> None:
        def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size:
                if not (piece := peer.recv(size - len(data))):
                    raise ConnectionResetError
                data += piece
            return data

        assert exactly(len(PREFACE)) == PREFACE
        peer.sendall(self._first)
        decoder = hpack.Decoder()
        while True:
            head = exactly(9)
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
            content = exactly(int.from_bytes(head[:3], "big"))
            if kind == SETTINGS and flags & ACK and SETTINGS_OF_NO_TABLE in self._first:
                decoder.max_allowed_table_size = 0
            if kind == WINDOW_UPDATE and not stream:
                self.given += int.from_bytes(content, "big")
            if kind == HEADERS:
                fields = dict(decoder.decode(content))
                method = fields[":path"].removeprefix("/etcdserverpb.")
                if not self._room:
                    peer.sendall(frame(WINDOW_UPDATE, 0, stream, number(1 << 20)))
            elif kind == DATA and self._room and content and not flags & END_STREAM:
                room = number(len(content))
                peer.sendall(frame(WINDOW_UPDATE, 0, 0, room) + frame(WINDOW_UPDATE, 0, stream, room))
            if kind == DATA and flags & END_STREAM:
                self.tokens.append(fields.get("token", ""))
                self.calls.append((which, stream, method))
                play = self._plays[len(self.calls) - 1] if len(self.calls) <= len(self._plays) else SECOND
                pieces = play(stream)
                for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                    if piece == CLOSE:
                        return
                    peer.sendall(piece)


SETTINGS_OF_NO_TABLE = settings((1, 0))
SECOND: Play = lambda s: reply(s, b"second")  # noqa: E731


@contextmanager
def serving(*plays: Play, **more: Any) -> Iterator[tuple[Server, Client]]:
    server = Server(*plays, **more)
    own = of(server)
    try:
        yield server, own
    finally:
        own.close()
        server.close()
    assert server.faults == []


def of(*servers: Server, user: str = "", seconds: float = SECONDS) -> Client:
    places = [endpoint(f"127.0.0.1:{server.port}", False) for server in servers]
    return Client(places, ("", "", ""), user, "s3cret", seconds)


def called(own: Client, content: bytes = b"x") -> bytes:
    """What a claim is answered."""
    return dict(txn.fields(own.call("KV/Txn", txn.field(1, content), once=True)))[1]


SERVED: dict[str, Play] = {
    "in one piece": reply,
    "after a GOAWAY that lets all calls end": lambda s: [goaway((1 << 31) - 1), reply(s)],
    "after a GOAWAY that names it as the last": lambda s: goaway(s) + reply(s),
    "in the middle of it a GOAWAY": lambda s: (
        headers(s, status="200") + goaway(s) + frame(DATA, 0, s, message(b"first")) + trailers(s, grpc_status="0")
    ),
    "after frames that are not of it": lambda s: (
        settings((4, 1), (5, 1 << 20), (3, 0), (99, 7))
        + frame(PING, 0, 0, b"12345678")
        + frame(PING, ACK, 0, b"12345678")
        + frame(WINDOW_UPDATE, 0, 0, number(0))
        + frame(WINDOW_UPDATE, 0, s, number((1 << 31) - 1)) * 2
        + frame(PRIORITY, 0, s, bytes(5))
        + frame(0xA, 0, 0, b"altsvc")
        + frame(0xFE, 0xFF, s, b"unknown")
        + reply(s)
    ),
    "after interim replies": lambda s: headers(s, status="100") + headers(s, status="103", link="x") + reply(s),
    "octet by octet": lambda s: [bytes((octet,)) for octet in reply(s)],
    "in frames of one octet": lambda s: (
        headers(s, status="200")
        + b"".join(frame(DATA, 0, s, bytes((octet,))) + frame(DATA, 0, s) for octet in message(b"first"))
        + trailers(s, grpc_status="0")
    ),
    "before a reset without an error": lambda s: reply(s) + frame(RESET, 0, s, number(0)),
    "with trailers that are not the usual ones": lambda s: reply(s)[: -len(trailers(s, grpc_status="0"))]
    + trailers(s, server="envoy", grpc_status="0", grpc_message=""),
}  # fmt: skip


@pytest.mark.parametrize("case", SERVED)
def test_a_reply_is_read_however_it_comes(case: str) -> None:
    with serving(SERVED[case]) as (server, own):
        for text in (b"first", b"second", b"second"):
            assert called(own) == text
        assert [which for which, _, _ in server.calls] == ([1, 2, 2] if "GOAWAY" in case else [1, 1, 1])


NOT_SERVED: dict[str, Play] = {
    "a GOAWAY that names none": lambda s: goaway(0),
    "a GOAWAY that names an older call": lambda s: [goaway(max(s - 2, 0)), CLOSE],
    "a GOAWAY that lets all calls end, and another": lambda s: goaway((1 << 31) - 1) + goaway(max(s - 2, 0)),
    "a refused call": lambda s: frame(RESET, 0, s, number(7)),
    "too many requests": lambda s: failure(s, 8, "etcdserver: too many requests"),
    "an old revision of users": lambda s: failure(s, 3, "etcdserver: revision of auth store is old"),
}


@pytest.mark.parametrize("older", [0, 1])
@pytest.mark.parametrize("case", NOT_SERVED)
def test_a_claim_that_was_certainly_not_served_is_made_again(case: str, older: int) -> None:
    with serving(*[SECOND] * older, NOT_SERVED[case]) as (server, own):
        for _ in range(older + 1):
            assert called(own) == b"second"
        assert len(server.calls) == older + 2


MAYBE_SERVED: dict[str, tuple[Play, str]] = {  # and a word of the error
    "a GOAWAY that names it, and the end": (lambda s: [goaway(s, 2), CLOSE], "closed"),
    "a reset": (lambda s: frame(RESET, 0, s, number(2)), "ended the call"),
    "a cancellation": (lambda s: frame(RESET, 0, s, number(8)), "ended the call"),
    "half of a reply": (lambda s: [reply(s)[:30], CLOSE], "closed"),
    "nothing": (lambda s: CLOSE, "closed"),
    "silence": (lambda s: [], "timed out"),
    "no leader": (lambda s: failure(s, 14, "etcdserver: no leader"), "no leader"),
    "a timeout": (lambda s: failure(s, 14, "etcdserver: request timed out"), "request timed out"),
    "a learner": (lambda s: failure(s, 14, "etcdserver: rpc not supported for learner"), "learner"),
    "a failure without a text": (lambda s: failure(s, 14), "code 14"),
    "a failure in two blocks": (
        lambda s: headers(s, status="200") + trailers(s, grpc_status="2", grpc_message="raft: stopped"),
        "raft: stopped",
    ),
    "a page of a proxy": (lambda s: html(s, "503"), "status 503"),
    "a page of a proxy, and a reset": (lambda s: html(s, "413") + frame(RESET, 0, s, number(0)), "status 413"),
    "a status of a proxy": (lambda s: trailers(s, status="502"), "status 502"),
    "no grpc-status": (lambda s: headers(s, status="200") + frame(DATA, 1, s, message(b"x")), "the reply is not gRPC"),
    "empty trailers": (lambda s: reply(s)[: -len(trailers(s, grpc_status="0"))] + trailers(s), "the reply is not gRPC"),
    "a grpc-status that is no number": (lambda s: trailers(s, status="200", grpc_status="ok"), "the reply is not gRPC"),
    "success without a message": (lambda s: trailers(s, status="200", grpc_status="0"), "the reply is not gRPC"),
    "an empty message": (lambda s: raw(s, bytes(5)), "the reply is not gRPC"),
    "a part of a message's head": (lambda s: raw(s, bytes(4)), "the reply is not gRPC"),
    "a compressed message": (lambda s: raw(s, b"\1" + message(b"x")[1:]), "the reply is not gRPC"),
    "two messages": (lambda s: raw(s, message(b"x") * 2), "the reply is not gRPC"),
    "a short message": (lambda s: raw(s, message(b"x")[:-1]), "the reply is not gRPC"),
    "a message that ends inside a field": (lambda s: raw(s, b"\0" + number(2) + b"\x0a\x09"), "no message of etcd"),
    "a number without an end": (lambda s: raw(s, b"\0" + number(17) + b"\x08" + b"\xff" * 15 + b"\1"), "no message of"),
    "padding": (lambda s: frame(DATA, PADDED | END_STREAM, s, b"\1x\0"), "the reply is not gRPC"),
    "a block of headers in two frames": (
        lambda s: frame(HEADERS, 0, s) + frame(CONTINUATION, 4, s),
        "the reply is not",
    ),
    "a weight in the headers": (lambda s: frame(HEADERS, 0x25, s, bytes(5) + b"\x88"), "status"),
    "a frame above the limit": (lambda s: frame(DATA, 0, s, bytes((1 << 14) + 1)), "the reply is not gRPC"),
    "another call's reply": (lambda s: reply(s + 2), "timed out"),
    "pings for ever": (lambda s: repeat(frame(PING, 0, 0, bytes(8)) * 1000), "timed out"),
    "empty frames for ever": (lambda s: repeat(frame(DATA, 0, s) * 1000), "timed out"),
}


@pytest.mark.parametrize("older", [0, 1])
@pytest.mark.parametrize("case", MAYBE_SERVED)
def test_a_claim_that_may_have_been_served_is_not_made_again(case: str, older: int) -> None:
    play, word = MAYBE_SERVED[case]
    with serving(*[SECOND] * older, play) as (server, own):
        for _ in range(older):
            assert called(own) == b"second"
        began = time.monotonic()
        with pytest.raises(Open) as caught:
            called(own)
        assert time.monotonic() - began < SECONDS + 0.5
        assert word in caught.value.msg
        assert "TLS" not in caught.value.msg or word == "closed"
        assert called(own) == b"second"
        assert [which for which, _, _ in server.calls] == [1, 1, 2][1 - older :]


REFUSED: dict[str, tuple[Play, type[CniError]]] = {
    "HTTP/1": (lambda s: [b"HTTP/1.1 400 Bad Request\r\n\r\n", CLOSE], InvalidConfig),
    "rights": (lambda s: failure(s, 7, "etcdserver: permission denied"), InvalidConfig),
    "users": (lambda s: failure(s, 3, "etcdserver: user name is empty"), InvalidConfig),
    "a service": (lambda s: failure(s, 12, "unknown service etcdserverpb.KV"), InvalidConfig),
    "a key twice": (lambda s: failure(s, 3, "etcdserver: duplicate key given in txn request"), InvalidConfig),
    "a large request": (lambda s: failure(s, 3, "etcdserver: request is too large"), InvalidConfig),
    "space": (lambda s: failure(s, 8, "etcdserver: mvcc: database space exceeded"), TryAgainLater),
    "damage": (lambda s: failure(s, 15, "etcdserver: corrupt cluster"), TryAgainLater),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_server_refuses_is_not_tried_again_and_leaves_the_connection_in_step(case: str) -> None:
    play, kind = REFUSED[case]
    with serving(play) as (server, own):
        with pytest.raises(kind) as caught:
            called(own)
        assert not isinstance(caught.value, Unreachable)
        assert called(own) == b"second"
        assert len(server.calls) == 2


def test_what_comes_late_of_an_older_call_is_no_part_of_the_next() -> None:
    late = frame(DATA, 0, 1, message(b"late")) + trailers(1, grpc_status="0") + frame(RESET, 0, 1, number(7))
    with serving(lambda s: failure(s, 3, "etcdserver: no"), lambda s: late + reply(s), lambda s: late) as (server, own):
        with pytest.raises(InvalidConfig):
            called(own)
        assert called(own) == b"first"
        with pytest.raises(Open, match="timed out"):
            called(own)


def test_a_token_that_has_expired_is_replaced_and_the_claim_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TOKENS", str(tmp_path / "tokens"))

    def token(text: bytes) -> Play:
        content = txn.field(2, text)
        return lambda s: raw(s, b"\0" + number(len(content)) + content)

    expired: Play = lambda s: failure(s, 16, "etcdserver: invalid auth token")  # noqa: E731
    server = Server(token(b"t1"), reply, expired, token(b"t2"))
    own = of(server, user="railcni")
    assert [called(own), called(own)] == [b"first", b"second"]
    assert [method for _, _, method in server.calls] == [
        "Auth/Authenticate",
        "KV/Txn",
        "KV/Txn",
        "Auth/Authenticate",
        "KV/Txn",
    ]
    assert server.tokens == ["", "t1", "t1", "", "t2"]
    server.close()


# --- flow control ---


def test_a_server_that_gives_room_after_the_headers_gets_the_message() -> None:
    with serving(first=settings((4, 0)), room=False) as (server, own):
        for _ in range(3):  # the first is sent before the settings have come
            assert called(own) == b"second"
        assert len(server.calls) == 3


def test_no_more_is_sent_than_a_server_has_room_for_also_when_it_takes_room_back() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    content = b"x" * 200_000
    got: list[bytes] = []
    faults: list[str] = []

    def serve() -> None:
        peer, _ = listener.accept()
        stream = peer.makefile("rb")
        stream.read(len(PREFACE))
        ours, own, latest = (1 << 16) - 1, (1 << 16) - 1, (1 << 16) - 1  # of the connection, of the stream
        while True:
            head = stream.read(9)
            data = stream.read(int.from_bytes(head[:3], "big"))
            if head[3] != DATA:
                continue
            got.append(data)
            ours, own = ours - len(data), own - len(data)
            if len(data) > 1 << 14 or ours < 0 or own < 0:
                faults.append(f"{len(data)} {ours} {own}")
            if head[4] & END_STREAM:
                break
            if own and ours:
                continue
            size = 1000 if latest else 30_000  # the room that a stream begins with
            own, latest = own + size - latest, size
            peer.sendall(settings((4, size)))
            given = 20_000 - own  # what it has taken is below 0
            own, ours = own + given, ours + 20_000
            peer.sendall(frame(WINDOW_UPDATE, 0, 0, number(20_000)) + frame(WINDOW_UPDATE, 0, 1, number(given)))
        peer.sendall(reply(1))
        peer.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    own = Client([endpoint(f"127.0.0.1:{listener.getsockname()[1]}", False)], ("", "", ""), "", "", 5)
    assert called(own, content) == b"first"
    thread.join(5)
    assert faults == []
    assert b"".join(got)[5:] == txn.field(1, content)
    listener.close()


def test_a_server_is_given_room_again_for_what_it_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may send 2 GiB without; a small part stands for them."""
    monkeypatch.setattr(grpc, "_LARGEST_WINDOW", 100_000)
    with serving(*[lambda s: reply(s, b"y" * 15_000)] * 20) as (server, own):
        for _ in range(20):
            assert called(own) == b"y" * 15_000
        assert called(own) == b"second"
        sent = 20 * (15_000 + 9)
        assert sent - 50_000 - 16_000 < server.given - (100_000 - 65_535) <= sent


# --- another library ---


def test_a_server_that_ends_connections_at_an_age_serves_every_claim_once() -> None:
    served: list[bytes] = []

    def serve(request: bytes, _: Any) -> bytes:
        served.append(request)
        time.sleep(0.001)
        return request

    handler = grpcio.method_handlers_generic_handler(
        "etcdserverpb.KV", {"Txn": grpcio.unary_unary_rpc_method_handler(serve)}
    )
    ages = [("grpc.max_connection_age_ms", 20), ("grpc.max_connection_age_grace_ms", 1000)]
    server = grpcio.server(ThreadPoolExecutor(2), handlers=[handler], options=ages)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    own = Client([endpoint(f"127.0.0.1:{port}", False)], ("", "", ""), "", "", 5)
    connections = set()
    for i in range(300):
        assert called(own, b"%d" % i) == b"%d" % i
        connections.add(own._connection)
    assert served == [txn.field(1, b"%d" % i) for i in range(300)]
    assert len(connections) > 3
    own.close()
    server.stop(None)


# --- headers ---


def test_a_server_that_keeps_no_table_of_headers_is_told_that_there_is_none() -> None:
    """As its settings ask for (RFC 7541, section 4.2); nghttp2, and with it Envoy, ends a connection else."""
    with serving(first=SETTINGS_OF_NO_TABLE) as (server, own):
        for _ in range(3):
            assert called(own) == b"second"
        assert len(server.calls) == 3


# --- kept connections ---


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "kept", {})
    monkeypatch.setattr(http, "at_end", [])


@pytest.mark.parametrize("end", ["the end", "a GOAWAY"])
def test_a_kept_connection_that_the_server_has_ended_is_not_used(kept: None, end: str) -> None:
    with serving(lambda s: [reply(s), goaway((1 << 31) - 1)] if end == "a GOAWAY" else reply(s)) as (server, own):
        assert called(own) == b"first"
        own.close()
        if end == "the end":
            server.end_connections()
        time.sleep(0.05)
        assert called(of(server)) == b"second"
        assert [which for which, _, _ in server.calls] == [1, 2]


def test_a_kept_connection_serves_no_other_cluster_whose_first_endpoint_is_the_same(kept: None) -> None:
    dead, one, other = Server(), Server(), Server()
    dead.close()
    for server in (one, other, one, other):
        own = of(dead, server)
        assert called(own) == b"second"
        own.close()
    assert [len(server.calls) for server in (one, other)] == [2, 2]
    assert {which for server in (one, other) for which, _, _ in server.calls} == {1}
    one.close()
    other.close()


def test_an_error_names_the_endpoint_of_a_kept_connection(kept: None) -> None:
    dead, one = Server(), Server(SECOND, lambda s: CLOSE)
    dead.close()
    own = of(dead, one)
    assert called(own) == b"second"
    own.close()
    with pytest.raises(Open, match=f"127.0.0.1:{one.port} has not answered"):
        called(of(dead, one))
    one.close()
