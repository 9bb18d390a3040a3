"""A claim in pools and reservations: its obstacles, the order of its writes, and their undoing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ipam.leases import Lease, Owner, Want, given_up
from ipam.stores.apiserver import uid_of
from ipam.stores.apiserver.faults import Conflict, Forbidden, NotFound
from ipam.stores.apiserver.resources import RESERVATIONS
from ipam.stores.base import OutcomeUnknown
from ipam.stores.ippool import objects
from ipam.stores.ippool.objects import Changes, Reservation
from ipam.stores.ippool.view import View
from ipam.stores.served import conflicts


class PoolClaim:
    """A claim of `wants` for `owner`, in place of the leases `instead_of`.

    `doubtful`: leases that earlier claims with unknown outcomes may have replaced. Their reservations may still exist.
    """

    def __init__(
        self,
        view: View,
        wants: Sequence[Want],
        owner: Owner,
        instead_of: Sequence[Lease],
        doubtful: Sequence[Lease] = (),
    ) -> None:
        self.leases = [Lease(want, owner) for want in wants]
        self._view = view
        self._wants = wants
        self._owner = owner
        self._instead_of = instead_of
        self._doubtful = doubtful
        self.undo: list[Callable[[], object]] = []  # undo each change, except where others have changed it since

    def make(self, between: Callable[[], object]) -> list[Want]:
        """Write pools, then reservations; return the obstacles (served.conflicts).

        `between` is called after the pools are written: from then on the allocations protect the addresses. Raises
        Conflict after a change by others, or OutcomeUnknown.
        """
        if failed := conflicts(self._instead_of, self._wants, self._view.is_there, self._is_seen):
            return failed
        changes: dict[str, Changes] = {}
        for old in self._instead_of:
            changes.setdefault(old.pool, {})[old.value] = None
        for lease in self.leases:
            changes.setdefault(lease.pool, {})[lease.value] = objects.entry_of(self._owner)
        for name, change in changes.items():
            cooled = [old for old in given_up(self._instead_of, self._wants) if old.pool == name]
            self.undo.append(partial(self._restore, name, self._patched(name, change, cooled)))
        between()
        taken = self._reserve()
        if not taken:
            kept = {(want.scope, want.family, want.value) for want in self._wants}
            gone = [*self._instead_of, *(old for old in self._doubtful if not self._view.is_there(old))]
            self._view.unreserve([old for old in gone if (old.scope, old.family, old.value) not in kept])
            self._view.remember(self.leases, self._instead_of)
        return taken

    def taken(self) -> list[Want]:
        """The obstacles to the claim (served.conflicts), in pools and reservations."""
        return conflicts(self._instead_of, self._wants, self._view.is_there, self._is_held)

    def _is_seen(self, want: Want, given: Sequence[Lease]) -> bool:
        """Whether the address has another holder, as far as the survey has read the store.

        A lease of `given` without a scope was left in the pool by an unfinished claim. Then reservations count too: the
        survey has read them.
        """
        is_left = any(old.place == want.place and old.scope is None for old in given)
        return (self._is_held if is_left else self._is_in_pool)(want, given)

    def _is_in_pool(self, want: Want, given: Sequence[Lease]) -> bool:
        pool = self._view.pool(want.pool)
        freed = any(old.place == want.place for old in given)
        return pool is not None and want.value in pool.entries and not freed

    def _is_held(self, want: Want, given: Sequence[Lease]) -> bool:
        if self._is_in_pool(want, given):
            return True
        if any((old.scope, old.family, old.value) == (want.scope, want.family, want.value) for old in given):
            return False
        found = self._view.reservation(want)
        if found is None or any(found.is_of(old) for old in self._at(want)):
            return False
        return not self._is_leftover(found, want)

    def _at(self, place: Want) -> list[Lease]:
        """The leases of the address of `place`, in its pool or scope, that this claim or a doubtful claim replaces."""
        given = (*self._instead_of, *self._doubtful)
        return [old for old in given if old.place == place.place or old.excludes(place)]

    def _patched(self, name: str, change: Changes, cooled: Sequence[Lease]) -> Changes:
        """Write `change` into a pool, which is made if missing; return the former allocations.

        Raises Conflict when others change the claim's first pool: then the whole claim begins again. A further pool
        that others change is read and written again here. Raises OutcomeUnknown after a lost reply.
        """
        attempts = self._view.pauses()
        while True:
            former = self._standing(name, change)
            try:
                if self._view.pool(name) is None:
                    self._view.create(name, next(x.family for x in self.leases if x.pool == name), change)
                self._view.patch(name, change, cooled)
                return former
            except Conflict:
                self._view.forget_pool(name)
                if not self.undo or self._standing(name, change) != former or not attempts.wait():
                    raise

    def _standing(self, name: str, places: Iterable[int]) -> Changes:
        """The allocation at each of these addresses of a pool, by address; None where there is no allocation."""
        pool = self._view.pool(name)
        found = {value: pool.entries.get(value) if pool else None for value in places}
        return {value: entry.document if entry else None for value, entry in found.items()}

    def _reserve(self) -> list[Want]:
        """Reserve each address in its scope; return [the first want that another lease has reserved], else []."""
        for lease in self.leases:
            if lease.scope is None:
                continue
            place = (lease.scope, lease.family, lease.value)
            given = [old for old in self._instead_of if (old.scope, old.family, old.value) == place]
            if not (given and self._view.reservation(lease)):
                try:
                    self._view.api.create(RESERVATIONS, objects.reservation(lease))
                    self._view.forget_reservation(lease)
                    self.undo.append(partial(self._view.unreserve, [lease]))
                    continue
                except Conflict:
                    self._view.forget_reservation(lease)
            found = self._view.reservation(lease)
            if found and any(found.is_of(old) for old in (*given, *self._at(lease), lease)):
                self._replace(lease, lease)
                self.undo += [partial(self._give_back, lease, old) for old in (given or self._at(lease))[:1]]
            elif found and self._is_leftover(found, lease):
                self._replace(lease, lease)
                self.undo.append(partial(self._view.unreserve, [lease]))
            else:
                return [lease]
        return []

    def _is_leftover(self, found: Reservation, place: Want) -> bool:
        """Whether the reservation `found`, without an allocation in the pool of `place`, belongs to a dead pod.

        An interrupted DEL of whereabouts leaves such a reservation. But a living pod can lose its allocation too, and
        then keeps its reservation.
        """
        namespace, name, uid = found.lease.pod
        if found.lease.pool != place.pool:
            return False
        try:
            return not name or uid not in ("", uid_of(self._view.api.pod(namespace, name)))
        except NotFound:
            return True
        except Forbidden:
            return False

    def _replace(self, former: Lease, lease: Lease) -> None:
        """Give the reservation of the address of `former` to `lease`. Raises Conflict after a change, or OutcomeUnknown."""
        found = self._view.reservation(former)
        try:
            if found is None:
                raise NotFound
            new = objects.reservation(Lease(Want(lease.pool, *former.address, former.scope), lease.owner))
            self._view.api.patch(RESERVATIONS, found.name, found.replacement(new))
        except NotFound:
            raise Conflict(f"the reservation of {former.text} has gone") from None
        finally:
            self._view.forget_reservation(former)

    def _give_back(self, lease: Lease, former: Lease) -> None:
        """Give the reservation of `lease` back to `former`."""
        found = self._view.reservation(lease)
        if found and found.is_of(lease):
            try:
                self._replace(lease, former)
            except Conflict:
                pass  # another claim has changed the reservation

    def _restore(self, name: str, former: Changes) -> None:
        """Restore the allocations of a pool, except where others have changed them."""
        container = self._owner.attachment.container_id
        claimed = {lease.value for lease in self.leases if lease.pool == name}
        attempts = self._view.pauses()
        while True:
            pool = self._view.pool(name)
            changes: Changes = {}
            for value, entry in former.items() if pool else ():
                now = pool.entries.get(value) if pool else None
                if (now is not None and now.container_id == container) if value in claimed else now is None:
                    changes[value] = entry
            if not changes:
                return
            try:
                self._view.patch(name, changes)
                return
            except Conflict as fault:
                self._view.forget_pool(name)
                attempts.insist(
                    OutcomeUnknown(f"pool {name} of {self._view.api} was changed by others each time: {fault}")
                )
