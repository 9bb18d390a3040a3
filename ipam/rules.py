"""The lease rules: which leases an attachment keeps, takes over or gives up. Pure decisions, no I/O.

1. The same attachment keeps its addresses, as long as the configuration still gives them.
2. If the same pod (namespace and name) has a new sandbox, the leases of the same ifname move to it. There are two
   exceptions. If both uids are known and differ, the former pod of this name may still use the leases. If a uid is
   unknown and the machines differ, the pods are different, since a pod gets a new sandbox only on its node.
3. A lease without a pod name matches no pod.
4. The claim of new addresses also gives up addresses that the configuration no longer gives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cni.shared.spec.errors import TryAgainLater
from ipam.leases import Lease, Owner, Want
from ipam.ranges import Range, host_of

if TYPE_CHECKING:
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group  # it imports this module

Choice: TypeAlias = "Need | Group"
"""A need, or a group of rails. A claim chooses an index in `space`. An index stands for one address for each need."""

MOST_STATICS = 32  # the most leased static addresses of a network: a claim is one transaction (ipam.group.indexes)


class SharedLease(Exception):
    """Error: another attachment of the network has the lease of the static address of `need`."""

    def __init__(self, need: Need) -> None:
        self.need = need


class Exhausted(TryAgainLater):
    """Error: a pool has no free address."""


class Need:
    """One address that an attachment gets from a pool: any address of `rng`, or only the address `requested`.

    A need is also a Choice (ipam.rules.Choice). Its indexes are the addresses themselves, as integers. `shared` is true
    for a static address, which all attachments of a network use. One of them has the lease of the address.
    """

    def __init__(
        self, rng: Range, pool: str, scope: str | None, requested: int | None = None, shared: bool = False
    ) -> None:
        self.shared = shared
        self.rng = self.space = rng
        self.pool = pool
        self.scope = scope
        self.requested = requested

    def want(self, value: int) -> Want:
        """The address `value` as a Want for a claim."""
        return Want(self.pool, self.rng.family, value, self.scope)

    @property
    def needs(self) -> list[Need]:
        return [self]

    def values(self, index: int) -> list[int]:
        """The addresses that `index` stands for, one for each of `needs`."""
        return [index]

    def index_of(self, family: int, value: int) -> int | None:
        """The index of an address, which is its value; None for an address of the other family."""
        return value if family == self.rng.family else None

    def kept_index(self, place: Want) -> int | None:
        """The index of the leased address `place`; None if it is in another pool, or this need's range lacks it."""
        is_kept = place.pool == self.pool and place.family == self.rng.family and self.rng.usable(place.value)
        return place.value if is_kept else None

    def exhausted(self, free: int, waiting: str) -> Exhausted:
        """The error when no address is free. `free` is the number of addresses that are not in use, `waiting` a text
        about addresses that are in use without a lease."""
        size = self.rng.size()
        return Exhausted(
            f"pool {self.pool} is exhausted: {size - free} of the {size} addresses that range {self.rng} may give are in"
            f" use{waiting}. Delete attachments or enlarge the range; `railcni ipam leases` shows who holds them"
        )


class ClaimPlan:
    """The plan of a claim. `chosen[i]` is the address for need number i; None if the search must find one.

    `given_up` are the former leases that the claim removes or replaces. `settled` is true if all leases of the plan
    exist already.
    """

    def __init__(self, chosen: list[int | None], given_up: list[Lease], settled: bool) -> None:
        self.chosen = chosen
        self.given_up = given_up
        self.settled = settled


def needs(config: IpamConfig) -> list[Need]:
    """One need for each range, in the order of the ranges. A requested address is set in the need for its range.

    A second requested address in the same range gets its own need, in the first range with the address. An address
    requested outside of the network's ranges has its own range, and always the reservation scope network_name.
    """
    scope = config.network_name if config.overlap else None
    found = [Need(rng, rng.pool_name(config.network_name, config.slice_node), scope) for rng in config.ranges]
    for need in found[len(found) - len(config.outside) :]:
        need.scope = config.network_name
    for family, value, _ in config.requested:
        holding = [n for n in found if n.rng.family == family and n.rng.contains(value)]
        holding = [n for n in holding if n.rng not in config.outside or n.rng.usable(value)]
        if not holding:
            continue
        free = [n for n in holding if n.requested is None]
        best = [n for n in free if n.rng.usable(value)] or free
        if best:
            best[0].requested = value
        else:
            found.append(Need(holding[0].rng, holding[0].pool, scope, value))
    return found


