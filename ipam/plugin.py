"""The IPAM plugin `whereabouts`: ADD, DEL, CHECK, GC and STATUS over a store of leases.

CNI_NETNS is a text here: it is kept with the lease and asked about in later boots, never opened by ADD or DEL, for
there are callers that pass /dev/null. The order of the writes decides what a kill leaves:

    ADD   the record (store, addresses), then the claim: a lease without a record cannot be
    DEL   the release, then the record: a record without leases is cleared by the next DEL or GC
"""

from __future__ import annotations

import time

from cni.attachment import STATE, Book
from cni.kernel import node
from cni.spec.errors import AttachmentDiffers, CniError, InvalidConfig, NotAvailable, UnsupportedField
from cni.spec.request import Attachment, member
from cni.spec.result import IPConfig, Result
from ipam import config as configuration
from ipam import leases, stores
from ipam.ranges import format_address, parse_address
from ipam.records import PART, document
from ipam.records import leases as recorded_leases
from ipam.stores.base import CREATE, READ, SHARED_SECONDS, Owner, Unreachable, Want
from ipam.upkeep import flush_reminded, is_pending, read_record, reclaim, release, restorer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cni.log import Log
    from cni.spec.request import Request
    from ipam.config import IpamConfig
    from ipam.leases import Need
    from ipam.stores.base import Store


def call(request: Request, log: Log, state: str = STATE) -> Result | None:
    """Serve `request`; the result of an ADD, None for every other verb. The records are under the directory `state`."""
    book = Book(state, log)
    if request.command != "GC" and member(request.config, "rail") is not None:
        from cni import rail

        if rail.asks_for_same_index(request.config):
            from ipam import group

            return group.call(request, book, log)
    if request.command == "ADD":
        return add(request, book, log)
    {"DEL": delete, "CHECK": check, "GC": collect, "STATUS": status}[request.command](request, book, log)
    return None


def add(request: Request, book: Book, log: Log) -> Result:
    """The addresses of the attachment: those that it has already, or new ones, all or none."""
    config = configured(request, log)
    stores.locate(config, request.attachment.network, True, config.store_timeout)
    wanted = leases.needs(config)
    described = stores.describe(config) if wanted else None
    values: list[int] = []
    with book.locked(request.attachment, PART):
        record = read_record(request.attachment, book, log)
        if record and not (
            described and stores.same(record["store"], described)
        ):  # the network's configuration has changed since
            release(request.attachment, record, record["store"], book, log)
            record = None
        if described:
            if record:
                described = stores.joined(record["store"], described)
            values = _acquire(request, config, wanted, described, record, book, log)
    if described and stores.is_shared(described):
        flush_reminded(book, log, described)
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
    described: dict[str, Any],
    record: dict[str, Any] | None,
    book: Book,
    log: Log,
) -> list[int]:
    from ipam.acquire import Terms, acquire  # the other verbs take no address

    owner = owner_of(request, config)
    store = stores.open_store(described, CREATE, restorer(described, book, log), config.store_timeout, log.warning)
    store.cooldown = config.cooldown_seconds
    former = record

    def remember(wants: Sequence[Want], sequence: int) -> None:
        nonlocal record
        owner.sequence = sequence
        new = document(stores.recorded(described), wants, owner, config.cooldown_seconds)
        if record is None or any(record.get(key) != value for key, value in new.items()):
            book.write(request.attachment, PART, new)
            record = new

    def preferred() -> list[tuple[int, int]]:
        return preferred_of(config, owner, log)

    doubtful: list[Want] = []
    if record and record["pending"] and stores.is_shared(described):
        doubtful = [Want(le.pool, le.family, le.value, le.scope) for le in recorded_leases(request.attachment, record)]
    seconds = config.store_timeout if stores.is_shared(described) else 0

    def reclaimed(pool: str) -> bool:
        return reclaim(store, pool, owner, book, log)

    try:
        return acquire(store, wanted, owner, Terms(remember, reclaimed, doubtful, preferred, seconds))
    except Unreachable:
        raise  # what was claimed cannot be told; DEL or GC will find it by the record
    except CniError:
        if record is not former:
            forget(request.attachment, store, book, former)
        raise


