"""CHECK's comparison of addresses and routes with the configuration of the call: pure.

A key that the configuration does not have is not compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.spec.request import at_least
from ipam.ranges import format_address, host_of, parse_address, parse_cidr

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from cni.shared.spec.result import Result
    from ipam.config import IpamConfig
    from ipam.leases import Lease
    from ipam.ranges import Range
    from ipam.rules import Need


_OF_ROUTES = ("gw", "table", "priority", "mtu", "advmss", "scope")


def unlike(config: IpamConfig, expected: Result, version: str) -> list[str]:
    """The parts of `config` that `expected`, the attachment's prevResult in this cniVersion, lacks."""
    given = {host_of(a.address): a for a in expected.ips}
    found = []
    for static in config.addresses:
        has = given.get(host_of(static.address))
        if has is None:
            found.append(f"{static.address} is not in prevResult")
        elif parse_cidr(has.address) != parse_cidr(static.address):
            found.append(f"address is {has.address}, configured is {static.address}")
    for family, value, _ in config.requested:
        if (family, value) not in given:
            found.append(f"the requested address {format_address(family, value)} is not in prevResult")
    for rng in config.ranges:
        if not any(family == rng.family and rng.contains(value) for family, value in given):
            found.append(f"there is no address of the configured range {rng}")
    own = {host_of(a.address): a.gateway for a in config.addresses}
    for key, has in given.items():
        if key in own or config.range_of(*key):
            wanted = config.gateway_of(has.address, own.get(key, ""))
            if wanted and (not has.gateway or parse_address(has.gateway) != parse_address(wanted)):
                found.append(f"gateway of {has.address} is {has.gateway or 'none'}, configured is {wanted}")
    told = _OF_ROUTES if at_least(version, "1.1.0") else _OF_ROUTES[:1]
    for route in config.routes:
        keys = [key for key in told if getattr(route, key) not in (None, "")]
        if not any(
            parse_cidr(r.dst) == parse_cidr(route.dst)
            and all(_same(getattr(r, key), getattr(route, key)) for key in keys)
            for r in expected.routes
        ):
            words = " ".join(f"{key} {getattr(route, key)}" for key in keys)
            found.append(f"the configured route {route.dst} {words}".rstrip() + " is not in prevResult")
    return found


def outside(
    held: Mapping[tuple[int, int], str], ranges: Sequence[Range], requested: Collection[tuple[int, int]]
) -> list[str]:
    """The leased addresses (family, value), with their texts, that the configured `ranges` would not give as they are.

    An address in none of them is of a range that the configuration no longer has, and is not compared.
    """
    found = []
    for key, text in held.items():
        family, value = key
        of = [rng for rng in ranges if rng.family == family and rng.contains(value)]
        if not of or key in requested:
            continue
        if not any(rng.usable(value) for rng in of):
            found.append(f"address is {text}, which the configured range {of[0]} excludes")
        elif not any(parse_cidr(text)[2] == rng.prefix for rng in of):
            found.append(f"address is {text}, configured is the prefix length {of[0].prefix}")
    return found


def elsewhere(held: Sequence[Lease], wanted: Sequence[Need]) -> list[str]:
    """The leases in another pool than that of the configured range which contains them (network_name)."""
    found = []
    for lease in held:
        pools = [n.pool for n in wanted if n.rng.family == lease.family and n.rng.contains(lease.value)]
        if pools and lease.pool not in pools:
            found.append(f"{lease.text} is leased in pool {lease.pool}, configured is {pools[0]}")
    return found


def name_of(store: Mapping[str, Any]) -> str:
    """The store of a description, in words."""
    place = [*store.get("endpoints", ()), store.get("path") or store.get("prefix") or store.get("kubeconfig") or ""]
    return " ".join([str(store.get("kind")), *place]).rstrip()


def _same(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str) and one and other:
        return parse_address(one) == parse_address(other)
    return one == other
