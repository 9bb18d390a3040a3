"""The Kubernetes store: the pools and reservations of whereabouts v0.9.4, so that Go's nodes and ours share them.

A claim is one patch of the IPPool for each pool, which tests that the object is as it was read, and then one reservation
for each address: the pool first, for a reservation without an allocation would be nobody's. What fails on the way is
undone; what a kill leaves is completed by a retry, or cleared by DEL, since the allocation names the container.

The node's processes take turns at a pool, from reading it to patching it, so that each finds the object as its
predecessor left it, and one patch serves all that wait (`join`); other nodes are met by the test, and a random wait.

An allocation tells container, pod and ifname. All else of a lease comes from `known`, the node's own records, else from
its reservation; a lease that neither tells of (Go's) has the sequence 0.

A request whose reply was lost can come late, but the test makes it fail once the object has changed: so a claim is made
again with the object read anew, and who must be certain changes it (`settle`).
"""

from __future__ import annotations

import time
from time import monotonic

from cni.spec.errors import CniError, TryAgainLater
from cni.spec.request import Attachment
from ipam.stores import kubernetes_objects as objects
from ipam.stores.base import (
    SHARED_SECONDS,
    Claimed,
    Lease,
    Owner,
    Pool,
    Store,
    Taken,
    Unknown,
    Unreachable,
    Want,
    returns,
)
from ipam.stores.kubernetes_api import POOLS, Api, Conflict, Forbidden, Gone, Open
from ipam.stores.kubernetes_change import FIRST_PAUSE, contended_until, patch, wait
from ipam.stores.kubernetes_claim import Claim
from ipam.stores.kubernetes_objects import PoolObject
from ipam.stores.kubernetes_reservations import holder_besides, reserve_for_others, unreserve
from ipam.stores.kubernetes_turns import Turns
from ipam.stores.kubernetes_view import Names, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from ipam.ranges import Range
    from ipam.stores.kubernetes_change import Changes


