"""The rails of a group that a container has, from this node's record of its leases: pure but for reading the record.

The record is that of ipam.records, under `attachment_of`, and has two members more:

    members    [network, ifname, rail, time of the ADD in ns since 1970] of each rail with an ADD and no DEL yet
    complete   whether all its addresses were claimed: no ADD of a member answers earlier

A lost record is made again from the records of the links (`of_links`), without addresses: those are in the store.
"""

from __future__ import annotations

from cni.shared import rail as rails_key
from cni.shared.records import GROUP
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import Attachment
from ipam.upkeep import read_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.rail import Rail
    from cni.shared.records import Records
    from ipam.group.indexes import Group

    Member = list[Any]

LINK_PART = "link"


def attachment_of(group: str, container_id: str) -> Attachment:
    """The attachment that the leases of a container in a group name: the one that its rails share, of no link."""
    return Attachment(f"{GROUP}{group}", container_id, f"rails of {group}")


def read(shared: Attachment, records: Records, log: Log) -> dict[str, Any] | None:
    """The record of the group; None when there is none, or when its members are damaged."""
    record = read_record(shared, records, log)
    if record is None:
        return None
    if not listed(record) or listed(record) != record["members"]:
        log.error(f"the record of {shared} is damaged: its members; going by the store alone")
        return None
    return record


def is_sound(entry: Any) -> bool:
    return isinstance(entry, list) and [type(part) for part in entry] == [str, str, int, int]


def listed(record: dict[str, Any] | None) -> list[Member]:
    """The undamaged members of a record; none for a record that is not of a group."""
    entries = (record or {}).get("members")
    return [entry for entry in entries if is_sound(entry)] if isinstance(entries, list) else []


def of_links(group: str, container_id: str, records: Records) -> list[Member] | None:
    """The rails of the group that the container has by the records of our link plugins; None when one cannot be read.

    An empty list does not mean that the container has no rail: other link plugins keep no such records, and ours may be
    lost too.
    """
    found: list[Member] = []
    faults: list[Fault] = []
    try:
        links = records.of_container(container_id, LINK_PART)
        if links is None:
            return None
        for attachment, link in links:
            rail = rails_key.read(codec.loads(str(link.get("config")).encode()), faults)
            if rail and rail.group == group and rail.is_same_index:
                found.append([attachment.network, attachment.ifname, rail.index, link.get("created")])
    except (CniError, ValueError, AttributeError):
        return None
    return None if faults or not all(map(is_sound, found)) else found


def users(owner: Attachment, record: dict[str, Any] | None) -> list[Attachment]:
    """The attachments whose links use the addresses leased to `owner`: the rails of its group, or `owner` itself without one."""
    return [Attachment(entry[0], owner.container_id, entry[1]) for entry in listed(record)] or [owner]


def others(record: dict[str, Any] | None, attachment: Attachment) -> list[Member]:
    """The members of the group that are not this attachment; none once the release of all has begun."""
    listed = record["members"] if record and not record["pending"] else []
    return [m for m in listed if (m[0], m[1]) != (attachment.network, attachment.ifname)]


def has(record: dict[str, Any] | None, attachment: Attachment) -> bool:
    listed = record["members"] if record and not record["pending"] else []
    return any((m[0], m[1]) == (attachment.network, attachment.ifname) for m in listed)


def check(rail: Rail, group: Group, record: dict[str, Any] | None, others: Sequence[Member]) -> None:
    """InvalidConfig when the container has this rail already, or rails of another group of this name."""
    for network, ifname, index, _ in others:
        if index == rail.index:
            raise InvalidConfig(
                f"rail {index} of group {group.name} is attached to this container already, as {ifname} of network {network}:"
                " a pod has each rail of a group once; leave one out, or give the network another rail.index"
            )
    if record and others and record["pools"] and sorted(set(record["pools"])) != group.pools():
        raise InvalidConfig(
            f"rail.ranges of this network are not those of group {group.name} as {others[0][1]} of network {others[0][0]} has it:"
            " give all networks of the group the same list, or another group",
            f"here: {', '.join(group.pools())}; there: {', '.join(sorted(set(record['pools'])))}",
        )
