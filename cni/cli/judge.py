"""What is wrong with leases and reservations, beside live pods. Pure: an inventory in, findings out.

A lease is called dead only when nobody can be using its address: its pod is gone, or is over, or is another of the same
name, and no other pod shows the address. A pod that is pending may be about to use it, an IPAMClaim outlives its pod,
and on a node that is not ready a pod may run on after its object is gone: none of these is ever to be reclaimed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cni.cli import findings as kinds
from cni.cli.findings import KEEP, LOOK, RECLAIM, RESTORE, Finding, Inventory, about
from cni.cli.inventory import Address, Held, PoolState, Reserved
from cni.cli.use import Use
from ipam.ranges import format_address
from ipam.stores.kubernetes_size import REMEDY, WARN_PERCENT, percent


def find(inventory: Inventory) -> list[Finding]:
    """All findings, those of one pool together and in the order of their addresses."""
    judge, use = Judge(inventory), Use(inventory)
    found = [
        *judge.leases(),
        *judge.given_twice(),
        *judge.reservations(),
        *use.without_lease(),
        *use.duplicates(),
        *pools(inventory.pools),
    ]
    return sorted(found, key=lambda f: (f.pool, len(f.address), f.address, f.kind, f.pod))


class Judge:
    """Judges one lease, one reservation or all of an inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self._all = inventory
        self._use = Use(inventory)
        self._held: dict[Address, list[Held]] = defaultdict(list)
        for held in inventory.held:
            self._held[held.address].append(held)
        self._reserved = {(r.scope, r.address): r for r in inventory.reserved or () if r.address}
        self._unreserved = {pool for n in inventory.networks if not n.overlap for pool in n.pools()}

    # --- leases ---

    def leases(self) -> Iterator[Finding]:
        for held in self._all.held:
            finding = self.lease(held)
            if finding:
                yield finding
            if finding is None or finding.action != RECLAIM:
                yield from self._reservation_of(held)

    def lease(self, held: Held) -> Finding | None:
        """What is to be said of a lease and its pod; None when it is as it should be, or cannot be told."""
        if held.claimed:
            return self._of(held, kinds.LEASE_CLAIMED, KEEP, "belongs to an IPAMClaim, which outlives the pod")
        pods = self._all.pods
        if pods is None:
            return None
        if not held.pod[1]:
            why = "names no pod, so who uses it cannot be told here: look on its node"
            return self._of(held, kinds.LEASE_WITHOUT_OWNER, LOOK, why)
        pod = pods.get(held.pod)
        if pod is None:
            return self._dead(held, kinds.LEASE_WITHOUT_POD, "its pod does not exist")
        if pod.shows(held.address) and not pod.is_over:
            return None
        if pod.is_pending:
            return self._of(held, kinds.LEASE_PENDING, KEEP, "its pod is pending, and may be about to use it")
        if held.uid and not pod.has_uid(held.uid):
            why = f"it was given to the pod with the UID {held.uid}; the one of that name now is another"
            if pod.interfaces is None and not pod.is_over:
                return self._of(held, kinds.LEASE_OF_ANOTHER_UID, LOOK, f"{why}, and does not show what it uses")
            return self._dead(held, kinds.LEASE_OF_ANOTHER_UID, why)
        if pod.is_over:
            return self._dead(held, kinds.LEASE_OF_ENDED_POD, f"its pod has ended ({pod.phase})")
        same = [i for i in pod.interfaces or () if i.ifname == held.ifname and held.ifname]
        if not same:
            return None  # no network-status, or an interface that Multus knows nothing of
        others = [format_address(*a) for i in same for a in i.addresses if a[0] == held.address[0]]
        if others and not pod.terminating:
            return self._dead(held, kinds.LEASE_UNUSED, f"its pod has {', '.join(others)} on {held.ifname} instead")
        return None

    def _dead(self, held: Held, kind: str, why: str) -> Finding:
        """A finding that the lease may go, unless somebody may be using its address nevertheless."""
        users = self._use.users(held)
        if users:
            return self._of(held, kind, LOOK, f"{why}, but pod {users[0]} uses the address")
        node = (self._all.nodes or {}).get(held.node)
        if node and node.may_run_on:
            return self._of(held, kind, LOOK, f"{why}, but node {node.name} is not ready: it may run there still")
        return self._of(held, kind, RECLAIM, why)

    def _of(self, held: Held, kind: str, action: str, why: str) -> Finding:
        reserved = self._reserved.get((held.scope or "", held.address)) if held.scope is not None else None
        found = about(held, kind, action, why)
        return replace(found, reservation=(reserved.name, reserved.uid)) if reserved and reserved.is_of(held) else found

    def given_twice(self) -> Iterator[Finding]:
        """Addresses that several pools have given where they must be unique."""
        for leases in self._held.values():
            reserving = [h for h in leases if h.scope is not None and h.pool not in self._unreserved]
            for scope in {h.scope for h in reserving}:
                same = [h for h in reserving if h.scope == scope]
                if len(same) > 1:
                    where = " and ".join(f"{h.pool} to {h.owner}" for h in same)
                    yield self._of(same[0], kinds.DUPLICATE_LEASE, LOOK, f"it is given out by {where}")

    # --- reservations ---

    def _reservation_of(self, held: Held) -> Iterator[Finding]:
        if self._all.reserved is None or held.scope is None or held.pool in self._unreserved:
            return
        reserved = self._reserved.get((held.scope, held.address))
        if reserved is None:
            why = "its overlap reservation is lost: a pool that overlaps could give the address again"
            yield self._of(held, kinds.LOST_RESERVATION, RESTORE, why)
        elif not reserved.is_of(held):
            others = [h for h in self._held[held.address] if h.scope == held.scope and reserved.is_of(h)]
            if not others:
                whose = "/".join(reserved.pod) if reserved.pod[1] else reserved.container_id
                yield self._of(
                    held, kinds.FOREIGN_RESERVATION, LOOK, f"its overlap reservation says {whose or 'nobody'}"
                )

    def reservations(self) -> Iterator[Finding]:
        for reserved in self._all.reserved or ():
            finding = self.reservation(reserved)
            if finding:
                yield finding

    def reservation(self, reserved: Reserved) -> Finding | None:
        """What is to be said of a reservation that goes with no lease."""
        if reserved.address is None:
            return self._about(reserved, kinds.UNREADABLE, LOOK, "its name holds no address")
        if any(h.scope == reserved.scope for h in self._held[reserved.address]):
            return None
        if self._all.pods is None:
            return self._about(reserved, kinds.RESERVATION_WITHOUT_LEASE, LOOK, "no pool holds its address")
        pod = self._all.pods.get(reserved.pod)
        if pod and pod.is_pending:
            return self._about(
                reserved, kinds.RESERVATION_WITHOUT_LEASE, KEEP, "no pool holds its address, its pod is pending"
            )
        used = self._use.in_scope(reserved.scope, reserved.address)
        if used:
            why = f"no pool holds its address, and pod {used[0]} uses it"
            return self._about(reserved, kinds.RESERVATION_WITHOUT_LEASE, LOOK, why)
        node = (self._all.nodes or {}).get(reserved.node)
        if not reserved.pod[1] or (pod and not pod.is_over and pod.interfaces is None) or (node and node.may_run_on):
            why = "no pool holds its address, and whether it is in use cannot be told"
            return self._about(reserved, kinds.RESERVATION_WITHOUT_LEASE, LOOK, why)
        why = "no pool holds its address, and its pod does not use it"
        return self._about(reserved, kinds.RESERVATION_WITHOUT_LEASE, RECLAIM, why)

    def _about(self, reserved: Reserved, kind: str, action: str, why: str) -> Finding:
        return Finding(
            kind=kind,
            action=action,
            message=f"reservation {reserved.name}: {why}",
            address=format_address(*reserved.address) if reserved.address else "",
            container_id=reserved.container_id,
            ifname=reserved.ifname,
            pod="/".join(reserved.pod) if reserved.pod[1] else "",
            pod_uid=reserved.pod_uid,
            node=reserved.node,
            sequence=reserved.sequence,
            reservation=(reserved.name, reserved.uid),
        )


def pools(states: Iterable[PoolState]) -> Iterator[Finding]:
    """What is to be said of pools as objects."""
    for state in states:
        share = percent(state.pool.size)
        if share >= WARN_PERCENT:
            message = (
                f"pool {state.name} is an object of {state.pool.size >> 10} KiB with {len(state.held)} leases, {share} % of"
                f" what the API server takes. {REMEDY}"
            )
            yield Finding(kinds.POOL_NEARS_LIMIT, LOOK, message, pool=state.name)
        for key in state.stray:
            message = f"pool {state.name} has an allocation under the key {key!r}, which stands for no address of it"
            yield Finding(kinds.UNREADABLE, LOOK, message, pool=state.name)
