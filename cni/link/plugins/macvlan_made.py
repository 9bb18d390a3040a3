"""Find, compare and remove the links that macvlan has made, and adopt the links that Go's macvlan has made."""

from __future__ import annotations

from collections.abc import Sequence

from cni.link.plugins.common import differs
from cni.link.plugins.macvlan import STANDS_FOR_ITS_LOWER, MacvlanConfig, MacvlanPlan, find_master, planned_on
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.log import Log
from cni.shared.records import LINK, Records
from cni.shared.spec.errors import KernelRefused, Lingers
from cni.shared.spec.request import Request

load = MacvlanPlan


def adopt(request: Request, host: Rtnl, inside: Rtnl | None) -> MacvlanPlan | None:
    """The plan of a link that has no record, such as a link that Go's macvlan made; None when there is no link.

    For CHECK the plan describes the link as it is, so CHECK compares the link only with the configuration. For other
    verbs the plan is made from the configuration, and is None when the master is missing.
    """
    link = inside.link(name=request.attachment.ifname) if inside else None
    if inside is None or link is None:
        return None
    config = MacvlanConfig(request, [])  # a DEL goes on with a configuration that an ADD would refuse
    if request.command == "CHECK":
        return MacvlanPlan(
            {
                "name": link.name,
                "temporary": "",
                "master": _lower_name(link, host, inside),
                "over": link.lower_index,
                "lower": link.lower_index,
                "inSandbox": config.link_in_container,
                "mode": link.macvlan_mode,
                "mtu": link.mtu,
                "mac": link.mac,
                "macIsDerived": False,
                "bcqueuelen": link.bcqueuelen,
            }
        )
    master = find_master(config, inside if config.link_in_container else host)
    if master is None:
        return None
    return planned_on(config, request, master, "")


def owned(planned: MacvlanPlan, links: Sequence[Link]) -> list[Link]:
    """The plan's links among `links`, even if name, MAC or MTU have changed since: those with the surest sign that any
    link has, since a pod may exchange the names of two links, or give both the MAC of a bond.

    A configured MAC shows a link of another name only if no other attachment has this MAC. Otherwise the ADD may have
    failed for that reason, and the link is the other's.
    """
    made = [link for link in links if link.kind == "macvlan"]
    over = [link for link in made if link.lower_index == planned.lower]
    named = [link for link in made if link.name == planned.name]
    with_mac = [link for link in made if link.mac == planned.mac]
    return (
        [link for link in made if link.name == planned.temporary]
        or [link for link in over if link in named and link in with_mac]
        or [link for link in over if link in with_mac and (planned.macIsDerived or named or _alone_has(planned.mac))]
        or [link for link in with_mac if planned.macIsDerived or link in named]
        or [link for link in over if link in named]
    )


def _alone_has(mac: str) -> bool:
    """Whether at most one attachment on this node, that of the plan, has a macvlan with this MAC."""
    having = [record for _, _, record in Records().all(LINK, mac) if record["link"].get("mac") == mac]
    return len(having) <= 1


def present(planned: MacvlanPlan, inside: Rtnl) -> Link | None:
    """The plan's link in the sandbox, under any name; None if it is not there."""
    return next(iter(owned(planned, inside.links())), None)


def recognises(planned: MacvlanPlan, inside: Rtnl) -> bool:
    """Whether `inside` certainly has the link of the plan, recognised by its temporary name or by its MAC."""
    found = owned(planned, inside.links())
    return any(link.name == planned.temporary or planned.mac in ("", link.mac) for link in found)


