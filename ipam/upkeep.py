"""Keep leases and records in agreement: release the leases of an attachment, and retry releases that failed.

DEL, GC, `flush` and the agent call `release` to free the addresses of a recorded attachment. `free_earlier_boots` frees
addresses that were leased before a reboot.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from cni.shared.kernel import netns
from cni.shared.records import Records
from cni.shared.spec.errors import CniError, InvalidConfig, UnsupportedField
from cni.shared.spec.request import Attachment
from ipam import local, stores
from ipam.leases import (
    PART,
    Lease,
    Owner,
    owner_from_json,
    recorded_cooldown,
    recorded_document,
    recorded_leases,
    want_from_json,
)
from ipam.local import is_pending, read_record, restorer, texts
from ipam.shared import forget_holder
from ipam.stores.base import CHANGE, CREATE, Denied, Store, Taken, Unknown, Unreachable

_FLUSH_SECONDS = 1.0
_REASON = 400  # characters of an error in a record
_FLUSH_PAUSE = 10.0  # seconds after a `flush` that left pending releases; a new pending release is due at once


def release(
    attachment: Attachment,
    record: dict[str, Any] | None,
    store_ref: dict[str, Any],
    records: Records,
    seconds: float = 0,
    cooldown: int | None = None,
) -> None:
    """Free the leases of `attachment` in the store `store_ref`, then remove `record`, whose lock the caller holds.

    If there is a record, a missing lease file is made first: otherwise another process could make it during the
    release, and restore the leases of this record into it. `seconds` is the limit for all requests together, 0 for no
    limit. `cooldown` is in seconds; None means the record's cooldown. After a CniError the record notes the release as
    pending. But if the record names no address and another attempt would be useless, the error is only logged, and the
    record removed: an ADD records addresses before it claims them, so none was claimed.
    """
    held = recorded = recorded_leases(attachment, record) if record else []
    restore = restorer(store_ref, records)
    if stores.is_shared(store_ref):  # a release reads only this attachment's leases
        restore = lambda: recorded  # noqa: E731
    try:
        store = stores.open_store(store_ref, CREATE if record else CHANGE, restore, seconds)
    except UnsupportedField as fault:  # of a newer version, which makes the release when it is back
        keep_pending(attachment, record, store_ref, records, fault.msg)
        raise
    store.finish_by(time.monotonic() + seconds if seconds else float("inf"), hurries=True)
    store.cooldown = recorded_cooldown(record) if cooldown is None else cooldown
    if record and stores.is_shared(store_ref) and not record["pending"]:
        # A store may serve the request long after this process was killed: while pending, an ADD takes other addresses.
        marked = {**record, "pending": True}
        try:
            records.write(attachment, PART, marked)
            record = marked
        except CniError as fault:
            records.log.warning(f"the release of {attachment} could not be recorded in advance: {fault.msg}")
    try:
        with store.session():
            # a claim is made as a whole, so an attachment with a correct record has no other lease
            if not recorded or store.release(recorded) < len(recorded):
                held = store.find(attachment)
                if held:
                    store.release(held)
                missing = {lease.place for lease in recorded} - {lease.place for lease in held}
                if (missing or not held) and record and record["sequence"]:  # no sequence: nothing was claimed
                    store.settle(attachment, record["sequence"])
                    late = store.find(attachment)  # the store may just have executed a claim that was under way
                    if late:
                        store.release(late)
                        held = [*held, *late]
    except CniError as fault:
        if _is_over(record, store_ref, fault):
            records.log.warning(f"no address of {attachment} is recorded, so none is released: {fault.msg}")
            records.remove(attachment, PART)
            return
        try:
            keep_pending(attachment, record, store_ref, records, fault.msg)
        except CniError:
            pass  # the first error is the cause
        raise
    if held:
        local.released(records, held)
        forget_holder(records, held)
        records.log.info(f"released {texts(held)}")
    records.remove(attachment, PART)
    if not stores.is_shared(store_ref) and records.is_reminded(0):
        _lease_statics(attachment.network, store_ref, records)


def _lease_statics(network: str, store_ref: dict[str, Any], records: Records) -> None:
    """In a file store, lease the static addresses of a network that have lost their lease to an attachment that uses
    them. A node with such a store may have no agent, whose `flush` does this in a store that nodes share."""
    for attachment, record in records.of_network(network, PART, "shared"):
        try:
            if stores.same(record["store"], store_ref):
                _lease_shared(attachment, store_ref, records, _FLUSH_SECONDS)
        except (CniError, ValueError, TypeError, KeyError, AttributeError) as fault:
            records.log.warning(f"a static address of {attachment} could not be leased again: {fault}")


def leave_store(attachment: Attachment, record: dict[str, Any], records: Records) -> None:
    """Release the leases of an attachment in the store of its record, after its network has changed to another store.
    Raises CniError when recorded addresses cannot be released."""
    try:
        release(attachment, record, record["store"], records)
    except CniError as fault:
        addresses = ", ".join(record["addresses"])
        if addresses:
            fault.msg = f"{addresses} of the network's former store cannot be released (or given up: railcni ipam flush --drop): {fault.msg}"
            raise
        records.log.warning(f"{attachment} had no address in its network's former store: {fault.msg}")
        records.remove(attachment, PART)


def _is_over(record: dict[str, Any] | None, store_ref: dict[str, Any], fault: CniError) -> bool:
    """Whether no ADD of railcni has claimed an address, and `fault` shows that the release need not be tried again."""
    if record and (record.get("addresses") or record.get("members")):
        return False
    if isinstance(fault, InvalidConfig) and not isinstance(fault, Denied):
        return True  # the store cannot be opened with this configuration, so no ADD could open the store
    return record is None and store_ref.get("kind") in ("addresslease", "etcd")  # Go's plugins do not use these stores


def keep_pending(
    attachment: Attachment, record: dict[str, Any] | None, store_ref: dict[str, Any], records: Records, reason: str
) -> None:
    """Mark the release as pending in the record of `attachment`, with the reason."""
    if record is None:
        if not stores.is_shared(store_ref):
            return
        record = recorded_document(stores.recorded(store_ref), (), Owner(attachment))
    if not record["pending"] or record.get("reason") != reason[:_REASON]:
        records.write(attachment, PART, {**record, "pending": True, "reason": reason[:_REASON]})
    if stores.is_shared(store_ref):
        records.remind(True, due=True)


def flush_reminded(records: Records, store_ref: dict[str, Any]) -> bool:
    """Call `flush` if a retry of pending releases is due, and return whether it was due. The caller has just reached
    the store `store_ref`."""
    is_due = records.is_reminded(_FLUSH_PAUSE)
    if is_due:
        flush(records, store_ref, _FLUSH_SECONDS)
    return is_due


def flush(records: Records, store_ref: dict[str, Any] | None, seconds: float) -> int:
    """Retry the pending releases for about `seconds`. Returns the number of releases that are still pending.

    If a static address has lost its lease, another attachment that uses the address gets a lease. `store_ref` is the
    configured store with its password, or None. An unreachable store is tried once; the wait for it does not shorten
    the time for other stores.
    """
    records.remind(False)
    deadline = time.monotonic() + seconds
    faults, left, shares = Faults(), 0, False
    for attachment, _, listed in records.all(PART):
        if listed.get("pending") is not True:
            if listed.get("shared") and time.monotonic() <= deadline and not faults.is_silent(listed.get("store")):
                try:
                    shares = not _lease_shared(attachment, store_ref, records, seconds) or shares
                except CniError as fault:
                    shares = True
                    faults.note(fault, listed.get("store"))
                except (ValueError, TypeError) as fault:
                    records.log.error(f"the record of {attachment} is damaged: shared: {fault}")
            continue
        left += 1
        if time.monotonic() > deadline or faults.is_silent(listed.get("store")):
            continue
        held = records.try_locked(attachment, PART)
        if held is None:
            continue
        with held:
            record = read_record(attachment, records)
            if record is None or not record["pending"]:
                left -= 1
                continue
            where = stores.joined(record["store"], store_ref)
            try:
                release(attachment, record, where, records, seconds)
                left -= 1
            except CniError as fault:
                records.log.warning(f"the release of {attachment} stays pending: {fault.msg}")
                faults.note(fault, where)
                if isinstance(fault, Unreachable):
                    deadline = time.monotonic() + seconds
    if left or shares:
        records.remind(True)
    return left


def _lease_shared(attachment: Attachment, store_ref: dict[str, Any] | None, records: Records, seconds: float) -> bool:
    """Lease to `attachment` each of its static addresses without a lease. Returns False if a retry is needed."""
    lock = records.try_locked(attachment, PART)
    if lock is None:
        return False
    with lock:
        record = read_record(attachment, records)
        if record is None or record["pending"]:
            return True
        where = stores.joined(record["store"], store_ref)
        store = stores.open_store(where, CHANGE, restorer(where, records), seconds)
        owner = owner_from_json(record, attachment)
        with store.session():
            for pool, text in list(record["shared"]):
                want = want_from_json(record, pool, text)
                holder = store.holder(want)
                if holder and (holder.container_id, holder.ifname) != (attachment.container_id, attachment.ifname):
                    continue
                more: dict[str, Any] = {"pools": [*record["pools"], pool], "addresses": [*record["addresses"], text]}
                if (pool, text) in zip(record["pools"], record["addresses"], strict=False):
                    more = {}  # recorded already, by a claim whose outcome was unknown
                if not (more or holder) and not store.replaces:
                    store.settle(attachment, owner.sequence)  # or the former claim might be executed after the release
                    owner.sequence = record["sequence"] = max(time.time_ns(), owner.sequence + 1)
                records.write(attachment, PART, {**record, **more})
                answer = None if holder else store.claim([want], owner)
                record |= {} if isinstance(answer, Taken) else more
                record["sequence"] = owner.sequence  # which the store may have raised
                if not isinstance(answer, Taken | Unknown):
                    record["shared"] = [place for place in record["shared"] if place != [pool, text]]
                records.write(attachment, PART, record)
        return not record["shared"]


def drop(records: Records, chosen: Collection[Attachment]) -> int:
    """Remove the record of each attachment in `chosen` whose release is pending; the leases stay. Returns the number of
    removed records."""
    dropped = 0
    for attachment in chosen:
        held = records.try_locked(attachment, PART)
        if held:
            with held:
                if is_pending(attachment, records):
                    records.remove(attachment, PART)
                    dropped += 1
    if not any(record.get("pending") is True or record.get("shared") for _, _, record in records.all(PART)):
        records.remind(False)
    return dropped


def of_earlier_boots(store: Store, pool: str, owner: Owner) -> list[Lease]:
    """The leases of `pool` that the node of `owner` claimed in a boot other than the present one."""
    node = node_of(store, owner.node)
    return [lease for lease in store.leases(pool, node) if lease.boot_id != owner.boot_id]


def node_of(store: Store, name: str) -> str:
    """The node to list leases of: `name`, or "" in a file store, where all leases are this node's under any name. A
    host's name may change, for example at a reboot."""
    return name if stores.is_shared(store.record()) else ""


