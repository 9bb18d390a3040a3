"""Pools and reservations as one session has read them, and their leases."""

from __future__ import annotations

from cni.shared.spec.errors import InvalidConfig
from ipam.leases import Lease, Want
from ipam.stores.apiserver.faults import Gone
from ipam.stores.apiserver.resources import POOLS, RESERVATIONS
from ipam.stores.kubernetes import objects
from ipam.stores.kubernetes.objects import IPPool, Reservation, reservation_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from ipam.stores.apiserver import Api
    from ipam.stores.kubernetes.objects import Allocation


class View:
    """The readings since `forget`. `named` are the pools that an attachment may have leases in, None for all; `node` is the
    node of a slice's pools, "" for pools that are no slices.

    `before` is called before a pool is read. `cooldown` is that of the store. `thorough`: searches read the reservations of
    other pools, too; set after a conflict with one.
    """

    __slots__ = (
        *("_before", "_known", "_known_from", "_named", "_node", "_reservations", "_reserved"),
        *("api", "cooldown", "read_pools", "thorough"),
    )

    def __init__(
        self,
        api: Api,
        before: Callable[[], object],
        named: list[str] | None,
        known: Callable[[], list[Lease]],
        node: str,
    ) -> None:
        self.api = api
        self._before = before
        self.cooldown = 0
        self.thorough = False
        self._named = named
        self._node = node
        self._known_from = known
        self._known: dict[tuple[str, int, int], Lease] | None = None
        self.read_pools: dict[str, IPPool | None] = {}
        self._reservations: dict[str, Reservation | None] = {}
        self._reserved: list[str] | None = None

    def forget(self) -> None:
        """Read all anew."""
        self.read_pools = {}
        self._reservations = {}
        self._reserved = self._known = None

    def forget_pool(self, name: str) -> None:
        self.read_pools.pop(name, None)

    def forget_reservation(self, place: Want | Lease) -> None:
        self._reservations.pop(reservation_name(place), None)
        self._reserved = None

    def all(self) -> list[IPPool]:
        """The pools that an attachment may have leases in."""
        if self._named is not None:
            return [pool for pool in map(self.pool, self._named) if pool]
        self._before()
        for document in self.api.list_all(POOLS):
            pool = self.parsed(document, 0)
            self.read_pools.setdefault(pool.name, pool)
        return [pool for pool in self.read_pools.values() if pool]

    def pool(self, name: str) -> IPPool | None:
        """The pool of this name; None for none."""
        if name not in self.read_pools:
            self._before()
            try:
                self.read_pools[name] = self.parsed(*self.api.get(POOLS, name))
            except Gone:
                self.read_pools[name] = None
        return self.read_pools[name]

    def parsed(self, document: dict[str, Any], size: int) -> IPPool:
        """An IPPool of the server; InvalidConfig for one without a range."""
        try:
            return IPPool(document, size)
        except ValueError as fault:
            name = (document.get("metadata") or {}).get("name")
            raise InvalidConfig(
                f"spec.range of IPPool {name} of {self.api}: {fault}. Correct it, or remove the object"
            ) from None

    def reservation(self, place: Want | Lease) -> Reservation | None:
        """The reservation of the address of `place` in its scope; None for none."""
        if place.scope is None:
            return None
        name = reservation_name(place)
        if name not in self._reservations:
            try:
                self._reservations[name] = Reservation(self.api.get(RESERVATIONS, name)[0], (place.scope,))
            except Gone:
                self._reservations[name] = None
        return self._reservations[name]

    def held(self, name: str, scope: str | None, family: int) -> Collection[int]:
        """The addresses that cannot be claimed in a pool; by reservations, too, when the view is `thorough`."""
        pool = self.pool(name)
        entries = pool.entries if pool and pool.family == family else {}
        if scope is None or not self.thorough:
            return entries
        held = set(entries)
        if self._reserved is None:
            found = self.api.list_all(RESERVATIONS)
            self._reserved = [str((document.get("metadata") or {}).get("name")) for document in found]
        for text in self._reserved:
            address = objects.reserved_address(text, scope)
            if address and address[0] == family:
                held.add(address[1])
        return held

    def lease(self, pool: IPPool, entry: Allocation) -> Lease:
        """The lease of an allocation, by this node's record if there is one."""
        known = self.known_leases().get((pool.name, pool.family, entry.value))
        if known and entry.is_of(known):
            return known
        return pool.lease(entry, pool.named_scope(self._node))

    def lease_at(self, place: Want | Lease) -> Lease | None:
        """The lease that the pool has at the address of `place`; None for none."""
        pool = self.pool(place.pool)
        entry = objects.allocation(pool, place)
        return self.lease(pool, entry) if pool and entry else None

    def completed(self, lease: Lease) -> Lease:
        """`lease` with the members that its reservation tells, if no record does; without a reservation its scope is None."""
        found = self.reservation(lease)
        own = found is not None and found.is_of(lease)
        if lease.sequence == 0 and found and own:
            found.tell(lease)
        if lease.scope is None or own:
            return lease
        unreserved = Lease(Want(lease.pool, lease.family, lease.value, None), lease.owner)
        unreserved.claimed = lease.claimed
        return unreserved

    def is_there(self, lease: Lease) -> bool:
        """Whether the pool still holds `lease`, and no later one of the same attachment."""
        pool = self.pool(lease.pool)
        entry = objects.allocation(pool, lease)
        if pool is None or entry is None or not entry.is_of(lease):
            return False
        known = self.known_leases().get((lease.pool, lease.family, lease.value))
        return known is None or not entry.is_of(known) or known.key() == lease.key()

    def known_leases(self) -> dict[tuple[str, int, int], Lease]:
        """The leases of this node's records, by pool, family and address."""
        if self._known is None:
            leases = sorted(self._known_from(), key=lambda lease: lease.sequence)
            self._known = {(lease.pool, lease.family, lease.value): lease for lease in leases}
        return self._known

    def remember(self, leases: Sequence[Lease], gone: Sequence[Lease]) -> None:
        """Update the leases of the records, if they are loaded: `leases` were claimed, `gone` given up."""
        if self._known is not None:
            for old in gone:
                self._known.pop((old.pool, old.family, old.value), None)
            for lease in leases:
                self._known[lease.pool, lease.family, lease.value] = lease
