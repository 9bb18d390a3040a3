"""ADD, DEL, CHECK and GC of a container's rails in a group with one index on all rails (rail.addressing: same-index).

The addresses of all rails are leased together to the container. The first rail's ADD claims them in one step, all or
none, so an index that is taken on one rail is given on no rail. The ADDs of the other rails find their addresses
leased. The last rail's DEL releases all. The leases have the network "@GROUP" and the ifname "rails of GROUP", which
no network and no link can have. Under these names the node keeps a record of the group, with its own lock. The record
has the members that ipam.leases lists, and two more:

    members    [network, ifname, rail, time of the ADD in ns since 1970] of each rail with an ADD and no DEL yet
    complete   true when all addresses are claimed; the ADD of a member returns only then

The order of the writes lets a later call finish the work of a killed call:

    ADD   writes the record with this rail among its members, claims, then writes that the claim is complete
    DEL   writes the record without this rail; for the last rail it releases the leases, then removes the record

Until the claim is complete, the index may change. After that it stays the same while another rail is a member.

If the record is lost, DEL makes it again from the records of the container's links. The new record has no addresses,
since the store has them. So the addresses of all rails still stay until the last rail's DEL. If other plugins made the
links, or the records of the links are lost too, nothing shows which rails are attached. So railcni's plugins should
make all links of a pod in a group. Without these records each DEL frees the container's leases on its own rail. If the
store cannot be reached, such a DEL records no pending release, since a later release could free addresses that are in
use by then. The agent or `railcni ipam reclaim` frees the remaining leases when the namespace is gone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from cni.shared import rail as rails_key
from cni.shared.config import Fault
from cni.shared.log import Log
from cni.shared.records import GROUP, LINK, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.shared.spec.request import Attachment, Request
from ipam import stores
from ipam.acquire import AddTerms
from ipam.config import IpamConfig, owner_of
from ipam.group.indexes import Group
from ipam.leases import PART, Lease, Owner, recorded_document, recorded_leases
from ipam.local import read_record, restorer
from ipam.ranges import format_address
from ipam.rules import is_current
from ipam.stores.base import CHANGE, READ, SHARED_SECONDS, Unreachable
from ipam.upkeep import release

if TYPE_CHECKING:
    from ipam.ending import GcPass  # it imports this module

Member: TypeAlias = "list[Any]"


def attachment_of(group: str, container_id: str) -> Attachment:
    """The attachment that owns a container's leases on all rails of `group`. No real network and link can have its
    network name and ifname."""
    return Attachment(f"{GROUP}{group}", container_id, f"rails of {group}")


def holder_of(request: Request) -> Attachment | None:
    """The attachment that owns the leases of the rail group of `request` (`attachment_of`); None without a group."""
    name = rails_key.group_of(request.config)
    return attachment_of(name, request.attachment.container_id) if name else None


def read(attachment: Attachment, records: Records) -> dict[str, Any] | None:
    """The record of a rail group, with `attachment` from `attachment_of`; None when it is missing or damaged."""
    record = read_record(attachment, records)
    if record is None:
        return None
    if not listed(record) or listed(record) != record["members"]:
        records.log.error(f"the record of {attachment} is damaged: its members; only the store is used")
        return None
    return record


def is_sound(entry: Any) -> bool:
    return isinstance(entry, list) and [type(part) for part in entry] == [str, str, int, int]


def listed(record: dict[str, Any] | None) -> list[Member]:
    """The well-formed entries of `members` in a rail group's record; [] for any other record, and for None."""
    entries = (record or {}).get("members")
    return [entry for entry in entries if is_sound(entry)] if isinstance(entries, list) else []


def of_links(group: str, container_id: str, records: Records) -> list[Member] | None:
    """The container's rails in `group`, from the records of railcni's link plugins; None when a record is unreadable.

    Even if the result is [], the container may have rails: other link plugins keep no records, and records may be lost.
    """
    found: list[Member] = []
    faults: list[Fault] = []
    try:
        links = records.of_container(container_id, LINK)
        if links is None:
            return None
        for attachment, link in links:
            config = codec.loads(str(link.get("config")).encode())
            if not isinstance(config, dict):
                return None
            rail = rails_key.read(config, faults)
            if rail and rail.group == group and rail.is_same_index:
                found.append([attachment.network, attachment.ifname, rail.index, link.get("created")])
    except (CniError, ValueError, AttributeError):
        return None
    return None if faults or not all(map(is_sound, found)) else found


