"""The verbs of a link plugin. What holds for all of them, in this order:

    ADD   lock; clear what a predecessor left; plan; write the record; addresses; link; configure. A failure undoes all
    DEL   lock; the link leaves the sandbox; then the addresses are given back; the record goes last. Every step is
          tried; the addresses are kept when the link would not go, for it may still answer to them
    GC    as DEL, for every record of this network that is not among the valid attachments and that nobody has locked

What a DEL could not end is ended by the next ADD, DEL or GC of any network on the node (cni.unended).

Each call loads what its verb needs, and no more.
"""

from __future__ import annotations

from cni import plugins
from cni.attachment import UNENDED, Book
from cni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.log import Log
    from cni.spec.request import Request
    from cni.spec.result import Result

_PAUSE, _SECONDS = 10.0, 1.0  # seconds between two attempts on the node, and about how long one of them lasts


def call(name: str, request: Request, log: Log) -> Result | None:
    """Serve `request` with the link plugin `name`; the result of an ADD, None for every other verb."""
    plugin = plugins.named(name)
    if name == "sriov":
        from cni.plugins import sriov_log

        sriov_log.direct(request, log)
    if request.command in ("ADD", "DEL", "GC"):
        _finish_others(request, log)
    if request.command == "ADD":
        from cni import attach

        return attach.add(plugin, request, log)
    if request.command == "DEL":
        from cni import detach

        detach.delete(plugin, request, log)
    else:
        from cni import upkeep

        {"CHECK": upkeep.check, "GC": upkeep.collect, "STATUS": upkeep.status}[request.command](plugin, request, log)
    return None


def _finish_others(request: Request, log: Log) -> None:
    """End what former DELs could not, when that is due."""
    book = Book(log=log)
    if not book.is_reminded(_PAUSE, UNENDED):
        return
    from cni import unended

    try:
        unended.finish(book, log, request.environ, _SECONDS)
    except (CniError, OSError) as fault:  # this call says so itself, if it concerns it
        log.warning(f"attachments that could not be ended are left for now: {fault}")
