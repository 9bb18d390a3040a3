"""The store `kubernetes`: IPPools and reservations of whereabouts v0.9.4. Nodes with whereabouts can share the store.

A claim patches each IPPool once, with a test that the object has not changed since it was read, and then creates a
reservation for each address. In the other order, a killed process would leave a reservation without an owner. A failed
claim is undone. After a kill, a retry completes the claim, or DEL removes it: the allocation names the container.

A process holds the node's lock of the pool from the reading to the patch, so that no other process of the node
changes the object in between. If another node does, the test fails, and the claim reads the pool again after a pause.

An allocation (an entry of an IPPool) names container, pod and ifname. The other members of a lease come from this
node's records (`known`) or, if no record has the lease, from its reservation. whereabouts does not store these members:
its leases have sequence 0.

A request that arrives late fails if the object has changed meanwhile. So after a lost reply the claim can read the
object and patch it again. `settle` changes the object only to make late requests fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want, by_place, given_up, interface_of, returns
from ipam.stores.apiserver import is_static, uid_of
from ipam.stores.apiserver.faults import Conflict, Forbidden, NotFound
from ipam.stores.apiserver.resources import POOLS, RESERVATIONS
from ipam.stores.apiserver.store import Undo
from ipam.stores.base import Claimed, OutcomeUnknown, Survey, Taken, Unknown, Window
from ipam.stores.ippool import objects
from ipam.stores.ippool.objects import Allocation, Changes, Reservation
from ipam.stores.ippool.readings import PoolReadings
from ipam.stores.served import NOBODY, conflicts


class KubernetesStore(PoolReadings):
    """The store of IPPools.

    A search for a free address reads only the pool of its range. The address that it finds may be reserved by an
    attachment of another pool in the scope. Then the claim finds this reservation and fails.
    """

    kind = "kubernetes"
    window = 256  # the pool is in memory, and `next_open` skips full spans
    spreads = False  # a pool is one object
    replaces = True  # each claim changes the resourceVersion of the pool, and a late claim fails on the former version

    def _prepare(self) -> None:
        super()._prepare()
        self._doubtful: list[Lease] = []  # the leases that claims with an unknown outcome may have replaced

    def _begin(self) -> None:
        """Forget the readings of the last session. The locks are taken later, before the first reading of a pool."""
        self._forget_readings()

    def take_locks(self) -> None:
        self._locks.take()

    def _end(self) -> None:
        self._locks.end()

    def ready(self, wants: Sequence[Want] = ()) -> None:
        """As Store.ready. Dry runs show a missing namespace, missing rights, and a CRD that is too old."""
        lease = Lease(Want("192.0.2.0-32", 4, 0xC0000200, ""), NOBODY)
        pool = self.api.try_create(POOLS, objects.probe())
        reservation = self.api.try_create(RESERVATIONS, objects.reservation(lease))
        if fault := objects.pruned(pool, reservation):
            raise InvalidConfig(fault)
        for resource in (POOLS, RESERVATIONS):
            self.api.check_rights(resource)
        with self.session():
            for want in wants:
                if self._pool(want.pool) is None:
                    self._refuse_others(want.pool)

    def find(self, attachment: Attachment) -> list[Lease]:
        with self.session():
            ifnames = ("", attachment.ifname)
            found = self._leases(lambda x: x.container_id == attachment.container_id and x.ifname in ifnames)
            for lease in found:
                lease.network = lease.network or attachment.network
            return [lease for lease in found if lease.attachment == attachment]

    def _leases(self, is_meant: Callable[[Allocation], bool]) -> list[Lease]:
        """The leases of allocations for which `is_meant` is true, with data of reservations, by pool and address."""
        return by_place(
            self._completed(self._lease(pool, entry))
            for pool in self._own_pools()
            for entry in pool.entries.values()
            if is_meant(entry)
        )

    def survey(self, owner: Owner, windows: Sequence[Window], new: bool) -> Survey:
        """As Store.survey, but `Survey.pods` lacks the leases that a former pod of the same name may still use."""
        with self.session():
            ref, ifname = objects.podref(owner.pod), owner.attachment.ifname
            pods = self._leases(lambda x: x.text("podref") == ref and x.ifname == ifname) if owner.pod[1] else []
            unknown = [
                lease for lease in pods if lease.container_id != owner.attachment.container_id and not lease.pod[2]
            ]
            if unknown and owner.pod[2]:
                strange = self._strange(unknown, owner.pod)
                pods = [lease for lease in pods if lease not in strange]
            # an unfinished claim may have taken over whereabouts' lease, not its reservation: the next claim takes that
            own = [self._completed(lease, by_container=True) for lease in self.find(owner.attachment)]
            return Survey(own, pods, self._former(owner.pod, ifname))

    def _strange(self, leases: Sequence[Lease], pod: tuple[str, str, str]) -> list[Lease]:
        """The leases in `leases` that a former pod of the same name may still use. No lease in `leases` has a pod UID.

        A reservation older than the living pod was made for a former pod. A lease without a reservation has no known
        age, so a former pod may use it.
        """
        strange = [lease for lease in leases if lease.scope is None]
        for lease in strange:
            self.api.warn(
                f"{lease.text} may be in use by another pod {'/'.join(pod[:2])}, of container"
                f" {lease.container_id}, because the UID of its pod is unknown: the lease does not move. See `railcni ipam audit`"
            )
        reserved = [lease for lease in leases if lease.scope is not None]
        try:
            living = self.api.pod(*pod[:2]) if reserved else {}
        except NotFound:
            return strange
        except Forbidden as fault:
            self.api.warn(f"the lease of {pod[0]}/{pod[1]} moves, although its pod is unknown: {fault.msg}")
            return strange
        for lease in reserved:
            found = self._reservation(lease)
            former = found and found.lease.since < str(living.get("creationTimestamp") or "") and not is_static(living)
            if former or uid_of(living) != pod[2]:
                strange.append(lease)
        return strange

    def _former(self, pod: tuple[str, str, str], ifname: str) -> list[tuple[int, int]]:
        name = interface_of(pod, ifname)
        told = [(pool, pool.former().get(name)) for pool in (self._own_pools() if returns(pod) else ())]
        return [(pool.family, pool.first + offset) for pool, offset in told if offset is not None]

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        """As Store.cooling, but without addresses that were freed in other pools of the scope."""
        own = interface_of(owner.pod, owner.attachment.ifname)
        with self.session():
            found = self._pool(pool)
            if found is None:
                return ()
            kept = found.cooling(int(time.time())).items()
            values = {found.first + int(offset) for offset, (_, whose) in kept if not own or whose != own}
            return {value for value in values if low <= value <= high}

    def holder(self, want: Want) -> Lease | None:
        """As Store.holder. The allocation in the pool and the reservation of the address may belong to two leases. Then
        return the reservation's lease. But if `want` is a Lease, return the allocation's lease."""
        with self.session():
            lease, found = self._lease_at(want), self._reservation(want)
            if lease and (found is None or found.is_of(lease) or isinstance(want, Lease)):
                return self._completed(lease)
            if found is None or (self._moves and isinstance(want, Lease) and found.is_of(want)):
                return None  # an interrupted migration of the lease has left this reservation
            return self._known_leases().get((found.lease.pool, want.family, want.value), found.lease)

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        with self.session():
            held = self._held(pool, scope, family)
            return sum(1 << value - low for value in range(low, high + 1) if value in held)

    def _held(self, pool: str, scope: str | None, family: int) -> Collection[int]:
        found = self._pool(pool)
        return found.entries if found and found.family == family else {}

    def leases(self, pool: str | None = None, node: str = "") -> Iterator[Lease]:
        with self.session():
            pools = self._listed() if pool is None else filter(None, [self._pool(pool)])
            read = [(entry, self._lease(found, entry)) for found in pools for entry in found.entries.values()]
        return iter([lease for entry, lease in read if not node or (lease.node == node and not entry.claimed)])

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        """As Store.claim, but with one attempt. If others have changed a pool, the caller must search again."""
        with self.session():
            self._locks.take()
            answer = self._attempt(wants, owner, instead_of)
            if isinstance(answer, Unknown):
                self._doubtful += instead_of
            if isinstance(answer, Claimed):
                self._doubtful = []
            else:
                self._forget_readings()
            return answer

    def _obstacles(self, wants: Sequence[Want], instead_of: Sequence[Lease]) -> list[Want]:
        return conflicts(instead_of, wants, self._is_there, partial(self._is_held, instead_of))

    def _make(self, wants: Sequence[Want], leases: list[Lease], instead_of: Sequence[Lease], undo: Undo) -> list[Want]:
        """As ObjectStore._make. Writes the pools, and then the reservations.

        The locks are released when the pools are written, since the allocations then protect the addresses. Raises
        Conflict after a change by others, OutcomeUnknown after a lost reply.
        """

        def is_seen(want: Want, given: Sequence[Lease]) -> bool:
            """Whether, by the readings of the survey, a lease that is not in `given` has the address of `want`.

            The reservation of the address counts only if `given` has a lease of the address without a scope. An
            unfinished claim has left such a lease in the pool, and the survey has read the reservation.
            """
            is_left = any(old.place == want.place and old.scope is None for old in given)
            return self._is_held(instead_of, want, given) if is_left else self._is_in_pool(want, given)

        if failed := conflicts(instead_of, wants, self._is_there, is_seen):
            return failed
        changes: dict[str, Changes] = {}
        for old in instead_of:
            changes.setdefault(old.pool, {})[old.value] = None
        for lease in leases:
            changes.setdefault(lease.pool, {})[lease.value] = objects.entry_of(lease.owner)
        for name, change in changes.items():
            cooled = [old for old in given_up(instead_of, wants) if old.pool == name]
            of_pool = [lease for lease in leases if lease.pool == name]
            former = self._patched(name, change, of_pool, cooled, is_first=not undo)
            undo.append(partial(self._restore, name, former, of_pool))
        self._locks.end()
        taken = self._reserve(leases, instead_of, undo)
        if not taken:
            kept = {(want.scope, want.family, want.value) for want in wants}
            gone = [*instead_of, *(old for old in self._doubtful if not self._is_there(old))]
            self._unreserve([old for old in gone if (old.scope, old.family, old.value) not in kept])
            self._recorded = None
        return taken

    def _is_in_pool(self, want: Want, given: Sequence[Lease]) -> bool:
        pool = self._pool(want.pool)
        freed = any(old.place == want.place for old in given)
        return pool is not None and want.value in pool.entries and not freed

    def _is_held(self, instead_of: Sequence[Lease], want: Want, given: Sequence[Lease]) -> bool:
        if self._is_in_pool(want, given):
            return True
        if any((old.scope, old.family, old.value) == (want.scope, want.family, want.value) for old in given):
            return False
        found = self._reservation(want)
        if found is None or any(found.is_of(old) for old in self._at(want, instead_of)):
            return False
        return not self._is_leftover(found, want)

    def _at(self, place: Want, instead_of: Sequence[Lease]) -> list[Lease]:
        """The leases of the address of `place`, in its pool or scope, that this claim replaces, or that an earlier
        claim with an unknown outcome may have replaced."""
        return [old for old in (*instead_of, *self._doubtful) if old.place == place.place or old.excludes(place)]

    def _patched(
        self, name: str, change: Changes, leases: list[Lease], cooled: Sequence[Lease], is_first: bool
    ) -> Changes:
        """Write `change`, with the new `leases`, into a pool; make a missing pool. Returns the former allocations.

        The cooldown of `cooled` begins. If others change the claim's first pool (`is_first`) meanwhile, raises
        Conflict, and the whole claim begins again. Any further pool is read and written again here. Raises
        OutcomeUnknown after a lost reply.
        """
        attempts = self._pauses()
        while True:
            former = self._standing(name, change)
            try:
                if self._pool(name) is None:
                    self._create(name, leases[0].family, change)
                self._patch(name, change, cooled)
                return former
            except Conflict:
                self._forget_pool(name)
                if is_first or self._standing(name, change) != former or not attempts.wait():
                    raise

    def _standing(self, name: str, places: Iterable[int]) -> Changes:
        """Map each address in `places` to its allocation in a pool, or to None if it has no allocation."""
        pool = self._pool(name)
        entries = pool.entries if pool else {}
        return {value: entries[value].document if value in entries else None for value in places}

    def _reserve(self, leases: list[Lease], instead_of: Sequence[Lease], undo: Undo) -> list[Want]:
        """Reserve each address in its scope. Returns [the first of `leases` whose address another lease has] or []."""
        for lease in leases:
            if lease.scope is None:
                continue
            place = (lease.scope, lease.family, lease.value)
            given = [old for old in instead_of if (old.scope, old.family, old.value) == place]
            if not (given and self._reservation(lease)):
                try:
                    self.api.create(RESERVATIONS, objects.reservation(lease))
                    self._forget_reservation(lease)
                    undo.append(partial(self._unreserve, [lease]))
                    continue
                except Conflict:
                    self._forget_reservation(lease)
            found = self._reservation(lease)
            if found and any(found.is_of(old) for old in (*given, *self._at(lease, instead_of), lease)):
                self._replace(lease, lease)
                undo += [partial(self._give_back, lease, old) for old in (given or self._at(lease, instead_of))[:1]]
            elif found and self._is_leftover(found, lease):
                self._replace(lease, lease)
                undo.append(partial(self._unreserve, [lease]))
            else:
                return [lease]
        return []

    def _is_leftover(self, found: Reservation, place: Want) -> bool:
        """Whether the reservation `found`, without an allocation in the pool of `place`, belongs to a dead pod.

        An interrupted DEL of whereabouts leaves such a reservation. A living pod can lose its allocation too, but its
        reservation is no leftover.
        """
        namespace, name, uid = found.lease.pod
        if found.lease.pool != place.pool:
            return False
        try:
            return not name or uid not in ("", uid_of(self.api.pod(namespace, name)))
        except NotFound:
            return True
        except Forbidden:
            return False

    def _replace(self, former: Lease, lease: Lease) -> None:
        """Give the reservation of `former` to `lease`. Raises Conflict if others have changed it, or OutcomeUnknown."""
        found = self._reservation(former)
        try:
            if found is None:
                raise NotFound
            new = objects.reservation(Lease(Want(lease.pool, *former.address, former.scope), lease.owner))
            self.api.patch(RESERVATIONS, found.name, found.replacement(new))
        except NotFound:
            raise Conflict(f"the reservation of {former.text} has gone") from None
        finally:
            self._forget_reservation(former)

    def _give_back(self, lease: Lease, former: Lease) -> None:
        found = self._reservation(lease)
        if found and found.is_of(lease):
            try:
                self._replace(lease, former)
            except Conflict:
                pass  # another claim has changed the reservation

    def _restore(self, name: str, former: Changes, leases: list[Lease]) -> None:
        """Replace the allocations of `leases` in a pool by `former`, unless others have changed an allocation."""
        claimed = {lease.value: lease.container_id for lease in leases}
        attempts = self._pauses()
        while pool := self._pool(name):
            changes: Changes = {}
            for value, entry in former.items():
                now = pool.entries.get(value)
                if claimed.get(value) == (now.container_id if now else None):
                    changes[value] = entry
            if not changes:
                return
            try:
                self._patch(name, changes)
                return
            except Conflict as fault:
                self._forget_pool(name)
                attempts.insist(OutcomeUnknown(f"pool {name} of {self.api} was changed by others each time: {fault}"))

    def left(self, instead_of: Sequence[Lease], wants: Sequence[Want]) -> list[Lease]:
        """As Store.left. At one address of a pool there is one allocation, whose former reservation may be left."""
        made = [want.place for want in wants]
        return [old for old in super().left(instead_of, wants) if old.scope is not None or old.place not in made]

    def release(self, leases: Sequence[Lease]) -> int:
        freed = 0
        left = list({lease.key(): lease for lease in leases}.values())
        with self.session():
            left = [lease for lease in left if not self._is_superseded(lease)]
            self._unreserve(left)  # without the lock, since others wait for it
            self._locks.take()
            attempts, lost = self._pauses(), False
            while True:
                there = [lease for lease in left if self._is_there(lease)]
                freed += len(left) - len(there) if lost else 0
                self._reserve_for_others([lease for lease in left if lease not in there])
                left = there
                try:
                    for name in dict.fromkeys(lease.pool for lease in left):
                        gone = [lease for lease in left if lease.pool == name]
                        self._patch(name, dict.fromkeys(x.value for x in gone), cooled=gone, released=gone)
                        self._recorded = None
                        freed += len(gone)
                        left = [lease for lease in left if lease.pool != name]
                    return freed
                except (Conflict, OutcomeUnknown) as fault:
                    lost = isinstance(fault, OutcomeUnknown)
                    what = f"pool {left[0].pool} of {self.api} was changed by others each time that it was to be: retry"
                    attempts.insist(fault if isinstance(fault, OutcomeUnknown) else TryAgainLater(what, str(fault)))
                self._forget_readings()

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """As Store.settle. Also delete reservations that a killed claim has left without an allocation."""
        with self.session():
            own = [lease for lease in self._known_leases().values() if lease.attachment == attachment]
            for name in dict.fromkeys([lease.pool for lease in own] or self._store_ref.get("pools") or ()):
                self._fence(name)
            self._forget_readings()
            self._unreserve([lease for lease in own if not self._lease_at(lease)])

    def _fence(self, name: str) -> None:
        """Change a pool, so that late patches fail. Raises OutcomeUnknown if its resourceVersion stays the same."""
        pool = self._pool(name)
        if pool is None:
            return
        fence = pool.patch({}, {objects.FENCE: str(time.time_ns())})
        try:
            self.api.patch(POOLS, name, fence)
        except NotFound:
            pass  # the pool's leases are gone too
        except Conflict as fault:
            self._forget_pool(name)
            now = self._pool(name)
            if now and now.version == pool.version:  # a change by others is enough, too
                raise OutcomeUnknown(f"pool {name} of {self.api} could not be changed: {fault}") from None
