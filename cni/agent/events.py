"""Events of Kubernetes, on the pod or the node that something happened to: what `kubectl describe` then shows."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from cni.agent.server import Server
from cni.library.service.log import AgentLog
from cni.shared.spec.errors import CniError

RECLAIMED, CONTENDED = "AddressReclaimed", "AddressContended"
RESTORED, LEASE_RESTORED = "ReservationRestored", "LeaseRestored"
NEAR_LIMIT, EXHAUSTED, UNREADABLE, WAITING = "PoolNearsLimit", "PoolExhausted", "PoolUnreadable", "ReclaimWaits"
OUTDATED = "DefinitionOutdated"
NODES_NAMESPACE = "default"  # where Events of objects without a namespace are
_REPEAT_SECONDS = 3600.0


class Teller:
    """Writes Events in the name of `node`'s agent, and a failure to the log; a lasting fault (`once`) again after an hour."""

    def __init__(self, node: str, log: AgentLog) -> None:
        self._node = node
        self._log = log
        self._told: dict[tuple[str, str], float] = {}

    def about_pod(
        self, server: Server, pod: tuple[str, str, str], reason: str, message: str, kind: str = "Normal"
    ) -> None:
        """On the pod (namespace, name, uid), or on this node when the pod's namespace is gone."""
        namespace, name, uid = pod
        reference = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name}
        if uid:
            reference["uid"] = uid
        if namespace and name and self._tell(server, namespace, reference, reason, message, kind):
            return
        self.about_node(server, reason, message, kind)

    def about_node(self, server: Server, reason: str, message: str, kind: str = "Normal", node: str = "") -> None:
        """On `node`, or on this one."""
        name = node or self._node
        reference = {"kind": "Node", "apiVersion": "v1", "name": name, "uid": name}  # as the kubelet refers to it
        self._tell(server, NODES_NAMESPACE, reference, reason, message, kind)

    def once(self, server: Server, subject: str, reason: str, message: str) -> None:
        """On this node, about something that lasts."""
        now = time.monotonic()
        told = self._told.get((subject, reason))
        if told is None or now - told >= _REPEAT_SECONDS:
            self._told[subject, reason] = now
            self._log.say("warning", message, reason=reason, subject=subject)
            self.about_node(server, reason, message, "Warning")

    def _tell(
        self, server: Server, namespace: str, reference: dict[str, Any], reason: str, message: str, kind: str
    ) -> bool:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{reference['name'][:200]}.{time.time_ns():x}", "namespace": namespace},
            "involvedObject": reference,
            "reason": reason,
            "message": message[:1024],
            "type": kind,
            "source": {"component": "railcni-agent", "host": self._node},
            "reportingComponent": "railcni-agent",
            "reportingInstance": self._node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            return server.tell(namespace, document)
        except CniError as fault:
            self._log.state("events", f"cannot write Events: {fault.msg}")
            return True  # another place would not help
