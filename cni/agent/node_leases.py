"""The leases that this node's records tell of, and putting back those that a store has lost."""

from __future__ import annotations

from collections.abc import Callable

from cni.agent import events
from cni.agent.cluster_stores import ClusterSource
from cni.library.audit import in_use
from cni.library.service.log import AgentLog
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment
from ipam import records as ipam_records
from ipam import upkeep
from ipam.leases import Lease
from ipam.stores.base import Claimed

Outcome = tuple[bool, str, str]  # whether the lease is settled; the reason of an Event and its message, "" for none
_SETTLED: Outcome = (True, "", "")
_BUSY: Outcome = (False, "", "")


def recorded(records: Records, kind: str) -> list[Lease]:
    """The leases of this node's records in the store of `kind`, without pending releases."""
    found: list[Lease] = []
    for attachment, _, record in records.all(ipam_records.PART):
        if record.get("pending") is True or (record.get("store") or {}).get("kind") != kind:
            continue
        try:
            found += ipam_records.leases(attachment, record)
        except ValueError:
            continue  # the next verb that reads the record says so
    return found


def restore(
    lease: Lease,
    source: ClusterSource,
    others: list[ClusterSource],
    records: Records,
    log: AgentLog,
    below: Callable[[str], str],
) -> Outcome:
    """Put back the objects of a lease that `source` has lost. CniError.

    The address of another lease stays with it. A lease without any object is put back only while it may be in use: the
    record may be that of a former sandbox of the pod. A pool that is closed, or an address that another store has, was moved
    there: then the record is to follow (`railcni ipam migrate`).
    """
    with in_use.excluded(records, lease.attachment) as users:
        record = upkeep.read_record(lease.attachment, records, log) if users else None
        if record is None or users is None or record["pending"] or record["sequence"] != lease.sequence:
            return _BUSY
        try:
            holder = source.holder(lease)
        except ValueError:
            return _SETTLED
        again = "was lost, and is there again"
        if holder is lease:
            lost = source.complete(lease)
            return (True, events.RESTORED, f"the overlap reservation of {lease.text} {again}") if lost else _SETTLED
        if holder and holder.pod_name == lease.pod_name:
            return _SETTLED
        if holder:
            other = holder.pod_ref or holder.container_id
            remedy = "delete one of the two pods, so that it gets another address"
            return True, events.CONTENDED, f"{lease.text} of pool {lease.pool} is held by {other} too: {remedy}"
        if not _may_be_used(lease, users, records, below) or any(_has_moved(lease, other) for other in others):
            return _SETTLED
        try:
            answer = source.store.claim([lease.want], lease.owner)
        except InvalidConfig as fault:  # such as a pool that cannot be read, or was closed just now
            log.state(f"restore {lease.pool}", f"{lease.text} cannot be put back: {fault.msg}")
            return _SETTLED
        if not isinstance(answer, Claimed):
            return _BUSY
        return True, events.LEASE_RESTORED, f"the lease of {lease.text} in pool {lease.pool} {again}"


def _has_moved(lease: Lease, other: ClusterSource) -> bool:
    try:
        return other.holder(lease) is not None
    except ValueError:
        return False


def _may_be_used(lease: Lease, users: list[Attachment], records: Records, below: Callable[[str], str]) -> bool:
    try:
        return in_use.may_be(lease, users, records, below)
    except OSError:
        return True  # the agent cannot tell
