"""The steps that move the leases of a range between the two stores of a cluster, IPPools and AddressLeases.

The field `range` of an IPPool says which store has the range. In a move to AddressLeases, the leases are copied first.
Then one patch, which tests the resourceVersion, closes the pool: it removes the allocations, and replaces the range by
a text that is no CIDR. Go's whereabouts and every version of railcni refuse an ADD from a closed pool. In a move to
IPPools, a different text first replaces the range, so that AddressLeases refuse claims in the range too. Then the
leases are copied into the pool, and a patch restores the range.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cni.cluster.audit.cluster import Cluster
from cni.cluster.audit.model import Snapshot
from cni.cluster.audit.store import Choice
from cni.shared.spec.errors import InvalidConfig
from ipam.leases import Lease
from ipam.ranges import range_of
from ipam.stores.addresslease.objects import NAMES
from ipam.stores.apiserver.faults import Conflict, NotFound
from ipam.stores.apiserver.resources import MOVED, MOVING, POOLS, RESERVATIONS, replacement
from ipam.stores.ippool import objects


class Pools:
    """The IPPools of a cluster. `closes` is true in a move to AddressLeases, which closes the pools; it is false in a
    move to IPPools."""

    def __init__(self, choice: Choice, closes: bool) -> None:
        self.closes = closes
        self._cluster = Cluster(choice.kubeconfig)
        self._api = self._cluster.api
        self._versions: dict[str, str] = {}
        self._moved: list[Lease] = []

    def moved_from(self, found: Snapshot) -> list[Lease]:
        """Store the resourceVersions of the pools in `found`, for the comparison by `close`. Return the leases of the
        pools that `close` has closed so far. Raises InvalidConfig if a network has node_slice_size."""
        if sliced := [n.name for n in found.networks if n.sliced]:
            why = "it has node_slice_size, which datastore addresslease does not take"
            remedy = "Leave it out of that network first"
            raise InvalidConfig(f"the addresses of {sliced[0]} cannot be moved: {why}. {remedy}")
        self._versions = {state.name: state.version for state in found.pools}
        return self._moved

    def switch(self, leases: list[Lease]) -> bool:
        """Close the pools in a move to AddressLeases, or open them in a move to IPPools. All `leases` must have been
        copied. Return False if the leases must be read again."""
        return self.close(leases) if self.closes else not self._mark(MOVING, "")

    def close(self, leases: list[Lease]) -> bool:
        """Close each pool that has not changed since `moved_from`, and delete the reservations of `leases` in it.
        Return False if a pool has changed."""
        closed = True
        for name, version in self._versions.items():
            try:
                document = self._api.get(POOLS, name)[0]
                if document["metadata"]["resourceVersion"] != version:
                    raise Conflict
                self._replace(document, f"{MOVED}{document['spec']['range']}")
            except (Conflict, NotFound):
                closed = False
                continue
            own = [lease for lease in leases if lease.pool == name]
            self._moved += own
            for lease in own:
                found = self._cluster.reservation(lease)
                if found and found.is_of(lease):
                    with suppress(Conflict, NotFound):  # another attachment has the reservation now
                        self._api.delete(RESERVATIONS, found.name, found.uid, found.version)
        return closed

    def _replace(self, document: dict[str, Any], text: str) -> None:
        """Write `text` as the range of the pool `document`. If `text` marks the pool as closed, remove the allocations
        too. Raises Conflict if the pool has changed since it was read, NotFound if it was deleted."""
        metadata = document["metadata"]
        members: dict[str, Any] = {"/spec/range": text}
        if text.startswith((MOVED, MOVING)):
            members["/spec/allocations"] = {}
        if NAMES in (metadata.get("annotations") or {}):
            members["/metadata/annotations"] = {**metadata["annotations"], NAMES: ""}  # the next ADD writes the names
        self._api.patch(POOLS, metadata["name"], replacement(metadata["uid"], metadata["resourceVersion"], members))

    def closed(self) -> set[str]:
        """The names of the closed pools."""
        return {document["metadata"]["name"] for document in self._api.list_all(POOLS) if objects.is_closed(document)}

    def refuse(self, leases: list[Lease]) -> bool:
        """Before a move to IPPools, make AddressLeases refuse claims in the closed pools and in the pools of `leases`.

        Return whether they already refused claims in all these pools. If not, a claim may have been made since `leases`
        were read, so the caller reads them again. In a move to AddressLeases, do nothing and return True.
        """
        if self.closes:
            return True
        known = {document["metadata"]["name"] for document in self._api.list_all(POOLS)}
        refused = True
        for name, lease in {lease.pool: lease for lease in leases if lease.pool not in known}.items():
            with suppress(Conflict, ValueError):  # an ADD has just made the pool, or no pool can have this name
                cidr = range_of(name, lease.family, lease.value)
                refused = False
                self._api.create(POOLS, objects.new_pool(name, f"{MOVING}{cidr}", {}))
        return not self._mark(MOVED, MOVING) and refused

    def finish(self, kind: str) -> None:
        """Record `kind` as the store of the cluster's nodes, if another kind is recorded. If an interrupted move to
        IPPools has left pools in which neither store accepts claims, let AddressLeases accept claims there again."""
        self._mark(MOVING, MOVED)
        self._cluster.move(kind)

    def _mark(self, former: str, sign: str) -> bool:
        """Replace the prefix `former` by `sign` in the ranges of all IPPools. The prefix MOVED or MOVING marks a closed
        pool, "" an open pool. Return False if no range had the prefix `former`."""
        found = [one for one in self._api.list_all(POOLS) if objects.range_text(one).startswith(former)]
        for document in found:
            with suppress(Conflict, NotFound):  # an ADD or another run has changed the pool; the next reading shows it
                self._replace(document, sign + objects.range_text(document).removeprefix(former))
        return bool(found)
