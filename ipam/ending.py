"""DEL and GC of the IPAM plugin: the end of attachments, with the leases that their records or the configuration name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.records import Began
from cni.shared.spec.errors import CniError, InvalidConfig, UnsupportedField, report
from cni.shared.spec.request import NOTHING_LISTED, valid_attachments
from ipam import config as configuration
from ipam import flatfile, rules, stores, upkeep
from ipam.call import configured, configured_rail, is_of_group, reached, ref_of
from ipam.leases import PART
from ipam.local import is_pending, read_record
from ipam.stores.base import SHARED_SECONDS
from ipam.upkeep import flush_reminded, release

if TYPE_CHECKING:
    from typing import Any

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment, Request
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group


def may_hold(request: Request, records: Records) -> bool:
    """Whether a failed ADD may have left addresses: its record is written before the claim."""
    holder: Attachment | None = request.attachment
    try:
        if is_of_group(request):
            from ipam.group import rails  # most networks are no rail

            holder = rails.holder_of(request)
        return holder is not None and records.read(holder, PART) is not None
    except CniError:
        return True


def delete(request: Request, records: Records) -> None:
    """Release the attachment's leases in the store that its record names. Without a record, the configuration names it.

    The rails of a group have common leases, which the DEL of the last rail releases.
    """
    holder, read = request.attachment, read_record
    if is_of_group(request):
        from ipam.group import rails  # most networks are no rail

        found = rails.holder_of(request)
        if not found:
            return  # an ADD with this configuration claims no address
        holder, read = found, rails.read
    with records.locked(holder, PART):
        record = read(holder, records)
        store_ref = record["store"] if record else None
        seconds, cooldown, group = 0.0, None, None
        try:
            config, group = configured_rail(request, records.log)
            if config.borrowed and not record:
                raise InvalidConfig(config.borrowed)
            store_ref = reached(store_ref, config) if store_ref else _searched(request, config, group)
            seconds, cooldown = min(SHARED_SECONDS, config.store_timeout), config.cooldown_seconds
        except (InvalidConfig, UnsupportedField) as fault:
            if record is None:  # railcni's ADD refuses this; but Go's may have claimed an address
                records.log.warning(
                    f"there is no record of this attachment, and its configuration cannot be used: {fault.msg}"
                )
                store_ref = _pools_of_go(request, records.log) if holder == request.attachment else None
        if not store_ref:
            records.remove(holder, PART)
            return
        if holder != request.attachment:
            record = rails.leave(request.attachment, holder, record, group, store_ref, seconds, cooldown or 0, records)
            if record is None:
                return
        try:
            release(holder, record, store_ref, records, seconds, cooldown)
        except CniError as fault:
            if not stores.is_shared(store_ref) or not is_pending(holder, records):
                raise
            records.log.error(f"the release of {holder} is pending, and will be tried again: {fault.msg}")
            return
    if stores.is_shared(store_ref):
        flush_reminded(records, store_ref)


def _searched(request: Request, config: IpamConfig, group: Group | None) -> dict[str, Any] | None:
    """The reference to the store where an attachment without a record may have leases; None if there can be no lease.

    The reference has no member `pools`, and so stands for all pools, if this node's slices cannot be read.
    """
    if group:
        return ref_of(config, group)
    if not rules.needs(config):
        return None
    try:
        stores.locate(config, request.attachment.network, False, min(SHARED_SECONDS, config.store_timeout))
    except CniError:  # the controller makes no NodeSlicePool for a deleted network
        store_ref = stores.ref_of(config)
        del store_ref["pools"]
        return store_ref
    return stores.ref_of(config)


def _pools_of_go(request: Request, log: Log) -> dict[str, Any] | None:
    """The store with the pools of Go's whereabouts, by a configuration with faults; None if no kubeconfig is usable."""
    faults: list[Fault] = []
    try:
        config = configuration.examine(request, flatfile, faults)
    except CniError:
        return None
    log.hidden = config.hidden
    if config.borrowed or config.datastore != "kubernetes" or any(fault.key.endswith("kubeconfig") for fault in faults):
        return None  # the node's policy may not allow this kubeconfig
    return {"kind": "kubernetes", "kubeconfig": config.kubeconfig}


def gc(request: Request, records: Records) -> None:
    """Release the leases of this network's attachments that the runtime does not list. Errors are raised at the end."""
    began = Began()
    valid = valid_attachments(request)
    if valid is None:
        records.log.warning(NOTHING_LISTED)
        return
    faults: list[CniError] = []
    store_ref, pools, node_name, cooldown = None, [], "", 0
    try:
        config = configured(request, records.log)
        node_name, cooldown = config.node, config.cooldown_seconds
        if config.borrowed:
            records.log.warning(f"only recorded attachments are looked at: {config.borrowed}")
            store_ref = stores.ref_of(config)
        else:
            stores.locate(config, request.attachment.network, False)
            if wanted := rules.needs(config):
                store_ref, pools = stores.ref_of(config), list(dict.fromkeys(need.pool for need in wanted))
    except CniError as fault:
        faults.append(fault)
    faults += upkeep.gc(request.attachment.network, valid, node_name, store_ref, pools, records, cooldown)
    groups = records.of_groups(PART)
    if groups:
        from ipam.group import rails  # most networks are no rail

        faults += rails.gc(request.attachment.network, valid, began, groups, store_ref, records)
    report(faults)
