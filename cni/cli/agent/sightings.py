"""Which leases the collector frees: those that findings call dead, a grace apart, and that nobody can be using. Pure.

Of what `railcni ipam audit` calls dead it takes only what the pod's object decides: the pod is gone, is another of the
same name, or has ended. What a network-status alone tells against is left to people: it is written after an ADD.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cni.cli import findings
from cni.cli.findings import Inventory
from cni.cli.inventory import Held, Node, Pod, Reserved
from cni.cli.judge import Judge

Key = tuple[str, tuple[int, int], str, str, tuple[str, str]]
_WAITS_FOR_NODE = (
    "node {}{} is not ready, and the pod may run there still: repair it, delete it, or taint it with"
    " node.kubernetes.io/out-of-service when it is off"
)
_WAITS_FOR_AGENT = (
    "it was on node {}, where it may run still, and that node's agent frees only what its records hold. If the pod has"
    " ended, free the lease with `railcni ipam reclaim`"
)
_NODE_UNKNOWN = (
    "nothing tells on which node it was, and it may run there still: see `railcni ipam audit`. If the pod has ended, free"
    " the lease with `railcni ipam reclaim`"
)
_DEAD = (findings.LEASE_WITHOUT_POD, findings.LEASE_OF_ENDED_POD, findings.LEASE_OF_ANOTHER_UID)


@dataclass(frozen=True)
class Suspect:
    """A lease that is dead, or a reservation without one (`held` then tells what the reservation says), and why."""

    held: Held
    why: str
    is_reservation: bool = False


def key_of(held: Held) -> Key:
    """What makes two sightings those of one lease."""
    return held.pool, held.address, held.container_id, held.ifname, held.pod


def dead(held: Collection[Held], pods: Mapping[tuple[str, str], Pod]) -> dict[Key, str]:
    """Which of `held` are dead, and why; `pods` hold those of their names that there are."""
    judge = Judge(Inventory("kubernetes", held, pods=pods))
    found = ((key_of(one), judge.lease(one)) for one in held)
    return {key: f.message for key, f in found if f and f.action == findings.RECLAIM and f.kind in _DEAD}


def of_reservation(reserved: Reserved) -> Held | None:
    """What the reservation tells of its lease; None when its name holds no address."""
    if reserved.address is None:
        return None
    return Held(
        reserved.pool,
        reserved.address,
        reserved.container_id,
        reserved.ifname,
        reserved.pod,
        reserved.pod_uid,
        reserved.node,
        reserved.network,
        reserved.sequence,
        reserved.scope,
        netns=reserved.netns,
        boot_id=reserved.boot_id,
    )


def is_abandoned(held: Held, nodes: Mapping[str, Node]) -> bool:
    """Whether no agent on a node looks after the lease: its node is not known, gone, or out of service for good."""
    node = nodes.get(held.node)
    return node is None or node.out_of_service


def hindrance(
    held: Held, nodes: Mapping[str, Node], seen_on: str | None, is_over: bool, named: Collection[str] = ()
) -> str:
    """Why an abandoned lease whose pod is gone cannot be freed yet: where the pod may run still. "" when nowhere.

    A pod can be deleted from the API while it runs: its node does not answer, or it was deleted by force and needs long
    to end. Only the agent of its node can tell. `seen_on` is the node on which the pod was seen while it lived, "" when
    it was seen on several, None when it was not seen; `is_over`: its containers have ended, as its node says. `named`
    are the nodes that leases name. A node that the API does not know is deleted, or its plugins use another name than
    the API: then it may be any node that is silent and that no lease names.
    """
    where = nodes.get(seen_on) if seen_on else None
    if where and (where.may_run_on or not (is_over or where.out_of_service)):
        return _WAITS_FOR_NODE.format(where.name, "") if where.may_run_on else _WAITS_FOR_AGENT.format(where.name)
    if seen_on or held.node in nodes:
        return ""  # the node is deleted, or somebody has said that it is off
    if not held.node:
        return _NODE_UNKNOWN
    silent = sorted(n for n, node in nodes.items() if node.may_run_on and n not in named)
    if not silent:
        return ""
    return _WAITS_FOR_NODE.format(silent[0], f" and {len(silent) - 1} more" if len(silent) > 1 else "")


class Sightings:
    """Which leases were seen dead, and when first. It is in memory alone: a new agent begins anew."""

    def __init__(self) -> None:
        self._first: dict[Key, float] = {}

    def saw(self, dead: Iterable[Suspect], now: float, grace: float) -> list[Suspect]:
        """Those of `dead` that were seen so at least `grace` seconds ago, and at every look since."""
        dead = list(dead)
        self._first = {key: self._first.get(key, now) for key in (key_of(s.held) for s in dead)}
        return [s for s in dead if now - self._first[key_of(s.held)] >= grace]

    def clear(self) -> None:
        """Forget all: what comes next is a first sighting."""
        self._first = {}
