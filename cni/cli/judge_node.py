"""What is wrong with the leases of one machine, beside its records and namespaces; and with a store's own indexes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.cli import findings as kinds
from cni.cli.findings import LOOK, RECLAIM, Finding, about
from cni.cli.inventory import Held
from cni.spec.request import Attachment
from ipam import members, records
from ipam.ranges import format_address
from ipam.stores.base import Lease, Pool

Records = Sequence[tuple[Attachment, Mapping[str, Any]]]


@dataclass(frozen=True)
class NodeInventory:
    """The leases of a file store and the node's IPAM records that name it.

    `is_there` answers for a namespace's path, and the attachments whose links are in it: True, False, or None when it
    cannot be told. `pools` are as the store's own bitmaps count them.
    """

    held: Collection[Held]
    records: Records
    is_there: Callable[[str, Sequence[Attachment]], bool | None]
    pools: Collection[Pool] = field(default=())


def find(inventory: NodeInventory) -> list[Finding]:
    """All findings, those of one pool together."""
    found = [*_leases(inventory), *_records(inventory), *_counts(inventory)]
    return sorted(found, key=lambda f: (f.pool, len(f.address), f.address, f.kind))


def of_lease(inventory: NodeInventory, held: Held, record: Mapping[str, Any] | None) -> Finding | None:
    """What is to be said of one lease, and of the record of its attachment."""
    if record and record.get("pending") is True:
        why = "a DEL came and could not release it: `railcni ipam flush` does"
        return about(held, kinds.RELEASE_PENDING, LOOK, why)
    users = members.users(Attachment(held.network, held.container_id, held.ifname), dict(record) if record else None)
    if held.netns and inventory.is_there(held.netns, users) is False:
        return about(held, kinds.LEASE_WITHOUT_NAMESPACE, RECLAIM, f"its namespace {held.netns} is gone")
    if record is None:
        why = "no record tells of it: a DEL finds it by its network's configuration only"
        return about(held, kinds.LEASE_WITHOUT_RECORD, LOOK, why)
    return None


def _leases(inventory: NodeInventory) -> Iterator[Finding]:
    known = {attachment.key(): record for attachment, record in inventory.records}
    for held in inventory.held:
        finding = of_lease(inventory, held, known.get((held.network, held.container_id, held.ifname)))
        if finding:
            yield finding


def _records(inventory: NodeInventory) -> Iterator[Finding]:
    there = {(h.pool, h.address): h for h in inventory.held}
    for attachment, record in inventory.records:
        if record.get("pending") is True:
            continue
        try:
            recorded = records.leases(attachment, dict(record))
        except ValueError as fault:
            yield Finding(kinds.UNREADABLE, LOOK, f"the record of {attachment} is damaged: {fault}")
            continue
        for lease in recorded:
            held = there.get((lease.pool, (lease.family, lease.value)))
            if held and (held.container_id, held.ifname) == (lease.container_id, lease.ifname):
                continue
            users = members.users(attachment, dict(record))
            yield _unleased(lease, held, inventory.is_there(lease.netns, users) if lease.netns else None)


def _unleased(lease: Lease, held: Held | None, there: bool | None) -> Finding:
    text = format_address(lease.family, lease.value)
    whose = f"the store gives it to {held.owner}" if held else "the store does not hold it"
    state = (
        "its namespace is gone: GC removes the record"
        if there is False
        else "it may be in use: detach and attach it anew"
    )
    return Finding(
        kind=kinds.RECORD_WITHOUT_LEASE,
        action=LOOK,
        message=f"{text} of container {lease.container_id} ({lease.ifname}) is in its record, and {whose}; {state}",
        pool=lease.pool,
        address=text,
        network=lease.network,
        container_id=lease.container_id,
        ifname=lease.ifname,
        pod="/".join(lease.pod[:2]) if lease.pod[1] else "",
        pod_uid=lease.pod[2],
        node=lease.node,
        sequence=lease.sequence,
    )


def _counts(inventory: NodeInventory) -> Iterator[Finding]:
    for pool in inventory.pools:
        leases = sum(h.pool == pool.name and h.address[0] == pool.family for h in inventory.held)
        if leases != pool.used:
            message = (
                f"pool {pool.name} counts {pool.used} addresses as taken, and holds {leases} leases: move the file away when"
                " no ADD runs, and it is made anew from the records"
            )
            yield Finding(kinds.INDEX_DIFFERS, LOOK, message, pool=pool.name)
