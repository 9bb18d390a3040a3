"""The pools and reservations that a session has read, their leases, and changes to these objects.

A patch tests that the object has not changed since it was read.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.leases import Lease, Want
from ipam.ranges import format_address, range_of
from ipam.stores.apiserver.faults import Conflict, Forbidden, NotFound, TooLarge, Undefined
from ipam.stores.apiserver.resources import ADDRESS_POOL, ADDRESS_STATE, ADDRESSES, HELD, POOLS, RESERVATIONS, label
from ipam.stores.apiserver.store import ObjectStore, refuse_elsewhere
from ipam.stores.base import SHARED_SECONDS, OutcomeUnknown, Pauses
from ipam.stores.ippool import objects
from ipam.stores.ippool.locks import PoolLocks
from ipam.stores.ippool.objects import Allocation, Changes, IPPool, Reservation, reservation_name

_CONTENDED_SECONDS, _LONGEST_PAUSE = 60.0, 5.0


class PoolReadings(ObjectStore):
    """The objects that a session has read, and changes to them. A pool is read under the node's lock of the pool.

    The store's reference (Store.record) may have these members. `pools` are the pools in which an attachment may have
    leases (absent: all). `node` is the node whose slices these pools are (absent: the pools are whole ranges). `moves`
    is true for a migration, which uses closed pools too.
    """

    def _prepare(self) -> None:
        self._locks = PoolLocks(self.api, self._store_ref.get("pools") or [])
        self._forget_readings()

    def _forget_readings(self) -> None:
        self._read_pools: dict[str, IPPool | None] = {"": None}  # whereabouts' reservations name no pool
        self._reservations: dict[str, Reservation | None] = {}
        self._recorded: dict[tuple[str, int, int], Lease] | None = None

    def _forget_pool(self, name: str) -> None:
        self._read_pools.pop(name, None)

    def _forget_reservation(self, place: Want) -> None:
        self._reservations.pop(reservation_name(place), None)

    def _own_pools(self) -> list[IPPool]:
        """The pools in which an attachment may have leases."""
        if "pools" in self._store_ref:
            return [pool for pool in map(self._pool, self._store_ref["pools"]) if pool]
        self._locks.take()
        for pool in self._listed():
            self._read_pools.setdefault(pool.name, pool)
        return [pool for pool in self._read_pools.values() if pool]

    def _listed(self) -> list[IPPool]:
        """All pools of the namespace except closed pools, read again from the server."""
        return [self._parsed(found, 0) for found in self.api.list_all(POOLS) if not objects.is_closed(found)]

    def _pool(self, name: str) -> IPPool | None:
        if name not in self._read_pools:
            self._locks.take()
            try:
                self._read_pools[name] = self._parsed(*self.api.get(POOLS, name))
            except NotFound:
                self._read_pools[name] = None
        return self._read_pools[name]

    def _parsed(self, document: dict[str, Any], size: int) -> IPPool:
        """The IPPool in `document` (`size` bytes). Raises InvalidConfig if its range is invalid, or it is closed."""
        try:
            return IPPool(document, size, self._moves)
        except ValueError as fault:
            name = (document.get("metadata") or {}).get("name")
            if isinstance(fault, objects.Closed):
                raise InvalidConfig(f"IPPool {name}: {fault}", str(self.api)) from None
            raise InvalidConfig(
                f"spec.range of IPPool {name} of {self.api}: {fault}. Correct it, or remove the object"
            ) from None

    def _reservation(self, place: Want) -> Reservation | None:
        """The reservation of the address of `place` in its scope; None if there is none."""
        if place.scope is None:
            return None
        name = reservation_name(place)
        if name not in self._reservations:
            try:
                self._reservations[name] = Reservation(self.api.get(RESERVATIONS, name)[0], (place.scope,))
            except NotFound:
                self._reservations[name] = None
        return self._reservations[name]

    def _lease(self, pool: IPPool, entry: Allocation) -> Lease:
        """The lease of an allocation, from this node's records or, if they lack it, from the allocation alone."""
        known = self._known_leases().get((pool.name, pool.family, entry.value))
        if known and entry.is_of(known):
            return known
        return pool.lease(entry, pool.named_scope(self._store_ref.get("node") or ""))

    def _lease_at(self, place: Want) -> Lease | None:
        """The lease of the address of `place` in its pool; None if there is none."""
        pool = self._pool(place.pool)
        entry = objects.allocation(pool, place)
        return self._lease(pool, entry) if pool and entry else None

    def _completed(self, lease: Lease, by_container: bool = False) -> Lease:
        """`lease`, completed by its reservation if this node's records do not have it.

        If no reservation belongs to the lease, return a copy of the lease with the scope None. If `by_container` is
        true, a reservation that names no container does not count.
        """
        found = self._reservation(lease)
        own = found is not None and found.is_of(lease) and not (by_container and not found.lease.container_id)
        if lease.sequence == 0 and found and own:
            found.tell(lease)
        if lease.scope is None or own:
            return lease
        unreserved = Lease(Want(*lease.place, None), lease.owner)
        unreserved.claimed = lease.claimed
        return unreserved

    def _is_there(self, lease: Lease) -> bool:
        """Whether the pool still has `lease`; False if its attachment has claimed the address again after `lease`."""
        entry = objects.allocation(self._pool(lease.pool), lease)
        return entry is not None and entry.is_of(lease) and not self._is_superseded(lease)

    def _is_superseded(self, lease: Lease) -> bool:
        """Whether the node's records show that the attachment has claimed the address again after `lease`."""
        known = self._known_leases().get(lease.place)
        return known is not None and known.attachment == lease.attachment and known.key() != lease.key()

    def _known_leases(self) -> dict[tuple[str, int, int], Lease]:
        """The leases in this node's records, by (pool, family, value)."""
        if self._recorded is None:
            leases = sorted(self._known(), key=lambda lease: lease.sequence)
            self._recorded = {lease.place: lease for lease in leases}
        return self._recorded

    # --- changes ---

    def _patch(self, name: str, changes: Changes, cooled: Sequence[Lease] = (), released: Sequence[Lease] = ()) -> None:
        """Patch a pool with `changes`. If there is room, add cooldowns (`cooled`) and former addresses (`released`).

        Raises Conflict when others have changed or deleted the pool, OutcomeUnknown after a lost reply, TryAgainLater
        for a full pool.
        """
        pool = self._pool(name)
        if pool is None:
            raise Conflict(f"pool {name} has gone")
        added = {value: entry for value, entry in changes.items() if entry and value not in pool.entries}
        _check_offsets(name, pool, added)
        grown = sum(64 + sum(map(len, entry.values())) for entry in added.values())  # at most so many bytes
        if added and pool.size + grown > objects.LIMIT - objects.RESERVE:
            raise self._full(name, pool)
        annotations: dict[str, str] = {}
        if pool.size < objects.CROWDED:
            annotations = pool.memories(released, cooled, self.cooldown, int(time.time()))
        operations = pool.patch(changes, annotations)
        try:
            metadata = self.api.patch(POOLS, name, operations).get("metadata") or {}
        except NotFound:
            raise Conflict(f"pool {name} has gone") from None
        except TooLarge:
            raise self._full(name, pool) from None
        except OutcomeUnknown:
            self._forget_pool(name)
            raise
        pool.annotations = metadata.get("annotations") or {}
        pool.apply(changes, metadata.get("resourceVersion") or "", grown)

    def _full(self, name: str, pool: IPPool) -> TryAgainLater:
        return TryAgainLater(
            f"pool {name} is full: its {len(pool.entries)} leases make an object of {pool.size >> 10} KiB, and an API server"
            f" takes {objects.LIMIT >> 10}. Split the range, give networks a network_name each, use node_slice_size (a pool a"
            " node), or the etcd store",
            f"{self.api}; `railcni ipam leases` shows who holds addresses",
        )

    def _create(self, name: str, family: int, changes: Changes) -> None:
        """Create an empty pool for the addresses in `changes`. If it had allocations, a request that arrives late would
        lease addresses. Raises Conflict if the pool exists, OutcomeUnknown after a lost reply."""
        try:
            cidr = range_of(name, family, next(iter(changes)))
        except ValueError:
            raise InvalidConfig(
                f"pool {name} has a name without a range that contains {format_address(family, next(iter(changes)))}"
            ) from None
        document = objects.new_pool(name, cidr, {})
        _check_offsets(name, IPPool(document, 0), changes)
        self._refuse_others(name)
        self._read_pools[name] = IPPool(self.api.create(POOLS, document), 0)

    def _refuse_others(self, name: str) -> None:
        """Raise InvalidConfig if another namespace has an IPPool of this name, or AddressLeases hold its addresses."""
        refuse_elsewhere(self.api, name)
        try:
            for page in self.api.pages(ADDRESSES, f"{ADDRESS_POOL}={label(name)}", brief=True):
                if any((item["metadata"].get("labels") or {}).get(ADDRESS_STATE) == HELD for item in page):
                    raise InvalidConfig(f"pool {name}: {objects.IN_ADDRESSES}", str(self.api))
        except (Undefined, Forbidden):
            pass  # the cluster has no AddressLeases, or whereabouts' credentials may not list them

    def _pauses(self) -> Pauses:
        """The pauses between attempts at a change that others prevent. They may exceed the time of one request."""
        seconds = self.api.seconds
        seconds = seconds if seconds < SHARED_SECONDS else max(seconds, _CONTENDED_SECONDS)
        return Pauses(min(time.monotonic() + seconds, self.api.deadline), longest=_LONGEST_PAUSE)

    def _unreserve(self, leases: Sequence[Lease]) -> None:
        """Delete the reservations that belong to `leases`. Raises OutcomeUnknown if a deletion stays uncertain."""
        for lease in leases:
            attempts = self._pauses()
            while (found := self._reservation(lease)) and found.is_of(lease):
                try:
                    self.api.delete(RESERVATIONS, found.name, found.uid, found.version)
                    break
                except NotFound:
                    break
                except OutcomeUnknown as fault:  # this version is deleted at most once
                    attempts.insist(fault)
                except Conflict as fault:  # another version may still belong to the lease
                    what = f"reservation {found.name} of {self.api} was changed by others each time: {fault}"
                    attempts.insist(OutcomeUnknown(what))
                finally:
                    self._forget_reservation(lease)

    def _reserve_for_others(self, leases: Sequence[Lease]) -> None:
        """Reserve each address of `leases` that has a new owner and no reservation. Raises OutcomeUnknown.

        whereabouts moves the allocation, but not the reservation, to a new sandbox of the pod. The reservation still
        names the former container. So the release of the former lease has deleted the reservation.
        """
        for lease in leases:
            other = self._lease_at(lease) if lease.scope is not None else None
            is_own = other and (other.container_id, other.ifname) == (lease.container_id, lease.ifname)
            if other and not is_own and self._reservation(lease) is None:
                try:
                    self.api.create(RESERVATIONS, objects.reservation(Lease(lease, other.owner)))
                except Conflict:
                    pass  # another call has made it
                self._forget_reservation(lease)


def _check_offsets(name: str, pool: IPPool, values: Iterable[int]) -> None:
    for value in values:
        if not 0 <= value - pool.first < objects.OFFSETS:
            raise InvalidConfig(
                f"address {format_address(pool.family, value)} is too far from the start of pool {name}: whereabouts"
                " keeps offsets below 2^63. Use a range of at most 63 bits, such as a /66"
            )
