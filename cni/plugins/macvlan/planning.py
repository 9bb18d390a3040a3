"""The configuration of macvlan, checked, and the plan of the link on its master. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.plugins.base import KEYS_OF_EACH, LinkConfig, RecordedPlan
from cni.shared import policy
from cni.shared.config import (
    Fault,
    Key,
    boolean,
    fill,
    hardware_address,
    integer,
    netdev,
    one_of,
    optional,
    string,
    take,
)
from cni.shared.kernel.links import ARPHRD_ETHER, ARPHRD_INFINIBAND, LEAST_MTU
from cni.shared.records import digest
from cni.shared.spec.errors import InvalidConfig, InvalidEnvironment

if TYPE_CHECKING:
    from cni.shared.kernel.links import Link
    from cni.shared.spec.request import Request

MODES = ("bridge", "private", "vepa", "passthru")
STANDS_FOR_ITS_LOWER = ("macvlan", "macvtap")  # as a master: netif_is_macvlan, macvlan_common_newlink

MOST_QUEUED = 1 << 16
"""The largest `bcqueuelen` of a new link. The kernel takes any, and one queue is of all macvlans of a master: the node's memory."""

KEYS = (
    Key(
        "master", optional(netdev), "", "netdev below the link; default: that of `deviceID`, else of the default route"
    ),
    Key(
        "deviceID",
        optional(string),
        "",
        "device of a resource, as Multus passes it: its netdev is the default `master`. runtimeConfig.deviceID comes first",
        "device_id",
    ),
    Key("mode", optional(one_of(*MODES), "bridge"), "bridge", "how links of the same master communicate"),
    Key("mtu", integer(0, 65535), 0, "MTU of the link in bytes, at most the master's; 0: the master's"),
    Key(
        "mac",
        optional(hardware_address),
        "",
        "MAC address; default: one derived from the attachment. In mode passthru the link has the master's",
    ),
    Key("linkInContainer", boolean, False, "look for the master in the sandbox", "link_in_container"),
    Key(
        "bcqueuelen",
        integer(0, 2**32 - 1),
        0,
        f"broadcast queue of the master, in packets, {MOST_QUEUED} at most; 0: the kernel's default",
    ),
    *KEYS_OF_EACH,
)


class MacvlanConfig(LinkConfig):
    """The checked keys of KEYS. `mac` comes from runtimeConfig, else from CNI_ARGS, else from the configuration."""

    master: str
    device_id: str
    mode: str
    mtu: int
    mac: str
    link_in_container: bool
    bcqueuelen: int
    ignored_mac = ""


class MacvlanFacts:
    """The result of `survey`: the master, the names of the netdevs of its namespace, and a link that already has the ifname.

    `reason` says why the node needs the master, which mode passthru would take from it; "" when it does not.
    """

    def __init__(
        self, master: Link | None, names: list[str], taken: Link | None, boot_id: str, reason: str = ""
    ) -> None:
        self.master = master
        self.names = names
        self.taken = taken
        self.boot_id = boot_id
        self.reason = reason


class MacvlanPlan(RecordedPlan):
    """The link to make. `name` is its final name, `temporary` the name under which it is made.

    `over` is the index of the configured master, `lower` that of the device on which the kernel puts the link. If the master
    is a macvlan or macvtap, this is another device, perhaps in another namespace. `apply` reads `lower` from the link, so
    that the record has the kernel's choice.
    """

    name: str
    temporary: str
    master: str
    over: int
    lower: int
    inSandbox: bool
    mode: str
    mtu: int
    mac: str
    macIsDerived: bool
    bcqueuelen: int
    pci = ""  # a macvlan has no PCI function of its own


