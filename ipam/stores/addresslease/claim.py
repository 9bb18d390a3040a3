"""A claim of the store `addresslease`: several objects, all or none.

The claim creates an object for each address, in order; a conflict shows the lease of another owner. If the claim
gives up a lease and claims its address again, it takes over the object. A failed claim is undone. After a kill, a
retry completes the claim, or DEL removes it, since each object names the attachment.

An object's name makes an address unique in its scope; if the lease has no scope, in its pool. A range is in one store
only: the first claim of a pool creates a closed IPPool, whose spec.range no program can use, and each claim reads this
IPPool after it has created its objects. So if a claim in IPPools or a migration runs at the same time, at least one of
the two sees the other. An annotation of the IPPool tells which kinds of names the pool's objects have: with a scope,
with a pool, or both. If both, a claim also looks for a lease under the other kind of name, in a state not older than
the resourceVersion of the claim's own object (Kubernetes API Concepts, "Resource versions").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.leases import Lease, Owner, Want
from ipam.leases import given_up as left_free
from ipam.ranges import network_name_of, range_of
from ipam.stores.addresslease import objects
from ipam.stores.addresslease.objects import Entry
from ipam.stores.addresslease.requests import Objects
from ipam.stores.apiserver.faults import Conflict, NotFound, Undefined
from ipam.stores.apiserver.resources import GROUP, MOVED, POOLS, VERSION, replacement
from ipam.stores.apiserver.store import refuse_elsewhere
from ipam.stores.base import Pauses
from ipam.stores.served import conflicts

NAMES = "railcni.io/names"  # annotation of an IPPool: the kinds of names of its AddressLeases, "net", "pool" or both


class Claim:
    """One attempt to claim `wants`. `known` returns the object of a lease as this session has read it. `is_mixed` tells
    whether the pool of a lease may have objects with both kinds of names."""

    def __init__(
        self,
        found: Objects,
        wants: Sequence[Want],
        owner: Owner,
        instead_of: Sequence[Lease],
        known: Callable[[Lease], Entry | None],
        is_mixed: Callable[[Lease], bool],
        cooldown: int,
    ) -> None:
        self._is_mixed = is_mixed
        self._objects = found
        self._wants = wants
        self._instead_of = instead_of
        self._known = known
        self._cooldown = cooldown
        self.undo: list[Callable[[], object]] = []  # undo each change, except where others have changed it since
        self.leases = [Lease(want, owner) for want in wants]

    def make(self) -> list[Want]:
        """Make the objects; return the obstacles (served.conflicts)."""
        given = {old.key(): entry for old in self._instead_of if (entry := self._known(old)) and entry.is_of(old)}
        failed = conflicts(self._instead_of, self._wants, lambda old: old.key() in given, lambda want, freed: False)
        if failed:
            return failed
        given_up = {entry.name: entry for entry in given.values()}
        for want, lease in zip(self._wants, self.leases, strict=True):
            try:
                entry = self._object_of(lease, given_up)
            except Conflict:
                entry = None
            if entry is None or (self._is_mixed(lease) and twin(self._objects, lease, given_up, entry.version)):
                return [want]
        names = {objects.name_of(lease) for lease in self.leases}
        freed = {lease.key() for lease in left_free(self._instead_of, self._wants)}
        for entry in given_up.values():
            if entry.name not in names:
                self._objects.free(entry, entry.lease, self._cooldown if entry.lease.key() in freed else 0)
        return []

    def _object_of(self, lease: Lease, given_up: dict[str, Entry]) -> Entry | None:
        """Create or take over the object for `lease`; None when another lease has the address. Raises Conflict."""
        document = objects.document(lease)

        def take(entry: Entry) -> tuple[Entry, Entry]:
            return self._objects.replace(entry, document), entry

        former = given_up.get(document["metadata"]["name"])
        if former:
            replaced = self._objects.change(former, former.lease, take)
            if replaced is None:
                return None
        else:
            entry, ours = self._objects.create(document, lease)
            if ours:
                self.undo.append(lambda: self._objects.change(entry, entry.lease, self._objects.remove))
                return entry
            if entry.held or (self._cooldown and entry.cools(time.time()) and not entry.lease.is_of_pod(lease.owner)):
                return None
            replaced = take(entry)
        now, before = replaced
        restored = {"metadata": {"labels": before.labels}, "spec": before.spec}
        self.undo.append(
            lambda: self._objects.change(now, now.lease, lambda entry: self._objects.replace(entry, restored))
        )
        return now

    def taken(self) -> list[Want]:
        """All obstacles to the claim; [] for a claim of one address, whose only obstacle `make` has returned."""
        if len(self._wants) == 1 and not self._instead_of:
            return []

        def is_there(lease: Lease) -> bool:
            entry = self._objects.get(objects.name_of(lease))
            return entry is not None and entry.is_of(lease)

        def is_held(want: Want, freed: Sequence[Lease]) -> bool:
            return standing(self._objects, want, [objects.name_of(old) for old in freed]) is not None

        return conflicts(self._instead_of, self._wants, is_there, is_held)


def is_mixed(found: Objects, place: Want) -> bool:
    """Whether a pool's objects may have both kinds of names, by the annotation of its closed IPPool, which is updated.

    Raises InvalidConfig when the leases of the pool are in IPPools.
    """
    api, name = found.api, place.pool
    own = "pool" if place.scope is None else "net"
    attempts = Pauses(min(time.monotonic() + api.seconds, api.deadline))
    while (pool := closed_pool(found, place)) is not None:
        metadata = pool.get("metadata") or {}
        notes = metadata.get("annotations") or {}
        known = str(notes.get(NAMES) or "")
        if own in known.split(","):
            return "," in known
        names = known.split(",") if known else map(objects.space_of, found.names({objects.POOL: objects.label(name)}))
        kinds = {own, *("pool" if text.startswith("pool") else "net" for text in names)}
        notes = {**notes, NAMES: ",".join(sorted(kinds))}
        try:
            if pool:
                members = {"/metadata/annotations": notes}
                api.patch(POOLS, name, replacement(metadata["uid"], metadata["resourceVersion"], members))
            else:
                refuse_elsewhere(api, name)
                spec = {"range": f"{MOVED}{range_of(name, place.family, place.value)}", "allocations": {}}
                kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "IPPool"}
                api.create(POOLS, {**kind, "metadata": {"name": name, "annotations": notes}, "spec": spec})
            return len(kinds) > 1
        except (Conflict, NotFound) as fault:
            what = f"IPPool {name} of {api} was changed by others each time: retry"
            attempts.insist(TryAgainLater(what, str(fault)))
    return True


def closed_pool(found: Objects, place: Want) -> dict[str, Any] | None:
    """The closed IPPool of the pool of `place`; {} when there is no such IPPool yet, None when there cannot be one.

    Raises InvalidConfig when the IPPool is open: the leases of the pool are then in IPPools, not in AddressLeases.
    """
    api, name = found.api, place.pool
    try:
        range_of(name, place.family, place.value)
        pool = api.get(POOLS, name)[0] if objects.is_subdomain(name) else None
    except (Undefined, ValueError):
        return None
    except NotFound:
        return {}
    if pool and not str((pool.get("spec") or {}).get("range")).startswith(MOVED):
        raise InvalidConfig(
            f'pool {name} is in IPPools, and so not in AddressLeases: want "datastore": "kubernetes" (flat file or NAD), or move'
            " all ranges by `railcni ipam migrate --from kubernetes:KUBECONFIG --to addresslease:KUBECONFIG`",
            str(api),
        )
    return pool


def standing(found: Objects, want: Want, gone: Collection[str] = ()) -> Entry | None:
    """The object of the lease that prevents a claim of `want`, or None. Objects with a name in `gone` do not count."""
    name = objects.name_of(want)
    entry = found.get(name) if name not in gone else None
    return entry if entry and entry.held else twin(found, want, gone)


def twin(found: Objects, want: Want, gone: Collection[str] = (), since: str = "") -> Entry | None:
    """The object with the other kind of name that holds the address of `want` in the same pool, or None.

    Both kinds exist when a network's enable_overlapping_ranges has changed while pods run. An object with a name in
    `gone` does not count. `since` is as in Objects.get.
    """
    name = twin_name(want)
    entry = found.get(name, since=since) if name not in gone else None
    return entry if entry and entry.held and entry.lease.pool == want.pool else None


def twin_name(want: Want) -> str:
    """The other name for an object of the address of `want`: with the pool instead of the scope, or vice versa."""
    other = None
    if want.scope is None:
        try:
            other = network_name_of(want.pool, want.family, want.value)
        except ValueError:
            other = ""  # no configuration names a pool like this
    return objects.name_of(Want(*want.place, other))
