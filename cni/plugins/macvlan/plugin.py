"""macvlan: it makes a link with its own MAC on a master, inside the sandbox.

Sources: plugins/main/macvlan of containernetworking/plugins for keys and results; drivers/net/macvlan.c for the
kernel's refusals.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from cni.plugins.base import DeviceClaim, keep_log
from cni.plugins.macvlan import planning
from cni.plugins.macvlan.planning import STANDS_FOR_ITS_LOWER, MacvlanConfig, MacvlanFacts, MacvlanPlan
from cni.shared import policy
from cni.shared.config import fill
from cni.shared.kernel import node
from cni.shared.kernel.netlink import KernelError
from cni.shared.spec.errors import KernelRefused, LimitedConnectivity, Lingers, NotAvailable

if TYPE_CHECKING:
    from cni.plugins.base import Named
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.netns import Namespace
    from cni.shared.log import Log
    from cni.shared.records import Records
    from cni.shared.spec.request import Request

NAME = "macvlan"
SHARES_NETDEV = True
ONLY_OURS = ""
KEYS = planning.KEYS
direct_log = keep_log
read = planning.read
plan = planning.plan
load = MacvlanPlan


def claim(config: MacvlanConfig, request: Request, host: Rtnl, records: Records, named: Named) -> DeviceClaim:
    """Claim no device, since a master is shared."""
    return DeviceClaim()


def survey(
    config: MacvlanConfig, request: Request, host: Rtnl, inside: Rtnl, claimed: DeviceClaim, log: Log
) -> MacvlanFacts:
    """Read the master, on the host or in the sandbox, and the link with the ifname in the sandbox."""
    where = inside if config.link_in_container else host
    master = _find_master(config, where)
    reason = ""
    if master and config.ignored_mac:
        log.warning(
            f"mac {config.ignored_mac} is not set: in mode passthru the link has the MAC {master.mac} of its master; remove the"
            " MAC, or use mode bridge"
        )
    if master:
        if not master.up:
            log.warning(_down(master))
        device = _of_host(master, config.link_in_container, host, inside)
        if device:
            _permit(device)
            reason = _refused(device, config.mode, host, log)
    names = [] if master else [link.name for link in where.links()]
    return MacvlanFacts(master, names, inside.link(name=request.attachment.ifname), node.boot_id(), reason)


def _refused(device: Link, mode: str, host: Rtnl, log: Log | None) -> str:
    """Why no network may have a link of `mode` on the netdev `device`, or "". The log names the addresses that the node loses.

    In mode passthru the kernel hands all frames of the netdev to the link (macvlan_handle_frame, drivers/net/macvlan.c), and
    gives the netdev each MAC that the link gets.
    """
    if mode != "passthru" and device.lower_netnsid is None:  # it is one end of no pair
        return ""
    from cni.plugins import uplink  # only an ADD needs it

    if mode != "passthru":
        return uplink.others(device, host)
    from cni.shared.kernel import addresses  # only mode passthru needs it

    reason = uplink.needed(device, host.links(), host)
    held = [a.text for a in addresses.list_of(host, device.index) if a.scope != addresses.LINK_SCOPE]
    if held and log and not reason:
        log.warning(
            f'mode passthru: the node cannot use its addresses {", ".join(held)} on "{device.name}" until the attachment ends'
        )
    return reason


def _of_host(master: Link, in_sandbox: bool, host: Rtnl, inside: Rtnl) -> Link | None:
    """The netdev of the host that carries a macvlan of `master`; None when that netdev is in the sandbox, or elsewhere."""
    stands = master.kind in STANDS_FOR_ITS_LOWER
    if not in_sandbox:
        return host.link(index=master.lower_index) if stands and master.lower_netnsid is None else master
    if not stands or master.lower_netnsid is None:
        return None
    home = host.namespace()
    try:
        return host.link(index=master.lower_index) if inside.netns_id(home) == master.lower_netnsid else None
    finally:
        os.close(home)


def _permit(device: Link) -> None:
    """Raise InvalidConfig when the node's policy does not allow the device on which the link would be made."""
    policy.current().permit("masters", f'master "{device.name}"', (device.name,))


