"""The Lease of each node's agent, which shows that the agent is alive even after its Node object was deleted.

The name of a Lease is `node-` and the node's name. Its namespace has only these Leases and the Lease of the election,
which has another prefix. An agent renews its Lease once a minute: 8 small requests a second in a cluster of 500
nodes. The Node is not the Lease's owner, since the Lease must outlive the Node. The elected agent deletes the Lease
of a node that is gone for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cni.cluster.audit.cluster import Cluster
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, NotFound

NAMESPACE = "railcni-node-leases"
LEASES = "leases"
_PREFIX = "node-"
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
        try:
            api.create(LEASES, document(name, spec), NAMESPACE)
        except Conflict:
            pass  # a former agent of the node has just renewed it


def delete(api: Api, metadata: dict[str, Any]) -> bool:
    """Delete a gone node's Lease; return False if the Lease has changed. Raises CniError when the request fails."""
    try:
        api.delete(LEASES, metadata["name"], metadata["uid"], metadata["resourceVersion"], NAMESPACE)
    except (Conflict, NotFound):
        return False
    return True


class SilenceWatch:
    """A watch for silent agents. It does not use the times in Leases, since the clocks of nodes differ.

    An agent is silent when its Lease has not changed for `grace` seconds and for its leaseDurationSeconds, at most
    600. So after a single reading no agent is silent. After a long pause between two readings the counting begins
    again, since perhaps no agent could renew its Lease in the pause.
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
