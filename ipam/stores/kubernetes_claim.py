"""A claim in pools and reservations: what stands against it, its parts one after the other, and how they are undone."""

from __future__ import annotations

from time import monotonic

from ipam.stores import kubernetes_objects as objects
from ipam.stores.base import Lease, Owner, Want, given_up
from ipam.stores.kubernetes_api import RESERVATIONS, Conflict, Forbidden, Gone, Open
from ipam.stores.kubernetes_change import FIRST_PAUSE, contended_until, create, patch, wait
from ipam.stores.kubernetes_reservations import unreserve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipam.stores.kubernetes_change import Changes
    from ipam.stores.kubernetes_objects import Entry, Reservation
    from ipam.stores.kubernetes_view import View


class Claim:
    """`wants` for `owner` in place of the leases `instead_of`. Every part of it is undone by `undo`."""

    __slots__ = ("_instead_of", "_made", "_moved", "_owner", "_view", "_wants", "_warn", "_written", "leases")

    def __init__(
        self,
        view: View,
        wants: Sequence[Want],
        owner: Owner,
        instead_of: Sequence[Lease],
        warn: Callable[[str], object],
    ) -> None:
        self.leases = [Lease(want, owner) for want in wants]
        self._view = view
        self._wants = wants
        self._owner = owner
        self._instead_of = instead_of
        self._warn = warn
        self._written: list[tuple[str, Changes]] = []  # pools, and what stood in them
        self._made: list[Lease] = []  # of new reservations
        self._moved: list[tuple[Lease, Lease]] = []  # of reservations that say another owner now, and the former one

    def make(self, between: Callable[[], object]) -> list[Want]:
        """The pools first, then the reservations; what another holds, and then the rest is to be undone. Conflict, Open.

        `between` is called when the pools are written: the reservations are nobody else's meanwhile.
        """
        self._write()
        between()
        taken = self._reserve()
        if not taken:
            kept = {(want.scope, want.family, want.value) for want in self._wants}
            unreserve(self._view, [o for o in self._instead_of if (o.scope, o.family, o.value) not in kept])
            self._view.remember(self.leases, self._instead_of)
        return taken

    def conflicts(self, reservations: bool) -> list[Want]:
        """What stands against a claim: by the pools, and if so asked by the reservations too."""
        taken: list[Want] = []
        given: set[tuple[str, int, int]] = set()
        given_scopes: set[tuple[str | None, int, int]] = set()
        for old in self._instead_of:
            place = (old.pool, old.family, old.value)
            if place in given or not self._view.is_there(old):
                taken.append(Want(old.pool, old.family, old.value, old.scope))
            else:
                given.add(place)
                given_scopes.add((old.scope, old.family, old.value))
        used: set[tuple[str, int, int]] = set()
        scopes: set[tuple[str, int, int]] = set()
        for want in self._wants:
            place = (want.pool, want.family, want.value)
            pool = self._view.pool(want.pool)
            held = place in used or (pool is not None and want.value in pool.entries and place not in given)
            if want.scope is not None:
                scoped = (want.scope, want.family, want.value)
                held = held or scoped in scopes
                if reservations and not held and scoped not in given_scopes:
                    held = self._view.reservation(*scoped) is not None and not self._is_own(want)
            if held:
                taken.append(want)
                continue
            used.add(place)
            if want.scope is not None:
                scopes.add((want.scope, want.family, want.value))
        return taken

    def _is_own(self, want: Want) -> bool:
        """Whether the reservation of `want` is that of a lease that is given up for it, but was not known to be."""
        found = self._view.reservation(want.scope, want.family, want.value)
        same = [old for old in self._instead_of if (old.pool, old.value) == (want.pool, want.value)]
        return found is not None and any(found.is_of(old) for old in same)

    def _write(self) -> None:
        changes: dict[str, Changes] = {}
        for old in self._instead_of:
            changes.setdefault(old.pool, {})[old.value] = None
        for lease in self.leases:
            changes.setdefault(lease.pool, {})[lease.value] = objects.entry_of(self._owner)
        for name, change in changes.items():
            pool = self._view.pool(name)
            if pool is None:
                family = next(lease.family for lease in self.leases if lease.pool == name)
                self._make_pool(name, family, change)
            cooled = [old for old in given_up(self._instead_of, self._wants) if old.pool == name]
            self._written.append((name, self._patched(name, change, cooled)))

    def _make_pool(self, name: str, family: int, change: Changes) -> None:
        try:
            create(self._view, name, family, change)
        except Conflict:
            self._view.forget_pool(name)
            pool = self._view.pool(name)
            if not self._written or pool is None or any(value in pool.entries for value in change):
                raise

    def _patched(self, name: str, change: Changes, cooled: Sequence[Lease]) -> Changes:
        """Put `change` into a pool; what stood there before. Conflict, Open.

        The first pool decides who goes first: when it is written, what others change in a further one meanwhile is looked at
        anew there, for all of a claim would have to begin again as often as any of its pools changes.
        """
        deadline, pause = contended_until(self._view.api), FIRST_PAUSE
        while True:
            pool = self._view.pool(name)
            former = {value: pool.entries.get(value) if pool else None for value in change}
            try:
                patch(self._view, name, change, self._warn, cooled)
                return {value: entry.document if entry else None for value, entry in former.items()}
            except Conflict:
                self._view.forget_pool(name)
                if not self._written or monotonic() + pause > deadline or self._is_lost(name, former):
                    raise
            pause = wait(pause)

    def _is_lost(self, name: str, former: dict[int, Entry | None]) -> bool:
        """Whether another has changed what stood in a pool at the places of this claim."""
        pool = self._view.pool(name)
        now = {value: pool.entries.get(value) if pool else None for value in former}
        return any(
            (entry.document if entry else None) != (was.document if (was := former[value]) else None)
            for value, entry in now.items()
        )

    def _reserve(self) -> list[Want]:
        """Reserve each address in its scope; the first that another has."""
        for lease in self.leases:
            if lease.scope is None:
                continue
            place = (lease.scope, lease.family, lease.value)
            document = objects.reservation(self._view.names.reservation_name(*place), lease)
            given = [old for old in self._instead_of if (old.scope, old.family, old.value) == place]
            if not (given and self._view.reservation(*place)):
                try:
                    self._view.api.create(RESERVATIONS, document)
                    self._view.forget_reservation(*place)
                    self._made.append(lease)
                    continue
                except Conflict:
                    self._view.forget_reservation(*place)
            same = [old for old in self._instead_of if (old.pool, old.value) == (lease.pool, lease.value)]
            found = self._view.reservation(*place)
            if found and any(found.is_of(old) for old in (*given, *same, lease)):
                self._replace(lease, lease)
                self._moved += [(lease, old) for old in (given or same)[:1]]
            elif found and found.pool == lease.pool and not self._is_used(found, lease):
                # nobody's: the allocation was free, and is ours since _write
                self._replace(lease, lease)
                self._made.append(lease)
            else:
                return [Want(lease.pool, lease.family, lease.value, lease.scope)]
        return []

    def _is_used(self, found: Reservation, lease: Lease) -> bool:
        """Whether the pod of a reservation may have the address, though the pool does not hold it any more.

        Go's DEL that ends half-way leaves a reservation of a dead pod; but a pool can lose what a living one has.
        """
        namespace, name, uid = found.lease(Want(lease.pool, lease.family, lease.value, lease.scope)).pod
        try:
            living = self._view.api.pod_uid(namespace, name) if name else ""
        except Forbidden:
            return True
        return bool(living) and uid in ("", living)

    def _replace(self, former: Lease, lease: Lease) -> None:
        """Let the reservation at the place of `former` say what belongs to `lease`. Conflict, Open."""
        place = (former.scope or "", former.family, former.value)
        name = self._view.names.reservation_name(*place)
        found = self._view.reservation(*place)
        try:
            if found is None:
                raise Gone(name)
            self._view.api.patch(RESERVATIONS, name, found.replacement(objects.reservation(name, lease)))
        except Gone:
            raise Conflict(f"reservation {name} has gone") from None
        finally:
            self._view.forget_reservation(*place)

    def undo(self) -> None:
        """Put back what stood there before, as far as it is still as this claim left it: the reservations first."""
        for lease, old in self._moved:
            found = self._view.reservation(lease.scope, lease.family, lease.value)
            if found and found.is_of(lease):
                try:
                    self._replace(lease, old)
                except Conflict:
                    pass  # another has taken its place
        unreserve(self._view, self._made)
        for name, former in self._written:
            self._undo(name, former)
        self._moved, self._made, self._written = [], [], []

    def _undo(self, name: str, former: Changes) -> None:
        container = self._owner.attachment.container_id
        claimed = {lease.value for lease in self.leases if lease.pool == name}
        pause = FIRST_PAUSE
        deadline = contended_until(self._view.api)
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
                patch(self._view, name, changes)
                return
            except Conflict as fault:
                self._view.forget_pool(name)
                if monotonic() + pause > deadline:
                    raise Open(f"pool {name} of {self._view.api} was changed by others each time: {fault}") from None
            pause = wait(pause)
