"""A claim without a node: no record is written, and any address may be given."""

from __future__ import annotations

from typing import Any

from ipam.acquire import CLAIM_SECONDS
from ipam.own import Wire


class AnyAddress:
    """Stands for the terms of an ADD (ipam.acquire.AddTerms)."""

    open: Any = ()
    is_unsure = False
    doubtful = ()
    new = False
    seconds = CLAIM_SECONDS
    wire = Wire()

    def remember(self, wants: object, sequence: int) -> None:
        pass

    def preferred(self) -> list[tuple[int, int]]:
        return []

    def reclaim(self, store: object, pool: str) -> bool:
        return False
