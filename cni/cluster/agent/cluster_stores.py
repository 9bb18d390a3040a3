"""The agent's data about the two stores of leases in the API server, IPPools and AddressLeases.

Each agent reads its node's leases. The elected agent also reads all leases, in pages. It counts them by pool, and keeps
those whose node is unknown, gone or out of service (`is_abandoned`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from cni.cluster.agent import events
from cni.cluster.agent.loop import SECONDS
from cni.cluster.audit import in_use, occupancy
from cni.cluster.audit.cluster import Cluster, PoolReading
from cni.cluster.audit.free import Freeing
from cni.cluster.audit.lease_rules import is_abandoned
from cni.cluster.audit.model import IpamBlock, Key, Name, Node, Pod
from cni.cluster.audit.occupancy import Pool, PoolUse
from cni.node.service.log import AgentLog
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from ipam import local
from ipam.leases import PART, Lease, recorded_leases
from ipam.stores import open_store
from ipam.stores.addresslease import AddressLeaseStore
from ipam.stores.apiserver.faults import Conflict, Undefined
from ipam.stores.apiserver.resources import POOLS, RESERVATIONS, label
from ipam.stores.base import CHANGE, Claimed, Store
from ipam.stores.ippool import objects
from ipam.stores.ippool.objects import IPPool, Reservation, allocation

_PAGE = 500  # leases at each step

Outcome = tuple[bool, str, str]  # (False to try again, the reason of an Event or "", the message of the Event or "")
_SETTLED: Outcome = (True, "", "")
_BUSY: Outcome = (False, "", "")


class GraceTracker:
    """The dead leases (without a pod) in the last reading, each with the time when this process first found it dead."""

    def __init__(self) -> None:
        self.leases: dict[Key, Lease] = {}
        self._first: dict[Key, float] = {}

    def saw(self, dead: Mapping[Key, Lease], now: float, grace: float) -> list[Key]:
        """Record the leases found `dead` at the time `now`; return the keys of leases dead for `grace` seconds."""
        self.leases = dict(dead)
        self._first = {key: self._first.get(key, now) for key in dead}
        return [key for key, first in self._first.items() if now - first >= grace]


class ClusterSource(ABC):
    """A store of leases in the API server, and the agent's data about the store.

    `read_abandoned` fills `usage`, `abandoned` and the other results of a reading. `node_records` are the records of
    this node. `below` maps a path of the host to its path in this container.
    """

    kind = ""

    def __init__(self, node_records: Records, log: AgentLog, below: Callable[[str], str]) -> None:
        self._node_records = node_records
        self._log = log
        self._below = below
        self.cluster: Cluster = None  # type: ignore[assignment]  # until `connect`
        self.store: Store
        self.freeing: Freeing
        self.usage: list[PoolUse] = []
        self.used: Counter[tuple[str, str]] = Counter()  # the number of leases by pool and node
        self.object_bytes: dict[str, int] = {}  # the size of each IPPool
        self.named: set[str] = set()  # nodes that leases name
        self.abandoned: dict[Key, Lease] = {}  # the leases that no node's agent frees
        self.unleased: set[Key] = set()  # the keys of reservations without a lease
        self.faults: list[str] = []
        self.records: dict[Key, Lease] = {}  # the leases in this node's records
        self.marked: dict[Key, Lease] = {}  # the result of the last `of_node`, without leases freed since then
        self.intact: set[Key] = set()  # recorded leases that were found complete after the last `of_node`
        self.listed, self.listed_at = float("-inf"), 0  # time of the last `of_node`: monotonic seconds, ns since 1970
        self.dead, self.abandoned_dead, self.waiting = GraceTracker(), GraceTracker(), GraceTracker()
        self.seen_on: dict[Key, str] = {}  # the node on which an abandoned lease's pod ran; "": several nodes

    def connect(self, cluster: Cluster) -> None:
        if cluster is self.cluster:
            return
        self.cluster = cluster
        self.store = open_store({"kind": self.kind, "kubeconfig": cluster.path}, CHANGE, seconds=SECONDS)
        self.freeing = Freeing(self.store, self._node_records, self._below, SECONDS)

    def forget(self) -> None:
        """Forget the abandoned leases, since this agent is not elected: only the elected agent frees them."""
        self._begin()
        self.abandoned_dead, self.waiting, self.seen_on = GraceTracker(), GraceTracker(), {}

    def remember_nodes(self, pods: Mapping[Name, Pod]) -> None:
        """Record the node of each pod in `pods` that has an abandoned lease. A UID in the lease must be the pod's."""
        known = {key: node for key, node in self.seen_on.items() if key in self.abandoned}
        for key, lease in self.abandoned.items():
            pod = pods.get(lease.pod_name)
            if pod and pod.node and (not lease.pod[2] or pod.has_uid(lease.pod[2])):
                known[key] = pod.node if known.get(key, pod.node) == pod.node else ""
        self.seen_on = known

    def fault(self) -> str:
        """The fault of the store's CRD in the API server; "" without a fault."""
        return ""

    @abstractmethod
    def of_node(self, node: str) -> list[Lease]:
        """The leases whose API objects have the label of `node`. The server may answer from its cache."""

    def read_abandoned(self, nodes: Mapping[str, Node], networks: Iterable[IpamBlock]) -> Iterator[None]:
        """Read all leases, a page at each step. Keep in `abandoned` the leases whose node is not in `nodes` or is out
        of service. The ranges in `networks` give the sizes of the pools."""
        self._begin()
        values: dict[Pool, list[int]] = defaultdict(list)
        for page in self._pages(nodes):
            for lease in page:
                values[lease.pool, lease.family].append(lease.value)
                self.used[lease.pool, lease.node] += 1
                self.named.add(lease.node)
            self._keep(page, nodes)
            yield
        self.usage = occupancy.uses(values, self._firsts, networks)

    @abstractmethod
    def _pages(self, nodes: Mapping[str, Node]) -> Iterator[list[Lease]]:
        """Yield all leases page by page."""

    @abstractmethod
    def holder(self, lease: Lease) -> Lease | None:
        """Return the lease that now has the address of `lease`, or None. Raises ValueError for a migrated pool."""

    def abandon(self, lease: Lease) -> None:  # noqa: B027
        """Mark an abandoned lease, so that the store's admission policy, if any, permits this agent to free it."""

    def has_lost(self, before: float) -> bool:
        """Whether leases in this node's records are missing in the store, for example after a restored backup. Only the
        newest lease older than `before` (ns since 1970) is looked up, which costs the server less than `of_node`."""
        old = [lease for lease in self.records.values() if lease.sequence < before]
        newest = max(old, key=lambda lease: lease.sequence, default=None)
        return newest is not None and newest.identity in self.intact and not self.has(newest, if_moved=True)

    def has(self, lease: Lease, if_moved: bool = False) -> bool:
        """Whether any lease in this store has the address of `lease`; `if_moved` is the result for a migrated pool."""
        try:
            return self.holder(lease) is not None
        except ValueError:
            return if_moved

    def is_there(self, lease: Lease) -> bool:
        """Whether the API object from which `of_node` read `lease` exists and still belongs to the lease."""
        return self.holder(lease) is lease

    def is_intact(self, lease: Lease, marked: bool) -> bool:
        """Whether all API objects of the lease exist. `marked` is true if the last `of_node` returned the lease."""
        return marked

    def complete(self, lease: Lease) -> bool:
        """Create the reservation of a lease in an IPPool if it is missing. Returns whether it has been created."""
        return False

    def read_records(self) -> None:
        """Set `records` to the leases that this node has recorded for this store, without those of pending releases."""
        found: list[Lease] = []
        for attachment, _, record in self._node_records.all(PART):
            if record.get("pending") is True or (record.get("store") or {}).get("kind") != self.kind:
                continue
            try:
                found += recorded_leases(attachment, record)
            except ValueError:
                continue  # the next verb that reads the record reports the fault
        self.records = {lease.identity: lease for lease in found}

    def restore(self, lease: Lease, others: Iterable[ClusterSource]) -> Outcome:
        """Create the lost API objects of a recorded lease again. Raises CniError when a request to the store fails.

        Nothing changes if another lease has the address. Nothing changes either if the pool is closed, or one of the
        stores `others` has the address, because then `railcni ipam migrate` has moved the lease, and will update the
        record. If all objects of the lease are lost, they are created only while the address may be in use, since the
        record may belong to a sandbox that is gone.
        """
        with in_use.excluded(self._node_records, lease.attachment) as users:
            record = local.read_record(lease.attachment, self._node_records) if users else None
            if record is None or users is None or record["pending"] or record["sequence"] != lease.sequence:
                return _BUSY
            if lease.identity not in {one.identity for one in recorded_leases(lease.attachment, record)}:
                return _BUSY  # given up by a claim that has ended meanwhile
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
            may_be_used = True  # if unknown
            with suppress(OSError):
                may_be_used = in_use.may_be(lease, users, self._node_records, self._below)
            if not may_be_used or any(other.has(lease) for other in others):
                return _SETTLED
            try:
                answer = self.store.claim([lease], lease.owner)
            except InvalidConfig as fault:  # for example, the pool cannot be read or has just been closed
                self._log.state(f"restore {lease.pool}", f"{lease.text} cannot be restored: {fault.msg}")
                return _SETTLED
            if not isinstance(answer, Claimed):
                return _BUSY
            return True, events.LEASE_RESTORED, f"the lease of {lease.text} in pool {lease.pool} {again}"

    def _begin(self) -> None:
        """Reset the results of `read_abandoned`."""
        self.usage, self.used, self.object_bytes = [], Counter(), {}
        self.named, self.abandoned, self.unleased, self.faults = set(), {}, set(), []
        self._firsts: dict[Pool, int] = {}  # the first address of each IPPool

    def _keep(self, leases: Iterable[Lease], nodes: Mapping[str, Node]) -> None:
        """Add to `abandoned` those `leases` whose node is not in `nodes` or is out of service, but no lease of this
        node."""
        for lease in leases:
            key = lease.identity
            if is_abandoned(lease, nodes) and key not in self.marked and key not in self.records:
                self.abandoned[key] = lease


