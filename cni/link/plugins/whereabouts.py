"""The IPAM plugin whereabouts: functions that call the package `ipam`, for link plugins in their own process. Each
function loads only the modules that it needs, since a network without addresses needs no IPAM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cni import load
from cni.shared.records import STATE, Records
from cni.shared.spec.errors import CniError

if TYPE_CHECKING:
    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.spec.request import Attachment, Request
    from cni.shared.spec.result import Result
    from ipam import add, check, ending, status
    from ipam.stores.base import KeptOpen

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
    """Serve `request`, with the records in the directory `state`. Returns the result of an ADD, or None."""
    return serve(request, Records(state, log))


def serve(request: Request, records: Records) -> Result | None:
    """Serve `request`. Returns the result of an ADD, None for every other verb."""
    verb: Verb = load(*_VERBS[request.command])
    try:
        return verb(request, records)
    except CniError as fault:
        for text in records.log.hidden:
            fault.msg, fault.details = (part.replace(text, "(not shown)") for part in (fault.msg, fault.details))
        raise


def faults(request: Request) -> list[Fault]:
    """The faults of the IPAM configuration in `request`."""
    from ipam import config  # only for a network with this IPAM

    found: list[Fault] = []
    config.examine(request, found)
    return found


def may_hold(request: Request, records: Records) -> bool:
    """Whether the failed ADD of `request` may have left leases behind."""
    from ipam import ending  # only after a failed ADD

    return ending.may_hold(request, records)


def is_pending(attachment: Attachment, records: Records) -> bool:
    """Whether the release of the attachment's addresses is pending, because the store could not be reached."""
    from ipam import local  # only after a release that failed

    return local.is_pending(attachment, records)


def found_in_use(addresses: Iterable[str], records: Records) -> None:
    """Remember that other hosts use `addresses`, so that this node avoids them for some minutes."""
    from ipam import local  # only after a conflict

    for address in addresses:
        local.found_in_use(records, address)


def keep_open() -> KeptOpen:
    """From now on, keep the lease file and the connections to stores open after each call, for the next call."""
    from ipam.stores import base  # only a worker keeps them open

    return base.KeptOpen()
