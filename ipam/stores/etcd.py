"""The etcd store: one set of leases for all nodes that name the same cluster and prefix.

A claim is one transaction, which creates the keys of all its addresses if none of them is there; ipam.stores.etcd_keys
says which keys. So claims need no lock, and nothing of another is ever overwritten.

It speaks to etcd's JSON gateway (3.4 or newer) by a small HTTP client of ours, since a plugin is a process for each
call. Beside the libraries, a process that claims 300 addresses, medians of five in ms on a busy machine of two cores:

                                    import    first claim    every other claim
    this module                          4            2.4                 1.2
    this module, TLS                     3             13                 1.3
    etcd3 0.12.0 (gRPC)                158            6.7                 1.0
    etcd3 0.12.0, TLS                  192            8.2                 1.0
    etcd3gw 2.7.0 (requests)           143            4.5                 1.7

etcd3 had its last release in 2020, needs PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python with a protobuf of today, and its
channel serves no child that is forked later. `python -m tests.bench.etcd` measures the store itself.

A reply that was lost: the store looks whether the claim was made, and forbids it in the same transaction when it was
not, by a key that every claim asks for. So a request that is still on its way, in a member that was stopped for a
while, comes to nothing.
"""

from __future__ import annotations

import posix

from cni.spec.errors import CniError
from ipam.stores import etcd_txn as txn
from ipam.stores.base import (
    CREATE,
    FORMER,
    READ,
    SHARED_SECONDS,
    Claimed,
    Lease,
    Owner,
    Pool,
    Store,
    Taken,
    Unknown,
    Unreachable,
    Want,
    given_up,
    returns,
)
from ipam.stores.etcd_gateway import Gateway, Open, endpoint
from ipam.stores.etcd_keys import (
    BLOCK,
    LEASE,
    Keys,
    address_of,
    end_of,
    last_name,
    next_key,
    parse,
    place_of,
    pod_of,
    unescaped,
    value_of,
)
from ipam.stores.etcd_search import Search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    from cni.spec.request import Attachment
    from ipam.stores.etcd_search import Window
    from ipam.stores.etcd_txn import Entry, Op

_VOID_SECONDS = 600  # how long a claim that was given up may still be on its way
_WINDOWS = 50  # that are looked at in one request
_AT_ONCE = 64  # leases that are read by their keys in one request
_FORGETS, _FORGOTTEN = 8, 500  # so many of 256 releases look for what must be forgotten, and so many keys each removes


