"""Reservations of addresses that are given up, and of those that others turn out to have."""

from __future__ import annotations

from time import monotonic

from ipam.stores import kubernetes_objects as objects
from ipam.stores.base import Lease
from ipam.stores.kubernetes_api import RESERVATIONS, Conflict, Gone, Open
from ipam.stores.kubernetes_change import FIRST_PAUSE, contended_until, wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipam.stores.kubernetes_view import View


def unreserve(view: View, leases: Sequence[Lease]) -> None:
    """Delete the reservations that belong to `leases`. Open."""
    for lease in leases:
        if lease.scope is not None:
            _unreserve(view, lease, lease.scope)


def _unreserve(view: View, lease: Lease, scope: str) -> None:
    place = (scope, lease.family, lease.value)
    name = view.names.reservation_name(*place)
    deadline, pause = contended_until(view.api), FIRST_PAUSE
    while True:
        found = view.reservation(*place)
        if found is None or not found.is_of(lease):
            return
        try:
            view.api.delete(RESERVATIONS, name, found.uid, found.version)
            return
        except Gone:
            return
        except Conflict as fault:  # it has changed: that does not make it another's
            if monotonic() + pause > deadline:
                raise Open(f"reservation {name} of {view.api} was changed by others each time: {fault}") from None
        finally:
            view.forget_reservation(*place)
        pause = wait(pause)


def holder_besides(view: View, lease: Lease) -> Lease | None:
    """Who else has the address of `lease` by now, as the pool says.

    whereabouts moves an entry to a restarted sandbox, and leaves the former container in the reservation.
    """
    pool = view.pool(lease.pool)
    entry = pool.entries.get(lease.value) if pool else None
    found = view.lease(pool, entry) if pool and entry else None
    return found if found and (found.container_id, found.ifname) != (lease.container_id, lease.ifname) else None


def reserve_for_others(view: View, leases: Sequence[Lease]) -> None:
    """Make reservations again that were deleted as those of `leases`, and whose addresses others turn out to have. Open."""
    for lease in leases:
        other = holder_besides(view, lease) if lease.scope is not None else None
        if other and lease.scope is not None and view.reservation(lease.scope, lease.family, lease.value) is None:
            name = view.names.reservation_name(lease.scope, lease.family, lease.value)
            try:
                view.api.create(RESERVATIONS, objects.reservation(name, other))
            except Conflict:
                pass  # it is made already
            view.forget_reservation(lease.scope, lease.family, lease.value)
