"""The IPAM plugin `whereabouts`: ADD, DEL, CHECK, GC and STATUS over a store of leases.

CNI_NETNS is only a text here, kept with the lease, so that a later boot can test whether the namespace still exists.
ADD and DEL never open the namespace, since some callers pass /dev/null. The order of the writes ensures that after a
kill a later call can finish:

    ADD   writes the record (store, addresses), then claims: each lease has a record
    DEL   releases, then removes the record: the next DEL or GC removes a record without leases
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.shared.records import STATE, Began, Records
from cni.shared.spec.errors import CniError, InvalidConfig, NotAvailable, UnsupportedField, report
from cni.shared.spec.request import NOTHING_LISTED, Attachment, valid_attachments
from cni.shared.spec.result import IPConfig, Result
from ipam import config as configuration
from ipam import flatfile, own, rules, stores, upkeep
from ipam.call import claim, configured, configured_rail, is_of_group, owner_of, permit, reached, ref_of
from ipam.leases import PART
from ipam.ranges import format_address
from ipam.stores.base import CREATE, SHARED_SECONDS
from ipam.upkeep import flush_reminded, free_earlier_boots, is_pending, read_record, release, restorer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.spec.request import Request
    from ipam.config import IpamConfig
    from ipam.group.indexes import Group
    from ipam.rules import Choice, Need


def call(request: Request, log: Log, state: str = STATE) -> Result | None:
    """Serve `request`, with the records under the directory `state`. Returns the result of an ADD, or None."""
    verbs: dict[str, Callable[[Request, Records], Result | None]]
    verbs = {"ADD": add, "DEL": delete, "GC": gc, "STATUS": status}
    if request.command == "CHECK":
        from ipam.check import check  # only CHECK needs it

        verbs["CHECK"] = check
    try:
        return verbs[request.command](request, Records(state, log))
    except CniError as fault:
        for text in log.hidden:
            fault.msg, fault.details = (part.replace(text, "(not shown)") for part in (fault.msg, fault.details))
        raise


def add(request: Request, records: Records) -> Result:
    """Lease all addresses of the attachment or none; return the result. A repeated ADD keeps leased addresses."""
    config, group = configured_rail(request, records.log)
    permit(config, group)
    store_ref: dict[str, Any] | None
    if group:
        from ipam.group import rails  # most networks are no rail

        store_ref, values = rails.add(group, config, request.attachment, owner_of(request, config), records)
        needs = group.own
    else:
        stores.locate(config, request.attachment.network, True, config.store_timeout)
        needs = rules.needs(config)
        store_ref, values = _add(needs, config, request, records)
    if store_ref and stores.is_shared(store_ref):
        flush_reminded(records, store_ref)
    addresses = [f"{format_address(n.rng.family, v)}/{n.rng.prefix}" for n, v in zip(needs, values, strict=True)]
    ips = [IPConfig(address, config.gateway_of(address)) for address in addresses]
    ips += [IPConfig(a.address, config.gateway_of(a.address, a.gateway)) for a in config.addresses]
    return Result(ips=ips, routes=config.routes, dns=config.dns)


def _add(
    needs: Sequence[Need], config: IpamConfig, request: Request, records: Records
) -> tuple[dict[str, Any] | None, list[int]]:
    """Lease an address for each of `needs`; return (the store, the addresses). Without `needs` the store is None."""
    store_ref = stores.ref_of(config) if needs else None
    with records.locked(request.attachment, PART):
        record = read_record(request.attachment, records)
        # the configuration may have changed after the ADD that wrote the record
        if record and not (store_ref and stores.same(record["store"], store_ref)):
            _leave_store(request.attachment, record, records)
            record = None
        if store_ref is None:
            return None, []
        if record:
            store_ref = stores.joined(record["store"], store_ref)
        wanted = [*needs, *rules.statics(config)]
        values = claim(wanted, owner_of(request, config), config, store_ref, record, records)[0]
        return store_ref, values[: len(needs)]


def _leave_store(attachment: Attachment, record: dict[str, Any], records: Records) -> None:
    """Release the leases of an attachment in its former store: the network names another one now."""
    try:
        release(attachment, record, record["store"], records)
    except CniError as fault:
        texts = ", ".join(record["addresses"])
        if texts:
            fault.msg = f"{texts} of the network's former store cannot be released (or given up: railcni ipam flush --drop): {fault.msg}"
            raise
        records.log.warning(f"{attachment} had no address in its network's former store: {fault.msg}")
        records.remove(attachment, PART)


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


def status(request: Request, records: Records) -> None:
    """Search the store for the addresses that an ADD would claim. Raises NotAvailable when that ADD would fail.

    It also fails if the configuration names no store: runtimes that call STATUS run Kubernetes' pods, where ADD fails.
    """
    from ipam.search import SearchPlan  # only STATUS needs it here

    config, group = configured_rail(request, records.log)
    permit(config, group)
    if config.unnamed:
        raise NotAvailable(str(config.unnamed), config.unnamed.details)
    if not group and not rules.needs(config):
        return
    owner = owner_of(request, config)
    seconds = min(SHARED_SECONDS, config.store_timeout)
    try:
        if not group:
            stores.locate(config, request.attachment.network, False, seconds)
        wanted: Sequence[Choice] = [group] if group else rules.needs(config)
        store_ref = ref_of(config, group)
        store = stores.open_store(store_ref, CREATE, restorer(store_ref, records), seconds)
        store.cooldown = config.cooldown_seconds
        needs = [need for choice in wanted for need in choice.needs]
        chosen = [None for need in needs]
        with store.session():
            free, wire = lambda pool: free_earlier_boots(store, pool, owner, records), own.Wire(config.network)
            values = SearchPlan(store, wanted, owner, free, wire.is_own, wire.is_neighbour).propose(chosen)
    except InvalidConfig:
        raise
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None
    try:
        store.ready([need.want(value) for need, value in zip(needs, values, strict=True)])
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None
