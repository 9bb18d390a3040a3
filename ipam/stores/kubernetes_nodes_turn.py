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
from ipam.stores.kubernetes_api import LEASES, Conflict, Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
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
_ATTEMPTS = 10  # to change the Lease while others do


def name_of(pool: str) -> str:
    """The name of the Lease of the pool object `pool`."""
    return f"{PREFIX}{_blake2.blake2b(pool.encode(), digest_size=1).digest()[0] % _COUNT:x}"


class NodesTurn:
    """The Lease `name`. `is_ours`: we have the turn, as far as we know."""

    __slots__ = ("_api", "_last", "_name", "_observed", "_observed_at", "_place", "_us", "is_ours")

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._name = name
        self._us = f"{posix.uname().nodename}-{posix.urandom(8).hex()}"
        self._observed = ("", "")
        self._observed_at = 0.0
        self._place = 0  # among those who wait
        self._last: _Lease | None = None  # as it was when it became ours
        self.is_ours = False

    def take(self, deadline: float) -> bool:
        """Wait for the turn until `deadline` (time.monotonic); whether others had it meanwhile."""
        waited = False
        try:
            while not self._try():
                waited = True
                pause = min(_PAUSE + _FARTHER * self._place, _LONGEST_PAUSE) * (0.5 + posix.urandom(1)[0] / 256)
                if monotonic() + pause > deadline:
                    self._leave()
                    break
                time.sleep(pause)
        except CniError:
            pass
        return waited

    def end(self) -> None:
        """Hand the turn on, if we have it."""
        if self.is_ours:
            self.is_ours = False
            try:
                self._leave()
            except CniError:
                pass  # we are taken for dead

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

    def _leave(self) -> None:
        """Neither have the turn nor wait for it."""
        found, self._last = self._last, None
        for _ in range(_ATTEMPTS):
            found = found or self._read()
            if found is None:
                return
            if found.holder == self._us:
                done = self._change(found, "".join(found.waiting[:1]), found.waiting[1:])
            elif self._us in found.waiting:
                done = self._change(found, found.holder, [w for w in found.waiting if w != self._us])
            else:
                return
            if done:
                return
            found = None
            time.sleep(_PAUSE * posix.urandom(1)[0] / 256)

    # --- the object ---

    def _read(self) -> _Lease | None:
        try:
            return _Lease(self._api.get(LEASES, self._name, "resourceVersion=0")[0])  # 0: from the server's memory
        except Gone:
            return None

    def _create(self) -> _Lease | None:
        metadata = {"name": self._name}
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
            metadata = self._api.patch(LEASES, self._name, operations).get("metadata")
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
