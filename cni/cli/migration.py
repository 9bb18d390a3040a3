"""What is to be copied from one store to another. Pure: no I/O.

A lease is known by its address and the container, and interface, that it belongs to; a store of whereabouts may know the
pod alone. What is there already is left as it is, so a migration that was interrupted goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ipam.ranges import format_address
from ipam.stores.base import Lease, Owner, Want


@dataclass
class Plan:
    """`copy` are leases to be claimed, by owner; `there` those that are; `conflicts` those that another holds."""

    copy: dict[tuple[object, ...], list[Lease]] = field(default_factory=dict)
    there: list[Lease] = field(default_factory=list)
    conflicts: list[tuple[Lease, Lease]] = field(default_factory=list)

    @property
    def missing(self) -> int:
        return sum(map(len, self.copy.values()))


def plan(leases: Iterable[Lease], holder: Callable[[Want], Lease | None]) -> Plan:
    """What of `leases` is to be copied; `holder` says who has an address in the destination."""
    found = Plan()
    for lease in leases:
        other = holder(want_of(lease))
        if other is None:
            found.copy.setdefault((*lease.attachment.key(), lease.sequence), []).append(lease)
        elif is_same(other, lease):
            found.there.append(lease)
        else:
            found.conflicts.append((lease, other))
    return found


def is_same(other: Lease, lease: Lease) -> bool:
    """Whether `other`, of the destination, is that of the same attachment; a reservation of Go's names the pod alone."""
    if other.ifname not in ("", lease.ifname):
        return False
    if other.container_id:
        return other.container_id == lease.container_id
    return bool(lease.pod[1]) and other.pod[:2] == lease.pod[:2]


def want_of(lease: Lease) -> Want:
    return Want(lease.pool, lease.family, lease.value, lease.scope)


def owner_of(lease: Lease) -> Owner:
    """All that is known of its owner."""
    return Owner(lease.attachment, lease.pod, lease.node, lease.boot_id, lease.netns, lease.sequence, lease.machine)


def shown(lease: Lease) -> str:
    return f"{format_address(lease.family, lease.value)} of {lease.pool}"


def conflict(pair: tuple[Lease, Lease]) -> str:
    """What is said of an address that both stores have given."""
    lease, other = pair
    return f"{shown(lease)}: here {lease.holder()}; there {other.holder()}"
