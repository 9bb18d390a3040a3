"""The plugin macvlan: it makes a link in the sandbox, with a MAC of its own, on top of a netdev (the master).
macvlan_made.py has the functions for a link that exists.

Sources: plugins/main/macvlan of containernetworking/plugins for keys and results; drivers/net/macvlan.c for errors.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from cni.link.plugins.common import Facts, LinkConfig, RecordedPlan, keep_log
from cni.shared import policy
from cni.shared.config import Fault, boolean, declare, hardware_address, integer, netdev, one_of, optional, string, take
from cni.shared.kernel import addresses, node, sandbox
from cni.shared.kernel.links import ARPHRD_ETHER, ARPHRD_INFINIBAND, LEAST_MTU, Link, Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.kernel.netns import Namespace
from cni.shared.log import Log
from cni.shared.records import Records, digest
from cni.shared.spec.errors import InvalidConfig, KernelRefused, LimitedConnectivity, NotAvailable
from cni.shared.spec.request import Request

if TYPE_CHECKING:
    from cni.link.plugins.base import Named

NAME = "macvlan"
SHARES_NETDEV = True
ONLY_OURS = ""
MODES = ("bridge", "private", "vepa", "passthru")
STANDS_FOR_ITS_LOWER = ("macvlan", "macvtap")  # the kernel puts the new link on the netdev below such a master
TAKE_FRAMES = ("bridge", "bond", "team", "openvswitch")  # masters with the rx_handler that a macvlan needs for itself

MOST_QUEUED = 1 << 16
"""The largest `bcqueuelen` of a new link, in packets. The kernel has no limit. All macvlans of a master share a queue."""


class MacvlanConfig(LinkConfig):
    """The checked values of KEYS. `mac` comes from runtimeConfig, else from CNI_ARGS, else from the configuration."""

    master: str = declare(optional(netdev), "").means(
        "netdev below the link; default: that of `deviceID`, else of the default route"
    )
    device_id: str = declare(optional(string), "", "deviceID").means(
        "device of a resource, as Multus passes it: its netdev is the default `master`. runtimeConfig.deviceID comes first"
    )
    mode: str = declare(optional(one_of(*MODES), "bridge"), "bridge").means("how links of the same master communicate")
    mtu: int = declare(integer(0, 65535), 0).means("MTU of the link in bytes, at most the master's; 0: the master's")
    mac: str = declare(optional(hardware_address), "").means(
        "MAC address; default: one derived from the attachment. In mode passthru the link has the master's"
    )
    link_in_container: bool = declare(boolean, False, "linkInContainer").means("look for the master in the sandbox")
    bcqueuelen: int = declare(integer(0, 2**32 - 1), 0).means(
        f"broadcast queue of the master, in packets, {MOST_QUEUED} at most; 0: the kernel's default"
    )
    ignored_mac = ""


KEYS = MacvlanConfig.KEYS


class MacvlanPlan(RecordedPlan):
    """The link to make. `temporary` is the name under which it is made.

    `over` is the index of the configured master, `lower` that of the device on which the kernel puts the link. If the
    master is a macvlan or macvtap, `lower` is another device, perhaps in another namespace. `apply` sets `lower` to the
    index that the new link shows, so that the record has the kernel's choice.
    """

    temporary: str
    master: str
    over: int
    lower: int
    inSandbox: bool
    mode: str
    mac: str
    macIsDerived: bool
    bcqueuelen: int
    pci = ""  # a macvlan has no PCI function of its own


direct_log = keep_log


def read(request: Request, faults: list[Fault]) -> MacvlanConfig:
    """Return the checked configuration, and append all its faults to `faults`."""
    config = MacvlanConfig(request, faults)
    if request.command == "ADD" and config.bcqueuelen > MOST_QUEUED:  # an earlier version made longer queues
        faults.append(Fault("bcqueuelen", config.bcqueuelen, f"want {MOST_QUEUED} at most"))
    given = ("CNI_ARGS MAC", request.args.get("MAC")), ("runtimeConfig.mac", request.of_runtime("mac"))
    take(config, "mac", hardware_address, faults, given)
    take(config, "device_id", string, faults, (("runtimeConfig.deviceID", request.of_runtime("deviceID")),))
    if config.mode == "passthru":
        config.ignored_mac, config.mac = config.mac, ""  # the kernel gives the master's MAC
    return config


class MacvlanFacts(Facts):
    """The result of `survey`: the master or, if it is missing, the names of all netdevs. `reason` says why the policy
    or the node's own traffic forbids the link on the master; it is "" if the link is allowed."""

    def __init__(self, master: Link | None, names: list[str], boot_id: str, reason: str = "") -> None:
        self.master = master
        self.names = names
        self.boot_id = boot_id
        self.reason = reason