class EtcdStore(Store):
    """The store that `described` describes (ipam.stores.describe); every request is over in `seconds`."""

    __slots__ = ("_described", "_gateway", "_keys", "_search")

    kind = "etcd"
    window = BLOCK

    def __init__(self, described: dict[str, Any], use: int = CREATE, seconds: float = SHARED_SECONDS) -> None:
        self.cooldown = 0
        self._described = described
        self._keys = Keys(described["prefix"])
        paths = (described["ca"], described["cert"], described["key"])
        endpoints = [endpoint(text, False) for text in described["endpoints"]]
        self._gateway = Gateway(endpoints, paths, described["user"], described.get("password", ""), seconds)
        self._search = Search(self._keys, self._call, use != READ)

    def record(self) -> dict[str, Any]:
        return {key: value for key, value in self._described.items() if key != "password"}

    def enter(self) -> None:
        """Nothing: no turns are taken."""

    def leave(self) -> None:
        """Nothing: the connection is kept."""

    def finish_by(self, deadline: float) -> None:
        self._gateway.deadline = deadline

    def close(self) -> None:
        """Close the connection."""
        self._gateway.close()

    def find(self, attachment: Attachment) -> list[Lease]:
        prefix = self._keys.all("attachment", *attachment.key())
        return [parse(*entry) for entry in self._read(txn.read(prefix, end_of(prefix)))[0]]

    def survey(
        self, attachment: Attachment, pod: tuple[str, str, str], windows: Sequence[Window]
    ) -> tuple[list[Lease], list[Lease], list[tuple[int, int]]]:
        own = self._keys.all("attachment", *attachment.key())
        of_pod = self._keys.all("pod", *pod[:2], attachment.ifname)
        reads = [txn.read(own, end_of(own)), txn.read(of_pod, end_of(of_pod), keys_only=True)]
        memory = self._former(pod, attachment.ifname)
        windows = windows[:_WINDOWS]
        reply = self._call({"success": reads + memory + self._search.expect(windows)})
        found, listed, *seen = txn.answers(reply)
        former = [address_of(value) for answer in seen[: len(memory)] for _, value in txn.entries(answer)]
        self._search.met(windows, seen[len(memory) :])
        leases = [parse(*entry) for entry in txn.entries(found)]
        return leases, self._of_pod(pod, attachment.ifname, of_pod, txn.entries(listed)), former

    def former(self, pod: tuple[str, str, str], ifname: str) -> list[tuple[int, int]]:
        memory = self._former(pod, ifname)
        return [address_of(value) for _, value in self._read(*memory)[0]] if memory else []

    def _former(self, pod: tuple[str, str, str], ifname: str) -> list[Op]:
        """The read of what is remembered of a pod; none when nothing can be."""
        prefix = self._keys.all("former", *pod[:2], ifname)
        return [txn.read(prefix, end_of(prefix))] if returns(pod) else []

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        own = pod_of(owner.pod, owner.attachment.ifname)
        reads = []
        for place in self._keys.places(Want(pool, family, low, scope)):
            first, last = (self._keys.cooling(*place, family, value) for value in (low, high))
            reads.append(txn.read(first, next_key(last)))
        return {value_of(key) for found in self._read(*reads) for key, pod in found if not own or pod != own}

    def find_pod(self, pod: tuple[str, str, str], ifname: str) -> list[Lease]:
        prefix = self._keys.all("pod", *pod[:2], ifname)
        return self._of_pod(pod, ifname, prefix, self._read(txn.read(prefix, end_of(prefix), keys_only=True))[0])

    def _of_pod(self, pod: tuple[str, str, str], ifname: str, prefix: bytes, found: list[Entry]) -> list[Lease]:
        leases = self._leases([key[len(prefix) :] for key, _ in found])
        return [lease for lease in leases if pod[1] and lease.pod[:2] == pod[:2] and lease.ifname == ifname]

    def holder(self, want: Want) -> Lease | None:
        found, *reserved = self._read(*(txn.read(key) for key in self._keys.unique(want)))
        if not found and reserved and reserved[0]:
            pool = reserved[0][0][1].decode("utf-8", "replace")
            (found,) = self._read(txn.read(self._keys.taken(LEASE, pool, want.family, want.value)))
        return parse(*found[0]) if found else None

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        return self._search.occupied((pool, scope, family, low, high))

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        return self._search.next_open((pool, scope, family, value, high))

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        leases = [Lease(want, owner) for want in wants]
        puts: dict[bytes, bytes] = {}
        for lease in leases:
            puts |= self._keys.entries(lease)
        former = {key for old in instead_of for key in self._keys.entries(old)}
        gone = [key for key in former if key not in puts]
        gone += {mark for old in instead_of for mark in self._keys.marks(old, puts.keys())}
        unique = [key for want in wants for key in self._keys.unique(want)]
        identities = [self._keys.identity(old) for old in instead_of]
        looked_at = {*identities, *unique, *(key for old in instead_of for key in self._keys.unique(old))}
        reads = [txn.read(key, keys_only=True) for key in looked_at]
        if len(set(unique)) < len(unique) or len(set(identities)) < len(identities):  # it cannot succeed
            found = txn.answers(self._call(txn.transaction([], reads)))
            return Taken(self._taken(wants, instead_of, found))
        void = self._keys.all("void", *owner.attachment.key())
        compare = [txn.exists(key) for key in identities]
        compare += [txn.absent(key) for key in unique if key not in former]
        compare.append(txn.absent(self._keys.void(owner.attachment, owner.sequence), end_of(void)))
        changes = [txn.put(*entry) for entry in puts.items()] + [txn.delete(key) for key in gone]
        freed = given_up(instead_of, wants) if self.cooldown else []
        term = self._term() if freed else ""
        memory = {key: pod for old in freed for key, pod in self._cooling(old, term).items()}
        changes += [txn.put(key, pod, term) for key, pod in memory.items()]
        try:
            reply = self._call(txn.transaction(compare, changes, reads), once=True)
        except Open as fault:
            return self._settled(leases, owner, fault)
        if txn.succeeded(reply):
            return Claimed(leases)
        taken = self._taken(wants, instead_of, txn.answers(reply))
        return Taken(taken) if taken else Unknown(Open(f"a claim of {owner.attachment} came too late: retry"))

    def _taken(self, wants: Sequence[Want], instead_of: Sequence[Lease], found: Sequence[dict[str, Any]]) -> list[Want]:
        """What stood against a claim, of the keys that were `found`."""
        there = {key for answer in found for key, _ in txn.entries(answer)}
        taken = []
        for old in instead_of:
            if self._keys.identity(old) in there:
                there -= {self._keys.identity(old), *self._keys.unique(old)}
            else:
                taken.append(Want(old.pool, old.family, old.value, old.scope))
        for want in wants:
            unique = self._keys.unique(want)
            if there.isdisjoint(unique):
                there.update(unique)
            else:
                taken.append(want)
        return taken

    def _settled(self, leases: list[Lease], owner: Owner, fault: CniError) -> Claimed | Unknown:
        """Whether a claim was made whose reply was lost; when it was not, it never will be."""
        try:
            if self._forbid(owner.attachment, owner.sequence, [self._keys.identity(lease) for lease in leases]):
                return Unknown(fault)
        except CniError as other:
            return Unknown(other)
        return Claimed(leases)

    def settle(self, attachment: Attachment, sequence: int) -> None:
        self._forbid(attachment, sequence, [])

    def _forbid(self, attachment: Attachment, sequence: int, unless: list[bytes]) -> bool:
        """Let no claim of `attachment` up to `sequence` succeed any more, unless these keys are there; whether so."""
        lease = self._grant(_VOID_SECONDS)
        void = [txn.put(self._keys.void(attachment, sequence), b"", lease)]
        if not unless:
            self._call(txn.transaction([], void))
            return True
        return not txn.succeeded(self._call(txn.transaction([txn.exists(key) for key in unless], [], void)))

    def release(self, leases: Sequence[Lease]) -> int:
        if not leases:
            return 0
        distinct = list({lease.key(): lease for lease in leases}.values())
        term = self._term()
        each = []
        written: set[bytes] = set()  # etcd takes a key once
        for lease in sorted(
            distinct, key=lambda lease: -lease.sequence
        ):  # etcd compares all before it changes anything
            changes = [txn.delete(key) for key in (*self._keys.entries(lease), *self._keys.marks(lease))]
            cooling, former = self._cooling(lease, term), self._remembered(lease)
            changes += [txn.put(key, pod, term) for key, pod in cooling.items() if key not in written]
            changes += [txn.put(key, place) for key, place in former.items() if key not in written]
            written |= {*cooling, *former}
            each.append(txn.within(txn.transaction([txn.exists(self._keys.identity(lease))], changes)))
        freed = sum(txn.inner(self._call(txn.transaction([], each))))
        if any(returns(lease.pod) for lease in distinct) and posix.urandom(1)[0] < _FORGETS:
            self.forget()
        return freed

    def _term(self) -> str:
        """The etcd lease that ends with a cooldown that begins now; "" for none."""
        try:
            return self._grant(self.cooldown) if self.cooldown else ""
        except Unreachable:
            raise
        except CniError:  # etcd takes no more; what is leased must be freed nevertheless
            return ""

    def _cooling(self, lease: Lease, term: str) -> dict[bytes, bytes]:
        """What keeps the address of `lease` from being given to others until `term` ends."""
        pod = pod_of(lease.pod, lease.ifname)
        places = self._keys.places(lease) if term else []
        return {self._keys.cooling(*place, lease.family, lease.value): pod for place in places}

    def _remembered(self, lease: Lease) -> dict[bytes, bytes]:
        """What remembers that the pod of `lease` had its address."""
        return {self._keys.former(lease): place_of(lease.family, lease.value)} if returns(lease.pod) else {}

    def forget(self) -> None:
        """Remove the oldest of what is remembered of pods, as far as it is too much."""
        prefix = self._keys.all("former")
        try:
            (counted,) = txn.answers(self._call({"success": [txn.count(prefix, end_of(prefix))]}))
            surplus = txn.number(counted) - FORMER
            if surplus > 0:
                oldest = txn.read(prefix, end_of(prefix), min(surplus, _FORGOTTEN), keys_only=True, oldest=True)
                self._call(txn.transaction([], [txn.delete(key) for key, _ in self._read(oldest)[0]]))
        except CniError:
            pass  # the release is made; another one will see to it

    def leases(self, pool: str, after: Lease | None = None, limit: int = 1000, node: str = "") -> list[Lease]:
        prefix = self._keys.all("node", node, pool) if node else self._keys.all(LEASE, pool)
        place = self._keys.all(LEASE, pool)[len(self._keys.all(LEASE)) :]
        start = prefix
        if after:
            key = self._keys.taken(LEASE, pool, after.family, after.value)
            start = next_key(prefix + last_name(key).encode())
        while True:
            (found,) = self._read(txn.read(start, end_of(prefix), limit, keys_only=bool(node)))
            if not node or not found:
                return [parse(*entry) for entry in found]
            page = [
                lease
                for lease in self._leases([place + last_name(key).encode() for key, _ in found])
                if lease.node == node
            ]
            if page:
                return page
            start = next_key(found[-1][0])  # all of these have gone in the meantime

    def pools(self) -> list[Pool]:
        prefix = self._keys.all(LEASE)
        found: list[Pool] = []
        (first,) = self._read(txn.read(prefix, end_of(prefix), 1, keys_only=True))
        while first:
            name, _, place = first[0][0][len(prefix) :].partition(b"/")
            own = prefix + name + b"/"
            reply = self._call(
                txn.transaction(
                    [],
                    [txn.count(own, end_of(own)), txn.read(end_of(own), end_of(prefix), 1, keys_only=True)],
                )
            )
            counted, following = txn.answers(reply)
            found.append(Pool(unescaped(name), 4 if len(place) == 8 else 6, txn.number(counted)))
            first = txn.entries(following)
        return sorted(found, key=lambda pool: pool.name)

    def of_earlier_boots(self, pool: str, node: str, boot_id: str, limit: int = 1000) -> list[Lease]:
        found: list[Lease] = []
        page = self.leases(pool, None, 1000, node)
        while page and len(found) < limit:
            found += [lease for lease in page if lease.boot_id != boot_id]
            page = self.leases(pool, page[-1], 1000, node)
        return found[:limit]

    def entries(self, after: bytes = b"", limit: int = 1000) -> list[Entry]:
        """Up to `limit` keys below the prefix, with their values, in their order, those behind `after`; for an audit."""
        root = self._keys.root
        return self._read(txn.read(next_key(after) if after else root, end_of(root), limit))[0]

    @property
    def root(self) -> bytes:
        """What all its keys begin with."""
        return self._keys.root

    def expected(self, lease: Lease) -> dict[bytes, bytes]:
        """All keys that stand for `lease`, with their values."""
        return self._keys.entries(lease)

    def _leases(self, places: list[bytes]) -> list[Lease]:
        """The leases at these places, POOL/ADDRESS as in keys; those that have gone are left out."""
        prefix = self._keys.all(LEASE)
        found: list[Lease] = []
        for i in range(0, len(places), _AT_ONCE):
            reads = [txn.read(prefix + place) for place in places[i : i + _AT_ONCE]]
            found += [parse(*entry) for entries in self._read(*reads) for entry in entries]
        return found

    def _grant(self, seconds: int) -> str:
        """The id of an etcd lease: what is put with it goes after `seconds`."""
        return str(self._gateway.call("lease/grant", {"TTL": str(seconds)}).get("ID") or "")

    def _read(self, *reads: Op) -> list[list[Entry]]:
        """What each of `reads` finds, all at one moment."""
        return [txn.entries(answer) for answer in txn.answers(self._call({"success": reads}))]

    def _call(self, transaction: dict[str, Any], once: bool = False) -> dict[str, Any]:
        return self._gateway.call("kv/txn", transaction, once)
