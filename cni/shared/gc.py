"""The parts of every GC: the time at which it began, the attachments to keep, and the locks of those to remove."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from cni.shared.log import Log
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig
from cni.shared.spec.request import Attachment, Request, member

VALID_ATTACHMENTS = "cni.dev/valid-attachments"
_CLOCK_STEP = 1_000_000_000  # ns: more than a busy machine needs to read two clocks in succession


class Began:
    """The moment at which a GC began, by the wall clock and, to measure the time since then, by the monotonic clock.

    Records have wall-clock times, which can be compared across boots. An attachment made during the GC has a time
    between the start of the GC and now. An attachment with any other time is older than the GC, even if the time is in
    the future because the wall clock was set back after the ADD.
    """

    def __init__(self) -> None:
        self._wall = time.time_ns()
        self._steady = time.monotonic_ns()

    def is_after(self, created: int) -> bool:
        """Whether the attachment that was made at `created` (ns since 1970) is older than the GC. A younger attachment
        may be valid although the GC request does not list it.

        Returns False for every attachment when the wall clock was set during the GC, since times before and after the
        change cannot be compared. This GC then keeps all attachments, and the next GC removes the invalid ones.
        """
        now = time.time_ns()
        is_set = abs((now - self._wall) - (time.monotonic_ns() - self._steady)) > _CLOCK_STEP
        return not (is_set or self._wall <= created <= now)


def valid_attachments(request: Request, log: Log) -> set[Attachment] | None:
    """The attachments in VALID_ATTACHMENTS, which GC must keep. Without this key, log a warning and return None.

    The value null means an empty list: runtimes written in Go send null for a network without attachments. Raises
    InvalidConfig when the value is no list of attachments.
    """
    listed = request.member(VALID_ATTACHMENTS)
    if listed is None:
        if any(key.lower() == VALID_ATTACHMENTS for key in request.config):
            return set()
        log.warning(
            f'GC without the key "{VALID_ATTACHMENTS}" collects nothing: it does not say which attachments are in use'
        )
        return None
    if not isinstance(listed, list):
        raise InvalidConfig(f'"{VALID_ATTACHMENTS}" is not a list: nothing is collected')
    found = set()
    for entry in listed:
        container_id, ifname = member(entry, "containerID"), member(entry, "ifname")
        if not isinstance(container_id, str) or not isinstance(ifname, str):
            raise InvalidConfig(
                f'an entry of "{VALID_ATTACHMENTS}" is not {{"containerID": string, "ifname": string}}: nothing is collected'
            )
        found.add(Attachment(request.attachment.network, container_id, ifname))
    return found


def locked(
    attachments: Iterable[Attachment], part: str, records: Records
) -> Iterator[tuple[Attachment, dict[str, Any] | None]]:
    """Yield (attachment, record of `part`) for each attachment with such a record, and hold the attachment's lock until
    the next one. `part` is "link", "ipam" or "rdma". If another call has the lock, yield (attachment, None)."""
    for attachment in attachments:
        held = records.try_locked(attachment, part)
        if held is None:
            yield attachment, None
            continue
        with held:
            record = records.read(attachment, part)
            if record is not None:
                yield attachment, record
