"""A claim in pools and reservations: what stands against it, its parts one after the other, and how they are undone."""

from __future__ import annotations

import posix
import time
from time import monotonic

from cni.spec.errors import InvalidConfig, TryAgainLater
from ipam.ranges import format_address
from ipam.stores import kubernetes_objects as objects
from ipam.stores import kubernetes_size as sizes
from ipam.stores.base import SHARED_SECONDS, Lease, Owner, Want, given_up
from ipam.stores.kubernetes_api import POOLS, RESERVATIONS, Conflict, Gone, Open, TooLarge
from ipam.stores.kubernetes_objects import PoolObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ipam.stores.kubernetes_api import Api
    from ipam.stores.kubernetes_view import View

    Changes = dict[int, dict[str, Any] | None]

FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds
_CONTENDED_SECONDS = 20.0


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
                pool = _create(self._view, name, family, change)
            entries = {value: pool.entries.get(value) for value in change}
            cooled = [old for old in given_up(self._instead_of, self._wants) if old.pool == name]
            patch(self._view, name, change, self._warn, cooled)
            former = {value: entry.document if entry else None for value, entry in entries.items()}
            self._written.append((name, former))

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
            elif found and found.pool == lease.pool:  # nobody's: the allocation was free, and is ours since _write
                self._replace(lease, lease)
                self._made.append(lease)
            else:
                return [Want(lease.pool, lease.family, lease.value, lease.scope)]
        return []

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


def patch(
    view: View,
    name: str,
    changes: Changes,
    warn: Callable[[str], object] = lambda text: None,
    cooled: Sequence[Lease] = (),
    released: Sequence[Lease] = (),
) -> None:
    """Put `changes` into a pool as it was read. Conflict, Open; CniError when it can take no more.

    Unless it is nearly full, it keeps in mind that the addresses `cooled` were given up, and whose those `released` were.
    """
    pool = view.pool(name)
    if pool is None:
        raise Conflict(f"pool {name} has gone")
    annotations: dict[str, str] = {}
    if sizes.percent(pool.size) < sizes.WARN_PERCENT:
        annotations = pool.remembering(released) | pool.cooled(cooled, view.cooldown, int(time.time()))
    operations = pool.patch(changes, annotations)
    added = {value: entry for value, entry in changes.items() if entry and value not in pool.entries}
    grown = sizes.growth(added.values())
    _check_offsets(name, pool, added)
    if added and not sizes.takes(pool.size, grown):
        raise _full(view, name, pool)
    try:
        metadata = view.api.patch(POOLS, view.names.object_of(name), operations).get("metadata") or {}
    except Gone:
        raise Conflict(f"pool {name} has gone") from None
    except TooLarge:
        raise _full(view, name, pool) from None
    except Open:
        view.forget_pool(name)
        raise
    pool.annotations = metadata.get("annotations") or {}
    pool.apply(changes, metadata.get("resourceVersion") or "", grown)
    if added and sizes.percent(pool.size) >= sizes.WARN_PERCENT:
        warn(
            f"pool {name} of {view.api} is {sizes.percent(pool.size)} % of what the API server takes in one object"
            f" ({pool.size >> 10} of {sizes.LIMIT >> 10} KiB, {len(pool.entries)} leases). {sizes.REMEDY}"
        )


def _full(view: View, name: str, pool: PoolObject) -> TryAgainLater:
    return TryAgainLater(
        f"pool {name} is full: its {len(pool.entries)} leases make an object of {pool.size >> 10} KiB, and an API server"
        f" takes {sizes.LIMIT >> 10}. {sizes.REMEDY}",
        f"{view.api}; `railcni ipam leases` shows who holds addresses",
    )


def _create(view: View, name: str, family: int, changes: Changes) -> PoolObject:
    """A pool for `changes`, empty: nothing forbids a creation that comes late, so it must claim nothing. Conflict, Open."""
    try:
        cidr = view.names.range_of(name, family, next(iter(changes)))
    except ValueError:
        raise InvalidConfig(
            f"pool {name} bears no range in its name that holds {format_address(family, next(iter(changes)))}"
        ) from None
    document = objects.new_pool(view.names.object_of(name), cidr, {})
    _check_offsets(name, PoolObject(document, 0), changes)
    pool = PoolObject(view.api.create(POOLS, document), 0)
    view.set_pool(name, pool)
    return pool


def _check_offsets(name: str, pool: PoolObject, values: Iterable[int]) -> None:
    for value in values:
        if not pool.can_hold(value):
            raise InvalidConfig(
                f"address {format_address(pool.family, value)} is too far from the start of pool {name}: whereabouts"
                " keeps offsets below 2^63. Use a range of at most 63 bits, such as a /66"
            )


def unreserve(view: View, leases: Sequence[Lease]) -> None:
    """Delete the reservations that belong to `leases`. Open."""
    for lease in leases:
        if lease.scope is not None:
            _unreserve(view, lease, lease.scope)


def _unreserve(view: View, lease: Lease, scope: str) -> None:
    place = (scope, lease.family, lease.value)
    name = view.names.reservation_name(*place)
    deadline, pause = contended_until(view.api), FIRST_PAUSE
    while True:
        found = view.reservation(*place)
        if found is None or not found.is_of(lease):
            return
        try:
            view.api.delete(RESERVATIONS, name, found.uid, found.version)
            return
        except Gone:
            return
        except Conflict as fault:  # it has changed: that does not make it another's
            if monotonic() + pause > deadline:
                raise Open(f"reservation {name} of {view.api} was changed by others each time: {fault}") from None
        finally:
            view.forget_reservation(*place)
        pause = wait(pause)


def holder_besides(view: View, lease: Lease) -> Lease | None:
    """Who else has the address of `lease` by now, as the pool says.

    whereabouts moves an entry to a restarted sandbox, and leaves the former container in the reservation.
    """
    pool = view.pool(lease.pool)
    entry = pool.entries.get(lease.value) if pool else None
    found = view.lease(pool, entry) if pool and entry else None
    return found if found and (found.container_id, found.ifname) != (lease.container_id, lease.ifname) else None


def reserve_for_others(view: View, leases: Sequence[Lease]) -> None:
    """Make reservations again that were deleted as those of `leases`, and whose addresses others turn out to have. Open."""
    for lease in leases:
        other = holder_besides(view, lease) if lease.scope is not None else None
        if other and lease.scope is not None and view.reservation(lease.scope, lease.family, lease.value) is None:
            name = view.names.reservation_name(lease.scope, lease.family, lease.value)
            try:
                view.api.create(RESERVATIONS, objects.reservation(name, other))
            except Conflict:
                pass  # it is made already
            view.forget_reservation(lease.scope, lease.family, lease.value)


def contended_until(api: Api) -> float:
    """Until when (time.monotonic) a change is tried again that others' changes forestall: longer than for a request of
    the usual time, since a server that answers is not out of reach."""
    seconds = api.seconds if api.seconds < SHARED_SECONDS else max(api.seconds, _CONTENDED_SECONDS)
    return min(monotonic() + seconds, api.deadline)


def wait(pause: float) -> float:
    """Wait for about `pause` seconds, not as long as others; how long to wait the next time."""
    time.sleep(pause * (0.5 + posix.urandom(1)[0] / 256))
    return min(2 * pause, _LONGEST_PAUSE)
