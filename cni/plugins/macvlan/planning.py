"""The configuration of macvlan, checked, and the plan of the link on its master. Pure."""

from __future__ import annotations

from cni.shared.config import (
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
from cni.shared.records import digest
from cni.shared.spec.errors import InvalidConfig, InvalidEnvironment
from cni.shared.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.shared.kernel.links import Link
    from cni.shared.spec.request import Request

MODES = ("bridge", "private", "vepa", "passthru")
STANDS_FOR_ITS_LOWER = ("macvlan", "macvtap")  # as a master: netif_is_macvlan, macvlan_common_newlink
ARPHRD_ETHER = 1
ARPHRD_INFINIBAND = 32

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
    """The keys of KEYS, checked. `mac` is the first that is given: by runtimeConfig, CNI_ARGS or the configuration."""

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
    """The result of `survey`: the master, the names of the netdevs of its namespace, a link that has the ifname already.

    `reason` says why the node itself needs the master, which mode passthru would take away; "" when it does not.
    """

    __slots__ = ("boot_id", "master", "names", "reason", "taken")

    def __init__(
        self, master: Link | None, names: list[str], taken: Link | None, boot_id: str, reason: str = ""
    ) -> None:
        self.master = master
        self.names = names
        self.taken = taken
        self.boot_id = boot_id
        self.reason = reason


class Plan:
    """The link to make. `name` is its final name, `temporary` the name under which it is made.

    `over` is the index of the master in the configuration, `lower` that of the device on which the kernel puts the link. It
    is another device, perhaps of another namespace, when the master is a macvlan or macvtap itself. `apply` reads `lower`
    back from the link, so that the record has the kernel's choice.
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
    """The checked configuration; all its faults go to `faults`."""
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
    if config.mode == "passthru":
        config.mac = ""  # the kernel gives the master's, macvlan_common_newlink
    return config


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
    if master.kind in ("ipvlan", "ipvtap"):  # IFF_NO_RX_HANDLER (drivers/net/ipvlan/ipvlan_main.c)
        raise InvalidConfig(
            f'master "{master.name}" is an {master.kind}, and the kernel puts no macvlan on one, nor on the netdev below it: name a'
            " netdev without ipvlans"
        )
    if master.arphrd != ARPHRD_ETHER:
        raise InvalidConfig(
            f'master "{master.name}" is not an Ethernet link (ARPHRD {master.arphrd}), and macvlan needs one: name another netdev'
        )
    if facts.reason:
        raise InvalidConfig(no_passthru(master, facts.reason))
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
    return planned_on(config, request, master, _derived_mac(request, facts.boot_id))


def no_passthru(master: Link, reason: str) -> str:
    """The refusal of mode passthru on a master that the node needs, with the reason."""
    return (
        f'mode passthru is refused on master "{master.name}": {reason}, and the pod would take all its traffic: use mode'
        " bridge, or another master"
    )


def planned_on(config: Config, request: Request, master: Link, derived: str) -> Plan:
    """The plan of a macvlan over `master`; `derived` is the MAC that the attachment gets without one of its own."""
    passthru = config.mode == "passthru"
    return Plan(
        {
            "name": request.attachment.ifname,
            "temporary": temporary_name(request),
            "master": master.name,
            "over": master.index,
            "lower": master.lower_index if master.kind in STANDS_FOR_ITS_LOWER else master.index,
            "inSandbox": config.link_in_container,
            "mode": config.mode,
            "mtu": config.mtu or master.mtu,
            "mac": config.mac or ("" if passthru else derived),
            "macIsDerived": not (passthru or config.mac) and derived != "",
            "bcqueuelen": config.bcqueuelen,
        }
    )


def temporary_name(request: Request) -> str:
    """The name under which the link is made: derived from the attachment, so that a later call recognises its own link."""
    return "mv" + digest(request.attachment, "temporary", 6).hex()


def _derived_mac(request: Request, boot_id: str) -> str:
    """A locally administered unicast MAC: the same for a retried ADD, and another for each other attachment of any node."""
    octets = bytearray(digest(request.attachment, "mac" + boot_id, 6))
    octets[0] = octets[0] & 0xFC | 0x02
    return ":".join(f"{o:02x}" for o in octets)
