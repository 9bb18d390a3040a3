"""Requests for AddressLeases, each made again after a lost reply.

A change tests the resourceVersion, and a deletion tests uid and resourceVersion. So a late change or deletion fails,
since the object has changed by then. A create has nothing to test: it fails while the object exists. So the create of a
lease is never repeated, and after a lost reply the object stays for some time (`Objects.fence`).

An object's name makes an address unique in its scope; if the lease has no scope, in its pool. A range is in one store
only: the first claim of a pool creates a closed IPPool, whose spec.range no program can use, and each claim reads this
IPPool after it has created its objects. So if a claim of AddressLeases runs at the same time as a claim in IPPools or a
migration, at least one of the two sees the other. An annotation of the IPPool tells which kinds of names the pool's
objects have: with a scope, with a pool, or both. If both, a claim also looks for a lease under the other kind of name.
The reply must not be older than the resourceVersion of the claim's own object (Kubernetes API Concepts, "Resource
versions").
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cni.shared.spec.errors import CniError, InvalidConfig, StateDamaged, TryAgainLater
from ipam.ranges import range_of
from ipam.stores.addresslease import objects
from ipam.stores.addresslease.objects import Entry
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, NotFound, TooLarge, Undefined
from ipam.stores.apiserver.resources import ADDRESSES, GROUP, MOVED, POOLS, VERSION, replacement
from ipam.stores.apiserver.store import refuse_elsewhere
from ipam.stores.base import OutcomeUnknown, Pauses

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any, TypeVar

    from ipam.leases import Lease, Want

    T = TypeVar("T")


class Objects:
    """The AddressLeases of one namespace. Every method may raise a CniError, such as OutcomeUnknown."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def get(self, name: str, recent: bool = False, since: str = "") -> Entry | None:
        """The object of this name, or None. `recent`: read from the server's cache, which may be a moment old.
        `since` is a resourceVersion: the cache returns the object as it was at this version or later."""
        try:
            version = "0" if recent else since
            return self._entry(self.api.get(ADDRESSES, name, f"resourceVersion={version}" if version else "")[0])
        except NotFound:
            return None
        except TooLarge:  # the resourceVersion is newer than the cache, which is some seconds behind
            return self.get(name)

    def chosen(self, labels: dict[str, str], recent: bool) -> list[Entry]:
        """The objects with all of `labels`, except those that cannot be read: any node can make one with any labels.
        `recent`: from the server's cache, perhaps a moment old."""
        return list(self._readable(self.api.list_all(ADDRESSES, objects.selector(labels), recent=recent), []))

    def each(self, labels: dict[str, str], recent: bool, unread: list[str]) -> Iterator[Entry]:
        """As `chosen`, but read page by page. `unread` gets the error message for each object that cannot be read."""
        for page in self.api.pages(ADDRESSES, objects.selector(labels), recent=recent):
            yield from self._readable(page, unread)

    def _readable(self, documents: Iterable[dict[str, Any]], unread: list[str]) -> Iterator[Entry]:
        for document in documents:
            try:
                yield self._entry(document)
            except StateDamaged as fault:
                unread.append(fault.msg)

    def names(self, labels: dict[str, str], recent: bool = False) -> list[str]:
        """The names of the objects with all of `labels`. `recent`: from the server's cache, perhaps a moment old."""
        rows = self.api.list_all(ADDRESSES, objects.selector(labels), recent=recent, table=True)
        return [row["cells"][0] if "cells" in row else row["metadata"]["name"] for row in rows]

    def create(self, document: dict[str, Any], lease: Lease) -> tuple[Entry, bool]:
        """Create `document`; return (the object of this name, whether it belongs to `lease`).

        Raises Conflict when an object of this name was just deleted. After a lost reply, `fence` shows the outcome for a
        lease. A second create might be served after the release of what the first one has made.
        """

        def create(again: bool) -> tuple[Entry, bool]:
            if again and document["spec"]["state"] == objects.HELD:
                entry = self.fence(lease)
                return entry, entry.is_of(lease)
            try:
                made = self.api.create(ADDRESSES, document, brief=True)
                return self._entry({**document, "metadata": made.get("metadata") or {}}), True
            except Conflict:
                found = self.get(document["metadata"]["name"])
                if found is None:
                    raise
                return found, found.is_of(lease)

        return _twice(create)

    def fence(self, lease: Lease) -> Entry:
        """Make each late create and each late takeover for `lease` fail; return the object of the address.

        If one has been served already, the object holds `lease`. Otherwise the object has a new label FENCE, and
        `remove` keeps the object. If there is none, a free one is made. Raises OutcomeUnknown when this fails.
        """
        attempts = Pauses(min(time.monotonic() + self.api.seconds, self.api.deadline))
        while True:
            now = time.time_ns()
            document = objects.document(lease, objects.FORMER)
            document["metadata"]["labels"][objects.FENCE] = str(now)
            document["spec"]["sequence"] = now
            try:
                entry, _ = self.create(document, lease)
                if not entry.is_of(lease) and entry.labels.get(objects.FENCE) != str(now):
                    labels = entry.labels | {objects.FENCE: str(now)}
                    entry = self.replace(entry, {"metadata": {"labels": labels}, "spec": entry.spec})
                if entry.is_of(lease) or entry.labels.get(objects.FENCE) == str(now):
                    return entry
                fault = "it has another label"
            except Conflict as conflict:  # an object without the label may be gone before the late create arrives
                fault = str(conflict)
            attempts.insist(
                OutcomeUnknown(
                    f"addresslease {objects.name_of(lease)} of {self.api} was changed by others each time: {fault}"
                )
            )

    def replace(self, entry: Entry, new: dict[str, Any]) -> Entry:
        """Give `entry` the labels and the spec of `new`. Raises Conflict when the object has changed meanwhile."""

        def patch(again: bool) -> Entry:
            try:
                metadata = self.api.patch(ADDRESSES, entry.name, entry.replacement(new)).get("metadata") or {}
                return self._entry({**new, "metadata": metadata})
            except (OutcomeUnknown, Conflict, NotFound) as fault:
                found = self.get(entry.name) if again else None
                if found and found.spec == new["spec"]:
                    return found  # the request with the lost reply was served
                if isinstance(fault, NotFound):
                    raise Conflict(f"{entry.name} has gone") from None
                raise

        return _twice(patch)

    def remove(self, entry: Entry) -> bool:
        """Delete `entry`; return whether it existed. Raises Conflict when it has changed since it was read.

        If a late create may still arrive, the object stays, marked as free, so that the create fails.
        """
        if entry.is_fenced(time.time_ns()):
            self.replace(entry, entry.freed(time.time_ns(), 0))
            return True

        def delete(again: bool) -> bool:
            try:
                self.api.delete(ADDRESSES, entry.name, entry.uid, entry.version)
            except NotFound:
                return again
            return True

        return _twice(delete)

    def free(self, entry: Entry | None, lease: Lease, cooldown: int) -> bool:
        """Free the address of `lease` in its object `entry`; return whether `lease` held it. Raises OutcomeUnknown."""

        def free(entry: Entry) -> bool:
            if cooldown:
                return bool(self.replace(entry, entry.freed(time.time_ns(), cooldown)))
            return self.remove(entry)

        return bool(self.change(entry, lease, free))

    def change(self, entry: Entry | None, lease: Lease, make: Callable[[Entry], T]) -> T | None:
        """Return `make(entry)`; after a Conflict read the object and call `make` again. Return None when the object no
        longer holds `lease`. Raises OutcomeUnknown when others keep changing the object."""
        attempts = Pauses(min(time.monotonic() + self.api.seconds, self.api.deadline))
        while entry and entry.is_of(lease):
            try:
                return make(entry)
            except Conflict as fault:
                attempts.insist(
                    OutcomeUnknown(f"addresslease {entry.name} of {self.api} was changed by others each time: {fault}")
                )
            entry = self.get(entry.name)
        return None

    def is_mixed(self, place: Want) -> bool:
        """Whether the objects of the pool of `place` may have both kinds of names: with a scope, and with a pool.

        An annotation of the pool's closed IPPool lists the kinds; the kind of `place` is first added to it. Raises
        InvalidConfig when the leases of the pool are in IPPools.
        """
        api, name = self.api, place.pool
        own = "pool" if place.scope is None else "net"
        attempts = Pauses(min(time.monotonic() + api.seconds, api.deadline))
        while (pool := self.closed_pool(place)) is not None:
            metadata = pool.get("metadata") or {}
            notes = metadata.get("annotations") or {}
            known = str(notes.get(objects.NAMES) or "")
            if own in known.split(","):
                return "," in known
            names = (
                known.split(",") if known else map(objects.space_of, self.names({objects.POOL: objects.label(name)}))
            )
            kinds = {own, *("pool" if text.startswith("pool") else "net" for text in names)}
            notes = {**notes, objects.NAMES: ",".join(sorted(kinds))}
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

    def closed_pool(self, place: Want) -> dict[str, Any] | None:
        """The closed IPPool of the pool of `place`; {} when the pool has no IPPool yet.

        An IPPool is closed when the leases of its range are AddressLeases. The result is None when the name of the pool
        does not allow an IPPool, or the cluster has no IPPools. Raises InvalidConfig when the IPPool is not closed.
        """
        api, name = self.api, place.pool
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

    def standing(self, want: Want, gone: Collection[str] = ()) -> Entry | None:
        """The object of the lease that prevents a claim of `want`, or None. Objects named in `gone` do not count."""
        name = objects.name_of(want)
        entry = self.get(name) if name not in gone else None
        return entry if entry and entry.held else self.twin(want, gone)

    def twin(self, want: Want, gone: Collection[str] = (), since: str = "") -> Entry | None:
        """The object that holds the address of `want` in its pool under the other kind of name (`twin_name`), or None.

        Both kinds exist when a network's enable_overlapping_ranges has changed while pods run. An object with a name in
        `gone` does not count. `since` is as in Objects.get.
        """
        name = objects.twin_name(want)
        entry = self.get(name, since=since) if name not in gone else None
        return entry if entry and entry.held and entry.lease.pool == want.pool else None

    def _entry(self, document: dict[str, Any]) -> Entry:
        try:
            return Entry(document)
        except ValueError:
            name = str((document.get("metadata") or {}).get("name"))
            raise StateDamaged(
                f"addresslease {name} in namespace {self.api.access.namespace} of {self.api} tells no address: only"
                f" railcni may write these objects. Delete it: kubectl delete addresslease {name}"
            ) from None


def _twice(request: Callable[[bool], T]) -> T:
    """Return `request(False)`; after a lost reply, `request(True)`. Raises the first error when both calls fail."""
    try:
        return request(False)
    except OutcomeUnknown as lost:
        try:
            return request(True)
        except CniError:
            raise lost from None
