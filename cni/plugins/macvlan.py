"""macvlan: a link of its own MAC on top of a master, made inside the sandbox.

    read         the configuration, with all its faults                           pure
    survey       the master, and what has the ifname in the sandbox
    plan         configuration + survey -> the link to make, or why not           pure
    apply        the plan -> the link in the sandbox, under its name, still down
    remove       the link, under either of its names, when the plan made it
    differences  the link against the plan                                        pure

Sources: plugins/main/macvlan of containernetworking/plugins for keys and results; drivers/net/macvlan.c for what the
kernel refuses, and why.
"""

from __future__ import annotations

from cni.attachment import digest
from cni.config import (
    Fault,
    Key,
    boolean,
    fill,
    hardware_address,
    integer,
    ipam_block,
    mapping,
    netdev,
    one_of,
    optional,
)
from cni.kernel import node
from cni.kernel.netlink import KernelError
from cni.spec.errors import (
    InvalidConfig,
    InvalidEnvironment,
    KernelRefused,
    LimitedConnectivity,
    Lingers,
    NotAvailable,
)
from cni.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.attachment import Book
    from cni.kernel.links import Link, Rtnl
    from cni.kernel.netns import Namespace
    from cni.log import Log
    from cni.spec.request import Request
    from cni.spec.result import IPConfig

NAME = "macvlan"
MODES = ("bridge", "private", "vepa", "passthru")
ARPHRD_ETHER = 1
ARPHRD_INFINIBAND = 32
IPV6_LEAST_MTU = 1280  # RFC 8200, section 5

KEYS = (
    Key("master", optional(netdev), "", "netdev under the link; default: the link of the default route"),
    Key("mode", optional(one_of(*MODES), "bridge"), "bridge", "how links of one master reach each other"),
    Key("mtu", integer(0, 65535), 0, "MTU of the link in bytes, at most the master's; 0: the master's"),
    Key("mac", optional(hardware_address), "", "MAC address; default: one derived from the attachment"),
    Key("linkInContainer", boolean, False, "look for the master in the sandbox", "link_in_container"),
    Key("bcqueuelen", integer(0, 2**32 - 1), 0, "broadcast queue of the master, in packets; 0: the kernel's default"),
    Key("dad", boolean, False, "wait for duplicate address detection of IPv6 addresses"),
    Key("ipam", ipam_block, {}, "the IPAM plugin's configuration; absent or {}: no addresses"),
    Key("dns", mapping, {}, "DNS settings for the result; default: the IPAM plugin's"),
)


class Config:
    """The keys of KEYS, checked; `mac` is the one that counts: runtimeConfig, then CNI_ARGS, then the configuration."""

    __slots__ = tuple(k.attribute for k in KEYS)

    master: str
    mode: str
    mtu: int
    mac: str
    link_in_container: bool
    bcqueuelen: int
    dad: bool
    ipam: dict[str, Any]
    dns: dict[str, Any]


class Facts:
    """What `survey` found: the master, the names of the netdevs beside it, a link that has the ifname already."""

    __slots__ = ("boot_id", "master", "names", "taken")

    def __init__(self, master: Link | None, names: list[str], taken: Link | None, boot_id: str) -> None:
        self.master = master
        self.names = names
        self.taken = taken
        self.boot_id = boot_id


class Plan:
    """The link to make, `name` its final name and `temporary` the one until then.

    `over` is the index of the master that is asked for, `lower` that of the device which the kernel puts the link on:
    another one when the master is a macvlan itself, and then perhaps one of another namespace.
    """

    __slots__ = (
        "bcqueuelen",
        "in_sandbox",
        "lower",
        "mac",
        "mac_is_derived",
        "master",
        "mode",
        "mtu",
        "name",
        "over",
        "temporary",
    )

    def __init__(self, document: dict[str, Any]) -> None:
        self.name: str = document["name"]
        self.temporary: str = document["temporary"]
        self.master: str = document["master"]
        self.over: int = document["over"]
        self.lower: int = document["lower"]
        self.in_sandbox: bool = document["inSandbox"]
        self.mode: str = document["mode"]
        self.mtu: int = document["mtu"]
        self.mac: str = document["mac"]
        self.mac_is_derived: bool = document["macIsDerived"]
        self.bcqueuelen: int = document["bcqueuelen"]

    def document(self) -> dict[str, Any]:
        """The plan as the record keeps it."""
        return {
            "name": self.name,
            "temporary": self.temporary,
            "master": self.master,
            "over": self.over,
            "lower": self.lower,
            "inSandbox": self.in_sandbox,
            "mode": self.mode,
            "mtu": self.mtu,
            "mac": self.mac,
            "macIsDerived": self.mac_is_derived,
            "bcqueuelen": self.bcqueuelen,
        }


def read(request: Request, faults: list[Fault]) -> Config:
    """The checked configuration; all that is wrong with it goes to `faults`."""
    config = Config()
    fill(config, KEYS, request.config, faults)
    runtime = member(request.config, "runtimeConfig")
    for key, value in (
        ("CNI_ARGS MAC", request.args.get("MAC")),
        ("runtimeConfig.mac", member(runtime, "mac") if isinstance(runtime, dict) else None),
    ):
        if value:
            try:
                config.mac = hardware_address(value)
            except ValueError as fault:
                faults.append(Fault(key, value, str(fault)))
    return config


