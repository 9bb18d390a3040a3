"""The election of one agent, the leader, by a Lease: the leader frees the leases of nodes without an agent.

The protocol is that of client-go (tools/leaderelection). The leader counts time from the start of its last renewal,
by a clock that runs while the machine sleeps. It stops freeing leases after two thirds of the Lease's duration. Each
other candidate counts from the time, by its own clock, at which it first saw the last renewal.

An earlier version had its Lease in the namespace of the leases, so during a rollout two agents may be elected. Both
may find the same lease dead, but no address is given twice: each agent reads the lease again right before the
deletion, and the server deletes only the version that was read. The second deletion fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cni.cluster.audit.silence import BOOT_CLOCK, LEASES, NAMESPACE, document, stamp
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, NotFound

NAME = "railcni-agent"


class Election:
    """The part of the candidate `identity` in the election. The Lease lasts `seconds` by `clock`."""

    def __init__(self, identity: str, seconds: float, clock: Callable[[], float] = BOOT_CLOCK) -> None:
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._until = 0.0
        self._observed: tuple[object, ...] = ()
        self._observed_at = 0.0
        self.holder = ""  # the last known holder

    def is_elected(self) -> bool:
        """Whether this candidate holds the Lease now; False once its last renewal is too old."""
        return self._clock() < self._until

    def renew(self, api: Api) -> None:
        """Renew the Lease, or take it when it is free. Raises CniError when a request fails; the Lease then expires."""
        sent = self._clock()
        version, spec = self._read(api)
        self.holder = spec.get("holderIdentity") or ""
        if not self._is_free(spec, sent):
            self._until = 0.0
            return
        was_ours = self.holder == self._identity
        now = stamp()
        new = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "acquireTime": spec.get("acquireTime") or now if was_ours else now,
            "renewTime": now,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (0 if was_ours or not version else 1),
        }
        if self._write(api, version, new):
            self.holder, self._until = self._identity, sent + self._seconds * 2 / 3
        else:
            self._until = 0.0

    def resign(self, api: Api) -> None:
        """Give up the Lease, so that another agent can take it at once."""
        self._until = 0.0
        version, spec = self._read(api)
        if spec.get("holderIdentity") == self._identity:
            given_back = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
            self._write(api, version, given_back)

    def _is_free(self, spec: dict[str, Any], now: float) -> bool:
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        record = (holder, str(spec.get("renewTime")), spec.get("leaseTransitions"))
        if record != self._observed:
            self._observed, self._observed_at = record, now
        seconds = spec.get("leaseDurationSeconds")
        return now >= self._observed_at + (seconds if isinstance(seconds, int) else self._seconds)

    def _read(self, api: Api) -> tuple[str, dict[str, Any]]:
        """Return resourceVersion and spec of the Lease; "" and {} when there is no Lease."""
        try:
            found, _ = api.get(LEASES, NAME, namespace=NAMESPACE)
        except NotFound:
            return "", {}
        return found["metadata"]["resourceVersion"], found.get("spec") or {}

    def _write(self, api: Api, version: str, spec: dict[str, Any]) -> bool:
        """Write `spec` if the Lease still has `version`, "" for no Lease; return False if the Lease has changed."""
        try:
            if version:
                test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
                change = {"op": "add", "path": "/spec", "value": spec}
                api.patch(LEASES, NAME, [test, change], NAMESPACE)
            else:
                api.create(LEASES, document(NAME, spec), NAMESPACE)
        except (Conflict, NotFound):
            return False
        return True
