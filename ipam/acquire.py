"""Lease addresses to an attachment: propose addresses, claim them, and repeat both until a claim succeeds.

`AddTerms.claim` makes the claim of an ADD, for one network or for a group of rails. It calls `acquire`, which makes the
attempts. Before each request to claim, `AddTerms.remember` writes the attachment's record.

An attempt is made in one session of the store. The rules of an attempt, in order:

1. *Survey.* The store returns the leases of the attachment and of its pod (`Store.survey`). The lease rules
   (ipam.rules) keep those with an address that the configuration still gives. ipam.search finds the other addresses.
2. *Preference.* An address that the pod has just had, or that its annotation names, is proposed if it is free.
3. *Place.* Otherwise the search begins at place 0, the lowest address of the range, and takes the first free one: pods
   then have addresses that people expect, and the search reads little. But concurrent calls all propose this address.
   So after a claim that lost to another, the search begins at another place, an address that differs by node and
   attachment (search.search_start). If the store keeps each pool in one object (`spreads` is false), all claims of a
   pool exclude one another: another place does not help, and the call waits instead.
4. *Full windows.* A window is a span of addresses that one read covers. In a store with `places` above 0, a read costs
   more than a failed claim. There the search leaves place 0 when the last address, or every address, of the window is
   leased. At places 1 to 3, it proposes the place itself without a read. Place 1, used only after a lost claim, is
   among the first 256 addresses, so that the lowest window soon is full and no longer read. Further places are among
   the first 65,536. From place 4 on, the search reads the window of each place, and leaves a full one for the next
   place. From place number `places` on, it reads all windows from there to the end of the pool.
5. *Exceptions.* An address that the node itself has is never given. The address of a neighbour is given only if it is
   preferred. Addresses found in use by other hosts and those of former neighbours are given last; after them, those
   that this call failed to claim, if the store shows no holder. Before a pool counts as exhausted, leases that this
   node made before its last boot are freed.
6. *Claim.* The claim gives up former leases and makes all new ones, or changes nothing. Before another attempt the call
   waits a random time, whose bound grows. After some seconds of attempts, it also waits about a second for each request
   of an attempt. A claim with an unknown outcome is made to fail (Store.settle) before other addresses are
   claimed, in most stores also before the same ones are claimed again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from cni.shared.records import Records
from cni.shared.spec.errors import CniError, TryAgainLater
from ipam import local, own, rules, stores
from ipam.config import IpamConfig
from ipam.leases import PART, Lease, Owner, Want, recorded_document, recorded_leases
from ipam.local import read_record, restorer
from ipam.ranges import format_address
from ipam.rules import Choice, Exhausted, Need, SharedLease
from ipam.search import SearchPlan
from ipam.stores.base import CREATE, Claimed, OutcomeUnknown, Pauses, Store, Taken, Unknown, Unreachable

CLAIM_SECONDS = 30.0
CONTENDED_SECONDS = 200.0  # for attempts that lose to other claims: kubelet ends its call after 240
_SPREAD, _SHARED = (0.0, 1.0), (0.005, 5.0)  # (first, longest) pause in seconds; _SPREAD if the store `spreads`
_UNKNOWN_TRIES = 3  # attempts whose outcome stays unknown; after an Unreachable, attempts continue until the deadline
_PATIENT = 5.0  # seconds after which a call makes one request a second


def acquire(store: Store, wanted: Sequence[Choice], owner: Owner, terms: AddTerms) -> list[int]:
    """Lease an address to `owner` for each need of the choices `wanted` (ipam.rules), all or none. Returns the
    addresses in the order of the needs.

    The limit is `terms.seconds`. It begins anew after an attempt that loses to another claim, but not when a claim with
    an unknown outcome is repeated. Raises Exhausted when a pool has no free address, SharedLease when another
    attachment has the lease of a static address, TryAgainLater when another attachment holds a requested address, or
    when all attempts in CONTENDED_SECONDS lose to other claims. Errors of the store are raised too.
    """
    began, seconds = time.monotonic(), terms.seconds
    deadline = began + seconds
    last = began + max(seconds, CONTENDED_SECONDS)
    store.finish_by(deadline)
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
                except OutcomeUnknown as fault:  # of `settle`, or of a release before the claim
                    answer = Unknown(fault)
                if not isinstance(answer, Taken | Unknown):
                    return answer
                if isinstance(answer, Unknown):
                    break
                repeats = None
                deadline = min(time.monotonic() + seconds, last)
                store.finish_by(deadline)
                is_patient = time.monotonic() > began + _PATIENT  # an attempt lists, creates for each need, and reads
                if not pauses.wait(3.0 + len(attempts.needs) if is_patient else 0.0):
                    raise TryAgainLater(
                        f"no address of {', '.join(need.pool for need in attempts.needs)} could be claimed within"
                        f" {last - began:g} s, because other attachments claim addresses there at the same time: retry"
                    )
        unknown += 1  # the survey of the next session shows whether the claim succeeded
        repeats = repeats or Pauses(deadline)
        if (unknown >= _UNKNOWN_TRIES and not isinstance(answer.reason, Unreachable)) or not repeats.wait():
            raise answer.reason
        owner.sequence = max(time.time_ns(), owner.sequence + 1)  # a request under way has the former sequence


class _Attempts:
    """The attempts at one claim. Each attempt uses the results of the previous attempts."""

    def __init__(self, store: Store, wanted: Sequence[Choice], owner: Owner, terms: AddTerms) -> None:
        self._store = store
        self._wanted = wanted
        self._owner = owner
        self._terms = terms
        self._lost = list(terms.doubtful)
        self._search = SearchPlan(store, wanted, owner, terms.wire, terms.reclaim)
        self._new = terms.new
        self.needs = self._search.needs

    def once(self) -> list[int] | Taken | Unknown:
        """Make one attempt in the caller's session. Returns the addresses, or the store's answer Taken or Unknown."""
        store, owner, terms, search = self._store, self._owner, self._terms, self._search
        found = store.survey(owner, search.windows(), self._new)
        planned = rules.plan(self._wanted, found.own, found.pods, owner, self._lost)
        if None in planned.chosen:
            search.pass_full(found.near_full)
            if search.preferred is None:
                search.preferred = [*terms.preferred(), *found.former]
        if store.cooldown:
            self._check_requested(planned.given_up)
        try:
            values = search.propose(planned.chosen)
        except Exhausted:
            if not self._new:
                raise
            self._new = False
            return Taken([])
        wants = [need.want(value) for need, value in zip(self.needs, values, strict=True)]
        if self._forbid_open(wants, found.own):
            return self.once()  # the earlier claim may have been executed after the survey
        if planned.settled:
            terms.remember(wants, found.own[0].sequence)
            return values
        left = store.left(planned.given_up, wants)
        terms.remember([*wants, *left], owner.sequence)
        answer = store.claim(wants, owner, planned.given_up)
        if isinstance(answer, Unknown):
            terms.open, terms.is_unsure = () if answer.failed else [*wants, *left], True
        if isinstance(answer, Claimed):
            if left:
                terms.remember(wants, owner.sequence)
            return values
        if isinstance(answer, Taken) and answer.wants:
            self._lost += self._lost_to_others(wants, planned, answer.wants)
            proposed = [want for want, kept in zip(wants, planned.chosen, strict=True) if kept is None]
            search.lose([want for want in proposed if want in answer.wants])
        self._new = self._new and isinstance(answer, Taken)
        return answer

    def _forbid_open(self, wants: Sequence[Want], own: Sequence[Lease]) -> bool:
        """Make an earlier, unfinished claim (`terms.open`) fail, unless the store has executed it, as the leases `own` show,
        or the claim of `wants` makes it fail. Returns whether this was necessary.

        In most stores another claim of the same addresses does not suffice, since the earlier claim could be executed
        after the release of the addresses.
        """
        known = {(*want.place, want.scope) for want in (*own, *(wants if self._store.replaces else ()))}
        if all((*want.place, want.scope) in known for want in self._terms.open):
            return False
        self._store.settle(self._owner.attachment, self._owner.sequence - 1)
        self._terms.open = ()
        return True

    def _check_requested(self, kept: Sequence[Lease]) -> None:
        """Raise TryAgainLater when a requested address, other than those of `kept`, was freed within its cooldown."""
        store, held = self._store, {(lease.pool, lease.value) for lease in kept}
        for need in self.needs:
            value = need.requested
            if value is None or need.shared or (need.pool, value) in held:
                continue
            if value in store.cooling(need.pool, need.scope, need.rng.family, value, value, self._owner):
                raise TryAgainLater(
                    f"the requested address {format_address(need.rng.family, value)} (pool {need.pool}) was freed by another pod"
                    f" less than {store.cooldown} s ago (ipam.cooldown_seconds): ask for another one, or retry later"
                )

    def _lost_to_others(self, wants: Sequence[Want], planned: rules.ClaimPlan, taken: Sequence[Want]) -> list[Want]:
        """The addresses in `taken` that `planned` would keep, but that another owner now holds.

        An address that the owner or its pod now holds is left out. Such an address was leased after the survey by a
        late request of a killed call, and the next plan keeps it. Raises TryAgainLater when another owner holds a
        requested address, SharedLease when another attachment of the network holds a static address.
        """
        owner, known, lost = self._owner, {lease.key() for lease in planned.given_up}, []
        for need, want, kept in zip(self.needs, wants, planned.chosen, strict=True):
            holder = self._store.holder(want) if want in taken and kept is not None else None
            if holder is None:
                continue  # the address is not lost, or free again
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


class AddTerms:
    """The inputs and the state of an ADD's claim. The caller holds the lock of the attachment's record.

    `of_group`: members that only the record of a rail group has. `shared`: the needs whose static address is leased to
    another attachment. `open`: the addresses of an earlier claim that the server may still execute; `is_unsure`:
    whether this call made that claim. `doubtful`: leased addresses that the ADD does not keep, since their release may
    still be under way. `new`: whether the attachment never had a lease. An attempt ends within `seconds`.
    """

    def __init__(
        self,
        owner: Owner,
        config: IpamConfig,
        store_ref: dict[str, Any],
        record: dict[str, Any] | None,
        records: Records,
        of_group: dict[str, Any] | None = None,
    ) -> None:
        self._owner, self._config, self._store_ref, self._records = owner, config, store_ref, records
        self._of_group = of_group
        self.wire = own.Wire(config.request, records)
        self._here: Any = None  # ipam.shared.ClaimsHere, for a store that nodes share
        self.record = record
        self.shared: list[Need] = []
        self.open: Sequence[Want] = ()
        self.is_unsure = False
        self.doubtful: Sequence[Want] = ()
        self.new = False
        self.seconds = CLAIM_SECONDS

    def claim(self, wanted: Sequence[Choice]) -> list[int]:
        """Lease an address for each need of `wanted`, write `record`, and return the addresses. A static address that
        another attachment of the network has leased is not leased: its need goes to `shared`."""
        if self.record is None:
            self._refuse_own(wanted)
        store = self._opened()
        former = self.record
        try:
            while True:
                try:
                    values = acquire(store, wanted, self._owner, self)
                    break
                except SharedLease as found:  # the attachment uses the address without a lease
                    wanted = [choice for choice in wanted if choice is not found.need]
                    self.shared.append(found.need)
            if self.shared:
                self._records.remind(True)
            return values
        except Unreachable:
            raise  # the claim may have succeeded; DEL or GC finds the leases by the record
        except CniError:
            if self.record is not former:
                self._forget(store, former)
            raise
        finally:
            if self._here:
                self._here.release()

    def _refuse_own(self, wanted: Sequence[Choice]) -> None:
        """Raise TryAgainLater when an address that `wanted` requests belongs to the node itself."""
        for need in [need for choice in wanted for need in choice.needs]:
            if need.requested is None or need.shared:
                continue
            if self.wire.is_own(want := need.want(need.requested)):
                raise TryAgainLater(
                    f"the requested address {want.text} (pool {need.pool}) is this node's own, on its link: ask for another one"
                )

    def _opened(self) -> Store:
        """Open the store. If its kind is addresslease and the node's records were lost, first make them again from the
        node's leases in the store."""
        owner, config, records = self._owner, self._config, self._records
        restore = restorer(self._store_ref, records, owner)
        store = stores.open_store(self._store_ref, CREATE, restore, config.store_timeout, records.log.warning)
        store.cooldown = config.cooldown_seconds
        if stores.is_shared(self._store_ref):
            from ipam.shared import ClaimsHere  # all leases in a file store are of this node

            self.seconds, self._here = config.store_timeout, ClaimsHere(records, owner)
            self.wire.is_recorded = self._here.is_recorded
            if store.spreads and self._of_group is None:
                store.is_claimed_here = self._here.is_being_claimed
            if self._store_ref["kind"] == "addresslease" and not local.is_complete(records):
                store.finish_by(time.monotonic() + config.store_timeout)
                if self._here.refill(store, config.cooldown_seconds) and self.record is None:
                    self.record = read_record(owner.attachment, records)
            self.open = recorded_leases(owner.attachment, self.record) if self.record else ()
            self.doubtful = self.open if self.record and self.record["pending"] else ()
        if self.record:  # the sequence grows even if the clock was set back
            owner.sequence = max(owner.sequence, self.record["sequence"] + 1)
        self.new = self.record is None and self._of_group is None
        return store

    def remember(self, wants: Sequence[Want], sequence: int) -> None:
        """Write the attachment's record with the addresses `wants`, and with `sequence`, the number of the claim.

        Called before each claim. `wants` then also has the former leases that would stay in the store if the claim were
        killed half-way. Called again, without these, when the attachment has all its leases.
        """
        owner, former = self._owner, self.record
        owner.sequence = sequence
        new = recorded_document(stores.recorded(self._store_ref), wants, owner, self._config.cooldown_seconds)
        new |= self._of_group or {}
        if self.shared or (former and "shared" in former):
            new["shared"] = [[need.pool, need.want(need.requested or 0).text] for need in self.shared]
        if former is None or any(former.get(key) != value for key, value in new.items()):
            self._records.write(owner.attachment, PART, new)
            self.record = new
            if self._here:
                self._here.note(wants)

    def preferred(self) -> list[tuple[int, int]]:
        """The addresses, (family, value), to give if they are free: first those that the pod's former sandbox has just
        released, then those of the pod's annotation, if `preferred_ip_annotation` is set."""
        found = local.preferred(self._records, self._owner)
        if self._config.preferred_ip_annotation and self._owner.pod[1]:
            from ipam.annotation import preferred  # most networks read no annotation

            found = [*found, *preferred(self._config, self._owner.pod, self._records.log)]
        return found

    def reclaim(self, store: Store, pool: str) -> bool:
        """Release leases in a full `pool` that this node made before its last boot; return whether there were any."""
        from ipam import upkeep  # most pools have a free address

        return upkeep.free_earlier_boots(store, pool, self._owner, self._records)

    def _forget(self, store: Store, former: dict[str, Any] | None) -> None:
        """After a failed ADD that claimed nothing new, restore the record `former`; if it is None, remove the record.

        A lost lease file is restored from the records, so no record may name an address that its attachment does not
        have. A claim with an unknown outcome (`is_unsure`) is first made to fail; until this succeeds, the record
        stays.
        """
        attachment, records = self._owner.attachment, self._records
        try:
            if self.is_unsure:
                store.settle(attachment, self._owner.sequence)
            held = {lease.text for lease in store.find(attachment)}
            if former and held in (set(), set(former["addresses"])):
                records.write(attachment, PART, former)
            elif not former and not held:
                records.remove(attachment, PART)
        except CniError:
            pass  # DEL or GC ends the attachment by the record
