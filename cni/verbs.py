"""The verbs of a link plugin. What holds for all of them, in this order:

    ADD   lock; clear what a predecessor left; plan; write the record; addresses; link; configure. A failure undoes all
    DEL   lock; the link leaves the sandbox; then the addresses are given back; the record goes last. Every step is
          tried; the addresses are kept when the link would not go, for it may still answer to them
          Another's IPAM plugin is called while the link is up: between link and configure, and before the link leaves
    GC    as DEL, for every record of this network that is not among the valid attachments and that nobody has locked

Each call loads what its verb needs, and no more.
"""

from __future__ import annotations

from cni import plugins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.log import Log
    from cni.spec.request import Request
    from cni.spec.result import Result


def call(name: str, request: Request, log: Log) -> Result | None:
    """Serve `request` with the link plugin `name`; the result of an ADD, None for every other verb."""
    plugin = plugins.named(name)
    if name == "sriov":
        from cni.plugins import sriov_log

        sriov_log.direct(request, log)
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
