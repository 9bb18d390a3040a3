"""DEL and GC of the IPAM plugin: release the leases of an attachment, and remove its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cni.shared.gc import NOTHING_LISTED, Began, valid_attachments
from cni.shared.kernel import node
from cni.shared.records import LINK, Records
from cni.shared.spec.errors import CniError, InvalidConfig, UnsupportedField, report
from cni.shared.spec.request import Attachment, Request
from ipam import config as configuration
from ipam import flatfile, rules, stores
from ipam.call import configured, configured_rail, is_of_group, reached, ref_of
from ipam.leases import PART, recorded_cooldown
from ipam.local import is_pending, read_record
from ipam.stores.base import CHANGE, SHARED_SECONDS, Store
from ipam.upkeep import flush_reminded, is_among, is_ours, note_fault, release

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group


def may_hold(request: Request, records: Records) -> bool:
    """Whether a failed ADD may have left addresses: its record exists, or cannot be read."""
    holder: Attachment | None = request.attachment
    try:
        if is_of_group(request):
            from ipam.group import rails  # most networks are not rails

            holder = rails.holder_of(request)
        return holder is not None and records.read(holder, PART) is not None
    except CniError:
        return True


def delete(request: Request, records: Records) -> None:
    """Release the attachment's leases in the store that its record names; without a record, in that of the configuration.

    The DEL of the last rail of a group releases the leases of all rails. If the release in a store that nodes share
    fails, the record notes it as pending, and DEL succeeds. The errors of a file store are raised.
    """
    holder, read = request.attachment, read_record
    if is_of_group(request):
        from ipam.group import rails  # most networks are not rails

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
            if record is None:  # railcni's ADD refuses this configuration; but Go's may have claimed an address
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

    If this node's slices cannot be read, the reference has no member `pools`, and so means all pools.
    """
    if group:
        return ref_of(config, group)
    if not rules.needs(config):
        return None
    try:
        stores.locate(config, request.attachment.network, False, min(SHARED_SECONDS, config.store_timeout))
    except CniError:  # such as for a deleted network, which has no NodeSlicePool
        store_ref = stores.ref_of(config)
        del store_ref["pools"]
        return store_ref
    return stores.ref_of(config)


def _pools_of_go(request: Request, log: Log) -> dict[str, Any] | None:
    """The store of Go's whereabouts that a faulty configuration names; None unless its kubeconfig is usable."""
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
    """Release the leases of this network's attachments that the runtime does not list. Raises its errors at the end."""
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
    faults += _collect(request.attachment.network, valid, node_name, store_ref, pools, records, cooldown, began)
    groups = records.of_groups(PART)
    if groups:
        from ipam.group import rails  # most networks are not rails

        faults += rails.gc(request.attachment.network, valid, began, groups, store_ref, records)
    report(faults)


def _collect(
    network: str,
    valid: set[Attachment],
    node_name: str,
    store_ref: dict[str, Any] | None,
    pools: Collection[str],
    records: Records,
    cooldown: int,
    began: Began,
) -> list[CniError]:
    """Release the leases of the attachments of `network` that are not in `valid`. Returns the errors.

    The attachments are found by their records and, in case a record is damaged, by this node's leases in `pools` of
    the store `store_ref`. An attachment stays while an operation holds its lock. It also stays if its claim is later
    than `began`, since the runtime's list may be older. A pending release is made even for a listed attachment.
    """
    faults: list[CniError] = []
    silent: list[dict[str, Any]] = []  # unreachable stores: the next GC tries them again
    doomed: dict[Attachment, dict[str, Any] | None] = {}
    for attachment, record in records.of_network(network, PART):
        if attachment not in valid or record.get("pending") is True:
            doomed[attachment] = record.get("store")
    try:
        if store_ref and pools:
            for attachment in _unlisted(
                network, valid, node_name, stores.open_store(store_ref, CHANGE), pools, records
            ):
                doomed.setdefault(attachment, store_ref)
    except CniError as fault:
        note_fault(fault, store_ref, faults, silent)
    for attachment, where in doomed.items():
        if is_among(where, silent):
            continue
        try:
            _gc_one(attachment, began, store_ref, records, cooldown)
        except CniError as fault:
            note_fault(fault, where, faults, silent)
    try:
        records.sweep(network)
    except CniError as fault:
        faults.append(fault)
    return faults


def _unlisted(
    network: str, valid: set[Attachment], node_name: str, store: Store, pools: Iterable[str], records: Records
) -> list[Attachment]:
    """The attachments of `network` that have leases of this node in `pools`, and are not in `valid`."""
    found: dict[Attachment, None] = {}
    machine = node.machine_id()
    for pool in pools:
        for lease in store.leases(pool, node_name):
            if lease.network != network or lease.attachment in valid:
                continue
            if is_ours(lease, machine, store, records):
                found[lease.attachment] = None
    return list(found)


def _gc_one(
    attachment: Attachment, began: Began, store_ref: dict[str, Any] | None, records: Records, cooldown: int
) -> None:
    link = records.try_locked(attachment, LINK)
    if link is None:
        return
    with link:
        own = records.try_locked(attachment, PART)
        if own is None:
            return
        with own:
            record = read_record(attachment, records)
            if record and not began.is_after(record["sequence"]):
                return
            if not (record and record["pending"]) and records.read(attachment, LINK):
                return  # an ADD made the link after the link plugin read its records, or the link could not be removed
            where = stores.joined(record["store"], store_ref) if record else store_ref
            if where:
                release(attachment, record, where, records, cooldown=recorded_cooldown(record) or cooldown)
                records.log.info(f"collected {attachment}")
