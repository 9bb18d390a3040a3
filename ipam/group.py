"""The verbs of the IPAM plugin for a rail whose group has one index a pod (rail.addressing: same-index).

The addresses of all rails are one lease of the container: the first rail's ADD claims them in one step, all or none, so
that an index which is taken on any rail is not given on any; the ADDs of the others find theirs, and it is released when
the last rail's DEL has come. Which rails have it, this node's record of the group tells, under a lock of its own. The lease's
network is "@" and the group's name, and its ifname "rails of" it: no network and no link can be called so.

The order of the writes decides what a kill leaves:

    ADD   the record with this rail among its members, then the claim, then that the claim is complete
    DEL   the record without this rail; for the last one the release, and then the record goes

An ADD answers when the claim is complete. So the index may be changed until then, and never after that while another rail
is a member.
"""

from __future__ import annotations

import time

from cni import rail as rails_key
from cni.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.spec.result import IPConfig, Result
from ipam import members, plugin, stores
from ipam.leases import is_current
from ipam.ranges import format_address
from ipam.records import PART, document
from ipam.records import leases as recorded_leases
from ipam.stores.base import CREATE, READ, Unreachable, Want
from ipam.upkeep import flush_reminded, reclaim, release, restorer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.attachment import Book
    from cni.config import Fault
    from cni.log import Log
    from cni.rail import Rail
    from cni.spec.request import Request
    from ipam.config import IpamConfig
    from ipam.rails import Group
    from ipam.stores.base import Lease, Owner


def call(request: Request, book: Book, log: Log) -> Result | None:
    """Serve every verb but GC, which is one for all attachments of a network."""
    if request.command == "ADD":
        return add(request, book, log)
    from ipam import group_upkeep as verbs

    {"DEL": verbs.delete, "CHECK": verbs.check, "STATUS": verbs.status}[request.command](request, book, log)
    return None


def add(request: Request, book: Book, log: Log) -> Result:
    """The addresses of the rail: those of the index that the container has in the group already, or of a new one."""
    config, rail, group = configured(request, log)
    described = described_of(config, group)
    who = members.attachment_of(group.name, request.attachment.container_id)
    _ask(group, config)
    with book.locked(who, PART):
        record = members.read(who, book, log)
        others = members.others(record, request.attachment)
        members.check(rail, group, record, others)
        if record and not stores.same(record["store"], described):
            if others:
                raise InvalidConfig(
                    f"rail group {group.name}: its other rails have their addresses in another store than this network names"
                    " (ipam.datastore): give all networks of the group the same"
                )
            release(who, record, record["store"], book, log)
            record = None
        if record:
            described = stores.joined(record["store"], described)
        owner = plugin.owner_of(request, config)
        owner.attachment = who
        me = [request.attachment.network, request.attachment.ifname, rail.index, time.time_ns()]
        values = None
        if record and record.get("complete") is True and not record["pending"]:
            values = _held(group, described, owner, record, config, log)
        if values is None:
            values = _claim(group, config, described, owner, record, [*others, me], book, log)
        elif not members.has(record, request.attachment):
            book.write(who, PART, {**(record or {}), "members": [*others, me]})
    if stores.is_shared(described):
        flush_reminded(book, log, described)
    return _result(group, config, values)


def _result(group: Group, config: IpamConfig, values: Sequence[int]) -> Result:
    """`values` are the addresses of all rails."""
    given = dict(zip(map(id, group.wanted), values, strict=True))
    addresses = [f"{format_address(n.rng.family, given[id(n)])}/{n.rng.prefix}" for n in group.own]
    for family, value, prefix in config.requested:
        if config.range_of(family, value) is None:
            addresses.append(f"{format_address(family, value)}/{prefix}")
    ips = [IPConfig(address, config.gateway_of(address)) for address in addresses]
    ips += [IPConfig(a.address, config.gateway_of(a.address, a.gateway)) for a in config.addresses]
    return Result(ips=ips, routes=config.routes, dns=config.dns)


def configured(request: Request, log: Log) -> tuple[IpamConfig, Rail, Group]:
    from cni.config import refuse
    from ipam import rails

    faults: list[Fault] = []
    rail = rails_key.read(request.config, faults)
    refuse(faults)
    assert rail is not None  # noqa: S101  # who calls has looked
    config = plugin.configured(request, log)
    return config, rail, rails.group_of(rail, config)


def described_of(config: IpamConfig, group: Group) -> dict[str, Any]:
    """What finds the store, with the pools of all rails."""
    described = stores.describe(config)
    if "pools" in described:
        described["pools"] = group.pools()
    return described


