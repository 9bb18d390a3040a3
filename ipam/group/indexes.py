"""The indexes that a group of rails can give to pods, and the addresses of each index. No I/O.

A rail is one NIC of every node, with a subnet. The index n of a pod stands for the address n of every range of every
rail, counted from the start of the CIDR: with 192.168.0.0/24 and 192.168.1.0/24, index 5 is 192.168.0.5 and 192.168.1.5.
An index can be given when every range may give its address. An index is taken when one of its addresses is leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cni.shared import rail as rails_key
from cni.shared.config import Fault, refuse
from cni.shared.rail import Rail
from ipam import stores
from ipam.keys import read_ranges
from ipam.leases import Want
from ipam.ranges import BITS, Range, format_address, parse_address
from ipam.rules import Exhausted, Need

if TYPE_CHECKING:
    from ipam.config import IpamConfig  # it imports this module

MOST_ADDRESSES = 48  # the most of a group: one transaction claims them all, and etcd allows 128 comparisons in it


class Group:
    """A group of rails, as one network of the group defines it.

    `needs` has the needs (ipam.rules.Need: an address to lease) of all rails, `own` those of the network's own rail.
    `index` is the number of this rail. `space` is a range from 0: the indexes, offsets in a rail's range, that
    every rail can give.
    """

    def __init__(self, name: str, rails: Sequence[Sequence[Need]], index: int) -> None:
        self.name = name
        self.index = index
        self.own = list(rails[index])
        self._before = sum(map(len, rails[:index]))
        self.needs = [need for needs in rails for need in needs]
        self.space = _common([need.rng for need in self.needs])

    def pools(self) -> list[str]:
        """The pools that hold the addresses of all rails."""
        return sorted({need.pool for need in self.needs})

    def ref_of(self, config: IpamConfig) -> dict[str, Any]:
        """The reference to the store of `config`, with the pools of all rails."""
        store_ref = stores.ref_of(config)
        return {**store_ref, "pools": self.pools()} if "pools" in store_ref else store_ref

    def of_own(self, values: list[int]) -> list[int]:
        """The addresses of the network's own rail among `values`, which has an address for each of `needs`."""
        return values[self._before : self._before + len(self.own)]

    def ask(self, index: int) -> None:
        """Request the addresses of this index, one for each need, so that the claim takes the index."""
        for need in self.needs:
            need.requested = need.rng.at(index)

    def index_of(self, family: int, value: int) -> int | None:
        """The index of an address of any rail; None for an address of no rail."""
        for need in self.needs:
            if need.rng.family == family and need.rng.contains(value):
                return need.rng.offset_of(value)
        return None

    # --- as a choice (ipam.rules.Choice) ---

    @property
    def requested(self) -> int | None:
        """The index that `ask` has set; None before a call of `ask`."""
        asked = self.needs[0].requested
        return None if asked is None else self.needs[0].rng.offset_of(asked)

    def values(self, index: int) -> list[int]:
        """The addresses that `index` stands for, one for each of `needs`."""
        return [need.rng.at(index) for need in self.needs]

    def kept_index(self, place: Want) -> int | None:
        """The index of the leased address `place`, whatever its pool; None unless all rails can give the index."""
        index = self.index_of(place.family, place.value)
        return index if index is not None and self.space.usable(index) else None

    def exhausted(self, free: int, waiting: str) -> Exhausted:
        """The error when no index is free. `waiting` is a text about indexes with addresses in use without a lease."""
        return Exhausted(
            f"rail group {self.name} is exhausted: each of its {self.space.size()} indexes is in use on one of its rails or"
            f" more{waiting}. Delete attachments or enlarge the ranges; `railcni ipam leases` shows who holds them",
            f"pools {', '.join(self.pools())}",
        )


def rail_of(network: dict[str, Any]) -> Rail:
    """The checked key `rail` of the configuration `network`, which must have the key. Raises InvalidConfig."""
    faults: list[Fault] = []
    found = rails_key.read(network, faults)
    refuse(faults)
    assert found is not None  # noqa: S101  # the key is there
    return found


