"""CHECK of the IPAM plugin: compare the store, prevResult and the configuration of the call.

Keys that are absent in the configuration are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cni.shared.records import Records
from cni.shared.spec import parsing
from cni.shared.spec.errors import AttachmentDiffers, InvalidConfig
from cni.shared.spec.request import Request, at_least
from cni.shared.spec.result import Result
from ipam import rules, stores
from ipam.config import IpamConfig, configured_rail
from ipam.leases import PART, Lease
from ipam.local import read_record, recorder
from ipam.ranges import Range, format_address, host_of, parse_address, parse_cidr
from ipam.rules import Need
from ipam.stores.base import READ, SHARED_SECONDS

_OF_ROUTES = ("gw", "table", "priority", "mtu", "advmss", "scope")


def check(request: Request, records: Records) -> None:
    """Compare prevResult with the store and with the configuration. Raises AttachmentDiffers with all differences."""
    config, group = configured_rail(request, records.log)
    previous = request.member("prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    expected = parsing.parse(previous)
    given = {host_of(a.address): a.address for a in expected.ips}
    if group:
        from ipam.group import rails  # most networks are not rails

        found = rails.differences(group, config, given, records)
    else:
        found = unlike(config, expected, request.cni_version)
        with records.locked(request.attachment, PART):
            found += _lease_differences(config, given, records)
    if found:
        raise AttachmentDiffers(
            f"the addresses of {request.attachment.ifname} of container {request.attachment.container_id} are not as ADD left"
            f" them (detach and attach it again): {'; '.join(found)}"
        )


def _lease_differences(config: IpamConfig, given: dict[tuple[int, int], str], records: Records) -> list[str]:
    """A text for each difference between the attachment's leases and prevResult (`given`) or the configuration. Static
    addresses are not compared, since another attachment may have their lease."""
    attachment, static = config.request.attachment, {host_of(a.address) for a in config.addresses}
    given = {key: text for key, text in given.items() if key not in static}
    ranges = list(config.ranges)  # the whole ranges: `locate` replaces them by the node's slices
    record = read_record(attachment, records)
    if config.borrowed and not record:
        raise InvalidConfig(config.borrowed)
    store_ref = stores.reached(record["store"], config) if record else stores.ref_of(config)
    config.kubeconfig = store_ref.get("kubeconfig", config.kubeconfig)
    stores.locate(config, attachment.network, False)
    wanted = rules.needs(config)
    if not wanted and not record:
        return []
    known = recorder(attachment.network, records, attachment.container_id)
    store = stores.open_store(store_ref, READ, known, min(SHARED_SECONDS, config.store_timeout))
    found = []
    with store.session():
        held = {lease.address: lease for lease in store.find(attachment) if lease.address not in static}
        for (family, value), text in given.items():
            need = next((n for n in wanted if n.rng.family == family and n.rng.contains(value)), None)
            if need and (family, value) not in held:
                holder = store.holder(need.want(value))
                found.append(f"{text} is leased to {holder.holder()}" if holder else f"{text} is not leased")
    found += [f"{format_address(*key)} is not in prevResult" for key in held if key not in given]
    if wanted:
        requested = [(family, value) for family, value, _ in config.requested]
        found += outside({key: given[key] for key in held if key in given}, ranges, requested)
        found += elsewhere([held[key] for key in held if key in given], wanted)
    if record and not stores.same(record["store"], stores.ref_of(config)):
        names = (name_of(store) for store in (record["store"], stores.ref_of(config)))
        found.append("datastore is {}, configured is {}".format(*names))
    if wanted and not held and not found:
        found.append(f"it holds no lease of pool {wanted[0].pool}")
    return found


def unlike(config: IpamConfig, expected: Result, version: str) -> list[str]:
    """A text for each address, gateway or route of `config` that `expected`, a prevResult of `version`, lacks."""
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
    """A text for each address in `held` that its range excludes, or that has another prefix length than its range.

    `held` maps (family, value) to "address/length". Addresses outside of all CIDRs, and `requested` ones, are ignored.
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
    """A text for each lease in another pool than that of its range. A change of network_name causes this."""
    found = []
    for lease in held:
        pools = [n.pool for n in wanted if n.rng.family == lease.family and n.rng.contains(lease.value)]
        if pools and lease.pool not in pools:
            found.append(f"{lease.text} is leased in pool {lease.pool}, configured is {pools[0]}")
    return found


def name_of(store: Mapping[str, Any]) -> str:
    """The kind of a store and its endpoints, path, prefix or kubeconfig, for messages."""
    place = [*store.get("endpoints", ()), store.get("path") or store.get("prefix") or store.get("kubeconfig") or ""]
    return " ".join([str(store.get("kind")), *place]).rstrip()


def _same(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str) and one and other:
        return parse_address(one) == parse_address(other)
    return one == other
