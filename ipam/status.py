"""STATUS of the IPAM plugin: search the store as an ADD would, without a claim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cni.shared.records import Records
from cni.shared.spec.errors import CniError, InvalidConfig, NotAvailable
from cni.shared.spec.request import Request
from ipam import rules, stores
from ipam.config import configured_rail, owner_of, permit
from ipam.local import restorer
from ipam.own import Wire
from ipam.rules import Choice, Exhausted
from ipam.search import SearchPlan
from ipam.stores.base import CREATE, SHARED_SECONDS, Store
from ipam.upkeep import flush_reminded, free_earlier_boots


def status(request: Request, records: Records) -> None:
    """Search the store for the addresses that an ADD would claim. Raises NotAvailable when that ADD would fail.

    STATUS also fails if no store is configured. Its callers run Kubernetes pods, and the ADD of a pod fails then.
    """
    config, group = configured_rail(request, records.log)
    permit(config, group)
    if config.unnamed:
        raise NotAvailable(str(config.unnamed), config.unnamed.details)
    if not group and not rules.needs(config):
        return
    owner = owner_of(config)
    seconds = min(SHARED_SECONDS, config.store_timeout)
    try:
        if not group:
            stores.locate(config, request.attachment.network, False, seconds)
        wanted: Sequence[Choice] = [group] if group else rules.needs(config)
        store_ref = group.ref_of(config) if group else stores.ref_of(config)
        store = stores.open_store(store_ref, CREATE, restorer(store_ref, records), seconds)
        store.cooldown = config.cooldown_seconds
        wire = Wire(request)  # without records: a read of the avoided addresses would make their file
        search = SearchPlan(store, wanted, owner, wire, partial(free_earlier_boots, owner=owner, records=records))
        try:
            values = _free(store, search)
        except Exhausted:
            if not stores.is_shared(store_ref) or not flush_reminded(records, store_ref):
                raise
            values = _free(store, search)  # as an ADD does after a retry of the pending releases
    except InvalidConfig:
        raise
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None
    try:
        store.ready([need.want(value) for need, value in zip(search.needs, values, strict=True)])
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None


def _free(store: Store, search: SearchPlan) -> list[int]:
    """A free address for each need of `search`. Raises Exhausted when a pool has none."""
    with store.session():
        return search.propose([None for need in search.needs])
