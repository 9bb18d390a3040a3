"""The Leases of agents. Each node has a Lease that shows that the node's agent is alive, even after the Node object was
deleted. The Lease of the election shows which agent frees the address leases of nodes without an agent.

A node's Lease has the name `node-NAME`; the Lease of the election has another prefix. Their namespace has no other
Leases. An agent renews its Lease once a minute: 8 small requests a second in a cluster of 500 nodes. The Node is not
the Lease's owner, since the Lease must outlive the Node. The elected agent deletes the Lease of a deleted node.

The protocol of the election is that of client-go (tools/leaderelection). The leader measures the time since the start
of its last renewal, by a clock that runs while the machine sleeps. After two thirds of the Lease's duration it stops
freeing leases. Another candidate takes the Lease when, by its own clock, it has seen no renewal for the whole duration.

An earlier version had the election in the namespace of the address leases, so during an update two agents may be
elected. Both may find the same address lease dead, but no address is given twice: each agent reads the lease again
right before the deletion, and the server deletes only the version that was read. The second deletion fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cni.cluster.audit.cluster import Cluster
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, NotFound

NAMESPACE = "railcni-node-leases"
LEASES = "leases"
_PREFIX, _ELECTION = "node-", "railcni-agent"  # the prefix of nodes' Leases; the name of the election's Lease
BOOT_CLOCK = partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # runs while the machine sleeps


def stamp() -> str:
    """The present time in the format of a Lease: RFC 3339 with microseconds, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def document(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A new Lease as JSON."""
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def nodes_of(leases: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The Leases of nodes' agents among `leases`, by the name of the node."""
    named = {one["metadata"]["name"]: one for one in leases}
    return {name.removeprefix(_PREFIX): one for name, one in named.items() if name.startswith(_PREFIX)}


def renew(api: Api, node: str, seconds: float) -> None:
    """Renew the Lease of the agent on `node` for `seconds`, or create it. Raises CniError when a request fails."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": max(1, round(seconds)), "renewTime": stamp()}
    name = _PREFIX + node
    try:
        api.patch(LEASES, name, [{"op": "add", "path": "/spec", "value": spec}], NAMESPACE)
    except (Conflict, NotFound):
        with suppress(Conflict):  # a former agent of the node has just renewed it
            api.create(LEASES, document(name, spec), NAMESPACE)


def delete(api: Api, metadata: dict[str, Any]) -> bool:
    """Delete the Lease of a deleted node. Returns False if the Lease has changed. Raises CniError on failure."""
    try:
        api.delete(LEASES, metadata["name"], metadata["uid"], metadata["resourceVersion"], NAMESPACE)
    except (Conflict, NotFound):
        return False
    return True


class SilenceWatch:
    """A watch for silent agents. It does not use the times in Leases, since the clocks of nodes differ.

    An agent is silent when its Lease has not changed for `grace` seconds or, if that is longer, for its
    leaseDurationSeconds (at most 600). So no agent is silent after the first reading. After a long pause between two
    readings the time is counted anew, since perhaps no agent could renew its Lease in the pause.
    """

    _LONGEST = 600.0
    _PAUSE = 120.0

    def __init__(self, grace: float = 60.0, clock: Callable[[], float] = BOOT_CLOCK) -> None:
        self._grace = grace
        self._clock = clock
        self._seen: dict[str, tuple[object, float]] = {}  # by node: the Lease's renewTime, and when it was first read
        self._read_at = 0.0

    def alive(self, cluster: Cluster) -> set[str]:
        """The nodes whose agents have a Lease and are not silent. Raises CniError when the Leases cannot be read."""
        return {node for node, (is_silent, _) in self._read(cluster).items() if not is_silent}

    def silent(self, cluster: Cluster) -> dict[str, dict[str, Any]]:
        """The metadata of the Leases of silent agents, by node. Raises CniError when the Leases cannot be read."""
        return {node: metadata for node, (is_silent, metadata) in self._read(cluster).items() if is_silent}

    def _read(self, cluster: Cluster) -> dict[str, tuple[bool, dict[str, Any]]]:
        pages = cluster.pages(LEASES, dict, namespace=NAMESPACE)
        found = nodes_of(one for page in pages for one in page)
        now = self._clock()
        if now - self._read_at > max(2 * self._grace, self._PAUSE):
            self._seen = {}
        former, self._seen, self._read_at = self._seen, {}, now
        answer = {}
        for node, lease in found.items():
            spec = lease.get("spec") or {}
            renewal, promised = spec.get("renewTime"), spec.get("leaseDurationSeconds")
            known, since = former.get(node, (renewal, now))
            self._seen[node] = renewal, since if known == renewal else now
            wait = max(self._grace, min(promised, self._LONGEST) if isinstance(promised, int) else 0)
            answer[node] = now - self._seen[node][1] >= wait, lease["metadata"]
        return answer


class Election:
    """This process as the candidate `identity` in the election. The Lease lasts `seconds`, measured by `clock`."""

    def __init__(self, identity: str, seconds: float, clock: Callable[[], float] = BOOT_CLOCK) -> None:
        self._identity = identity
        self._seconds = seconds
        self._clock = clock
        self._until = 0.0
        self._observed: tuple[object, ...] = ()
        self._observed_at = 0.0
        self.holder = ""  # the last known holder

    def is_elected(self) -> bool:
        """Whether this candidate holds the Lease now, and its last renewal is recent enough."""
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
        """Return (resourceVersion, spec) of the Lease; ("", {}) when there is no Lease."""
        try:
            found, _ = api.get(LEASES, _ELECTION, namespace=NAMESPACE)
        except NotFound:
            return "", {}
        return found["metadata"]["resourceVersion"], found.get("spec") or {}

    def _write(self, api: Api, version: str, spec: dict[str, Any]) -> bool:
        """Write `spec` if the Lease still has the resourceVersion `version` ("": no Lease); return False otherwise."""
        try:
            if version:
                test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
                change = {"op": "add", "path": "/spec", "value": spec}
                api.patch(LEASES, _ELECTION, [test, change], NAMESPACE)
            else:
                api.create(LEASES, document(_ELECTION, spec), NAMESPACE)
        except (Conflict, NotFound):
            return False
        return True
