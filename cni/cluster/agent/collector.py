"""The collector, which frees the leases of pods that are gone, and restores lost API objects of other leases.

Each agent compares the leases of its node with the node's pods. It finds the leases in the node's records, and in the
API objects with the node's label. The elected agent also reads all leases, and frees dead leases of unknown, gone and
out-of-service nodes.

A lease is dead when its pod is gone or has ended. It is freed when two readings, at least a grace period apart, find it
dead, and a last request confirms this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic, time, time_ns

from cni.cluster.agent import events
from cni.cluster.agent.cluster_stores import AddressSource, ClusterSource, GraceTracker, PoolSource
from cni.cluster.agent.events import Teller
from cni.cluster.audit import silence
from cni.cluster.audit.cluster import Cluster, by_name, read_all
from cni.cluster.audit.free import Changed
from cni.cluster.audit.lease_rules import blocker, find_dead
from cni.cluster.audit.model import IpamBlock, Key, Name, Node, Pod
from cni.cluster.audit.silence import Election
from cni.node.service.log import AgentLog
from cni.node.service.metrics import Metrics
from cni.shared.records import Records
from cni.shared.spec.errors import CniError
from cni.shared.spec.request import Attachment
from ipam.leases import Lease
from ipam.stores.addresslease import objects as addresses
from ipam.stores.ippool.objects import LIMIT

Steps = Generator[None, None, None]
_LISTED_GRACES = 10  # grace periods between two lists of a node's objects, since each list costs the server much


@dataclass
class Collector:
    """The collector of the agent on `node`. `server` returns the cluster, or raises CniError.

    `below` maps a path of the host to its path in this container. `cooldown` returns the cooldown of freed addresses,
    in seconds. `grace` is the number of seconds for which a lease must be dead before it is freed.
    """

    server: Callable[[], Cluster]
    records: Records
    below: Callable[[str], str]
    cooldown: Callable[[], int]
    node: str
    election: Election
    grace: float
    metrics: Metrics
    log: AgentLog

    def __post_init__(self) -> None:
        self._teller = Teller(self.server, self.node, self.log)
        self._agents = silence.SilenceWatch(self.grace)
        self._lost = silence.SilenceWatch(_LISTED_GRACES * self.grace)
        self._sources: list[ClusterSource] = [
            kind(self.records, self.log, self.below) for kind in (PoolSource, AddressSource)
        ]
        self._all_read_at = self._tidied = float("-inf")

    @property
    def suspects(self) -> list[Lease]:
        """The leases that were found dead and are not freed yet. A reservation without a lease counts as a lease."""
        trackers = [tracker for source in self._sources for tracker in (source.dead, source.abandoned_dead)]
        return [lease for tracker in trackers for lease in tracker.leases.values()]

    def steps(self) -> Iterator[None]:
        """Make one pass over the leases, with one or two requests at each step."""
        try:
            server = self.server()
            for source in self._sources:
                source.connect(server)
                yield from self._list(source)
            pods = by_name(read_all(lambda: server.pods(self.node)))
            yield
            for source in self._sources:
                yield from self._free_or_restore(source, pods)
            if not self.election.is_elected():
                self._forget_all()
            elif monotonic() - self._all_read_at >= self.grace:
                yield from self._free_abandoned(server)
                self._all_read_at = monotonic()
        except Exception:
            self.metrics.passes.add(1, "failed")
            raise
        self.metrics.passes.add(1, "done")
        self.metrics.last.set(time())

    # --- the leases of this node ---

    def _list(self, source: ClusterSource) -> Steps:
        """Read this node's records and, at intervals or after the store lost a lease, list the node's leases in the
        store. The caller lists the pods afterwards. As a pod is older than its leases, no existing pod is missed."""
        source.read_records()
        yield
        if monotonic() - source.listed >= _LISTED_GRACES * self.grace or source.has_lost(time_ns() - self.grace * 1e9):
            if fault := source.fault():
                self._teller.once(fault, events.OUTDATED, fault)
            now, at = monotonic(), time_ns()
            source.marked = {lease.identity: lease for lease in source.of_node(self.node)}
            source.intact, source.listed, source.listed_at = set(), now, at
            yield

    def _free_or_restore(self, source: ClusterSource, pods: dict[Name, Pod]) -> Steps:
        """Free the dead leases of this node, and restore the lost objects of its other leases."""
        leases = {**source.marked, **source.records}
        dead = find_dead(list(leases.values()), pods)
        for key in [key for key in dead if key not in source.records]:
            if not source.is_there(leases[key]):  # a DEL has freed the lease since it was listed
                del source.marked[key], dead[key]
            yield
        freed: set[Attachment] = set()
        for key in self._due(source.dead, {key: leases[key] for key in dead}, dead):
            lease = leases[key]
            if lease.attachment not in freed and not self._free(source, lease, self._check):
                continue
            if key in source.records:  # all leases of the attachment were freed at once
                freed.add(lease.attachment)
            source.marked.pop(key, None)  # the next list shows whether the lease is gone
            self._report_freed(source.dead, lease, dead[key])
            yield
        others = [other for other in self._sources if other is not source]
        for key, lease in source.records.items():
            if key in source.intact or key in dead or lease.pod_name not in pods or lease.sequence > source.listed_at:
                continue
            if source.is_intact(lease, key in source.marked) or self._restore(source, others, lease):
                source.intact.add(key)
            yield

    def _restore(self, source: ClusterSource, others: list[ClusterSource], lease: Lease) -> bool:
        """Restore the lost objects of the lease; return False when the collector must retry."""
        settled, reason, message = source.restore(lease, others)
        if reason == events.CONTENDED:
            self.metrics.contended.add(1)
            self._teller.once(f"{lease.pool}/{lease.text}", reason, f"pod {lease.pod_ref}: {message}")
        elif reason:
            self.metrics.restored.add(1)
            self.log.say("warning", message, pool=lease.pool, pod=lease.pod_ref, container=lease.container_id)
            self._teller.about_pod(lease.pod, reason, message, "Warning")
        return settled

    def _check(self, lease: Lease) -> Pod | None:
        """Return the lease's pod, if it exists. Raises Changed if the lease is not dead now."""
        pod = self.server().pod(*lease.pod_name)
        if lease.identity not in find_dead([lease], {lease.pod_name: pod} if pod else {}):
            raise Changed("it is in use, or has changed")
        return pod

    def _check_abandoned(self, source: ClusterSource, name: str, lease: Lease) -> None:
        """Check that an abandoned lease is still dead, and mark it in the store as abandoned. `name` is the lease's
        node. Raises Changed if the lease is not dead now, or if the node or its agent is back."""
        pod = self._check(lease)
        if name and not (pod and pod.is_over and not lease.node):
            node = self.server().node(name)
            if node and not node.out_of_service:
                raise Changed(f"node {name} is there again")
            if not node and name in self._agents.alive(self.server()):
                raise Changed(f"the agent of node {name} has renewed its Lease")
        source.abandon(lease)

    # --- the leases that no node's agent frees, for the elected agent ---

    def _free_abandoned(self, server: Cluster) -> Steps:
        """Free the dead leases whose node is unknown, gone or out of service."""
        nodes = server.nodes()
        yield
        networks = self._networks(server)
        yield
        for source in self._sources:
            yield from source.read_abandoned(nodes, networks)
            for fault in source.faults:
                self._teller.once(fault, events.UNREADABLE, fault)
        self._measure()
        pods: dict[Name, Pod] = {}
        leases = [lease for source in self._sources for lease in source.abandoned.values()]
        names, addresses = {lease.pod_name for lease in leases}, {lease.address for lease in leases}
        for page in server.pods() if leases else ():
            found = by_name(page).items()
            pods.update((n, pod) for n, pod in found if n in names or not addresses.isdisjoint(pod.addresses()))
            yield
        alive = self._agents.alive(server) if leases else set()
        yield
        for source in self._sources:
            yield from self._free_abandoned_of(source, nodes, pods, alive)
        if monotonic() - self._tidied >= _LISTED_GRACES * self.grace:
            for source in self._sources:
                source.store.forget()
            self._delete_leases(server, nodes)
            self._tidied = monotonic()

    def _networks(self, server: Cluster) -> list[IpamBlock]:
        """The ipam blocks of all NADs, whose ranges give the sizes of pools; [] without the right to read NADs."""
        try:
            return server.networks()[0]
        except CniError as fault:  # for example, an earlier version's role lacks a right
            self.log.state("networks", f"pools count as large as their names say: {fault.msg}")
            return []

    def _delete_leases(self, server: Cluster, nodes: dict[str, Node]) -> None:
        """Delete the Lease of each deleted node's agent, if the agent is silent and no address lease names the node."""
        named = {name for one in self._sources for name in (*one.named, *one.seen_on.values())}
        try:
            for node, metadata in self._lost.silent(server).items():
                is_gone = node not in nodes and named.isdisjoint((node, addresses.label(node)))
                if is_gone and silence.delete(server.api, metadata):
                    self.log.say("info", f"node {node} is gone for good: its agent's Lease is deleted")
        except CniError as fault:  # for example, an earlier version's role lacks a right
            self.log.say("warning", f"Leases of agents that are gone stay: {fault.msg}")

    def _free_abandoned_of(
        self, source: ClusterSource, nodes: dict[str, Node], pods: dict[Name, Pod], alive: set[str]
    ) -> Steps:
        source.remember_nodes(pods)
        leases = source.abandoned
        dead = find_dead(list(leases.values()), pods)
        named = {name for one in self._sources for name in one.named}
        waiting = {}
        for key in dead:
            pod = pods.get(leases[key].pod_name)
            waiting[key] = blocker(leases[key], nodes, source.seen_on.get(key), bool(pod and pod.is_over), named, alive)
        for key in source.waiting.saw({key: leases[key] for key in dead if waiting[key]}, monotonic(), self.grace):
            self._teller.once(waiting[key], events.WAITING, f"{dead[key]}, but {waiting[key]}")
        free = {key: leases[key] for key in dead if not waiting[key]}
        for key in self._due(source.abandoned_dead, free, dead):
            if not self.election.is_elected():
                return
            lease = leases[key]
            check = partial(self._check_abandoned, source, lease.node or source.seen_on.get(key, ""))
            if self._free(source, lease, check):
                self._report_freed(source.abandoned_dead, lease, dead[key], key in source.unleased)
            yield

    def _measure(self) -> None:
        sources, metrics = self._sources, self.metrics
        metrics.in_use.replace({key: float(count) for one in sources for key, count in one.used.items()})
        metrics.pool_bytes.replace({(name,): float(size) for one in sources for name, size in one.object_bytes.items()})
        full = [(pool.name, pool.occupancy) for one in sources for pool in one.usage if pool.occupancy]
        metrics.pool_size.replace({(name,): float(use.size) for name, use in full})
        metrics.pool_limit.set(LIMIT)
        for name, use in full:  # two stores may have a pool of one name
            if not use.free:
                message = f"pool {name} is exhausted: all its {use.size} addresses are leased"
                self._teller.once(name, events.EXHAUSTED, message)

    def _forget_all(self) -> None:
        self._all_read_at = float("-inf")
        for source in self._sources:
            source.forget()
        self._count()
        for family in (self.metrics.in_use, self.metrics.pool_size, self.metrics.pool_bytes):
            family.replace({})

    # --- freeing, with log, metrics and Events ---

    def _due(self, tracker: GraceTracker, found: dict[Key, Lease], why: dict[Key, str]) -> list[Key]:
        """Record in `tracker` that the leases `found` are dead, and log new dead leases with the reason in `why`.
        Return the keys of the leases that have been dead for the grace period."""
        for key in found.keys() - tracker.leases.keys():
            self.log.say(
                "info", f"{why[key]}: it is freed if this is still so in {self.grace:g} s", **_fields(found[key])
            )
        due = tracker.saw(found, monotonic(), self.grace)
        self._count()
        return due

    def _count(self) -> None:
        found = Counter((lease.pool, lease.node) for lease in self.suspects)
        self.metrics.candidates.replace({key: float(count) for key, count in found.items()})

    def _free(self, source: ClusterSource, lease: Lease, check: Callable[[Lease], object]) -> bool:
        """Free the lease; return False if it has changed or may be in use, so that it must stay."""
        try:
            source.freeing.free_lease(lease, check, self.cooldown())
        except Changed as fault:
            self.log.say("info", f"{lease.text} is not freed: {fault}", **_fields(lease))
            return False
        return True

    def _report_freed(self, tracker: GraceTracker, lease: Lease, why: str, is_reservation: bool = False) -> None:
        tracker.leases.pop(lease.identity, None)
        self._count()
        if is_reservation:
            self.metrics.removed.add(1)
            message = f"{why}: its reservation, which no pool had a lease for, was removed"
        else:
            self.metrics.reclaimed.add(1, lease.pool, lease.node)
            message = f"{why}: freed in pool {lease.pool}"
        self.log.say("warning", message, **_fields(lease))
        self._teller.about_pod(lease.pod, events.RECLAIMED, message)


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
