"""The steps that move the leases of a range between the two stores of a cluster, IPPools and AddressLeases.

The range in an IPPool tells which store has it. To AddressLeases: the leases are copied. Then one patch, which tests
the resourceVersion, removes the allocations from the pool and replaces its range with a text that is no CIDR. Go's
whereabouts and every version of railcni refuse an ADD from this pool. Back: another such text makes claims of
AddressLeases fail too. Then the leases are read, and one patch gives the pool its range and its allocations.
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
    """The IPPools of a cluster. A closed pool has a text that is no CIDR as its range, and so gives no addresses."""

    def __init__(self, choice: Choice) -> None:
        self._cluster = Cluster(choice.kubeconfig)
        self._api = self._cluster.api
        self._versions: dict[str, str] = {}
        self._moved: list[Lease] = []

    def moved_from(self, found: Snapshot) -> list[Lease]:
        """Keep the versions of the pools `found` for `close`; return the leases of pools that it has already closed.
        Raises InvalidConfig if a network has node_slice_size."""
        if sliced := [n.name for n in found.networks if n.sliced]:
            raise InvalidConfig(
                f"the addresses of {sliced[0]} cannot be moved: it has node_slice_size, which datastore addresslease does not"
                " take. Leave it out of that network first"
            )
        self._versions = {state.name: state.version for state in found.pools}
        return self._moved

    def close(self, leases: list[Lease]) -> bool:
        """Close each pool that has not changed since `moved_from`, and delete the reservations of `leases` in it.
        Return False if a pool has changed."""
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
                    with suppress(Conflict, Gone):  # another attachment has it by now
                        self._api.delete(RESERVATIONS, found.name, found.uid, found.version)
        return closed

    def _replace(self, document: dict[str, Any], version: str, cidr: str, entries: dict[str, Any]) -> None:
        """Write the range and the allocations of a pool. Raises Conflict if the pool's version is no longer `version`,
        Gone if the pool was deleted."""
        metadata = document["metadata"]
        members: dict[str, Any] = {"/spec": {"range": cidr, "allocations": entries}}
        if NAMES in (metadata.get("annotations") or {}):
            members["/metadata/annotations"] = {**metadata["annotations"], NAMES: ""}  # the next ADD lists them
        self._api.patch(POOLS, metadata["name"], replacement(metadata["uid"], version, members))

    def choose(self, kind: str) -> None:
        """Write `kind` as the store of nodes that join the cluster, if an agent has written another one."""
        self._cluster.move(kind)

    def closed(self) -> dict[str, str]:
        """The former range of each closed pool, by the pool's name."""
        return {name: range_ for name, range_, _ in self._closed()}

    def _closed(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield (name, former range, object) of each closed pool, which gives no addresses."""
        for document in self._api.list_all(POOLS):
            text = str((document.get("spec") or {}).get("range") or "")
            for sign in (MOVED, MOVING):
                if text.startswith(sign):
                    yield str(document["metadata"]["name"]), text.removeprefix(sign), document

    def refuse(self, leases: list[Lease]) -> bool:
        """Make AddressLeases refuse claims in closed pools and in the pools of `leases`. Return False if some of these
        pools did not refuse claims before."""
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
                pass  # an ADD has made the pool, and the next reading closes it; or no IPPool can have the name
        return not self._mark(MOVED, MOVING) and refused

    def settle(self) -> None:
        """Let AddressLeases accept claims in pools that an interrupted move to IPPools has closed for both stores."""
        self._mark(MOVING, MOVED)

    def _mark(self, former: str, sign: str) -> bool:
        """Replace the prefix `former` of closed pools' ranges by `sign`. Return False if no pool had this prefix."""
        found = [
            (cidr, document) for _, cidr, document in self._closed() if document["spec"]["range"].startswith(former)
        ]
        for cidr, document in found:
            with suppress(Conflict, Gone):  # by an ADD, or another run; the next reading shows it
                self._replace(document, document["metadata"]["resourceVersion"], f"{sign}{cidr}", {})
        return bool(found)

    def open(self, leases: list[Lease]) -> list[Lease]:
        """Give each closed pool its former range, and allocations for those of `leases` in it; return these leases."""
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
