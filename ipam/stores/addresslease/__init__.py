"""The store `addresslease`: one Kubernetes object for each address. The API server keeps the names of objects unique.

A claim creates the object. A release deletes it with uid and resourceVersion as preconditions, and a takeover patches
it with a test of the resourceVersion. Leases share no object, so the store needs no lock.

A list with any selector costs the server some microseconds for each object of the namespace. So an ADD or a DEL lists
as little as possible. An ADD reads the leases of a pod's former sandbox from this node's records. A search lists the
names in the pool's first block of 256 addresses. If the last address of this block is leased, the search makes no list,
but tries one address at each of two other positions in the pool, which depend on node and attachment (ipam.search). If
another claim takes the found address of the first block, the search tries one more address in the block, then the two
positions. Then it lists blocks at more positions, and at last the whole pool. Only a consistent list shows that a pool
is exhausted.

The object of a freed address stays until the end of its cooldown; the next claim takes it over. A separate object,
named by the pod, remembers the former addresses of a StatefulSet's pod.

For a consistent list, an API server before 1.31, or with an etcd before 3.5, reads all objects of the namespace from
etcd, which takes seconds for 20,000 objects. So the first ADD of an attachment reads the server's cache. If the cache
was too old, the ADD's create or patch fails, and the ADD then reads consistently.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Want, by_place, given_up, returns
from ipam.ranges import parse_address
from ipam.stores.addresslease import objects
from ipam.stores.addresslease.objects import Entry
from ipam.stores.addresslease.requests import Objects
from ipam.stores.apiserver.faults import Conflict
from ipam.stores.apiserver.resources import ADDRESSES
from ipam.stores.apiserver.store import ObjectStore, Undo, refuse_elsewhere
from ipam.stores.base import FORMER, Claimed, Survey, Taken, Unknown, Window
from ipam.stores.served import NOBODY, conflicts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")

_FORGETS, _FORGOTTEN = 8, 500  # how many of 256 releases also remove old memories; how many objects each may remove


class AddressLeaseStore(ObjectStore):
    """The store of AddressLeases."""

    kind = "addresslease"
    window = objects.BLOCK_SIZE
    places = 6  # tried first, since reading past a full block lists the whole pool

    def _prepare(self) -> None:
        self._objects = Objects(self.api)
        self._lists: dict[tuple[Any, ...], Any] = {}  # the results of this session's lists
        self._recent = False  # whether lists come from the server's cache, which may be a moment old
        self._surveyed: Survey | None = None  # the last survey for a new attachment
        self._freed: set[tuple[Attachment, str]] = set()  # of this session: attachment and object

    def _begin(self) -> None:
        """Forget what the last session has read. This store has no lock to take."""
        self._lists.clear()
        self._freed.clear()

    def ready(self, wants: Sequence[Want] = ()) -> None:
        """Raise CniError if namespace, rights or CRD prevent a claim, or another namespace has a pool of `wants`."""
        sent = objects.memory(Lease(Want("railcni-status", 4, 0xC0000201, ""), NOBODY), 1)
        made = self.api.try_create(ADDRESSES, sent)
        self.api.check_rights(ADDRESSES)
        dropped = sent["spec"].keys() - (made.get("spec") or sent["spec"]).keys()
        if dropped:
            raise InvalidConfig(
                "the CustomResourceDefinition addressleases.railcni.io is too old: the server drops"
                f" {', '.join(sorted(dropped))}. Apply conf/kubernetes/crds/addressleases.yaml"
            )
        for want in wants:
            if self._objects.closed_pool(want) == {}:
                refuse_elsewhere(self.api, want.pool)

    def find(self, attachment: Attachment) -> list[Lease]:
        """As Store.find, but without a search if all leases in the attachment's record still exist: the attachment has
        no others, since the record also has those that an unfinished claim was to give up."""
        with self.session():
            recorded = [lease for lease in self._known() if lease.attachment == attachment]
            found: list[Lease] = []
            for lease in recorded:
                standing = self._standing([lease])
                if not standing:
                    break  # the search finds the others too
                found += standing
            if not recorded or len(found) < len(recorded):
                found = [entry.lease for entry in self._entries(attachment)]
            return by_place(found)

    def _entries(self, attachment: Attachment) -> list[Entry]:
        """The objects that hold an address for `attachment`, by a search."""
        labels = {objects.ATTACHMENT: objects.hashed(*attachment.key())}
        chosen = self._once(("of", attachment), lambda: self._objects.chosen(labels, self._recent))
        return [entry for entry in chosen if entry.held and entry.lease.attachment == attachment]

    def survey(self, owner: Owner, windows: Sequence[Window], new: bool) -> Survey:
        """As Store.survey. `near_full`: the last address of the pool's first block (256 addresses) is held or cooling."""
        with self.session():
            if new and self._surveyed:
                self._recent = False  # another claim was first: the cache may be stale
                return self._surveyed
            if new != self._recent:
                self._lists.clear()
            self._recent = new
            own = [] if new else self._checked(self.find(owner.attachment))
            pods = self._standing([lease for lease in self._known() if lease.is_of_pod(owner)])
            pool, scope, family, _, last = windows[0] if windows else ("", None, 4, 0, 0)
            ends = last % self.window == self.window - 1  # else the range ends in its first block, which is always read
            end = self._objects.get(objects.name_of(Want(pool, family, last, scope)), new) if ends else None
            near_full = end is not None and end.state != objects.FORMER
            self._surveyed = Survey(own, by_place(pods), self._former(owner, new), near_full)
            return self._surveyed

    def _checked(self, own: Sequence[Lease]) -> list[Lease]:
        """Release duplicates of `own`, the leases of one attachment; return the leases of `own` that are left.

        A second object, with the other kind of name, may hold the same address (`twin`), if an ADD was killed or the
        outcome of its claim was unknown. If the attachment of `own` has the second object, release that object; if
        another attachment has it, release the lease of `own`.
        """
        kept: dict[tuple[str, int, int], Lease] = {}
        kinds = {(lease.pool, lease.scope is None): lease for lease in own}
        mixed = {pool for (pool, _), lease in kinds.items() if self._is_mixed(lease)}
        for lease in own:
            if lease.place in kept:
                continue  # it has been released
            kept[lease.place] = lease
            other = self._objects.twin(lease) if lease.pool in mixed else None
            if other is None:
                continue
            if other.lease.attachment == lease.attachment:
                self._objects.free(other, other.lease, 0)
            else:
                self._objects.free(self.entry(lease), lease, 0)
                del kept[lease.place]
            self._lists.clear()
        return list(kept.values())

    def _standing(self, recorded: Sequence[Lease]) -> list[Lease]:
        """The store's leases at the addresses of `recorded`, except those that belong to another attachment now."""
        read = [(lease, self.entry(lease)) for lease in recorded]
        return [e.lease for lease, e in read if e and e.held and e.lease.attachment == lease.attachment]

    def _former(self, owner: Owner, recent: bool) -> list[tuple[int, int]]:
        if not returns(owner.pod):
            return []
        entry = self._objects.get(objects.memory_name(owner.pod, owner.attachment.ifname), recent)
        return _readable(parse_address, entry.former.values()) if entry else []

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        def concerns(lease: Lease) -> bool:
            near = lease.pool == pool or (scope is not None and lease.scope == scope)
            return near and not lease.is_of_pod(owner) and lease.family == family and low <= lease.value <= high

        with self.session():
            now = time.time()
            # an object whose name has no address must hinder no claim, since any node can make one
            cooled = {objects.STATE: objects.COOLING}
            found = self._once(("cooling",), lambda: self._objects.chosen(cooled, self._recent))
            return {entry.lease.value for entry in found if entry.cools(now) and concerns(entry.lease)}

    def holder(self, want: Want) -> Lease | None:
        entry = self._objects.standing(want)
        return entry.lease if entry else None

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        with self.session():
            is_of_one_block = low // self.window == high // self.window
            if is_of_one_block and ("whole", pool, scope, family) not in self._lists:
                values = self._in_block(pool, scope, family, low)
            else:
                values = self._held(pool, scope, family)
            return sum(1 << value - low for value in values if low <= value <= high)

    def _in_block(self, pool: str, scope: str | None, family: int, low: int) -> set[int]:
        """The addresses, as integers, that cannot be claimed in the block of 256 addresses that contains `low`."""
        labels = {objects.BLOCK: objects.block_label(family, low)}
        if scope is None:
            return _values(family, self._listed(labels | {objects.POOL: objects.label(pool)}))
        want = Want(pool, family, low, scope)  # the list has the objects of all pools; the space is in their names
        spaces = {objects.space_of(name) for name in (objects.name_of(want), objects.twin_name(want))}
        return _values(family, [name for name in self._listed(labels) if objects.space_of(name) in spaces])

    def _held(self, pool: str, scope: str | None, family: int) -> set[int]:
        def read() -> set[int]:
            names = self._listed({objects.POOL: objects.label(pool)})
            if scope is not None:
                names = names + self._listed({objects.SPACE: objects.space_label(pool, scope)})
            return _values(family, names)

        return self._once(("whole", pool, scope, family), read)

    def _listed(self, labels: dict[str, str]) -> list[str]:
        """The names of the objects that hold an address and have all of `labels`."""
        held = labels | {objects.STATE: objects.HELD}
        return self._once(("names", *labels.items()), lambda: self._objects.names(held, self._recent))

    def leases(self, pool: str | None = None, node: str = "", recent: bool = False) -> Iterator[Lease]:
        """As Store.leases. `recent`: read from the API server's cache, which may be a moment old."""
        labels = {objects.STATE: objects.HELD} | ({objects.NODE: objects.label(node)} if node else {})
        labels |= {} if pool is None else {objects.POOL: objects.label(pool)}
        for entry in self._objects.each(labels, recent, self.unread):
            if entry.held and pool in (None, entry.lease.pool) and node in ("", entry.lease.node):
                yield entry.lease

    def _once(self, key: tuple[Any, ...], read: Callable[[], T]) -> T:
        """The result of `read()`, which is called once in a session for each `key`."""
        if key not in self._lists:
            self._lists[key] = read()
        found: T = self._lists[key]
        return found

    def entry(self, lease: Lease) -> Entry | None:
        """The object of the address of `lease`, even if it holds another lease; None if there is no object."""
        return self._objects.get(objects.name_of(lease))

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        with self.session():
            try:
                answer = self._attempt(wants, owner, instead_of)
            finally:
                self._lists.clear()
            if instead_of or not isinstance(answer, Taken):
                self._surveyed, self._recent = None, False
            return answer

    def _obstacles(self, wants: Sequence[Want], instead_of: Sequence[Lease]) -> list[Want]:
        if len(wants) == 1 and not instead_of:
            return []
        return conflicts(instead_of, wants, self._is_there, self._is_held)

    def _make(self, wants: Sequence[Want], leases: list[Lease], instead_of: Sequence[Lease], undo: Undo) -> list[Want]:
        """As ObjectStore._make: make an object for each lease, then free `instead_of`.

        If the process is killed, a retry completes the claim or DEL removes it, since each object names its attachment.
        """
        given = {old.key(): entry for old in instead_of if (entry := self.entry(old)) and entry.is_of(old)}
        if failed := conflicts(instead_of, wants, lambda old: old.key() in given, lambda want, freed: False):
            return failed
        former = {entry.name: entry for entry in given.values()}
        for want, lease in zip(wants, leases, strict=True):
            try:
                made = self._object_of(lease, former, undo)
            except Conflict:
                made = None
            if made is None or (self._is_mixed(lease) and self._objects.twin(lease, former, made.version)):
                return [want]
        names = {objects.name_of(lease) for lease in leases}
        freed = {lease.key() for lease in given_up(instead_of, wants)}
        for entry in former.values():
            if entry.name not in names:
                self._objects.free(entry, entry.lease, self.cooldown if entry.lease.key() in freed else 0)
        return []

    def _object_of(self, lease: Lease, given: dict[str, Entry], undo: Undo) -> Entry | None:
        """Create or take over the object for `lease`; None when another lease has the address. Raises Conflict.

        `given` has the objects of the leases to replace, by name. `undo` gets the function that undoes the change.
        """
        document = objects.document(lease)

        def take(entry: Entry) -> tuple[Entry, Entry]:
            return self._objects.replace(entry, document), entry

        former = given.get(document["metadata"]["name"])
        if former:
            replaced = self._objects.change(former, former.lease, take)
            if replaced is None:
                return None
        else:
            entry, ours = self._objects.create(document, lease)
            if ours:
                undo.append(lambda: self._objects.change(entry, entry.lease, self._objects.remove))
                return entry
            if entry.held or (self.cooldown and entry.cools(time.time()) and not entry.lease.is_of_pod(lease.owner)):
                return None
            replaced = take(entry)
        now, before = replaced
        labels = {key: text for key, text in before.labels.items() if key != objects.FENCE}  # it may have a newer one
        restored = {"metadata": {"labels": labels}, "spec": before.spec}
        undo.append(lambda: self._objects.change(now, now.lease, lambda entry: self._objects.replace(entry, restored)))
        return now

    def _is_there(self, lease: Lease) -> bool:
        entry = self.entry(lease)
        return entry is not None and entry.is_of(lease)

    def _is_held(self, want: Want, freed: Sequence[Lease]) -> bool:
        return self._objects.standing(want, [objects.name_of(old) for old in freed]) is not None

    def _is_mixed(self, lease: Want) -> bool:
        return self._moves or self._objects.is_mixed(lease)

    def release(self, leases: Sequence[Lease]) -> int:
        with self.session():
            distinct = {lease.key(): lease for lease in leases}.values()
            freed = [lease for lease in distinct if self._objects.free(self.entry(lease), lease, self.cooldown)]
            self._freed |= {(lease.attachment, objects.name_of(lease)) for lease in freed}
            self._lists.clear()
            self._surveyed, self._recent = None, False
        if freed and (self.cooldown or any(returns(lease.pod) for lease in freed)):
            self._remember([lease for lease in freed if returns(lease.pod)])
            if os.urandom(1)[0] < _FORGETS:
                self.forget()
        return len(freed)

    def _remember(self, leases: Sequence[Lease]) -> None:
        """Remember each address of `leases` for its pod. Ignore failures, since the release has already succeeded."""
        memories: dict[str, dict[str, Any]] = {}
        for lease in leases:
            document = objects.memory(lease, time.time_ns())
            same = memories.setdefault(document["metadata"]["name"], document)
            same["spec"]["former"].update(document["spec"]["former"])
        for document in memories.values():
            try:
                entry, _ = self._objects.create(document, leases[0])
                if entry.spec != document["spec"]:
                    document["spec"]["former"] = entry.former | document["spec"]["former"]
                    self._objects.replace(entry, document)
            except (CniError, Conflict):
                pass

    def abandon(self, lease: Lease) -> None:
        """Label the object of `lease`, whose node is gone, so that the admission policy lets other nodes free it."""

        def mark(entry: Entry) -> Entry:
            labels = {**entry.labels, objects.ABANDONED: "true"}
            return self._objects.replace(entry, {"metadata": {"labels": labels}, "spec": entry.spec})

        self._objects.change(self._objects.get(objects.name_of(lease)), lease, mark)

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """As Store.settle: make or label an object at each recorded address, so that a late create or patch fails.

        An address that the attachment has, or that this session has freed, needs none: its create was served, and a
        late patch fails after the release.
        """
        with self.session():
            served = self._freed | {(attachment, entry.name) for entry in self._entries(attachment)}
            for lease in self._known():
                if lease.attachment == attachment and (attachment, objects.name_of(lease)) not in served:
                    self._objects.fence(lease)
            self._lists.clear()

    def forget(self) -> None:
        """Delete objects that the store no longer needs.

        These are objects whose cooldown has ended, the oldest objects that remember former addresses of pods, and
        objects that make late creates fail, as soon as no late create can arrive any more.
        """
        now = time.time_ns()
        try:
            found = self._objects.chosen({objects.STATE: objects.FORMER}, recent=True)
            memories = sorted((e for e in found if e.former), key=lambda e: -e.lease.sequence)
            ended = memories[FORMER:] + [e for e in found if not e.former]
            cooled = self._objects.chosen({objects.STATE: objects.COOLING}, recent=True)
            ended += [e for e in cooled if not e.cools(now / 1e9)]
            for entry in [e for e in ended if not objects.is_recent(e.lease.sequence, now)][:_FORGOTTEN]:
                try:
                    self._objects.remove(entry)
                except Conflict:
                    pass  # the object is in use again
        except CniError:
            pass  # the release is done; a later release tries again


def _values(family: int, names: Sequence[str]) -> set[int]:
    """The addresses of `family`, as integers, in `names`, the names of AddressLeases."""
    return {value for of, value in _readable(objects.address_of, names) if of == family}


def _readable(read: Callable[[str], tuple[int, int]], texts: Iterable[str]) -> list[tuple[int, int]]:
    """The address (family, value) that `read` returns for each of `texts`. Skip a text if `read` raises ValueError."""
    found = []
    for text in texts:
        try:
            found.append(read(text))
        except ValueError:
            pass  # an audit reports the object
    return found
