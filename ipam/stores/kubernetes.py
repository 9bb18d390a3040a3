"""The Kubernetes store: the pools and reservations of whereabouts v0.9.4, so that Go's nodes and ours share them.

A claim is one patch of the IPPool for each pool, which tests that the object is as it was read, and then one reservation
for each address: the pool first, for a reservation without an allocation would be nobody's. What fails on the way is
undone; what a kill leaves is completed by a retry, or cleared by DEL, since the allocation names the container.

The node's processes take turns at a pool, from reading it to patching it, so that each finds the object as its
predecessor left it. A change by another node makes the test fail; then the pool is read again after a random pause.

An allocation tells container, pod and ifname. All else of a lease comes from `known`, the node's own records, else from
its reservation; a lease that neither tells of (Go's) has the sequence 0.

A request whose reply was lost can come late, but the test makes it fail once the object has changed. So a claim is made
again with the object read anew, and `settle` changes the object.
"""

from __future__ import annotations

import time
from time import monotonic

from cni.spec.errors import CniError, InvalidConfig, TryAgainLater
from cni.spec.request import Attachment
from ipam.ranges import format_address
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
    Want,
    returns,
)
from ipam.stores.kubernetes_api import POOLS, Api, Conflict, Forbidden, Gone, Open, is_static, uid_of
from ipam.stores.kubernetes_change import FIRST_PAUSE, contended_until, patch, wait
from ipam.stores.kubernetes_claim import Claim
from ipam.stores.kubernetes_reservations import holder_besides, reserve_for_others, unreserve
from ipam.stores.kubernetes_turns import Turns
from ipam.stores.kubernetes_view import Names, View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from ipam.stores.kubernetes_change import Changes


