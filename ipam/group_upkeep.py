"""DEL, CHECK, GC and STATUS for a rail whose group has one index a pod; see ipam.group.

Where the record of the group is lost, DEL makes it anew from the records of the container's links: then too the addresses
stay until the last rail's DEL has come, and all go with it. (So no group may have links of ours and of others in one pod.)
Without these, as when IPAM alone is ours, nothing tells which rails are attached. DEL then frees what the container has on
its own rail, if the store can be reached; and writes nothing down, for a later release could take what is in use by then.
What is left goes when the agent or `railcni ipam reclaim` finds the namespace gone.
"""

from __future__ import annotations

from cni import rail as rails_key
from cni.spec.errors import CniError, InvalidConfig, UnsupportedField
from cni.spec.request import Attachment, member
from ipam import group as groups
from ipam import members, plugin, stores
from ipam.ranges import format_address
from ipam.records import PART, document
from ipam.records import leases as recorded_leases
from ipam.stores.base import CHANGE, READ, SHARED_SECONDS, Owner
from ipam.upkeep import flush_reminded, is_among, is_pending, note_fault, release, restorer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.attachment import Began, Book
    from cni.log import Log
    from cni.spec.request import Request
    from ipam.leases import Need
    from ipam.rails import Group
    from ipam.stores.base import Store


def delete(request: Request, book: Book, log: Log) -> None:
    """Take this rail from the group; with the last one go the addresses of all."""
    group = rails_key.group_of(request.config)
    if not group:
        return  # no ADD came as far as an address
    who = members.attachment_of(group, request.attachment.container_id)
    with book.locked(who, PART):
        record = members.read(who, book, log)
        described = record["store"] if record else None
        seconds, cooldown = 0.0, None
        found = None
        try:
            config, _, found = groups.configured(request, log)
            described = plugin.reached(described, config) if described else groups.described_of(config, found)
            seconds, cooldown = min(SHARED_SECONDS, config.store_timeout), config.cooldown_seconds
        except (InvalidConfig, UnsupportedField) as fault:
            if record is None:  # then no ADD of ours came as far as a lease
                log.warning(
                    f"nothing is recorded of this attachment, and its configuration cannot be used: {fault.msg}"
                )
        if not described:
            book.remove(who, PART)
            return
        if record is None:
            links = members.of_links(group, request.attachment.container_id, book)
            if not links:
                assert found is not None  # noqa: S101  # else nothing is described
                _release_own(who, found, described, seconds, book, log, cooldown or 0)
                return
            if [request.attachment.network, request.attachment.ifname] not in [link[:2] for link in links]:
                return  # a DEL once more, while others are attached
            record = _made_anew(who, links, described, book, log, cooldown or 0)
        others = members.others(record, request.attachment)
        if others:
            if len(others) < len(record["members"]):
                book.write(who, PART, {**record, "members": others})
            return
        try:
            release(who, record, described, book, log, seconds, cooldown)
        except CniError as fault:
            if not stores.is_shared(described) or not is_pending(who, book):
                raise
            log.error(f"the release of {who} is pending, and will be tried again: {fault.msg}")
            return
    if stores.is_shared(described):
        flush_reminded(book, log, described)


def _made_anew(
    who: Attachment, links: list[members.Member], described: dict[str, Any], book: Book, log: Log, cooldown: int
) -> dict[str, Any]:
    """The record with the rails that have links as its members, and in the book: DELs at once see each other by it."""
    log.warning(f"no record tells of {who}: made anew from the links {', '.join(link[1] for link in links)}")
    new = document(stores.recorded(described), (), Owner(who), cooldown)
    book.write(who, PART, {**new, "members": links, "complete": True})
    record = members.read(who, book, log)
    assert record is not None  # noqa: S101  # it was just written
    return record


