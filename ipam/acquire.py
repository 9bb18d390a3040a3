"""Lease addresses to an attachment: propose addresses, claim them, and repeat both until a claim succeeds.

`claim` makes the claim of an ADD, for one network or for a group of rails, and writes the record before each attempt.
`acquire` makes the attempts; it uses the store but no record.

An attempt is made in one session of the store. Its rules, in order:

1. *Survey.* The store returns the leases of the attachment and of its pod (`Store.survey`). The lease rules
   (ipam.rules) keep the leases that the configuration still gives. For every other need ipam.search finds an address.
2. *Preference.* An address that the pod has just had, or that its annotation names, is proposed if it is free.
3. *Place.* Otherwise the search begins at the lowest address of the range and takes the first free one: pods then have
   addresses that people expect, and the search reads little. But concurrent calls all propose this address, so a lost
   claim moves the search to another place of the range, which differs by node and attachment (search.search_start).
   Where a store keeps each pool in one object (`spreads` is false), all claims of a pool exclude one another: another
   place does not help, and the call waits instead.
4. *Full windows.* In a store with `places` above 0, a read costs more than a failed claim. There the search leaves the
   lowest window when its last address is held, or when the whole window is full. It proposes an address at each of the
   next three places without a read. The first of these places is among the first 256 addresses, so that their window
   soon is full and is no longer listed; the others are among the first 65,536. From the fourth place on, the search
   reads the window of each place, and leaves a full one. From place number `places` it reads to the end of the pool.
5. *Exceptions.* An address that the node itself has is never given. The address of a neighbour is given only if it is
   preferred. Addresses found in use on the wire, and those of former neighbours, are given last; after these only addresses of lost claims, if the store
   then shows no holder. Before a pool counts as exhausted, the leases of this node's earlier boots are freed.
6. *Claim.* The claim gives up former leases and makes all new ones, or changes nothing. Before another attempt the call
   waits a random time, whose bound grows, and after some seconds also about a second for each request of an attempt. If
   the server left the outcome of a claim open, the claim is settled before other addresses are claimed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cni.shared.spec.errors import CniError, TryAgainLater
from ipam import local, own, rules, stores
from ipam.leases import PART, Lease, Owner, Want, recorded_document, recorded_leases
from ipam.local import read_record, restorer
from ipam.ranges import format_address
from ipam.rules import Exhausted, SharedLease
from ipam.search import SearchPlan, needs_of
from ipam.stores.base import CREATE, Claimed, OutcomeUnknown, Pauses, Store, Taken, Unknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from cni.shared.records import Records
    from ipam.config import IpamConfig
    from ipam.rules import Choice, Need
    from ipam.shared import ClaimsHere

CLAIM_SECONDS = 30.0
CONTENDED_SECONDS = 200.0  # for attempts that lose to other claims: kubelet ends its call after 240
_SPREAD, _SHARED = (0.0, 1.0), (0.005, 5.0)  # seconds of the first and the longest pause, if the store `spreads` or not
_UNKNOWN_TRIES = 3  # attempts whose outcome stays unknown; after an Unreachable, attempts continue until the deadline
_PATIENT = 5.0  # seconds after which a call makes one request a second


class Terms:
    """The parameters of a claim other than its store, its needs and its owner.

    `remember(wants, sequence)` is called before each claim, and when the leases exist already. A claim of the addresses in
    `open` was made, by an earlier call or by this one (`is_unsure`), and the server may still execute it. The addresses
    in `doubtful` are not kept, since their release may still be under way. `preferred()` returns the addresses, (family, value), to give if
    they are free, the most preferred first. `free_earlier_boots`, `is_own`, `is_neighbour`, `is_avoided` and `with_former` are for the
    SearchPlan. An attempt ends within `seconds`; 0 stands for CLAIM_SECONDS. `new`: the attachment never had a lease.
    """

    def __init__(
        self,
        remember: Callable[[Sequence[Want], int], object],
        free_earlier_boots: Callable[[str], bool] = lambda pool: False,
        open: Sequence[Want] = (),
        doubtful: Sequence[Want] = (),
        preferred: Callable[[], list[tuple[int, int]]] = list,
        seconds: float = 0,
        new: bool = False,
        is_avoided: Callable[[str], bool] = lambda address: False,
        is_own: Callable[[Want], bool] = lambda want: False,
        is_neighbour: Callable[[Want], bool] = lambda want: False,
        with_former: Callable[[Want], Collection[tuple[int, int]]] = lambda want: (),
    ) -> None:
        self.new = new
        self.is_own = is_own
        self.is_neighbour = is_neighbour
        self.with_former = with_former
        self.is_avoided = is_avoided
        self.remember = remember
        self.free_earlier_boots = free_earlier_boots
        self.open = open
        self.is_unsure = False
        self.doubtful = doubtful
        self.preferred = preferred
        self.seconds = seconds or CLAIM_SECONDS


def acquire(store: Store, wanted: Sequence[Choice], owner: Owner, terms: Terms) -> list[int]:
    """Lease to `owner` an address for each need of `wanted`, or none. Returns the addresses in the order of the needs.

    Each attempt may take `terms.seconds`. After an attempt that loses to other claims, the next has the full time again.
    A claim with an unknown outcome is repeated within the time of its attempt. Raises Exhausted when a pool has no free
    address, and TryAgainLater when another attachment holds a requested address, or when other claims succeed first for
    CONTENDED_SECONDS. Errors of the store are raised too.
    """
    began = time.monotonic()
    deadline = began + terms.seconds
    last = began + max(terms.seconds, CONTENDED_SECONDS)
    store.finish_by(deadline)
    needs = needs_of(wanted)
    attempts = _Attempts(store, wanted, owner, terms)
    pauses: Pauses | None = None
    repeats: Pauses | None = None
    unknown = 0
    while True:
        with store.session():
            store.take_locks()
            # if the store `spreads`, the search begins elsewhere after a lost claim, and the first pause is 0
            pauses = pauses or Pauses(last, *(_SPREAD if store.spreads else _SHARED))
            while True:
                try:
                    answer = attempts.once()
                except OutcomeUnknown as fault:  # a fence, or a release before the claim, has an unknown outcome
                    answer = Unknown(fault)
                if not isinstance(answer, Taken | Unknown):
                    return answer
                if isinstance(answer, Unknown):
                    break
                repeats = None
                deadline = min(time.monotonic() + terms.seconds, last)
                store.finish_by(deadline)
                is_patient = time.monotonic() > began + _PATIENT  # an attempt lists, creates for each need, and reads
                if not pauses.wait(3.0 + len(needs) if is_patient else 0.0):
                    raise TryAgainLater(
                        f"no address of {', '.join(need.pool for need in needs)} could be claimed within"
                        f" {last - began:g} s, because other attachments claim addresses there at the same time: retry"
                    )
        unknown += 1  # the survey of the next session shows whether the claim succeeded
        repeats = repeats or Pauses(deadline)
        if (unknown >= _UNKNOWN_TRIES and not isinstance(answer.reason, Unreachable)) or not repeats.wait():
            raise answer.reason
        owner.sequence = max(time.time_ns(), owner.sequence + 1)  # a request under way has the former sequence


class _Attempts:
    """The attempts at one claim. Each uses the results of the previous ones."""

    def __init__(self, store: Store, wanted: Sequence[Choice], owner: Owner, terms: Terms) -> None:
        self._store = store
        self._wanted = wanted
        self._owner = owner
        self._terms = terms
        self._lost = list(terms.doubtful)
        self._needs = needs_of(wanted)
        how = (terms.free_earlier_boots, terms.is_own, terms.is_neighbour, terms.is_avoided, terms.with_former)
        self._search = SearchPlan(store, wanted, owner, *how)
        self._new = terms.new

    def once(self) -> list[int] | Taken | Unknown:
        """Make one attempt in a session of the store. Returns the addresses, or the answer of a claim without success."""
        store, owner, terms, search = self._store, self._owner, self._terms, self._search
        found = store.survey(owner, search.windows(), self._new)
        planned = rules.plan(self._wanted, found.own, found.pods, owner, self._lost)
        if None in planned.chosen:
            search.pass_full(found.near_full)
            if search.preferred is None:
                search.preferred = [*terms.preferred(), *found.former]
        if store.cooldown:
            _check_requested(store, self._needs, planned.given_up, owner)
        try:
            values = search.propose(planned.chosen)
        except Exhausted:
            if not self._new:
                raise
            self._new = False
            return Taken([])
        wants = [need.want(value) for need, value in zip(self._needs, values, strict=True)]
        if planned.settled:
            terms.remember(wants, found.own[0].sequence)
            return values
        self._forbid_open(wants, found.own)
        terms.remember(wants, owner.sequence)
        answer = store.claim(wants, owner, planned.given_up)
        if isinstance(answer, Unknown):
            terms.open, terms.is_unsure = wants, True
        if isinstance(answer, Claimed):
            return values
        if isinstance(answer, Taken) and answer.wants:
            self._lost += _lost(store, self._needs, wants, planned, answer.wants, owner)
            proposed = [want for want, kept in zip(wants, planned.chosen, strict=True) if kept is None]
            search.lose([want for want in proposed if want in answer.wants])
        self._new = self._new and isinstance(answer, Taken)
        return answer

    def _forbid_open(self, wants: Sequence[Want], own: Sequence[Lease]) -> None:
        """Cancel the open claim, which the server may still execute, if it names an address outside `wants` and `own`."""
        known = [*wants, *own]
        if not {(*want.place, want.scope) for want in self._terms.open} <= {
            (*want.place, want.scope) for want in known
        }:
            self._store.settle(self._owner.attachment, self._owner.sequence - 1)
            self._terms.open = ()


def _check_requested(store: Store, needs: Sequence[Need], kept: Sequence[Lease], owner: Owner) -> None:
    """Raise TryAgainLater when a requested address is in its cooldown. The addresses of the leases `kept` are not checked."""
    held = {(lease.pool, lease.value) for lease in kept}
    for need in needs:
        value = need.requested
        if value is None or need.shared or (need.pool, value) in held:
            continue
        if value in store.cooling(need.pool, need.scope, need.rng.family, value, value, owner):
            raise TryAgainLater(
                f"the requested address {format_address(need.rng.family, value)} (pool {need.pool}) was freed by another pod"
                f" less than {store.cooldown} s ago (ipam.cooldown_seconds): ask for another one, or retry later"
            )


def _lost(
    store: Store,
    needs: Sequence[Need],
    wants: Sequence[Want],
    planned: rules.ClaimPlan,
    taken: Sequence[Want],
    owner: Owner,
) -> list[Want]:
    """The addresses in `taken` that the plan would have kept, and that another owner now holds.

    A lease of `owner` or its pod is not lost: the request of a killed call made it after the survey, and the next plan
    keeps it. Raises TryAgainLater when a requested address is lost, SharedLease when a shared one is.
    """
    known = {lease.key() for lease in planned.given_up}
    lost = []
    for need, want, kept in zip(needs, wants, planned.chosen, strict=True):
        if want not in taken or kept is None:
            continue
        holder = store.holder(want)
        if holder is None:
            continue  # the address is free again
        if holder.key() not in known:
            ours = holder.attachment == owner.attachment
            if ours or (need.requested is None and rules.may_take_over(holder, owner)):
                continue
        if need.shared and holder.network == owner.attachment.network:
            raise SharedLease(need)
        if need.requested is not None:
            kind = "static address (ipam.addresses)" if need.shared else "requested address"
            raise TryAgainLater(
                f"the {kind} {holder.text} (pool {holder.pool}) is held by {holder.holder()}: ask for another one,"
                " or detach that"
            )
        lost.append(want)
    return lost


# --- the claim of an ADD ---


def claim(
    wanted: Sequence[Choice],
    owner: Owner,
    config: IpamConfig,
    store_ref: dict[str, Any],
    record: dict[str, Any] | None,
    records: Records,
    of_group: dict[str, Any] | None = None,
) -> tuple[list[int], dict[str, Any] | None]:
    """Lease an address for each need of `wanted` to `owner`. Returns the addresses and the record that names them.

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
        from ipam.shared import ClaimsHere  # all leases in a file store are of this node

        here = ClaimsHere(records, owner)
    store, record = _opened(owner, config, store_ref, record, records, here)
    recorded = recorded_leases(owner.attachment, record) if record and is_shared else []
    if here and store.spreads and of_group is None:
        store.is_claimed_here = here.is_being_claimed
    draft = _Draft(records, owner, record, store_ref, config.cooldown_seconds, of_group or {}, here)
    terms = Terms(
        draft.write,
        free_earlier_boots=lambda pool: _free_earlier_boots(store, pool, owner, records),
        open=recorded,
        doubtful=recorded if record and record["pending"] else (),
        preferred=lambda: [*local.preferred(records, owner), *_annotated(config, owner, records)],
        seconds=config.store_timeout if is_shared else 0,
        new=record is None and of_group is None,
        is_avoided=lambda address: local.is_avoided(records, address),
        is_own=lambda want: wire.is_own(want) or (here is not None and here.is_recorded(want)),
        is_neighbour=wire.is_neighbour,
        with_former=wire.with_former,
    )
    try:
        values = _acquire_unshared(store, wanted, owner, terms, draft)
        if draft.shared:
            records.remind(True)
        return values, draft.record
    except Unreachable:
        raise  # the claim may have succeeded; DEL or GC finds the leases by the record
    except CniError:
        if draft.record is not record:
            _forget(owner, store, records, record, terms.is_unsure)
        raise
    finally:
        if here:
            here.release()


