"""CHECK's comparison of one value: what the kernel shows, what ADD set, and what the call's configuration wants."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def differs(key: str, now: Any, was: Any, configured: Any = None) -> list[str]:
    """At most one sentence about `key`.

    A value that is None, "" or 0 is not compared: `now` when the kernel does not show the key, `was` when ADD left the
    key to the kernel, `configured` when the configuration does not have it.
    """
    if now in _UNKNOWN:
        return []
    if configured not in _UNKNOWN and now != configured:
        return [f"{key} is {now}, configured is {configured}"]
    if was not in _UNKNOWN and now != was:
        return [f"{key} is {now}, was {was}"]
    return []


_UNKNOWN = (None, "", 0)
