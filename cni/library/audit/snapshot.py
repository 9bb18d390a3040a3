"""Reads a store, and the pods and nodes that its leases are for, and applies the rules. It only gets and lists, and reads files."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import stat as read_status
from typing import Any

from cni.library.audit import holdings, in_use, lease_rules, store_rules
from cni.library.audit.cluster import Cluster, by_name, read_all
from cni.library.audit.findings import DUPLICATE_ADDRESS, POD_WITHOUT_LEASE, Finding
from cni.library.audit.holdings import Progress
from cni.library.audit.model import Network, Snapshot
from cni.library.audit.store import Choice
from cni.shared.log import Log
from cni.shared.records import STATE, Records
from cni.shared.spec.request import Attachment
from ipam import stores
from ipam.leases import Lease
from ipam.records import PART
from ipam.stores.apiserver.faults import Forbidden
from ipam.stores.base import READ
from ipam.stores.etcd import EtcdStore


@dataclass(frozen=True)
class Audit:
    """The findings, the snapshots that they are of, one of each store, and how many objects of each kind were read."""

    findings: list[Finding]
    counts: Mapping[str, int]
    snapshots: list[Snapshot]


def audit(choices: Sequence[Choice], progress: Progress) -> Audit:
    """Audit at all of the stores, which are of one cluster if they are several.

    CniError when a store, or in a cluster the pods, cannot be read.
    """
    choice = choices[0]
    if choice.kind == "file":
        return _at_files(choice, progress)
    if not choice.has_cluster:
        found = _of_store(choice, None, [], progress)
        why = "the pods: no kubeconfig is named, so no lease was compared with its pod (--kubeconfig names one)"
        return Audit(list(found.findings), found.counts, [replace(found, unread=[why])])
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    unread: list[str] = []
    progress("reading networks")
    networks, nads = _or(cluster.networks, ([], set()), unread)
    # before the pods: a pod is there before its lease, and goes after it
    read = [_of_store(one, cluster, networks, progress) for one in choices]
    progress("reading pods")
    pods = by_name(read_all(cluster.pods, progress, "pods"))
    progress("reading nodes")
    nodes = _or(cluster.nodes, None, unread)
    around: dict[str, Any] = {"pods": pods, "nodes": nodes, "networks": networks, "nads": nads}
    snapshots = [replace(found, **around, unread=[*found.unread, *unread]) for found in read]
    total: Counter[str] = Counter()
    for found in read:
        total.update(found.counts)
    return Audit(_findings(snapshots), {**total, "pods": len(pods)}, snapshots)


def _findings(snapshots: Sequence[Snapshot]) -> list[Finding]:
    """The findings of each store; a fault of a pod's addresses once, and only where no store is right."""
    given = {(lease.text, lease.pod_ref) for snapshot in snapshots for lease in snapshot.leases}
    found: dict[tuple[object, ...], Finding] = {}
    for snapshot in snapshots:
        for finding in [*snapshot.findings, *lease_rules.find(snapshot)]:
            if finding.kind == POD_WITHOUT_LEASE and len(snapshots) > 1 and (finding.address, finding.pod) in given:
                continue
            if finding.kind not in (POD_WITHOUT_LEASE, DUPLICATE_ADDRESS):
                finding = replace(finding, store=snapshot.kind)
            found.setdefault(finding.key(), finding)
    return list(found.values())


def _of_store(choice: Choice, cluster: Cluster | None, networks: list[Network], progress: Progress) -> Snapshot:
    if choice.kind == "kubernetes" and cluster:
        return holdings.of_pools(cluster, networks, progress)
    if choice.kind != "etcd":
        return holdings.of_store(choice, progress)
    store = EtcdStore(choice.store_ref, READ)
    entries: dict[bytes, bytes] = {}
    last = b""
    while page := store.entries(last):
        entries.update(page)
        last = page[-1][0]
        progress(f"{len(entries)} keys read")
    leases, findings = store_rules.find_in_keys(entries, store.keys.root, store.keys.entries)
    return Snapshot(choice.kind, leases, findings=findings, counts={"keys": len(entries), "leases": len(leases)})


def _or(read: Callable[[], Any], instead: Any, unread: list[str]) -> Any:
    """What `read` answers; `instead`, and a note, where it is not allowed."""
    try:
        return read()
    except Forbidden as fault:
        unread.append(fault.msg)
        return instead


def _at_files(choice: Choice, progress: Progress) -> Audit:
    store = choice.open(READ)
    with store.session():
        pools = store.pools()
        leases = list(holdings.leases(store))
        records = [(a, r) for a, _, r in Records(STATE, Log("railcni")).all(PART) if _names(r, choice)]
    progress(f"{len(leases)} leases read")
    found = Snapshot(choice.kind, leases, records=records, counted=pools)
    counts = {"pools": len(pools), "leases": len(leases), "records": len(records)}
    return Audit(store_rules.find(found, is_there), counts, [found])


def _names(record: Mapping[str, Any], choice: Choice) -> bool:
    return stores.same(record.get("store") or {}, choice.store_ref)


def record_of(attachment: Attachment, choice: Choice) -> Mapping[str, Any] | None:
    """The record of an attachment, if it names the chosen store."""
    record = Records(STATE).read(attachment, PART)
    return record if record and _names(record, choice) else None


def is_there(lease: Lease, users: Sequence[Attachment]) -> bool | None:
    """Whether the address of `lease` may be in use here, by the links of `users`.

    None when that cannot be told, as for /dev/null, which DRA drivers pass.
    """
    try:
        if in_use.may_be(lease, users, Records(STATE)):
            return True
        return None if stat.S_ISCHR(read_status(lease.netns).st_mode) else False
    except FileNotFoundError:
        return False
    except OSError:
        return None
