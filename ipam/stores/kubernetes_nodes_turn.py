"""The turn of one node among all at a pool that they contend for: a Lease of coordination.k8s.io beside the pool.

An API server spends as much on a patch that it refuses, because the object has changed, as on one that it accepts: a
quarter of a second for thousands of leases. Sixteen nodes that all patch one pool are refused nine times of ten, and
longer pauses only move that. So who was refused, or whose node was a short while ago, waits until the Lease is free.

Nothing but speed depends on it: the patch still tests that the object is as it was read. So a server that allows no
Leases, a holder that was killed and a wait that takes too long cost time alone. A holder that has not changed the
Lease for its duration, by the clock of who waits, is taken for dead, as client-go does (tools/leaderelection).
"""

from __future__ import annotations

import posix
import time
from time import monotonic

from cni.spec.errors import CniError
from ipam.stores.kubernetes_api import LEASES, Conflict, Gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ipam.stores.kubernetes_api import Api

PREFIX = "railcni-turn-"  # of the Lease's name, before the pool's
SECONDS = 5  # that a holder is not taken for dead: some twenty times a turn's
_LONGEST_PAUSE, _SHORTEST_PAUSE = 0.3, 0.05
_PATIENCE = 6.0  # seconds of waiting after which the shortest pause is made: who has waited longest is first


class NodesTurn:
    """The Lease of the pool object `pool`."""

    __slots__ = ("_api", "_name", "_observed", "_observed_at", "_us", "is_ours")

    def __init__(self, api: Api, pool: str) -> None:
        self._api = api
        self._name = PREFIX + pool
        self._us = f"{posix.uname().nodename}-{posix.urandom(8).hex()}"
        self.is_ours = False
        self._observed = ""
        self._observed_at = 0.0

    def take(self, deadline: float) -> bool:
        """Wait for the turn until `deadline` (time.monotonic); whether others had it meanwhile."""
        began = monotonic()
        waited = False
        try:
            while not self._try():
                waited = True
                now = monotonic()
                pause = max(_SHORTEST_PAUSE, _LONGEST_PAUSE * (1 - (now - began) / _PATIENCE))
                pause *= 0.5 + posix.urandom(1)[0] / 256
                if now + pause > deadline:
                    break
                time.sleep(pause)
        except CniError:
            pass
        return waited

    def _try(self) -> bool:
        try:
            found = self._api.get(LEASES, self._name, "resourceVersion=0")[0]
        except Gone:
            return self._create()
        metadata, spec = found.get("metadata") or {}, found.get("spec") or {}
        if not self._is_free(str(metadata.get("resourceVersion")), spec):
            return False
        try:
            self._api.patch(
                LEASES,
                self._name,
                [
                    {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.get("resourceVersion")},
                    {"op": "add", "path": "/spec", "value": self._spec(self._us)},
                ],
            )
        except (Conflict, Gone):
            return False
        self.is_ours = True
        return True

    def _create(self) -> bool:
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(self._us),
        }
        try:
            self._api.create(LEASES, document)
        except Conflict:
            return False
        self.is_ours = True
        return True

    def _is_free(self, version: str, spec: dict[str, Any]) -> bool:
        if not spec.get("holderIdentity"):
            return True
        now = monotonic()
        if version != self._observed:
            self._observed, self._observed_at = version, now
        return now > self._observed_at + SECONDS

    def end(self) -> None:
        """Let the next have the turn, if we have it."""
        if not self.is_ours:
            return
        self.is_ours = False
        try:
            self._api.patch(
                LEASES,
                self._name,
                [
                    {"op": "test", "path": "/spec/holderIdentity", "value": self._us},
                    {"op": "add", "path": "/spec", "value": self._spec("")},
                ],
            )
        except (CniError, Conflict, Gone):
            pass  # it is taken for dead, or has been

    def _spec(self, holder: str) -> dict[str, Any]:
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06}Z"
        return {"holderIdentity": holder, "leaseDurationSeconds": SECONDS, "renewTime": moment}
