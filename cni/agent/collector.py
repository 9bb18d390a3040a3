"""The collector: frees leases whose pods are gone, and puts back what a store has lost of living ones.

Each agent compares its node's records, and the objects with its node's name, with the node's pods. The elected agent also
reads all leases, and keeps those whose node is unknown, gone or out of service.

A lease is freed when two readings, a grace apart, and a last request for its pod by name and UID find the pod dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic, time, time_ns

from cni.agent import events, node_leases
from cni.agent.cluster_stores import AddressSource, ClusterSource, PoolSource
from cni.agent.election import Election
from cni.agent.events import Teller
from cni.agent.grace import GraceTracker, find_dead, hindrance
from cni.agent.server import SECONDS, Server
from cni.library.audit.cluster import by_name, whole
from cni.library.audit.free import Changed, Freeing
from cni.library.audit.lease_rules import near_limit
from cni.library.audit.model import Key, Name, Node, Pod
from cni.library.service.log import AgentLog
from cni.library.service.metrics import Metrics
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from ipam.leases import Lease
from ipam.stores.kubernetes.objects import LIMIT, Reservation

Steps = Generator[None, None, None]
_LISTED_GRACES = 10  # between two lists of a node's objects: for each the server reads those of all nodes


@dataclass
class Collector:
    """The collector of `node`'s agent. `connect` gives the API server; CniError.

    `below` finds a path of the host where it is mounted here; `cooldown` gives the seconds of a freed address's cooldown.
    """

    connect: Callable[[], Server]
    records: Records
    below: Callable[[str], str]
    cooldown: Callable[[], int]
    node: str
    election: Election
    grace: float
    metrics: Metrics
    teller: Teller
    log: AgentLog

    def __post_init__(self) -> None:
        self._server: Server | None = None
        self._sources: list[ClusterSource] = [PoolSource(), AddressSource()]
        self._freeing: dict[str, Freeing] = {}
        self._looked = self._tidied = float("-inf")

    @property
    def suspects(self) -> int:
        """The number of leases and reservations that were seen dead and are not freed."""
        return sum(len(tracker.leases) for tracker in self._trackers())

    def _trackers(self) -> list[GraceTracker]:
        return [tracker for source in self._sources for tracker in (source.own, source.abandoned)]

    def steps(self) -> Iterator[None]:
        """One pass, a request or two at each step."""
        try:
            server = self._reached()
            for source in self._sources:
                yield from self._list(server, source)
            pods = by_name(whole(lambda: server.pods(self.node)))
            yield
            for source in self._sources:
                yield from self._look_at_own(server, source, pods)
            if not self.election.is_elected():
                self._forget_all()
            elif monotonic() - self._looked >= self.grace:
                yield from self._look_at_all(server)
                self._looked = monotonic()
        except Exception:
            self.metrics.passes.add(1, "failed")
            raise
        self.metrics.passes.add(1, "done")
        self.metrics.last.set(time())

    def _reached(self) -> Server:
        server = self.connect()
        if server is not self._server:
            self._server = server
            for source in self._sources:
                source.connect(server, SECONDS)
                self._freeing[source.kind] = Freeing(source.store, server, self.records, self.log, self.below, SECONDS)
        return server

    # --- this node's ---

    def _list(self, server: Server, source: ClusterSource) -> Steps:
        """Read this node's records, and at intervals its objects; before the pods, which are older than their leases."""
        source.records = {lease.identity: lease for lease in node_leases.recorded(self.records, source.kind)}
        yield
        if monotonic() - source.listed >= _LISTED_GRACES * self.grace:
            if fault := source.fault():
                self.teller.once(server, fault, events.OUTDATED, fault)
            now, at = monotonic(), time_ns()
            source.marked = {lease.identity: lease for lease in source.of_node(self.node)}
            source.whole, source.listed, source.listed_at = set(), now, at
            yield

    def _look_at_own(self, server: Server, source: ClusterSource, pods: dict[Name, Pod]) -> Steps:
        """Free the dead leases of this node, and restore lost ones."""
        leases = {**source.marked, **source.records}
        dead = find_dead(list(leases.values()), pods)
        for key in [key for key in dead if key not in source.records]:
            if not source.is_there(leases[key]):  # a DEL has been there since it was listed
                del source.marked[key], dead[key]
            yield
        freed: set[Attachment] = set()
        for key in self._ripe(source.own, {key: leases[key] for key in dead}, dead):
            lease = leases[key]
            if lease.attachment not in freed and not self._free(source, lease, partial(self._check, server)):
                continue
            if key in source.records:  # then all that the attachment has went at once
                freed.add(lease.attachment)
            source.marked.pop(key, None)  # the next list tells what became of it
            self._report_freed(source.own, server, lease, dead[key])
            yield
        others = [other for other in self._sources if other is not source]
        for key, lease in source.records.items():
            if key in source.whole or key in dead or lease.pod_name not in pods or lease.sequence > source.listed_at:
                continue
            if source.is_whole(lease, key in source.marked) or self._restore(server, source, others, lease):
                source.whole.add(key)
            yield

    def _restore(self, server: Server, source: ClusterSource, others: list[ClusterSource], lease: Lease) -> bool:
        """Restore the lost objects of the lease; False when the collector must retry."""
        settled, reason, message = node_leases.restore(lease, source, others, self.records, self.log, self.below)
        if reason == events.CONTENDED:
            subject = f"{lease.pool}/{lease.text}"
            self.metrics.contended.add(1)
            self.teller.once(server, subject, reason, f"pod {lease.pod_ref}: {message}")
        elif reason:
            self.metrics.restored.add(1)
            self.log.say("warning", message, pool=lease.pool, pod=lease.pod_ref, container=lease.container_id)
            self.teller.about_pod(server, lease.pod, reason, message, "Warning")
        return settled

    def _check(self, server: Server, lease: Lease, abandoned_by: str = "") -> None:
        """Changed unless the pod of the lease is dead still, and the node `abandoned_by` is gone or out of service."""
        pod = server.pod(*lease.pod_name)
        if lease.identity not in find_dead([lease], {lease.pod_name: pod} if pod else {}):
            raise Changed("it is in use, or has changed")
        if abandoned_by and not (pod and pod.is_over and not lease.node):
            node = server.node(abandoned_by)
            if node and not node.out_of_service:
                raise Changed(f"node {node.name} is there again")

    # --- all, for the elected one ---

    def _look_at_all(self, server: Server) -> Steps:
        nodes = server.nodes()
        yield
        found: list[tuple[ClusterSource, dict[Key, Lease], dict[Key, Reservation]]] = []
        for source in self._sources:
            known = source.marked.keys() | source.records.keys()
            mine: dict[Key, Lease] = {}
            for page in source.unattended(nodes):
                mine.update((key, lease) for key, lease in ((one.identity, one) for one in page) if key not in known)
                yield
            lone = {key: one for key, one in ((r.lease.identity, r) for r in source.lone) if key not in known}
            found.append((source, mine | {key: one.lease for key, one in lone.items()}, lone))
            for fault in source.faults:
                self.teller.once(server, fault, events.UNREADABLE, fault)
        self._measure(server)
        pods: dict[Name, Pod] = {}
        leases = [lease for _, mine, _ in found for lease in mine.values()]
        names, addresses = {lease.pod_name for lease in leases}, {lease.address for lease in leases}
        for pod_page in server.pods() if leases else ():
            named = (((pod.namespace, pod.name), pod) for pod in pod_page)
            pods.update(
                (name, pod) for name, pod in named if name in names or not addresses.isdisjoint(pod.addresses())
            )
            yield
        for source, mine, lone in found:
            yield from self._look_at_abandoned(server, source, mine, lone, nodes, pods)
        if monotonic() - self._tidied >= _LISTED_GRACES * self.grace:
            for source in self._sources:
                source.store.forget()
            self._tidied = monotonic()

    def _look_at_abandoned(
        self,
        server: Server,
        source: ClusterSource,
        mine: dict[Key, Lease],
        lone: dict[Key, Reservation],
        nodes: dict[str, Node],
        pods: dict[Name, Pod],
    ) -> Steps:
        source.remember_nodes(mine, pods)
        dead = find_dead(list(mine.values()), pods)
        named = {name for one in self._sources for name in one.named}
        waiting = {}
        for key in dead:
            pod = pods.get(mine[key].pod_name)
            waiting[key] = hindrance(mine[key], nodes, source.seen_on.get(key), bool(pod and pod.is_over), named)
        for key in source.waiting.saw({key: mine[key] for key in dead if waiting[key]}, monotonic(), self.grace):
            self.teller.once(server, waiting[key], events.WAITING, f"{dead[key]}, but {waiting[key]}")
        free = {key: mine[key] for key in dead if not waiting[key]}
        for key in self._ripe(source.abandoned, free, dead):
            if not self.election.is_elected():
                return
            lease = mine[key]
            node = lease.node or source.seen_on.get(key, "")
            if self._free(source, lease, partial(self._check, server, abandoned_by=node), lone.get(key)):
                self._report_freed(source.abandoned, server, lease, dead[key], key in lone)
            yield

    def _measure(self, server: Server) -> None:
        usage = [pool for source in self._sources for pool in source.usage.values()]
        used = Counter({(pool.name, node): count for pool in usage for node, count in pool.used.items()})
        self.metrics.in_use.replace({key: float(count) for key, count in used.items()})
        self.metrics.pool_bytes.replace({(p.name,): float(p.object_bytes) for p in usage if p.object_bytes})
        self.metrics.pool_size.replace({(p.name,): float(p.size) for p in usage if p.size})
        self.metrics.pool_limit.set(LIMIT)
        for pool in usage:
            count = pool.used.total()
            if warning := near_limit(pool.name, pool.object_bytes, count):
                self.teller.once(server, pool.name, events.NEAR_LIMIT, warning)
            if pool.size and count >= pool.usable:
                message = f"pool {pool.name} is exhausted: all its {count} addresses are leased"
                self.teller.once(server, pool.name, events.EXHAUSTED, message)

    def _forget_all(self) -> None:
        self._looked = float("-inf")
        for source in self._sources:
            source.forget()
        self._count()
        for family in (self.metrics.in_use, self.metrics.pool_size, self.metrics.pool_bytes):
            family.replace({})

    # --- what came of it ---

    def _ripe(self, tracker: GraceTracker, found: dict[Key, Lease], why: dict[Key, str]) -> list[Key]:
        """The keys of `found` that were also dead a grace ago; the new ones are logged."""
        for key in found.keys() - tracker.leases.keys():
            self.log.say("info", f"{why[key]}: freed if it is so in {self.grace:g} s still", **_fields(found[key]))
        ripe = tracker.saw(found, monotonic(), self.grace)
        self._count()
        return ripe

    def _count(self) -> None:
        leases = [lease for tracker in self._trackers() for lease in tracker.leases.values()]
        found = Counter((lease.pool, lease.node) for lease in leases)
        self.metrics.candidates.replace({key: float(count) for key, count in found.items()})

    def _free(
        self, source: ClusterSource, lease: Lease, check: Callable[[Lease], object], reserved: Reservation | None = None
    ) -> bool:
        """Free the lease, or delete the reservation that no lease goes with; whether it was done. CniError."""
        try:
            if reserved:
                self._freeing[source.kind].delete_reservation(reserved, lambda now: check(now.lease))
            else:
                self._freeing[source.kind].free_lease(lease, check, self.cooldown())
        except Changed as fault:
            self.log.say("info", f"{lease.text} is not freed: {fault}", **_fields(lease))
            return False
        return True

    def _report_freed(
        self, tracker: GraceTracker, server: Server, lease: Lease, why: str, is_reservation: bool = False
    ) -> None:
        tracker.leases.pop(lease.identity, None)
        self._count()
        if is_reservation:
            self.metrics.removed.add(1)
            message = f"{why}: its reservation, which no pool had a lease for, was removed"
        else:
            self.metrics.reclaimed.add(1, lease.pool, lease.node)
            message = f"{why}: freed in pool {lease.pool}"
        self.log.say("warning", message, **_fields(lease))
        self.teller.about_pod(server, lease.pod, events.RECLAIMED, message)


def _fields(lease: Lease) -> dict[str, str]:
    return {
        "address": lease.text,
        "pool": lease.pool,
        "pod": lease.pod_ref,
        "uid": lease.pod[2],
        "container": lease.container_id,
        "ifname": lease.ifname,
        "node": lease.node,
    }
