"""The common part of the stores whose leases are objects of an API server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from cni.shared.spec.errors import CniError, InvalidConfig
from ipam.leases import Lease, Owner, Pool, Want
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Forbidden, Undefined
from ipam.stores.apiserver.resources import EVERYWHERE, POOLS
from ipam.stores.base import Claimed, OutcomeUnknown, Taken, Unknown
from ipam.stores.served import ServedStore

Undo = list[Callable[[], object]]


class ObjectStore(ServedStore):
    """The store with the reference `store_ref` (ipam.stores.ref_of). `seconds` limit each request (ipam.stores.http).

    `known` returns the leases in this node's records, at least those of the network. `warn` is called with each
    warning for the administrator.
    """

    def __init__(
        self,
        store_ref: dict[str, Any],
        seconds: float = 0,
        known: Callable[[], list[Lease]] = list,
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.api = Api(store_ref.get("kubeconfig") or "", seconds, store_ref.get("namespace") or "")
        self.api.warn = warn
        self._known = known
        self._moves = store_ref.get("moves") is True  # a migration claims leases of pools that are in the other store
        super().__init__(store_ref, self.api)
        self._prepare()

    def _prepare(self) -> None:
        """Initialize the attributes of this kind of store."""
        raise NotImplementedError

    def pools(self) -> list[Pool]:
        used: dict[tuple[str, int], Pool] = {}
        for lease in self.leases():
            used.setdefault((lease.pool, lease.family), Pool(lease.pool, lease.family, 0)).used += 1
        return [pool for _, pool in sorted(used.items())]

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        with self.session():
            held = self._held(pool, scope, family)
            while value <= high and value in held:
                value += 1
            return value

    def _held(self, pool: str, scope: str | None, family: int) -> Collection[int]:
        """The integer values of the addresses in a pool that cannot be claimed."""
        raise NotImplementedError

    def left(self, instead_of: Sequence[Lease], wants: Sequence[Want]) -> list[Lease]:
        made = [(*want.place, want.scope) for want in wants]
        return [old for old in instead_of if (*old.place, old.scope) not in made]

    def _attempt(self, wants: Sequence[Want], owner: Owner, instead_of: Sequence[Lease]) -> Claimed | Taken | Unknown:
        """Make a claim that needs several requests, by `_make`. Returns the answer for Store.claim.

        A failed claim is undone. Then a Conflict gives the answer Taken([]), and a CniError is raised again. After
        OutcomeUnknown nothing is undone, and the answer is Unknown.
        """
        leases, undo = [Lease(want, owner) for want in wants], Undo()
        failure: Exception | None = None
        failed: list[Want] = []
        try:
            failed = self._make(wants, leases, instead_of, undo)
            if not failed:
                return Claimed(leases)
        except OutcomeUnknown as fault:
            return Unknown(fault)  # the next `find` shows the outcome
        except (CniError, Conflict) as fault:
            failure = fault
        try:
            while undo:
                undo.pop()()
        except CniError as fault:
            return Unknown(failure if isinstance(failure, CniError) else fault)
        if isinstance(failure, CniError):
            raise failure
        return Taken([] if failure else self._obstacles(wants, instead_of) or failed)

    def _make(self, wants: Sequence[Want], leases: list[Lease], instead_of: Sequence[Lease], undo: Undo) -> list[Want]:
        """Claim `leases`, one for each of `wants`, in place of `instead_of`. Returns the addresses that prevent this.

        For each change, append a function to `undo` that undoes the change unless others have changed the object since.
        """
        raise NotImplementedError

    def _obstacles(self, wants: Sequence[Want], instead_of: Sequence[Lease]) -> list[Want]:
        """The addresses that prevented a failed claim (served.conflicts), read after the claim was undone. The result
        may be [] if `_make` has already returned all of these addresses."""
        raise NotImplementedError


def refuse_elsewhere(api: Api, pool: str) -> None:
    """Raise InvalidConfig if another namespace has an IPPool `pool`; warn if the credentials cannot list IPPools."""
    try:
        pages = api.pages(POOLS, fields=f"metadata.name={pool}", namespace=EVERYWHERE, brief=True)
        found = {item["metadata"]["namespace"] for page in pages for item in page}
    except Undefined:
        return
    except Forbidden:
        api.warn(
            f"pool {pool} is new in namespace {api.access.namespace}, and these credentials cannot show whether another namespace"
            f" has it, which would give the same addresses: allow to list {POOLS} in all namespaces, or let every node name one"
            f" namespace. Credentials: {api.named()}"
        )
        return
    if others := sorted(found - {api.access.namespace}):
        raise InvalidConfig(
            f"pool {pool} is in namespace {others[0]}, and {api.named()} names namespace {api.access.namespace}: both would give the"
            f" same addresses. Write {others[0]} there, or delete the unused pool: kubectl -n {others[0]} delete ippool {pool}",
            str(api),
        )
