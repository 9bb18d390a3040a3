"""The two stores of the API server, as an agent reads them (the leases of a node, or all, page by page) and keeps them.

When an agent reads all, it keeps the leases that no node's agent frees, and each pool's count. It first reads the names and
labels of AddressLeases alone; a page of IPPools is a few objects.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from cni.cluster.agent import events
from cni.cluster.agent.loop import SECONDS
from cni.cluster.audit import in_use
from cni.cluster.audit.cluster import Cluster, PoolReading
from cni.cluster.audit.free import Freeing
from cni.cluster.audit.lost import is_abandoned
from cni.cluster.audit.model import IpamBlock, Key, Name, Node, Pod
from cni.cluster.audit.occupancy import Span, ranges_by_pool, spans_of
from cni.node.service.log import AgentLog
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment
from ipam import records as ipam_records
from ipam import upkeep
from ipam.leases import Lease
from ipam.ranges import Range, range_of
from ipam.stores import open_store
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.addresslease import objects as addresses
from ipam.stores.apiserver.faults import Conflict, Undefined
from ipam.stores.apiserver.resources import ADDRESSES, POOLS, RESERVATIONS
from ipam.stores.base import CHANGE, Claimed, Store
from ipam.stores.ippool import objects
from ipam.stores.ippool.objects import IPPool, Reservation, allocation

_NAMES = 1000  # names and labels of objects in one reply

Outcome = tuple[bool, str, str]  # whether the lease is settled; the reason of an Event and its message, "" for none
_SETTLED: Outcome = (True, "", "")
_BUSY: Outcome = (False, "", "")


class Usage:
    """The leases of a pool, counted by node. `object_bytes` is the size of the pool's object, 0 for none.

    `size` counts the addresses that `ranges`, else the pool's CIDR, give: 0 when the pool's name has no CIDR. `inside` counts
    the leases of these.
    """

    def __init__(self, name: str, family: int, value: int, object_bytes: int = 0, ranges: Iterable[Range] = ()) -> None:
        self.name = name
        self.used: Counter[str] = Counter()
        self.object_bytes = object_bytes
        self.inside = 0
        self._spans: list[Span] = []
        with contextlib.suppress(ValueError):
            self._spans = spans_of(range_of(name, family, value), ranges)
        self.size = sum(high - low + 1 for low, high in self._spans)

    def count(self, value: int, node: str) -> None:
        self.used[node] += 1
        self.inside += any(low <= value <= high for low, high in self._spans)


class GraceTracker:
    """Leases that each reading since the first has found dead, and its time; in memory alone, so a new agent begins again."""

    def __init__(self) -> None:
        self.leases: dict[Key, Lease] = {}
        self._first: dict[Key, float] = {}

    def saw(self, dead: Mapping[Key, Lease], now: float, grace: float) -> list[Key]:
        """Those of `dead` that the first reading found at least `grace` seconds ago."""
        self.leases = dict(dead)
        self._first = {key: self._first.get(key, now) for key in dead}
        return [key for key, first in self._first.items() if now - first >= grace]


class ClusterSource(ABC):
    """A store of the API server, as the agent reads it. `read_abandoned` sets the attributes `usage` to `faults`.

    `node_records` are the records of this node; `below` maps a path of the host to its path in this container.
    """

    kind = ""

    def __init__(self, node_records: Records, log: AgentLog, below: Callable[[str], str]) -> None:
        self._node_records = node_records
        self._log = log
        self._below = below
        self.cluster: Cluster
        self.store: Store
        self.freeing: Freeing
        self.usage: dict[str, Usage] = {}
        self.named: set[str] = set()  # nodes that leases name
        self.abandoned: dict[Key, Lease] = {}  # the leases that no node's agent frees
        self.unleased: dict[Key, Reservation] = {}  # of these, reservations without a lease
        self.faults: list[str] = []
        self.records: dict[Key, Lease] = {}  # of this node
        self.marked: dict[Key, Lease] = {}  # of this node's objects as of the last list, without those freed since
        self.intact: set[Key] = set()  # the recorded leases that were found as they were made since
        self.listed, self.listed_at = float("-inf"), 0  # monotonic, and nanoseconds since 1970 as sequences are
        self.dead, self.abandoned_dead, self.waiting = GraceTracker(), GraceTracker(), GraceTracker()
        self.seen_on: dict[Key, str] = {}  # the node of an abandoned lease's pod while it lived; "": of several

    def connect(self, cluster: Cluster) -> None:
        """Read `cluster` from now on."""
        self.cluster = cluster
        self.store = open_store({"kind": self.kind, "kubeconfig": cluster.path}, CHANGE, seconds=SECONDS)
        self.freeing = Freeing(self.store, cluster, self._node_records, self._below, SECONDS)

    def forget(self) -> None:
        """Forget the leases of other nodes: another agent is elected."""
        self._begin()
        self.abandoned_dead, self.waiting, self.seen_on = GraceTracker(), GraceTracker(), {}

    def remember_nodes(self, pods: Mapping[Name, Pod]) -> None:
        """Note the nodes of the pods of abandoned leases while they live; another pod of the same name does not count."""
        known = {key: node for key, node in self.seen_on.items() if key in self.abandoned}
        for key, lease in self.abandoned.items():
            pod = pods.get(lease.pod_name)
            if pod and pod.node and (not lease.pod[2] or pod.has_uid(lease.pod[2])):
                known[key] = pod.node if known.get(key, pod.node) == pod.node else ""
        self.seen_on = known

    def fault(self) -> str:
        """The fault of the served definition of the objects; "" for none."""
        return ""

    @abstractmethod
    def of_node(self, node: str) -> list[Lease]:
        """The leases with the label of `node`, as the server's cache has them."""

    @abstractmethod
    def read_abandoned(self, nodes: Mapping[str, Node], networks: Iterable[IpamBlock]) -> Iterator[None]:
        """Read all, a page at a time, for the leases that no agent on one of `nodes` frees. `networks` tell what pools give."""

    @abstractmethod
    def holder(self, lease: Lease) -> Lease | None:
        """The lease of the address of `lease` now: itself for its own. ValueError for a pool that gives no addresses."""

    @abstractmethod
    def abandon(self, lease: Lease) -> None:
        """Prepare the lease of a lost node to be freed."""

    def has_lost(self, before: float) -> bool:
        """Whether the newest lease of the records that is older than `before`, in ns, is lost: a restored backup has none of
        the newest. One object tells, where a list reads those of all nodes."""
        old = [lease for lease in self.records.values() if lease.sequence < before]
        newest = max(old, key=lambda lease: lease.sequence, default=None)
        if newest is None or newest.identity not in self.intact:
            return False
        try:
            return self.holder(newest) is None
        except ValueError:
            return False

    def is_there(self, lease: Lease) -> bool:
        """Whether the object that `of_node` read `lease` from still stands for it."""
        return self.holder(lease) is lease

    def is_intact(self, lease: Lease, marked: bool) -> bool:
        """Whether the lease stands as it was made; `marked`: `of_node` has read it."""
        return marked

    def complete(self, lease: Lease) -> bool:
        """Make the other objects of a lease that is held; whether one was missing."""
        return False

    def read_records(self) -> None:
        """Read this node's records for its leases in this store, without pending releases."""
        found: list[Lease] = []
        for attachment, _, record in self._node_records.all(ipam_records.PART):
            if record.get("pending") is True or (record.get("store") or {}).get("kind") != self.kind:
                continue
            try:
                found += ipam_records.leases(attachment, record)
            except ValueError:
                continue  # the next verb that reads the record says so
        self.records = {lease.identity: lease for lease in found}

    def restore(self, lease: Lease, others: Iterable[ClusterSource]) -> Outcome:
        """Put back the objects of a lease that this store has lost. CniError.

        The address of another lease stays with it. A lease without any object is put back only while it may be in use: the
        record may be that of a former sandbox of the pod. A pool that is closed, or an address that another store has, was
        moved there: then the record is to follow (`railcni ipam migrate`).
        """
        with in_use.excluded(self._node_records, lease.attachment) as users:
            record = upkeep.read_record(lease.attachment, self._node_records) if users else None
            if record is None or users is None or record["pending"] or record["sequence"] != lease.sequence:
                return _BUSY
            try:
                holder = self.holder(lease)
            except ValueError:
                return _SETTLED
            again = "was lost, and is restored"
            if holder is lease:
                lost = self.complete(lease)
                return (True, events.RESTORED, f"the overlap reservation of {lease.text} {again}") if lost else _SETTLED
            if holder and holder.pod_name == lease.pod_name:
                return _SETTLED
            if holder:
                other = holder.pod_ref or holder.container_id
                remedy = "delete one of the two pods, so that it gets another address"
                return True, events.CONTENDED, f"{lease.text} of pool {lease.pool} is held by {other} too: {remedy}"
            if not self._may_be_used(lease, users) or any(_has_moved(lease, other) for other in others):
                return _SETTLED
            try:
                answer = self.store.claim([lease], lease.owner)
            except InvalidConfig as fault:  # such as a pool that cannot be read, or was closed just now
                self._log.state(f"restore {lease.pool}", f"{lease.text} cannot be restored: {fault.msg}")
                return _SETTLED
            if not isinstance(answer, Claimed):
                return _BUSY
            return True, events.LEASE_RESTORED, f"the lease of {lease.text} in pool {lease.pool} {again}"

    def _may_be_used(self, lease: Lease, users: list[Attachment]) -> bool:
        try:
            return in_use.may_be(lease, users, self._node_records, self._below)
        except OSError:
            return True  # the agent cannot tell

    def _begin(self, networks: Iterable[IpamBlock] = ()) -> None:
        """Forget the last `read_abandoned`."""
        self._ranges = ranges_by_pool(networks)
        self.usage, self.named, self.abandoned, self.unleased, self.faults = {}, set(), {}, {}, []

    def _keep(self, leases: Iterable[Lease], nodes: Mapping[str, Node]) -> None:
        """Keep those of `leases` that no agent on one of `nodes` frees, nor this one."""
        for lease in leases:
            key = lease.identity
            if is_abandoned(lease, nodes) and key not in self.marked and key not in self.records:
                self.abandoned[key] = lease

    def _count(self, pool: str, family: int, value: int, node: str) -> None:
        if pool not in self.usage:
            self.usage[pool] = Usage(pool, family, value, ranges=self._ranges.get(pool, ()))
        self.usage[pool].count(value, node)
        self.named.add(node)