def group_of(rail: Rail, config: IpamConfig) -> Group:
    """The rail group of a network (addressing same-index). Raises InvalidConfig with all faults of rail.ranges."""
    faults: list[Fault] = []
    rails = needs_of(rail, config, faults)
    refuse(faults)
    return Group(rail.group, rails, rail.index)


def needs_of(rail: Rail, config: IpamConfig, faults: list[Fault]) -> list[list[Need]]:
    """The needs of each rail of a group: item i is a list with a need for each range in rail.ranges[i].

    Faults of rail.ranges and of the group are appended to `faults`. The next hops of `config`'s routes are excluded
    from the ranges of the network's own rail. Those of other rails are not known here, so users exclude them in
    rail.ranges.
    """
    next_hops = [parse_address(route.gw) for route in config.routes if route.gw]
    scope = config.network_name if config.overlap else None
    rails = []
    for i, documents in enumerate(rail.ranges):
        read = read_ranges(documents, f"rail.ranges[{i}]", next_hops if i == rail.index else (), [], faults)
        rails.append([Need(rng, rng.pool_name(config.network_name), scope) for rng in read])
    if not faults:
        _check(rail, config, rails, faults)
    return rails


def _check(rail: Rail, config: IpamConfig, rails: Sequence[Sequence[Need]], faults: list[Fault]) -> None:
    """Check the ranges of the rails against one another and against `config`; add the faults to `faults`."""
    if config.node_slice_size:
        wanted = "gives nodes parts of a range each, and rails with the same index need whole ones: leave it out"
        faults.append(Fault("ipam.node_slice_size", f"/{config.node_slice_size}", wanted))
    count = sum(map(len, rails))
    if count > MOST_ADDRESSES:
        faults.append(Fault("rail.ranges", count, f"gives a pod too many addresses: want {MOST_ADDRESSES} at most"))
    given = [rng.cidr for rng in config.ranges]
    own = [need.rng.cidr for need in rails[rail.index]]
    if given != own:
        wanted = f"is not what rail.ranges[{rail.index}] says ({', '.join(own)}): want the same, in the same order"
        faults.append(Fault("ipam.range and ipRanges", given, wanted))
    owners: dict[tuple[str, str], int] = {}
    for i, needs in enumerate(rails):
        for need in needs:
            other = owners.setdefault((need.pool, need.rng.cidr), i)
            if other != i:
                wanted = f"is the range of rail {other} too: want one of its own for each rail"
                faults.append(Fault(f"rail.ranges[{i}]", need.rng.cidr, wanted))
    if faults:
        return
    indexes = _common([need.rng for needs in rails for need in needs])
    if not indexes.size():
        faults.append(Fault("rail.ranges", None, "have no common index that all of them can give: want wider ranges"))
    for rng in config.ranges:
        for low, high in _blocked(rng):
            common = next((max(low, a) for a, b in indexes.spans() if max(low, a) <= min(high, b)), None)
            if common is not None:
                wanted = (
                    f"is not given by this network (range_start, range_end, exclude, gateway or addresses of ipam), but would"
                    f" be by its group: exclude it in rail.ranges[{rail.index}] in every network of the group"
                )
                faults.append(Fault("rail.ranges", format_address(rng.family, rng.at(common)), wanted))


def _common(ranges: Sequence[Range]) -> Range:
    """The indexes that all `ranges` can give, as a range that begins at 0."""
    bits = min(BITS[rng.family] - rng.prefix for rng in ranges)
    family = 4 if bits <= BITS[4] else 6
    blocked = [span for rng in ranges for span in _blocked(rng)]
    return Range(family, 0, BITS[family] - bits, blocked=blocked)


def _blocked(rng: Range) -> list[tuple[int, int]]:
    """The spans of indexes (offsets from the start of the CIDR) that `rng` does not give."""
    size = rng.top - rng.network
    spans = [(low - rng.network, high - rng.network) for low, high in rng.blocked]
    first, last = rng.first - rng.network, rng.last - rng.network
    return [*([(0, first - 1)] if first else []), *spans, *([(last + 1, size)] if last < size else [])]