def preferred_of(config: IpamConfig, owner: Owner, log: Log) -> list[tuple[int, int]]:
    """The addresses, (family, value), that the pod's annotation prefers, where the configuration has it read."""
    if not (config.preferred_ip_annotation and owner.pod[1]):
        return []
    from ipam import annotation

    return annotation.preferred(config.kubeconfig, owner.pod, min(SHARED_SECONDS, config.store_timeout), log)


def forget(attachment: Attachment, store: Store, book: Book, former: dict[str, Any] | None = None) -> None:
    """Put the record of a failed ADD back to the `former` one, None for none, if it is certain that nothing was claimed.

    A lost store begins anew with what the records tell, so none may name an address that is not its own.
    """
    try:
        held = {format_address(lease.family, lease.value) for lease in store.find(attachment)}
        if former and held in (set(), set(former["addresses"])):
            book.write(attachment, PART, former)
        elif not former and not held:
            book.remove(attachment, PART)
    except CniError:
        pass  # DEL or GC will


def delete(request: Request, book: Book, log: Log) -> None:
    """Release what the attachment holds: by its record, or where there is none by the configuration."""
    with book.locked(request.attachment, PART):
        record = read_record(request.attachment, book, log)
        described = record["store"] if record else None
        seconds, cooldown = 0.0, None
        try:
            config = configured(request, log)
            if described is None:
                described = _searched(request, config) if leases.needs(config) else None
            else:
                described = reached(described, config)
            seconds, cooldown = min(SHARED_SECONDS, config.store_timeout), config.cooldown_seconds
        except (InvalidConfig, UnsupportedField) as fault:
            if (
                record is None
            ):  # then no ADD of ours came as far as a lease, and a pod must not hang on its configuration
                log.warning(
                    f"nothing is recorded of this attachment, and its configuration cannot be used: {fault.msg}"
                )
        if not described:
            book.remove(request.attachment, PART)
            return
        try:
            release(request.attachment, record, described, book, log, seconds, cooldown)
        except CniError as fault:
            if not stores.is_shared(described) or not is_pending(request.attachment, book):
                raise
            log.error(f"the release of {request.attachment} is pending, and will be tried again: {fault.msg}")
            return
    if stores.is_shared(described):
        flush_reminded(book, log, described)


def _searched(request: Request, config: IpamConfig) -> dict[str, Any]:
    """The description of the store in which an attachment without a record may have leases: with all pools, if need be."""
    try:
        stores.locate(config, request.attachment.network, False, min(SHARED_SECONDS, config.store_timeout))
    except CniError:  # nobody makes a NodeSlicePool for a network that was deleted
        described = stores.describe(config)
        del described["pools"]
        return described
    return stores.describe(config)


def reached(recorded: dict[str, Any], config: IpamConfig) -> dict[str, Any]:
    """The description of the store that a record names; as the configuration has it, with its password, if it is that one."""
    if not stores.is_shared(recorded) or config.datastore != recorded.get("kind"):
        return recorded
    described = stores.describe(config)
    return stores.joined(recorded, described) if stores.same(recorded, described) else recorded


def check(request: Request, book: Book, log: Log) -> None:
    """Compare the store with prevResult; AttachmentDiffers names all differences."""
    from cni.spec import result

    config = configured(request, log)
    stores.locate(config, request.attachment.network, False)
    previous = member(request.config, "prevResult")
    if previous is None:
        raise InvalidConfig("CHECK needs the key prevResult: the result of the ADD, which the runtime passes on")
    given = {address_of(a.address): a.address for a in result.parse(previous).ips}
    found = [f"{a.address} is not in prevResult" for a in config.addresses if address_of(a.address) not in given]
    static = {address_of(a.address) for a in config.addresses}
    with book.locked(request.attachment, PART):
        found += _lease_differences(
            request.attachment, config, {k: v for k, v in given.items() if k not in static}, book, log
        )
    if found:
        raise AttachmentDiffers(
            f"the addresses of {request.attachment.ifname} of container {request.attachment.container_id} are not as ADD left"
            f" them (detach and attach it again): {'; '.join(found)}",
            "\n".join(found),
        )


