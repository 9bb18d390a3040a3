"""Which leases the collector frees: those that an audit calls dead, twice, a grace apart, and that no pod can be using. Pure.

The collector takes only those findings of `railcni ipam audit` that the pod's object decides: the pod is gone, is another of
the same name, or has ended. A network-status alone decides nothing here: Multus writes it after the ADD.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cni.library.audit import findings
from cni.library.audit.lease_rules import AuditRules
from cni.library.audit.model import Key, Name, Node, Pod, Snapshot
from ipam.leases import Lease

_WAITS_FOR_NODE = (
    "node {}{} is not ready, and the pod may still run there: repair the node, delete it, or taint it with"
    " node.kubernetes.io/out-of-service when it is off"
)
_WAITS_FOR_AGENT = (
    "it was on node {}, where it may still run, and that node's agent frees only what its records hold. If the pod has"
    " ended, free the lease with `railcni ipam reclaim`"
)
_NODE_UNKNOWN = (
    "its node is unknown, and it may still run there: see `railcni ipam audit`. If the pod has ended, free"
    " the lease with `railcni ipam reclaim`"
)
_AGENT_LIVES = (
    "node {0} has no Node object, but its agent renews the Lease node-{0}, and the pod may still run there: start its kubelet again,"
    " or stop the node"
)
_DEAD = (findings.LEASE_WITHOUT_POD, findings.LEASE_OF_ENDED_POD, findings.LEASE_OF_ANOTHER_UID)


def find_dead(leases: Collection[Lease], pods: Mapping[Name, Pod]) -> dict[Key, str]:
    """The dead ones of `leases`, each with the reason; `pods` hold those of their names that exist."""
    rules = AuditRules(Snapshot("", leases, pods=pods))
    found = ((one.identity, rules.lease(one)) for one in leases)
    return {key: f.message for key, f in found if f and f.action == findings.RECLAIM and f.kind in _DEAD}


def is_abandoned(lease: Lease, nodes: Mapping[str, Node]) -> bool:
    """Whether no node's agent frees the lease: its node is unknown, gone, or out of service for good."""
    node = nodes.get(lease.node)
    return node is None or node.out_of_service


def blocker(
    lease: Lease,
    nodes: Mapping[str, Node],
    seen_on: str | None,
    is_over: bool,
    named: Collection[str] = (),
    alive: Collection[str] = (),
) -> str:
    """The reason why an abandoned lease whose pod is gone cannot be freed yet, "" for none: its pod may run somewhere.

    A pod can be deleted from the API while it runs: its node does not answer, or it was deleted by force and needs long
    to end. Only its node's agent can tell. `seen_on` is the node on which the pod was seen while it lived, "" for several,
    None for none; `is_over`: its containers have ended, as its node says. `named` are the nodes that leases name. A node
    that the API does not know is deleted, or its plugins use another name for it: then it may be any silent node that no
    lease names. `alive` are the nodes whose agents renew their Leases: one that is deleted may still run its pods.
    """
    for name in (seen_on, lease.node):
        if name and name not in nodes and name in alive:
            return _AGENT_LIVES.format(name)
    where = nodes.get(seen_on) if seen_on else None
    if where and (where.may_run_on or not (is_over or where.out_of_service)):
        return _WAITS_FOR_NODE.format(where.name, "") if where.may_run_on else _WAITS_FOR_AGENT.format(where.name)
    if seen_on or lease.node in nodes:
        return ""  # the node is deleted, or an administrator has said that it is off
    if not lease.node:
        return _NODE_UNKNOWN
    silent = sorted(n for n, node in nodes.items() if node.may_run_on and n not in named)
    if not silent:
        return ""
    return _WAITS_FOR_NODE.format(silent[0], f" and {len(silent) - 1} more" if len(silent) > 1 else "")


class GraceTracker:
    """Leases that each reading since the first has found dead, and its time; in memory alone, so a new agent begins again."""

    def __init__(self) -> None:
        self.leases: dict[Key, Lease] = {}
        self._first: dict[Key, float] = {}

    def saw(self, dead: Mapping[Key, Lease], now: float, grace: float) -> list[Key]:
        """Those of `dead` that the first reading found at least `grace` seconds ago."""
        self.leases = dict(dead)
        self._first = {key: self._first.get(key, now) for key in dead}
        return [key for key, first in self._first.items() if now - first >= grace]
