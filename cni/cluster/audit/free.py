"""The freeing of dead leases and reservations. Each is read again first, and is not freed if it changes after that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cni.cluster.audit import in_use
from cni.cluster.audit.cluster import Cluster
from cni.shared.kernel import node
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from ipam import stores, upkeep
from ipam.leases import PART, Lease, recorded_cooldown
from ipam.stores.apiserver.faults import Conflict, Gone
from ipam.stores.apiserver.resources import RESERVATIONS
from ipam.stores.base import Store
from ipam.stores.ippool.objects import Reservation, allocation

Check = Callable[[Lease], object]


class Changed(Exception):
    """The lease must not be freed now; the text is the reason."""


class Kept(Changed):
    """It is unknown whether the address is in use; the text has the remedy."""


@dataclass(frozen=True)
class Freeing:
    """The freeing of leases in `store`, and of reservations in `cluster` (None for a store outside of a cluster).

    A lease that this machine can judge (`is_here`) is freed only under the locks of its attachment, and not while its
    address may be in use here. `records` are those of this machine. `below` maps a path of the host to its path in
    this container. A request may take `seconds`; 0 means the default.
    """

    store: Store
    cluster: Cluster | None
    records: Records
    below: Callable[[str], str] = str
    seconds: float = 0

    def free_lease(
        self, lease: Lease, check: Check, cooldown: int = 0, dry_run: bool = False, is_ended: bool = False
    ) -> None:
        """Free the lease. Raises CniError, or Changed if it must not be freed now; `check(lease)` may raise Changed.

        `cooldown` in seconds applies if the lease's record has none. `is_ended`: the caller knows that the address is
        not in use; this counts if the process sees too little of the node to judge.
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
            if not dry_run:  # this frees all leases of the attachment
                kept = recorded_cooldown(record) or cooldown
                where = {**record["store"], **self.store.record()}  # the record may have pools that no network names
                upkeep.release(lease.attachment, record, where, self.records, self.seconds, kept)

    def is_here(self, lease: Lease) -> bool:
        """Whether this machine can judge the use of the address: it has store or record, or the lease names it."""
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
        """Read the lease again. Return False if only its reservation is left. Raises Changed if it has changed."""
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
        """Delete a reservation without a lease. Raises CniError, or Changed, which `check(reservation)` may raise.

        The deletion tests the resourceVersion too, since an ADD that takes over the address keeps the object's UID.
        `is_ended` is as in `free_lease`.
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
