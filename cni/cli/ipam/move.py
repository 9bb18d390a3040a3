"""A range is in one of a cluster's two stores: the steps by which its leases move from one to the other.

The IPPool of the range tells the store. To AddressLeases: the leases are copied, and one patch, which tests the
resourceVersion, takes the allocations out of the pool and puts a text in the place of its range that no CIDR is, so that Go
whereabouts, railcni and its older versions refuse an ADD from it. Back: such a text, which AddressLeases refuse too, is put
there; then the leases are read, and one patch gives the pool its range and its allocations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from cni.cluster.audit.cluster import Cluster
from cni.cluster.audit.model import Snapshot
from cni.cluster.audit.store import Choice
from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.leases import Lease
from ipam.ranges import parse_cidr, range_of
from ipam.stores.addresslease.claim import NAMES
from ipam.stores.apiserver.faults import Conflict, Gone
from ipam.stores.apiserver.resources import MOVED, MOVING, POOLS, RESERVATIONS, replacement
from ipam.stores.ippool import objects


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
        """Close each pool that has not changed since it was read with `leases`; return whether all were closed."""
        closed = True
        for name, version in self._versions.items():
            try:
                document = self._api.get(POOLS, name)[0]
                self._replace(document, version, f"{MOVED}{document['spec']['range']}", {})
            except (Conflict, Gone):
                closed = False
                continue
            own = [lease for lease in leases if lease.pool == name]
            self._moved += own
            for lease in own:
                found = self._cluster.reservation(lease)
                if found and found.is_of(lease):
                    with suppress(Conflict, Gone):  # it is another's by now
                        self._api.delete(RESERVATIONS, found.name, found.uid, found.version)
        return closed

    def _replace(self, document: dict[str, Any], version: str, cidr: str, entries: dict[str, Any]) -> None:
        """Write the range and the allocations of a pool, if its version is still `version`. Raises Conflict, Gone."""
        metadata = document["metadata"]
        members: dict[str, Any] = {"/spec": {"range": cidr, "allocations": entries}}
        if NAMES in (metadata.get("annotations") or {}):
            members["/metadata/annotations"] = {**metadata["annotations"], NAMES: ""}  # the next ADD lists them
        self._api.patch(POOLS, metadata["name"], replacement(metadata["uid"], version, members))

    def choose(self, kind: str) -> None:
        """Make `kind` the store of nodes that join, if an agent has noted another one."""
        self._cluster.move(kind)

    def closed(self) -> dict[str, str]:
        """The closed pools, each with its former range."""
        return {name: range_ for name, range_, _ in self._closed()}

    def _closed(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The name, the range and the object of each pool that gives no addresses."""
        for document in self._api.list_all(POOLS):
            text = str((document.get("spec") or {}).get("range") or "")
            for sign in (MOVED, MOVING):
                if text.startswith(sign):
                    yield str(document["metadata"]["name"]), text.removeprefix(sign), document

    def refuse(self, leases: list[Lease]) -> bool:
        """Make AddressLeases refuse claims in closed pools and in the pools of `leases`; return whether all did so already."""
        missing = {lease.pool: lease for lease in leases}
        refused = True
        for document in self._api.list_all(POOLS):
            missing.pop(document["metadata"]["name"], None)
        for name, lease in missing.items():
            try:
                cidr = range_of(name, lease.family, lease.value)
                refused = False
                self._api.create(POOLS, objects.new_pool(name, f"{MOVING}{cidr}", {}))
            except (Conflict, ValueError):
                pass  # an ADD has made it, and the next reading closes it; or no IPPool can have the name
        return not self._mark(MOVED, MOVING) and refused

    def settle(self) -> None:
        """Close for IPPools alone the pools that an interrupted way back has left closed for both stores."""
        self._mark(MOVING, MOVED)

    def _mark(self, former: str, sign: str) -> bool:
        """Put `sign` in the place of `former` in each closed pool that has it; return whether any had."""
        found = [
            (cidr, document) for _, cidr, document in self._closed() if document["spec"]["range"].startswith(former)
        ]
        for cidr, document in found:
            with suppress(Conflict, Gone):  # by an ADD, or another run; the next reading shows it
                self._replace(document, document["metadata"]["resourceVersion"], f"{sign}{cidr}", {})
        return bool(found)

    def open(self, leases: list[Lease]) -> list[Lease]:
        """Open each closed pool with its leases among `leases`; return these leases."""
        opened = []
        for name, cidr in self.closed().items():
            _, first, _ = parse_cidr(cidr)
            own = [lease for lease in leases if lease.pool == name]
            for lease in own:
                self._reserve(lease)
            entries = {str(lease.value - first): objects.entry_of(lease.owner) for lease in own}
            document, _ = self._api.get(POOLS, name)
            try:
                self._replace(document, document["metadata"]["resourceVersion"], cidr, entries)
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
                why = "is reserved for another already: `railcni ipam audit` tells"
                raise InvalidConfig(f"address {objects.reservation_name(lease)} {why}") from None
