"""DEL and GC of the IPAM plugin: release the leases of an attachment, and remove its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cni.shared.config import asks_for_same_index
from cni.shared.gc import Began, valid_attachments
from cni.shared.kernel import node
from cni.shared.records import LINK, Records
from cni.shared.spec.errors import CniError, InvalidConfig, UnsupportedField, report
from cni.shared.spec.request import Attachment, Request
from ipam import rules, stores
from ipam.config import configured, configured_rail, examine
from ipam.leases import PART, recorded_cooldown
from ipam.local import is_pending, read_record
from ipam.stores.base import CHANGE, SHARED_SECONDS, Store
from ipam.upkeep import Faults, flush_reminded, is_ours, node_of, release

if TYPE_CHECKING:
    from types import ModuleType

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group


def may_hold(request: Request, records: Records) -> bool:
    """Whether a failed ADD may have left leases: the record of its attachment exists, or cannot be read."""
    try:
        holder, _ = _holder(request)
        return holder is not None and records.read(holder, PART) is not None
    except CniError:
        return True


def _holder(request: Request) -> tuple[Attachment | None, ModuleType | None]:
    """Return (the attachment that owns the leases, the module with the verbs of a rail group). The attachment is None
    if an ADD with this configuration claims no address. The module is None without a group."""
    if not asks_for_same_index(request):
        return request.attachment, None
    from ipam.group import rails  # most networks are not rails

    return rails.holder_of(request), rails


def delete(request: Request, records: Records) -> None:
    """Release the attachment's leases in the store that its record names; without a record, in the configured store.

    In a group of rails (ipam.group), only the last rail's DEL releases leases, and then those of all rails. If a store
    behind a server fails, DEL succeeds, and the record notes the pending release. Errors of a file store are raised.
    """
    holder, rails = _holder(request)
    if not holder:
        return
    with records.locked(holder, PART):
        record = rails.read(holder, records) if rails else read_record(holder, records)
        store_ref = record["store"] if record else None
        seconds, cooldown, group = 0.0, None, None
        try:
            config, group = configured_rail(request, records.log)
            if config.borrowed and not record:
                raise InvalidConfig(config.borrowed)
            store_ref = stores.reached(store_ref, config) if store_ref else _searched(request, config, group)
            seconds, cooldown = min(SHARED_SECONDS, config.store_timeout), config.cooldown_seconds
        except (InvalidConfig, UnsupportedField) as fault:
            if record is None:  # railcni's ADD refuses this configuration; but Go whereabouts may have claimed one
                records.log.warning(
                    f"there is no record of this attachment, and its configuration cannot be used: {fault.msg}"
                )
                store_ref = None if rails else _pools_of_go(request, records.log)
        if not store_ref:
            records.remove(holder, PART)
            return
        if rails:
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
    """The reference to the store in which an attachment without a record may have leases; None if it can have none.

    If this node's slice of the range cannot be read, the reference has no member `pools`. It then means all pools.
    """
    if group:
        return group.ref_of(config)
    if not rules.needs(config):
        return None
    try:
        stores.locate(config, request.attachment.network, False, min(SHARED_SECONDS, config.store_timeout))
    except CniError:  # such as for a deleted network, which has no NodeSlicePool
        return {key: value for key, value in stores.ref_of(config).items() if key != "pools"}
    return stores.ref_of(config)


def _pools_of_go(request: Request, log: Log) -> dict[str, Any] | None:
    """The reference to whereabouts' IPPools, read from a faulty configuration; None without a usable kubeconfig."""
    faults: list[Fault] = []
    try:
        config = examine(request, faults)
    except CniError:
        return None
    log.hidden = config.hidden
    if config.borrowed or config.datastore != "kubernetes" or any(fault.key.endswith("kubeconfig") for fault in faults):
        return None  # the node's policy may not allow this kubeconfig
    return {"kind": "kubernetes", "kubeconfig": config.kubeconfig}