def remove(planned: MacvlanPlan, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
    """Remove the plan's link from the sandbox, whatever its name. A missing link is no error.

    Raises Lingers while the link is up elsewhere: the kernel has not yet removed the link with its sandbox, or the pod
    has moved the link into another namespace.
    """
    removed = False
    others = []
    links = inside.links() if inside else []
    own = owned(planned, links)
    for link in links:
        if link in own:
            try:
                inside.delete_link(link.index)  # type: ignore[union-attr]  # not None: it has links
            except KernelError as fault:
                raise KernelRefused(
                    f'the link "{link.name}" cannot be removed: {fault.strerror}; retry', str(fault)
                ) from None
            removed = removed or link.mac == planned.mac
        elif link.name == planned.name:
            others.append(link)
    if not removed and lingers(planned, host):
        raise Lingers(
            f'the link "{planned.name}" ({planned.mac}) on {planned.master} is still up in a network namespace that cannot be'
            " found: end the process that holds that namespace, and repeat the DEL"
        )
    for link in others:
        log.warning(
            f'link "{link.name}" is a {link.kind or "physical"} link that this attachment did not make: left alone'
        )


def lingers(planned: MacvlanPlan, host: Rtnl) -> bool:
    """Whether the link is still up in some namespace, where it answers for its addresses.

    While the link is up, the netdev below it receives frames for the link's MAC, and the kernel shows the MACs that a
    netdev of the host receives. A configured MAC proves nothing, since another attachment may have the same MAC by now.
    """
    return planned.macIsDerived and bytes.fromhex(planned.mac.replace(":", "")) in host.received(planned.lower)


def differences(planned: MacvlanPlan, config: MacvlanConfig, link: Link | None, host: Rtnl, inside: Rtnl) -> list[str]:
    """A text for each difference of the link from plan and configuration. If the configuration has no key `master`, the
    master is compared only with the plan."""
    if link is None:
        return []
    if link.kind != "macvlan":
        return [f'"{link.name}" is a {link.kind or "physical"} link, not a macvlan']
    found = _master(planned, config, link, host, inside)
    found += differs("mode", link.macvlan_mode, planned.mode, config.mode)
    shown, was, configured = (n or None for n in (link.bcqueuelen, planned.bcqueuelen, config.bcqueuelen))
    found += differs("bcqueuelen", shown, was, configured)
    lower = _lower(link, host, inside)
    if lower and link.mtu == lower.mtu < planned.mtu:  # macvlan_device_event, drivers/net/macvlan.c
        found.append(f"master {lower.name} has been given the MTU {lower.mtu}, was {planned.mtu}, and so has the link")
    return found


def _master(planned: MacvlanPlan, config: MacvlanConfig, link: Link, host: Rtnl, inside: Rtnl) -> list[str]:
    is_as_made = link.lower_index == planned.lower and planned.over != planned.lower
    now = planned.master if is_as_made else _lower_name(link, host, inside)
    if link.lower_index != planned.lower:
        return [f"master is {now}, was {planned.master} (index {planned.lower})"]
    if config.link_in_container != planned.inSandbox:
        made, wanted = (
            "in the sandbox" if is_inside else "on the host"
            for is_inside in (planned.inSandbox, config.link_in_container)
        )
        return [f"master is {now} {made}, configured is one {wanted} (linkInContainer)"]
    if not config.master:
        return []
    where, place = (inside, "in the sandbox") if config.link_in_container else (host, "on the host")
    master = where.link(name=config.master)
    if master is None:
        return [f"master is {now}, configured is {config.master}, which does not exist {place}"]
    stands = master.kind in STANDS_FOR_ITS_LOWER
    if link.lower_index != (master.lower_index if stands else master.index) or (
        config.link_in_container and link.lower_netnsid != (master.lower_netnsid if stands else None)
    ):
        return [f"master is {now}, configured is {config.master}"]
    return []


def _lower_name(link: Link, host: Rtnl, inside: Rtnl) -> str:
    """The name of the device below the link; "index N" if the name is not known."""
    lower = _lower(link, host, inside)
    return lower.name if lower else f"index {link.lower_index}"


def _lower(link: Link, host: Rtnl, inside: Rtnl) -> Link | None:
    return (inside if link.lower_netnsid is None else host).link(index=link.lower_index)