class KubernetesStore(Store):
    """The store that `described` describes (ipam.stores.describe); every request is over in `seconds`.

    `known` tells the leases of this node's records, `warn` what is said of a pool that nears its limit.
    """

    __slots__ = ("_api", "_depth", "_described", "_turns", "_view", "_warn")

    kind = "kubernetes"
    window = 256  # the pool is in memory; `next_open` passes over all that is full

    def __init__(
        self,
        described: dict[str, Any],
        seconds: float = SHARED_SECONDS,
        known: Callable[[], list[Lease]] = list,
        warn: Callable[[str], object] = lambda text: None,
        names: Names | None = None,
    ) -> None:
        self.cooldown = 0
        self._described = described
        self._api = Api(described.get("kubeconfig") or "", seconds)
        names = names or Names(described.get("node") or "")
        self._turns = Turns(self._api, described.get("pools") or [], seconds, names.object_of, warn)
        self._view = View(self._api, self._turns.take, described.get("pools"), known, names, self._turns.wishes)
        self._warn = warn
        self._depth = 0

    def record(self) -> dict[str, Any]:
        return self._described

    def enter(self) -> None:
        """The locks are taken when a pool is to be read."""
        if self._depth == 0:
            self._turns.changes = False
            self._view.forget()
            self._view.cooldown = self.cooldown
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._turns.end()

    def finish_by(self, deadline: float) -> None:
        self._api.deadline = deadline

    def close(self) -> None:
        """Close the connection."""
        self._api.close()

    # --- reads ---

    def ready(self) -> None:
        """The server is asked what it would say to a new pool: its namespace may be absent, or on its way out."""
        self._api.try_create(POOLS, objects.new_pool("railcni-status", "192.0.2.0/32", {}))

    def find(self, attachment: Attachment) -> list[Lease]:
        with self.turn():
            found = []
            for pool in self._view.all():
                for entry in pool.entries.values():
                    if entry.container_id == attachment.container_id and entry.ifname == attachment.ifname:
                        lease = self._view.completed(self._view.lease(pool, entry))
                        lease.network = lease.network or attachment.network
                        if lease.network == attachment.network:
                            found.append(lease)
            return _sorted(found)

    def find_pod(self, pod: tuple[str, str, str], ifname: str) -> list[Lease]:
        if not pod[1]:
            return []
        ref = objects.podref(pod)
        with self.turn():
            return _sorted(
                self._view.completed(self._view.lease(pool, entry))
                for pool in self._view.all()
                for entry in pool.entries.values()
                if entry.document.get("podref") == ref and entry.ifname == ifname
            )

    def survey(
        self,
        attachment: Attachment,
        pod: tuple[str, str, str],
        windows: Sequence[tuple[str, str | None, int, int, int]],
    ) -> tuple[list[Lease], list[Lease], list[tuple[int, int]]]:
        """Where nothing tells the uid of a lease's pod (Go's), that of the living pod counts."""
        with self.turn():
            self._turns.changes = True  # by the claim that follows
            own, pods, former = super().survey(attachment, pod, windows)
            unknown = [lease for lease in pods if lease.attachment != attachment and not lease.pod[2]]
            if unknown and pod[2]:
                uid = self._living(pod)
                for lease in unknown:
                    lease.pod = (*pod[:2], uid)
            return own, pods, former

    def _living(self, pod: tuple[str, str, str]) -> str:
        """The uid of the pod that bears this name now; "" for none, and when we may not know."""
        try:
            return self._api.pod_uid(*pod[:2])
        except Forbidden as fault:
            self._warn(f"whose lease that of {pod[0]}/{pod[1]} is cannot be told, and it moves: {fault.msg}")
            return ""

    def former(self, pod: tuple[str, str, str], ifname: str) -> list[tuple[int, int]]:
        if not returns(pod):
            return []
        name = objects.interface(pod, ifname)
        with self.turn():
            told = [(pool, pool.former().get(name)) for pool in self._view.all()]
            return [(pool.family, pool.first + offset) for pool, offset in told if offset is not None]

    def cooling(self, pool: str, scope: str | None, family: int, low: int, high: int, owner: Owner) -> Collection[int]:
        """Of this pool alone: what another pool of the scope has freed is not looked at."""
        own = objects.interface(owner.pod, owner.attachment.ifname)
        with self.turn():
            found = self._view.pool(pool)
            if found is None:
                return ()
            kept = found.cooling(int(time.time())).items()
            values = {found.first + int(offset) for offset, (_, whose) in kept if not own or whose != own}
            return {value for value in values if low <= value <= high}

    def holder(self, want: Want) -> Lease | None:
        with self.turn():
            pool = self._view.pool(want.pool)
            entry = pool.entries.get(want.value) if pool and pool.family == want.family else None
            if pool and entry:
                return self._view.completed(self._view.lease(pool, entry))
            found = self._view.reservation(want.scope, want.family, want.value)
            if found is None:
                return None
            lease = found.lease(want)
            return self._view.known_leases().get((lease.pool, lease.family, lease.value), lease)

    def occupied(self, pool: str, scope: str | None, family: int, low: int, high: int) -> int:
        with self.turn():
            held = self._view.held(pool, scope, family)
            return sum(1 << value - low for value in range(low, high + 1) if value in held)

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        with self.turn():
            held = self._view.held(pool, scope, family)
            while value <= high and value in held:
                value += 1
            return value

    def leases(self, pool: str, after: Lease | None = None, limit: int = 1000, node: str = "") -> list[Lease]:
        with self.turn():
            found = self._view.pool(pool)
            if found is None:
                return []
            values = sorted(value for value in found.entries if after is None or value > after.value)
            leases = (self._view.lease(found, found.entries[value]) for value in values)
            page = []
            for lease in leases:
                if not node or lease.node == node:
                    page.append(lease)
                    if len(page) == limit:
                        break
            return page

    def pools(self) -> list[Pool]:
        with self.turn():
            found = (PoolObject(document, 0) for document in self._api.list_all(POOLS))
            return sorted(
                (
                    Pool(self._view.names.pool_of(pool.name), pool.family, len(pool.entries))
                    for pool in found
                    if pool.entries
                ),
                key=lambda pool: pool.name,
            )

    def of_earlier_boots(self, pool: str, node: str, boot_id: str, limit: int = 1000) -> list[Lease]:
        with self.turn():
            found = self._view.pool(pool)
            if found is None:
                return []
            claimed = (self._view.lease(found, e) for e in found.entries.values() if "ipamclaimref" not in e.document)
            return _sorted(lease for lease in claimed if lease.node == node and lease.boot_id != boot_id)[:limit]

    # --- changes ---

    def join(
        self, pool: str, scope: str | None, rng: Range, owner: Owner, remember: Callable[[Sequence[Want]], object]
    ) -> Claimed | Taken | Unknown | None:
        """While we wait for our turn at the pool, who has it may claim for us."""

        def wish() -> dict[str, Any]:
            from ipam.stores.kubernetes_grants import claim_wish

            remember(())
            return claim_wish(rng, scope, owner)

        with self.turn():
            self._turns.changes = True
            answer = self._turns.take(wish)
            if not (answer and isinstance(value := answer.get("value"), int)):
                return None
            self._turns.end()
            wants = [Want(pool, rng.family, value, scope)]
            remember(wants)
            claim = Claim(self._view, wants, owner, (), self._warn)
            claim.adopt()
            try:
                return self._attempt(claim)
            except Conflict as fault:
                return Unknown(Unreachable(str(fault)))

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        with self.turn():
            self._turns.changes = True
            self._turns.take()
            deadline, pause, again = contended_until(self._api), FIRST_PAUSE, False
            while True:
                claim = Claim(self._view, wants, owner, instead_of, self._warn)
                if again and claim.has_come():
                    return Taken([])  # by a patch whose reply was lost: of another process, or of one that was killed
                if claim.conflicts(False):
                    return Taken(claim.conflicts(True))
                try:
                    answer = self._attempt(claim)
                except Conflict as fault:
                    if monotonic() + pause > deadline:
                        raise self._contended(wants[0].pool if wants else "", fault) from None
                else:
                    return answer
                pause, again = self._refused(wants[0].pool, pause), True

    def _attempt(self, claim: Claim) -> Claimed | Taken | Unknown:
        """One attempt; when it fails what it did is undone. Conflict; CniError when nothing was changed."""
        failure: Exception | None = None
        taken: list[Want] = []
        try:
            taken = claim.make(self._turns.end)
            if not taken:
                return Claimed(claim.leases)
        except Open as fault:
            self._view.forget()
            return Unknown(fault)  # who asks again finds what was made of it
        except (CniError, Conflict) as fault:
            failure = fault
        try:
            claim.undo()
        except CniError as fault:
            self._view.forget()
            return Unknown(fault)
        if failure:
            raise failure
        self._view.thorough = True
        return Taken(claim.conflicts(True) or taken)

    def _refused(self, pool: str, pause: float) -> float:
        """Be ready for another attempt; how long to wait after that. Who has the turn among nodes need not wait at all."""
        self._view.forget()
        return pause if self._turns.was_refused(pool) else wait(pause)

    def _contended(self, pool: str, fault: Conflict) -> TryAgainLater:
        return TryAgainLater(
            f"pool {pool} of {self._api} was changed by others each time that it was to be: retry",
            str(fault),
        )

    def release(self, leases: Sequence[Lease]) -> int:
        freed = 0
        left = list({lease.key(): lease for lease in leases}.values())
        with self.turn():
            self._turns.changes = True
            self._turns.take()
            deadline, pause = contended_until(self._api), FIRST_PAUSE
            while True:
                left = [lease for lease in left if self._view.is_there(lease)]
                unreserve(self._view, left)
                changes: dict[str, Changes] = {}
                for lease in left:
                    changes.setdefault(lease.pool, {})[lease.value] = None
                try:
                    for name, change in changes.items():
                        gone = [lease for lease in left if lease.pool == name]
                        patch(self._view, name, change, cooled=gone, released=gone, grants=True)
                        self._view.remember([], gone)
                        freed += len(gone)
                        left = [lease for lease in left if lease.pool != name]
                    return freed
                except Conflict as fault:
                    if monotonic() + pause > deadline:
                        raise self._contended(left[0].pool, fault) from None
                pause = self._refused(left[0].pool, pause)

    def release_recorded(self, leases: Sequence[Lease]) -> bool:
        """A patch for each pool, which tests all that it removes: nothing is read but the reservations.

        A pool may be an object of a MiB, and a DEL of ours need not know what else is in it; unless it has to remember what
        it frees beside what is remembered already, or others wish for something. While we wait for our turn, who has it may
        free it for us.
        """
        if self.cooldown:
            return False
        changes: dict[str, list[Lease]] = {}
        for lease in leases:
            changes.setdefault(lease.pool, []).append(lease)
        names = self._view.names
        with self.turn():
            self._turns.changes = True
            try:
                patches = {
                    name: objects.removal(names.range_of(name, gone[0].family, gone[0].value), gone)
                    for name, gone in changes.items()
                }
                unreserve(self._view, leases)
                if len(changes) == 1 and self._turns.take(lambda: _release_wish(leases)):
                    self._view.remember([], leases)
                    return True
                self._turns.take()
                if not any(returns(lease.pod) for lease in leases) and not any(map(self._turns.is_waited_for, changes)):
                    for name, operations in patches.items():
                        self._view.forget_pool(name)
                        self._api.patch(POOLS, names.object_of(name), operations)
                    self._view.remember([], leases)
                    return True
            except (Conflict, Gone, ValueError):
                self._view.forget()
            reserve_for_others(self._view, leases)
            return False

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """Also frees what a claim has reserved that came no further."""
        with self.turn():
            own = [lease for lease in self._view.known_leases().values() if lease.attachment == attachment]
            for name in dict.fromkeys([lease.pool for lease in own] or self._described.get("pools") or ()):
                pool = self._view.pool(name)
                if pool:  # a patch that is still under way supposes the former version
                    fence = [{"op": "add", "path": "/metadata/annotations", "value": {objects.FENCE: str(sequence)}}]
                    if pool.annotations:
                        path = f"/metadata/annotations/{objects.FENCE.replace('/', '~1')}"
                        fence = [{"op": "add", "path": path, "value": str(time.time_ns())}]
                    try:
                        self._api.patch(POOLS, self._view.names.object_of(name), fence)
                    except Gone:
                        pass  # and what was claimed in it
                    except Conflict as fault:
                        raise Open(f"pool {name} of {self._api} was changed by others: {fault}") from None
            self._view.forget()
            unreserve(self._view, [lease for lease in own if not holder_besides(self._view, lease)])


def _release_wish(leases: Sequence[Lease]) -> dict[str, Any]:
    from ipam.stores.kubernetes_grants import release_wish

    return release_wish(leases)


def _sorted(leases: Iterable[Lease]) -> list[Lease]:
    return sorted(leases, key=lambda lease: (lease.pool, lease.value))
