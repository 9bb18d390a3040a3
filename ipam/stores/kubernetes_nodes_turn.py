"""The turn of one node among all at a pool that they contend for: a Lease of coordination.k8s.io in the pool's namespace.

An API server spends much on a patch of a pool, a quarter of a second for thousands of leases, and hardly less on one
that it refuses, because the object has changed. Sixteen nodes that all patch one pool are refused nine times of ten, and
longer pauses only move that. So who was refused, or whose node was a short while ago, waits for the Lease: who has
the turn hands it on to who has waited longest, and those who wait stand in an annotation.

There are sixteen Leases, and each pool has one of them: so rights can name them, and none is left behind with its pool.

Nothing but speed depends on them: the patch still tests that the object is as it was read. So a server that allows no
Leases, a holder that was killed and a wait that takes too long cost time alone. A holder that has not given the turn
back after the Lease's duration, by the clock of who waits, is taken for dead, as client-go does (tools/leaderelection).
"""

from __future__ import annotations

import _blake2
import posix
import time
from time import monotonic

from cni.spec.errors import CniError
from ipam.stores.kubernetes_api import LEASES, Conflict, Expired, Gone, TooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ipam.stores.kubernetes_api import Api

PREFIX, _COUNT = "railcni-turn-", 16  # of the Leases' names: before 0 to f
WAITING = "railcni.io/waiting"  # the annotation: who waits, in their order
SECONDS = 10  # after which a holder is taken for dead: a server under load needs seconds for a large pool
_PAUSE, _FARTHER, _LONGEST_PAUSE = (
    0.04,
    0.12,
    0.6,
)  # seconds between two looks: of who is next, more for each place behind
_REQUEST_SECONDS = 1.0  # for a request, and for handing the turn on: no more is worth a hint
_FAULTS = (CniError, Conflict, Gone, Expired, TooLarge)


def name_of(pool: str) -> str:
    """The name of the Lease of the pool object `pool`."""
    return f"{PREFIX}{_blake2.blake2b(pool.encode(), digest_size=1).digest()[0] % _COUNT:x}"


class NodesTurn:
    """The Lease `name`. `is_ours`: we have the turn, as far as we know. `failed`: the server does not serve it well."""

    __slots__ = ("_api", "_last", "_observed", "_observed_at", "_place", "_us", "failed", "is_ours", "name")

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self.name = name
        self._us = f"{posix.uname().nodename}-{posix.urandom(8).hex()}"
        self._observed = ("", "")
        self._observed_at = 0.0
        self._place = 0  # among those who wait
        self._last: _Lease | None = None  # as it was when it became ours
        self.is_ours = self.failed = False

    def take(self, deadline: float) -> bool:
        """Wait for the turn until `deadline` (time.monotonic); whether others had it meanwhile."""
        waited = False
        try:
            while not self._bounded(self._try, deadline):
                waited = True
                pause = min(_PAUSE + _FARTHER * self._place, _LONGEST_PAUSE) * (0.5 + posix.urandom(1)[0] / 256)
                if monotonic() + pause > deadline:
                    self.end()
                    break
                time.sleep(pause)
        except _FAULTS:
            self.failed = True
            self.end()  # it may say by now that we wait, or that we have the turn
        return waited

    def end(self) -> None:
        """Neither have the turn nor wait for it: who waits first has it."""
        self.is_ours = False
        until = monotonic() + _REQUEST_SECONDS
        try:
            while not self._bounded(self._left, until) and monotonic() < until:
                time.sleep(_PAUSE * posix.urandom(1)[0] / 256)
        except _FAULTS:
            self.failed = True  # we are taken for dead

    def _bounded(self, do: Callable[[], bool], deadline: float) -> bool:
        """What `do` answers, in little time: a server that does not serve a hint must not use up the time of a call."""
        seconds, until = self._api.seconds, self._api.deadline
        self._api.seconds, self._api.deadline = min(seconds, _REQUEST_SECONDS), min(until, deadline)
        try:
            return do()
        finally:
            self._api.seconds, self._api.deadline = seconds, until

    def _try(self) -> bool:
        """Have the turn if it is free or was handed to us, else be one of those who wait."""
        found = self._read()
        if found is None:
            self._last = self._create()
        elif found.holder == self._us:
            self._last = found
        elif self._is_free(found):
            self._last = self._change(found, self._us, [w for w in found.waiting if w != self._us])
        elif self._us not in found.waiting:
            self._place = len(found.waiting)
            self._change(found, found.holder, [*found.waiting, self._us])
        else:
            self._place = found.waiting.index(self._us)
        self.is_ours = self._last is not None
        return self.is_ours

    def _is_free(self, found: _Lease) -> bool:
        if not found.holder:
            return True
        now = monotonic()
        if (found.holder, found.renewed) != self._observed:
            self._observed, self._observed_at = (found.holder, found.renewed), now
        return now > self._observed_at + SECONDS

    def _left(self) -> bool:
        """Whether we neither have the turn nor wait for it any more; False: once more, for others have changed the Lease."""
        found, self._last = self._last or self._read(""), None
        if found and found.holder == self._us:
            return bool(self._change(found, "".join(found.waiting[:1]), found.waiting[1:]))
        if found and self._us in found.waiting:
            return bool(self._change(found, found.holder, [w for w in found.waiting if w != self._us]))
        return True

    # --- the object ---

    def _read(self, query: str = "resourceVersion=0") -> _Lease | None:
        """The Lease; by default from the server's memory, which may be a little old."""
        try:
            return _Lease(self._api.get(LEASES, self.name, query)[0])
        except Gone:
            return None

    def _create(self) -> _Lease | None:
        metadata = {"name": self.name}
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": _spec(self._us),
        }
        try:
            return _Lease(self._api.create(LEASES, document))
        except Conflict:
            return None

    def _change(self, found: _Lease, holder: str, waiting: list[str]) -> _Lease | None:
        """The Lease with another holder and others who wait; None when it is no more as it was `found`."""
        annotations = {**found.annotations, WAITING: " ".join(waiting)}
        operations: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": found.version},
            {"op": "add", "path": "/metadata/annotations", "value": annotations},
        ]
        if holder != found.holder:
            operations.append({"op": "add", "path": "/spec", "value": _spec(holder)})
        try:
            metadata = self._api.patch(LEASES, self.name, operations).get("metadata")
        except (Conflict, Gone):
            return None
        return _Lease({"metadata": metadata, "spec": {"holderIdentity": holder}})


class _Lease:
    """The Lease as it was read."""

    __slots__ = ("annotations", "holder", "renewed", "version", "waiting")

    def __init__(self, document: dict[str, Any]) -> None:
        metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
        self.annotations: dict[str, str] = metadata.get("annotations") or {}
        self.version = metadata.get("resourceVersion")
        self.waiting = str(self.annotations.get(WAITING) or "").split()
        self.holder = str(spec.get("holderIdentity") or "")
        self.renewed = str(spec.get("renewTime"))


def _spec(holder: str) -> dict[str, Any]:
    now = time.time()
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06}Z"
    return {"holderIdentity": holder, "leaseDurationSeconds": SECONDS, "renewTime": moment}
