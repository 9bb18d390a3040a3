"""The Kubernetes store: the pools and reservations of whereabouts v0.9.4, so that Go's nodes and ours share them.

A claim is one patch of the IPPool for each pool, which tests that the object is as it was read, and then one reservation
for each address: the pool first, for a reservation without an allocation would be nobody's. What fails on the way is
undone; what a kill leaves is completed by a retry, or cleared by DEL, since the allocation names the container.

The node's processes take turns at a pool, so that each finds the object as its predecessor left it; other nodes are met
by the test, and a random wait. An allocation tells container, pod and ifname. All else of a lease comes from `known`,
the node's own records, else from its reservation; a lease that neither tells of (Go's) has the sequence 0.

A request whose reply was lost can come late, but the test makes it fail once the object has changed: so a claim is made
again with the object read anew, and who must be certain changes it (`settle`).
"""

from __future__ import annotations

import posix
import time
from time import monotonic

from cni.spec.errors import InvalidConfig, TryAgainLater
from cni.spec.request import Attachment
from ipam.ranges import format_address
from ipam.stores import kubernetes_objects as objects
from ipam.stores.base import SHARED_SECONDS, Claimed, Lease, Owner, Pool, Store, Taken, Unknown, Want
from ipam.stores.kubernetes_api import POOLS, RESERVATIONS, Api, Conflict, Gone, Open, TooLarge
from ipam.stores.kubernetes_objects import PoolObject, Reservation
from ipam.stores.kubernetes_turns import Turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ipam.stores.base import Turn  # noqa: F401
    from ipam.stores.kubernetes_objects import Entry

    Changes = dict[int, dict[str, Any] | None]

LIMIT = 1536 << 10  # bytes of an object that etcd takes by default
_RESERVE = 24 << 10  # bytes of it that are left to others
_WARN = LIMIT * 8 // 10
_GROWTH = 3  # how many times its text an allocation adds to the object: the server notes who wrote it
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds


