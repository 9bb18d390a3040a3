"""Changing a pool: by a patch that tests that the object is as it was read."""

from __future__ import annotations

import posix
import time
from time import monotonic

from cni.spec.errors import InvalidConfig, TryAgainLater
from ipam.ranges import format_address
from ipam.stores import kubernetes_objects as objects
from ipam.stores import kubernetes_size as sizes
from ipam.stores.base import SHARED_SECONDS, Lease
from ipam.stores.kubernetes_api import POOLS, Conflict, Gone, Open, TooLarge
from ipam.stores.kubernetes_objects import PoolObject

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ipam.stores.kubernetes_api import Api
    from ipam.stores.kubernetes_view import View

    Changes = dict[int, dict[str, Any] | None]

FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds
_CONTENDED_SECONDS = 20.0


def patch(
    view: View,
    name: str,
    changes: Changes,
    warn: Callable[[str], object] = lambda text: None,
    cooled: Sequence[Lease] = (),
    released: Sequence[Lease] = (),
) -> None:
    """Put `changes` into a pool as it was read. Conflict, Open; CniError when it can take no more.

    Unless it is nearly full, it keeps in mind that the addresses `cooled` were given up, and whose those `released` were.
    """
    pool = view.pool(name)
    if pool is None:
        raise Conflict(f"pool {name} has gone")
    added = {value: entry for value, entry in changes.items() if entry and value not in pool.entries}
    _check_offsets(name, pool, added)
    grown = sizes.growth(added.values())
    if added and not sizes.takes(pool.size, grown):
        raise _full(view, name, pool)
    annotations: dict[str, str] = {}
    if sizes.percent(pool.size) < sizes.WARN_PERCENT:
        annotations = pool.remembering(released) | pool.cooled(cooled, view.cooldown, int(time.time()))
    operations = pool.patch(changes, annotations)
    try:
        metadata = view.api.patch(POOLS, view.names.object_of(name), operations).get("metadata") or {}
    except Gone:
        raise Conflict(f"pool {name} has gone") from None
    except TooLarge:
        raise _full(view, name, pool) from None
    except Open:
        view.forget_pool(name)
        raise
    pool.annotations = metadata.get("annotations") or {}
    pool.apply(changes, metadata.get("resourceVersion") or "", grown)
    if added and sizes.percent(pool.size) >= sizes.WARN_PERCENT:
        warn(
            f"pool {name} of {view.api} is {sizes.percent(pool.size)} % of what the API server takes in one object"
            f" ({pool.size >> 10} of {sizes.LIMIT >> 10} KiB, {len(pool.entries)} leases). {sizes.REMEDY}"
        )


def _full(view: View, name: str, pool: PoolObject) -> TryAgainLater:
    return TryAgainLater(
        f"pool {name} is full: its {len(pool.entries)} leases make an object of {pool.size >> 10} KiB, and an API server"
        f" takes {sizes.LIMIT >> 10}. {sizes.REMEDY}",
        f"{view.api}; `railcni ipam leases` shows who holds addresses",
    )


def create(view: View, name: str, family: int, changes: Changes) -> PoolObject:
    """A pool for `changes`, empty: nothing forbids a creation that comes late, so it must claim nothing. Conflict, Open."""
    try:
        cidr = view.names.range_of(name, family, next(iter(changes)))
    except ValueError:
        raise InvalidConfig(
            f"pool {name} bears no range in its name that holds {format_address(family, next(iter(changes)))}"
        ) from None
    document = objects.new_pool(view.names.object_of(name), cidr, {})
    _check_offsets(name, PoolObject(document, 0), changes)
    pool = PoolObject(view.api.create(POOLS, document), 0)
    view.set_pool(name, pool)
    return pool


def _check_offsets(name: str, pool: PoolObject, values: Iterable[int]) -> None:
    for value in values:
        if not pool.can_hold(value):
            raise InvalidConfig(
                f"address {format_address(pool.family, value)} is too far from the start of pool {name}: whereabouts"
                " keeps offsets below 2^63. Use a range of at most 63 bits, such as a /66"
            )


def contended_until(api: Api) -> float:
    """Until when (time.monotonic) a change is tried again that others' changes forestall: longer than for a request of
    the usual time, since a server that answers is not out of reach."""
    seconds = api.seconds if api.seconds < SHARED_SECONDS else max(api.seconds, _CONTENDED_SECONDS)
    return min(monotonic() + seconds, api.deadline)


def wait(pause: float) -> float:
    """Wait for about `pause` seconds, not as long as others; how long to wait the next time."""
    time.sleep(pause * (0.5 + posix.urandom(1)[0] / 256))
    return min(2 * pause, _LONGEST_PAUSE)
