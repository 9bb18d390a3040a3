"""What an API server holds, as it is read for the time of a turn, and the leases that it tells of."""

from __future__ import annotations

from cni.spec.errors import InvalidConfig
from cni.spec.request import Attachment
from ipam.stores import kubernetes_objects as objects
from ipam.stores.base import Lease, Owner, Want
from ipam.stores.kubernetes_api import POOLS, RESERVATIONS, Gone
from ipam.stores.kubernetes_objects import PoolObject, Reservation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from ipam.stores.kubernetes_api import Api
    from ipam.stores.kubernetes_objects import Entry


class Names:
    """From pools and addresses to the names of their objects, as whereabouts forms them.

    `node` is the node whose slices' pools are meant, "" where nodes have none: its name stands before their ranges.
    """

    __slots__ = ("_node",)

    def __init__(self, node: str = "") -> None:
        self._node = node

    def object_of(self, pool: str) -> str:
        return pool

    def pool_of(self, name: str) -> str:
        return name

    def range_of(self, pool: str, family: int, value: int) -> str:
        """The CIDR of a pool that holds the address; ValueError."""
        return objects.range_of(pool, family, value)

    def reservation_name(self, scope: str, family: int, value: int) -> str:
        return objects.reservation_name(scope, family, value)

    def scope_of(self, pool: PoolObject) -> str | None:
        """The scope of a lease that no record tells of: the network's name, which stands before the range in the pool's."""
        try:
            cidr = objects.object_name(objects.range_of(pool.name, pool.family, pool.first))
        except ValueError:
            return None
        scope = pool.name.removesuffix(cidr).removesuffix("-")
        if self._node and f"-{scope}".endswith(f"-{self._node}"):
            scope = scope.removesuffix(self._node).removesuffix("-")
        return scope


class View:
    """What was read since `forget`. `named` are the pools that an attachment may have leases in, None for all.

    `before` is called when a pool is to be read.

    `cooldown` is that of the store. `thorough`: reservations of other pools are looked for before a claim; for who has met one.
    """

    __slots__ = (
        *("_before", "_known", "_known_from", "_named", "_pools", "_reservations", "_reserved"),
        *("api", "cooldown", "names", "thorough"),
    )

    def __init__(
        self,
        api: Api,
        before: Callable[[], object],
        named: list[str] | None,
        known: Callable[[], list[Lease]],
        names: Names,
    ) -> None:
        self.api = api
        self._before = before
        self.names = names
        self.cooldown = 0
        self.thorough = False
        self._named = named
        self._known_from = known
        self._known: dict[tuple[str, int, int], Lease] | None = None
        self._pools: dict[str, PoolObject | None] = {}
        self._reservations: dict[str, Reservation | None] = {}
        self._reserved: list[str] | None = None

    def forget(self) -> None:
        """Read all anew."""
        self._pools = {}
        self._reservations = {}
        self._reserved = self._known = None

    def set_pool(self, name: str, pool: PoolObject) -> None:
        self._pools[name] = pool

    def forget_pool(self, name: str) -> None:
        self._pools.pop(name, None)

    def forget_reservation(self, scope: str, family: int, value: int) -> None:
        self._reservations.pop(self.names.reservation_name(scope, family, value), None)
        self._reserved = None

    def all(self) -> list[PoolObject]:
        """The pools that an attachment may have leases in: those that are described, else all."""
        names = self._named
        if names is not None:
            return [pool for pool in map(self.pool, names) if pool]
        self._before()
        for document in self.api.list_all(POOLS):
            pool = self.parsed(document, 0)
            self._pools.setdefault(self.names.pool_of(pool.name), pool)
        return [pool for pool in self._pools.values() if pool]

    def pool(self, name: str) -> PoolObject | None:
        """The pool of this name; None where there is none."""
        if name not in self._pools:
            self._before()
            try:
                self._pools[name] = self.parsed(*self.api.get(POOLS, self.names.object_of(name)))
            except Gone:
                self._pools[name] = None
        return self._pools[name]

    def parsed(self, document: dict[str, Any], size: int) -> PoolObject:
        """An IPPool of the server; InvalidConfig for one that has no range."""
        try:
            return PoolObject(document, size)
        except ValueError as fault:
            name = (document.get("metadata") or {}).get("name")
            raise InvalidConfig(
                f"spec.range of IPPool {name} of {self.api}: {fault}. Correct it, or remove the object"
            ) from None

    def reservation(self, scope: str | None, family: int, value: int) -> Reservation | None:
        """The reservation of an address in a scope; None where there is none."""
        if scope is None:
            return None
        name = self.names.reservation_name(scope, family, value)
        if name not in self._reservations:
            try:
                self._reservations[name] = Reservation(self.api.get(RESERVATIONS, name)[0])
            except Gone:
                self._reservations[name] = None
        return self._reservations[name]

    def held(self, name: str, scope: str | None, family: int) -> Collection[int]:
        """The addresses that cannot be claimed in a pool; reservations count once one of another pool was met."""
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

    def lease(self, pool: PoolObject, entry: Entry) -> Lease:
        """The lease that an allocation is: as the record has it, else with what it tells itself."""
        name = self.names.pool_of(pool.name)
        known = self.known_leases().get((name, pool.family, entry.value))
        if known and entry.is_of(known):
            return known
        owner = Owner(Attachment("", entry.container_id, entry.ifname), (*entry.pod, ""))
        return Lease(Want(name, pool.family, entry.value, self.names.scope_of(pool)), owner)

    def completed(self, lease: Lease) -> Lease:
        """`lease` with what its reservation tells, where no record does; its scope None when it is not reserved."""
        found = self.reservation(lease.scope, lease.family, lease.value)
        own = found is not None and found.is_of(lease)
        if lease.sequence == 0 and found and own:
            told = found.lease(Want(lease.pool, lease.family, lease.value, lease.scope))
            lease.network, lease.node, lease.boot_id, lease.netns = told.network, told.node, told.boot_id, told.netns
            lease.pod, lease.sequence, lease.machine = (*lease.pod[:2], told.pod[2]), told.sequence, told.machine
        if lease.scope is None or own:
            return lease
        return Lease(
            Want(lease.pool, lease.family, lease.value, None),
            Owner(lease.attachment, lease.pod, lease.node, lease.boot_id, lease.netns, lease.sequence, lease.machine),
        )

    def is_there(self, lease: Lease) -> bool:
        """Whether the pool still holds `lease`, and no later one of the same attachment."""
        pool = self.pool(lease.pool)
        entry = pool.entries.get(lease.value) if pool and pool.family == lease.family else None
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
        """That `leases` were claimed and `gone` were given up; who has not read the records reads it there."""
        if self._known is not None:
            for old in gone:
                self._known.pop((old.pool, old.family, old.value), None)
            for lease in leases:
                self._known[lease.pool, lease.family, lease.value] = lease
