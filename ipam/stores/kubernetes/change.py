"""Changes of pools, by patches that test that the object is as it was read; and of reservations."""

from __future__ import annotations

import time

from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.leases import Lease
from ipam.ranges import format_address, range_of
from ipam.stores.apiserver.faults import Conflict, Gone, TooLarge
from ipam.stores.apiserver.resources import POOLS, RESERVATIONS
from ipam.stores.base import SHARED_SECONDS, Open, Pauses
from ipam.stores.kubernetes import objects
from ipam.stores.kubernetes.objects import IPPool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ipam.stores.apiserver import Api
    from ipam.stores.kubernetes.view import View

    Changes = dict[int, dict[str, Any] | None]

_CONTENDED_SECONDS, _LONGEST_PAUSE = 60.0, 5.0


def patch(
    view: View,
    name: str,
    changes: Changes,
    warn: Callable[[str], object] = lambda text: None,
    cooled: Sequence[Lease] = (),
    released: Sequence[Lease] = (),
) -> None:
    """Put `changes` into a pool as it was read. Conflict, Open; CniError for a full one.

    Unless it is nearly full, the pool remembers the addresses `cooled` and the pods of the leases `released`.
    """
    pool = view.pool(name)
    if pool is None:
        raise Conflict(f"pool {name} has gone")
    added = {value: entry for value, entry in changes.items() if entry and value not in pool.entries}
    _check_offsets(name, pool, added)
    grown = objects.growth(added.values())
    if added and pool.size + grown > objects.LIMIT - objects.RESERVE:
        raise _full(view, name, pool)
    annotations: dict[str, str] = {}
    if objects.percent(pool.size) < objects.WARN_PERCENT:
        annotations = pool.remembering(released) | pool.cooled(cooled, view.cooldown, int(time.time()))
    operations = pool.patch(changes, annotations)
    try:
        metadata = view.api.patch(POOLS, name, operations).get("metadata") or {}
    except Gone:
        raise Conflict(f"pool {name} has gone") from None
    except TooLarge:
        raise _full(view, name, pool) from None
    except Open:
        view.forget_pool(name)
        raise
    pool.annotations = metadata.get("annotations") or {}
    pool.apply(changes, metadata.get("resourceVersion") or "", grown)
    if added and objects.percent(pool.size) >= objects.WARN_PERCENT:
        warn(
            f"pool {name} of {view.api} is {objects.percent(pool.size)} % of what the API server takes in one object"
            f" ({pool.size >> 10} of {objects.LIMIT >> 10} KiB, {len(pool.entries)} leases). {objects.REMEDY}"
        )


def _full(view: View, name: str, pool: IPPool) -> TryAgainLater:
    return TryAgainLater(
        f"pool {name} is full: its {len(pool.entries)} leases make an object of {pool.size >> 10} KiB, and an API server"
        f" takes {objects.LIMIT >> 10}. {objects.REMEDY}",
        f"{view.api}; `railcni ipam leases` shows who holds addresses",
    )


def create(view: View, name: str, family: int, changes: Changes) -> None:
    """Make a pool for `changes`, empty: no test makes a late creation fail, so it must claim nothing. Conflict, Open."""
    try:
        cidr = range_of(name, family, next(iter(changes)))
    except ValueError:
        raise InvalidConfig(
            f"pool {name} bears no range in its name that holds {format_address(family, next(iter(changes)))}"
        ) from None
    document = objects.new_pool(name, cidr, {})
    _check_offsets(name, IPPool(document, 0), changes)
    view.read_pools[name] = IPPool(view.api.create(POOLS, document), 0)


def _check_offsets(name: str, pool: IPPool, values: Iterable[int]) -> None:
    for value in values:
        if not 0 <= value - pool.first < objects.OFFSETS:
            raise InvalidConfig(
                f"address {format_address(pool.family, value)} is too far from the start of pool {name}: whereabouts"
                " keeps offsets below 2^63. Use a range of at most 63 bits, such as a /66"
            )


def pauses(api: Api) -> Pauses:
    """The pauses of a change that others' changes forestall. It may take longer than a request: the server answers."""
    seconds = api.seconds if api.seconds < SHARED_SECONDS else max(api.seconds, _CONTENDED_SECONDS)
    return Pauses(min(time.monotonic() + seconds, api.deadline), longest=_LONGEST_PAUSE)


def unreserve(view: View, leases: Sequence[Lease]) -> None:
    """Delete the reservations that belong to `leases`. Open."""
    for lease in leases:
        attempts = pauses(view.api)
        while (found := view.reservation(lease)) and found.is_of(lease):
            try:
                view.api.delete(RESERVATIONS, found.name, found.uid, found.version)
                break
            except Gone:
                break
            except Conflict as fault:  # another version may still belong to the lease
                if not attempts.wait():
                    raise Open(
                        f"reservation {found.name} of {view.api} was changed by others each time: {fault}"
                    ) from None
            finally:
                view.forget_reservation(lease)


def holder_besides(view: View, lease: Lease) -> Lease | None:
    """The lease of another container that the pool has at the address of `lease`; None for none.

    whereabouts moves an entry to a restarted sandbox, and leaves the former container in the reservation.
    """
    found = view.lease_at(lease)
    return found if found and (found.container_id, found.ifname) != (lease.container_id, lease.ifname) else None


def reserve_for_others(view: View, leases: Sequence[Lease]) -> None:
    """Make reservations again that were deleted as those of `leases`, and whose addresses others turn out to have. Open."""
    for lease in leases:
        other = holder_besides(view, lease) if lease.scope is not None else None
        if other and view.reservation(lease) is None:
            try:
                view.api.create(RESERVATIONS, objects.reservation(Lease(lease.want, other.owner)))
            except Conflict:
                pass  # another call has made it
            view.forget_reservation(lease)
