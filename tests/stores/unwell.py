"""A proxy before the server of a store, API server or etcd, that makes it unwell: one table of illnesses for every store."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from ipam import search
from ipam.stores import base
from tests import http_server, served

Answer = tuple[int, str, str]  # status, content type, body


def _status(code: int, reason: str, message: str, **details: Any) -> Answer:
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}, "code": code}
    return code, "application/json", json.dumps({**said, "reason": reason, "message": message, "details": details})


def _gateway(code: int, number: int, message: str) -> Answer:
    said = {"error": message, "code": number, "message": message, "details": []}
    return code, "application/json", json.dumps(said)


_PROXY = (503, "text/plain", "upstream connect error or disconnect/reset before headers")
_LEADER = "etcdserver: leader changed"
LOST, LOST_AFTER, LATE, CUT, SLOW = "lost", "lost after", "late", "cut", "slow"
ILL: dict[str, tuple[Answer | str, Answer | str]] = {
    # what an API server does to a change, and what etcd's gateway does, by the texts of real ones (k8s.io/apimachinery/pkg/
    # api/errors, k8s.io/apiserver, go.etcd.io/etcd/api/v3rpc/rpctypes)
    "a proxy's refusal": (_PROXY, _PROXY),
    "unavailable": (
        _status(503, "ServiceUnavailable", "the server is currently unable to handle the request"),
        _gateway(503, 14, "etcdserver: no leader"),
    ),
    "too many": (
        _status(429, "TooManyRequests", "too many requests, please try again later"),
        _gateway(429, 8, "etcdserver: too many requests"),
    ),
    "timeout": (
        _status(
            504, "Timeout", "Timeout: request did not complete within requested timeout - context deadline exceeded"
        ),
        _gateway(503, 14, "etcdserver: request timed out"),
    ),
    "leader changed": (_status(500, "", _LEADER), _gateway(503, 14, _LEADER)),
    "try again": (
        _status(
            500, "ServerTimeout", "The POST operation against X could not be completed at this time, please try again."
        ),
        _gateway(503, 14, "etcdserver: request timed out, possibly due to previous leader failure"),
    ),
    LOST: (LOST, LOST),  # the connection is closed before the server gets the request
    LOST_AFTER: (LOST_AFTER, LOST_AFTER),  # … when the server has served it, instead of the reply
    LATE: (LATE, LATE),  # … before the server gets it, which then serves it after some of the next changes
    CUT: (CUT, CUT),  # … after half of the reply
    SLOW: (SLOW, SLOW),
}
_SLOW_SECONDS = 0.05
_BETWEEN = 27, 9, 3, 1  # changes that are served before a late one, in turn
_HURRY = 20.0


class Unwell:
    """`with Unwell(port, is_etcd) as unwell`: a server at `unwell.port` that passes requests on to 127.0.0.1:`port`.

    `own_port` is the port that it takes, 0 for any. `choose` is asked for each change by its method, its path and the name of a new object, and names an illness of ILL, or "" for none.
    In the end all late requests have been served.
    """

    def __init__(self, port: int, is_etcd: bool, choose: Callable[[str], str], own_port: int = 0) -> None:
        served.note_unwell()
        self.choose = choose
        self.met: list[str] = []
        self._port = port
        self._late: list[tuple[int, Any]] = []  # the number of changes to be served before a request, and the request
        self._between = itertools.cycle(_BETWEEN)
        self._lock = threading.Lock()
        outer = self

        class Handler(http_server.Handler):
            def answer(self) -> None:
                request = self.command, self.path, self.body(), dict(self.headers)
                illness = ""
                is_change = _changes(is_etcd, *request[:3])
                if is_change:
                    is_new = self.command == "POST" and not is_etcd
                    name = json.loads(request[2])["metadata"]["name"] if is_new else ""
                    illness = outer.choose(f"{self.command} {self.path} {name}")
                if illness:
                    outer.met.append(illness)
                does = ILL[illness][is_etcd] if illness else ""
                if does == SLOW:
                    time.sleep(_SLOW_SECONDS)
                if does == LATE:
                    with outer._lock:
                        outer._late.append((next(outer._between), request))
                if does in (LOST, LATE):
                    self.close_connection = True
                    return
                status, kind, said = does if isinstance(does, tuple) else outer._pass_on(*request)
                if is_change:
                    outer._catch_up()
                data = said.encode()
                self.close_connection = does in (LOST_AFTER, CUT)
                if does != LOST_AFTER:
                    self.reply(status, data, kind, sent=len(data) // 2 if does == CUT else None)

        self._server = http_server.Server(Handler, own_port)
        self.port: int = self._server.server_port

    def __enter__(self) -> Unwell:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self.catch_up()

    def catch_up(self) -> None:
        """Serve all late requests."""
        self._catch_up(max(_BETWEEN))

    def _pass_on(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        server = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            server.request(method, path, body, headers)
            reply = server.getresponse()
            return reply.status, reply.headers.get("Content-Type", ""), reply.read().decode()
        finally:
            server.close()

    def _catch_up(self, changes: int = 1) -> None:
        """Serve the late requests that are due now that so many changes have been served."""
        with self._lock:
            late = [(left - changes, request) for left, request in self._late]
            self._late = [kept for kept in late if kept[0] > 0]
        for left, request in late:
            if left <= 0:
                with suppress(OSError):  # the server has been killed
                    self._pass_on(*request)


@contextmanager
def ailing(port: int, is_etcd: bool = False) -> Iterator[Unwell]:
    """A server before that at `port`, of which each third change falls ill, in turn in each way.

    The pauses of stores are short, and after a lost claim a search begins with the lowest address again: so a stale cache
    changes no address that a test expects.
    """
    with pytest.MonkeyPatch.context() as patch, Unwell(port, is_etcd, in_turn(3)) as unwell:
        patch.setattr(base, "time", Hurry)
        patch.setattr(search, "search_start", lambda rng, *_: next(iter(rng.spans()), (rng.first,))[0])
        yield unwell


class Hurry:
    """In place of the module `time` of ipam/stores/base.py: the pauses between attempts are a twentieth as long."""

    monotonic, time, time_ns = time.monotonic, time.time, time.time_ns

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(seconds / _HURRY)


def _changes(is_etcd: bool, method: str, path: str, body: bytes) -> bool:
    if is_etcd:
        return path.endswith("/kv/txn") and (b"request_put" in body or b"request_delete_range" in body)
    return method != "GET" and "dryRun" not in path and "selfsubjectaccessreviews" not in path


def in_turn(every: int, illnesses: Sequence[str] = tuple(ILL)) -> Callable[[str], str]:
    """What chooses one of `illnesses`, one after another, for the first of `every` arrivals of the same change."""
    arrivals: dict[str, int] = {}
    turns, lock = itertools.cycle(illnesses), threading.Lock()

    def choose(change: str) -> str:
        with lock:
            arrivals[change] = arrivals.get(change, -1) + 1
            return "" if arrivals[change] % every else next(turns)

    return choose


def first(illness: str, count: int) -> Callable[[str], str]:
    """What chooses `illness` for the first `count` changes."""
    left = [illness] * count
    return lambda change: left.pop() if left else ""
