"""A device that is neither in its sandbox nor on the host: does it still exist in another namespace?

A hardware device exists as long as its directory in sysfs has the subdirectory `net`: the driver keeps it while the device
has a netdev in any network namespace (cleanup_glue_dir, drivers/base/core.c). A virtual device is destroyed with its
namespace. Until then the host can list it there: the kernel gave the host's namespace an id for that namespace when the
device was moved (peernet2id_alloc in __dev_change_net_namespace, net/core/dev.c, since Linux 4.15).
"""

from __future__ import annotations

from cni.plugins.host_device import devices
from cni.plugins.host_device import planned as plans
from cni.shared.kernel import nsids, sandbox, sysfs
from cni.shared.records import Records
from cni.shared.spec.errors import Lingers
from cni.shared.spec.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.plugins.host_device.planned import Plan
    from cni.shared.kernel.links import Link, Rtnl


def refuse(planned: Plan, host: Rtnl, inside: Rtnl | None) -> None:
    """Lingers, unless the device certainly no longer exists, or another attachment has it.

    `inside` is its sandbox; None when the sandbox is not found.
    """
    former = planned.device
    bus, parent = ("pci", planned.pci) if planned.pci else (former["bus"], former["parent"])
    if parent:
        exists = sysfs.has_netdev(bus, parent)
    else:
        exists = in_namespace_of(planned, host, inside) or (inside is not None and in_namespace_of(planned, inside))
    if exists and not is_of_another(planned):
        where = (
            "in a network namespace that cannot be found" if inside is None else "in a namespace that the pod has made"
        )
        raise Lingers(
            f'device "{former["name"]}" is not back on the host: it is on its way, or {where}; end what holds that namespace,'
            " and DEL again"
        )


def is_of_another(planned: Plan) -> bool:
    """Whether the device is in the sandbox of another attachment: each of several racing ADDs has written a record.

    The caller has searched the sandbox of `planned` itself, or that sandbox cannot be found.
    """
    for _, record in plans.recorded(None, Records()):
        there = sandbox.of_record(record, Request({"CNI_COMMAND": "DEL"}, b"", {}, {}))
        if there:
            with there:
                if plans.recognises(planned, there.rtnl):
                    return True
    return False


def in_namespace_of(planned: Plan, rtnl: Rtnl, but: Rtnl | None = None) -> bool:
    """Whether the device is in a namespace that the namespace of `rtnl` has an id for; that of `but` is not searched."""
    return any(_is_of(planned, link) for nsid in nsids.of_others(rtnl, but) for link in nsids.links(rtnl, nsid))


def _is_of(planned: Plan, link: Link) -> bool:
    """Whether `link` is the device: by its mark and index, or by MAC and name. A later device may have the same mark; a link
    that the pod has made has no peer outside the pod."""
    former = planned.device
    is_marked = link.alias == former["name"] and link.index == former["index"]
    is_named = link.mac == former["mac"] and link.name in (planned.name, former["name"])
    return link.kind == former["kind"] and (is_marked or is_named) and not devices.stands_on_its_own(former, link)