def read(request: Request, faults: list[Fault]) -> MacvlanConfig:
    """The checked configuration; all its faults go to `faults`."""
    config = MacvlanConfig()
    fill(config, KEYS, request.config, faults)
    if request.command == "ADD" and config.bcqueuelen > MOST_QUEUED:  # an earlier version has made longer ones
        faults.append(Fault("bcqueuelen", config.bcqueuelen, f"want {MOST_QUEUED} at most"))
    given = ("CNI_ARGS MAC", request.args.get("MAC")), ("runtimeConfig.mac", request.of_runtime("mac"))
    take(config, "mac", hardware_address, faults, given)
    take(config, "device_id", string, faults, (("runtimeConfig.deviceID", request.of_runtime("deviceID")),))
    if config.mode == "passthru":
        config.ignored_mac, config.mac = config.mac, ""  # the kernel gives the master's, macvlan_common_newlink
    return config


def plan(config: MacvlanConfig, request: Request, facts: MacvlanFacts) -> MacvlanPlan:
    """The link to make on the master in `facts`, or the error that says why it cannot be made."""
    master = facts.master
    where = "in the sandbox" if config.link_in_container else "on the host"
    if master is None:
        if not config.master and config.device_id and not config.link_in_container:
            raise InvalidConfig(
                f'deviceID "{config.device_id}" is no device with a netdev on the host: name the netdev in the key `master`'
            )
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
            f'master "{master.name}" is an {master.kind}, and the kernel allows no macvlan on it, or on the netdev below it: name a'
            " netdev without ipvlans"
        )
    if master.arphrd != ARPHRD_ETHER:
        raise InvalidConfig(
            f'master "{master.name}" is not an Ethernet link (ARPHRD {master.arphrd}), and macvlan needs one: name another netdev'
        )
    if facts.reason:
        raise InvalidConfig(refusal(config.mode, master, facts.reason))
    if config.mtu > master.mtu:
        raise InvalidConfig(
            f'mtu {config.mtu} is above {master.mtu}, the MTU of master "{master.name}": lower the key `mtu`, or raise the'
            f" master's (ip link set {master.name} mtu {config.mtu})"
        )
    least = max(LEAST_MTU, master.min_mtu)  # a VLAN names 0, and macvlan_common_newlink gives a macvlan ETH_MIN_MTU
    if 0 < config.mtu < least:
        raise InvalidConfig(f"mtu {config.mtu} is below {least}, the minimum of a macvlan")
    if facts.taken is not None:
        kind = facts.taken.kind or "physical"
        raise InvalidEnvironment(
            f'CNI_IFNAME "{request.attachment.ifname}" exists already in the sandbox {request.netns} (a {kind} link that this'
            " attachment did not make): choose another ifname, or remove that link"
        )
    return planned_on(config, request, master, _derived_mac(request, facts.boot_id))


def refusal(mode: str, master: Link, reason: str) -> str:
    """The refusal of a master that the node needs, or that is another sandbox's, with the reason."""
    what, instead = f'master "{master.name}" is refused', "use another master"
    if mode == "passthru":
        what, instead = f'mode passthru is refused on master "{master.name}"', "use mode bridge, another master"
    return f"{what}: {reason}: {instead}, or {policy.current().way_out()}"


def planned_on(config: MacvlanConfig, request: Request, master: Link, derived: str) -> MacvlanPlan:
    """The plan of a macvlan over `master`; `derived` is the MAC that the attachment gets without one of its own."""
    passthru = config.mode == "passthru"
    return MacvlanPlan(
        {
            "name": request.attachment.ifname,
            "temporary": temporary_name(request),
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


def temporary_name(request: Request) -> str:
    """The name under which the link is made: derived from the attachment, so that a later call recognises its own link."""
    return "mv" + digest(request.attachment, "temporary", 6).hex()


def _derived_mac(request: Request, boot_id: str) -> str:
    """A locally administered unicast MAC: the same for a retried ADD, different for every other attachment of any node."""
    octets = bytearray(digest(request.attachment, "mac" + boot_id, 6))
    octets[0] = octets[0] & 0xFC | 0x02
    return ":".join(f"{o:02x}" for o in octets)
