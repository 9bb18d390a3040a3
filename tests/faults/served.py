"""What a server, or the network before it, does to one request of a call, as a gate counts them; then it is well again."""

import json
import threading

from tests.faults.backing import RESERVATIONS, Served
from tests.faults.cases import Operation
from tests.faults.gate import CUT, RESET, Answer, Request, Serve
from tests.faults.inject import Command, Outcome, begin, finished
from tests.faults.scene import Scene
from tests.faults.trace import Call
from tests.node import Call as Started
from tests.node import until

_STORM = 5  # changes that are refused in a row
_SECONDS = 30.0


class Trouble:
    """One kind of it, at the request `number`. A class for each kind; its docstring is what happens."""

    stores: tuple[str, ...] = ("etcd", "kubernetes", "addresslease")
    changes = False  # only at requests that change something
    reads = False  # only at those that do not
    silent = False  # the client waits until its time is over: it is given less of it
    kills = False  # the call is killed then
    late = False  # the request is served while later calls run

    def __init__(self, number: int, backing: Served) -> None:
        self.number = number
        self.backing = backing

    def __call__(self, request: Request, serve: Serve) -> Answer | str:
        return self.struck(request, serve) if request.number == self.number else serve()

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        raise NotImplementedError

    def over(self) -> None:
        """The call has ended: be well."""

    def next_is_over(self) -> None:
        """The next call has ended."""


class ReplyLost(Trouble):
    """It is served, and the connection ends without the reply."""

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        serve()
        return CUT


class ResetBefore(Trouble):
    """The connection is reset, and it is not served."""

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        return RESET


class ResetAfter(Trouble):
    """It is served, and the connection is reset."""

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        serve()
        return RESET


class ErrorAfter(Trouble):
    """It is served, and the answer is an error: 500, or etcd's time out."""

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        serve()
        if self.backing.name == "etcd":
            return _of_etcd(503, 14, "etcdserver: request timed out")
        return _status(500, "InternalError", "etcdserver: request timed out")


class TooMany(Trouble):
    """It is not served, since there are too many: 429 with Retry-After."""

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        if self.backing.name == "etcd":
            return _of_etcd(429, 8, "etcdserver: too many requests")
        return _status(429, "TooManyRequests", "too many requests, try again later", retryAfterSeconds=1)


class NoLeader(Trouble):
    """It is not served, since there is no leader."""

    stores = ("etcd",)

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        return _of_etcd(503, 14, "etcdserver: no leader")


class Conflicts(Trouble):
    """It and the next changes are refused as conflicts: 409."""

    stores = ("kubernetes", "addresslease")
    changes = True
    _count = 0

    def __call__(self, request: Request, serve: Serve) -> Answer | str:
        if request.number < self.number or not request.changes or self._count == _STORM:
            return serve()
        self._count += 1
        return _status(409, "Conflict", "the object has been modified; please apply your changes to the latest version")


class Stale(Trouble):
    """A read answers what was there long ago."""

    stores = ("kubernetes", "addresslease")
    reads = True

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        return self.backing.long_ago(request.target) or serve()


class Stopped(Trouble):
    """The server is stopped before it serves it, until the call has ended; then it serves what has come."""

    silent = True

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        self.backing.gate.holds = True
        self.backing.pause()
        return serve()

    def over(self) -> None:
        self.backing.resume()
        self.backing.gate.holds = False


class DiesBefore(Trouble):
    """The server is killed instead of serving it."""

    silent = True

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        self.backing.die()
        return CUT

    def over(self) -> None:
        self.backing.revive()


class DiesAfter(DiesBefore):
    """The server is killed when it has served it, before the reply is there."""

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        serve()
        return super().struck(request, serve)


class Late(Trouble):
    """It is served after the next call."""

    silent = True
    changes = True
    late = True

    def __init__(self, number: int, backing: Served) -> None:
        super().__init__(number, backing)
        self._goes_on, self._served = threading.Event(), threading.Event()

    def struck(self, request: Request, serve: Serve) -> Answer | str:
        self.backing.gate.holds = True
        self._goes_on.wait(_SECONDS)
        serve()
        self._served.set()
        return CUT

    def let_go(self) -> None:
        """Serve it now."""
        self._goes_on.set()
        if not self._served.wait(_SECONDS):
            raise RuntimeError("the request that was held back has not been served")
        self.backing.gate.holds = False

    def next_is_over(self) -> None:
        self.let_go()


class Overtaken(Late):
    """It is served during the next call, between what that reads and the first change that goes by it."""

    _has_read = False

    def over(self) -> None:
        self.backing.gate.begin(self._following)

    def _following(self, request: Request, serve: Serve) -> Answer | str:
        if request.changes and self._has_read and self.backing.gate.holds:
            self.let_go()
        self._has_read = not request.changes
        return serve()

    def next_is_over(self) -> None:
        if self.backing.gate.holds:  # the next call has changed nothing
            self.let_go()


class KilledLate(Late):
    """The call is killed while it waits for it; it is served after the next call."""

    kills = True


class KilledOvertaken(Overtaken):
    """The call is killed while it waits for it; it is served during the next call."""

    kills = True


TROUBLES: dict[str, type[Trouble]] = {
    "reply-lost": ReplyLost, "reset-before": ResetBefore, "reset-after": ResetAfter, "error-after": ErrorAfter,
    "too-many": TooMany, "no-leader": NoLeader, "conflicts": Conflicts, "stale-read": Stale, "stopped": Stopped,
    "dies-before": DiesBefore, "dies-after": DiesAfter, "late": Late, "overtaken": Overtaken,
    "killed-late": KilledLate, "killed-overtaken": KilledOvertaken,
}  # fmt: skip


def meets(fault: str, operation: Operation, request: Call) -> bool:
    """Whether the trouble `fault` can happen to this request, a point of `operation`."""
    kind = TROUBLES[fault]
    changes = request.result == str(True)
    fits = operation.store in kind.stores and operation.verb in ("ADD", "DEL")
    return fits and not (kind.changes and not changes) and not (kind.reads and changes)


def strike(scene: Scene, verb: str, fault: str, point: Call) -> Outcome:
    """Call `verb` for the victim, with the trouble `fault` at the request `point`."""
    backing = scene.backing
    assert isinstance(backing, Served)
    kind = TROUBLES[fault]
    trouble = kind(point.ordinal, backing)
    with scene.patience(1 if kind.silent else 5):
        command = scene.command(verb, scene.victim)
    backing.gate.begin(trouble)
    started = call(scene, command)
    if kind.kills:
        begin(started)
        if until(lambda: backing.gate.holds, _SECONDS):
            started.process.kill()
    outcome = finished(started)
    seen = backing.gate.seen
    outcome.hit = seen[point.ordinal - 1].call() if len(seen) >= point.ordinal else None
    backing.gate.begin()
    trouble.over()
    if kind.late:
        scene.held = trouble
        scene.late_reservation = point.path.startswith("POST ") and RESERVATIONS in point.path
    return outcome


def call(scene: Scene, command: Command) -> Started:
    """Start `command` without strace."""
    return Started(scene.node.start([command.executable], env=command.environ), command.stdin)


def _status(code: int, reason: str, message: str, **details: object) -> Answer:
    document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return code, json.dumps(document | {"reason": reason, "code": code, "details": details}).encode()


def _of_etcd(status: int, code: int, message: str) -> Answer:
    return status, json.dumps({"error": message, "code": code, "message": message}).encode()