class KubernetesStore(Store):
    """The store that `described` describes (ipam.stores.describe); every request is over in `seconds`.

    `known` tells the leases of this node's records, `warn` what is said of a pool that nears its limit.
    """

    __slots__ = ("_api", "_depth", "_described", "_turns", "_view", "_warn")

    kind = "kubernetes"
    window = 256  # the pool is in memory; `next_open` passes over all that is full
    spreads = False  # a pool is one object

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
        self._turns = Turns(self._api, described.get("pools") or [], seconds, warn)
        self._view = View(self._api, self._turns.take, described.get("pools"), known, names)
        self._warn = warn
        self._depth = 0

    def record(self) -> dict[str, Any]:
        return self._described

    def enter(self) -> None:
        """The locks are taken when a pool is to be read."""
        if self._depth == 0:
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
        """The server is asked what it would make of a new pool: its namespace may be absent, its definition too old."""
        if fault := objects.pruned(self._api.try_create(POOLS, objects.probe())):
            raise InvalidConfig(fault)

    def find(self, attachment: Attachment) -> list[Lease]:
        with self.turn():
            found = []
            for pool in self._view.all():
                for entry in pool.entries.values():
                    if entry.container_id == attachment.container_id and entry.ifname in ("", attachment.ifname):
                        lease = self._view.completed(self._view.lease(pool, entry))
                        lease.network = lease.network or attachment.network
                        if lease.attachment == attachment:
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
        """A lease that tells no uid is left out of the pod's, unless it can be told that it is the living pod's."""
        with self.turn():
            own, pods, former = super().survey(attachment, pod, windows)
            unknown = [lease for lease in pods if lease.attachment != attachment and not lease.pod[2]]
            if unknown and pod[2]:
                strange = self._strange(unknown, pod)
                pods = [lease for lease in pods if lease not in strange]
            return own, pods, former

    def _strange(self, leases: Sequence[Lease], pod: tuple[str, str, str]) -> list[Lease]:
        """Those of `leases`, which tell no uid, that may be of another pod of the same name, on the wire still.

        Go's lease has a reservation: if that is older than the pod that lives now, it was made for a former one. Without a
        reservation nothing tells when the lease was made, nor on which node.
        """
        strange = [lease for lease in leases if lease.scope is None]
        for lease in strange:
            self._warn(
                f"{format_address(lease.family, lease.value)} may be in use by another pod {'/'.join(pod[:2])}, of container"
                f" {lease.container_id}, for nothing tells the UID of its pod: it does not move. See `railcni ipam audit`"
            )
        reserved = [lease for lease in leases if lease.scope is not None]
        try:
            living = self._api.pod(*pod[:2]) if reserved else {}
        except Gone:
            return strange
        except Forbidden as fault:
            self._warn(f"whose lease that of {pod[0]}/{pod[1]} is cannot be told, and it moves: {fault.msg}")
            return strange
        for lease in reserved:
            found = self._view.reservation(lease.scope, lease.family, lease.value)
            former = found and found.created < str(living.get("creationTimestamp") or "") and not is_static(living)
            if former or uid_of(living) != pod[2]:
                strange.append(lease)
        return strange

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
            found = (self._view.parsed(document, 0) for document in self._api.list_all(POOLS))
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

    def claim(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease] = ()) -> Claimed | Taken | Unknown:
        """One attempt: when others have changed a pool since it was read, the caller has to look again."""
        with self.turn():
            self._turns.take()
            claim = Claim(self._view, wants, owner, instead_of, self._warn)
            if claim.conflicts(False):
                return self._taken(claim.conflicts(True))
            failure: Exception | None = None
            taken: list[Want] = []
            try:
                taken = claim.make(self._turns.end)
                if not taken:
                    return Claimed(claim.leases)
            except Open as fault:
                self._view.forget()
                return Unknown(fault)  # the next `find` tells what was made of it
            except (CniError, Conflict) as fault:
                failure = fault
            try:
                claim.undo()
            except CniError as fault:
                self._view.forget()
                return Unknown(fault)
            if isinstance(failure, CniError):
                raise failure
            if failure:
                return self._taken([])
            self._view.thorough = True
            return self._taken(claim.conflicts(True) or taken)

    def _taken(self, wants: list[Want]) -> Taken:
        self._view.forget()
        return Taken(wants)

    def release(self, leases: Sequence[Lease]) -> int:
        freed = 0
        left = list({lease.key(): lease for lease in leases}.values())
        with self.turn():
            unreserve(self._view, left)  # before the turn at the pools: nobody waits for it
            self._turns.take()
            deadline, pause = contended_until(self._api), FIRST_PAUSE
            while True:
                there = [lease for lease in left if self._view.is_there(lease)]
                reserve_for_others(self._view, [lease for lease in left if lease not in there])
                left = there
                changes: dict[str, Changes] = {}
                for lease in left:
                    changes.setdefault(lease.pool, {})[lease.value] = None
                try:
                    for name, change in changes.items():
                        gone = [lease for lease in left if lease.pool == name]
                        patch(self._view, name, change, cooled=gone, released=gone)
                        self._view.remember([], gone)
                        freed += len(gone)
                        left = [lease for lease in left if lease.pool != name]
                    return freed
                except Conflict as fault:
                    if monotonic() + pause > deadline:
                        raise TryAgainLater(
                            f"pool {left[0].pool} of {self._api} was changed by others each time that it was to be: retry",
                            str(fault),
                        ) from None
                self._view.forget()
                pause = wait(pause)

    def settle(self, attachment: Attachment, sequence: int) -> None:
        """Also frees what a claim has reserved that came no further."""
        with self.turn():
            own = [lease for lease in self._view.known_leases().values() if lease.attachment == attachment]
            for name in dict.fromkeys([lease.pool for lease in own] or self._described.get("pools") or ()):
                self._fence(name)
            self._view.forget()
            unreserve(self._view, [lease for lease in own if not holder_besides(self._view, lease)])

    def _fence(self, name: str) -> None:
        """Change a pool, so that every patch which supposes it as it is now comes too late. Open."""
        pool = self._view.pool(name)
        if pool is None:
            return
        fence = pool.patch({}, {objects.FENCE: str(time.time_ns())})
        try:
            self._api.patch(POOLS, self._view.names.object_of(name), fence)
        except Gone:
            pass  # and what was claimed in it
        except Conflict as fault:
            self._view.forget_pool(name)
            now = self._view.pool(name)
            if now and now.version == pool.version:  # else others have changed it, which does as well
                raise Open(f"pool {name} of {self._api} could not be changed: {fault}") from None


def _sorted(leases: Iterable[Lease]) -> list[Lease]:
    return sorted(leases, key=lambda lease: (lease.pool, lease.value))
