"""What who has the turn at a pool does for those who wait for it: pure, no I/O, no clock.

A process wishes for an address of a range, or for the removal of allocations. A wish that needs more thought than that is
left alone, and its process comes to its own turn: that of a pod which has a lease, or for what is not as it supposes.
"""

from __future__ import annotations

from cni.spec.request import Attachment
from ipam import allocator
from ipam.ranges import Range
from ipam.stores import kubernetes_objects as objects
from ipam.stores import kubernetes_size as sizes
from ipam.stores.base import Lease, Owner, Want, returns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

    from ipam.stores.kubernetes_objects import PoolObject

    Document = dict[str, Any]
    Changes = dict[int, Document | None]


def claim_wish(rng: Range, scope: str | None, owner: Owner) -> Document:
    """The wish for an address of `rng`, to be reserved in `scope`, for an attachment that has none."""
    return {
        "claim": objects.entry_of(owner),
        "family": rng.family,
        "first": rng.first,
        "last": rng.last,
        "blocked": rng.blocked,
        "scope": scope,
        "former": objects.interface(owner.pod, owner.attachment.ifname) if returns(owner.pod) else "",
    }


def release_wish(leases: Iterable[Lease]) -> Document:
    """The wish that `leases`, all of one pool and attachment, be taken out of it."""
    return {"release": [[le.family, le.value, le.container_id, le.ifname, *le.pod[:2]] for le in leases]}


class Grants:
    """What a pool is changed by, besides `changes`, to meet wishes: `changes`, `released`, and an answer for each wish.

    `held(scope, family)` are the addresses that cannot be claimed as the pool is.
    """

    __slots__ = ("_former", "_held", "_podrefs", "_pool", "_sandboxes", "_size", "changes", "released")

    def __init__(self, pool: PoolObject, changes: Changes, held: Callable[[str | None, int], Collection[int]]) -> None:
        self.changes: Changes = {}
        self.released: list[Lease] = []
        self._pool = pool
        self._held = held
        self._size = pool.size
        self._former = pool.former()
        self._sandboxes: set[tuple[str, str]] = set()
        self._podrefs: set[tuple[str, str]] = set()
        for entry in pool.entries.values():
            self._note(entry.document)
        self._add(changes)
        self.changes.update(changes)

    def grant(self, wish: Document) -> Document | None:
        """The answer to `wish`, which counts among the changes from now on; None: it is left alone."""
        try:
            return self._claim(wish) if "claim" in wish else self._release(wish["release"])
        except (KeyError, TypeError, ValueError):
            return None  # another version's

    def _claim(self, wish: Document) -> Document | None:
        entry = {key: str(wish["claim"][key]) for key in ("id", "podref", "ifname")}
        sandbox, podref = (entry["id"], entry["ifname"]), (entry["podref"], entry["ifname"])
        if sandbox in self._sandboxes or (podref[0] and podref in self._podrefs):
            return None
        if wish["family"] != self._pool.family:
            return None
        if not sizes.takes(self._size, sizes.growth([entry])):
            return None
        held = self._held(wish["scope"], self._pool.family)
        rng = Range(self._pool.family, 0, 0, wish["first"], wish["last"], wish["blocked"])

        def is_open(value: int) -> bool:
            return value not in held and value not in self.changes

        def occupied(low: int, high: int) -> int:
            return sum(1 << value - low for value in range(low, high + 1) if not is_open(value))

        def next_open(low: int, high: int) -> int:
            while low <= high and not is_open(low):
                low += 1
            return low

        former = self._former.get(wish["former"])
        value = None if former is None else self._pool.first + former
        if value is None or not (rng.usable(value) and is_open(value)):
            value = allocator.search(rng, occupied, next_open, size=256)
        if value is None or not self._pool.can_hold(value):
            return None
        self._add({value: entry})
        self.changes[value] = entry
        return {"value": value}

    def _release(self, places: list[Any]) -> Document | None:
        leases = [
            Lease(
                Want(self._pool.name, family, value, None),
                Owner(Attachment("", container, ifname), (namespace, name, "")),
            )
            for family, value, container, ifname, namespace, name in places
        ]
        for lease in leases:
            entry = self._pool.entries.get(lease.value)
            if lease.family != self._pool.family or lease.value in self.changes or not entry or not entry.is_of(lease):
                return None
        self.changes.update(dict.fromkeys((lease.value for lease in leases), None))
        self.released += leases
        return {"released": len(leases)}

    def _add(self, changes: Changes) -> None:
        added = [entry for value, entry in changes.items() if entry]
        self._size += sizes.growth(added)
        for entry in added:
            self._note(entry)

    def _note(self, entry: Document) -> None:
        self._sandboxes.add((str(entry.get("id")), str(entry.get("ifname"))))
        self._podrefs.add((str(entry.get("podref")), str(entry.get("ifname"))))