def users(owner: Attachment, record: dict[str, Any] | None) -> list[Attachment]:
    """The attachments whose links use the addresses of `owner`: the rails if `record` is of a group, else `owner`."""
    return [Attachment(entry[0], owner.container_id, entry[1]) for entry in listed(record)] or [owner]


def others(record: dict[str, Any] | None, attachment: Attachment) -> list[Member]:
    """The rails in a rail group's record, except `attachment`; [] after the release of all addresses has begun."""
    listed = record["members"] if record and not record["pending"] else []
    return [m for m in listed if (m[0], m[1]) != (attachment.network, attachment.ifname)]


def has(record: dict[str, Any] | None, attachment: Attachment) -> bool:
    return record is not None and not record["pending"] and others(record, attachment) != record["members"]


# --- ADD ---


def add(group: Group, config: IpamConfig, records: Records) -> tuple[dict[str, Any], list[int]]:
    """Lease the container's addresses on all rails, unless they are leased already. Returns the reference to the store
    and the addresses of this rail. Raises InvalidConfig when the network conflicts with the container's other rails."""
    store_ref, attachment, owner = group.ref_of(config), config.request.attachment, owner_of(config)
    shared = owner.attachment = attachment_of(group.name, attachment.container_id)
    _ask(group, config)
    with records.locked(shared, PART):
        record = read(shared, records)
        left = others(record, attachment)
        _check(group, record, left)
        if record and not stores.same(record["store"], store_ref):
            if left:
                raise InvalidConfig(
                    f"rail group {group.name}: its other rails have their addresses in another store than this network names"
                    " (ipam.datastore): give all networks of the group the same"
                )
            release(shared, record, record["store"], records)
            record = None
        if record:
            store_ref = stores.joined(record["store"], store_ref)
        joined = [*left, [attachment.network, attachment.ifname, group.index, time.time_ns()]]
        values = None
        if record and record.get("complete") is True and not record["pending"]:
            values = _held(group, store_ref, owner, record, config, records.log)
        if values is None:
            values = _claim(group, config, store_ref, owner, record, joined, records)
        elif not has(record, attachment):
            records.write(shared, PART, {**(record or {}), "members": joined})
    return store_ref, group.of_own(values)


def _check(group: Group, record: dict[str, Any] | None, others: Sequence[Member]) -> None:
    """Raise InvalidConfig if the container has this rail already, or has rails of this group with other ranges."""
    for network, ifname, index, _ in others:
        if index == group.index:
            raise InvalidConfig(
                f"rail {index} of group {group.name} is attached to this container already, as {ifname} of network {network}:"
                " a pod has each rail of a group once; leave one out, or give the network another rail.index"
            )
    pools = sorted(set(record["pools"])) if record and others else []
    # while a claim is under way, the record also has the pools of the leases that the claim gives up
    is_complete = record is not None and record.get("complete") is True
    if pools and (pools != group.pools() if is_complete else not set(group.pools()) <= set(pools)):
        raise InvalidConfig(
            f"rail.ranges of this network are not those of group {group.name} as {others[0][1]} of network {others[0][0]} has it:"
            " give all networks of the group the same list, or another group",
            f"here: {', '.join(group.pools())}; there: {', '.join(pools)}",
        )


def narrowed(store_ref: dict[str, Any], group: Group) -> dict[str, Any]:
    """A copy of `store_ref` with only the pools of the network's own rail."""
    return {**store_ref, "pools": sorted({need.pool for need in group.own})} if "pools" in store_ref else store_ref


def _ask(group: Group, config: IpamConfig) -> None:
    """Restrict the group to the index of a requested address. Raises InvalidConfig when the index cannot be given."""
    asked = {group.index_of(family, value): (family, value) for family, value, _ in config.requested}
    asked.pop(None, None)
    if not asked:
        return
    texts = ", ".join(format_address(*address) for address in asked.values())
    if len(asked) > 1:
        raise InvalidConfig(
            f"the requested addresses {texts} have different indexes, but a pod has one index on all rails of group"
            f" {group.name}: request addresses of one index"
        )
    ((index, _),) = asked.items()
    if index is None or not group.space.usable(index):
        raise InvalidConfig(
            f"the requested address {texts} has index {index}, which not every rail of group {group.name} gives"
            " (rail.ranges): request another one"
        )
    group.ask(index)


