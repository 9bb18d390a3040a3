"""The IPAM plugin `whereabouts`: ADD, DEL, CHECK, GC and STATUS over a store of leases.

CNI_NETNS is only a text here. It is kept with the lease, for the question in a later boot whether the namespace still
exists; ADD and DEL never open it, since some callers pass /dev/null. A kill between two writes leaves a state that a
later call can end, because of their order:

    ADD   writes the record (store, addresses), then claims: each lease has a record
    DEL   releases, then removes the record: the next DEL or GC removes a record without leases
"""

from __future__ import annotations

from cni.shared.records import STATE, Began, Records
from cni.shared.spec.errors import AttachmentDiffers, CniError, InvalidConfig, UnsupportedField
from cni.shared.spec.request import Attachment, member
from cni.shared.spec.result import IPConfig, Result
from ipam import rules, stores
from ipam.call import address_of, attempt, configured, forget, owner_of, preferred_of, reached
from ipam.leases import Want
from ipam.ranges import format_address
from ipam.records import PART, document
from ipam.records import leases as recorded_leases
from ipam.stores.base import CREATE, READ, SHARED_SECONDS, Unreachable
from ipam.upkeep import flush_reminded, is_pending, read_record, reclaim, recorder, release, restorer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.log import Log
    from cni.shared.records import HeldLock
    from cni.shared.spec.request import Request
    from ipam.config import IpamConfig
    from ipam.ranges import Range
    from ipam.rules import Need


def call(request: Request, log: Log, state: str = STATE) -> Result | None:
    """Serve `request`; the result of an ADD, None for every other verb. The records are under the directory `state`."""
    try:
        return _serve(request, Records(state, log), log)
    except CniError as fault:
        for text in log.hidden:
            fault.msg, fault.details = (part.replace(text, "(not shown)") for part in (fault.msg, fault.details))
        raise


def _serve(request: Request, records: Records, log: Log) -> Result | None:
    if request.command != "GC" and member(request.config, "rail") is not None:
        from cni.shared import rail

        if rail.asks_for_same_index(request.config):
            return _of_group(request, records, log)
    if request.command == "ADD":
        return add(request, records, log)
    {"DEL": delete, "CHECK": check, "GC": collect, "STATUS": status}[request.command](request, records, log)
    return None


def _of_group(request: Request, records: Records, log: Log) -> Result | None:
    if request.command == "ADD":
        from ipam.group import add

        return add.add(request, records, log)
    from ipam.group import verbs

    {"DEL": verbs.delete, "CHECK": verbs.check, "STATUS": verbs.status}[request.command](request, records, log)
    return None


def add(request: Request, records: Records, log: Log) -> Result:
    """The addresses of the attachment: those that it has already, or new ones, all or none."""
    config = configured(request, log)
    stores.locate(config, request.attachment.network, True, config.store_timeout)
    wanted = rules.needs(config)
    store_ref = stores.ref_of(config) if wanted else None
    values: list[int] = []
    with records.locked(request.attachment, PART):
        record = read_record(request.attachment, records, log)
        if record and not (
            store_ref and stores.same(record["store"], store_ref)
        ):  # the configuration has changed after the ADD that wrote the record
            release(request.attachment, record, record["store"], records, log)
            record = None
        if store_ref:
            if record:
                store_ref = stores.joined(record["store"], store_ref)
            values = _acquire(request, config, wanted, store_ref, record, records, log)
    if store_ref and stores.is_shared(store_ref):
        flush_reminded(records, log, store_ref)
    addresses = [f"{format_address(n.rng.family, v)}/{n.rng.prefix}" for n, v in zip(wanted, values, strict=True)]
    for family, value, prefix in config.requested:
        if config.range_of(family, value) is None:
            addresses.append(f"{format_address(family, value)}/{prefix}")
    ips = [IPConfig(address, config.gateway_of(address)) for address in addresses]
    ips += [IPConfig(a.address, config.gateway_of(a.address, a.gateway)) for a in config.addresses]
    return Result(ips=ips, routes=config.routes, dns=config.dns)


