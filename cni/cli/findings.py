"""What can be wrong between pools, reservations and live pods, and what of them was read. Pure.

cni.cli.judge says what is wrong with leases and reservations, cni.cli.use what is wrong with addresses in use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cni.cli.inventory import Held, Network, Node, Pod, PoolState, Reserved

RECLAIM = "reclaim"  # dead: `railcni ipam reclaim` frees it
RESTORE = "restore"  # a reservation is to be made again: the agent does
LOOK = "look"  # a person has to decide
KEEP = "keep"  # right as it is: told, but no fault

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
POOL_NEARS_LIMIT = "pool-nears-limit"
LEASE_WITHOUT_NAMESPACE = "lease-without-namespace"
LEASE_WITHOUT_RECORD = "lease-without-record"
RECORD_WITHOUT_LEASE = "record-without-lease"
RELEASE_PENDING = "release-pending"
INDEX_DIFFERS = "index-differs"


@dataclass(frozen=True)
class Finding:
    """One thing that was found. `entry` is what stood in the store: nothing is freed that is no longer the same.

    `reservation` is the (name, uid) of the reservation that goes with it, or ("", "").
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
    entry: Mapping[str, Any] = field(default_factory=dict, compare=False)
    reservation: tuple[str, str] = ("", "")

    def key(self) -> tuple[object, ...]:
        """What makes it the same finding at another look."""
        entry = tuple(sorted((k, str(v)) for k, v in self.entry.items()))
        return (
            self.kind,
            self.action,
            self.pool,
            self.address,
            self.pod,
            self.container_id,
            self.ifname,
            entry,
            self.reservation,
        )


def about(held: Held, kind: str, action: str, why: str) -> Finding:
    """A finding about a lease."""
    return Finding(
        kind=kind,
        action=action,
        message=f"{held.text} of {held.owner}: {why}",
        pool=held.pool,
        address=held.text,
        network=held.network,
        container_id=held.container_id,
        ifname=held.ifname,
        pod="/".join(held.pod) if held.pod[1] else "",
        pod_uid=held.uid,
        node=held.node,
        sequence=held.sequence,
        entry=held.entry,
    )


@dataclass(frozen=True)
class Inventory:
    """What was read. None: it could not be read, and nothing is said that needs it.

    `kind` is the store's; `nads` are the "namespace/name" of every NAD, of whatever IPAM.
    """

    kind: str
    held: Collection[Held]
    pools: Collection[PoolState] = ()
    reserved: Collection[Reserved] | None = None
    pods: Mapping[tuple[str, str], Pod] | None = None
    nodes: Mapping[str, Node] | None = None
    networks: Collection[Network] = ()
    nads: Collection[str] = ()