class PoolSource(ClusterSource):
    """IPPools and reservations, as whereabouts has them."""

    kind = "kubernetes"

    _read: dict[str, IPPool | None]  # since `of_node`

    def abandon(self, lease: Lease) -> None:
        """No policy judges the entries of a pool: there is nothing to prepare."""

    def fault(self) -> str:
        try:
            return objects.pruned(self.cluster.api.try_create(POOLS, objects.probe()))
        except Undefined:
            return ""  # the cluster has no pools

    def of_node(self, node: str) -> list[Lease]:
        self._read = {}
        if addresses.label(node) != node:
            return []  # such a name is no label's value
        pages = self.cluster.pages(RESERVATIONS, Reservation, labels=f"{objects.NODE_LABEL}={node}", recent=True)
        return [one.lease for page in pages for one in page if one.address and one.lease.pool]

    def read_abandoned(self, nodes: Mapping[str, Node], networks: Iterable[IpamBlock]) -> Iterator[None]:
        self._begin(networks)
        pools = PoolReading(self.cluster)
        for page in pools.read():
            for pool in page:
                self.usage[pool.name] = Usage(
                    pool.name, pool.family, pool.first, pool.size, self._ranges.get(pool.name, ())
                )
                for lease in pool.leases:
                    self._count(pool.name, *lease.address, lease.node)
                self._keep(pool.leases, nodes)
            yield
        unleased = pools.unleased()
        self.named |= {one.lease.node for one in unleased}
        self._keep((one.lease for one in unleased if one.address), nodes)
        self.unleased = {one.lease.identity: one for one in unleased}
        self.faults = pools.faults

    def holder(self, lease: Lease) -> Lease | None:
        reserved = self.cluster.reservation(lease)
        if reserved and not reserved.is_of(lease):
            return reserved.lease
        pool = self.cluster.pool(lease.pool)
        entry = allocation(pool, lease)
        if pool is None or entry is None:
            return None
        return lease if entry.is_of(lease) else pool.lease(entry, lease.scope)

    def is_there(self, lease: Lease) -> bool:
        reserved = self.cluster.reservation(lease)
        return reserved is not None and reserved.is_of(lease)

    def is_intact(self, lease: Lease, marked: bool) -> bool:
        if lease.scope is not None:
            return marked
        if lease.pool not in self._read:
            self._read[lease.pool] = self.cluster.pool(lease.pool)
        entry = allocation(self._read[lease.pool], lease)
        return entry is not None and entry.is_of(lease)

    def complete(self, lease: Lease) -> bool:
        if lease.scope is None or self.cluster.reservation(lease):
            return False
        try:
            self.cluster.api.create(RESERVATIONS, objects.reservation(lease))
        except Conflict:
            return False
        return True


