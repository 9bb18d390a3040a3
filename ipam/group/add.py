"""ADD for a rail whose group gives a pod one index on all rails (rail.addressing: same-index).

The addresses of all rails are leased together to the container. The first rail's ADD claims them in one step, all or none,
so an index that is taken on one rail is given on none; the ADDs of the other rails find their addresses leased. The last
rail's DEL releases them. This node's record of the group has the rails as members, under a lock of its own. The leases have
the network "@GROUP" and the ifname "rails of GROUP", which no network and no link can have.

A kill between two writes leaves a state that a later call can end, because of their order:

    ADD   writes the record with this rail among its members, claims, then writes that the claim is complete
    DEL   writes the record without this rail; for the last rail it releases, then removes the record

An ADD answers when the claim is complete. Until then the index may change; after that it may not, while another rail is a
member.
"""

from __future__ import annotations

import time

from cni.shared import rail as rails_key
from cni.shared.config import refuse
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.shared.spec.result import IPConfig, Result
from ipam import call, stores
from ipam.group import indexes, members
from ipam.leases import Want
from ipam.ranges import format_address
from ipam.records import PART, document
from ipam.records import leases as recorded_leases
from ipam.rules import is_current
from ipam.stores.base import CREATE, READ, Unreachable
from ipam.upkeep import flush_reminded, reclaim, release, restorer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.rail import Rail
    from cni.shared.records import Records
    from cni.shared.spec.request import Request
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group
    from ipam.leases import Lease, Owner


def add(request: Request, records: Records, log: Log) -> Result:
    """The addresses of the rail: those of the index that the container has in the group already, or of a new one."""
    config, rail, group = configured(request, log)
    store_ref = ref_of(config, group)
    shared = members.attachment_of(group.name, request.attachment.container_id)
    _ask(group, config)
    with records.locked(shared, PART):
        record = members.read(shared, records, log)
        others = members.others(record, request.attachment)
        members.check(rail, group, record, others)
        if record and not stores.same(record["store"], store_ref):
            if others:
                raise InvalidConfig(
                    f"rail group {group.name}: its other rails have their addresses in another store than this network names"
                    " (ipam.datastore): give all networks of the group the same"
                )
            release(shared, record, record["store"], records, log)
            record = None
        if record:
            store_ref = stores.joined(record["store"], store_ref)
        owner = call.owner_of(request, config)
        owner.attachment = shared
        member = [request.attachment.network, request.attachment.ifname, rail.index, time.time_ns()]
        values = None
        if record and record.get("complete") is True and not record["pending"]:
            values = _held(group, store_ref, owner, record, config, log)
        if values is None:
            values = _claim(group, config, store_ref, owner, record, [*others, member], records, log)
        elif not members.has(record, request.attachment):
            records.write(shared, PART, {**(record or {}), "members": [*others, member]})
    if stores.is_shared(store_ref):
        flush_reminded(records, log, store_ref)
    return _result(group, config, values)


def _result(group: Group, config: IpamConfig, values: Sequence[int]) -> Result:
    """The result for this rail; `values` are the addresses of all rails, in the order of `group.wanted`."""
    given = dict(zip(map(id, group.wanted), values, strict=True))
    addresses = [f"{format_address(n.rng.family, given[id(n)])}/{n.rng.prefix}" for n in group.own]
    for family, value, prefix in config.requested:
        if config.range_of(family, value) is None:
            addresses.append(f"{format_address(family, value)}/{prefix}")
    ips = [IPConfig(address, config.gateway_of(address)) for address in addresses]
    ips += [IPConfig(a.address, config.gateway_of(a.address, a.gateway)) for a in config.addresses]
    return Result(ips=ips, routes=config.routes, dns=config.dns)


def configured(request: Request, log: Log) -> tuple[IpamConfig, Rail, Group]:
    """The checked configuration, its key `rail`, which asks for the same index, and the group; InvalidConfig."""
    faults: list[Fault] = []
    rail = rails_key.read(request.config, faults)
    refuse(faults)
    assert rail is not None  # noqa: S101  # ipam.plugin has tested it
    config = call.configured(request, log)
    return config, rail, indexes.group_of(rail, config)


def ref_of(config: IpamConfig, group: Group) -> dict[str, Any]:
    """The description of the store, with the pools of all rails."""
    store_ref = stores.ref_of(config)
    if "pools" in store_ref:
        store_ref["pools"] = group.pools()
    return store_ref


def narrowed(store_ref: dict[str, Any], group: Group) -> dict[str, Any]:
    """`store_ref` with the pools of this rail alone."""
    return {**store_ref, "pools": sorted({need.pool for need in group.own})} if "pools" in store_ref else store_ref


