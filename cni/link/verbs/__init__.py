"""The verbs of the link plugins. All link plugins have the same steps, in this order:

    ADD   lock; remove the rest of a killed ADD; claim the device; plan; write the record (the node's file of the
          attachment); claim the addresses; make the link; configure the link. A failure undoes the completed steps
    DEL   lock; remove the link from the sandbox; release the addresses; remove the record. Every step is tried, but the
          addresses stay leased while the link cannot be removed, since the link may still answer for them
    GC    a DEL for each attachment of this network that has a record, is not in the runtime's list, and is not locked

A foreign IPAM plugin (one of another suite) is called while the link is up: in an ADD after the link is made, in a DEL
before the link is removed. If an attachment remains because its DEL failed or never came, the next ADD, DEL or GC of
any network on the node removes it (cni.link.verbs.gc).

Each call loads only the modules that its verb needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni import load
from cni.link import plugins
from cni.shared.records import Records
from cni.shared.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cni.link.plugins.base import LinkPlugin
    from cni.link.verbs import attach, check, detach, gc
    from cni.shared.log import Log
    from cni.shared.spec.request import Request
    from cni.shared.spec.result import Result

    Verb = Callable[[LinkPlugin, Request, Records], Result | None]
    _: tuple[Verb, ...] = (attach.add, detach.delete, check.check, gc.gc, check.status)

_VERBS = {
    "ADD": ("cni.link.verbs.attach", "add"),
    "DEL": ("cni.link.verbs.detach", "delete"),
    "CHECK": ("cni.link.verbs.check", "check"),
    "GC": ("cni.link.verbs.gc", "gc"),
    "STATUS": ("cni.link.verbs.check", "status"),
}
_SECONDS = 1.0  # approximate time that a call spends on remaining attachments


def call(name: str, request: Request, log: Log) -> Result | None:
    """Serve `request` with the link plugin `name`. Returns the result of an ADD, None for every other verb."""
    plugin = plugins.named(name)
    plugin.direct_log(request, log)
    records = Records(log=log)
    if request.command in ("ADD", "DEL", "GC"):
        _finish_others(request, records)
    verb: Verb = load(*_VERBS[request.command])
    return verb(plugin, request, records)


def _finish_others(request: Request, records: Records) -> None:
    """Try to end the attachments whose DEL failed or never came, if the time for the next attempt has come."""
    if not records.is_look_due():
        return
    from cni.link.verbs import gc  # most calls do not look for such attachments

    try:
        gc.finish_unended(records, request.environ, _SECONDS)
    except (CniError, OSError) as fault:  # if the fault also affects this call, its verb raises an error
        records.log.warning(f"attachments that no DEL has ended stay for now: {fault}")
