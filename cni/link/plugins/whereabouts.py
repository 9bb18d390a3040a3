"""The plugin whereabouts (IPAM): the calls of the other plugins into the package `ipam`, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Attachment, Request
    from cni.shared.spec.result import Result


def call(request: Request, log: Log) -> Result | None:
    """Serve `request`. Returns the result of an ADD, None for every other verb."""
    from ipam import plugin  # a network without addresses loads no IPAM

    return plugin.call(request, log)


def faults(request: Request) -> list[Fault]:
    """The faults of the IPAM configuration in `request`."""
    from ipam import config, flatfile  # a network without addresses loads no IPAM

    found: list[Fault] = []
    config.examine(request, flatfile, found)
    return found


def may_hold(request: Request, records: Records) -> bool:
    """Whether a failed ADD may have left addresses leased."""
    from ipam import plugin  # a network without addresses loads no IPAM

    return plugin.may_hold(request, records)


def is_pending(attachment: Attachment, records: Records) -> bool:
    """Whether the release of the attachment's addresses is pending, because the store could not be reached."""
    from ipam import upkeep  # a network without addresses loads no IPAM

    return upkeep.is_pending(attachment, records)


def found_in_use(addresses: Iterable[str], records: Records) -> None:
    """Remember that other hosts use `addresses`, so that this node avoids them for some minutes."""
    from ipam import local  # a network without addresses loads no IPAM

    for address in addresses:
        local.found_in_use(records, address)


class KeptOpen:
    """Keeps the lease file and the connections to stores open after each call from now on, for the next call."""

    def __init__(self) -> None:
        from ipam.stores import base  # a network without addresses loads no IPAM
        from ipam.stores.file import database  # a network without addresses loads no IPAM

        self._base, self._database = base, database
        database.kept, base.connections = {}, {}

    def files(self) -> int:
        """The number of file descriptors that are kept. A lease file has two, for its lock and for SQLite."""
        return 2 * len(self._database.kept or ()) + len(self._base.connections or ())

    def end_call(self) -> None:
        """Close the connections to stores that were opened for the call that ends."""
        while self._base.at_end:
            self._base.at_end.pop()()