def _acquire(
    request: Request,
    config: IpamConfig,
    wanted: Sequence[Need],
    store_ref: dict[str, Any],
    record: dict[str, Any] | None,
    records: Records,
    log: Log,
) -> list[int]:
    from ipam.acquire import Terms, acquire  # the other verbs claim no address

    owner = owner_of(request, config)
    restore = restorer(store_ref, records, log, owner)
    store = stores.open_store(store_ref, CREATE, restore, config.store_timeout, log.warning)
    store.cooldown = config.cooldown_seconds
    former = record

    def remember(wants: Sequence[Want], sequence: int) -> None:
        nonlocal record
        owner.sequence = sequence
        new = document(stores.recorded(store_ref), wants, owner, config.cooldown_seconds)
        if record is None or any(record.get(key) != value for key, value in new.items()):
            records.write(request.attachment, PART, new)
            record = new

    def preferred() -> list[tuple[int, int]]:
        return preferred_of(config, owner, log)

    doubtful: list[Want] = []
    if record and record["pending"] and stores.is_shared(store_ref):
        doubtful = [le.want for le in recorded_leases(request.attachment, record)]
    seconds = config.store_timeout if stores.is_shared(store_ref) else 0

    def reclaimed(pool: str) -> bool:
        return reclaim(store, pool, owner, records, log)

    claims: list[HeldLock] = []

    def is_claimed_here(want: Want) -> bool:
        lock = records.try_locked(Attachment(want.pool, format_address(want.family, want.value), ""), "address")
        claims.extend([lock] if lock else ())
        return lock is None

    if stores.is_shared(store_ref) and store.spreads:
        store.is_claimed_here = is_claimed_here
    try:
        terms = Terms(remember, reclaimed, doubtful, preferred, seconds, new=record is None)
        return acquire(store, wanted, owner, terms)
    except Unreachable:
        raise  # nobody knows what was claimed; DEL or GC finds it by the record
    except CniError:
        if record is not former:
            forget(request.attachment, store, records, former)
        raise
    finally:
        for lock in claims:
            lock.release()


def delete(request: Request, records: Records, log: Log) -> None:
    """Release the leases of the attachment, which are found by its record, or without one by the configuration."""
    with records.locked(request.attachment, PART):
        record = read_record(request.attachment, records, log)
        store_ref = record["store"] if record else None
        seconds, cooldown = 0.0, None
        try:
            config = configured(request, log)
            if store_ref is None:
                store_ref = _searched(request, config) if rules.needs(config) else None
            else:
                store_ref = reached(store_ref, config)
            seconds, cooldown = min(SHARED_SECONDS, config.store_timeout), config.cooldown_seconds
        except (InvalidConfig, UnsupportedField) as fault:
            if (
                record is None
            ):  # then no ADD of ours has claimed anything, and a wrong configuration must not keep a pod from ending
                log.warning(
                    f"nothing is recorded of this attachment, and its configuration cannot be used: {fault.msg}"
                )
        if not store_ref:
            records.remove(request.attachment, PART)
            return
        try:
            release(request.attachment, record, store_ref, records, log, seconds, cooldown)
        except CniError as fault:
            if not stores.is_shared(store_ref) or not is_pending(request.attachment, records):
                raise
            log.error(f"the release of {request.attachment} is pending, and will be tried again: {fault.msg}")
            return
    if stores.is_shared(store_ref):
        flush_reminded(records, log, store_ref)


def _searched(request: Request, config: IpamConfig) -> dict[str, Any]:
    """The description of the store in which an attachment without a record may have leases; it names no pools if they are
    not known, and all are then searched."""
    try:
        stores.locate(config, request.attachment.network, False, min(SHARED_SECONDS, config.store_timeout))
    except CniError:  # the controller makes no NodeSlicePool for a network that was deleted
        store_ref = stores.ref_of(config)
        del store_ref["pools"]
        return store_ref
    return stores.ref_of(config)


