"""Findings of the audit: their kinds, and the action that each asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ipam.leases import Lease

RECLAIM = "reclaim"  # the lease is dead: `railcni ipam reclaim` frees it
RESTORE = "restore"  # a reservation is missing: the agent creates it again
LOOK = "look"  # an administrator must decide
KEEP = "keep"  # information, no fault

LEASE_WITHOUT_POD = "lease-without-pod"
LEASE_OF_ENDED_POD = "lease-of-ended-pod"
LEASE_OF_ANOTHER_UID = "lease-of-another-uid"
LEASE_UNUSED = "lease-unused"
LEASE_WITHOUT_OWNER = "lease-without-owner"
LEASE_PENDING = "lease-of-pending-pod"
LEASE_CLAIMED = "lease-of-ipamclaim"
POD_WITHOUT_LEASE = "pod-without-lease"
DUPLICATE_ADDRESS = "duplicate-address"
DUPLICATE_LEASE = "duplicate-lease"
LOST_RESERVATION = "lost-reservation"
FOREIGN_RESERVATION = "foreign-reservation"
RESERVATION_WITHOUT_LEASE = "reservation-without-lease"
UNREADABLE = "unreadable"
POOL_IN_TWO_NAMESPACES = "pool-in-two-namespaces"
LEASE_WITHOUT_NAMESPACE = "lease-without-namespace"
LEASE_WITHOUT_RECORD = "lease-without-record"
RECORD_WITHOUT_LEASE = "record-without-lease"
RELEASE_PENDING = "release-pending"
INDEX_DIFFERS = "index-differs"


@dataclass(frozen=True)
class Finding:
    """A finding. It identifies its lease completely, so that a later lease of the same address is not freed by mistake.

    `reservation` is (name, uid) of the lease's reservation, or ("", ""). `store` is the kind of the store that has the
    lease or the reservation.
    """

    kind: str
    action: str
    message: str
    pool: str = ""
    address: str = ""
    network: str = ""
    container_id: str = ""
    ifname: str = ""
    pod: str = ""
    pod_uid: str = ""
    node: str = ""
    sequence: int = 0
    reservation: tuple[str, str] = ("", "")
    store: str = ""

    def key(self) -> tuple[object, ...]:
        """The identity of the finding: two audits give the same value for the same fault."""
        lease = (self.pool, self.address, self.network, self.container_id, self.ifname, self.sequence)
        return (self.kind, self.action, self.pod, *lease, self.reservation, self.store)


def about(lease: Lease, kind: str, action: str, why: str, **changes: Any) -> Finding:
    """A finding about a lease with the reason `why`; `changes` replace members of the finding."""
    message, uid = f"{lease.text} of {lease.user()}: {why}", lease.pod[2]
    attachment = lease.network, lease.container_id, lease.ifname
    owner = *attachment, lease.pod_ref, uid, lease.node, lease.sequence
    return replace(Finding(kind, action, message, lease.pool, lease.text, *owner), **changes)
