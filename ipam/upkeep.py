"""Leases and records brought into line: release, collection, and a store's beginning after its file was lost."""

from __future__ import annotations

import time

from cni.attachment import Began
from cni.kernel import netns, node
from cni.spec.errors import CniError
from ipam import records, stores
from ipam.ranges import format_address
from ipam.records import PART
from ipam.stores.base import CHANGE, CREATE, Owner, Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from cni.attachment import Book
    from cni.log import Log
    from cni.spec.request import Attachment
    from ipam.stores.base import Lease, Store

_FLUSH_SECONDS = 1.0
_FLUSH_PAUSE = 10.0  # seconds
_LINK_PART = "link"


def read_record(attachment: Attachment, book: Book, log: Log) -> dict[str, Any] | None:
    """The IPAM record; None for none, and for one with members that are not as they should be."""
    record = book.read(attachment, PART)
    if record is None:
        return None
    try:
        records.leases(attachment, record)
    except ValueError as fault:
        log.error(f"the record of {attachment} is damaged: {fault}; going by the store alone")
        return None
    return record


def release(
    attachment: Attachment,
    record: dict[str, Any] | None,
    described: dict[str, Any],
    book: Book,
    log: Log,
    seconds: float = 0,
    cooldown: int | None = None,
) -> None:
    """Free the leases of `attachment` in the store that `described` names, then remove the record. Its lock is held.

    With a record the store is made when its file is not there: else another process could make it now, and begin it
    with this very record. `seconds` as for open_store; `cooldown` None: what the record says.
    """
    held = records.leases(attachment, record) if record else []
    restore = restorer(described, book, log)
    if stores.is_shared(described):  # only what is known of this attachment matters here
        recorded = list(held)
        restore = lambda: recorded  # noqa: E731
    store = stores.open_store(described, CREATE if record else CHANGE, restore, seconds)
    store.cooldown = records.cooldown(record) if cooldown is None else cooldown
    if record and stores.is_shared(described) and not record["pending"]:
        record = _marked_pending(attachment, record, book, log)
    try:
        with store.turn():
            if held and store.release(held) == len(held):
                pass  # a claim is made as a whole, so there is no more
            elif held := store.find(attachment):
                store.release(held)
            elif record and record["sequence"]:  # else it has never claimed
                store.settle(attachment, record["sequence"])
                held = store.find(attachment)  # a claim that was on its way may have come just before
                if held:
                    store.release(held)
            else:
                store.sync()
    except CniError:
        try:
            keep_pending(attachment, record, described, book)
        except CniError:
            pass  # the first error says more
        raise
    if held:
        log.info(f"released {_texts(held)}")
    book.remove(attachment, PART)


def _marked_pending(attachment: Attachment, record: dict[str, Any], book: Book, log: Log) -> dict[str, Any]:
    """`record`, and in the book, with the release that is about to be asked for.

    A store may serve the request when this process was killed long since: who attaches again then takes other addresses.
    """
    marked = {**record, "pending": True}
    try:
        book.write(attachment, PART, marked)
    except CniError as fault:
        log.warning(f"the release of {attachment} could not be written down before it is made: {fault.msg}")
        return record
    return marked


def keep_pending(attachment: Attachment, record: dict[str, Any] | None, described: dict[str, Any], book: Book) -> None:
    """Write down that what `attachment` holds is still to be released."""
    if record is None:
        if not stores.is_shared(described):
            return
        record = records.document(stores.recorded(described), (), Owner(attachment))
    if not record["pending"]:
        book.write(attachment, PART, {**record, "pending": True})
    if stores.is_shared(described):
        book.remind(True)


def is_pending(attachment: Attachment, book: Book) -> bool:
    """Whether a release of `attachment` could not be made, and is written down."""
    record = book.read(attachment, PART)
    return record is not None and record.get("pending") is True


def flush_reminded(book: Book, log: Log, described: dict[str, Any]) -> None:
    """`flush`, once the store `described` has been reached; nothing unless it is due."""
    if book.is_reminded(_FLUSH_PAUSE):
        flush(book, log, described, _FLUSH_SECONDS)


def flush(book: Book, log: Log, described: dict[str, Any] | None, seconds: float) -> int:
    """Make releases that could not be made before, as far as `seconds` and the stores allow; how many are left.

    `described` is the store of the configuration, which a record's may be the same as. A store that cannot be reached is
    asked once, and costs the others none of their time.
    """
    book.remind(False)
    deadline = time.monotonic() + seconds
    silent: list[dict[str, Any]] = []
    left = 0
    for attachment, _, listed in book.all(PART):
        if listed.get("pending") is not True:
            continue
        left += 1
        if time.monotonic() > deadline or is_among(listed.get("store"), silent):
            continue
        held = book.try_locked(attachment, PART)
        if held is None:
            continue
        with held:
            record = read_record(attachment, book, log)
            if record is None or not record["pending"]:
                left -= 1
                continue
            where = record["store"]
            if described and stores.same(where, described):
                where = stores.joined(where, described)
            try:
                release(attachment, record, where, book, log, seconds)
                left -= 1
            except CniError as fault:
                log.warning(f"the release of {attachment} stays pending: {fault.msg}")
                if isinstance(fault, Unreachable):
                    silent.append(where)
                    deadline = time.monotonic() + seconds
    if left:
        book.remind(True)
    return left


def is_among(store: Any, found: Iterable[dict[str, Any]]) -> bool:
    """Whether a record's member `store` describes one of the stores in `found`."""
    return isinstance(store, dict) and any(stores.same(store, one) for one in found)


