"""macvlan's part of CHECK: it compares the link with its plan and with the configuration of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.plugins.base import differs
from cni.plugins.macvlan.planning import STANDS_FOR_ITS_LOWER, MacvlanPlan

if TYPE_CHECKING:
    from cni.plugins.macvlan.planning import MacvlanConfig
    from cni.shared.kernel.links import Link, Rtnl


def differences(planned: MacvlanPlan, config: MacvlanConfig, link: Link, host: Rtnl, inside: Rtnl) -> list[str]:
    """The differences of the link from the plan and from the configuration. The default `master` is not compared: it may change."""
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


def as_it_is(link: Link, in_sandbox: bool, host: Rtnl, inside: Rtnl) -> MacvlanPlan:
    """The plan that matches the link."""
    return MacvlanPlan(
        {
            "name": link.name,
            "temporary": "",
            "master": _lower_name(link, host, inside),
            "over": link.lower_index,
            "lower": link.lower_index,
            "inSandbox": in_sandbox,
            "mode": link.macvlan_mode,
            "mtu": link.mtu,
            "mac": link.mac,
            "macIsDerived": False,
            "bcqueuelen": link.bcqueuelen,
        }
    )


def _lower_name(link: Link, host: Rtnl, inside: Rtnl) -> str:
    """The device below the link: its name, if that is known."""
    lower = _lower(link, host, inside)
    return lower.name if lower else f"index {link.lower_index}"


def _lower(link: Link, host: Rtnl, inside: Rtnl) -> Link | None:
    return (inside if link.lower_netnsid is None else host).link(index=link.lower_index)
