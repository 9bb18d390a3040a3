"""DEL, CHECK, GC and STATUS for a rail whose group has one index a pod; see ipam.group.add.

If the record of the group is lost, DEL makes it again from the records of the container's links. So the addresses of all
rails stay until the last rail's DEL then too. (Therefore a pod's links in one group must all be made by our plugins.)
If those records are lost too, or another suite made the links, nothing shows which rails are attached. DEL then frees the
container's leases on its own rail, if the store can be reached, and records no pending release: a later one could free
addresses that are in use by then. The agent or `railcni ipam reclaim` frees the rest when the namespace is gone.
"""

from __future__ import annotations

from cni.shared import rail as rails_key
from cni.shared.spec import result
from cni.shared.spec.errors import AttachmentDiffers, CniError, InvalidConfig, UnsupportedField
from cni.shared.spec.request import Attachment, member
from ipam import call, stores
from ipam.group import add as groups
from ipam.group import members
from ipam.leases import Owner
from ipam.ranges import format_address
from ipam.records import PART, document
from ipam.records import leases as recorded_leases
from ipam.stores.base import CHANGE, READ, SHARED_SECONDS
from ipam.upkeep import flush_reminded, is_among, is_pending, note_fault, release, restorer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.records import Began, Records
    from cni.shared.spec.request import Request
    from ipam.group.indexes import Group
    from ipam.rules import Need
    from ipam.stores.base import Store


def delete(request: Request, records: Records, log: Log) -> None:
    """Remove this rail from the group's members; for the last one release the addresses of all rails."""
    group = rails_key.group_of(request.config)
    if not group:
        return  # no ADD with this configuration has claimed an address
    shared = members.attachment_of(group, request.attachment.container_id)
    with records.locked(shared, PART):
        record = members.read(shared, records, log)
        store_ref = record["store"] if record else None
        seconds, cooldown = 0.0, None
        found = None
        try:
            config, _, found = groups.configured(request, log)
            store_ref = call.reached(store_ref, config) if store_ref else groups.ref_of(config, found)
            seconds, cooldown = min(SHARED_SECONDS, config.store_timeout), config.cooldown_seconds
        except (InvalidConfig, UnsupportedField) as fault:
            if record is None:  # then no ADD of ours has claimed anything
                log.warning(
                    f"nothing is recorded of this attachment, and its configuration cannot be used: {fault.msg}"
                )
        if not store_ref:
            records.remove(shared, PART)
            return
        if record is None:
            links = members.of_links(group, request.attachment.container_id, records)
            if not links:
                assert found is not None  # noqa: S101  # without a record `store_ref` comes from the group
                _release_own(shared, found, store_ref, seconds, records, log, cooldown or 0)
                return
            if [request.attachment.network, request.attachment.ifname] not in [link[:2] for link in links]:
                return  # a repeated DEL of this rail, while others are attached
            record = _made_anew(shared, links, store_ref, records, log, cooldown or 0)
        others = members.others(record, request.attachment)
        if others:
            if len(others) < len(record["members"]):
                records.write(shared, PART, {**record, "members": others})
            return
        try:
            release(shared, record, store_ref, records, log, seconds, cooldown)
        except CniError as fault:
            if not stores.is_shared(store_ref) or not is_pending(shared, records):
                raise
            log.error(f"the release of {shared} is pending, and will be tried again: {fault.msg}")
            return
    if stores.is_shared(store_ref):
        flush_reminded(records, log, store_ref)


def _made_anew(
    shared: Attachment,
    links: list[members.Member],
    store_ref: dict[str, Any],
    records: Records,
    log: Log,
    cooldown: int,
) -> dict[str, Any]:
    """Write the record again, with the rails that have links as its members, so that concurrent DELs know of each other."""
    log.warning(f"no record tells of {shared}: made anew from the links {', '.join(link[1] for link in links)}")
    new = document(stores.recorded(store_ref), (), Owner(shared), cooldown)
    records.write(shared, PART, {**new, "members": links, "complete": True})
    record = members.read(shared, records, log)
    assert record is not None  # noqa: S101  # it was just written
    return record


