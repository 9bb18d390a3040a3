"""The rules that need no pods. They compare leases with the records and namespaces of a machine. They also check the
keys of etcd, and the numbers of used addresses in file stores. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cni.cluster.audit import findings as kinds
from cni.cluster.audit.findings import LOOK, RECLAIM, Finding, about
from cni.cluster.audit.model import Snapshot
from cni.shared.spec.errors import StateDamaged
from cni.shared.spec.request import Attachment
from ipam.group import rails
from ipam.leases import Lease, recorded_leases
from ipam.stores.etcd.keys import LEASE, Keys, family_of, shown, value_of

# Whether the address of a lease may be in use by the links of these attachments; None when this is unknown.
InUse = Callable[[Lease, Sequence[Attachment]], bool | None]


def find(snapshot: Snapshot, in_use: InUse) -> list[Finding]:
    """All findings in `snapshot`, sorted by pool and address."""
    known = {attachment.key(): record for attachment, record in snapshot.records or ()}
    leases = (of_lease(lease, known.get(lease.attachment.key()), in_use) for lease in snapshot.leases)
    found = [*filter(None, leases), *_records(snapshot, in_use), *_counts(snapshot)]
    return sorted(found, key=lambda f: (f.pool, len(f.address), f.address, f.kind))


def of_lease(lease: Lease, record: Mapping[str, Any] | None, in_use: InUse) -> Finding | None:
    """The finding about a lease; None if the lease has no fault. `record` is the record of the lease's attachment."""
    if record and record.get("pending") is True:
        why = "a DEL came and could not release it: `railcni ipam flush` does"
        return about(lease, kinds.RELEASE_PENDING, LOOK, why)
    users = rails.users(lease.attachment, dict(record) if record else None)
    if lease.netns and in_use(lease, users) is False:
        return about(lease, kinds.LEASE_WITHOUT_NAMESPACE, RECLAIM, f"its namespace {lease.netns} is gone")
    if record is None:
        why = "no record tells of it: a DEL finds it by its network's configuration only"
        return about(lease, kinds.LEASE_WITHOUT_RECORD, LOOK, why)
    return None


def _records(snapshot: Snapshot, in_use: InUse) -> Iterator[Finding]:
    there = {(lease.pool, lease.address): lease for lease in snapshot.leases}
    for attachment, record in snapshot.records or ():
        if record.get("pending") is True:
            continue
        try:
            recorded = recorded_leases(attachment, dict(record))
        except ValueError as fault:
            yield Finding(kinds.UNREADABLE, LOOK, f"the record of {attachment} is damaged: {fault}")
            continue
        for lease in recorded:
            held = there.get((lease.pool, lease.address))
            if held and (held.container_id, held.ifname) == (lease.container_id, lease.ifname):
                continue
            gone = lease.netns and in_use(lease, rails.users(attachment, dict(record))) is False
            state = (
                "its namespace is gone: GC removes the record"
                if gone
                else "it may be in use: detach and attach it again"
            )
            holder = f"the store gives it to {held.user()}" if held else "the store does not hold it"
            why = f"of container {lease.container_id} ({lease.ifname}) is in its record, and {holder}; {state}"
            yield about(lease, kinds.RECORD_WITHOUT_LEASE, LOOK, "", message=f"{lease.text} {why}")


def _counts(snapshot: Snapshot) -> Iterator[Finding]:
    for pool in snapshot.counted:
        leases = sum((lease.pool, lease.family) == (pool.name, pool.family) for lease in snapshot.leases)
        if leases != pool.used:
            message = f"pool {pool.name} counts {pool.used} addresses as taken, and holds {leases} leases: move the file away when no ADD runs, and it is made again from the records"
            yield Finding(kinds.INDEX_DIFFERS, LOOK, message, pool=pool.name)


# --- the keys of etcd ---

_ALONE = (b"cooling", b"former", b"full", b"void")  # keys that belong to no lease; earlier versions wrote "full"


def find_in_keys(entries: Mapping[bytes, bytes], keys: Keys) -> tuple[list[Lease], list[Finding]]:
    """Return (leases, findings) from `entries`, the keys and values of a store. Each key of a missing lease is a
    finding."""
    leases: list[Lease] = []
    found: list[Finding] = []
    wanted: dict[bytes, tuple[bytes, Lease]] = {}
    unreadable: set[bytes] = set()
    for key, value in entries.items():
        try:
            kind = key[len(keys.root) :].partition(b"/")[0]
            if kind == LEASE.encode():
                lease = keys.read(key, value)
                leases.append(lease)
                wanted |= {name: (text, lease) for name, text in keys.entries(lease).items()}
            elif kind == b"cooling":
                value_of(key, family_of(key))
        except StateDamaged as fault:
            unreadable.add(key)
            found.append(Finding(kinds.UNREADABLE, LOOK, fault.msg))
    for key, (value, lease) in wanted.items():
        if entries.get(key) != value:
            state = "is not there" if key not in entries else "says something else"
            message = f"key {shown(key)} of this lease {state}"
            if key == keys.identity(lease) and key not in entries:  # by this key DEL finds the lease
                taken = shown(keys.taken(LEASE, lease.pool, lease.family, lease.value))
                message += f", so no DEL or reclaim frees it: `etcdctl del {taken}` when nothing uses the address"
            found.append(about(lease, kinds.INDEX_DIFFERS, LOOK, message))
    for key in entries.keys() - wanted.keys() - unreadable:
        if key[len(keys.root) :].partition(b"/")[0] not in _ALONE:
            name = shown(key)
            message = f"key {name} goes with no lease: `etcdctl del {name}` when another look finds it again"
            found.append(Finding(kinds.INDEX_DIFFERS, LOOK, message))
    return leases, found
