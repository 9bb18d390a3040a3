"""Find a device of the host by a selector, recognise it in another namespace, and keep the plan of its move.

The identity of a device in the record:

    name, index, kind, mac, permanentMac, bus, parent   of the link itself
    lower                                               the index of the link below it, or of a veth's peer; 0 for none

cni.link.plugins.host_device.hoststate adds the state of the device on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cni.link.plugins.common import RecordedPlan
from cni.shared.kernel import node, sysfs
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.records import LINK, Records
from cni.shared.spec.request import Attachment

RETURNED = "returned"  # a member of the plan in a record (MovePlan)
REFUSED = "refused"  # another member: an ADD could not fully restore the device, and the next ADD takes it as it is


def find(links: Sequence[Link], kind: str, value: str) -> Link | None:
    """The link that `value` names. `kind` is "name", "mac", "path" (in sysfs), "pci", "auxiliary", or "" for none."""
    if kind == "mac":
        return next((link for link in links if value in (link.mac, link.permanent_mac)), None)
    if kind == "name":
        wanted = [value]
    elif kind == "path":
        wanted = sysfs.netdevs_of_path(value)
    else:
        wanted = sysfs.netdevs_of(kind, value) if kind else []
    return next((link for link in links if link.name in wanted or set(link.altnames) & set(wanted)), None)


def identity_of(link: Link) -> dict[str, Any]:
    """The identity of `link` for the record, which `is_same` compares."""
    return {
        "name": link.name,
        "index": link.index,
        "kind": link.kind,
        "mac": link.mac,
        "permanentMac": link.permanent_mac,
        "bus": link.parent_bus,
        "parent": link.parent_device,
        "lower": link.lower_index,
    }


def is_same(remembered: dict[str, Any], link: Link) -> bool:
    """Whether `link` can be the device with the identity `remembered`.

    Hardware is compared by its parent device, or by its permanent MAC if it has no parent. Netdevs of the same parent
    must agree in the permanent MAC, the mark (the alias that a device has in a sandbox), or the index. The MAC alone is
    not enough: a VF's permanent MAC may become the MAC that was set (igbvf_reset, drivers/net/ethernet/intel/igbvf).

    A virtual device has no parent and no permanent MAC. It has three signs: its MAC, the mark, and a lower link or peer
    outside of the sandbox. A link with the remembered index must match in one sign, because a move keeps the index if
    the index is free. Any other link must match in two signs. A tunnel has no MAC, so it must have the mark, or its
    former index and name.
    """
    if link.kind != remembered["kind"]:
        return False
    bears_mark: bool = link.alias == remembered["name"]
    has_index = link.index == remembered["index"]
    if remembered["parent"]:
        same_mac = not remembered["permanentMac"] or link.permanent_mac == remembered["permanentMac"]
        same_port = same_mac or bears_mark or has_index
        return (link.parent_bus, link.parent_device) == (remembered["bus"], remembered["parent"]) and same_port
    if remembered["permanentMac"]:
        return bool(link.permanent_mac == remembered["permanentMac"])
    if _is_bare(remembered):
        return bears_mark or bool(has_index and link.name == remembered["name"])
    has_lower = bool(remembered.get("lower")) and link.lower_index == remembered["lower"]
    signs: int = (link.mac == remembered["mac"]) + bears_mark + (has_lower and link.lower_netnsid is not None)
    return signs >= (1 if has_index else 2)


def signs_of(link: Link) -> tuple[str, ...]:
    """Strings to search the records for: each record of the hardware device `link` contains at least one of the
    strings. () for a virtual device, whose record may contain none."""
    return (link.parent_device, link.permanent_mac, link.mac, link.alias, link.name) if link.parent_device else ()


def known_again(remembered: dict[str, Any], links: Sequence[Link], away: bool = False) -> Link | None:
    """Find the remembered device among `links`, first at its former index. If `away` is true, `links` are the links of
    a sandbox, and a link that the pod may have made does not count."""
    for link in sorted(links, key=lambda link: link.index != remembered["index"]):
        if is_same(remembered, link) and not (away and stands_on_its_own(remembered, link)):
            return link
    return None


def stands_on_its_own(remembered: dict[str, Any], link: Link) -> bool:
    """Whether a pod may have made `link` itself: the lower link or the peer is in the pod's namespace, not on the host.

    A pod can give a link of its own any index, MAC and alias, but no lower link or peer outside of its namespace. The
    result is True also for a link without a MAC and without the alias that a move sets: any namespace can have `lo` or
    tunl0.
    """
    is_any = _is_bare(remembered) and link.alias != remembered["name"]
    return is_any or bool(remembered.get("lower") and link.lower_index and link.lower_netnsid is None)


def _is_bare(remembered: dict[str, Any]) -> bool:
    """Whether the remembered device has no MAC and no parent device, such as a tunnel."""
    return not (remembered["parent"] or remembered["permanentMac"] or remembered["mac"].strip("0:"))


class MovePlan(RecordedPlan):
    """The plan of a move. `device` has the identity of the device and the state to restore; {} for a userspace driver.
    `returned` is true if the attachment has lost the device to a later ADD, because its sandbox was gone."""

    device: dict[str, Any]
    restoresState: bool
    returned: bool

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__({RETURNED: False, **document})


def recorded(own: Attachment | None, records: Records, *texts: str) -> Iterator[tuple[Attachment, dict[str, Any]]]:
    """Yield (attachment, record) for each attachment except `own` that has a device, or whose device is not fully
    restored. With `texts`, only records that contain one of these strings count."""
    boot = node.boot_id()
    for attachment, _, record in records.all(LINK, *texts):
        link = record["link"]
        if link.get("device") is None or link.get(RETURNED) or attachment == own or record["bootID"] != boot:
            continue
        yield attachment, record


def present(planned: MovePlan, inside: Rtnl) -> Link | None:
    """The plan's device in the sandbox, under any name; None if it is not there, or another attachment has got it."""
    return among(planned, inside, away=True) if planned.device and not planned.returned else None


def recognises(planned: MovePlan, inside: Rtnl) -> bool:
    """Whether the plan's device is in the sandbox of the socket `inside`."""
    return present(planned, inside) is not None


def among(planned: MovePlan, rtnl: Rtnl, away: bool = False) -> Link | None:
    """Find the plan's device among the links of `rtnl`, first at its former index. `away` is as in `known_again`."""
    former = planned.device
    same = rtnl.link(index=former["index"])
    found = known_again(former, [same], away=away) if same else None
    return found or known_again(former, rtnl.links(), away=away)