def survey(config: Config, request: Request, host: Rtnl, box: Rtnl, book: Book) -> Facts:
    """Read the master, where it is looked for, and what has the ifname in the sandbox."""
    where = box if config.link_in_container else host
    master = _find_master(config, where)
    if master and not config.link_in_container:
        _permit(master, host)
    names = [] if master else [link.name for link in where.links()]
    return Facts(master, names, box.link(name=request.attachment.ifname), node.boot_id())


def _permit(master: Link, host: Rtnl) -> None:
    """InvalidConfig when the node does not allow networks the device that the link would be on."""
    lower = master.kind == "macvlan" and master.lower_netnsid is None and host.link(index=master.lower_index)
    name = (lower or master).name
    from cni import policy  # a DEL asks nobody

    policy.current().permit("masters", f'master "{name}"', (name,))


def _find_master(config: Config, where: Rtnl) -> Link | None:
    if config.master:
        return where.link(name=config.master)
    from cni.kernel import routes  # most networks name their master

    index = routes.default_route_link(where)
    return where.link(index=index) if index else None


def load(document: dict[str, Any]) -> Plan:
    return Plan(document)


def adopt(request: Request, host: Rtnl, box: Rtnl | None) -> Plan | None:
    """The plan of a link that Go's plugin made: a macvlan of that name on the master that is configured now."""
    if box is None or box.link(name=request.attachment.ifname) is None:
        return None
    config = Config()
    fill(config, KEYS, request.config, [])  # a DEL goes on with a configuration that an ADD would refuse
    master = _find_master(config, box if config.link_in_container else host)
    if master is None:
        return None
    return _plan(config, request, master, "")


def plan(config: Config, request: Request, facts: Facts) -> Plan:
    """The link to make on the master in `facts`, or the error that says why it cannot be made."""
    master = facts.master
    where = "in the sandbox" if config.link_in_container else "on the host"
    if master is None:
        if not config.master:
            raise InvalidConfig(
                f"no `master` is given and there is no default route {where}: name the netdev in the key `master`"
            )
        raise InvalidConfig(
            f'master "{config.master}" does not exist {where}: name an existing netdev',
            f"netdevs {where}: {' '.join(facts.names)}",
        )
    if master.arphrd == ARPHRD_INFINIBAND:
        raise InvalidConfig(
            f'master "{master.name}" is an InfiniBand link, and macvlan needs Ethernet: use the plugin ipoib or host-device for it'
        )
    if master.kind == "ipvlan":  # IFF_NO_RX_HANDLER (drivers/net/ipvlan/ipvlan_main.c)
        raise InvalidConfig(
            f'master "{master.name}" is an ipvlan, and the kernel puts no macvlan on one, nor on the netdev below it: name a'
            " netdev without ipvlans"
        )
    if master.arphrd != ARPHRD_ETHER:
        raise InvalidConfig(
            f'master "{master.name}" is not an Ethernet link (ARPHRD {master.arphrd}), and macvlan needs one: name another netdev'
        )
    if config.mtu > master.mtu:
        raise InvalidConfig(
            f'mtu {config.mtu} is above {master.mtu}, the MTU of master "{master.name}": lower the key `mtu`, or raise the'
            f" master's (ip link set {master.name} mtu {config.mtu})"
        )
    if 0 < config.mtu < master.min_mtu:
        raise InvalidConfig(f"mtu {config.mtu} is below {master.min_mtu}, the least that a link can have")
    if facts.taken is not None:
        kind = facts.taken.kind or "physical"
        raise InvalidEnvironment(
            f'CNI_IFNAME "{request.attachment.ifname}" exists already in the sandbox {request.netns} (a {kind} link that this'
            " attachment did not make): choose another ifname, or remove that link"
        )
    return _plan(config, request, master, _derived_mac(request, facts.boot_id))


def _plan(config: Config, request: Request, master: Link, derived: str) -> Plan:
    passthru = config.mode == "passthru"  # there the kernel gives the master's, drivers/net/macvlan.c
    return Plan(
        {
            "name": request.attachment.ifname,
            "temporary": temporary_name(request),
            "master": master.name,
            "over": master.index,
            "lower": master.lower_index if master.kind == "macvlan" else master.index,
            "inSandbox": config.link_in_container,
            "mode": config.mode,
            "mtu": config.mtu or master.mtu,
            "mac": "" if passthru else config.mac or derived,
            "macIsDerived": not (passthru or config.mac) and derived != "",
            "bcqueuelen": config.bcqueuelen,
        }
    )


def temporary_name(request: Request) -> str:
    """The name under which the link is made: the attachment's alone, so that a later call knows it for its own."""
    return "mv" + digest(request.attachment, "temporary", 6).hex()


def _derived_mac(request: Request, boot_id: str) -> str:
    """A locally administered unicast MAC that a retried ADD gets again, and no other attachment of any node."""
    octets = bytearray(digest(request.attachment, "mac" + boot_id, 6))
    octets[0] = octets[0] & 0xFC | 0x02
    return ":".join(f"{o:02x}" for o in octets)


