"""The common part of the stores whose leases are objects of an API server."""

from __future__ import annotations

from ipam.stores.apiserver import Api
from ipam.stores.base import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any


class ObjectStore(Store):
    """The store of `store_ref` (ipam.stores.ref_of); every request is over in `seconds`."""

    __slots__ = ("_store_ref", "api")

    def __init__(self, store_ref: dict[str, Any], seconds: float) -> None:
        super().__init__()
        self._store_ref = store_ref
        self.api = Api(store_ref.get("kubeconfig") or "", seconds, store_ref.get("namespace") or "")

    def record(self) -> dict[str, Any]:
        return self._store_ref

    def finish_by(self, deadline: float) -> None:
        self.api.deadline = deadline

    def close(self) -> None:
        """Close the connection."""
        self.api.close()

    def next_open(self, pool: str, scope: str | None, family: int, value: int, high: int) -> int:
        with self.session():
            held = self._held(pool, scope, family)
            while value <= high and value in held:
                value += 1
            return value

    def _held(self, pool: str, scope: str | None, family: int) -> Collection[int]:
        """The addresses of a pool that no claim can have."""
        raise NotImplementedError
