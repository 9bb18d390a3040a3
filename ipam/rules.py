"""The lease rules: which leases an attachment keeps, takes over or gives up. Pure decisions, no I/O.

1. The same attachment again: the addresses that it has, as long as the configuration still gives them.
2. The same pod (namespace and name) with the same ifname in a new sandbox: the leases move to it. Not when both uids
   are known and differ: then it is another pod of the same name, and the former one may still be on the wire. Nor
   when a uid is not known and the machines differ: a pod's sandbox is made anew where it was.
3. No pod name matches no pod.
4. What an attachment holds and the configuration no longer gives is given up in the step that claims the rest.
"""

from __future__ import annotations

from ipam.leases import Lease, Owner, Want

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ipam.config import IpamConfig
    from ipam.ranges import Range


class Need:
    """One address that an attachment gets from a pool: any of `rng`, or the one that was `requested`."""

    __slots__ = ("pool", "requested", "rng", "scope")

    def __init__(self, rng: Range, pool: str, scope: str | None, requested: int | None = None) -> None:
        self.rng = rng
        self.pool = pool
        self.scope = scope
        self.requested = requested

    def want(self, value: int) -> Want:
        """The address `value`, as a claim asks for it."""
        return Want(self.pool, self.rng.family, value, self.scope)

    def is_met_by(self, lease: Lease) -> bool:
        """Whether the address of `lease` is one that this need could be given."""
        if lease.pool != self.pool or lease.family != self.rng.family:
            return False
        return lease.value == self.requested if self.requested is not None else self.rng.usable(lease.value)


class Plan:
    """What to claim. `chosen[i]` is the value for the need i, None where the store must be searched for one.

    `given_up` are the leases whose place the claim takes; `settled`: the store holds all of it already.
    """

    __slots__ = ("chosen", "given_up", "settled")

    def __init__(self, chosen: list[int | None], given_up: list[Lease], settled: bool) -> None:
        self.chosen = chosen
        self.given_up = given_up
        self.settled = settled


def needs(config: IpamConfig) -> list[Need]:
    """One need for each range, in their order; each requested address stands in for a range that holds it.

    A request for which no range is left is a need of its own, of the first range that holds it.
    """
    scope = config.network_name if config.overlap else None
    found = [Need(rng, rng.pool_name(config.network_name, config.slice_node), scope) for rng in config.ranges]
    for family, value, _ in config.requested:
        holding = [n for n in found if n.rng.family == family and n.rng.contains(value)]
        if not holding:
            continue
        free = [n for n in holding if n.requested is None]
        best = [n for n in free if n.rng.usable(value)] or free
        if best:
            best[0].requested = value
        else:
            found.append(Need(holding[0].rng, holding[0].pool, scope, value))
    return found


def plan(
    wanted: Sequence[Need], own: Sequence[Lease], pods: Sequence[Lease], owner: Owner, lost: Collection[Want] = ()
) -> Plan:
    """What to claim for `owner`, whose attachment holds `own`; `pods` are the leases of its pod under its ifname.

    `lost` are addresses of leases that cannot be kept, since another holds the reservation.
    """
    gone = {(want.pool, want.value) for want in lost}
    former = [lease for lease in pods if lease.attachment != owner.attachment and may_take_over(lease, owner)]
    usable = [lease for lease in (*own, *former) if (lease.pool, lease.value) not in gone]
    chosen: list[int | None] = [need.requested for need in wanted]
    kept: list[Lease | None] = [None] * len(wanted)
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i].requested is None):  # a requested address first
        for lease in usable:
            if wanted[i].is_met_by(lease):
                usable.remove(lease)
                kept[i], chosen[i] = lease, lease.value
                break
    moved = [lease for lease in former if lease in kept]
    settled = (
        not moved
        and len(own) == len(wanted)
        and all(lease and is_current(lease, need, owner) for lease, need in zip(kept, wanted, strict=True))
    )
    return Plan(chosen, [*own, *moved], settled)


def may_take_over(lease: Lease, owner: Owner) -> bool:
    """Whether the lease of another sandbox is the owner's pod's: by its uid, or by its machine when a uid is not known."""
    same = bool(owner.pod[1]) and lease.pod[:2] == owner.pod[:2] and lease.ifname == owner.attachment.ifname
    if lease.pod[2] and owner.pod[2]:
        return same and lease.pod[2] == owner.pod[2]
    return same and (lease.machine == owner.machine or not (lease.machine and owner.machine))


def is_current(lease: Lease, need: Need, owner: Owner) -> bool:
    """Whether the lease has the members of a new claim already. The collector judges by them whether a lease is in use."""
    described = (lease.pod, lease.node, lease.machine, lease.boot_id, lease.netns, lease.scope)
    return described == (owner.pod, owner.node, owner.machine, owner.boot_id, owner.netns, need.scope)