def _ask(group: Group, config: IpamConfig) -> None:
    """Restrict the group to the index of the requested address, if there is one; InvalidConfig when it cannot be given."""
    asked = {group.index_of(family, value): (family, value) for family, value, _ in config.requested}
    asked.pop(None, None)
    if not asked:
        return
    texts = ", ".join(format_address(*address) for address in asked.values())
    if len(asked) > 1:
        raise InvalidConfig(
            f"the addresses asked for, {texts}, are of different indexes, and a pod has one for all rails of group"
            f" {group.name}: ask for one"
        )
    ((index, _),) = asked.items()
    if index is None or not group.indexes.usable(index):
        raise InvalidConfig(
            f"the address asked for, {texts}, is of index {index}, which not every rail of group {group.name} gives"
            " (rail.ranges): ask for another one"
        )
    group.ask(index)


# --- claims ---


def _held(
    group: Group, store_ref: dict[str, Any], owner: Owner, record: dict[str, Any], config: IpamConfig, log: Log
) -> list[int] | None:
    """The addresses of all rails from the record of a complete claim; None unless this rail's are still leased, and current.

    Only this rail's pools are read: a complete claim was made in one step, so the other rails' leases go with these.
    """
    found = recorded_leases(owner.attachment, record)
    values = _values(group, found)
    if values is None or any(
        n.requested is not None and n.requested != v for n, v in zip(group.wanted, values, strict=True)
    ):
        return None
    known = [lease for lease in found if lease.boot_id == owner.boot_id]
    store = stores.open_store(narrowed(store_ref, group), READ, lambda: known, config.store_timeout, log.warning)
    with store.session():
        leased = {(lease.pool, lease.value): lease for lease in store.find(owner.attachment)}
    given = dict(zip(map(id, group.wanted), values, strict=True))
    for need in group.own:
        lease = leased.get((need.pool, given[id(need)]))
        if lease is None or not is_current(lease, need, owner):
            return None
    return values


def _values(group: Group, found: Sequence[Lease]) -> list[int] | None:
    """The address for each need of the group among the leases `found`; None unless all have one index."""
    places = {(lease.pool, lease.family, lease.value) for lease in found}
    for lease in found[:1]:
        index = group.index_of(lease.family, lease.value)
        if index is not None and all((n.pool, n.rng.family, n.rng.at(index)) in places for n in group.wanted):
            return [need.rng.at(index) for need in group.wanted]
    return None


def _claim(
    group: Group,
    config: IpamConfig,
    store_ref: dict[str, Any],
    owner: Owner,
    record: dict[str, Any] | None,
    joined: list[members.Member],
    records: Records,
    log: Log,
) -> list[int]:
    """Lease the addresses of all rails to the container, and write that the claim is complete; returns the addresses."""
    from ipam.acquire import Terms, acquire

    shared = owner.attachment
    restore = restorer(store_ref, records, log, owner)
    store = stores.open_store(store_ref, CREATE, restore, config.store_timeout, log.warning)
    store.cooldown = config.cooldown_seconds
    former = record
    fixed = bool(record and record.get("complete") is True and len(joined) > 1)
    if record and fixed:
        found = recorded_leases(shared, record)
        if not found:  # the record was made again from the links, without addresses
            with store.session():
                found = store.find(shared)
        _keep(group, found)
    written: dict[str, Any] = record or {}

    def remember(wants: Sequence[Want], sequence: int) -> None:
        nonlocal written
        owner.sequence = sequence
        new = document(stores.recorded(store_ref), wants, owner, config.cooldown_seconds)
        new |= {"members": joined, "complete": fixed}
        if any(written.get(key) != value for key, value in new.items()):
            records.write(shared, PART, new)
            written = new

    def preferred() -> list[tuple[int, int]]:
        return call.preferred_of(config, owner, log)

    doubtful: list[Want] = []
    if record and record["pending"] and stores.is_shared(store_ref):
        doubtful = [le.want for le in recorded_leases(shared, record)]
    seconds = config.store_timeout if stores.is_shared(store_ref) else 0

    def reclaimed(pool: str) -> bool:
        return reclaim(store, pool, owner, records, log)

    try:
        terms = Terms(remember, reclaimed, doubtful, preferred, seconds, group)
        values = acquire(store, group.wanted, owner, terms)
    except Unreachable:
        raise  # nobody knows what was claimed; DEL or GC finds it by the record
    except CniError as fault:
        if former is None and written:
            call.forget(shared, store, records)
        if isinstance(fault, TryAgainLater) and len(joined) > 1:
            fault.details = f"{fault.details}\nrails attached already: {', '.join(m[1] for m in joined[:-1])}".lstrip()
        raise
    if not fixed:
        records.write(shared, PART, {**written, "complete": True})
    return values


def _keep(group: Group, found: Sequence[Lease]) -> None:
    """Restrict the group to the index of the leases `found`, which other rails have; InvalidConfig if another is asked for."""
    for lease in found[:1]:
        index = group.index_of(lease.family, lease.value)
        if index is not None:
            if group.wanted[0].requested not in (None, group.wanted[0].rng.at(index)):
                raise InvalidConfig(
                    f"the address asked for is not of index {index}, which this container has on the rails of group"
                    f" {group.name} that are attached already: ask for no address, or for the same index on all"
                )
            group.ask(index)