def gc(request: Request, records: Records) -> None:
    """Release the leases of this network's attachments that the runtime does not list. Errors are raised at the end."""
    began = Began()
    valid = valid_attachments(request, records.log)
    if valid is None:
        return
    collection = GcPass(request.attachment.network, valid, began, records)
    pools, node_name = [], ""
    try:
        config = configured(request, records.log)
        node_name, collection.cooldown = config.node, config.cooldown_seconds
        if config.borrowed:
            records.log.warning(f"only recorded attachments are looked at: {config.borrowed}")
            collection.store_ref = stores.ref_of(config)
        else:
            stores.locate(config, request.attachment.network, False)
            if wanted := rules.needs(config):
                collection.store_ref = stores.ref_of(config)
                pools = list(dict.fromkeys(need.pool for need in wanted))
    except CniError as fault:
        collection.faults.errors.append(fault)
    collection.run(pools, node_name)
    groups = records.of_groups(PART)
    if groups:
        from ipam.group import rails  # most networks are not rails

        rails.gc(collection, groups)
    report(collection.faults.errors)


class GcPass:
    """One GC of `network`: it releases the leases of attachments that are not in `valid`, the runtime's list.

    An attachment stays while another operation holds its lock. It also stays if its claim is later than `began`, the
    start of the GC, since the list may be older than the claim. A pending release is retried even if the attachment is
    in `valid`. `store_ref` is the reference to the configured store, None if no store is searched for leases.
    """

    def __init__(self, network: str, valid: set[Attachment], began: Began, records: Records) -> None:
        self.network, self.valid, self.began, self.records = network, valid, began, records
        self.store_ref: dict[str, Any] | None = None
        self.cooldown = 0
        self.faults = Faults()

    def run(self, pools: Sequence[str], node_name: str) -> None:
        """Release the leases of attachments that are not in `valid`, and retry pending releases. Attachments are found
        by their records and, since records may be damaged, by leases of this node in `pools`."""
        doomed: dict[Attachment, dict[str, Any] | None] = {}
        for attachment, record in self.records.of_network(self.network, PART):
            if attachment not in self.valid or record.get("pending") is True:
                doomed[attachment] = record.get("store")
        try:
            if self.store_ref and pools:
                for attachment in self._unlisted(stores.open_store(self.store_ref, CHANGE), pools, node_name):
                    doomed.setdefault(attachment, self.store_ref)
        except CniError as fault:
            self.faults.note(fault, self.store_ref)
        for attachment, where in doomed.items():
            if not self.faults.is_silent(where):
                try:
                    self._end(attachment)
                except CniError as fault:
                    self.faults.note(fault, where)
        try:
            self.records.sweep(self.network)
        except CniError as fault:
            self.faults.errors.append(fault)

    def _unlisted(self, store: Store, pools: Sequence[str], node_name: str) -> list[Attachment]:
        """The attachments of the network that have leases of this node in `pools`, and are not in `valid`."""
        machine = node.machine_id()
        found = [
            lease
            for pool in pools
            for lease in store.leases(pool, node_of(store, node_name))
            if lease.network == self.network
        ]
        found = [lease for lease in found if lease.attachment not in self.valid]
        return [lease.attachment for lease in found if is_ours(lease, machine, store, self.records)]

    def _end(self, attachment: Attachment) -> None:
        records = self.records
        link = records.try_locked(attachment, LINK)
        if link is None:
            return
        with link:
            own = records.try_locked(attachment, PART)
            if own is None:
                return
            with own:
                record = read_record(attachment, records)
                if record and not self.began.is_after(record["sequence"]):
                    return
                if not (record and record["pending"]) and records.read(attachment, LINK):
                    return  # an ADD made the link after the link plugin read its records, or the link could not be removed
                where = stores.joined(record["store"], self.store_ref) if record else self.store_ref
                if where:
                    cooldown = recorded_cooldown(record) or self.cooldown
                    release(attachment, record, where, records, cooldown=cooldown)
                    records.log.info(f"collected {attachment}")
