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
    )


def is_abandoned(held: Held, nodes: Mapping[str, Node]) -> bool:
    """Whether no agent on a node looks after the lease: its node is not known, gone, or out of service for good."""
    node = nodes.get(held.node)
    return node is None or node.out_of_service


def hindrance(
    held: Held, nodes: Mapping[str, Node], seen_on: Mapping[tuple[str, str], str], named: Collection[str] = ()
) -> str:
    """Why an abandoned lease whose pod is gone cannot be freed yet: where the pod may run still. "" when nowhere.

    A pod can be deleted from the API while its node does not answer. `seen_on` tells where pods were while they lived;
    a new agent does not know it. `named` are the nodes that leases name. A node that the API does not know is deleted, or
    its plugins call it otherwise than the API does: then it may be any that is silent and that no lease names.
    """
    where = seen_on.get(held.pod)
    if where is not None:
        silent = [where] if where in nodes and nodes[where].may_run_on else []
    elif held.node in nodes:
        silent = []  # somebody has said that it is off
    else:
        silent = sorted(n for n, node in nodes.items() if node.may_run_on and not (held.node and n in named))
    if not silent:
        return ""
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return (
        f"node {silent[0]}{more} is not ready, and the pod may run there still: repair it, delete it, or taint it with"
        " node.kubernetes.io/out-of-service when it is off"
    )


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
