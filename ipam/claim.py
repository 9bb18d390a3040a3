"""The claim of an ADD, of a network or of a group of rails: its terms, and the record that is written before it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cni.shared.spec.errors import CniError, TryAgainLater
from ipam import local, own, stores
from ipam.acquire import Terms, acquire
from ipam.leases import PART, recorded_document, recorded_leases
from ipam.local import read_record, restorer
from ipam.rules import SharedLease
from ipam.stores.base import CREATE, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment
    from ipam.config import IpamConfig
    from ipam.leases import Owner, Want
    from ipam.rules import Choice, Need
    from ipam.shared import ClaimsHere
    from ipam.stores.base import Store


def claim(
    wanted: Sequence[Choice],
    owner: Owner,
    config: IpamConfig,
    store_ref: dict[str, Any],
    record: dict[str, Any] | None,
    records: Records,
    of_group: dict[str, Any] | None = None,
) -> tuple[list[int], dict[str, Any] | None]:
    """Lease an address for each need of `wanted` to `owner`. Returns (the addresses, the record that names them).

    `record` is the present record, whose lock the caller holds. `of_group` has the extra members of a group's record.
    """
    wire = own.Wire(config.network)
    if record is None:
        _refuse_own(wanted, wire)
    else:  # the sequence grows even if the clock was set back
        owner.sequence = max(owner.sequence, record["sequence"] + 1)
    is_shared = stores.is_shared(store_ref)
    here = None
    if is_shared:
        from ipam.shared import ClaimsHere  # a file's leases are all of this node

        here = ClaimsHere(records, owner)
    store, record = _opened(owner, config, store_ref, record, records, here)
    recorded = recorded_leases(owner.attachment, record) if record and is_shared else []
    if here and store.spreads and of_group is None:
        store.is_claimed_here = here.is_being_claimed
    draft = _Draft(records, owner, record, store_ref, config.cooldown_seconds, of_group or {}, here)
    terms = Terms(
        draft.write,
        free_earlier_boots=lambda pool: _free_earlier_boots(store, pool, owner, records),
        recorded=recorded,
        doubtful=recorded if record and record["pending"] else (),
        preferred=lambda: [*local.preferred(records, owner), *_annotated(config, owner, records)],
        seconds=config.store_timeout if is_shared else 0,
        new=record is None and of_group is None,
        is_avoided=lambda address: local.is_avoided(records, address),
        is_own=lambda want: wire.is_own(want) or (here is not None and here.is_recorded(want)),
        is_neighbour=wire.is_neighbour,
    )
    try:
        while True:
            try:
                values = acquire(store, wanted, owner, terms)
            except SharedLease as found:
                wanted = [choice for choice in wanted if choice is not found.need]
                draft.shared.append(found.need)
                continue
            if draft.shared:
                records.remind(True)
            return values, draft.record
    except Unreachable:
        raise  # the claim may have succeeded; DEL or GC finds the leases by the record
    except CniError:
        if draft.record is not record:
            _forget(owner.attachment, store, records, record)
        raise
    finally:
        if here:
            here.release()


def _refuse_own(wanted: Sequence[Choice], wire: own.Wire) -> None:
    """Raise TryAgainLater when an address that `wanted` requests is this node's own."""
    for need in [need for choice in wanted for need in choice.needs]:
        if need.requested is None or need.shared:
            continue
        if wire.is_own(want := need.want(need.requested)):
            raise TryAgainLater(
                f"the requested address {want.text} (pool {need.pool}) is this node's own, on its link: ask for another one"
            )


def _opened(
    owner: Owner,
    config: IpamConfig,
    store_ref: dict[str, Any],
    record: dict[str, Any] | None,
    records: Records,
    here: ClaimsHere | None,
) -> tuple[Store, dict[str, Any] | None]:
    """(the store to claim in, the present record). A lost record may be made again here from AddressLeases."""
    restore = restorer(store_ref, records, owner)
    store = stores.open_store(store_ref, CREATE, restore, config.store_timeout, records.log.warning)
    store.cooldown = config.cooldown_seconds
    if here and store_ref["kind"] == "addresslease" and not local.is_complete(records):
        store.finish_by(time.monotonic() + config.store_timeout)
        if here.refill(store, config.cooldown_seconds) and record is None:  # type: ignore[arg-type]  # it is the class of this kind
            record = read_record(owner.attachment, records)
            owner.sequence = max(owner.sequence, record["sequence"] + 1) if record else owner.sequence
    return store, record


def _free_earlier_boots(store: Store, pool: str, owner: Owner, records: Records) -> bool:
    from ipam import upkeep  # most pools have a free address

    return upkeep.free_earlier_boots(store, pool, owner, records)


def _annotated(config: IpamConfig, owner: Owner, records: Records) -> list[tuple[int, int]]:
    """The addresses in the annotation of the owner's pod, if the network reads it."""
    if not (config.preferred_ip_annotation and owner.pod[1]):
        return []
    from ipam.annotation import preferred  # most networks read no annotation

    return preferred(config, owner.pod, records.log)


class _Draft:
    """The record of an ADD, written before each claim. `shared` are the needs whose lease another attachment has."""

    __slots__ = ("_cooldown", "_here", "_members", "_owner", "_records", "_store_ref", "record", "shared")

    def __init__(
        self,
        records: Records,
        owner: Owner,
        record: dict[str, Any] | None,
        store_ref: dict[str, Any],
        cooldown: int,
        members: dict[str, Any],
        here: ClaimsHere | None,
    ) -> None:
        self._records, self._owner, self._store_ref = records, owner, store_ref
        self._cooldown, self._members, self._here = cooldown, members, here
        self.record = record
        self.shared: list[Need] = []

    def write(self, wants: Sequence[Want], sequence: int) -> None:
        """Write the record with the addresses of `wants`, before these are claimed."""
        owner = self._owner
        owner.sequence = sequence
        new = recorded_document(stores.recorded(self._store_ref), wants, owner, self._cooldown) | self._members
        if self.shared or (self.record and "shared" in self.record):
            new["shared"] = [[need.pool, need.want(need.requested or 0).text] for need in self.shared]
        if self.record is None or any(self.record.get(key) != value for key, value in new.items()):
            self._records.write(owner.attachment, PART, new)
            self.record = new
            if self._here:
                self._here.note(wants)


def _forget(attachment: Attachment, store: Store, records: Records, former: dict[str, Any] | None) -> None:
    """Replace the record of a failed ADD by the `former` one (None: no record), if certainly nothing was claimed.

    A lost store is restored from the records, so no record may name an address that its attachment does not have.
    """
    try:
        held = {lease.text for lease in store.find(attachment)}
        if former and held in (set(), set(former["addresses"])):
            records.write(attachment, PART, former)
        elif not former and not held:
            records.remove(attachment, PART)
    except CniError:
        pass  # DEL or GC ends the attachment by the record