def _release_own(
    shared: Attachment,
    group: Group,
    store_ref: dict[str, Any],
    seconds: float,
    records: Records,
    log: Log,
    cooldown: int,
) -> None:
    """Free the container's leases on this rail alone: nothing shows which other rails are attached."""
    pools = {need.pool for need in group.own}
    try:
        restore = restorer(store_ref, records, log)
        store = stores.open_store(groups.narrowed(store_ref, group), CHANGE, restore, seconds)
        store.cooldown = cooldown
        with store.session():
            held = [lease for lease in store.find(shared) if lease.pool in pools]
            if held:
                store.release(held)
                log.info(f"released {len(held)} addresses of {shared} on this rail; no record tells of the others")
    except CniError as fault:
        if not stores.is_shared(store_ref):
            raise
        log.error(
            f"no record tells of {shared}, and its store does not answer: what it has stays leased until the agent or"
            f" `railcni ipam reclaim` finds its namespace gone: {fault.msg}"
        )
        return
    if not records.read(shared, PART):
        records.remove(shared, PART)  # with the temporary files of a killed writer


def check(request: Request, records: Records, log: Log) -> None:
    """Compare this rail's leases with prevResult; AttachmentDiffers names all differences."""
    config, _, group = groups.configured(request, log)
    previous = member(request.config, "prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    given = {call.address_of(a.address): a.address for a in result.parse(previous).ips}
    shared = members.attachment_of(group.name, request.attachment.container_id)
    found: list[str] = []
    with records.locked(shared, PART):
        record = members.read(shared, records, log)
        if not members.has(record, request.attachment):
            found.append(
                f"it is not among the rails of group {group.name} that this node has recorded for the container"
            )
        store_ref = call.reached(record["store"], config) if record else stores.ref_of(config)
        store_ref = groups.narrowed(store_ref, group)
        store: Store = stores.open_store(store_ref, READ, seconds=min(SHARED_SECONDS, config.store_timeout))
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
    if found:
        raise AttachmentDiffers(
            f"the addresses of {request.attachment.ifname} of container {request.attachment.container_id} are not as ADD left"
            f" them: {'; '.join(found)}. Detach and attach it again",
            "\n".join(found),
        )


def collect(
    network: str,
    valid: set[Attachment],
    began: Began,
    group_records: Sequence[tuple[Attachment, dict[str, Any]]],
    store_ref: dict[str, Any] | None,
    records: Records,
    log: Log,
) -> list[CniError]:
    """GC of `network` for groups: remove the members that the runtime does not list, with the last one the leases."""
    faults: list[CniError] = []
    silent: list[dict[str, Any]] = []
    for shared, listed in group_records:
        mine = [m for m in members.listed(listed) if m[0] == network]
        pending = listed.get("pending") is True
        if not any(Attachment(m[0], shared.container_id, m[1]) not in valid or pending for m in mine):
            continue
        if is_among(listed.get("store"), silent):
            continue
        try:
            _collect(shared, network, valid, began, store_ref, records, log)
        except CniError as fault:
            note_fault(fault, listed.get("store"), faults, silent)
    return faults


def _collect(
    shared: Attachment,
    network: str,
    valid: set[Attachment],
    began: Began,
    store_ref: dict[str, Any] | None,
    records: Records,
    log: Log,
) -> None:
    held = records.try_locked(shared, PART)
    if held is None:
        return
    with held:
        record = members.read(shared, records, log)
        if record is None:
            return
        left = [m for m in record["members"] if not _is_gone(m, shared, network, valid, began, records)]
        if left and not (record["pending"] and began.is_after(record["sequence"])):
            if len(left) < len(record["members"]):
                records.write(shared, PART, {**record, "members": left})
                log.info(f"collected {len(record['members']) - len(left)} rails of {shared}")
            return
        where = stores.joined(record["store"], store_ref)
        release(shared, record, where, records, log)
        log.info(f"collected {shared}")


def _is_gone(
    entry: members.Member, shared: Attachment, network: str, valid: set[Attachment], began: Began, records: Records
) -> bool:
    """Whether the runtime's list lacks a member that was there when the call began, and the member has no link any more.

    False while an operation holds the lock of its link.
    """
    attachment = Attachment(entry[0], shared.container_id, entry[1])
    if entry[0] != network or attachment in valid or not began.is_after(entry[3]):
        return False
    link = records.try_locked(attachment, members.LINK_PART)
    if link is None:
        return False
    with link:
        return records.read(attachment, members.LINK_PART) is None


def status(request: Request, records: Records, log: Log) -> None:
    """Whether an ADD could be served now; NotAvailable says why not."""
    config, _, group = groups.configured(request, log)

    def target(seconds: float) -> tuple[dict[str, Any], Sequence[Need]]:
        return groups.ref_of(config, group), group.wanted

    call.attempt(config, call.owner_of(request, config), target, group.search, records, log)