class AddressSource(ClusterSource):
    """AddressLeases."""

    kind = "addresslease"
    store: AddressLeaseStore

    def of_node(self, node: str) -> list[Lease]:
        pages = self._leases({addresses.NODE: addresses.label(node)}, recent=True)
        return [lease for page in pages for lease in page]

    def _leases(self, labels: Mapping[str, str], recent: bool = False) -> Iterator[list[Lease]]:
        selector = addresses.selector({**labels, addresses.STATE: addresses.HELD})
        for documents in self.cluster.pages(ADDRESSES, dict, labels=selector, recent=recent):
            found = []
            for document in documents:
                try:
                    found.append(addresses.Entry(document))
                except ValueError:
                    self.faults.append(f"AddressLease {document['metadata']['name']} tells no address")
            yield [entry.lease for entry in found if entry.held]

    def read_abandoned(self, nodes: Mapping[str, Node], networks: Iterable[IpamBlock]) -> Iterator[None]:
        self._begin(networks)
        named = {addresses.label(name): name for name in nodes}
        lost: set[str] = set()
        selector = addresses.selector({addresses.STATE: addresses.HELD})
        for page in self.cluster.pages(ADDRESSES, dict, labels=selector, brief=True, size=_NAMES):
            for metadata in (document["metadata"] for document in page):
                name, labels = metadata["name"], metadata.get("labels") or {}
                mark = labels.get(addresses.NODE, "")
                try:
                    self._count(labels.get(addresses.POOL, ""), *addresses.address_of(name), named.get(mark, mark))
                except ValueError:
                    self.faults.append(f"the name of AddressLease {name} tells no address")
                if mark not in named or nodes[named[mark]].out_of_service:
                    lost.add(mark)
            yield
        for mark in sorted(lost):
            for leases in self._leases({addresses.NODE: mark}):
                self._keep(leases, nodes)
                yield

    def abandon(self, lease: Lease) -> None:
        self.store.abandon(lease)

    def holder(self, lease: Lease) -> Lease | None:
        try:
            found = self.store.holder(lease)
        except Undefined:
            return None
        return lease if found and found.attachment == lease.attachment else found


def _has_moved(lease: Lease, other: ClusterSource) -> bool:
    try:
        return other.holder(lease) is not None
    except ValueError:
        return False
