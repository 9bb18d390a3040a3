"""Read a store of any kind, and the pods and nodes of its cluster, and audit them by the rules. Nothing is changed:
objects are read one by one or in pages, and files are read."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import stat as read_status
from typing import Any

from cni.cluster.audit import in_use, lease_rules, model, store_rules
from cni.cluster.audit.cluster import Cluster, PoolReading, by_name, read_all
from cni.cluster.audit.findings import DUPLICATE_ADDRESS, LOOK, POD_WITHOUT_LEASE, POOL_IN_TWO_NAMESPACES, Finding
from cni.cluster.audit.model import IpamBlock, Snapshot
from cni.cluster.audit.silence import SilenceWatch
from cni.cluster.audit.store import Choice
from cni.node.runtime.cache import Cache
from cni.shared.log import Log
from cni.shared.records import STATE, Records
from cni.shared.spec.request import Attachment
from ipam import stores
from ipam.leases import PART, Lease, by_place
from ipam.stores.apiserver.faults import Forbidden
from ipam.stores.apiserver.resources import EVERYWHERE, POOLS
from ipam.stores.base import READ
from ipam.stores.etcd import EtcdStore

_PAGE = 1000

Progress = Callable[[str], object]


@dataclass(frozen=True)
class Audit:
    """The findings of an audit, the number of read objects by kind, and the snapshot of each store."""

    findings: list[Finding]
    counts: Mapping[str, int]
    snapshots: list[Snapshot]


def audit(choices: Sequence[Choice], progress: Progress) -> Audit:
    """Audit the stores `choices`. If there are several, they must belong to one cluster. Raises CniError when a store,
    or the pods of a cluster, cannot be read."""
    choice = choices[0]
    if not choice.is_shared:
        return _at_files(choice, progress)
    if choice.kind not in stores.IN_CLUSTER and not choice.kubeconfig:
        found = _content(choice, progress)
        why = "the pods: no kubeconfig is named, so no lease was compared with its pod (--kubeconfig names one)"
        return Audit(list(found.findings), found.counts, [replace(found, unread=[why])])
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    unread: list[str] = []
    progress("reading networks")
    networks, nads = _or(cluster.networks, ([], set()), unread)
    # stores are read before pods, since a pod exists before and after its lease
    contents = [
        _of_pools(cluster, networks, progress) if one.kind == "kubernetes" else _content(one, progress)
        for one in choices
    ]
    progress("reading pods")
    pods = by_name(read_all(cluster.pods, progress, "pods"))
    progress("reading nodes")
    nodes = _or(cluster.nodes, None, unread)
    agents = _or(lambda: SilenceWatch().alive(cluster), None, unread)
    around: dict[str, Any] = {"pods": pods, "nodes": nodes, "agents": agents, "networks": networks, "nads": nads}
    snapshots = [replace(found, **around, unread=[*found.unread, *unread]) for found in contents]
    total: Counter[str] = Counter()
    for found in contents:
        total.update(found.counts)
    findings = [*_findings(snapshots), *_or(lambda: _elsewhere(cluster), [], [])]
    return Audit(findings, {**total, "pods": len(pods)}, snapshots)


def _elsewhere(cluster: Cluster) -> list[Finding]:
    """The findings about pools in the namespace of `cluster` that exist in another namespace too."""
    own = cluster.api.access.namespace
    found = read_all(lambda: cluster.pages(POOLS, lambda one: one["metadata"], namespace=EVERYWHERE, brief=True))
    places = [(metadata["name"], metadata["namespace"]) for metadata in found]
    message = "pool {} is in namespace {} too, and both give the same addresses: let every kubeconfig name one namespace, and delete the unused pool"
    return [
        Finding(POOL_IN_TWO_NAMESPACES, LOOK, message.format(name, other), pool=name)
        for name, other in places
        if other != own and (name, own) in places
    ]


def _findings(snapshots: Sequence[Snapshot]) -> list[Finding]:
    """All findings about the stores, without duplicates. "Pod without lease" is left out if any store has the lease."""
    given = {(lease.text, lease.pod_ref) for snapshot in snapshots for lease in snapshot.leases}
    found: dict[tuple[object, ...], Finding] = {}
    for snapshot in snapshots:
        for finding in [*snapshot.findings, *lease_rules.find(snapshot)]:
            if finding.kind == POD_WITHOUT_LEASE and len(snapshots) > 1 and (finding.address, finding.pod) in given:
                continue
            if finding.kind not in (POD_WITHOUT_LEASE, DUPLICATE_ADDRESS):
                finding = replace(finding, store=snapshot.kind)
            found.setdefault(finding.key(), finding)
    if len(snapshots) > 1:
        found.update((finding.key(), finding) for finding in lease_rules.AuditRules(snapshots[0]).in_both(snapshots[1]))
    return list(found.values())


def read(choice: Choice, progress: Progress = str, pool: str = "") -> Snapshot:
    """The content of the chosen store or, if given, only of `pool`. `progress` gets texts to show."""
    if choice.kind != "kubernetes":
        return _of_store(choice, progress, pool)
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    progress("reading networks")
    networks, _ = _or(cluster.networks, ([], set()), [])  # without networks, CIDRs give the sizes of pools
    return _of_pools(cluster, networks, progress, pool)


def given_part(choice: Choice, found: Snapshot) -> Snapshot:
    """Return `found` with networks, whose ranges show which addresses a pool has. If `found` has no networks, they are
    read: from NADs for a store in a cluster, otherwise from libcni's cache."""
    if found.networks:
        return found
    if choice.kind in stores.IN_CLUSTER:
        networks, _ = _or(Cluster(choice.kubeconfig, choice.namespace).networks, ([], set()), [])
    else:
        texts = sorted({entry.config.decode(errors="replace") for entry in _or(Cache().all, [], [])})
        networks = [network for text in texts for network in model.parse_networks({"spec": {"config": text}})]
    return replace(found, networks=networks)