def narrowed(described: dict[str, Any], group: Group) -> dict[str, Any]:
    """`described` with the pools of this rail alone."""
    return {**described, "pools": sorted({need.pool for need in group.own})} if "pools" in described else described


def _ask(group: Group, config: IpamConfig) -> None:
    """Let the group give the index that is asked for with an address of this rail; InvalidConfig for one that it cannot."""
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
    group: Group, described: dict[str, Any], owner: Owner, record: dict[str, Any], config: IpamConfig, log: Log
) -> list[int] | None:
    """The addresses of all rails as a complete claim recorded them, if this rail's are leased still and say what they should.

    This rail's pools alone are read: what is complete was claimed in one.
    """
    found = recorded_leases(owner.attachment, record)
    values = _values(group, found)
    if values is None or any(
        n.requested is not None and n.requested != v for n, v in zip(group.wanted, values, strict=True)
    ):
        return None
    known = [lease for lease in found if lease.boot_id == owner.boot_id]
    store = stores.open_store(narrowed(described, group), READ, lambda: known, config.store_timeout, log.warning)
    with store.turn():
        there = {(lease.pool, lease.value): lease for lease in store.find(owner.attachment)}
        store.sync()
    given = dict(zip(map(id, group.wanted), values, strict=True))
    for need in group.own:
        lease = there.get((need.pool, given[id(need)]))
        if lease is None or not is_current(lease, need, owner):
            return None
    return values


def _values(group: Group, found: Sequence[Lease]) -> list[int] | None:
    """What `found` gives each need of the group, None unless that is one index."""
    places = {(lease.pool, lease.family, lease.value) for lease in found}
    for lease in found[:1]:
        index = group.index_of(lease.family, lease.value)
        if index is not None and all((n.pool, n.rng.family, n.rng.at(index)) in places for n in group.wanted):
            return [need.rng.at(index) for need in group.wanted]
    return None


def _claim(
    group: Group,
    config: IpamConfig,
    described: dict[str, Any],
    owner: Owner,
    record: dict[str, Any] | None,
    joined: list[members.Member],
    book: Book,
    log: Log,
) -> list[int]:
    """The addresses of all rails, leased to the container; the record says so when this returns."""
    from ipam.acquire import Terms, acquire

    who = owner.attachment
    store = stores.open_store(described, CREATE, restorer(described, book, log), config.store_timeout, log.warning)
    store.cooldown = config.cooldown_seconds
    former = record
    fixed = bool(record and record.get("complete") is True and len(joined) > 1)
    if record and fixed:
        found = recorded_leases(who, record)
        if not found:  # it was made anew
            with store.turn():
                found = store.find(who)
        _keep(group, found)
    written: dict[str, Any] = record or {}

    def remember(wants: Sequence[Want], sequence: int) -> None:
        nonlocal written
        owner.sequence = sequence
        new = document(stores.recorded(described), wants, owner, config.cooldown_seconds)
        new |= {"members": joined, "complete": fixed}
        if any(written.get(key) != value for key, value in new.items()):
            book.write(who, PART, new)
            written = new

    def preferred() -> list[tuple[int, int]]:
        return plugin.preferred_of(config, owner, log)

    doubtful: list[Want] = []
    if record and record["pending"] and stores.is_shared(described):
        doubtful = [Want(le.pool, le.family, le.value, le.scope) for le in recorded_leases(who, record)]
    seconds = config.store_timeout if stores.is_shared(described) else 0

    def reclaimed(pool: str) -> bool:
        return reclaim(store, pool, owner, book, log)

    try:
        terms = Terms(remember, reclaimed, doubtful, preferred, seconds, group)
        values = acquire(store, group.wanted, owner, terms)
    except Unreachable:
        raise  # what was claimed cannot be told; DEL or GC will find it by the record
    except CniError as fault:
        if former is None and written:
            plugin.forget(who, store, book)
        if isinstance(fault, TryAgainLater) and len(joined) > 1:
            fault.details = f"{fault.details}\nrails attached already: {', '.join(m[1] for m in joined[:-1])}".lstrip()
        raise
    if not fixed:
        book.write(who, PART, {**written, "complete": True})
    return values


def _keep(group: Group, found: Sequence[Lease]) -> None:
    """Let no index be claimed but that of `found`, which other rails have."""
    for lease in found[:1]:
        index = group.index_of(lease.family, lease.value)
        if index is not None:
            if group.wanted[0].requested not in (None, group.wanted[0].rng.at(index)):
                raise InvalidConfig(
                    f"the address asked for is not of index {index}, which this container has on the rails of group"
                    f" {group.name} that are attached already: ask for no address, or for the same index on all"
                )
            group.ask(index)