def survey(
    config: MacvlanConfig, request: Request, host: Rtnl, inside: Rtnl, records: Records, named: Named
) -> MacvlanFacts:
    """Read the master, on the host or in the sandbox. Claim no device, since many attachments share a master."""
    log = records.log
    where = inside if config.link_in_container else host
    master = find_master(config, where)
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
    return MacvlanFacts(master, names, node.boot_id(), reason)


def _refused(device: Link, mode: str, host: Rtnl, log: Log | None) -> str:
    """The reason why no network may have a link of `mode` on the netdev `device`; "" if networks may.

    In mode passthru the kernel hands all frames of the netdev to the link (macvlan_handle_frame,
    drivers/net/macvlan.c), and gives the netdev each MAC that the link gets. So the node cannot use its own addresses
    on the netdev, and `log` gets a warning.
    """
    if mode != "passthru":  # on the host's end of a pod's veth, the link could answer for the pod's gateway
        return policy.unless_listed((device.name, device.parent_device), sandbox.end_of_pair(device, host))
    from cni.link.plugins import uplink  # most masters keep their own frames

    reason = uplink.needed(device, host.links(), host)
    held = [a.text for a in addresses.list_of(host, device.index) if a.scope != addresses.LINK_SCOPE]
    if held and log and not reason:
        log.warning(
            f'mode passthru: the node cannot use its addresses {", ".join(held)} on "{device.name}" until the attachment ends'
        )
    return reason


def _refusal(mode: str, master: Link, reason: str) -> str:
    """The error message that refuses `master` for the `reason` from `_refused`."""
    what, instead = f'master "{master.name}" is refused', "use another master"
    if mode == "passthru":
        what, instead = f'mode passthru is refused on master "{master.name}"', "use mode bridge, another master"
    return f"{what}: {reason}: {instead}, or {policy.current().way_out()}"


def _of_host(master: Link, in_sandbox: bool, host: Rtnl, inside: Rtnl) -> Link | None:
    """The host's netdev on which the kernel puts a macvlan of `master`; None if the netdev is in another namespace."""
    stands = master.kind in STANDS_FOR_ITS_LOWER
    if not in_sandbox:
        return host.link(index=master.lower_index) if stands and master.lower_netnsid is None else master
    if not stands or master.lower_netnsid is None:
        return None
    return host.link(index=master.lower_index) if inside.id_of(host) == master.lower_netnsid else None


def _permit(device: Link) -> None:
    """Raise InvalidConfig when the node's policy does not allow the device on which the link would be made."""
    policy.current().permit("masters", f'master "{device.name}"', (device.name,))


def find_master(config: MacvlanConfig, where: Rtnl) -> Link | None:
    if config.master:
        return where.link(name=config.master)
    from cni.shared.kernel import rdma_sysfs, routes  # most networks name their master

    if config.device_id and not config.link_in_container:  # the device is one of the host
        names = rdma_sysfs.netdevs_of_device(config.device_id)
        return where.link(name=names[0]) if names else None
    route = routes.default_route(where)
    return where.link(index=route.index) if route else None