def _find_master(config: MacvlanConfig, where: Rtnl) -> Link | None:
    if config.master:
        return where.link(name=config.master)
    if config.device_id and not config.link_in_container:  # the device is one of the host
        from cni.shared.kernel import rdma_sysfs  # most networks name their master

        names = rdma_sysfs.netdevs_of_device(config.device_id)
        return where.link(name=names[0]) if names else None
    from cni.shared.kernel import routes  # most networks name their master

    index = routes.default_route_link(where)
    return where.link(index=index) if index else None


def adopt(request: Request, host: Rtnl, inside: Rtnl | None) -> MacvlanPlan | None:
    """The plan of a link that Go's plugin made: a macvlan of that name on the master that is configured now.

    For CHECK it describes the link as it is: without a record only the configuration is compared.
    """
    link = inside.link(name=request.attachment.ifname) if inside else None
    if inside is None or link is None:
        return None
    config = MacvlanConfig()
    fill(config, KEYS, request.config, [])  # a DEL goes on with a configuration that an ADD would refuse
    if request.command == "CHECK":
        from cni.plugins.macvlan import check  # only an attachment without a record needs it

        return check.as_it_is(link, config.link_in_container, host, inside)
    master = _find_master(config, inside if config.link_in_container else host)
    if master is None:
        return None
    return planning.planned_on(config, request, master, "")


def apply(planned: MacvlanPlan, host: Rtnl, inside: Rtnl, sandbox: Namespace) -> Link:
    """Make the link in the sandbox, with its name and down; KernelRefused says why the kernel did not make it.

    `planned.lower` is set to the kernel's value. If this differs from the plan, the policy is checked again.
    """
    maker = inside if planned.inSandbox else host
    try:
        maker.add_macvlan(
            planned.temporary,
            planned.over,
            planned.mode,
            mtu=planned.mtu,
            mac=planned.mac,
            bcqueuelen=planned.bcqueuelen,
            netns_fd=sandbox.fd,
        )
    except KernelError as fault:
        raise KernelRefused(_refused_making(planned, fault), str(fault)) from None
    link = inside.link(name=planned.temporary)
    if link is None:
        raise KernelRefused(
            f"the macvlan on {planned.master} vanished as soon as it was made: was the sandbox or the master removed?"
        )
    if link.lower_index != planned.lower:  # the master was replaced meanwhile, or is of a kind that is unknown here
        planned.lower = link.lower_index
        device = _of_host(link, True, host, inside)
        if device:
            _permit(device)
    try:
        inside.change_link(link.index, name=planned.name)
    except KernelError as fault:
        raise KernelRefused(f'the link cannot be named "{planned.name}": {fault.strerror}', str(fault)) from None
    link.name = planned.name
    return link


def _refused_making(planned: MacvlanPlan, fault: KernelError) -> str:
    """Why the kernel did not make the link (macvlan_common_newlink)."""
    master = planned.master
    if fault.errno == errno.EBUSY:
        return f'master "{master}" belongs to a bridge, bond or other upper device: use another netdev, or remove it from that device'
    if fault.errno == errno.EINVAL and planned.mode == "passthru":
        return f'mode passthru needs master "{master}" for itself, and it has another macvlan: use mode bridge, or another master'
    if fault.errno == errno.EINVAL:
        return f'master "{master}" cannot carry this macvlan: has it a macvlan of mode passthru, or is it no Ethernet link?'
    if fault.errno == errno.EADDRINUSE:
        return _mac_in_use(planned)
    if fault.errno == errno.EEXIST:  # before Linux 6.14 also when the host has it
        return f'a link has the temporary name "{planned.temporary}" already, in the sandbox or on the host: remove it'
    if fault.errno in (errno.ENODEV, errno.ENXIO):
        return f'master "{master}" vanished meanwhile: retry when it is back'
    if fault.errno == errno.EADDRNOTAVAIL:
        return f"the MAC address {planned.mac} is not valid for a link: give a unicast address in the key `mac`"
    if fault.errno == errno.EPERM:
        return "the kernel does not permit making links here: run as root, with CAP_NET_ADMIN on the host's and the sandbox's namespace"
    return f'the kernel refused a macvlan on master "{master}": {fault.strerror}'


