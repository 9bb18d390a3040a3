"""The leader of all agents, for orphaned leases: it renews a Lease of coordination.k8s.io.

The protocol is that of client-go (tools/leaderelection). The leader counts from the start of its last renewal, by a clock that
goes on while the machine sleeps, and gives up a third before the others may take the Lease. They count from the renewal that
they saw, by their own clocks, which may differ.

An agent of a version that held its Lease in the leases' namespace may be elected beside this one during a rollout. Both may
then find one lease dead, and nothing is given twice: each reads the lease again right before, and the server deletes it only in
the version that was read (UID and resourceVersion, or a test of the pool's entry). The second finds it gone, or changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cni.cluster.audit.silence import BOOT_CLOCK, LEASES, NAMESPACE, document, stamp
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Gone

NAME = "railcni-agent"


class Election:
    """The candidate `identity`; a renewal lasts for `seconds`."""

    def __init__(self, identity: str, seconds: float, clock: Callable[[], float] = BOOT_CLOCK) -> None:
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._until = 0.0
        self._observed: tuple[object, ...] = ()
        self._observed_at = 0.0
        self.holder = ""  # as far as it is known

    def is_elected(self) -> bool:
        """Whether this candidate holds the lease now; False once its last renewal is too old."""
        return self._clock() < self._until

    def renew(self, api: Api) -> None:
        """Renew the lease, or take it when nobody holds it. A CniError of `api` leaves it as it was, to run out."""
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
        """Give the lease back, so that another need not wait for its end."""
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
        """The resourceVersion and the spec of the Lease; "" and {} when there is none."""
        try:
            found, _ = api.get(LEASES, NAME, namespace=NAMESPACE)
        except Gone:
            return "", {}
        return found["metadata"]["resourceVersion"], found.get("spec") or {}

    def _write(self, api: Api, version: str, spec: dict[str, Any]) -> bool:
        """Write `spec` if the Lease still has `version`; create the Lease if that is "". False after a conflict."""
        try:
            if version:
                test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
                change = {"op": "add", "path": "/spec", "value": spec}
                api.patch(LEASES, NAME, [test, change], NAMESPACE)
            else:
                api.create(LEASES, document(NAME, spec), NAMESPACE)
        except (Conflict, Gone):
            return False
        return True
