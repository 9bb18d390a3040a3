"""One look at a store and at those whom its leases are for. Reads only: get and list, and files."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import stat as read_status
from typing import Any

from cni.attachment import STATE, Book
from cni.cli import holdings, in_use, judge, judge_etcd, judge_node
from cni.cli.findings import Finding, Inventory
from cni.cli.inventory import Held, Pod, of_lease
from cni.cli.judge_node import NodeInventory
from cni.cli.store import Choice
from cni.log import Log
from cni.spec.errors import InvalidConfig
from cni.spec.request import Attachment
from ipam import stores
from ipam.records import PART
from ipam.stores.base import READ
from ipam.stores.etcd import EtcdStore

Met = Callable[[str], object]


@dataclass(frozen=True)
class Look:
    """What was seen: the findings, the inventory they are of, how much was looked at, and what could not be read."""

    findings: list[Finding]
    counts: Mapping[str, int]
    unread: list[str] = field(default_factory=list)
    inventory: Inventory | None = None
    node: NodeInventory | None = None


def look(choice: Choice, met: Met) -> Look:
    """Look at all of the chosen store; CniError when the store, or in a cluster the pods, cannot be read."""
    if choice.kind == "kubernetes":
        return _at_pools(choice, met)
    if choice.kind == "addresslease":
        held = holdings.read(choice, met).held
        return _beside_pods(choice, met, held, [], {"leases": len(held)})
    return _at_etcd(choice, met) if choice.kind == "etcd" else _at_files(choice, met)


def _at_pools(choice: Choice, met: Met) -> Look:
    from cni.cli.cluster import Cluster, Forbidden  # a quarter of a second, which other stores need not pay

    unread: list[str] = []
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    try:
        met("reading networks")
        networks, nads = _or(cluster.networks, ([], set()), unread, Forbidden)
        met("reading pools and reservations")  # before the pods: a pod is there before its lease, and goes after it
        states, reserved, faults = cluster.pools(networks)
        met("reading pods")
        pods = _by_name(cluster.pods(met=lambda count: met(f"{count} pods read")))
        met("reading nodes")
        nodes = _or(cluster.nodes, None, unread, Forbidden)
    finally:
        cluster.close()
    held = [held for state in states for held in state.held]
    inventory = Inventory("kubernetes", held, states, reserved, pods, nodes, networks, nads)
    counts = {"pools": len(states), "leases": len(held), "reservations": len(reserved), "pods": len(pods)}
    return Look(judge.find(inventory), counts, [*faults, *unread], inventory)


def _by_name(pods: list[Pod]) -> dict[tuple[str, str], Pod]:
    return {(pod.namespace, pod.name): pod for pod in pods}


def _or(read: Callable[[], Any], instead: Any, unread: list[str], refused: type[InvalidConfig]) -> Any:
    """What `read` answers; `instead`, and a note, where it is not allowed."""
    try:
        return read()
    except refused as fault:
        unread.append(fault.msg)
        return instead


def _at_etcd(choice: Choice, met: Met) -> Look:
    store = EtcdStore(choice.described, READ)
    entries: dict[bytes, bytes] = {}
    last = b""
    while page := store.entries(last):
        entries.update(page)
        last = page[-1][0]
        met(f"{len(entries)} keys read")
    leases, found = judge_etcd.find(entries, store.root, store.expected)
    held = [of_lease(lease) for lease in leases]
    return _beside_pods(choice, met, held, found, {"keys": len(entries), "leases": len(leases)})


def _beside_pods(choice: Choice, met: Met, held: list[Held], found: list[Finding], counts: dict[str, int]) -> Look:
    """What there is to say of leases that the store keeps whole, besides what was `found`."""
    if not choice.has_cluster:
        why = "the pods: no kubeconfig is named, so no lease was compared with its pod (--kubeconfig names one)"
        return Look(found, counts, [why], Inventory(choice.kind, held))
    from cni.cli.cluster import Cluster, Forbidden

    unread: list[str] = []
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    try:
        networks, nads = _or(cluster.networks, ([], set()), unread, Forbidden)
        met("reading pods")
        pods = _by_name(cluster.pods(met=lambda count: met(f"{count} pods read")))
        nodes = _or(cluster.nodes, None, unread, Forbidden)
    finally:
        cluster.close()
    inventory = Inventory(choice.kind, held, (), None, pods, nodes, networks, nads)
    return Look([*found, *judge.find(inventory)], {**counts, "pods": len(pods)}, unread, inventory)


def _at_files(choice: Choice, met: Met) -> Look:
    store = choice.open(READ)
    with store.turn():
        pools = store.pools()
        held = [of_lease(lease) for lease in holdings.leases(store)]
        records = [(a, r) for a, _, r in Book(STATE, Log("railcni")).all(PART) if _names(r, choice)]
    met(f"{len(held)} leases read")
    node = NodeInventory(held, records, is_there, pools)
    counts = {"pools": len(pools), "leases": len(held), "records": len(records)}
    return Look(judge_node.find(node), counts, node=node)


def _names(record: Mapping[str, Any], choice: Choice) -> bool:
    return stores.same(record.get("store") or {}, choice.described)


def record_of(held_by: Attachment, choice: Choice) -> Mapping[str, Any] | None:
    """The record of an attachment, if it names the chosen store."""
    record = Book(STATE).read(held_by, PART)
    return record if record and _names(record, choice) else None


def is_there(path: str, users: Sequence[Attachment]) -> bool | None:
    """Whether the namespace with the links of `users` is there, at its path or kept by a process or another mount.

    None when that cannot be told, as for /dev/null, which DRA drivers pass.
    """
    try:
        if in_use.is_there(in_use.names_of(path), users, Book(STATE)):
            return True
        return None if stat.S_ISCHR(read_status(path).st_mode) else False
    except FileNotFoundError:
        return False
    except OSError:
        return None
