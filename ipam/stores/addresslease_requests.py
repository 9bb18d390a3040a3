"""Requests for AddressLeases. Each can be made again when its reply was lost: the server has made it once at most.

A create that is repeated finds the object that the first one made. A change tests the resourceVersion and a deletion uid
and resourceVersion, so neither can come late: the object has changed by then.
"""

from __future__ import annotations

import posix
import time
from time import monotonic

from cni.spec.errors import CniError, StateDamaged
from ipam.stores.addresslease_objects import FENCE, Entry
from ipam.stores.kubernetes_api import ADDRESSES, Api, Conflict, Gone, Open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ipam.stores.base import Lease

    T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds


class Objects:
    """The AddressLeases of one namespace. Every method may raise CniError; Open when a change may have been made."""

    __slots__ = ("_api",)

    def __init__(self, api: Api) -> None:
        self._api = api

    def get(self, name: str) -> Entry | None:
        try:
            return self._entry(self._api.get(ADDRESSES, name)[0])
        except Gone:
            return None

    def chosen(self, labels: dict[str, str], recent: bool = False) -> list[Entry]:
        """The objects that have all of `labels`. `recent`: as they were a moment ago is good enough."""
        return [self._entry(found) for found in self._api.list_all(ADDRESSES, _selector(labels), recent=recent)]

    def names(self, labels: dict[str, str], recent: bool = False) -> list[tuple[str, dict[str, str]]]:
        """The names and labels of the objects that have all of `labels`; `recent` as for `chosen`."""
        listed = self._api.list_all(ADDRESSES, _selector(labels), brief=True, recent=recent)
        found = [one.get("metadata") or {} for one in listed]
        return [(str(metadata.get("name") or ""), metadata.get("labels") or {}) for metadata in found]

    def create(self, document: dict[str, Any], lease: Lease) -> tuple[Entry, bool]:
        """(the object of the name of `document`, whether it is that of `lease`). Conflict when it has just gone.

        When the second request makes it the first one may be served yet: the object is marked, and is not deleted for a
        while (`remove`).
        """
        lost: Open | None = None
        try:
            while True:
                try:
                    return self._entry(self._api.create(ADDRESSES, document)), True
                except Open as fault:
                    if lost:
                        raise
                    lost = fault
                    document["metadata"]["labels"][FENCE] = str(time.time_ns())
                except Conflict:
                    found = self.get(document["metadata"]["name"])
                    if found is None:
                        raise
                    return found, found.is_of(lease)
        except CniError as fault:
            raise lost or fault from None

    def replace(self, entry: Entry, new: dict[str, Any]) -> Entry:
        """`entry` with the labels and the spec of `new`; Conflict when it is no longer as it was read."""
        lost: Open | None = None
        patch = entry.replacement(new)
        try:
            while True:
                try:
                    metadata = self._api.patch(ADDRESSES, entry.name, patch).get("metadata") or {}
                    return self._entry({**new, "metadata": metadata})
                except Gone:
                    raise Conflict(f"{entry.name} has gone") from None
                except (Open, Conflict) as fault:
                    if isinstance(fault, Conflict) and not lost:
                        raise
                    found = self.get(entry.name)
                    if found and found.spec == new["spec"]:
                        return found
                    if lost or found is None or found.version != entry.version:
                        raise
                    lost = fault if isinstance(fault, Open) else lost
        except CniError as fault:
            raise lost or fault from None

    def remove(self, entry: Entry) -> bool:
        """Delete `entry`; whether it was there. Conflict when it is no longer as it was read.

        One that a late create may be on its way for stays as an address that is free: the create meets it.
        """
        if entry.is_fenced(time.time_ns()):
            self.replace(entry, entry.freed(time.time_ns(), 0))
            return True
        lost: Open | None = None
        try:
            while True:
                try:
                    self._api.delete(ADDRESSES, entry.name, entry.uid, entry.version)
                    return True
                except Gone:
                    return lost is not None
                except Open as fault:
                    if lost:
                        raise
                    lost = fault
        except CniError as fault:
            raise lost or fault from None

    def change(self, entry: Entry | None, lease: Lease, make: Callable[[Entry], T]) -> T | None:
        """What `make` answers of the object of `lease`, which is read again when it is no longer as it was in `entry`; None
        when it is not of `lease` any more. Open when others change it for too long."""
        deadline, pause = min(monotonic() + self._api.seconds, self._api.deadline), _FIRST_PAUSE
        while entry and entry.is_of(lease):
            try:
                return make(entry)
            except Conflict as fault:
                if monotonic() + pause > deadline:
                    raise Open(
                        f"addresslease {entry.name} of {self._api} was changed by others each time: {fault}"
                    ) from None
            time.sleep(pause * (0.5 + posix.urandom(1)[0] / 256))
            pause = min(2 * pause, _LONGEST_PAUSE)
            entry = self.get(entry.name)
        return None

    def _entry(self, document: dict[str, Any]) -> Entry:
        try:
            return Entry(document)
        except ValueError:
            name = str((document.get("metadata") or {}).get("name"))
            raise StateDamaged(
                f"addresslease {name} in namespace {self._api.access.namespace} of {self._api} tells no address: only"
                f" railcni may write these objects. Delete it: kubectl delete addresslease {name}"
            ) from None


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
