"""All that a chosen store holds, whatever its kind: read in pages, and nothing is changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cni.cli import occupancy
from cni.cli.inventory import Held, Network, PoolState, of_lease
from cni.cli.occupancy import Occupancy
from cni.cli.store import Choice
from ipam.ranges import Range
from ipam.stores.base import READ, Lease, Store
from ipam.stores.kubernetes_objects import range_of

_PAGE = 1000


@dataclass(frozen=True)
class PoolUse:
    """A pool and how full it is; `occupancy` is None where its name tells no range. `size` is its object's, in bytes."""

    name: str
    family: int
    used: int
    occupancy: Occupancy | None
    size: int | None = None


@dataclass(frozen=True)
class Holdings:
    """The leases of a store, by pool and address; and its pools as objects, where they are that."""

    held: list[Held]
    states: list[PoolState]
    networks: list[Network]
    faults: list[str]

    def pools(self) -> list[PoolUse]:
        """How full each pool is, by name."""
        values: dict[tuple[str, int], list[int]] = defaultdict(list)
        for held in self.held:
            values[held.pool, held.address[0]].append(held.address[1])
        sizes: dict[str, int] = {}
        for state in self.states:
            sizes[state.name] = state.pool.size
            if state.held or state.cidr:
                values.setdefault((state.name, state.pool.family), [])
        firsts = {state.name: state.pool.first for state in self.states}
        found = []
        for (name, family), leased in sorted(values.items()):
            first = leased[0] if leased else firsts.get(name, 0)
            full = self._occupancy(name, family, first, sorted(leased))
            found.append(PoolUse(name, family, len(leased), full, sizes.get(name)))
        return found

    def _occupancy(self, name: str, family: int, first: int, leased: list[int]) -> Occupancy | None:
        try:
            cidr = range_of(name, family, first)
        except ValueError:
            return None
        ranges: list[Range] = [r for n in self.networks for r in n.ranges if r.pool_name(n.network_name) == name]
        return occupancy.of(leased, occupancy.spans_of(cidr, ranges))


def read(choice: Choice, met: Callable[[str], object] = str, pool: str = "") -> Holdings:
    """What the chosen store holds, or one pool of it; `met` is told how far the reading is."""
    if choice.kind == "kubernetes":
        return _of_cluster(choice, met, pool)
    store = choice.open(READ)
    with store.turn():  # the pages of one reading belong together
        held = []
        for lease in leases(store, pool):
            held.append(of_lease(lease))
            if len(held) % _PAGE == 0:
                met(f"{len(held)} leases read")
        return Holdings(held, [], [], [])


def leases(store: Store, pool: str = "") -> Iterator[Lease]:
    """All leases, or those of one pool, by pool and address."""
    for found in store.pools():
        if pool in ("", found.name):
            last = None
            while page := store.leases(found.name, last, _PAGE):
                yield from page
                last = page[-1]


def _of_cluster(choice: Choice, met: Callable[[str], object], pool: str) -> Holdings:
    from cni.cli.cluster import Cluster, Forbidden  # a quarter of a second, which other stores need not pay

    cluster = Cluster(choice.kubeconfig, choice.namespace)
    try:
        met("reading networks")
        try:
            networks, _ = cluster.networks()
        except Forbidden:
            networks = []  # then pools are as large as their names say
        met("reading pools and reservations")
        states, _, faults = cluster.pools(networks)
    finally:
        cluster.close()
    states = sorted((s for s in states if pool in ("", s.name)), key=lambda s: s.name)
    return Holdings([held for state in states for held in state.held], states, networks, faults)
