"""The collector: frees leases whose pods are gone, and makes lost reservations again.

Each agent looks at its own node's: the leases of its records, and the reservations that bear the node's name, against
the node's pods. The elected one looks at all pools besides, for leases whose node is unknown, gone or out of service.
So what an agent reads does not grow with the cluster, but for one of them.

A lease is freed when it was seen dead twice, a grace apart, and its pod is dead still when it is looked up by its name
and UID right before. What was seen is in memory alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from time import monotonic, time, time_ns

from cni.attachment import Book
from cni.cli import findings, judge
from cni.cli.agent import events, sightings
from cni.cli.agent.election import Election
from cni.cli.agent.events import Teller
from cni.cli.agent.free import free
from cni.cli.agent.log import AgentLog
from cni.cli.agent.metrics import Metrics
from cni.cli.agent.own import ALLOCATED, BUSY, RESERVED, WHOLE, Own, Recorded, recorded
from cni.cli.agent.server import SECONDS, Server
from cni.cli.agent.sightings import Key, Sightings, Suspect, key_of, of_reservation
from cni.cli.inventory import Held, Node, Pod, PoolState, Reserved, lease_of
from cni.spec.request import Attachment
from ipam.ranges import BITS
from ipam.stores import kubernetes_objects as objects
from ipam.stores.kubernetes_objects import PoolObject
from ipam.stores.kubernetes_size import LIMIT

Pods = dict[tuple[str, str], Pod]
_LISTED_GRACES = 10  # between two lists of a node's reservations: the server goes through all nodes' for each


class Collector:
    """The collector of `node`'s agent. `server` gives the API server as it is reached now; CniError when it is not."""

    def __init__(
        self,
        server: Callable[[], Server],
        book: Book,
        own: Own,
        node: str,
        election: Election,
        grace: float,
        metrics: Metrics,
        teller: Teller,
        log: AgentLog,
    ) -> None:
        self._server = server
        self._book = book
        self._own = own
        self._node = node
        self._election = election
        self._grace = grace
        self._metrics = metrics
        self._teller = teller
        self._log = log
        self._seen_own, self._seen_abandoned, self._seen_waiting = Sightings(), Sightings(), Sightings()
        self._suspects: dict[str, list[Suspect]] = {}
        self._seen_on: dict[Key, str] = {}  # the node of the pod of an abandoned lease while it lived; "": of several
        self._looked = float("-inf")
        self._marked: dict[Key, Held] = {}  # what this node's reservations told when they were listed
        self._reserved: set[str] = set()  # names of reservations that were there since
        self._whole: set[Key] = set()  # of the records' leases, those that were found to stand since
        self._listed, self._listed_at = float("-inf"), 0  # monotonic, and nanoseconds since 1970 as sequences are

    @property
    def suspects(self) -> int:
        """How many leases and reservations were seen dead and stand still."""
        return sum(map(len, self._suspects.values()))

    def steps(self) -> Iterator[None]:
        """One pass, a request or two at each step."""
        try:
            server = self._server()
            own = yield from self._look_at_own(server)
            if not self._election.is_elected():
                self._forget_all()
            elif monotonic() - self._looked >= self._grace:
                yield from self._look_at_all(server, own)
                self._looked = monotonic()
        except Exception:
            self._metrics.passes.add(1, "failed")
            raise
        self._metrics.passes.add(1, "done")
        self._metrics.last.set(time())

    # --- this node's ---

    def _look_at_own(self, server: Server) -> Generator[None, None, set[Key]]:
        """The leases of this node, which it returns the keys of; what is dead is freed, what is lost restored."""
        records = {key_of(one.held): one for one in recorded(self._book)}
        yield
        if monotonic() - self._listed >= _LISTED_GRACES * self._grace:
            if fault := server.schema_fault():
                self._teller.once(server, fault, events.OUTDATED, fault)
            self._list(server.reservations_of(self._node))  # before the pods: each was made after its pod was
            yield
        pods = server.pods(self._node)
        yield
        held = {**self._marked, **{key: one.held for key, one in records.items()}}
        dead = sightings.dead(list(held.values()), pods)
        for key in [key for key in dead if key not in records]:
            found = server.reservation(held[key])
            if found is None or not found.is_of(held[key]):  # a DEL has been there since it was listed
                del self._marked[key], dead[key]
            yield
        suspects = [Suspect(held[key], why) for key, why in dead.items()]
        self._note("own", suspects)
        freed: set[Attachment] = set()
        for suspect in self._seen_own.saw(suspects, monotonic(), self._grace):
            key = key_of(suspect.held)
            one = records.get(key)
            if one is None:
                done = not self._own.is_used(suspect.held) and free(server, suspect)
            else:  # all that the attachment has goes at once
                done = one.attachment in freed or self._own.release(server, one, SECONDS)
                freed |= {one.attachment} if done else set()
            self._marked.pop(key, None)  # the next list tells what became of it
            self._freed("own", server, suspect, done)
            yield
        pools: dict[str, PoolObject | None] = {}
        for key, one in records.items():
            if key in self._whole or key in dead or one.held.pod not in pods or one.held.sequence > self._listed_at:
                continue
            if self._is_whole(server, one.held, pools) or self._restore(server, one):
                self._whole.add(key)
            yield
        return set(held)

    def _is_whole(self, server: Server, held: Held, pools: dict[str, PoolObject | None]) -> bool:
        """Whether the lease stands as it was made: its reservation, or where it has none its allocation."""
        if held.scope is not None:
            return objects.reservation_name(held.scope, *held.address) in self._reserved
        if held.pool not in pools:
            pools[held.pool] = server.pool(held.pool)
        pool = pools[held.pool]
        entry = pool.entries.get(held.address[1]) if pool and pool.family == held.address[0] else None
        return entry is not None and entry.is_of(lease_of(held))

    def _list(self, reservations: list[Reserved]) -> None:
        told = ((reserved, of_reservation(reserved)) for reserved in reservations)
        self._marked = {key_of(held): held for reserved, held in told if held and reserved.pool}
        self._reserved = {reserved.name for reserved in reservations}
        self._whole = set()
        self._listed, self._listed_at = monotonic(), time_ns()

    def _restore(self, server: Server, one: Recorded) -> bool:
        """Put back what is lost of the lease; False when that has to be tried again."""
        outcome = self._own.restore(server, one)
        held, pod = one.held, one.lease.pod
        if outcome in (BUSY, WHOLE):
            return outcome == WHOLE
        if outcome in (RESERVED, ALLOCATED):
            self._metrics.restored.add(1)
            lost = f"the lease of {held.text} in pool {held.pool}"
            if outcome == RESERVED:
                lost = f"the overlap reservation of {held.text}"
            message = f"{lost} was lost, and is there again"
            self._log.say("warning", message, pool=held.pool, pod="/".join(held.pod), container=held.container_id)
            reason = events.RESTORED if outcome == RESERVED else events.LEASE_RESTORED
            self._teller.about_pod(server, pod, reason, message, "Warning")
            return True
        message = (
            f"{held.text} of pool {held.pool} is held by {outcome} too: delete one of the two pods, so that it gets another"
            " address"
        )
        self._teller.once(server, f"{held.pool}/{held.text}", events.CONTENDED, f"pod {'/'.join(held.pod)}: {message}")
        return True

    # --- all, for the elected one ---

    def _look_at_all(self, server: Server, own: set[Key]) -> Generator[None, None, None]:
        states, reserved, faults = server.pools()
        yield
        nodes = server.nodes()
        yield
        self._measure(server, states)
        for fault in faults:
            self._teller.once(server, fault, events.UNREADABLE, fault)
        held = [one for state in states for one in state.held]
        lone = _without_lease(held, reserved)
        mine = {key_of(o): o for o in (*held, *lone) if key_of(o) not in own and sightings.is_abandoned(o, nodes)}
        pods: Pods = server.pods() if mine else {}
        yield
        self._remember_nodes(mine, pods)
        unleased = set(map(key_of, lone))
        dead = sightings.dead(list(mine.values()), pods)
        suspects = [Suspect(mine[key], why, key in unleased) for key, why in dead.items()]
        named = {one.node for one in (*held, *lone)}
        waiting = {key_of(s.held): self._hindrance(s.held, nodes, named, pods) for s in suspects}
        for suspect in self._seen_waiting.saw(
            (s for s in suspects if waiting[key_of(s.held)]), monotonic(), self._grace
        ):
            why = waiting[key_of(suspect.held)]
            self._teller.once(server, why, events.WAITING, f"{suspect.why}, but {why}")
        suspects = [s for s in suspects if not waiting[key_of(s.held)]]
        self._note("abandoned", suspects)
        for suspect in self._seen_abandoned.saw(suspects, monotonic(), self._grace):
            if not self._election.is_elected():
                return
            node = suspect.held.node or self._seen_on.get(key_of(suspect.held), "")
            self._freed("abandoned", server, suspect, free(server, suspect, node))
            yield

    def _hindrance(self, held: Held, nodes: dict[str, Node], named: set[str], pods: Pods) -> str:
        is_over = held.pod in pods and pods[held.pod].is_over
        return sightings.hindrance(held, nodes, self._seen_on.get(key_of(held)), is_over, named)

    def _remember_nodes(self, mine: dict[Key, Held], pods: Pods) -> None:
        """Note where the pods of abandoned leases are while they live; another pod of the same name does not count."""
        known = {key: node for key, node in self._seen_on.items() if key in mine}
        for key, held in mine.items():
            pod = pods.get(held.pod)
            if pod and pod.node and (not held.uid or pod.has_uid(held.uid)):
                known[key] = pod.node if known.get(key, pod.node) == pod.node else ""
        self._seen_on = known

    def _measure(self, server: Server, states: list[PoolState]) -> None:
        used = Counter((one.pool, one.node) for state in states for one in state.held)
        self._metrics.in_use.replace({key: float(count) for key, count in used.items()})
        self._metrics.pool_bytes.replace({(state.name,): float(state.pool.size) for state in states})
        self._metrics.pool_size.replace({(state.name,): float(size) for state in states if (size := _size(state))})
        self._metrics.pool_limit.set(LIMIT)
        for finding in judge.pools(states):
            if finding.kind == findings.POOL_NEARS_LIMIT:
                self._teller.once(server, finding.pool, events.NEAR_LIMIT, finding.message)
        for state in states:
            size = _size(state)
            if size and len(state.held) >= size - (2 if state.pool.family == 4 and size > 2 else 0):
                message = f"pool {state.name} is exhausted: all its {len(state.held)} addresses are leased"
                self._teller.once(server, state.name, events.EXHAUSTED, message)

    def _forget_all(self) -> None:
        """Another is elected: what this one knew is of no use."""
        self._seen_abandoned.clear()
        self._seen_waiting.clear()
        self._seen_on = {}
        self._looked = float("-inf")
        self._note("abandoned", [])
        for family in (self._metrics.in_use, self._metrics.pool_size, self._metrics.pool_bytes):
            family.replace({})

    # --- what came of it ---

    def _note(self, which: str, suspects: list[Suspect]) -> None:
        known = {key_of(s.held) for s in self._suspects.get(which, [])}
        for suspect in suspects:
            if key_of(suspect.held) not in known:
                self._log.say(
                    "info", f"{suspect.why}: freed if it is so in {self._grace:g} s still", **_fields(suspect)
                )
        self._suspects[which] = suspects
        self._count()

    def _count(self) -> None:
        found = Counter((s.held.pool, s.held.node) for listed in self._suspects.values() for s in listed)
        self._metrics.candidates.replace({key: float(count) for key, count in found.items()})

    def _freed(self, which: str, server: Server, suspect: Suspect, done: bool) -> None:
        if not done:
            self._log.say("info", f"{suspect.held.text} is not freed: it is in use, or has changed", **_fields(suspect))
            return
        held = suspect.held
        self._suspects[which] = [s for s in self._suspects[which] if s is not suspect]
        self._count()
        if suspect.is_reservation:
            self._metrics.removed.add(1)
            message = f"{suspect.why}: its reservation, which no pool had a lease for, was removed"
        else:
            self._metrics.reclaimed.add(1, held.pool, held.node)
            message = f"{suspect.why}: freed in pool {held.pool}"
        self._log.say("warning", message, **_fields(suspect))
        self._teller.about_pod(server, (*held.pod, held.uid), events.RECLAIMED, message)


def _without_lease(held: list[Held], reserved: list[Reserved]) -> list[Held]:
    """What the reservations tell whose address no pool holds in their scope."""
    leased = {(one.scope, one.address) for one in held}
    lone = (of_reservation(r) for r in reserved if (r.scope, r.address) not in leased)
    return [one for one in lone if one]


def _size(state: PoolState) -> int:
    """How many addresses the range of the pool has; 0 when its name does not tell."""
    length = state.cidr.rpartition("/")[2]
    return 1 << BITS[state.pool.family] - int(length) if length else 0


def _fields(suspect: Suspect) -> dict[str, str]:
    held = suspect.held
    return {
        "address": held.text,
        "pool": held.pool,
        "pod": "/".join(held.pod),
        "uid": held.uid,
        "container": held.container_id,
        "ifname": held.ifname,
        "node": held.node,
    }
