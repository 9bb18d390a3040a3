"""A range is in one of a cluster's two stores: what closes an IPPool whose leases have moved to AddressLeases, and opens it.

One patch, which tests the resourceVersion, takes the allocations out of the pool and puts a text in the place of its range
that no CIDR is: Go whereabouts and older versions of railcni refuse an ADD from it. The way back is one patch too.
"""

from __future__ import annotations

from typing import Any

from cni.library.audit.cluster import Cluster
from cni.library.audit.model import Snapshot
from cni.library.audit.store import Choice
from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.leases import Lease
from ipam.ranges import parse_cidr
from ipam.stores.apiserver.faults import Conflict, Gone
from ipam.stores.apiserver.resources import POOLS, RESERVATIONS
from ipam.stores.kubernetes import objects


class Pools:
    """The IPPools of the chosen cluster."""

    def __init__(self, choice: Choice) -> None:
        self._cluster = Cluster(choice.kubeconfig)
        self._api = self._cluster.api
        self._versions: dict[str, str] = {}
        self._moved: list[Lease] = []

    def moved_from(self, found: Snapshot) -> list[Lease]:
        """The leases that `close` has already taken out of their pools. Those in the pools `found` are not among them."""
        if sliced := [n.name for n in found.networks if n.sliced]:
            raise InvalidConfig(
                f"the addresses of {sliced[0]} cannot be moved: it has node_slice_size, which datastore addresslease does not"
                " take. Leave it out of that network first"
            )
        self._versions = {state.name: state.version for state in found.pools}
        return self._moved

    def close(self, leases: list[Lease]) -> bool:
        """Close each pool that is still as it was read, when its `leases` are; whether all were."""
        closed = True
        for name, version in self._versions.items():
            try:
                cidr = (self._api.get(POOLS, name)[0].get("spec") or {}).get("range")
                self._replace(name, version, f"{objects.MOVED}{cidr}", {})
            except (Conflict, Gone):
                closed = False
                continue
            own = [lease for lease in leases if lease.pool == name]
            self._moved += own
            for lease in own:
                self._unreserve(lease)
        return closed

    def _unreserve(self, lease: Lease) -> None:
        found = self._cluster.reservation(lease)
        if found and found.is_of(lease):
            try:
                self._api.delete(RESERVATIONS, found.name, found.uid, found.version)
            except (Conflict, Gone):
                pass  # it is another's

    def _replace(self, name: str, version: str, cidr: str, entries: dict[str, Any]) -> None:
        """Let a pool have this range and these allocations, if it still is as in `version`; Conflict, Gone."""
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        spec = {"op": "add", "path": "/spec", "value": {"range": cidr, "allocations": entries}}
        self._api.patch(POOLS, name, [test, spec])

    def closed(self) -> dict[str, str]:
        """The pools that are closed, with the range that each had."""
        found = {}
        for document in self._api.list_all(POOLS):
            text = str((document.get("spec") or {}).get("range") or "")
            if text.startswith(objects.MOVED):
                found[str(document["metadata"]["name"])] = text.removeprefix(objects.MOVED)
        return found

    def open(self, leases: list[Lease]) -> list[Lease]:
        """Open each pool that is closed, with those of `leases` that are its; which these are."""
        opened = []
        for name, cidr in self.closed().items():
            _, first, _ = parse_cidr(cidr)
            own = [lease for lease in leases if lease.pool == name]
            for lease in own:
                self._reserve(lease)
            entries = {str(lease.value - first): objects.entry_of(lease.owner) for lease in own}
            document, _ = self._api.get(POOLS, name)
            version = document["metadata"]["resourceVersion"]
            try:
                self._replace(name, version, cidr, entries)
            except (Conflict, Gone):
                raise TryAgainLater(f"pool {name} was changed by another meanwhile: run this again") from None
            opened += own
        return opened

    def _reserve(self, lease: Lease) -> None:
        if lease.scope is None:
            return
        try:
            self._api.create(RESERVATIONS, objects.reservation(lease))
        except Conflict:
            found = self._cluster.reservation(lease)
            if not (found and found.is_of(lease)):
                name = objects.reservation_name(lease)
                raise InvalidConfig(
                    f"address {name} is reserved for another already: `railcni ipam audit` tells"
                ) from None
