"""A device of the host that is neither in its sandbox nor back: whether it is somewhere else, or exists no longer.

Of hardware the driver tells: the directory `net` of its device in sysfs is there as long as it has a netdev in any
network namespace (cleanup_glue_dir, drivers/base/core.c). A virtual device is destroyed with its namespace; until then
it is seen in it by the id that the host's namespace has got for that one when the device was moved there
(peernet2id_alloc in __dev_change_net_namespace, net/core/dev.c, since Linux 4.15).
"""

from __future__ import annotations

from cni import sandbox
from cni.attachment import Book
from cni.kernel import nsids, sysfs
from cni.plugins import devices, moved
from cni.spec.errors import Lingers
from cni.spec.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.kernel.links import Link, Rtnl
    from cni.plugins.moved import Plan


def refuse(planned: Plan, host: Rtnl, box: Rtnl | None) -> None:
    """Lingers unless it is certain that the device exists no longer, or that another attachment has it.

    `box` is its sandbox, None when that is not found.
    """
    former = planned.device
    bus, parent = ("pci", planned.pci) if planned.pci else (former["bus"], former["parent"])
    if parent:
        exists = sysfs.has_netdev(bus, parent)
    else:
        exists = in_namespace_of(planned, host, box) or (box is not None and in_namespace_of(planned, box))
    if exists and not is_of_another(planned):
        where = "in a network namespace that cannot be found" if box is None else "in a namespace that the pod has made"
        raise Lingers(
            f'device "{former["name"]}" is not back on the host: it is on its way, or {where}; end what holds that namespace,'
            " and DEL again"
        )


def is_of_another(planned: Plan) -> bool:
    """Whether the device is in the sandbox of another attachment: of ADDs that race for it each has written a record.

    The sandbox of `planned` itself has been looked into before, or cannot be found.
    """
    for _, record in moved.recorded(None, Book()):
        there = sandbox.of_record(record, Request({"CNI_COMMAND": "DEL"}, b"", {}, {}))
        if there:
            with there:
                if moved.recognises(planned, there.rtnl):
                    return True
    return False


def in_namespace_of(planned: Plan, rtnl: Rtnl, but: Rtnl | None = None) -> bool:
    """Whether the device is in one of the namespaces that the namespace of `rtnl` has an id for, that of `but` left out."""
    return any(_is_of(planned, link) for nsid in nsids.of_others(rtnl, but) for link in nsids.links(rtnl, nsid))


def _is_of(planned: Plan, link: Link) -> bool:
    """Whether `link` is the device: by its mark and index, or by MAC and name. A later device may have the mark alone;
    what the pod has made has no end outside of it."""
    former = planned.device
    is_marked = link.alias == former["name"] and link.index == former["index"]
    is_named = link.mac == former["mac"] and link.name in (planned.name, former["name"])
    return link.kind == former["kind"] and (is_marked or is_named) and not devices.stands_on_its_own(former, link)