def _held(
    group: Group, store_ref: dict[str, Any], owner: Owner, record: dict[str, Any], config: IpamConfig, log: Log
) -> list[int] | None:
    """The addresses of all rails, from the record of a complete claim. None if the record lacks an address that the
    group needs, or if this rail's leases are lost or outdated.

    Only this rail's pools are read. A complete claim was made in one step, so the leases of one rail stand for all.
    """
    found = recorded_leases(owner.attachment, record)
    index, places = _index(group, found), {lease.place for lease in found}
    if index is None or group.requested not in (None, index):
        return None
    if not all((n.pool, n.rng.family, n.rng.at(index)) in places for n in group.needs):
        return None
    values = group.values(index)
    known = [lease for lease in found if lease.boot_id == owner.boot_id]
    store = stores.open_store(narrowed(store_ref, group), READ, lambda: known, config.store_timeout, log.warning)
    with store.session():
        leased = {(lease.pool, lease.value): lease for lease in store.find(owner.attachment)}
    for need, value in zip(group.own, group.of_own(values), strict=True):
        lease = leased.get((need.pool, value))
        if lease is None or not is_current(lease, need, owner):
            return None
    return values


def _index(group: Group, found: Sequence[Lease]) -> int | None:
    """The common index of the leases `found`; None if there are no leases."""
    return group.index_of(*found[0].address) if found else None


def _claim(
    group: Group,
    config: IpamConfig,
    store_ref: dict[str, Any],
    owner: Owner,
    record: dict[str, Any] | None,
    joined: list[Member],
    records: Records,
) -> list[int]:
    """Lease and return the container's addresses on all rails, and record that the claim is complete."""
    shared = owner.attachment
    fixed = bool(record and record.get("complete") is True and len(joined) > 1)
    if record and fixed:
        found = recorded_leases(shared, record)
        if not found:  # the record was made again from the links, without addresses
            restore = restorer(store_ref, records, owner)
            found = stores.open_store(store_ref, CHANGE, restore, config.store_timeout).find(shared)
        _keep(group, found)
    terms = AddTerms(owner, config, store_ref, record, records, {"members": joined, "complete": fixed})
    try:
        values = terms.claim([group])
    except TryAgainLater as fault:
        if len(joined) > 1 and not isinstance(fault, Unreachable):
            fault.details = f"{fault.details}\nrails attached already: {', '.join(m[1] for m in joined[:-1])}".lstrip()
        raise
    if not fixed:
        records.write(shared, PART, {**(terms.record or {}), "complete": True})
    return values


def _keep(group: Group, found: Sequence[Lease]) -> None:
    """Restrict the group to the index of the leases `found`. Raises InvalidConfig if another index is requested."""
    index = _index(group, found)
    if index is None:
        return
    if group.requested not in (None, index):
        raise InvalidConfig(
            f"the requested address does not have index {index}, which this container has on the rails of group {group.name}"
            " that are attached already: request no address, or the same index on all"
        )
    group.ask(index)


# --- DEL ---


def leave(
    attachment: Attachment,
    shared: Attachment,
    record: dict[str, Any] | None,
    group: Group | None,
    store_ref: dict[str, Any],
    seconds: float,
    cooldown: int,
    records: Records,
) -> dict[str, Any] | None:
    """Remove the rail `attachment` from the record of its group `shared`. If no rail is left, return the record, whose
    leases the caller must release; otherwise None. If `record` is None, `group` must be given."""
    if record is None:
        links = of_links(shared.network.removeprefix(GROUP), shared.container_id, records)
        if not links:
            assert group is not None  # noqa: S101  # without a record `store_ref` comes from the group
            _release_own(shared, group, store_ref, seconds, records, cooldown)
            return None
        if [attachment.network, attachment.ifname] not in [link[:2] for link in links]:
            return None  # a repeated DEL of this rail, while others are attached
        made_of = ", ".join(link[1] for link in links)
        records.log.warning(f"there is no record of {shared}: made again from the links {made_of}")
        new = recorded_document(stores.recorded(store_ref), (), Owner(shared), cooldown)
        # concurrent DELs learn of each other by this record
        records.write(shared, PART, {**new, "members": links, "complete": True})
        record = read(shared, records)
        assert record is not None  # noqa: S101  # it was just written
    left = others(record, attachment)
    if not left:
        return record
    if len(left) < len(record["members"]):
        records.write(shared, PART, {**record, "members": left})
    return None


