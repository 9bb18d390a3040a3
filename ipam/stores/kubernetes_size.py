"""How large a pool may become. Pure: no I/O.

An IPPool is one object, and an object is one value of etcd, which takes requests of 1.5 MiB unless it is told otherwise
(--max-request-bytes). What of it is used, `percent` tells of the size of an object's JSON, as GET answers it: the plugin,
the command and the agent warn by it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LIMIT = 1536 << 10  # bytes
WARN_PERCENT = 80
REMEDY = "Split the range, give networks a network_name each, use node_slice_size (a pool a node), or the etcd store"
_RESERVE = 24 << 10  # bytes that are left to other writers


def percent(size: int) -> int:
    """How much of what an API server takes an object of `size` bytes is, in per cent, rounded down."""
    return 100 * size // LIMIT


def takes(size: int, grown: int) -> bool:
    """Whether an object of `size` bytes may grow by `grown`."""
    return size + grown <= LIMIT - _RESERVE


def growth(entries: Iterable[dict[str, Any]]) -> int:
    """By how many bytes new allocations let an object grow, at most."""
    return sum(64 + sum(map(len, entry.values())) for entry in entries)
