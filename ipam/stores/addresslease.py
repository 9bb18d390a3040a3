"""The store `addresslease`: one object of Kubernetes for each address, whose name the API server keeps unique.

A claim creates the object, a release deletes it with uid and resourceVersion as preconditions, and a takeover patches it
with a test of the resourceVersion. Nothing is shared by two leases, so there is nothing to wait for: no turn, no lock.

The first ADD of a container costs two lists, of the pod's leases and of the names in the first block of 256 addresses, a
create, and a read of the name that the address would have without a scope. So the lowest free address is given as long as
the first block of a range has one and no other claim takes it meanwhile. Then the search goes on in the block of the place
that differs by node and attachment (ipam.allocator.search_start), which among 2^16 addresses has a free one with high
probability; when a block is full all names of the pool are listed. A pool is said to be exhausted only after a list that
is no moment old.

What is remembered of a freed address is the state of its object: `cooling` until a time, or `former` for a pod that
comes back under its name. Whoever claims the address takes the object over, and the memory goes.

A server before 1.31 reads all objects of the namespace for a consistent list, whatever the selector. A first ADD asks for
what the server's cache has instead: what has changed since makes a create or a patch fail, and the ADD look again.
"""

from __future__ import annotations

import posix
import time

from cni.spec.errors import CniError
from cni.spec.request import Attachment
from ipam.stores import addresslease_objects as objects
from ipam.stores.addresslease_claim import Claim, standing
from ipam.stores.addresslease_objects import Entry
from ipam.stores.addresslease_requests import Objects
from ipam.stores.base import FORMER, SHARED_SECONDS, Claimed, Lease, Owner, Pool, Store, Taken, Unknown, Want, returns
from ipam.stores.kubernetes_api import ADDRESSES, Api, Conflict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    Window = tuple[str, str | None, int, int, int]

_NOBODY = Attachment("railcni", "status", "none")
_FORGETS, _FORGOTTEN = (
    8,
    500,
)  # so many of 256 releases look for what must be forgotten, and so many objects each removes