def _release_own(
    shared: Attachment, group: Group, store_ref: dict[str, Any], seconds: float, records: Records, cooldown: int
) -> None:
    """Free the container's leases on this network's rail alone. No record shows whether other rails are attached."""
    pools = {need.pool for need in group.own}
    try:
        restore = restorer(store_ref, records)
        store = stores.open_store(narrowed(store_ref, group), CHANGE, restore, seconds)
        store.cooldown = cooldown
        store.finish_by(hurries=True)
        with store.session():
            held = [lease for lease in store.find(shared) if lease.pool in pools]
            if held:
                store.release(held)
                records.log.info(
                    f"released {len(held)} addresses of {shared} on this rail; there is no record of the others"
                )
    except CniError as fault:
        if not stores.is_shared(store_ref):
            raise
        records.log.error(
            f"there is no record of {shared}, and its store does not answer: its addresses stay leased until the agent or"
            f" `railcni ipam reclaim` finds its namespace gone: {fault.msg}"
        )
        return
    if not records.read(shared, PART):
        records.remove(shared, PART)  # this removes the temporary files of a killed writer


# --- CHECK and GC ---


def differences(group: Group, config: IpamConfig, given: Mapping[tuple[int, int], str], records: Records) -> list[str]:
    """A text for each difference between this rail's leases and the addresses `given` in prevResult."""
    attachment = config.request.attachment
    shared = attachment_of(group.name, attachment.container_id)
    found: list[str] = []
    with records.locked(shared, PART):
        record = read(shared, records)
        if not has(record, attachment):
            found.append(
                f"it is not among the rails of group {group.name} that this node has recorded for the container"
            )
        store_ref = stores.reached(record["store"], config) if record else stores.ref_of(config)
        store_ref = narrowed(store_ref, group)
        store = stores.open_store(store_ref, READ, seconds=min(SHARED_SECONDS, config.store_timeout))
        indexes = set()
        with store.session():
            held = {(lease.pool, lease.value) for lease in store.find(shared)}
            for need in group.own:
                values = [value for family, value in given if family == need.rng.family and need.rng.contains(value)]
                if not values:
                    found.append(f"prevResult has no address of {need.rng}")
                for value in values:
                    indexes.add(need.rng.offset_of(value))
                    if (need.pool, value) not in held:
                        holder = store.holder(need.want(value))
                        text = format_address(need.rng.family, value)
                        found.append(f"{text} is leased to {holder.holder()}" if holder else f"{text} is not leased")
        for lease in recorded_leases(shared, record) if record else ():
            index = group.index_of(lease.family, lease.value)
            if index is not None and indexes and index not in indexes:
                found.append(f"its index is {indexes.pop()}, and the group's is {index}")
                break
    return found


def gc(collection: GcPass, groups: Sequence[tuple[Attachment, dict[str, Any]]]) -> None:
    """Remove rails of the network of `collection` (the GC) from the records `groups` of all rail groups, if the runtime
    does not list them. Then free the leases of groups without rails."""
    for shared, record in groups:
        mine = [Attachment(m[0], shared.container_id, m[1]) for m in listed(record) if m[0] == collection.network]
        pending = record.get("pending") is True
        if not any(pending or member not in collection.valid for member in mine):
            continue
        if not collection.faults.is_silent(record.get("store")):
            try:
                _gc_one(shared, collection)
            except CniError as fault:
                collection.faults.note(fault, record.get("store"))


def _gc_one(shared: Attachment, collection: GcPass) -> None:
    records = collection.records
    held = records.try_locked(shared, PART)
    if held is None:
        return
    with held:
        record = read(shared, records)
        if record is None:
            return
        left = [entry for entry in record["members"] if not _is_gone(entry, shared, collection)]
        if left and not (record["pending"] and collection.began.is_after(record["sequence"])):
            if len(left) < len(record["members"]):
                records.write(shared, PART, {**record, "members": left})
                records.log.info(f"collected {len(record['members']) - len(left)} rails of {shared}")
            return
        release(shared, record, stores.joined(record["store"], collection.store_ref), records)
        records.log.info(f"collected {shared}")


def _is_gone(entry: Member, shared: Attachment, collection: GcPass) -> bool:
    """Whether GC may remove the rail `entry` from the record of the group `shared`: it is older than the GC, not in the
    runtime's list, and without a record of its link. False while another operation holds the lock of the link."""
    attachment = Attachment(entry[0], shared.container_id, entry[1])
    is_listed = entry[0] != collection.network or attachment in collection.valid
    if is_listed or not collection.began.is_after(entry[3]):
        return False
    link = collection.records.try_locked(attachment, LINK)
    if link is None:
        return False
    with link:
        return collection.records.read(attachment, LINK) is None
