"""Free dead leases. Each lease is read again first, and is freed only if it has not changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cni.cluster.audit import in_use
from cni.shared.kernel import node
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from ipam import local, stores, upkeep
from ipam.leases import PART, Lease, recorded_cooldown
from ipam.stores.base import Store

Check = Callable[[Lease], object]


class Changed(Exception):
    """The lease has changed or may be in use, so it must not be freed now; the text is the reason."""


class Kept(Changed):
    """The lease must stay, since it is unknown whether its address is in use; the text has the remedy."""


def is_same(found: Lease, lease: Lease) -> bool:
    """Whether `found`, a lease in a store, belongs to the attachment of `lease`. If `found` has no container ID, as in
    reservations of Go's whereabouts, the pods of the two leases are compared."""
    if found.ifname not in ("", lease.ifname):
        return False
    if found.container_id:
        return found.container_id == lease.container_id
    return bool(lease.pod[1]) and found.pod_name == lease.pod_name


@dataclass(frozen=True)
class Freeing:
    """Frees leases in `store`. A reservation whose lease is missing in the IPPool is freed like a lease.

    If this machine can tell whether the address is in use (`is_here`), the lease is freed only under the locks of its
    attachment, and only when the address is not in use. `records` are this machine's records. `below` maps a path of
    the host to its path in this container. A request may take at most `seconds`; 0 means the default.
    """

    store: Store
    records: Records
    below: Callable[[str], str] = str
    seconds: float = 0

    def free_lease(
        self, lease: Lease, check: Check, cooldown: int = 0, dry_run: bool = False, is_ended: bool = False
    ) -> None:
        """Free the lease. Raises Changed if the lease must stay, and CniError if a request fails. `check(lease)` may
        raise Changed too.

        `cooldown`, in seconds, applies if the lease's record has none. With `dry_run` nothing is freed. With
        `is_ended`, the caller knows that the address is not in use, even if this process cannot tell.
        """
        lease = in_use.recorded(lease, self.records)
        if not self.is_here(lease):
            self._release(lease, check, cooldown, dry_run)
            return
        with in_use.excluded(self.records, lease.attachment) as users:
            if users is None:
                raise Changed("an operation on its attachment is under way")
            record = local.read_record(lease.attachment, self.records)
            own = record and stores.same(record["store"], self.store.record()) and not record["pending"]
            if record and not (own and record["sequence"] == lease.sequence):
                raise Changed("its record tells of another lease or store, or of a release that is pending")
            try:
                if in_use.may_be(lease, users, self.records, self.below):
                    raise Changed("it is in use on this node, or may be")
            except OSError as fault:
                if not is_ended:
                    raise Kept(f"it is not known whether it is in use: {fault}") from None
            if record is None:
                self._release(lease, check, cooldown, dry_run)
                return
            check(lease)
            if not dry_run:  # `release` frees all leases of the attachment
                kept = recorded_cooldown(record) or cooldown
                where = {**record["store"], **self.store.record()}  # the record may have pools that no network names
                upkeep.release(lease.attachment, record, where, self.records, self.seconds, kept)

    def is_here(self, lease: Lease) -> bool:
        """Whether this machine can tell if the address is in use: it has the store, or made or recorded the lease."""
        if not stores.is_shared(self.store.record()) or lease.boot_id == node.boot_id():
            return True
        if lease.machine and lease.machine == node.machine_id():
            return True
        return self.records.read(in_use.recorded(lease, self.records).attachment, PART) is not None

    def _release(self, lease: Lease, check: Check, cooldown: int, dry_run: bool) -> None:
        try:
            found = self.store.holder(lease)
        except InvalidConfig as fault:  # for example, the pool is closed
            raise Changed(fault.msg) from None
        if found is None:
            raise Changed("the lease is gone")
        if found.claimed:
            raise Changed("it belongs to an IPAMClaim")
        if not is_same(found, lease) or lease.sequence not in (0, found.sequence):
            raise Changed(f"it is {found.user()}'s now, of container {found.container_id}")
        check(lease)
        if dry_run:
            return
        self.store.cooldown = cooldown
        if not self.store.release([lease]) and self.store.holder(lease):  # `release` does not count reservations
            raise Changed("it has changed meanwhile")