def plan(config: MacvlanConfig, request: Request, facts: MacvlanFacts) -> MacvlanPlan:
    """Plan the link on the master in `facts`. Raises CniError, with the reason, when the link cannot be made."""
    master = facts.master
    where = "in the sandbox" if config.link_in_container else "on the host"
    if master is None:
        if not config.master and config.device_id and not config.link_in_container:
            raise InvalidConfig(
                f'deviceID "{config.device_id[:60]}" is no device with a netdev on the host: name the netdev in the key `master`'
            )
        if not config.master:
            raise InvalidConfig(
                f"no `master` is given and there is no default route {where}: name the netdev in the key `master`"
            )
        raise InvalidConfig(
            f'master "{config.master}" does not exist {where}: name an existing netdev',
            f"netdevs {where}: {' '.join(facts.names)}",
        )
    _refuse_unfit(config, master, facts.reason)
    return planned_on(config, request, master, _derived_mac(request, facts.boot_id))


def _refuse_unfit(config: MacvlanConfig, master: Link, reason: str) -> None:
    """Raise InvalidConfig, with the reason, when `master` cannot carry the configured link (pure). `reason` is that of
    `_refused`."""
    if master.arphrd == ARPHRD_INFINIBAND:
        raise InvalidConfig(
            f'master "{master.name}" is an InfiniBand link, and macvlan needs Ethernet: use the plugin ipoib or host-device for it'
        )
    if master.kind in ("ipvlan", "ipvtap"):  # IFF_NO_RX_HANDLER (drivers/net/ipvlan/ipvlan_main.c)
        raise InvalidConfig(
            f'master "{master.name}" is an {master.kind}, and the kernel allows no macvlan on it, or on the netdev below it: name a'
            " netdev without ipvlans"
        )
    if master.arphrd != ARPHRD_ETHER:
        raise InvalidConfig(
            f'master "{master.name}" is not an Ethernet link (ARPHRD {master.arphrd}), and macvlan needs one: name another netdev'
        )
    if reason:
        raise InvalidConfig(_refusal(config.mode, master, reason))
    if config.mtu > master.mtu:
        raise InvalidConfig(
            f'mtu {config.mtu} is above {master.mtu}, the MTU of master "{master.name}": lower the key `mtu`, or raise the'
            f" master's (ip link set {master.name} mtu {config.mtu})"
        )
    least = max(LEAST_MTU, master.min_mtu)  # a VLAN names 0, and macvlan_common_newlink gives a macvlan ETH_MIN_MTU
    if 0 < config.mtu < least:
        raise InvalidConfig(f"mtu {config.mtu} is below {least}, the minimum of a macvlan")


def planned_on(config: MacvlanConfig, request: Request, master: Link, derived: str) -> MacvlanPlan:
    """The plan of a macvlan over `master`. The MAC is `derived` unless a MAC is configured."""
    passthru = config.mode == "passthru"
    temporary = "mv" + digest(request.attachment, "temporary", 6).hex()  # by this name a later call recognises the link
    return MacvlanPlan(
        {
            "name": request.attachment.ifname,
            "temporary": temporary,
            "master": master.name,
            "over": master.index,
            "lower": master.lower_index if master.kind in STANDS_FOR_ITS_LOWER else master.index,
            "inSandbox": config.link_in_container,
            "mode": config.mode,
            "mtu": config.mtu or master.mtu,
            "mtuIsAsked": config.mtu > 0,
            "mac": config.mac or ("" if passthru else derived),
            "macIsDerived": not (passthru or config.mac) and derived != "",
            "bcqueuelen": config.bcqueuelen,
        }
    )


def _derived_mac(request: Request, boot_id: str) -> str:
    """A locally administered unicast MAC. It differs between attachments on any nodes, but not between retried ADDs."""
    octets = bytearray(digest(request.attachment, "mac" + boot_id, 6))
    octets[0] = octets[0] & 0xFC | 0x02
    return octets.hex(":")