def _content(choice: Choice, progress: Progress) -> Snapshot:
    """The content of a store other than IPPools. For etcd it includes the findings about the keys."""
    if choice.kind != "etcd":
        return _of_store(choice, progress)
    store = EtcdStore(choice.store_ref)
    entries: dict[bytes, bytes] = {}
    last = b""
    while page := store.entries(last):
        entries.update(page)
        last = page[-1][0]
        progress(f"{len(entries)} keys read")
    leases, findings = store_rules.find_in_keys(entries, store.keys)
    return Snapshot(choice.kind, leases, findings=findings, counts={"keys": len(entries), "leases": len(leases)})


def _of_store(choice: Choice, progress: Progress, pool: str = "") -> Snapshot:
    """The content of a store other than IPPools or, if given, only of its pool `pool`."""
    store, found = choice.open(READ), []
    with store.session():  # the pages belong to one reading
        for lease in store.leases(pool or None):
            found.append(lease)
            if len(found) % _PAGE == 0:
                progress(f"{len(found)} leases read")
    return Snapshot(choice.kind, by_place(found), unread=store.unread, counts={"leases": len(found)})


def _of_pools(cluster: Cluster, networks: list[IpamBlock], progress: Progress, pool: str = "") -> Snapshot:
    """The content of a cluster's IPPools or, if given, only of the IPPool `pool`."""
    progress("reading pools and reservations")
    reading = PoolReading(cluster, networks)
    states = sorted((s for s in read_all(reading.read) if pool in ("", s.name)), key=lambda state: state.name)
    found = [lease for state in states for lease in state.leases]
    reserved = reading.reserved()
    counts = {"pools": len(states), "leases": len(found), "reservations": len(reserved)}
    return Snapshot("kubernetes", found, states, reserved, networks=networks, unread=reading.faults, counts=counts)


def _or(read: Callable[[], Any], instead: Any, unread: list[str]) -> Any:
    """The result of `read()`. If the server forbids it, append the message to `unread` and return `instead`."""
    try:
        return read()
    except Forbidden as fault:
        unread.append(fault.msg)
        return instead


def _at_files(choice: Choice, progress: Progress) -> Audit:
    store = choice.open(READ)
    with store.session():
        pools = store.pools()
        leases = list(store.leases())
        records = [(a, r) for a, _, r in Records(STATE, Log("railcni")).all(PART) if _names(r, choice)]
    progress(f"{len(leases)} leases read")
    found = Snapshot(choice.kind, leases, records=records, counted=pools)
    counts = {"pools": len(pools), "leases": len(leases), "records": len(records)}
    return Audit(store_rules.find(found, is_there), counts, [found])


def _names(record: Mapping[str, Any], choice: Choice) -> bool:
    return stores.same(record.get("store") or {}, choice.store_ref)


def record_of(attachment: Attachment, choice: Choice) -> Mapping[str, Any] | None:
    """The record of an attachment; None if there is none, or if it names another store than `choice`."""
    record = Records(STATE).read(attachment, PART)
    return record if record and _names(record, choice) else None


def is_there(lease: Lease, users: Sequence[Attachment]) -> bool | None:
    """Whether a link of the attachments `users` may still have the lease's address; None if this is unknown, as for a
    device of DRA, whose recorded netns is /dev/null."""
    try:
        if in_use.may_be(lease, users, Records(STATE)):
            return True
        return None if stat.S_ISCHR(read_status(lease.netns).st_mode) else False
    except FileNotFoundError:
        return False
    except OSError:
        return None