def refused_up(planned: MacvlanPlan, fault: KernelError) -> str:
    """Why the kernel did not set the link up (macvlan_open)."""
    if fault.errno == errno.EADDRINUSE:
        return _mac_in_use(planned)
    return f'the link "{planned.name}" cannot be set up: {fault.strerror}'


def _mac_in_use(planned: MacvlanPlan) -> str:
    return f'the MAC address {planned.mac} is in use on master "{planned.master}" already: give each attachment its own (runtimeConfig.mac, CNI_ARGS MAC, key `mac`)'


def owns(planned: MacvlanPlan, link: Link) -> bool:
    """Whether this plan made `link`, even if its name, MAC or MTU was changed since.

    A MAC alone identifies the link only if it is derived: another attachment may have the same configured MAC. A killed
    ADD may have recorded another `lower` than the link has; then name and MAC identify the link.
    """
    if link.kind != "macvlan":
        return False
    named, has_mac = link.name == planned.name, link.mac == planned.mac
    if link.name == planned.temporary or (has_mac and (named or planned.macIsDerived)):
        return True
    return named and link.lower_index == planned.lower


def present(planned: MacvlanPlan, inside: Rtnl) -> Link | None:
    """The link in the sandbox, under any name."""
    return next((link for link in inside.links() if owns(planned, link)), None)


def recognises(planned: MacvlanPlan, inside: Rtnl) -> bool:
    """Whether a link of `inside` is certainly the plan's, by its temporary name or by its MAC."""
    return any(
        owns(planned, link) and (link.name == planned.temporary or planned.mac in ("", link.mac))
        for link in inside.links()
    )


def remove(planned: MacvlanPlan, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
    """Remove the plan's link from the sandbox, under any name; a missing link is no error.

    Lingers while the link is up elsewhere: the kernel has not yet removed it with its sandbox, or the pod has moved it
    into another namespace.
    """
    removed = False
    others = []
    for link in inside.links() if inside else ():
        if owns(planned, link):
            try:
                inside.delete_link(link.index)  # type: ignore[union-attr]  # it has links
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
    """Whether the link is up in some namespace, and answers for its addresses, as its master shows.

    With a master in the sandbox, the link may also be on a netdev of the host; otherwise no netdev of the host has its MAC.
    A MAC that is not derived proves nothing: another attachment may have it by now.
    """
    return planned.macIsDerived and host.receives(planned.lower, planned.mac)


def without_link(planned: MacvlanPlan) -> None:
    """A macvlan always is a link."""


def differences(planned: MacvlanPlan, config: MacvlanConfig, link: Link | None, host: Rtnl, inside: Rtnl) -> list[str]:
    """The differences of the link from the plan and from the configuration."""
    from cni.plugins.macvlan import check  # only CHECK needs it

    return check.differences(planned, config, link, host, inside) if link else []


def carrier(planned: MacvlanPlan) -> tuple[str, bool]:
    """The master."""
    return planned.master, planned.inSandbox


def _down(master: Link) -> str:
    return f'master "{master.name}" is down: ip link set {master.name} up'


def status(config: MacvlanConfig, host: Rtnl, log: Log) -> Link | None:
    """The master; NotAvailable without one, LimitedConnectivity when it is down or has no carrier."""
    if config.link_in_container:
        return None  # each sandbox has its own
    master = _find_master(config, host)
    if master is None and not config.master:
        raise NotAvailable("there is no default route to take the master from: name the netdev in the key `master`")
    if master is None:
        raise NotAvailable(f'master "{config.master}" does not exist: bring it back, or correct the key `master`')
    device = _of_host(master, False, host, host)
    if device:
        _permit(device)
        reason = _refused(device, config.mode, host, None)
        if reason:
            raise NotAvailable(planning.refusal(config.mode, master, reason))
    if not master.up:
        raise LimitedConnectivity(_down(master))
    if not master.carrier:
        raise LimitedConnectivity(f'master "{master.name}" has no carrier: check its cable and switch port')
    return master
