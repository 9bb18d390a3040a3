"""ADD of the IPAM plugin: lease the addresses of an attachment, and return them in the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cni.shared.records import Records
from cni.shared.spec.request import Request
from cni.shared.spec.result import IPConfig, Result
from ipam import rules, stores
from ipam.acquire import AddTerms
from ipam.config import IpamConfig, configured_rail, owner_of, permit
from ipam.leases import PART
from ipam.local import read_record
from ipam.ranges import format_address
from ipam.rules import Exhausted, Need

if TYPE_CHECKING:
    from ipam.group.indexes import Group


def add(request: Request, records: Records) -> Result:
    """Lease all addresses of the attachment or none. Returns the result. A repeated ADD keeps the leased addresses."""
    config, group = configured_rail(request, records.log)
    permit(config, group)
    if not group:
        stores.locate(config, request.attachment.network, True, config.store_timeout)
    needs = group.own if group else rules.needs(config)
    try:
        store_ref, values = _claim(needs, group, config, records)
    except Exhausted:
        from ipam import upkeep  # most pools have a free address

        configured = group.ref_of(config) if group else stores.ref_of(config)
        if not stores.is_shared(configured) or not upkeep.flush_reminded(records, configured):
            raise
        store_ref, values = _claim(needs, group, config, records)  # a pending release may have freed an address
    if store_ref and stores.is_shared(store_ref):
        from ipam import upkeep  # only in a shared store can a release be pending

        upkeep.flush_reminded(records, store_ref)
    addresses = [f"{format_address(n.rng.family, v)}/{n.rng.prefix}" for n, v in zip(needs, values, strict=True)]
    ips = [IPConfig(address, config.gateway_of(address)) for address in addresses]
    ips += [IPConfig(a.address, config.gateway_of(a.address, a.gateway)) for a in config.addresses]
    return Result(ips=ips, routes=config.routes, dns=config.dns)


def _claim(
    needs: Sequence[Need], group: Group | None, config: IpamConfig, records: Records
) -> tuple[dict[str, Any] | None, list[int]]:
    """Lease the addresses of the attachment, or of its group of rails. Returns the same as `_add`."""
    if group:
        from ipam.group import rails  # most networks are not rails

        return rails.add(group, config, records)
    return _add(needs, config, records)


def _add(needs: Sequence[Need], config: IpamConfig, records: Records) -> tuple[dict[str, Any] | None, list[int]]:
    """Lease an address for each of `needs`, and the static addresses that lie in a range of the network. Returns the
    reference to the store (None without `needs`), and the addresses for `needs`."""
    attachment = config.request.attachment
    store_ref = stores.ref_of(config) if needs else None
    with records.locked(attachment, PART):
        record = read_record(attachment, records)
        # the configuration may have changed after the ADD that wrote the record
        if record and not (store_ref and stores.same(record["store"], store_ref)):
            from ipam import upkeep  # most networks keep their store

            upkeep.leave_store(attachment, record, records)
            record = None
        if store_ref is None:
            return None, []
        if record:
            store_ref = stores.joined(record["store"], store_ref)
        wanted = [*needs, *rules.statics(config)]
        values = AddTerms(owner_of(config), config, store_ref, record, records).claim(wanted)
        return store_ref, values[: len(needs)]
