"""CHECK's comparison of one value: what the kernel shows, what ADD set, and what the call's configuration wants."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNKNOWN = (None, "")


def differs(key: str, now: Any, was: Any, configured: Any = None) -> list[str]:
    """At most one sentence about `key`.

    None or "" is not compared: as `now` the kernel does not show the key, as `was` ADD left the key to the kernel, as
    `configured` the configuration does not have the key.
    """
    if now in _UNKNOWN:
        return []
    words = "" if was in (*_UNKNOWN, now) else f", was {was}"
    if configured not in (*_UNKNOWN, now) and (not words or configured != was):
        words += f", configured is {configured}"
    return [f"{key} is {now}{words}"] if words else []