class AddressLeaseStore(Store):
    """The store that `described` describes (ipam.stores.describe); every request is over in `seconds`.

    `known` tells the leases of this node's records.
    """

    __slots__ = (
        *("_again", "api", "_depth", "_described", "_entries", "_known", "_lists", "_new"),
        *("_objects", "_recent", "_surveyed"),
    )

    kind = "addresslease"
    window = objects.BLOCK_SIZE

    def __init__(
        self,
        described: dict[str, Any],
        seconds: float = SHARED_SECONDS,
        known: Callable[[], list[Lease]] = list,
    ) -> None:
        self.cooldown = 0
        self._described = described
        self.api = Api(described.get("kubeconfig") or "", seconds)
        self._objects = Objects(self.api)
        self._known = known
        self._depth = 0
        self._entries: dict[str, Entry] = {}  # by their names, as they were read in this turn
        self._lists: dict[tuple[Any, ...], Any] = {}  # what was listed in this turn
        self._new = False  # nothing was ever claimed for the attachment
        self._recent = False  # what is listed may be a moment old
        self._surveyed: tuple[list[Lease], list[Lease], list[tuple[int, int]]] = ([], [], [])
        self._again = False  # what was surveyed holds: a claim was lost since, and nothing else was done

    def record(self) -> dict[str, Any]:
        return self._described

    def enter(self) -> None:
        """What was read in the last turn is forgotten; no lock is taken."""
        if self._depth == 0:
            self._forget()
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1

    def finish_by(self, deadline: float) -> None:
        self.api.deadline = deadline

    def close(self) -> None:
        """Close the connection."""
        self.api.close()

    def expect_nothing(self) -> None:
        self._new = self._recent = True

    def _forget(self) -> None:
        self._entries.clear()
        self._lists.clear()

    # --- reads ---

    def ready(self) -> None:
        """The server is asked what it would say to a new object: its namespace may be absent, or on its way out."""
        lease = Lease(Want("railcni-status", 4, 0xC0000201, None), Owner(_NOBODY))
        self.api.try_create(ADDRESSES, objects.document(lease))

    def find(self, attachment: Attachment) -> list[Lease]:
        with self.turn():
            found = self._chosen({objects.ATTACHMENT: objects.attachment_label(attachment)})
            return _sorted(entry.lease for entry in found if entry.held and entry.lease.attachment == attachment)

    def find_pod(self, pod: tuple[str, str, str], ifname: str) -> list[Lease]:
        with self.turn():
            return _sorted(entry.lease for entry in self._of_pod(pod, ifname) if entry.held)

    def former(self, pod: tuple[str, str, str], ifname: str) -> list[tuple[int, int]]:
        if not returns(pod):
            return []
        last: dict[tuple[str, int], Lease] = {}
        with self.turn():
            freed = (entry.lease for entry in self._of_pod(pod, ifname) if not entry.held)
            for lease in sorted(freed, key=lambda lease: lease.sequence):
                last[lease.pool, lease.family] = lease
        return [(lease.family, lease.value) for lease in last.values()]

    def _of_pod(self, pod: tuple[str, str, str], ifname: str) -> list[Entry]:
        if not pod[1]:
            return []
        found = self._chosen({objects.POD: objects.pod_label(pod, ifname)})
        return [e for e in found if e.lease.pod[:2] == pod[:2] and e.lease.ifname == ifname]

    def survey(
        self, attachment: Attachment, pod: tuple[str, str, str], windows: Sequence[Window]
    ) -> tuple[list[Lease], list[Lease], list[tuple[int, int]]]:
        with self.turn():
            if not self._again:
                pods = self.find_pod(pod, attachment.ifname)
                if self._new and pod[1]:
                    own = [lease for lease in pods if lease.attachment == attachment]
                else:
                    own = self.find(attachment)
                self._surveyed = own, pods, self.former(pod, attachment.ifname)
            self._again = False
            return self._surveyed

    def are_full(self, windows: Sequence[Window]) -> bool:
        with self.turn():
            return any(self.occupied(*window).bit_count() == window[4] - window[3] + 1 for window in windows)

    def looks_again(self) -> bool:
        recent, self._recent = self._recent, False
        if recent:
            self._forget()
        return recent

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        def concerns(lease: Lease) -> bool:
            mine = bool(owner.pod[1]) and lease.pod[:2] == owner.pod[:2] and lease.ifname == owner.attachment.ifname
            near = lease.pool == pool or (scope is not None and lease.scope == scope)
            return near and not mine and lease.family == family and low <= lease.value <= high

        with self.turn():
            now = time.time()
            found = self._chosen({objects.STATE: objects.COOLING})
            return {entry.lease.value for entry in found if entry.cools(now) and concerns(entry.lease)}

    def holder(self, want: Want) -> Lease | None:
        entry = standing(self._objects, want)
        return entry.lease if entry else None

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        with self.turn():
            if low == high:
                return int(standing(self._objects, Want(pool, family, low, scope)) is not None)
            if ("whole", pool, scope, family) in self._lists or low // self.window != high // self.window:
                values = self._whole(pool, scope, family)
            else:
                values = self._held(pool, scope, family, {objects.BLOCK: objects.block_label(family, low)})
            return sum(1 << value - low for value in values if low <= value <= high)

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        with self.turn():
            held = self._whole(pool, scope, family)
            while value <= high and value in held:
                value += 1
            return value

    def _whole(self, pool: str, scope: str | None, family: int) -> set[int]:
        """All that cannot be claimed in a pool."""
        key = ("whole", pool, scope, family)
        if key not in self._lists:
            values = self._held(pool, scope, family, {objects.POOL: objects.label(pool)})
            if scope is not None:
                values |= self._held(pool, scope, family, {objects.SPACE: objects.space_label(pool, scope)})
            self._lists[key] = values
        found: set[int] = self._lists[key]
        return found

    def _held(self, pool: str, scope: str | None, family: int, labels: dict[str, str]) -> set[int]:
        """The addresses that are held in the pool or the scope, of the objects with `labels`."""
        own, space = objects.label(pool), None if scope is None else objects.space_label(pool, scope)
        values = set()
        key = ("names", *labels.items())
        if key not in self._lists:
            self._lists[key] = self._objects.names(labels | {objects.STATE: objects.HELD}, self._recent)
        for name, found in self._lists[key]:
            if found.get(objects.POOL) == own or (space and found.get(objects.SPACE) == space):
                of, value = objects.address_of(name)
                if of == family:
                    values.add(value)
        return values

    def leases(self, pool: str, after: Lease | None = None, limit: int = 1000, node: str = "") -> list[Lease]:
        with self.turn():
            found = _sorted(entry.lease for entry in self._of_pool(pool, node))
        key = (after.family, after.value) if after else (0, 0)
        return [lease for lease in found if (lease.family, lease.value) > key or not after][:limit]

    def _of_pool(self, pool: str, node: str) -> list[Entry]:
        if ("all",) in self._lists:
            found: list[Entry] = self._lists[("all",)]
        else:
            labels = {objects.POOL: objects.label(pool), objects.STATE: objects.HELD}
            found = self._chosen(labels | ({objects.NODE: objects.label(node)} if node else {}))
        return [e for e in found if e.held and e.lease.pool == pool and (not node or e.lease.node == node)]

    def pools(self) -> list[Pool]:
        with self.turn():
            found = self._lists[("all",)] = self._chosen({objects.STATE: objects.HELD})
        used: dict[tuple[str, int], int] = {}
        for entry in found:
            key = entry.lease.pool, entry.lease.family
            used[key] = used.get(key, 0) + 1
        return [Pool(name, family, count) for (name, family), count in sorted(used.items())]

    def of_earlier_boots(self, pool: str, node: str, boot_id: str, limit: int = 1000) -> list[Lease]:
        with self.turn():
            found = (entry.lease for entry in self._of_pool(pool, node) if entry.lease.boot_id != boot_id)
            return _sorted(found)[:limit]

    def _chosen(self, labels: dict[str, str]) -> list[Entry]:
        """The objects with `labels`, listed once in a turn."""
        key = ("chosen", *labels.items())
        if key not in self._lists:
            self._lists[key] = self._objects.chosen(labels, self._recent)
            self._entries.update((entry.name, entry) for entry in self._lists[key])
        found: list[Entry] = self._lists[key]
        return found

    def entry(self, lease: Lease) -> Entry | None:
        """The object at the place of `lease`."""
        name = objects.name_of(lease.pool, lease.scope, lease.family, lease.value)
        return self._entries.get(name) or self._objects.get(name)

    # --- changes ---

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        with self.turn():
            claim = Claim(self._objects, wants, owner, instead_of, self.entry)
            claim.cooldown, self._again = self.cooldown, False
            try:
                answer = claim.make()
            finally:
                self._forget()
            self._again = isinstance(answer, Taken) and not instead_of
            self._recent = False
            self._new = self._new and isinstance(answer, Taken)
            return answer

    def release(self, leases: Sequence[Lease]) -> int:
        with self.turn():
            freed = sum([self._free(lease) for lease in {lease.key(): lease for lease in leases}.values()])
            self._forget()
            self._recent = self._again = False
        remembers = self.cooldown or any(returns(lease.pod) for lease in leases)
        if freed and remembers and posix.urandom(1)[0] < _FORGETS:
            self.forget()
        return freed

    def _free(self, lease: Lease) -> bool:
        """Free a lease if it is still there; whether it was."""

        def free(entry: Entry) -> bool:
            if self.cooldown or returns(lease.pod):
                return bool(self._objects.replace(entry, entry.freed(time.time_ns(), self.cooldown)))
            return self._objects.remove(entry)

        return bool(self._objects.change(self.entry(lease), lease, free))

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """At each address that the attachment's record names an object is left that a late create or takeover meets."""
        with self.turn():
            for lease in self._known():
                if lease.attachment == attachment:
                    self._void(lease)
            self._forget()

    def _void(self, lease: Lease) -> None:
        document = objects.document(lease, objects.FORMER)
        document["spec"]["sequence"] = time.time_ns()
        try:
            entry, ours = self._objects.create(document, lease)
            if not ours:  # a takeover that is still under way supposes its former version
                labels = entry.labels | {objects.FENCE: str(time.time_ns())}
                self._objects.replace(entry, {"metadata": {"labels": labels}, "spec": entry.spec})
        except Conflict:
            pass  # it has changed since, or has gone

    def forget(self) -> None:
        """Remove what is remembered too long: ended cooldowns, and the oldest addresses of pods that come back."""
        now = time.time_ns()
        try:
            found = self._objects.chosen({objects.STATE: objects.FORMER})
            memories = sorted((e for e in found if returns(e.lease.pod)), key=lambda e: -e.lease.sequence)
            ended = memories[FORMER:] + [e for e in found if not returns(e.lease.pod)]
            cooled = self._objects.chosen({objects.STATE: objects.COOLING})
            ended += [e for e in cooled if not e.cools(now / 1e9) and not returns(e.lease.pod)]
            for entry in [e for e in ended if now - e.lease.sequence > objects.LATE_SECONDS * 1e9][:_FORGOTTEN]:
                try:
                    self._objects.remove(entry)
                except Conflict:
                    pass  # it is used again
        except CniError:
            pass  # the release is made; another one will do this


def _sorted(leases: Iterable[Lease]) -> list[Lease]:
    return sorted(leases, key=lambda lease: (lease.pool, lease.family, lease.value))
