"""What is wrong with leases and reservations, beside live pods. Pure: a snapshot in, findings out.

A lease is called dead only when nobody can be using its address: its pod is gone, or is over, or is another of the same
name, and no other pod shows the address. A pod that is pending may be about to use it, an IPAMClaim outlives its pod,
and on a node that is not ready a pod may run on after its object is gone: none of these is ever to be reclaimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cni.library.audit import findings as kinds
from cni.library.audit.findings import KEEP, LOOK, RECLAIM, RESTORE, Finding, about
from cni.library.audit.model import Snapshot
from cni.library.audit.pod_rules import AddressUse
from ipam.leases import Lease
from ipam.ranges import format_address
from ipam.stores.kubernetes.objects import REMEDY, WARN_PERCENT, IPPool, Reservation, percent


def find(snapshot: Snapshot) -> list[Finding]:
    """All findings, those of one pool together and in the order of their addresses."""
    rules = AuditRules(snapshot)
    found = [
        *rules.leases(),
        *rules.given_twice(),
        *filter(None, map(rules.reservation, snapshot.reserved or ())),
        *rules.use.without_lease(),
        *rules.use.duplicates(),
        *pools(snapshot.pools),
    ]
    return sorted(found, key=lambda f: (f.pool, len(f.address), f.address, f.kind, f.pod))


class AuditRules:
    """The rules for one lease, one reservation, or all of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._all = snapshot
        self.use = AddressUse(snapshot)
        self._reserved = {r.key: r for r in snapshot.reserved or () if r.address}
        self._unreserved = {pool for n in snapshot.networks if not n.overlap for pool in n.pools()}

    # --- leases ---

    def leases(self) -> Iterator[Finding]:
        """The findings of all leases."""
        for lease in self._all.leases:
            finding = self.lease(lease)
            if finding:
                yield finding
            if finding is None or finding.action != RECLAIM:
                yield from self._reservation_of(lease)

    def lease(self, lease: Lease) -> Finding | None:
        """What is to be said of a lease and its pod; None when it is as it should be, or cannot be told."""
        if lease.claimed:
            return self._of(lease, kinds.LEASE_CLAIMED, KEEP, "belongs to an IPAMClaim, which outlives the pod")
        pods = self._all.pods
        if pods is None:
            return None
        if not lease.pod[1]:
            why = "names no pod, so who uses it cannot be told here: look on its node"
            return self._of(lease, kinds.LEASE_WITHOUT_OWNER, LOOK, why)
        pod = pods.get(lease.pod_name)
        if pod is None:
            return self._dead(lease, kinds.LEASE_WITHOUT_POD, "its pod does not exist")
        if lease.address in pod.addresses() and not pod.is_over:
            return None
        if pod.is_pending:
            return self._of(lease, kinds.LEASE_PENDING, KEEP, "its pod is pending, and may be about to use it")
        if lease.pod[2] and not pod.has_uid(lease.pod[2]):
            why = f"it was given to the pod with the UID {lease.pod[2]}; the one of that name now is another"
            if pod.interfaces is None and not pod.is_over:
                return self._of(lease, kinds.LEASE_OF_ANOTHER_UID, LOOK, f"{why}, and does not show what it uses")
            return self._dead(lease, kinds.LEASE_OF_ANOTHER_UID, why)
        if pod.is_over:
            return self._dead(lease, kinds.LEASE_OF_ENDED_POD, f"its pod has ended ({pod.phase})")
        same = [i for i in pod.interfaces or () if i.ifname == lease.ifname and lease.ifname]
        if not same:
            return None  # no network-status, or an interface that Multus knows nothing of
        others = [format_address(*a) for i in same for a in i.addresses if a[0] == lease.family]
        if others and not pod.terminating:
            return self._dead(lease, kinds.LEASE_UNUSED, f"its pod has {', '.join(others)} on {lease.ifname} instead")
        return None

    def _dead(self, lease: Lease, kind: str, why: str) -> Finding:
        """A finding that the lease can be freed, or that its address may still be in use."""
        users = self.use.users(lease)
        if users:
            return self._of(lease, kind, LOOK, f"{why}, but pod {users[0]} uses the address")
        node = (self._all.nodes or {}).get(lease.node)
        if node and node.may_run_on:
            return self._of(lease, kind, LOOK, f"{why}, but node {node.name} is not ready: it may run there still")
        return self._of(lease, kind, RECLAIM, why)

    def _of(self, lease: Lease, kind: str, action: str, why: str) -> Finding:
        reserved = self._reserved.get((lease.scope, lease.address)) if lease.scope is not None else None
        own = (reserved.name, reserved.uid) if reserved and reserved.is_of(lease) else ("", "")
        return about(lease, kind, action, why, reservation=own)

    def given_twice(self) -> Iterator[Finding]:
        """Addresses that several pools have given where they must be unique."""
        for leases in self.use.leases.values():
            reserving = [h for h in leases if h.scope is not None and h.pool not in self._unreserved]
            for scope in {h.scope for h in reserving}:
                same = [h for h in reserving if h.scope == scope]
                if len(same) > 1:
                    where = " and ".join(f"{h.pool} to {h.user()}" for h in same)
                    yield self._of(same[0], kinds.DUPLICATE_LEASE, LOOK, f"it is given out by {where}")

    # --- reservations ---

    def _reservation_of(self, lease: Lease) -> Iterator[Finding]:
        if self._all.reserved is None or lease.scope is None or lease.pool in self._unreserved:
            return
        reserved = self._reserved.get((lease.scope, lease.address))
        if reserved is None:
            why = "its overlap reservation is lost: a pool that overlaps could give the address again"
            yield self._of(lease, kinds.LOST_RESERVATION, RESTORE, why)
        elif not reserved.is_of(lease):
            others = [h for h in self.use.leases[lease.address] if h.scope == lease.scope and reserved.is_of(h)]
            other = reserved.lease.pod_ref or reserved.lease.container_id
            if other and not others:
                yield self._of(lease, kinds.FOREIGN_RESERVATION, LOOK, f"its overlap reservation says {other}")

    def reservation(self, reserved: Reservation) -> Finding | None:
        """What is to be said of a reservation that goes with no lease."""
        if reserved.address is None:
            return self._about(reserved, kinds.UNREADABLE, LOOK, "its name holds no address")
        if any(h.scope == reserved.lease.scope for h in self.use.leases[reserved.address]):
            return None
        lease, pods = reserved.lease, self._all.pods
        pod, node = (pods or {}).get(lease.pod_name), (self._all.nodes or {}).get(lease.node)
        used = self.use.in_scope(lease.scope or "", reserved.address)
        silent = pod is not None and not pod.is_over and pod.interfaces is None
        action, why = LOOK, ", and whether it is in use cannot be told"
        if pods is None:
            why = ""
        elif pod and pod.is_pending:
            action, why = KEEP, ", its pod is pending"
        elif used:
            why = f", and pod {used[0]} uses it"
        elif lease.pod[1] and not silent and not (node and node.may_run_on):
            action, why = RECLAIM, ", and its pod does not use it"
        return self._about(reserved, kinds.RESERVATION_WITHOUT_LEASE, action, f"no pool holds its address{why}")

    def _about(self, reserved: Reservation, kind: str, action: str, why: str) -> Finding:
        return about(
            reserved.lease,
            kind,
            action,
            "",
            message=f"reservation {reserved.name}: {why}",
            pool="",
            address=format_address(*reserved.address) if reserved.address else "",
            network="",
            reservation=(reserved.name, reserved.uid),
        )


def pools(states: Iterable[IPPool]) -> Iterator[Finding]:
    """What is to be said of pools as objects."""
    for state in states:
        if message := near_limit(state.name, state.size, len(state.leases)):
            yield Finding(kinds.POOL_NEARS_LIMIT, LOOK, message, pool=state.name)
        for key in state.stray:
            message = f"pool {state.name} has an allocation under the key {key!r}, which stands for no address of it"
            yield Finding(kinds.UNREADABLE, LOOK, message, pool=state.name)


def near_limit(name: str, size: int, leases: int) -> str:
    """What is to be said of a pool's object of `size` bytes that the API server will not take much longer; "" for nothing."""
    share = percent(size)
    if share < WARN_PERCENT:
        return ""
    told = f"pool {name} is an object of {size >> 10} KiB with {leases} leases"
    return f"{told}, {share} % of what the API server takes. {REMEDY}"