def _acquire_unshared(store: Store, wanted: Sequence[Choice], owner: Owner, terms: Terms, draft: _Draft) -> list[int]:
    """Call `acquire`. Needs whose shared address another attachment leases are left out, and added to `draft.shared`."""
    while True:
        try:
            return acquire(store, wanted, owner, terms)
        except SharedLease as found:
            wanted = [choice for choice in wanted if choice is not found.need]
            draft.shared.append(found.need)


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
    """Open the store. Returns the store and the present record; a lost record may be made again from AddressLeases."""
    restore = restorer(store_ref, records, owner)
    store = stores.open_store(store_ref, CREATE, restore, config.store_timeout, records.log.warning)
    store.cooldown = config.cooldown_seconds
    if here and store_ref["kind"] == "addresslease" and not local.is_complete(records):
        store.finish_by(time.monotonic() + config.store_timeout)
        if here.refill(store, config.cooldown_seconds) and record is None:
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
    """The record of an ADD, written before each claim. `shared` has the needs whose address another attachment leases."""

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


def _forget(owner: Owner, store: Store, records: Records, former: dict[str, Any] | None, is_unsure: bool) -> None:
    """After a failed ADD that claimed nothing new, restore the record `former`; remove the record if `former` is None.

    A lost store is restored from the records, so no record may name an address that its attachment does not have. If the
    ADD left a claim open (`is_unsure`), the record stays until the claim is cancelled.
    """
    attachment = owner.attachment
    try:
        if is_unsure:
            store.settle(attachment, owner.sequence)
        held = {lease.text for lease in store.find(attachment)}
        if former and held in (set(), set(former["addresses"])):
            records.write(attachment, PART, former)
        elif not former and not held:
            records.remove(attachment, PART)
    except CniError:
        pass  # DEL or GC ends the attachment by the record