def _lease_differences(
    attachment: Attachment, config: IpamConfig, given: dict[tuple[int, int], str], book: Book, log: Log
) -> list[str]:
    """How the leases of `attachment` differ from the addresses `given`, as far as these are of its ranges."""
    wanted = leases.needs(config)
    record = read_record(attachment, book, log)
    if not wanted and not record:
        return []
    described = reached(record["store"], config) if record else stores.describe(config)
    store = stores.open_store(described, READ, seconds=min(SHARED_SECONDS, config.store_timeout))
    found = []
    with store.turn():
        held = {(lease.family, lease.value): lease for lease in store.find(attachment)}
        for (family, value), text in given.items():
            need = next((n for n in wanted if n.rng.family == family and n.rng.contains(value)), None)
            if need and (family, value) not in held:
                holder = store.holder(need.want(value))
                found.append(f"{text} is leased to {holder.holder()}" if holder else f"{text} is not leased")
    found += [f"{format_address(*key)} is not in prevResult" for key in held if key not in given]
    if wanted and not held and not found:
        found.append(f"it holds no lease of pool {wanted[0].pool}")
    return found


def collect(request: Request, book: Book, log: Log) -> None:
    """GC: release what belongs to attachments of this network that the runtime does not list; all that can be, then report."""
    from cni.spec.gc import NOTHING_LISTED, valid_attachments
    from ipam import upkeep

    began = time.time_ns()
    valid = valid_attachments(request)
    if valid is None:
        log.warning(NOTHING_LISTED)
        return
    faults: list[CniError] = []
    described, pools, node_name, cooldown = None, [], "", 0
    try:
        config = configured(request, log)
        node_name, cooldown = config.node, config.cooldown_seconds
        stores.locate(config, request.attachment.network, False)
        wanted = leases.needs(config)
        if wanted:
            described, pools = stores.describe(config), list(dict.fromkeys(need.pool for need in wanted))
    except CniError as fault:
        faults.append(fault)
    faults += upkeep.collect(request.attachment.network, valid, node_name, described, pools, book, log, cooldown)
    groups = book.of_groups(PART)
    if groups:
        from ipam import group_upkeep

        faults += group_upkeep.collect(request.attachment.network, valid, began, groups, described, book, log)
    if faults:
        faults[0].details = "\n".join(filter(None, [faults[0].details, *(fault.msg for fault in faults[1:])]))
        raise faults[0]


def status(request: Request, book: Book, log: Log) -> None:
    """Whether an ADD could be served now; NotAvailable says why not."""
    from ipam.acquire import search

    config = configured(request, log)
    if not leases.needs(config):
        return

    def described(seconds: float) -> tuple[dict[str, Any], Sequence[Need]]:
        stores.locate(config, request.attachment.network, False, seconds)
        return stores.describe(config), leases.needs(config)

    attempt(config, owner_of(request, config), described, search, book, log)


def attempt(
    config: IpamConfig,
    owner: Owner,
    describe: Callable[[float], tuple[dict[str, Any], Sequence[Need]]],
    search: Callable[..., list[int]],
    book: Book,
    log: Log,
) -> None:
    """Search the store for what an ADD would claim, and claim nothing; NotAvailable."""
    seconds = min(SHARED_SECONDS, config.store_timeout)
    try:
        described, wanted = describe(seconds)
        store = stores.open_store(described, CREATE, restorer(described, book, log), seconds)
        store.cooldown = config.cooldown_seconds
        with store.turn():
            search(
                store, wanted, [None] * len(wanted), owner, False, lambda pool: reclaim(store, pool, owner, book, log)
            )
    except InvalidConfig:
        raise
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None
    try:
        store.ready()
    except CniError as fault:
        raise NotAvailable(fault.msg, fault.details) from None


def configured(request: Request, log: Log) -> IpamConfig:
    """The configuration; from now on `log` writes where and what it says."""
    config = configuration.read(request)
    log.path, log.level = config.log_file, config.log_level
    for note in config.notes:
        log.warning(note)
    if config.node_slice_size and config.datastore == "file":
        log.warning("ipam.node_slice_size has no effect: the file store's addresses are this node's alone")
    return config


def owner_of(request: Request, config: IpamConfig) -> Owner:
    namespace, name, uid = (_printable(part) for part in request.pod)
    netns = _printable(request.netns)
    machine = "" if config.datastore == "file" else node.machine_id()  # a file's leases are of one machine
    boot = node.boot_id()
    return Owner(request.attachment, (namespace, name, uid), config.node, boot, netns, time.time_ns(), machine)


def _printable(text: str) -> str:
    """`text` with "?" for bytes that are no UTF-8, which a store could not keep."""
    return text.encode("utf-8", "replace").decode()


def address_of(text: str) -> tuple[int, int]:
    return parse_address(text.split("/")[0])
