"""Whether the node of a lease is lost: no agent of the node can free the lease, and no pod runs on the node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cni.cluster.audit.model import Node
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
AGENT_LIVES = (
    "the agent of node {0}, which has no Node object, renews the Lease node-{0}, and its pods may still run there:"
    " start kubelet on the node again, or stop the node"
)


def is_abandoned(lease: Lease, nodes: Mapping[str, Node]) -> bool:
    """Whether no node's agent frees the lease: its node is unknown, gone, or out of service."""
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
    """The reason why an abandoned lease of a deleted pod cannot be freed yet: the pod may still run. "" for none.

    A pod can be deleted from the API while it runs: its node does not answer, or it was deleted by force and ends
    slowly. Only its node's agent can see it. `seen_on` is the node of the pod while it existed, "" for several nodes,
    None for none. `is_over`: its node has reported that the containers have ended. `named` are the nodes that leases
    name. A lease's node without a Node object was deleted, or the plugins use another name for it: then it may be any
    node that is not ready and that no lease names. `alive` are the nodes whose agents renew their Leases: even a
    deleted one may run pods.
    """
    for name in (seen_on, lease.node):
        if name and name not in nodes and name in alive:
            return AGENT_LIVES.format(name)
    where = nodes.get(seen_on) if seen_on else None
    if where and (where.may_run_on or not (is_over or where.out_of_service)):
        return _WAITS_FOR_NODE.format(where.name, "") if where.may_run_on else _WAITS_FOR_AGENT.format(where.name)
    if seen_on or lease.node in nodes:
        return ""  # the node is deleted, or an administrator has tainted it as out of service
    if not lease.node:
        return _NODE_UNKNOWN
    silent = sorted(n for n, node in nodes.items() if node.may_run_on and n not in named)
    if not silent:
        return ""
    return _WAITS_FOR_NODE.format(silent[0], f" and {len(silent) - 1} more" if len(silent) > 1 else "")