def free_earlier_boots(store: Store, pool: str, owner: Owner, records: Records) -> bool:
    """Release this node's leases of earlier boots in `pool` whose namespaces are gone. Returns whether any was released."""
    freed = False
    for attachment in {lease.attachment for lease in of_earlier_boots(store, pool, owner)}:
        if attachment == owner.attachment:
            continue
        held = records.try_locked(attachment, PART)
        if held is None:
            continue
        with held:
            dead = store.find(attachment)
            if any(lease.boot_id == owner.boot_id or netns.may_be_at(lease.netns) for lease in dead):
                continue
            if not all(is_ours(lease, owner.machine, store, records) for lease in dead):
                continue
            freed = store.release(dead) > 0 or freed
            records.remove(attachment, PART)
            records.log.warning(f"reclaimed {texts(dead)} of {attachment}, left by an earlier boot")
    return freed


def is_ours(lease: Lease, machine: str, store: Store, records: Records) -> bool:
    """Whether a lease that names this node was claimed on this `machine`: another machine may have the same node name.

    A lease of an older version, which does not name its machine, counts if this node has a record of its attachment.
    """
    if not stores.is_shared(store.record()):
        return True
    if lease.machine and machine:
        return lease.machine == machine
    return records.read(lease.attachment, PART) is not None


class Faults:
    """The errors of a pass over attachments. A store that was unreachable once is skipped in the rest of the pass."""

    def __init__(self) -> None:
        self.errors: list[CniError] = []
        self._silent: list[dict[str, Any]] = []

    def note(self, fault: CniError, store: Any) -> None:
        """Note an error of the store with the reference `store`."""
        self.errors.append(fault)
        if isinstance(store, dict) and isinstance(fault, Unreachable):
            self._silent.append(store)

    def is_silent(self, store: Any) -> bool:
        return isinstance(store, dict) and any(stores.same(store, one) for one in self._silent)