def apply(planned: MacvlanPlan, host: Rtnl, inside: Rtnl, sandbox: Namespace) -> Link:
    """Make the link in the sandbox and name it, but leave it down. Raises KernelRefused with the kernel's reason.

    Sets `planned.lower` to the index of the device that the kernel has chosen below the link. Raises InvalidConfig if
    this device is not the planned one, and the policy does not allow it.
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
    if link.lower_index != planned.lower:  # the master was replaced meanwhile, or has a kind that is unknown here
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
    """The error message for `fault`, the kernel's refusal to make the link (macvlan_common_newlink)."""
    master = f'master "{planned.master}"'
    invalid = f"{master} cannot carry this macvlan: has it a macvlan of mode passthru, or is it no Ethernet link?"
    if planned.mode == "passthru":
        invalid = (
            f"mode passthru needs {master} for itself, and it has another macvlan: use mode bridge, or another master"
        )
    return {
        errno.EBUSY: _belongs(planned.master),
        errno.EINVAL: invalid,
        errno.EADDRINUSE: _mac_in_use(planned),
        # before Linux 6.14 also when a link of the host has the name
        errno.EEXIST: f'a link has the temporary name "{planned.temporary}" already, in the sandbox or on the host: remove it',
        errno.ENODEV: f"{master} vanished meanwhile: retry when it is back",
        errno.ENXIO: f"{master} vanished meanwhile: retry when it is back",
        errno.EADDRNOTAVAIL: f"the MAC address {planned.mac} is not valid for a link: give a unicast address in the key `mac`",
        errno.EPERM: "the kernel does not permit making links here: run as root, with CAP_NET_ADMIN on the host's and the sandbox's namespace",
    }.get(fault.errno or 0, f"the kernel refused a macvlan on {master}: {fault.strerror}")


def _belongs(master: str) -> str:
    return f'master "{master}" belongs to a bridge, bond or other upper device: use another netdev, or remove it from that device'


def refused_up(planned: MacvlanPlan, fault: KernelError) -> str:
    """The error message for `fault`, the kernel's refusal to set the link up (macvlan_open)."""
    if fault.errno == errno.EADDRINUSE:
        return _mac_in_use(planned)
    return f'the link "{planned.name}" cannot be set up: {fault.strerror}'


def _mac_in_use(planned: MacvlanPlan) -> str:
    return f'the MAC address {planned.mac} is in use on master "{planned.master}" already: give each attachment its own (runtimeConfig.mac, CNI_ARGS MAC, key `mac`)'


def without_link(planned: MacvlanPlan) -> None:
    """Return None, since a macvlan always has a link."""


def carrier(planned: MacvlanPlan) -> tuple[str, bool]:
    """The name of the master, and whether the master is in the sandbox."""
    return planned.master, planned.inSandbox


def status(config: MacvlanConfig, host: Rtnl, log: Log) -> Link | None:
    """The master; None if it is in the sandbox. Raises NotAvailable or LimitedConnectivity when no ADD can use it."""
    if config.link_in_container:
        return None  # each sandbox has its own master
    master = find_master(config, host)
    if master is None and not config.master:
        raise NotAvailable("there is no default route to take the master from: name the netdev in the key `master`")
    if master is None:
        raise NotAvailable(f'master "{config.master}" does not exist: bring it back, or correct the key `master`')
    device = _of_host(master, False, host, host)
    if device:
        _permit(device)
        reason = _refused(device, config.mode, host, None)
        if reason:
            raise NotAvailable(_refusal(config.mode, master, reason))
        upper = host.link(index=device.master_index) if device.master_index else None
        if upper and upper.kind in TAKE_FRAMES:
            raise NotAvailable(_belongs(device.name))
    try:
        _refuse_unfit(config, master, "")
    except InvalidConfig as fault:
        raise NotAvailable(fault.msg, fault.details) from None
    if not master.up:
        raise LimitedConnectivity(_down(master))
    if not master.carrier:
        raise LimitedConnectivity(f'master "{master.name}" has no carrier: check its cable and switch port')
    return master


def _down(master: Link) -> str:
    return f'master "{master.name}" is down: ip link set {master.name} up'
