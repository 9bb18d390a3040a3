"""Freeing one address that was found dead: all is read again right before, and tested by the change itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cni.cluster.audit import in_use
from cni.cluster.audit.cluster import Cluster
from cni.shared.kernel import node
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from ipam import records as ipam_records
from ipam import stores, upkeep
from ipam.leases import Lease
from ipam.records import PART
from ipam.stores.apiserver.faults import Conflict, Gone
from ipam.stores.apiserver.resources import RESERVATIONS
from ipam.stores.base import Store
from ipam.stores.ippool.objects import Reservation, allocation

Check = Callable[[Lease], object]


class Changed(Exception):
    """It must not be freed, or not any more; the text is the reason."""


class Kept(Changed):
    """Nobody knows whether the address is in use; the text names the way out."""


@dataclass(frozen=True)
class Freeing:
    """Frees leases of `store`, and reservations of `cluster`, None where there is none.

    A lease that this machine has a record of, or that was claimed in its present boot, is freed only under the locks of its
    attachment, and not while it may be in use here. `records` are those of this machine, and `below` finds a path of the
    host. A request may take `seconds`; 0: the default.
    """

    store: Store
    cluster: Cluster | None
    records: Records
    below: Callable[[str], str] = str
    seconds: float = 0

    def free_lease(
        self, lease: Lease, check: Check, cooldown: int = 0, dry_run: bool = False, is_ended: bool = False
    ) -> None:
        """Free the lease, unless `check` of it as it stands now, or anything here, raises Changed. CniError.

        For `cooldown` seconds its address is given to no other pod, where its record does not say for how many. `is_ended`:
        the caller knows that it is not in use, should this process see too little of the node to tell.
        """
        lease = in_use.recorded(lease, self.records)
        if not self.is_here(lease):
            self._release(lease, check, cooldown, dry_run)
            return
        with in_use.excluded(self.records, lease.attachment) as users:
            if users is None:
                raise Changed("an operation on its attachment is under way")
            record = upkeep.read_record(lease.attachment, self.records)
            own = record and stores.same(record["store"], self.store.record()) and not record["pending"]
            if record and not (own and record["sequence"] == lease.sequence):
                raise Changed("its record tells of another lease or store, or of a release that is pending")
            self._refuse_used(lease, users, is_ended)
            if record is None:
                self._release(lease, check, cooldown, dry_run)
                return
            check(lease)
            if not dry_run:  # the attachment loses all its leases at once
                kept = ipam_records.cooldown(record) or cooldown
                where = {**record["store"], **self.store.record()}  # the record may know pools that no network names
                upkeep.release(lease.attachment, record, where, self.records, self.seconds, kept)

    def is_here(self, lease: Lease) -> bool:
        """Whether this machine can tell if the address is in use: it has the store or a record, or the lease names it."""
        if not stores.is_shared(self.store.record()) or lease.boot_id == node.boot_id():
            return True
        is_of_machine = lease.machine and lease.machine == node.machine_id()
        return (
            bool(is_of_machine) or self.records.read(in_use.recorded(lease, self.records).attachment, PART) is not None
        )

    def _refuse_used(self, lease: Lease, users: list[Attachment], is_ended: bool) -> None:
        try:
            used = in_use.may_be(lease, users, self.records, self.below)
        except OSError as fault:
            if is_ended:
                return
            raise Kept(f"it is not known whether it is in use: {fault}") from None
        if used:
            raise Changed("it is in use on this node, or may be")

    def _release(self, lease: Lease, check: Check, cooldown: int, dry_run: bool) -> None:
        found = self._again(lease)
        check(lease)
        if dry_run:
            return
        self.store.cooldown = cooldown
        if not self.store.release([lease]) and found:
            raise Changed("it has changed meanwhile")

    def _again(self, lease: Lease) -> bool:
        """Whether the lease stands as it was; False when its reservation alone is left. Changed when it is another's."""
        if self.store.kind != "kubernetes" or not self.cluster:
            found = self.store.holder(lease)
            if found is None or found.key() != lease.key():
                raise Changed(f"it is {found.user()}'s now" if found else "the lease is gone")
            return True
        reserved = self.cluster.reservation(lease)
        own = reserved is not None and reserved.is_of(lease)
        if reserved and own and lease.sequence not in (0, reserved.lease.sequence):
            raise Changed("its attachment has claimed it again")
        try:
            entry = allocation(self.cluster.pool(lease.pool), lease)
        except ValueError as fault:
            raise Changed(f"pool {lease.pool} cannot be read: {fault}") from None
        if entry is None:
            if not own:
                raise Changed("the allocation is gone")
            return False
        if entry.claimed:
            raise Changed("it belongs to an IPAMClaim")
        if not entry.is_of(lease) or entry.pod != lease.pod_name:
            raise Changed(f"it is pod {'/'.join(entry.pod)}'s now, of container {entry.container_id}")
        return True

    def delete_reservation(
        self,
        reserved: Reservation,
        check: Callable[[Reservation], object],
        dry_run: bool = False,
        is_ended: bool = False,
    ) -> None:
        """Delete a reservation whose address no pool holds, unless `check` of it as it stands now, or anything here, raises Changed.
        CniError. `is_ended` is as for `free_lease`.

        An ADD that takes the address over changes it in place, so its UID alone would not do.
        """
        lease = in_use.recorded(reserved.lease, self.records)
        if not self.is_here(lease):
            self._delete_reservation(reserved, check, dry_run)
            return
        with in_use.excluded(self.records, lease.attachment) as users:
            if users is None:
                raise Changed("an operation on its attachment is under way")
            self._refuse_used(lease, users, is_ended)
            self._delete_reservation(reserved, check, dry_run)

    def _delete_reservation(self, reserved: Reservation, check: Callable[[Reservation], object], dry_run: bool) -> None:
        then = reserved.lease
        now = self.cluster.reservation(then) if self.cluster else None
        if now is None or not self.cluster:
            raise Changed("the reservation is gone")
        if (now.uid, now.lease.pod_name, now.lease.container_id) != (reserved.uid, then.pod_name, then.container_id):
            raise Changed("another has taken its place")
        check(now)
        if not dry_run:
            try:
                self.cluster.api.delete(RESERVATIONS, now.name, now.uid, now.version)
            except (Conflict, Gone):
                raise Changed("another has taken its place") from None
