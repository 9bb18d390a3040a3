"""The etcd store: one set of leases for all nodes that use the same etcd cluster and prefix.

A claim is one transaction: it creates the keys of all its addresses (ipam.stores.etcd.keys) if none of them exists. So
claims need no lock, and overwrite nothing.

The store uses the JSON gateway of etcd 3.4 or newer (ipam.stores.etcd.client).

After a lost reply one transaction looks for the claim. If the claim was not made, the transaction writes a key (void/)
that every claim tests. So the lost request fails if it still arrives, for example from an etcd member that was stopped
for a while.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from ipam.leases import Lease, Owner, Pool, Want, given_up, interface_of, returns
from ipam.stores.base import FORMER, Claimed, OutcomeUnknown, Survey, Taken, Unknown, Unreachable, Window
from ipam.stores.etcd import keys, txn
from ipam.stores.etcd.client import EtcdClient, endpoint
from ipam.stores.etcd.keys import BLOCK, LEASE, Keys, end_of, next_key
from ipam.stores.etcd.txn import Answer, Entry, Op, Reply
from ipam.stores.served import NOBODY, ServedStore, conflicts

_VOID_SECONDS = 600  # the longest time for which a lost request may still arrive
_WINDOWS = 50  # windows that one request reads
_COUNTED = 64  # blocks in a request, and blocks in a group: etcd takes 128 reads
_AT_ONCE = 64  # leases that one request reads by their keys
_FORGETS, _FORGOTTEN = 8, 500  # 8 of 256 releases also remove old former/ keys, each at most 500


class EtcdStore(ServedStore):
    """The store with the reference `store_ref` (stores.ref_of). `seconds` limit each request (ipam.stores.http)."""

    kind = "etcd"
    window = BLOCK

    def __init__(self, store_ref: dict[str, Any], seconds: float = 0) -> None:
        self.keys = Keys(store_ref["prefix"])
        paths = (store_ref["ca"], store_ref["cert"], store_ref["key"])
        endpoints = [endpoint(text, False) for text in store_ref["endpoints"]]
        self._etcd = EtcdClient(endpoints, paths, store_ref["user"], store_ref.get("password", ""), seconds)
        super().__init__({key: value for key, value in store_ref.items() if key != "password"}, self._etcd)
        self._seen: dict[Window, Sequence[Answer]] = {}  # readings of `survey` for the next `occupied`

    def ready(self, wants: Sequence[Want] = ()) -> None:
        """As Store.ready, by a claim that cannot succeed: etcd checks rights and space before the claim's tests."""
        key, *_ = puts = self.keys.entries(Lease(wants[0] if wants else Want("railcni-status", 4, 0, ""), NOBODY))
        self._call(txn.transaction([txn.exists(key), txn.absent(key)], [txn.put(*entry) for entry in puts.items()]))

    def find(self, attachment: Attachment) -> list[Lease]:
        prefix = self.keys.all("attachment", *attachment.key())
        return [self.keys.read(*entry) for entry in self._read(txn.read(prefix, end_of(prefix)))[0]]

    def survey(self, owner: Owner, windows: Sequence[Window], new: bool) -> Survey:
        pod, ifname = owner.pod, owner.attachment.ifname
        own = self.keys.all("attachment", *owner.attachment.key())
        of_pod, remembered = self.keys.all("pod", *pod[:2], ifname), self.keys.all("former", *pod[:2], ifname)
        reads = [txn.read(own, end_of(own)), txn.read(of_pod, end_of(of_pod), keys_only=True)]
        memory = [txn.read(remembered, end_of(remembered))] if returns(pod) else []
        windows = windows[:_WINDOWS]
        reply = self._call(txn.reads(reads + memory + [read for window in windows for read in self._spans(*window)]))
        found, listed, *seen = reply.answers
        former = [a for answer in seen[: len(memory)] for _, value in answer.entries for a in keys.address_of(value)]
        answers = iter(seen[len(memory) :])
        self._seen = {window: [next(answers) for _ in self._spans(*window)] for window in windows}
        leases = self._leases([key[len(of_pod) :] for key, _ in listed.entries])
        pods = [lease for lease in leases if lease.is_of_pod(owner)]
        return Survey([self.keys.read(*entry) for entry in found.entries], pods, former)

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        own = interface_of(owner.pod, owner.attachment.ifname).encode()
        places = self.keys.places(Want(pool, family, low, scope))
        reads = [txn.read(*self.keys.span(family, low, high, "cooling", *place)) for place in places]
        return {
            keys.value_of(key, family) for found in self._read(*reads) for key, pod in found if not own or pod != own
        }

    def holder(self, want: Want) -> Lease | None:
        found, *reserved = self._read(*(txn.read(key) for key in self.keys.unique(want)))
        if not found and reserved and reserved[0]:
            pool = reserved[0][0][1].decode("utf-8", "replace")
            (found,) = self._read(txn.read(self.keys.taken(LEASE, pool, want.family, want.value)))
        return self.keys.read(*found[0]) if found else None

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        window = (pool, scope, family, low, high)
        answers = self._seen.pop(window, None) or self._call(txn.reads(self._spans(*window))).answers
        bits = 0
        for answer in answers:
            for key, _ in answer.entries:
                bits |= 1 << keys.value_of(key, family) - low
        return bits

    def _spans(self, pool: str, scope: str | None, family: int, low: int, high: int) -> list[Op]:
        """The operations that read the leases of the pool, and the reservations of the scope, in low..high."""
        places = self.keys.places(Want(pool, family, low, scope))
        return [txn.read(*self.keys.span(family, low, high, *place), keys_only=True) for place in places]

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        """As Store.next_open. Skips blocks that are full of leases of the pool, or of reservations of the scope."""
        for place in self.keys.places(Want(pool, family, value, scope)):
            at = self._behind_full(place, family, value, high)
            if at > value:
                return at
        return value

    def _behind_full(self, place: tuple[str, str], family: int, value: int, high: int) -> int:
        """The first address in value..high that is in no full block of `place`; high + 1 if there is none.

        `place` is a pool or scope (Keys.places); a block has 64 addresses. One request counts the keys of each of the
        next 64 blocks, and of each of the 63 groups of 64 blocks after them. The next request begins at the first group
        that is not full.
        """
        at = value & -BLOCK
        while at <= high:
            blocks = range(at, high + 1, BLOCK)[:_COUNTED]
            groups = range(at + _COUNTED * BLOCK, high + 1, _COUNTED * BLOCK)[: _COUNTED - 1]
            spans = [(low, BLOCK) for low in blocks] + [(low, _COUNTED * BLOCK) for low in groups]
            counts = [txn.count(*self.keys.span(family, low, low + size - 1, *place)) for low, size in spans]
            for (low, size), answer in zip(spans, self._call(txn.reads(counts)).answers, strict=True):
                at = low
                if answer.number < size:
                    break
                at += size
            if size == BLOCK and at == low:
                return max(at, value)
        return high + 1

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        leases = [Lease(want, owner) for want in wants]
        puts: dict[bytes, bytes] = {}
        for lease in leases:
            puts |= self.keys.entries(lease)
        former = {key for old in instead_of for key in self.keys.entries(old)}
        gone = [key for key in former if key not in puts]
        unique = [key for want in wants for key in self.keys.unique(want)]
        identities = [self.keys.identity(old) for old in instead_of]
        looked_at = {*identities, *unique, *(key for old in instead_of for key in self.keys.unique(old))}
        reads = [txn.read(key, keys_only=True) for key in looked_at]
        if len(set(unique)) < len(unique) or len(set(identities)) < len(identities):  # cannot succeed
            found = self._call(txn.transaction([], reads)).answers
            return Taken(self._taken(wants, instead_of, found))
        voids = self.keys.void(owner.attachment, owner.sequence), end_of(self.keys.all("void", *owner.attachment.key()))
        compare = [txn.exists(key) for key in identities]
        compare += [txn.absent(key) for key in unique if key not in former]
        compare.append(txn.absent(*voids))
        reads.append(txn.read(*voids, keys_only=True))
        changes = [txn.put(*entry) for entry in puts.items()] + [txn.delete(key) for key in gone]
        freed = given_up(instead_of, wants) if self.cooldown else []
        term = self._term() if freed else 0
        memory = {key: pod for old in freed for key, pod in self._cooling(old, term).items()}
        changes += [txn.put(key, pod, term) for key, pod in memory.items()]
        try:
            reply = self._call(txn.transaction(compare, changes, reads), once=True)
        except OutcomeUnknown as fault:
            return self._settled(leases, owner, fault)
        if reply.succeeded:
            return Claimed(leases)
        taken = self._taken(wants, instead_of, reply.answers)
        if not taken:  # this claim is not late, since the caller holds a lock: the clock was set back after a `settle`
            owner.sequence = max([owner.sequence, *(keys.sequence_of(key) for key, _ in reply.answers[-1].entries)])
        late = OutcomeUnknown(f"a claim of {owner.attachment} came too late: retry")
        return Taken(taken) if taken else Unknown(late, failed=True)

    def _taken(self, wants: Sequence[Want], instead_of: Sequence[Lease], found: Sequence[Answer]) -> list[Want]:
        """The addresses that prevent a claim (ipam.stores.served.conflicts). `found` shows which keys exist."""
        there = {key for answer in found for key, _ in answer.entries}

        def is_held(want: Want, given: Sequence[Lease]) -> bool:
            return not there.isdisjoint({*self.keys.unique(want)}.difference(*map(self.keys.unique, given)))

        return conflicts(instead_of, wants, lambda old: self.keys.identity(old) in there, is_held)

    def _settled(self, leases: list[Lease], owner: Owner, fault: CniError) -> Claimed | Unknown:
        """Look for a claim with a lost reply. Return Claimed if it was made. Otherwise put a key that makes the claim
        fail if it still arrives, and return Unknown."""
        is_made = [txn.exists(self.keys.identity(lease)) for lease in leases]
        try:
            reply = self._call(txn.transaction(is_made, [], [self._void(owner.attachment, owner.sequence)]))
        except CniError as other:
            return Unknown(other)
        return Claimed(leases) if reply.succeeded else Unknown(fault, failed=True)

    def settle(self, attachment: Attachment, sequence: int) -> None:
        self._call(txn.transaction([], [self._void(attachment, sequence)]))

    def _void(self, attachment: Attachment, sequence: int) -> Op:
        """The operation that makes each claim of `attachment` with `sequence` or a lower one fail."""
        return txn.put(self.keys.void(attachment, sequence), b"", self._grant(_VOID_SECONDS))

    def release(self, leases: Sequence[Lease]) -> int:
        if not leases:
            return 0
        distinct = list({lease.key(): lease for lease in leases}.values())
        term = self._term()
        each = []
        written: set[bytes] = set()  # a transaction may put a key only once
        # etcd evaluates all comparisons before any change
        for lease in sorted(distinct, key=lambda lease: -lease.sequence):
            changes = [txn.delete(key) for key in self.keys.entries(lease)]
            cooling = self._cooling(lease, term)
            place = keys.place_of(lease.family, lease.value)
            memory = self.keys.all("former", *lease.pod[:2], lease.ifname, lease.pool)[:-1]
            former = {memory: place} if returns(lease.pod) else {}
            changes += [txn.put(key, pod, term) for key, pod in cooling.items() if key not in written]
            changes += [txn.put(key, place) for key, place in former.items() if key not in written]
            written |= {*cooling, *former}
            each.append(txn.within(txn.transaction([txn.exists(self.keys.identity(lease))], changes)))
        freed = sum(self._call(txn.transaction([], each)).inner)
        if any(returns(lease.pod) for lease in distinct) and os.urandom(1)[0] < _FORGETS:
            self.forget()
        return freed

    def _term(self) -> int:
        """The ID of a new etcd lease (a TTL of keys) for the cooldown; 0 without a cooldown, or if etcd is full."""
        try:
            return self._grant(self.cooldown) if self.cooldown else 0
        except Unreachable:
            raise
        except CniError:  # etcd accepts no more keys, but the release must succeed
            return 0

    def _cooling(self, lease: Lease, term: int) -> dict[bytes, bytes]:
        pod = interface_of(lease.pod, lease.ifname).encode()
        places = self.keys.places(lease) if term else []
        address = keys.place_of(lease.family, lease.value)
        return {self.keys.all("cooling", *place) + address: pod for place in places}

    def forget(self) -> None:
        """Remove the oldest former addresses of pods if the store has more than FORMER of them."""
        prefix = self.keys.all("former")
        try:
            (counted,) = self._call(txn.reads([txn.count(prefix, end_of(prefix))])).answers
            surplus = counted.number - FORMER
            if surplus > 0:
                oldest = txn.read(prefix, end_of(prefix), min(surplus, _FORGOTTEN), keys_only=True, oldest=True)
                self._call(txn.transaction([], [txn.delete(key) for key, _ in self._read(oldest)[0]]))
        except CniError:
            pass  # the release is done; a later release tries again

    def _page(self, pool: str, after: Lease | None, node: str) -> list[Lease]:
        of_node = self.keys.all("node", node)
        prefix = self.keys.all("node", node, pool) if node else self.keys.all(LEASE, pool)
        start = next_key(prefix + keys.place_of(after.family, after.value)) if after else prefix
        while True:
            (found,) = self._read(txn.read(start, end_of(prefix), self.page, keys_only=bool(node)))
            if not node or not found:
                return [self.keys.read(*entry) for entry in found]
            listed = self._leases([key[len(of_node) :] for key, _ in found])
            if own := [lease for lease in listed if lease.node == node]:
                return own
            start = next_key(found[-1][0])  # all leases of this page are gone by now

    def pools(self) -> list[Pool]:
        prefix = self.keys.all(LEASE)
        found: list[Pool] = []
        (first,) = self._read(txn.read(prefix, end_of(prefix), 1, keys_only=True))
        while first:
            name, _, place = first[0][0][len(prefix) :].partition(b"/")
            own = prefix + name + b"/"
            reads = [txn.count(own, end_of(own)), txn.read(end_of(own), end_of(prefix), 1, keys_only=True)]
            counted, following = self._call(txn.reads(reads)).answers
            found.append(Pool(keys.unescaped(name), 4 if len(place) == 8 else 6, counted.number))
            first = following.entries
        return sorted(found, key=lambda pool: pool.name)

    def entries(self, after: bytes = b"", limit: int = 1000) -> list[Entry]:
        """Up to `limit` pairs (key, value) for an audit, sorted by key, beginning with the first key after `after`."""
        root = self.keys.root
        return self._read(txn.read(next_key(after) if after else root, end_of(root), limit))[0]

    def _leases(self, places: list[bytes]) -> list[Lease]:
        """The leases at `places`, each the part POOL/ADDRESS of a key. Places without a lease are skipped."""
        prefix = self.keys.all(LEASE)
        found: list[Lease] = []
        for i in range(0, len(places), _AT_ONCE):
            reads = [txn.read(prefix + place) for place in places[i : i + _AT_ONCE]]
            found += [self.keys.read(*entry) for entries in self._read(*reads) for entry in entries]
        return found

    def _grant(self, seconds: int) -> int:
        """The ID of a new etcd lease. After `seconds` etcd deletes the keys that were put with this lease."""
        return self._etcd.call("lease/grant", {"TTL": seconds}, lambda reply: int(reply["ID"]))

    def _read(self, *reads: Op) -> list[list[Entry]]:
        """The pairs (key, value) that each of `reads` finds, all at one revision."""
        return [answer.entries for answer in self._call(txn.reads(reads)).answers]

    def _call(self, transaction: Op, once: bool = False) -> Reply:
        return self._etcd.call("kv/txn", transaction, lambda reply: Reply(transaction, reply), once)
