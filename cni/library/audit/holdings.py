"""All that a chosen store holds, whatever its kind: read in pages, and nothing is changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cni.library.audit import occupancy
from cni.library.audit.cluster import Cluster, PoolReading, read_all
from cni.library.audit.model import Network, Snapshot
from cni.library.audit.occupancy import Occupancy
from cni.library.audit.store import Choice
from ipam.leases import Lease
from ipam.ranges import Range, range_of
from ipam.stores.apiserver.faults import Forbidden
from ipam.stores.base import READ, Store

_PAGE = 1000

Progress = Callable[[str], object]


@dataclass(frozen=True)
class PoolUse:
    """A pool and how full it is; `occupancy` is None where its name tells no range. `size` is its object's, in bytes."""

    name: str
    family: int
    used: int
    occupancy: Occupancy | None
    size: int | None = None


def pools(snapshot: Snapshot) -> list[PoolUse]:
    """How full each pool is, by name."""
    values: dict[tuple[str, int], list[int]] = defaultdict(list)
    for lease in snapshot.leases:
        values[lease.pool, lease.family].append(lease.value)
    objects = {state.name: state for state in snapshot.pools}
    for state in snapshot.pools:
        if state.cidr:
            values.setdefault((state.name, state.family), [])
    found = []
    for (name, family), leased in sorted(values.items()):
        pool = objects.get(name)
        first = leased[0] if leased or not pool else pool.first
        full = _occupancy(snapshot, name, family, first, sorted(leased))
        found.append(PoolUse(name, family, len(leased), full, pool.size if pool else None))
    return found


def _occupancy(snapshot: Snapshot, name: str, family: int, first: int, leased: list[int]) -> Occupancy | None:
    try:
        cidr = range_of(name, family, first)
    except ValueError:
        return None
    ranges: list[Range] = [r for n in snapshot.networks for r in n.ranges if r.pool_name(n.network_name) == name]
    return occupancy.of(leased, occupancy.spans_of(cidr, ranges))


def read(choice: Choice, progress: Progress = str, pool: str = "") -> Snapshot:
    """The content of the chosen store, or of one pool of it; `progress` is called as the reading goes on."""
    if choice.kind != "kubernetes":
        return of_store(choice, progress, pool)
    cluster = Cluster(choice.kubeconfig, choice.namespace)
    progress("reading networks")
    try:
        networks, _ = cluster.networks()
    except Forbidden:
        networks = []  # then pools are as large as their names say
    return of_pools(cluster, networks, progress, pool)


def of_store(choice: Choice, progress: Progress, pool: str = "") -> Snapshot:
    """What a store holds that keeps each lease whole."""
    store = choice.open(READ)
    with store.session():  # the pages of one reading belong together
        found = []
        for lease in leases(store, pool):
            found.append(lease)
            if len(found) % _PAGE == 0:
                progress(f"{len(found)} leases read")
        return Snapshot(choice.kind, found, counts={"leases": len(found)})


def leases(store: Store, pool: str = "") -> Iterator[Lease]:
    """All leases, or those of one pool, by pool and address."""
    for found in store.pools():
        if pool in ("", found.name):
            last = None
            while page := store.leases(found.name, last, _PAGE):
                yield from page
                last = page[-1]


def of_pools(cluster: Cluster, networks: list[Network], progress: Progress, pool: str = "") -> Snapshot:
    """What the IPPools of a cluster hold."""
    progress("reading pools and reservations")
    reading = PoolReading(cluster, networks)
    states = sorted((s for s in read_all(reading.read) if pool in ("", s.name)), key=lambda state: state.name)
    found = [lease for state in states for lease in state.leases]
    reserved = reading.reserved()
    counts = {"pools": len(states), "leases": len(found), "reservations": len(reserved)}
    return Snapshot("kubernetes", found, states, reserved, networks=networks, unread=reading.faults, counts=counts)
