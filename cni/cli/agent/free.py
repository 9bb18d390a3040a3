"""Freeing what no record tells of: the allocation first, then the reservation, each only if it is what was seen.

In this order: while the allocation may yet turn out to be another's, its reservation must stand.
"""

from __future__ import annotations

from cni.cli.agent import sightings
from cni.cli.agent.server import Server
from cni.cli.agent.sightings import Suspect
from cni.cli.inventory import Held, lease_of
from ipam.stores.kubernetes_objects import Entry, PoolObject, podref


def free(server: Server, suspect: Suspect, abandoned_by: str = "") -> bool:
    """Free the lease, or remove the reservation, if its pod is dead still; whether it was done. CniError.

    `abandoned_by`: the node that was found to be gone or out of service, which is looked at again as well.
    """
    held = suspect.held
    pod = server.pod(*held.pod)
    if sightings.key_of(held) not in sightings.dead([held], {held.pod: pod} if pod else {}):
        return False
    if abandoned_by and not (pod and pod.is_over and not held.node):
        node = server.node(abandoned_by)
        if node and not node.out_of_service:
            return False
    if suspect.is_reservation:
        return not _is_leased(server, held) and _remove_reservation(server, held)
    pool = server.pool(held.pool) if held.pool else None
    entry = pool.entries.get(held.address[1]) if pool and pool.family == held.address[0] else None
    if pool is None or entry is None:
        return _remove_reservation(server, held)  # somebody has freed the first half
    if not is_same(entry, held) or not server.remove_allocation(pool, held):
        return False
    _remove_reservation(server, held)
    return True


def is_same(entry: Entry, held: Held) -> bool:
    """Whether the allocation is the one that was seen, in all that it says, and no IPAMClaim's."""
    if "ipamclaimref" in entry.document:
        return False
    if held.entry:
        return entry.document == held.entry
    return entry.is_of(lease_of(held)) and entry.document.get("podref") == podref((*held.pod, ""))


def _remove_reservation(server: Server, held: Held) -> bool:
    found = server.reservation(held)
    if found is None or not found.is_of(held) or found.pod != held.pod:
        return False
    return server.remove_reservation(found)


def _is_leased(server: Server, held: Held) -> bool:
    """Whether some pool holds the address of a reservation after all; Go's reservations do not say which pool."""
    if held.pool:
        pool = server.pool(held.pool)
        return _holds(pool, held)
    states, _, faults = server.pools()
    return bool(faults) or any(_holds(state.pool, held) for state in states if state.scope == held.scope)


def _holds(pool: PoolObject | None, held: Held) -> bool:
    return pool is not None and pool.family == held.address[0] and held.address[1] in pool.entries