class KubernetesStore(Store):
    """The store that `described` describes (ipam.stores.describe); every request is over in `seconds`.

    `known` tells the leases of this node's records, `warn` what is said of a pool that nears its limit.
    """

    __slots__ = (
        *("_api", "_depth", "_described", "_known", "_known_from", "_pools", "_reservations", "_reserved"),
        *("_thorough", "_turns", "_warn"),
    )

    kind = "kubernetes"
    window = 256  # the pool is in memory; `next_open` passes over all that is full

    def __init__(
        self,
        described: dict[str, Any],
        seconds: float = SHARED_SECONDS,
        known: Callable[[], list[Lease]] = list,
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        from ipam.stores import kubeconfig

        path = described.get("kubeconfig") or ""
        access = kubeconfig.load(path) if path else kubeconfig.in_cluster(posix.environ)
        self._described = described
        self._api = Api(access, seconds)
        self._turns = Turns(f"{access} {access.namespace}", described.get("pools") or [], seconds)
        self._known_from = known
        self._known: dict[tuple[str, int, int], Lease] | None = None
        self._warn = warn
        self._thorough = False  # whether the reservations of other pools have been met
        self._depth = 0
        self._pools: dict[str, PoolObject | None] = {}
        self._reservations: dict[str, Reservation | None] = {}
        self._reserved: list[str] | None = None

    def record(self) -> dict[str, Any]:
        return self._described

    def enter(self) -> None:
        if self._depth == 0:
            self._turns.take()
            self._forget()
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._turns.end()

    def close(self) -> None:
        """Close the connection."""
        self._api.close()

    # --- reads ---

    def find(self, attachment: Attachment) -> list[Lease]:
        with self.turn():
            found = []
            for pool in self._all():
                for entry in pool.entries.values():
                    if (entry.container_id, entry.ifname) == (attachment.container_id, attachment.ifname):
                        lease = self._completed(self._lease(pool, entry))
                        lease.network = lease.network or attachment.network
                        if lease.network == attachment.network:
                            found.append(lease)
            return _sorted(found)

    def find_pod(self, pod: tuple[str, str, str], ifname: str) -> list[Lease]:
        if not pod[1]:
            return []
        with self.turn():
            return _sorted(
                self._completed(self._lease(pool, entry))
                for pool in self._all()
                for entry in pool.entries.values()
                if entry.pod == pod[:2] and entry.ifname == ifname
            )

    def survey(
        self,
        attachment: Attachment,
        pod: tuple[str, str, str],
        windows: Sequence[tuple[str, str | None, int, int, int]],
    ) -> tuple[list[Lease], list[Lease]]:
        with self.turn():
            return self.find(attachment), self.find_pod(pod, attachment.ifname)

    def holder(self, want: Want) -> Lease | None:
        with self.turn():
            pool = self._pool(want.pool)
            entry = pool.entries.get(want.value) if pool and pool.family == want.family else None
            if pool and entry:
                return self._completed(self._lease(pool, entry))
            found = self._reservation(want.scope, want.family, want.value)
            if found is None:
                return None
            lease = found.lease(want)
            return self._known_leases().get((lease.pool, lease.family, lease.value), lease)

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        with self.turn():
            held = self._held(pool, scope, family)
            return sum(1 << value - low for value in held if low <= value <= high)

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        with self.turn():
            held = self._held(pool, scope, family)
            while value <= high and value in held:
                value += 1
            return value

    def leases(self, pool: str, after: Lease | None = None, limit: int = 1000, node: str = "") -> list[Lease]:
        with self.turn():
            found = self._pool(pool)
            if found is None:
                return []
            values = sorted(value for value in found.entries if after is None or value > after.value)
            leases = (self._lease(found, found.entries[value]) for value in values)
            page = []
            for lease in leases:
                if not node or lease.node == node:
                    page.append(lease)
                    if len(page) == limit:
                        break
            return page

    def pools(self) -> list[Pool]:
        with self.turn():
            found = (PoolObject(document, 0) for document in self._api.list_all(POOLS))
            return sorted(
                (Pool(self._pool_of(pool.name), pool.family, len(pool.entries)) for pool in found if pool.entries),
                key=lambda pool: pool.name,
            )

    def of_earlier_boots(self, pool: str, node: str, boot_id: str, limit: int = 1000) -> list[Lease]:
        with self.turn():
            found = self._pool(pool)
            if found is None:
                return []
            claimed = (self._lease(found, e) for e in found.entries.values() if "ipamclaimref" not in e.document)
            return _sorted(lease for lease in claimed if lease.node == node and lease.boot_id != boot_id)[:limit]

    # --- changes ---

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        leases = [Lease(want, owner) for want in wants]
        deadline, pause = monotonic() + self._api.seconds, _FIRST_PAUSE
        with self.turn():
            while True:
                if self._conflicts(wants, instead_of, False):
                    return Taken(self._conflicts(wants, instead_of, True))
                written: list[tuple[str, Changes]] = []
                try:
                    self._write(leases, owner, instead_of, written)
                    taken = self._reserve(leases, instead_of)
                    if not taken:
                        self._unreserve([old for old in instead_of if not _is_among(old, wants)])
                        self._remember(leases, instead_of)
                        return Claimed(leases)
                    self._thorough = True
                    self._undo(written, leases, owner, instead_of)
                    return Taken(self._conflicts(wants, instead_of, True) or taken)
                except Conflict as fault:
                    self._undo(written, leases, owner, instead_of)
                    if monotonic() + pause > deadline:
                        raise TryAgainLater(
                            f"pool {wants[0].pool if wants else ''} of {self._api} was changed by others each time it was to"
                            f" be, for {self._api.seconds:g} s: retry",
                            str(fault),
                        ) from None
                except Open as fault:
                    self._forget()
                    return Unknown(fault)
                except BaseException:
                    self._undo(written, leases, owner, instead_of)
                    raise
                time.sleep(pause * (0.5 + posix.urandom(1)[0] / 256))
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._forget()

    def release(self, leases: Sequence[Lease]) -> int:
        deadline, pause = monotonic() + self._api.seconds, _FIRST_PAUSE
        freed = 0
        left = list({lease.key(): lease for lease in leases}.values())
        with self.turn():
            while True:
                left = [lease for lease in left if self._is_there(lease)]
                if not left:
                    return freed
                self._unreserve(left)
                changes: dict[str, Changes] = {}
                for lease in left:
                    changes.setdefault(lease.pool, {})[lease.value] = None
                try:
                    for name, change in changes.items():
                        self._patch(name, change)
                        gone = [lease for lease in left if lease.pool == name]
                        self._remember([], gone)
                        freed += len(gone)
                        left = [lease for lease in left if lease.pool != name]
                    return freed
                except Conflict:
                    if monotonic() + pause > deadline:
                        raise TryAgainLater(
                            f"pool {left[0].pool} of {self._api} was changed by others each time it was to be: retry"
                        ) from None
                time.sleep(pause * (0.5 + posix.urandom(1)[0] / 256))
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._forget()

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """Also frees what a claim has reserved that came no further."""
        with self.turn():
            own = [lease for lease in self._known_leases().values() if lease.attachment == attachment]
            for name in dict.fromkeys(lease.pool for lease in own):
                pool = self._pool(name)
                if pool:  # a patch that is still under way supposes the former version
                    fence = [{"op": "add", "path": "/metadata/annotations", "value": {objects.FENCE: str(sequence)}}]
                    if pool.annotations:
                        path = f"/metadata/annotations/{objects.FENCE.replace('/', '~1')}"
                        fence = [{"op": "add", "path": path, "value": str(time.time_ns())}]
                    self._api.patch(POOLS, self._object_of(name), fence)
            self._forget()
            self._unreserve(own)

    # --- parts of a claim ---

    def _conflicts(self, wants: Sequence[Want], instead_of: Sequence[Lease], reservations: bool) -> list[Want]:
        """What stands against a claim: by the pools, and if so asked by the reservations too."""
        taken: list[Want] = []
        given: set[tuple[str, int, int]] = set()
        given_scopes: set[tuple[str | None, int, int]] = set()
        for old in instead_of:
            place = (old.pool, old.family, old.value)
            if place in given or not self._is_there(old):
                taken.append(Want(old.pool, old.family, old.value, old.scope))
            else:
                given.add(place)
                given_scopes.add((old.scope, old.family, old.value))
        used: set[tuple[str, int, int]] = set()
        scopes: set[tuple[str, int, int]] = set()
        for want in wants:
            place = (want.pool, want.family, want.value)
            pool = self._pool(want.pool)
            held = place in used or (pool is not None and want.value in pool.entries and place not in given)
            if want.scope is not None:
                scoped = (want.scope, want.family, want.value)
                held = held or scoped in scopes
                if reservations and not held and scoped not in given_scopes:
                    held = self._reservation(*scoped) is not None and not self._is_own(want, instead_of)
            if held:
                taken.append(want)
                continue
            used.add(place)
            if want.scope is not None:
                scopes.add((want.scope, want.family, want.value))
        return taken

    def _is_own(self, want: Want, instead_of: Sequence[Lease]) -> bool:
        """Whether the reservation of `want` is that of a lease that is given up for it, but was not known to be."""
        found = self._reservation(want.scope, want.family, want.value)
        return bool(found) and any(
            found is not None and found.is_of(old) and old.pool == want.pool and old.value == want.value
            for old in instead_of
        )

    def _write(
        self, leases: Sequence[Lease], owner: Owner, instead_of: Sequence[Lease], written: list[tuple[str, Changes]]
    ) -> None:
        """Put the claim into the pools; `written` gets what undoes each patch that was made. Conflict, Open."""
        changes: dict[str, Changes] = {}
        for old in instead_of:
            changes.setdefault(old.pool, {})[old.value] = None
        for lease in leases:
            changes.setdefault(lease.pool, {})[lease.value] = objects.entry_of(owner)
        for name, change in changes.items():
            pool = self._pool(name)
            if pool is None:
                family = next(lease.family for lease in leases if lease.pool == name)
                pool = self._create(name, family, change)
                written.append((name, dict.fromkeys(change)))
                continue
            former: Changes = {}
            for value in change:
                entry = pool.entries.get(value)
                former[value] = entry.document if entry else None
            self._patch(name, change)
            written.append((name, former))

    def _patch(self, name: str, changes: Changes) -> None:
        pool = self._pool(name)
        if pool is None:
            raise Conflict(f"pool {name} has gone")
        operations = pool.patch(changes)
        added = {value: entry for value, entry in changes.items() if entry and value not in pool.entries}
        grown = _GROWTH * sum(40 + sum(map(len, entry.values())) for entry in added.values())
        for value in added:
            if not pool.can_hold(value):
                raise InvalidConfig(
                    f"address {format_address(pool.family, value)} is too far from the start of pool {name}: whereabouts"
                    " keeps offsets below 2^63. Use a range of at most 63 bits, such as a /66"
                )
        if added and pool.size + grown > LIMIT - _RESERVE:
            raise self._full(name, pool)
        try:
            metadata = self._api.patch(POOLS, self._object_of(name), operations).get("metadata") or {}
        except Gone:
            raise Conflict(f"pool {name} has gone") from None
        except TooLarge:
            raise self._full(name, pool) from None
        except Open:
            self._pools.pop(name, None)
            raise
        pool.apply(changes, metadata.get("resourceVersion") or "", grown)
        if added and pool.size > _WARN:
            self._warn(
                f"pool {name} is an object of {pool.size >> 10} KiB with {len(pool.entries)} leases, and the API server"
                f" takes {LIMIT >> 10} KiB: divide its range among several networks, or move to the etcd store"
            )

    def _full(self, name: str, pool: PoolObject) -> TryAgainLater:
        return TryAgainLater(
            f"pool {name} of {self._api} can take no more: its {len(pool.entries)} leases make an object of"
            f" {pool.size >> 10} KiB, and the API server takes {LIMIT >> 10} KiB. Divide its range among several networks, or"
            " move to the etcd store; `railcni ipam leases` shows who holds addresses"
        )

    def _create(self, name: str, family: int, changes: Changes) -> PoolObject:
        value = next(iter(changes))
        try:
            cidr = self._range_of(name, family, value)
        except ValueError:
            raise InvalidConfig(
                f"pool {name} bears no range in its name that holds {format_address(family, value)}"
            ) from None
        empty = PoolObject(objects.new_pool(name, cidr, {}), 0)
        allocations: dict[str, Any] = {}
        for value, entry in changes.items():
            if not empty.can_hold(value):
                raise InvalidConfig(
                    f"address {format_address(family, value)} is too far from the start of pool {name}: whereabouts"
                    " keeps offsets below 2^63. Use a range of at most 63 bits, such as a /66"
                )
            if entry is not None:
                allocations[str(value - empty.first)] = entry
        document = objects.new_pool(self._object_of(name), cidr, allocations)
        pool = PoolObject(self._api.create(POOLS, document), 0)
        self._pools[name] = pool
        return pool

    def _reserve(self, leases: Sequence[Lease], instead_of: Sequence[Lease]) -> list[Want]:
        """Reserve each address in its scope; the first that another has, and then those of ours are given up again."""
        made: list[Lease] = []
        for lease in leases:
            if lease.scope is None:
                continue
            name = self._reservation_name(lease.scope, lease.family, lease.value)
            document = objects.reservation(name, lease)
            given = [
                old
                for old in instead_of
                if (old.scope, old.family, old.value) == (lease.scope, lease.family, lease.value)
            ]
            if not (given and self._reservation(lease.scope, lease.family, lease.value)):
                try:
                    self._remember_reservation(lease, self._api.create(RESERVATIONS, document))
                    made.append(lease)
                    continue
                except Conflict:
                    self._reservations.clear()
                    self._reserved = None
            found = self._reservation(lease.scope, lease.family, lease.value)
            mine = [*given, *(o for o in instead_of if (o.pool, o.value) == (lease.pool, lease.value)), lease]
            if found and any(found.is_of(old) for old in mine):
                try:
                    self._api.patch(RESERVATIONS, name, found.replacement(document))
                    self._reservations.pop(name, None)
                    continue
                except Gone:
                    raise Conflict(f"reservation {name} has gone") from None
            self._unreserve(made)
            return [Want(lease.pool, lease.family, lease.value, lease.scope)]
        return []

    def _unreserve(self, leases: Sequence[Lease]) -> None:
        """Delete the reservations that belong to `leases`."""
        for lease in leases:
            if lease.scope is None:
                continue
            found = self._reservation(lease.scope, lease.family, lease.value)
            if found is None or not found.is_of(lease):
                continue
            name = self._reservation_name(lease.scope, lease.family, lease.value)
            try:
                self._api.delete(RESERVATIONS, name, found.uid)
            except (Gone, Conflict):
                pass  # another has taken its place
            self._reservations[name] = None
            self._reserved = None

    def _undo(
        self, written: list[tuple[str, Changes]], leases: Sequence[Lease], owner: Owner, instead_of: Sequence[Lease]
    ) -> None:
        """Put back what stood in the pools before a claim, as far as it is still as the claim left it."""
        container = owner.attachment.container_id
        for name, former in written:
            for attempt in range(8):
                if attempt:
                    time.sleep(_FIRST_PAUSE * (1 << attempt) * (0.5 + posix.urandom(1)[0] / 256))
                    self._forget()
                pool = self._pool(name)
                if pool is None:
                    break
                changes: Changes = {}
                for value, entry in former.items():
                    now = pool.entries.get(value)
                    claimed = any(lease.pool == name and lease.value == value for lease in leases)
                    if now is None if not claimed else now is not None and now.container_id == container:
                        changes[value] = entry
                if not changes:
                    break
                try:
                    self._patch(name, changes)
                    break
                except Conflict:
                    continue

    # --- what is read, for the time of a turn ---

    def _forget(self) -> None:
        self._pools = {}
        self._reservations = {}
        self._reserved = None

    def _all(self) -> list[PoolObject]:
        """The pools that an attachment may have leases in: those that are described, else all."""
        names = self._described.get("pools")
        if names is not None:
            return [pool for pool in map(self._pool, names) if pool]
        for document in self._api.list_all(POOLS):
            pool = self._parsed(document, 0)
            self._pools.setdefault(self._pool_of(pool.name), pool)
        return [pool for pool in self._pools.values() if pool]

    def _pool(self, name: str) -> PoolObject | None:
        if name not in self._pools:
            try:
                self._pools[name] = self._parsed(*self._api.get(POOLS, self._object_of(name)))
            except Gone:
                self._pools[name] = None
        return self._pools[name]

    def _parsed(self, document: dict[str, Any], size: int) -> PoolObject:
        try:
            return PoolObject(document, size)
        except ValueError as fault:
            name = (document.get("metadata") or {}).get("name")
            raise InvalidConfig(
                f"spec.range of IPPool {name} of {self._api}: {fault}. Correct it, or remove the object"
            ) from None

    def _reservation(self, scope: str | None, family: int, value: int) -> Reservation | None:
        if scope is None:
            return None
        name = self._reservation_name(scope, family, value)
        if name not in self._reservations:
            try:
                self._reservations[name] = Reservation(self._api.get(RESERVATIONS, name)[0])
            except Gone:
                self._reservations[name] = None
        return self._reservations[name]

    def _remember_reservation(self, lease: Lease, document: dict[str, Any]) -> None:
        name = self._reservation_name(lease.scope or "", lease.family, lease.value)
        self._reservations[name] = Reservation(document)
        self._reserved = None

    def _held(self, name: str, scope: str | None, family: int) -> set[int]:
        """The addresses that cannot be claimed in a pool; reservations count once one of another pool was met."""
        pool = self._pool(name)
        held = set(pool.entries) if pool and pool.family == family else set()
        if scope is None or not self._thorough:
            return held
        if self._reserved is None:
            found = self._api.list_all(RESERVATIONS)
            self._reserved = [str((document.get("metadata") or {}).get("name")) for document in found]
        for text in self._reserved:
            address = objects.reserved_address(text, scope)
            if address and address[0] == family:
                held.add(address[1])
        return held

    # --- leases ---

    def _lease(self, pool: PoolObject, entry: Entry) -> Lease:
        name = self._pool_of(pool.name)
        known = self._known_leases().get((name, pool.family, entry.value))
        if known and entry.is_of(known):
            return known
        owner = Owner(Attachment("", entry.container_id, entry.ifname), (*entry.pod, ""))
        return Lease(Want(name, pool.family, entry.value, self._scope_of(pool)), owner)

    def _completed(self, lease: Lease) -> Lease:
        """`lease` with what its reservation tells, where no record does; its scope None when it is not reserved."""
        found = self._reservation(lease.scope, lease.family, lease.value)
        own = found is not None and found.is_of(lease)
        if lease.sequence == 0 and found and own:
            told = found.lease(Want(lease.pool, lease.family, lease.value, lease.scope))
            lease.network, lease.node, lease.boot_id, lease.netns = told.network, told.node, told.boot_id, told.netns
            lease.pod, lease.sequence = (*lease.pod[:2], told.pod[2]), told.sequence
        if lease.scope is None or own:
            return lease
        return Lease(
            Want(lease.pool, lease.family, lease.value, None),
            Owner(lease.attachment, lease.pod, lease.node, lease.boot_id, lease.netns, lease.sequence),
        )

    def _is_there(self, lease: Lease) -> bool:
        pool = self._pool(lease.pool)
        entry = pool.entries.get(lease.value) if pool and pool.family == lease.family else None
        if pool is None or entry is None or not entry.is_of(lease):
            return False
        known = self._known_leases().get((lease.pool, lease.family, lease.value))
        return known is None or not entry.is_of(known) or known.key() == lease.key()

    def _known_leases(self) -> dict[tuple[str, int, int], Lease]:
        if self._known is None:
            leases = sorted(self._known_from(), key=lambda lease: lease.sequence)
            self._known = {(lease.pool, lease.family, lease.value): lease for lease in leases}
        return self._known

    def _remember(self, leases: Sequence[Lease], gone: Sequence[Lease]) -> None:
        known = self._known_leases()
        for old in gone:
            known.pop((old.pool, old.family, old.value), None)
        for lease in leases:
            known[lease.pool, lease.family, lease.value] = lease

    # --- names ---

    def _object_of(self, pool: str) -> str:
        return pool

    def _pool_of(self, name: str) -> str:
        return name

    def _range_of(self, pool: str, family: int, value: int) -> str:
        return objects.range_of(pool, family, value)

    def _reservation_name(self, scope: str, family: int, value: int) -> str:
        return objects.reservation_name(scope, family, value)

    def _scope_of(self, pool: PoolObject) -> str | None:
        """The scope that a lease of no record has: the network's name, which stands before the range in the pool's."""
        cidr = objects.object_name(objects.range_of(pool.name, pool.family, pool.first)) if pool.name else ""
        return pool.name.removesuffix(cidr).removesuffix("-")


def _sorted(leases: Any) -> list[Lease]:
    return sorted(leases, key=lambda lease: (lease.pool, lease.value))


def _is_among(lease: Lease, wants: Sequence[Want]) -> bool:
    """Whether one of `wants` is what `lease` reserves."""
    return any((w.scope, w.family, w.value) == (lease.scope, lease.family, lease.value) for w in wants)
