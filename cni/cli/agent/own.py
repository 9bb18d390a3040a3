"""The leases that this node's records tell of: freed when they are dead, their lost reservations restored.

An attachment is left alone while an ADD or DEL of it is at work (its locks), or while its namespace is there: its
address may be in use whatever the API says of the pod.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cni.attachment import Book
from cni.cli import in_use
from cni.cli.agent import sightings
from cni.cli.agent.log import AgentLog
from cni.cli.agent.server import Server
from cni.cli.at_work import excluded
from cni.cli.inventory import Held, Pod, lease_of, of_lease
from cni.kernel import node
from cni.spec.request import Attachment
from ipam import records, upkeep
from ipam.stores.base import Lease

BUSY, WHOLE, RESERVED, ALLOCATED = "busy", "whole", "reserved", "allocated"


@dataclass(frozen=True)
class Recorded:
    """A lease that a record of this node tells of."""

    lease: Lease
    held: Held

    @property
    def attachment(self) -> Attachment:
        return self.lease.attachment


def recorded(book: Book) -> list[Recorded]:
    """The leases in Kubernetes of this node's records; what a DEL could not release is the flush's business."""
    found = []
    for attachment, _, record in book.all(records.PART):
        if record.get("pending") is True or (record.get("store") or {}).get("kind") != "kubernetes":
            continue
        try:
            found += [Recorded(lease, of_lease(lease)) for lease in records.leases(attachment, record)]
        except ValueError:
            continue  # a verb that meets the record says so
    return found


class Own:
    """Changes for the attachments of `book`. `below` finds a path of the host where it is mounted here."""

    def __init__(self, book: Book, below: Callable[[str], str], log: AgentLog) -> None:
        self._book = book
        self._below = below
        self._log = log

    def release(self, server: Server, one: Recorded, seconds: float) -> bool:
        """Free all leases of the attachment, if its pod is dead still; whether it was done. CniError."""
        with excluded(self._book, one.attachment) as users:
            record = self._same_record(one.lease) if users else None
            if record is None or self._may_be_used(one.lease, users or []):
                return False
            if sightings.key_of(one.held) not in sightings.dead([one.held], _named(server, one.held)):
                return False
            described = {**record["store"], "kubeconfig": server.path}
            upkeep.release(one.attachment, record, described, self._book, self._log, seconds)
            return True

    def restore(self, server: Server, one: Recorded) -> str:
        """Put back what is lost of the lease: BUSY, WHOLE, RESERVED, ALLOCATED, or the pod that has the address now.

        What another has stays with it. A lease that no pool holds is put back only while its namespace is there: the
        record may be that of a former sandbox of the pod.
        """
        with excluded(self._book, one.attachment) as users:
            if users is None or self._same_record(one.lease) is None:
                return BUSY
            found = server.reservation(one.held)
            if found is not None and not found.is_of(one.held):
                return WHOLE if found.pod == one.held.pod else "/".join(found.pod)
            pool = server.pool(one.lease.pool)
            entry = pool.entries.get(one.lease.value) if pool and pool.family == one.lease.family else None
            if entry is not None and not entry.is_of(one.lease):
                return WHOLE if entry.pod == one.held.pod else "/".join(entry.pod)
            if entry is None:
                if not self._may_be_used(one.lease, users):
                    return WHOLE
                if not server.allocate(pool, one.lease):
                    return BUSY
            if found is None and one.held.scope is not None and not server.reserve(one.lease):
                return BUSY
            return ALLOCATED if entry is None else WHOLE if found else RESERVED

    def is_used(self, held: Held) -> bool:
        """Whether a lease without a record may be in use: its namespace is there, as far as its reservation tells it."""
        return bool(held.netns) and self._may_be_used(lease_of(held), [])

    def _same_record(self, lease: Lease) -> dict[str, Any] | None:
        record = upkeep.read_record(lease.attachment, self._book, self._log)
        same = record is not None and not record["pending"] and record["sequence"] == lease.sequence
        return record if same else None

    def _may_be_used(self, lease: Lease, users: list[Attachment]) -> bool:
        """Whether the namespace is there, at its path or kept by a process or another mount."""
        if lease.boot_id != node.boot_id():
            return False
        if lease.netns.startswith("/proc/") and not os.path.isdir(self._below("/proc/1")):
            self._log.state(
                "namespaces",
                f"the runtime names namespaces by processes of the host ({lease.netns}), which are not seen in this"
                " container: their leases stay. DEL and GC free them, and `railcni ipam reclaim` on the node",
            )
            return True
        try:
            return in_use.is_there(map(self._below, in_use.names_of(lease.netns)), users, self._book)
        except OSError:
            return True  # it cannot be told


def _named(server: Server, held: Held) -> dict[tuple[str, str], Pod]:
    """The pod of the lease's name as it is now, if there is one."""
    pod = server.pod(*held.pod)
    return {held.pod: pod} if pod else {}