def _release_own(
    who: Attachment, group: Group, described: dict[str, Any], seconds: float, book: Book, log: Log, cooldown: int
) -> None:
    """Free what the container has on this rail alone: it cannot be told which others are attached."""
    pools = {need.pool for need in group.own}
    try:
        restore = restorer(described, book, log)
        store = stores.open_store(groups.narrowed(described, group), CHANGE, restore, seconds)
        store.cooldown = cooldown
        with store.turn():
            held = [lease for lease in store.find(who) if lease.pool in pools]
            if held:
                store.release(held)
                log.info(f"released {len(held)} addresses of {who} on this rail; no record tells of the others")
            else:
                store.sync()
    except CniError as fault:
        if not stores.is_shared(described):
            raise
        log.error(
            f"no record tells of {who}, and its store does not answer: what it has stays leased until the agent or"
            f" `railcni ipam reclaim` finds its namespace gone: {fault.msg}"
        )
        return
    if not book.read(who, PART):
        book.remove(who, PART)  # what a killed writer left of it


def check(request: Request, book: Book, log: Log) -> None:
    """Compare this rail's leases with prevResult; AttachmentDiffers names all differences."""
    from cni.spec import result
    from cni.spec.errors import AttachmentDiffers

    config, _, group = groups.configured(request, log)
    previous = member(request.config, "prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    given = {plugin.address_of(a.address): a.address for a in result.parse(previous).ips}
    who = members.attachment_of(group.name, request.attachment.container_id)
    found: list[str] = []
    with book.locked(who, PART):
        record = members.read(who, book, log)
        if not members.has(record, request.attachment):
            found.append(
                f"it is not among the rails of group {group.name} that this node has recorded for the container"
            )
        described = plugin.reached(record["store"], config) if record else stores.describe(config)
        described = groups.narrowed(described, group)
        store: Store = stores.open_store(described, READ, seconds=min(SHARED_SECONDS, config.store_timeout))
        indexes = set()
        with store.turn():
            held = {(lease.pool, lease.value) for lease in store.find(who)}
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
        for lease in recorded_leases(who, record) if record else ():
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
    records: Sequence[tuple[Attachment, dict[str, Any]]],
    described: dict[str, Any] | None,
    book: Book,
    log: Log,
) -> list[CniError]:
    """What GC of `network` does to groups: members that the runtime does not list go, with the last one the leases."""
    faults: list[CniError] = []
    silent: list[dict[str, Any]] = []
    for who, listed in records:
        mine = [m for m in members.listed(listed) if m[0] == network]
        pending = listed.get("pending") is True
        if not any(Attachment(m[0], who.container_id, m[1]) not in valid or pending for m in mine):
            continue
        if is_among(listed.get("store"), silent):
            continue
        try:
            _collect(who, network, valid, began, described, book, log)
        except CniError as fault:
            note_fault(fault, listed.get("store"), faults, silent)
    return faults


def _collect(
    who: Attachment,
    network: str,
    valid: set[Attachment],
    began: Began,
    described: dict[str, Any] | None,
    book: Book,
    log: Log,
) -> None:
    held = book.try_locked(who, PART)
    if held is None:
        return
    with held:
        record = members.read(who, book, log)
        if record is None:
            return
        left = [m for m in record["members"] if not _is_gone(m, who, network, valid, began, book)]
        if left and not (record["pending"] and began.is_after(record["sequence"])):
            if len(left) < len(record["members"]):
                book.write(who, PART, {**record, "members": left})
                log.info(f"collected {len(record['members']) - len(left)} rails of {who}")
            return
        where = record["store"]
        if described and stores.same(where, described):
            where = stores.joined(where, described)  # it knows the password
        release(who, record, where, book, log)
        log.info(f"collected {who}")


def _is_gone(
    entry: members.Member, who: Attachment, network: str, valid: set[Attachment], began: Began, book: Book
) -> bool:
    """Whether the runtime knows a member no more; not when it came after the call began, or its link is there or at work."""
    attachment = Attachment(entry[0], who.container_id, entry[1])
    if entry[0] != network or attachment in valid or not began.is_after(entry[3]):
        return False
    link = book.try_locked(attachment, members.LINK_PART)
    if link is None:
        return False
    with link:
        return book.read(attachment, members.LINK_PART) is None


def status(request: Request, book: Book, log: Log) -> None:
    """Whether an ADD could be served now; NotAvailable says why not."""
    config, _, group = groups.configured(request, log)

    def described(seconds: float) -> tuple[dict[str, Any], Sequence[Need]]:
        return groups.described_of(config, group), group.wanted

    plugin.attempt(config, plugin.owner_of(request, config), described, group.search, book, log)