class PoolSource(ClusterSource):
    """The store of IPPools and reservations, which whereabouts also uses."""

    kind = "kubernetes"

    _read: dict[str, IPPool | None]  # IPPools by name, read since the last `of_node`

    def fault(self) -> str:
        try:
            return objects.pruned(self.cluster.api.try_create(POOLS, objects.probe()), {})
        except Undefined:
            return ""  # the cluster has no pools

    def of_node(self, node: str) -> list[Lease]:
        self._read = {}
        if label(node) != node:
            return []  # the node's name cannot be the value of a label
        pages = self.cluster.pages(RESERVATIONS, Reservation, labels=f"{objects.NODE_LABEL}={node}", recent=True)
        return [one.lease for page in pages for one in page if one.address and one.lease.pool]

    def _pages(self, nodes: Mapping[str, Node]) -> Iterator[list[Lease]]:
        pools = PoolReading(self.cluster)
        for page in pools.read():
            for pool in page:
                self.object_bytes[pool.name], self._firsts[pool.name, pool.family] = pool.size, pool.first
            yield [lease for pool in page for lease in pool.leases]
        unleased = pools.unleased()
        self.named |= {one.lease.node for one in unleased}
        self._keep((one.lease for one in unleased if one.address), nodes)
        self.unleased = {one.lease.identity for one in unleased}
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
        with suppress(Conflict):
            self.cluster.api.create(RESERVATIONS, objects.reservation(lease))
            return True
        return False


class AddressSource(ClusterSource):
    """The store of AddressLeases."""

    kind = "addresslease"
    store: AddressLeaseStore

    def of_node(self, node: str) -> list[Lease]:
        return list(self._each(node, recent=True))

    def _pages(self, nodes: Mapping[str, Node]) -> Iterator[list[Lease]]:
        leases = self._each()
        while page := list(islice(leases, _PAGE)):
            yield page
        self.faults = self.store.unread

    def _each(self, node: str = "", recent: bool = False) -> Iterator[Lease]:
        self.store.unread = []
        with suppress(Undefined):
            yield from self.store.leases(node=node, recent=recent)

    def abandon(self, lease: Lease) -> None:
        self.store.abandon(lease)

    def holder(self, lease: Lease) -> Lease | None:
        try:
            found = self.store.holder(lease)
        except Undefined:
            return None
        return lease if found and found.attachment == lease.attachment else found
