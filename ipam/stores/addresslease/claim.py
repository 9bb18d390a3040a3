"""A claim of the store `addresslease`: several objects, all or none.

The claim creates an object for each address, in their order; a conflict shows another's lease. It takes over the object of a
lease that it gives up and claims again. A failed claim is undone; a retry completes a killed one, or DEL clears it, since each
object names the attachment.

The name makes an address unique in its scope, or in its pool for a lease without a scope. After its create a claim looks for a
lease of the same pool under the other name: of two claims at once at least one sees the other.
"""

from __future__ import annotations

import time

from cni.shared.spec.errors import CniError
from ipam.leases import Lease, Owner, Want
from ipam.leases import given_up as left_free
from ipam.ranges import network_name_of
from ipam.stores.addresslease import objects
from ipam.stores.addresslease.objects import Entry
from ipam.stores.apiserver.faults import Conflict
from ipam.stores.base import Claimed, Open, Taken, Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ipam.stores.addresslease.requests import Objects


class Claim:
    """One attempt. `known` answers the object of a lease as this session has read it."""

    __slots__ = ("_instead_of", "_known", "_made", "_objects", "_replaced", "_wants", "cooldown", "leases")

    def __init__(
        self,
        found: Objects,
        wants: Sequence[Want],
        owner: Owner,
        instead_of: Sequence[Lease],
        known: Callable[[Lease], Entry | None],
    ) -> None:
        self._objects = found
        self._wants = wants
        self._instead_of = instead_of
        self._known = known
        self._made: list[Entry] = []
        self._replaced: list[tuple[Entry, Entry]] = []  # as it is now, as it was
        self.leases = [Lease(want, owner) for want in wants]
        self.cooldown = 0

    def make(self) -> Claimed | Taken | Unknown:
        """CniError when nothing was changed."""
        failure: CniError | None = None
        lost: Want | None = None
        try:
            lost = self._lost()
            if lost is None:
                return Claimed(self.leases)
        except Open as fault:
            return Unknown(fault)
        except CniError as fault:
            failure = fault
        try:
            self._undo()
            if failure is None and lost:
                one = len(self._wants) == 1 and not self._instead_of
                return Taken([lost] if one else self._taken() or [lost])
        except CniError as fault:
            if failure is None:
                failure = fault
            if self._made or self._replaced:
                return Unknown(failure)
        assert failure is not None  # noqa: S101  # nothing was lost, so something failed
        raise failure

    def _lost(self) -> Want | None:
        """Make the objects; the first want of another, or lease that has ended, which leaves the rest undone."""
        given_up: dict[str, Entry] = {}
        for old in self._instead_of:
            entry = self._known(old)
            if entry is None or not entry.is_of(old) or entry.name in given_up:
                return old.want
            given_up[entry.name] = entry
        for i, want in enumerate(self._wants):
            if any(want.excludes(other) for other in self._wants[:i]):
                return want
        for want, lease in zip(self._wants, self.leases, strict=True):
            if not self._give(lease, given_up):
                return want
        names = {entry.name for entry in (*self._made, *(now for now, _ in self._replaced))}
        freed = {lease.key() for lease in left_free(self._instead_of, self._wants)}
        for entry in given_up.values():
            if entry.name not in names:
                self._give_up(entry, self.cooldown if entry.lease.key() in freed else 0)
        return None

    def _give(self, lease: Lease, given_up: dict[str, Entry]) -> bool:
        """Create or take over the object of an address for `lease`; False when another holds the address."""
        document = objects.document(lease)
        former = given_up.get(document["metadata"]["name"])
        try:
            if former is None:
                entry, ours = self._objects.create(document, lease)
                if ours:
                    self._made.append(entry)
                elif entry.held:
                    return False
                else:
                    former = entry
            if former is not None:
                self._replaced.append((self._objects.replace(former, document), former))
        except Conflict:
            return False
        return twin(self._objects, lease, given_up) is None

    def _give_up(self, entry: Entry, cooldown: int) -> None:
        """Free a lease that the claim does not take again; a changed object is another's already."""
        try:
            if cooldown:
                self._objects.replace(entry, entry.freed(time.time_ns(), cooldown))
            else:
                self._objects.remove(entry)
        except Conflict:
            pass

    def _undo(self) -> None:
        """Put the objects back that are still as this claim left them."""
        while self._replaced:
            now, former = self._replaced[-1]
            before = {"metadata": {"labels": former.labels}, "spec": former.spec}
            self._objects.change(now, now.lease, lambda entry: self._objects.replace(entry, before))  # noqa: B023
            self._replaced.pop()
        while self._made:
            self._objects.change(self._made[-1], self._made[-1].lease, self._objects.remove)
            self._made.pop()

    def _taken(self) -> list[Want]:
        """All wants and leases that the claim fails by now, in the order of leases given up and wants."""
        taken: list[Want] = []
        gone: set[str] = set()
        for old in self._instead_of:
            entry = self._objects.get(objects.name_of(old.pool, old.scope, old.family, old.value))
            if entry and entry.is_of(old) and entry.name not in gone:
                gone.add(entry.name)
            else:
                taken.append(old.want)
        accepted: list[Want] = []
        for want in self._wants:
            if any(want.excludes(other) for other in accepted) or standing(self._objects, want, gone):
                taken.append(want)
            else:
                accepted.append(want)
        return taken


def standing(found: Objects, want: Want, gone: Collection[str] = ()) -> Entry | None:
    """The object of the lease that keeps `want` from being claimed; those named in `gone` do not count."""
    name = objects.name_of(want.pool, want.scope, want.family, want.value)
    entry = found.get(name) if name not in gone else None
    return entry if entry and entry.held else twin(found, want, gone)


def twin(found: Objects, want: Want | Lease, gone: Collection[str] = ()) -> Entry | None:
    """The object of another name that holds the address of `want` in its pool; those named in `gone` do not count.

    Both kinds exist when a network's enable_overlapping_ranges has changed while pods run.
    """
    other = None
    try:
        if want.scope is None:
            other = network_name_of(want.pool, want.family, want.value)
        name = objects.name_of(want.pool, other, want.family, want.value)
        entry = found.get(name) if name not in gone else None
        return entry if entry and entry.held and entry.lease.pool == want.pool else None
    except ValueError:  # no configuration calls a pool so
        pass
    own = objects.name_of(want.pool, None, want.family, want.value)
    pool = objects.label(want.pool)
    block = {objects.BLOCK: objects.block_label(want.family, want.value), objects.POOL: pool}
    for name, _ in found.names(block):
        if name != own and name not in gone and objects.address_of(name) == (want.family, want.value):
            entry = found.get(name)
            if entry and entry.held and entry.lease.pool == want.pool:
                return entry
    return None
