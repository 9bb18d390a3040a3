"""Events of Kubernetes about a pod or a node, which `kubectl describe` shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from cni.cluster.audit.cluster import Cluster
from cni.node.service.log import AgentLog
from cni.shared.spec.errors import CniError
from ipam.stores.apiserver.faults import Conflict, NoNamespace, Terminating, Undefined

RECLAIMED, CONTENDED = "AddressReclaimed", "AddressContended"
RESTORED, LEASE_RESTORED = "ReservationRestored", "LeaseRestored"
EXHAUSTED, UNREADABLE, WAITING = "PoolExhausted", "PoolUnreadable", "ReclaimWaits"
OUTDATED = "DefinitionOutdated"
NODES_NAMESPACE = "default"  # the namespace of Events about cluster-scoped objects
_REPEAT_SECONDS = 3600.0


class Teller:
    """The writer of Events for the agent of `node`. A failure to write an Event is logged."""

    def __init__(self, server: Callable[[], Cluster], node: str, log: AgentLog) -> None:
        self._server = server
        self._node = node
        self._log = log
        self._told: dict[tuple[str, str], float] = {}

    def about_pod(self, pod: tuple[str, str, str], reason: str, message: str, kind: str = "Normal") -> None:
        """Write an Event about the pod (namespace, name, uid), or about this node when the pod's namespace is gone."""
        namespace, name, uid = pod
        reference = {"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": name}
        if uid:
            reference["uid"] = uid
        if not (namespace and name and self._tell(namespace, reference, reason, message, kind)):
            self._about_node(reason, message, kind)

    def _about_node(self, reason: str, message: str, kind: str) -> None:
        # as in the kubelet's Events: the name also stands for the UID
        reference = {"kind": "Node", "apiVersion": "v1", "name": self._node, "uid": self._node}
        self._tell(NODES_NAMESPACE, reference, reason, message, kind)

    def once(self, subject: str, reason: str, message: str) -> None:
        """Log a fault, and write an Event about this node, at most once an hour for the same `subject` and `reason`."""
        now = time.monotonic()
        told = self._told.get((subject, reason))
        if told is None or now - told >= _REPEAT_SECONDS:
            self._told[subject, reason] = now
            self._log.say("warning", message, reason=reason, subject=subject)
            self._about_node(reason, message, "Warning")

    def _tell(self, namespace: str, reference: dict[str, Any], reason: str, message: str, kind: str) -> bool:
        """Create the Event; return False when the namespace does not exist."""
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
            self._server().api.create("events", document, namespace)
        except (NoNamespace, Undefined, Terminating):
            return False  # the namespace is gone, or is being deleted
        except Conflict:
            pass  # the Event exists already
        except CniError as fault:
            self._log.state("events", f"cannot write Events: {fault.msg}")  # in another namespace this would fail too
        return True
