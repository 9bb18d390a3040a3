"""For stores that nodes share: the node's index of its records by address, and the locks of proposed addresses.

The index is the folder `held` beside the node's records. It has a symbolic link for each address. The target of the
link names the attachment. The search of an ADD uses the index only to find a record, so a stale or lost link changes no
lease. A missing folder is made from the records.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from cni.shared.kernel import files, netns_users
from cni.shared.records import GROUP, HeldLock, Records
from cni.shared.spec import codec
from cni.shared.spec.request import Attachment
from ipam import local, stores
from ipam.leases import PART, Lease, Owner, Want, recorded_document, recorded_leases
from ipam.stores.base import Store


def note_holder(records: Records, attachment: Attachment, wants: Sequence[Want]) -> None:
    """Note in the node's index of addresses that `attachment` holds the addresses of `wants`."""
    target = codec.dumps(list(attachment.key()))
    for want in wants:
        path = _link(records, want)
        try:
            _make_folder(records)
            forget_holder(records, [want])
            os.symlink(target, path)
        except OSError as fault:
            records.log.debug(f"{want.text} is not in the index of held addresses: {fault}")


def forget_holder(records: Records, wants: Sequence[Want]) -> None:
    """Remove the addresses of `wants` from the node's index of addresses."""
    for want in wants:
        try:
            os.unlink(_link(records, want))
        except OSError:
            pass  # the index does not have the address


def holder(records: Records, want: Want) -> Attachment | None:
    """The attachment that holds the address of `want` by the node's index of addresses; None if it has no entry."""
    try:
        _make_folder(records)
        return Attachment(*codec.loads(os.readlink(_link(records, want)).encode()))
    except (OSError, ValueError, TypeError):
        return None


def _link(records: Records, want: Want) -> str:
    space = f"pool {want.pool}" if want.scope is None else f"scope {want.scope}"
    return f"{records.directory}/held/{local.key_of(space, want.text).hex()}"


def _make_folder(records: Records) -> None:
    """Make the node's index of addresses from the present records, if the index is missing."""
    try:
        os.stat(records.directory + "/held")
        return
    except FileNotFoundError:
        files.make_private_directory(records.directory + "/held")
    for attachment, _, record in records.all(PART):
        try:
            note_holder(records, attachment, recorded_leases(attachment, record))
        except ValueError:
            pass  # the next verb that reads the record reports this


class ClaimsHere:
    """The addresses that other attachments of this node hold or are about to claim, by records and locks of the node.

    `owner` makes the present claim. A call locks each address that it proposes, so other calls propose other addresses.
    """

    def __init__(self, records: Records, owner: Owner) -> None:
        self._records, self._owner = records, owner
        self._locks: dict[tuple[str, str], HeldLock] = {}

    def is_being_claimed(self, want: Want) -> bool:
        """Whether another call has locked the address of `want`. If not, lock the address for this call."""
        place = want.pool, want.text
        if place not in self._locks:
            lock = self._records.try_locked_address(*place)
            if lock is None:
                return True
            self._locks[place] = lock
        return False

    def release(self) -> None:
        for lock in self._locks.values():
            lock.release()

    def note(self, wants: Sequence[Want]) -> None:
        """Note in the node's index of addresses that the owner's attachment holds the addresses of `wants`."""
        note_holder(self._records, self._owner.attachment, wants)

    def is_recorded(self, want: Want) -> bool:
        """Whether another attachment has `want` in its record, even if the store shows the address as free.

        A record does not count if it notes a pending release, names a namespace that is gone, or is of an earlier boot
        or of the owner's pod.
        """
        records, owner = self._records, self._owner
        attachment = holder(records, want)
        record = records.read(attachment, PART) if attachment and attachment != owner.attachment else None
        if not attachment or not record or record["pending"] is True or record["bootID"] != owner.boot_id:
            return False
        if netns_users.has_lost_path(str(record.get("netns"))):
            return False
        try:
            leases = recorded_leases(attachment, record)
        except ValueError:
            return False  # the next verb that reads the record reports this
        return any(lease.excludes(want) and not lease.is_of_pod(owner) for lease in leases)

    def refill(self, store: Store, cooldown: int) -> bool:
        """Restore lost records of this node from its leases in the store. Returns whether the owner's is restored.

        This is needed once after the state directory was lost. The caller holds the lock of the owner's record. Two
        machines may have one node name. So a lease counts only if it names this machine, or the owner's pod and uid.
        """
        records, owner = self._records, self._owner
        by_attachment: dict[Attachment, list[Lease]] = {}
        others = found = False
        for lease in store.leases(node=owner.node):
            is_own_pod = lease.is_of_pod(owner) and "" != lease.pod[2] == owner.pod[2]
            if is_own_pod or "" != lease.machine == owner.machine:
                by_attachment.setdefault(lease.attachment, []).append(lease)
            else:
                others = others or bool(lease.machine and owner.machine)
        made: list[Lease] = []
        for attachment, leases in by_attachment.items():
            if attachment.network.startswith(GROUP):
                continue  # the record of a group names rails, which a lease does not
            is_callers = attachment == owner.attachment
            held = None if is_callers else records.try_locked(attachment, PART)
            if (is_callers or held) and records.read(attachment, PART) is None:
                new = recorded_document(stores.recorded(store.record()), leases, leases[0].owner, cooldown)
                records.write(attachment, PART, {**new, "bootID": leases[0].boot_id})
                note_holder(records, attachment, leases)
                made += leases
                found = found or is_callers
            if held:
                held.release()
        if made:
            count = len({lease.attachment for lease in made})
            records.log.warning(f"records of {count} attachments were lost, and are read back: {local.texts(made)}")
        if not others:
            local.set_complete(records)
        return found
