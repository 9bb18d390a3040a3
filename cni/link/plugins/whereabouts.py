"""The plugin whereabouts (IPAM): the calls of the other plugins into the package `ipam`, in this process.

Each loads only the modules that it needs: a network without addresses has no IPAM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni import load
from cni.shared.records import STATE, Records
from cni.shared.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.spec.request import Attachment, Request
    from cni.shared.spec.result import Result
    from ipam import add, check, ending, status

    Verb = Callable[[Request, Records], Result | None]
    _: tuple[Verb, ...] = (add.add, ending.delete, ending.gc, check.check, status.status)


_VERBS = {
    "ADD": ("ipam.add", "add"),
    "DEL": ("ipam.ending", "delete"),
    "GC": ("ipam.ending", "gc"),
    "CHECK": ("ipam.check", "check"),
    "STATUS": ("ipam.status", "status"),
}


def call(request: Request, log: Log, state: str = STATE) -> Result | None:
    """Serve `request`, with the records under the directory `state`. Returns the result of an ADD, or None."""
    verb: Verb = load(*_VERBS[request.command])
    try:
        return verb(request, Records(state, log))
    except CniError as fault:
        for text in log.hidden:
            fault.msg, fault.details = (part.replace(text, "(not shown)") for part in (fault.msg, fault.details))
        raise


def faults(request: Request) -> list[Fault]:
    """The faults of the IPAM configuration in `request`."""
    found: list[Fault] = []
    load("ipam.config", "examine")(request, load("ipam.flatfile"), found)
    return found


def may_hold(request: Request, records: Records) -> bool:
    """Whether a failed ADD may have left addresses leased."""
    held: bool = load("ipam.ending", "may_hold")(request, records)
    return held


def is_pending(attachment: Attachment, records: Records) -> bool:
    """Whether the release of the attachment's addresses is pending, because the store could not be reached."""
    pending: bool = load("ipam.local", "is_pending")(attachment, records)
    return pending


def found_in_use(addresses: Iterable[str], records: Records) -> None:
    """Remember that other hosts use `addresses`, so that this node avoids them for some minutes."""
    for address in addresses:
        load("ipam.local", "found_in_use")(records, address)


class KeptOpen:
    """Keeps the lease file and the connections to stores open after each call from now on, for the next call."""

    def __init__(self) -> None:
        self._base, self._database = load("ipam.stores.base"), load("ipam.stores.file.database")
        self._database.kept, self._base.connections = {}, {}

    def files(self) -> int:
        """The number of file descriptors that are kept. A lease file has two, for its lock and for SQLite."""
        return 2 * len(self._database.kept or ()) + len(self._base.connections or ())

    def end_call(self) -> None:
        """Close the connections to stores that were opened for the call that ends."""
        while self._base.at_end:
            self._base.at_end.pop()()