def statics(config: IpamConfig) -> list[Need]:
    """A need for each static address in a range, at most MOST_STATICS, so that no other network gives the address."""
    scope = config.network_name if config.overlap else None
    found = []
    for family, value in (host_of(a.address) for a in config.addresses):
        rng = config.range_of(family, value)
        if rng:
            found.append(Need(rng, rng.pool_name(config.network_name, config.slice_node), scope, value, shared=True))
    return found[:MOST_STATICS]


def plan(
    wanted: Sequence[Choice], own: Sequence[Lease], pods: Sequence[Lease], owner: Owner, lost: Collection[Want] = ()
) -> ClaimPlan:
    """Plan the claim of `wanted` by `owner`. `own` are its attachment's leases, `pods` those of its pod and ifname.

    `lost` are leased addresses that must not be kept: another owner has them, or their release is unfinished. A choice
    without a requested index gets the index that most of the kept leases have.
    """
    gone = {(want.pool, want.value) for want in lost}
    former = [lease for lease in pods if lease.attachment != owner.attachment and may_take_over(lease, owner)]
    usable = [lease for lease in (*own, *former) if (lease.pool, lease.value) not in gone]
    # an address and its lease for each need, by the choice's position in `wanted`
    found: dict[int, list[tuple[int | None, Lease | None]]] = {}
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i].requested is None):  # a requested address first
        choice, found[i] = wanted[i], []
        index = choice.requested if choice.requested is not None else _most_kept(choice, usable, lost)
        values = [None] * len(choice.needs) if index is None else choice.values(index)
        for need, value in zip(choice.needs, values, strict=True):
            place = (need.pool, need.rng.family, value)
            lease = next((x for x in usable if x.place == place), None)
            if lease:
                usable.remove(lease)
            found[i].append((value, lease))
    pairs = [pair for i in range(len(wanted)) for pair in found[i]]
    kept = [lease for _, lease in pairs]
    needs = [need for choice in wanted for need in choice.needs]
    moved = [lease for lease in former if lease in kept]
    settled = (
        not moved
        and len(own) == len(needs)
        and all(lease and is_current(lease, need, owner) for lease, need in zip(kept, needs, strict=True))
    )
    return ClaimPlan([value for value, _ in pairs], [*own, *moved], settled)


def _most_kept(choice: Choice, usable: Sequence[Lease], lost: Collection[Want]) -> int | None:
    """The index that most of the leases `usable` have. If several indexes are equally frequent, the first one found
    counts. The indexes of addresses in `lost` do not count. None if no index is left."""
    gone = {choice.kept_index(want) for want in lost}
    counts: dict[int, int] = {}
    for lease in usable:
        index = choice.kept_index(lease)
        if index is not None and index not in gone:
            counts[index] = counts.get(index, 0) + 1
    return max(counts, key=lambda index: counts[index]) if counts else None


def may_take_over(lease: Lease, owner: Owner) -> bool:
    """Whether `owner` may take over `lease`. Both must have the same pod name and ifname. The pod's uids must be equal.
    If a uid is unknown, the machines must be equal or unknown instead."""
    same = lease.is_of_pod(owner)
    if lease.pod[2] and owner.pod[2]:
        return same and lease.pod[2] == owner.pod[2]
    return same and (lease.machine == owner.machine or not (lease.machine and owner.machine))


def is_current(lease: Lease, need: Need, owner: Owner) -> bool:
    """Whether the lease has the same pod, node, machine, boot, netns and scope as a new claim by `owner`. By these
    values garbage collection decides whether a lease is in use."""
    described = (lease.pod, lease.node, lease.machine, lease.boot_id, lease.netns, lease.scope)
    return described == (owner.pod, owner.node, owner.machine, owner.boot_id, owner.netns, need.scope)
