"""A claim of the store `addresslease`: several objects, all or none.

An object is made for each address, in their order, and what another has is found out by that alone. A lease that is given
up hands its object on when the claim takes its address again. What fails is undone; what a kill leaves is completed by a
retry, or cleared by DEL, since each object names the attachment.

The name makes an address unique in its scope, or in its pool where a lease has no scope. The two do not know each other,
so after its create a claim looks for a lease of the same pool under the other name: of two claims that run at once at
least one sees the other's.
"""

from __future__ import annotations

import time

from cni.spec.errors import CniError
from ipam.stores import addresslease_objects as objects
from ipam.stores import base
from ipam.stores.addresslease_objects import Entry
from ipam.stores.base import Claimed, Lease, Owner, Taken, Unknown, Want
from ipam.stores.kubernetes_api import Conflict, Open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ipam.stores.addresslease_requests import Objects


class Claim:
    """One attempt. `known` tells of leases how their objects were read in this turn."""

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
        """Make the objects; what another has, or no lease has any more, is answered, and then not all is done."""
        given_up: dict[str, Entry] = {}
        for old in self._instead_of:
            entry = self._known(old)
            if entry is None or not entry.is_of(old) or entry.name in given_up:
                return _want_of(old)
            given_up[entry.name] = entry
        for i, want in enumerate(self._wants):
            if any(_collide(want, other) for other in self._wants[:i]):
                return want
        for want, lease in zip(self._wants, self.leases, strict=True):
            if not self._give(lease, given_up):
                return want
        names = {entry.name for entry in (*self._made, *(now for now, _ in self._replaced))}
        freed = {lease.key() for lease in base.given_up(self._instead_of, self._wants)}
        for entry in given_up.values():
            if entry.name not in names:
                self._give_up(entry, self.cooldown if entry.lease.key() in freed else 0)
        return None

    def _give(self, lease: Lease, given_up: dict[str, Entry]) -> bool:
        """Let the object of an address be that of `lease`; False when another holds the address."""
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
        """Free what the claim does not take again. Where it has changed, another one has it already."""
        try:
            if cooldown:
                self._objects.replace(entry, entry.freed(time.time_ns(), cooldown))
            else:
                self._objects.remove(entry)
        except Conflict:
            pass

    def _undo(self) -> None:
        """Put back what was there, as far as it is still as this claim left it."""
        while self._replaced:
            now, former = self._replaced[-1]
            before = {"metadata": {"labels": former.labels}, "spec": former.spec}
            self._objects.change(now, now.lease, lambda entry: self._objects.replace(entry, before))  # noqa: B023
            self._replaced.pop()
        while self._made:
            self._objects.change(self._made[-1], self._made[-1].lease, self._objects.remove)
            self._made.pop()

    def _taken(self) -> list[Want]:
        """All that stands against the claim now, in the order of what it gives up and what it wants."""
        taken: list[Want] = []
        gone: set[str] = set()
        for old in self._instead_of:
            entry = self._objects.get(objects.name_of(old.pool, old.scope, old.family, old.value))
            if entry and entry.is_of(old) and entry.name not in gone:
                gone.add(entry.name)
            else:
                taken.append(_want_of(old))
        accepted: list[Want] = []
        for want in self._wants:
            if any(_collide(want, other) for other in accepted) or standing(self._objects, want, gone):
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

    A lease without a scope may stand beside one of the scope of its pool, when a network's enable_overlapping_ranges has
    changed while pods run.
    """
    if want.scope is not None:
        name = objects.name_of(want.pool, None, want.family, want.value)
        entry = found.get(name) if name not in gone else None
        return entry if entry and entry.held else None
    own = objects.name_of(want.pool, None, want.family, want.value)
    pool = objects.label(want.pool)
    block = {objects.BLOCK: objects.block_label(want.family, want.value), objects.POOL: pool}
    for name, _ in found.names(block):
        if name != own and name not in gone and objects.address_of(name) == (want.family, want.value):
            entry = found.get(name)
            if entry and entry.held and entry.lease.pool == want.pool:
                return entry
    return None


def _want_of(lease: Lease) -> Want:
    return Want(lease.pool, lease.family, lease.value, lease.scope)


def _collide(one: Want, other: Want) -> bool:
    """Whether at most one of two wants can be had."""
    same = one.pool == other.pool or (one.scope is not None and one.scope == other.scope)
    return same and (one.family, one.value) == (other.family, other.value)