def apply(planned: Plan, host: Rtnl, box: Rtnl, sandbox: Namespace) -> Link:
    """Make the link in the sandbox, under its name and still down; KernelRefused says in words why it cannot be."""
    maker = box if planned.in_sandbox else host
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
        from cni.plugins import macvlan_refusals

        raise KernelRefused(macvlan_refusals.making(planned, fault), str(fault)) from None
    link = box.link(name=planned.temporary)
    if link is None:
        raise KernelRefused(
            f"the macvlan on {planned.master} vanished as soon as it was made: was the sandbox or the master removed?"
        )
    try:
        box.change_link(link.index, name=planned.name)
    except KernelError as fault:
        raise KernelRefused(f'the link cannot be named "{planned.name}": {fault.strerror}', str(fault)) from None
    link.name = planned.name
    return link


def refused_up(planned: Plan, fault: KernelError) -> str:
    """Why the kernel did not set the link up."""
    from cni.plugins import macvlan_refusals

    return macvlan_refusals.up(planned, fault)


def owns(planned: Plan, link: Link) -> bool:
    """Whether `link` is what this plan made, also when it was renamed since, or given another MAC or MTU.

    A MAC tells it only when it is derived: a configured one may be that of another attachment, which is in the way.
    """
    if link.kind != "macvlan":
        return False
    known = link.name == planned.name or (planned.mac_is_derived and link.mac == planned.mac)
    return link.name == planned.temporary or (link.lower_index == planned.lower and known)


def recognises(planned: Plan, box: Rtnl) -> bool:
    """Whether a link of `box` is what the plan made beyond doubt: by its temporary name, or by its MAC."""
    return any(
        owns(planned, link) and (link.name == planned.temporary or planned.mac in ("", link.mac))
        for link in box.links()
    )


def remove(planned: Plan, host: Rtnl, box: Rtnl | None, log: Log) -> None:
    """Remove what the plan made from the sandbox, under whatever name; nothing there is no error.

    Lingers while the link is up elsewhere: it goes with its sandbox some time after that has ended, or the pod has moved
    it into a namespace of its own.
    """
    removed = False
    others = []
    for link in box.links() if box else ():
        if owns(planned, link):
            try:
                box.delete_link(link.index)  # type: ignore[union-attr]  # it has links
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
            " found: end what holds that namespace, and DEL again"
        )
    for link in others:
        log.warning(
            f'link "{link.name}" is a {link.kind or "physical"} link that this attachment did not make: left alone'
        )


def lingers(planned: Plan, host: Rtnl) -> bool:
    """Whether the link is up in some namespace, and answers for its addresses, as its master shows.

    A MAC that is not derived may be that of another attachment by now, and tells nothing.
    """
    return planned.mac_is_derived and not planned.in_sandbox and host.receives(planned.lower, planned.mac)


def unmoved(planned: Plan) -> None:
    """A macvlan always is a link."""


def differences(planned: Plan, link: Link | None, host: Rtnl) -> list[str]:
    """What of the link itself is not as planned."""
    found: list[str] = []
    if link is None:
        return found
    if link.kind != "macvlan":
        return [f'"{link.name}" is a {link.kind or "physical"} link, not a macvlan']
    if link.lower_index != planned.lower:
        found.append(
            f'"{link.name}" is not on master "{planned.master}" (index {planned.lower}), but on index {link.lower_index}'
        )
    if link.macvlan_mode != planned.mode:
        found.append(f"mode is {link.macvlan_mode}, configured is {planned.mode}")
    return found


def carrier(planned: Plan) -> tuple[str, bool]:
    """The master."""
    return planned.master, planned.in_sandbox


def pci_id(planned: Plan) -> str:
    """A macvlan has no PCI function of its own."""
    return ""


def check_addresses(planned: Plan, ips: list[IPConfig]) -> None:
    """Refuse an IPv6 address on a link whose MTU is too small for IPv6: the kernel would only say EINVAL."""
    for address in ips:
        if address.family == 6 and planned.mtu < IPV6_LEAST_MTU:
            raise InvalidConfig(
                f"mtu {planned.mtu} is too small for the IPv6 address {address.address}: IPv6 needs {IPV6_LEAST_MTU} or more (RFC 8200)"
            )


def status(config: Config, host: Rtnl, log: Log) -> Link | None:
    """The master; NotAvailable without one, LimitedConnectivity when it is down or has no carrier."""
    if config.link_in_container:
        return None  # each sandbox has its own
    master = _find_master(config, host)
    if master is None and not config.master:
        raise NotAvailable("there is no default route to take the master from: name the netdev in the key `master`")
    if master is None:
        raise NotAvailable(f'master "{config.master}" does not exist: bring it back, or correct the key `master`')
    _permit(master, host)
    if not master.up:
        raise LimitedConnectivity(f'master "{master.name}" is down: ip link set {master.name} up')
    if not master.carrier:
        raise LimitedConnectivity(f'master "{master.name}" has no carrier: see its cable and switch port')
    return master