def restorer(described: dict[str, Any], book: Book, log: Log) -> Callable[[], list[Lease]]:
    """What a new store of this description begins with: the leases of the records that name it."""

    def restore() -> list[Lease]:
        found: list[Lease] = []
        for attachment, _, record in (*book.all(PART), *book.newer(PART)):
            where = record.get("store")
            if not isinstance(where, dict) or stores.same(where, described):
                # Of a newer format all that can be read is taken: an address too many is given back by its own version.
                try:
                    found += records.leases(attachment, record)
                except ValueError as fault:
                    log.error(f"the record of {attachment} cannot be read: {fault}; its addresses are not restored")
        if found and not stores.is_shared(described):
            log.warning(f"the store was new; restored from the attachment records: {_texts(found)}")
        return found

    return restore


def reclaim(store: Store, pool: str, owner: Owner, book: Book, log: Log) -> bool:
    """Release the leases of `pool` from earlier boots of this node whose namespaces are gone; whether there were any."""
    freed = False
    for attachment in {lease.attachment for lease in store.of_earlier_boots(pool, owner.node, owner.boot_id)}:
        if attachment == owner.attachment:
            continue
        held = book.try_locked(attachment, PART)
        if held is None:
            continue
        with held:
            dead = store.find(attachment)
            if any(lease.boot_id == owner.boot_id or _is_alive(lease.netns) for lease in dead):
                continue
            if not all(_is_ours(lease, owner.machine, store, book) for lease in dead):
                continue
            freed = store.release(dead) > 0 or freed
            book.remove(attachment, PART)
            log.warning(f"reclaimed {_texts(dead)} of {attachment}, which an earlier boot left")
    return freed


def _is_ours(lease: Lease, machine: str, store: Store, book: Book) -> bool:
    """Whether a lease that names this node was claimed on this `machine`: another one may have the same node name.

    A lease that does not tell its machine (of an older version) is ours if a record tells of it.
    """
    if not stores.is_shared(store.record()):
        return True
    if lease.machine and machine:
        return lease.machine == machine
    return book.read(lease.attachment, PART) is not None


def _is_alive(path: str) -> bool:
    try:
        return netns.exists(path)
    except OSError:
        return True  # it cannot be told


def collect(
    network: str,
    valid: set[Attachment],
    node_name: str,
    described: dict[str, Any] | None,
    pools: Iterable[str],
    book: Book,
    log: Log,
    cooldown: int = 0,
) -> list[CniError]:
    """Release what belongs to attachments of `network` that are not `valid`; the faults that were met.

    By the records; and by the leases in `pools` of the store `described`, for attachments of this node whose record was
    damaged. What is locked is being set up or torn down, and what was claimed after the call began cannot be in the
    list: both stay. What a failed DEL left goes, listed or not.
    """
    began = Began()
    faults: list[CniError] = []
    silent: list[dict[str, Any]] = []  # stores that cannot be reached: the next GC asks them again
    doomed: dict[Attachment, dict[str, Any] | None] = {}
    for attachment, record in book.of_network(network, PART):
        if attachment not in valid or record.get("pending") is True:
            doomed[attachment] = record.get("store")
    try:
        if described:
            for attachment in _unlisted(network, valid, node_name, stores.open_store(described, CHANGE), pools, book):
                doomed.setdefault(attachment, described)
    except CniError as fault:
        note_fault(fault, described, faults, silent)
    for attachment, where in doomed.items():
        if is_among(where, silent):
            continue
        try:
            _collect(attachment, began, described, book, log, cooldown)
        except CniError as fault:
            note_fault(fault, where, faults, silent)
    try:
        book.sweep(network)
    except CniError as fault:
        faults.append(fault)
    return faults


def note_fault(
    fault: CniError, store: dict[str, Any] | None, faults: list[CniError], silent: list[dict[str, Any]]
) -> None:
    """Add `fault`, met with `store`, to `faults`; and a store that cannot be reached to `silent`."""
    faults.append(fault)
    if store and isinstance(fault, Unreachable):
        silent.append(store)


def _unlisted(
    network: str, valid: set[Attachment], node_name: str, store: Store, pools: Iterable[str], book: Book
) -> list[Attachment]:
    found: dict[Attachment, None] = {}
    machine = node.machine_id()
    for pool in pools:
        page = store.leases(pool, node=node_name)
        while page:
            for lease in page:
                if lease.network == network and lease.attachment not in valid and _is_ours(lease, machine, store, book):
                    found[lease.attachment] = None
            page = store.leases(pool, page[-1], node=node_name)
    return list(found)


def _collect(
    attachment: Attachment, began: Began, described: dict[str, Any] | None, book: Book, log: Log, cooldown: int
) -> None:
    link = book.try_locked(attachment, _LINK_PART)
    if link is None:
        return
    with link:
        own = book.try_locked(attachment, PART)
        if own is None:
            return
        with own:
            record = read_record(attachment, book, log)
            if record and not began.is_after(record["sequence"]):
                return
            if not (record and record["pending"]) and book.read(attachment, _LINK_PART):
                return  # an ADD has made its link since the link plugin looked; or that plugin could not remove it
            where = record["store"] if record else described
            if record and described and stores.same(record["store"], described):
                where = stores.joined(record["store"], described)  # it knows the password
            if where:
                release(attachment, record, where, book, log, cooldown=records.cooldown(record) or cooldown)
                log.info(f"collected {attachment}")


def _texts(leases: Iterable[Lease]) -> str:
    return ", ".join(format_address(lease.family, lease.value) for lease in leases)