def check(request: Request, records: Records, log: Log) -> None:
    """Compare the store with prevResult, and prevResult with the configuration; AttachmentDiffers names all differences."""
    from cni.shared.spec import result
    from ipam import check as comparison

    config = configured(request, log)
    previous = member(request.config, "prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    expected = result.parse(previous)
    found = comparison.unlike(config, expected, request.cni_version)
    given = {address_of(a.address): a.address for a in expected.ips}
    static = {address_of(a.address) for a in config.addresses}
    of_ranges = {key: text for key, text in given.items() if key not in static}
    ranges = list(config.ranges)  # whole, before they are a node's slices
    stores.locate(config, request.attachment.network, False)
    with records.locked(request.attachment, PART):
        found += _lease_differences(request.attachment, config, of_ranges, ranges, records, log)
    if found:
        raise AttachmentDiffers(
            f"the addresses of {request.attachment.ifname} of container {request.attachment.container_id} are not as ADD left"
            f" them (detach and attach it again): {'; '.join(found)}",
            "\n".join(found),
        )


def _lease_differences(
    attachment: Attachment,
    config: IpamConfig,
    given: dict[tuple[int, int], str],
    ranges: Sequence[Range],
    records: Records,
    log: Log,
) -> list[str]:
    """The differences of the leases of `attachment` from the addresses `given` in its ranges, and from `ranges`."""
    wanted = rules.needs(config)
    record = read_record(attachment, records, log)
    if not wanted and not record:
        return []
    store_ref = reached(record["store"], config) if record else stores.ref_of(config)
    known = recorder(attachment.network, records, log, attachment.container_id)
    store = stores.open_store(store_ref, READ, known, min(SHARED_SECONDS, config.store_timeout))
    found = []
    with store.session():
        held = {(lease.family, lease.value): lease for lease in store.find(attachment)}
        for (family, value), text in given.items():
            need = next((n for n in wanted if n.rng.family == family and n.rng.contains(value)), None)
            if need and (family, value) not in held:
                holder = store.holder(need.want(value))
                found.append(f"{text} is leased to {holder.holder()}" if holder else f"{text} is not leased")
    found += [f"{format_address(*key)} is not in prevResult" for key in held if key not in given]
    from ipam import check as comparison

    if wanted:
        requested = [(family, value) for family, value, _ in config.requested]
        found += comparison.outside({key: given[key] for key in held if key in given}, ranges, requested)
        found += comparison.elsewhere([held[key] for key in held if key in given], wanted)
    if record and not stores.same(record["store"], stores.ref_of(config)):
        names = (comparison.name_of(store) for store in (record["store"], stores.ref_of(config)))
        found.append("datastore is {}, configured is {}".format(*names))
    if wanted and not held and not found:
        found.append(f"it holds no lease of pool {wanted[0].pool}")
    return found


def collect(request: Request, records: Records, log: Log) -> None:
    """Release the leases of the attachments of this network that the runtime does not list. All are tried before an error."""
    from cni.shared.spec.gc import NOTHING_LISTED, valid_attachments
    from ipam import upkeep

    began = Began()
    valid = valid_attachments(request)
    if valid is None:
        log.warning(NOTHING_LISTED)
        return
    faults: list[CniError] = []
    store_ref, pools, node_name, cooldown = None, [], "", 0
    try:
        config = configured(request, log)
        node_name, cooldown = config.node, config.cooldown_seconds
        stores.locate(config, request.attachment.network, False)
        wanted = rules.needs(config)
        if wanted:
            store_ref, pools = stores.ref_of(config), list(dict.fromkeys(need.pool for need in wanted))
    except CniError as fault:
        faults.append(fault)
    faults += upkeep.collect(request.attachment.network, valid, node_name, store_ref, pools, records, log, cooldown)
    groups = records.of_groups(PART)
    if groups:
        from ipam.group import verbs

        faults += verbs.collect(request.attachment.network, valid, began, groups, store_ref, records, log)
    if faults:
        faults[0].details = "\n".join(filter(None, [faults[0].details, *(fault.msg for fault in faults[1:])]))
        raise faults[0]


def status(request: Request, records: Records, log: Log) -> None:
    """Whether an ADD could be served now; NotAvailable says why not."""
    from ipam.acquire import search

    config = configured(request, log)
    if not rules.needs(config) and not config.unnamed:
        return

    def target(seconds: float) -> tuple[dict[str, Any], Sequence[Need]]:
        stores.locate(config, request.attachment.network, False, seconds)
        return stores.ref_of(config), rules.needs(config)

    attempt(config, owner_of(request, config), target, search, records, log)
