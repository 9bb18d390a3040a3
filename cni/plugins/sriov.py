"""sriov: a virtual function (VF), set through its physical function, moved into the sandbox and given back as it was.

    read    the configuration, with all its faults                                              pure
    survey  the VF, its PF, what both have now, and who has the VF
    plan    configuration + survey -> what to set and to move, or why not                       pure
    apply   settings through the PF, the move (cni.plugins.moved), the MAC
    remove  out of the sandbox first, then the former settings and state: until then nobody hears another VLAN

A VF is known by its PCI address. From the survey until the record says who has it, an ADD holds the VF's lock; the
record is kept until all is restored. A VF that a userspace driver holds (DPDK) is set and stays where it is.

Sources: k8snetworkplumbingwg/sriov-cni for keys, defaults and results, and its issue 219 for whose VF a late DEL resets.
"""

from __future__ import annotations

from cni import sandbox
from cni.config import (
    Fault,
    Key,
    boolean,
    fill,
    hardware_address,
    integer,
    ipam_block,
    mapping,
    one_of,
    optional,
    string,
)
from cni.kernel import routes, sysfs, vfs
from cni.plugins import devices, moved, sriov_vf
from cni.spec.errors import InvalidConfig, Lingers, NotAvailable, TryAgainLater
from cni.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.attachment import Book, Held
    from cni.kernel.links import Link, Rtnl
    from cni.kernel.netns import Namespace
    from cni.log import Log
    from cni.spec.request import Attachment, Request
    from cni.spec.result import IPConfig

NAME = "sriov"
LOG_LEVELS = ("panic", "error", "warning", "info", "verbose", "debug")


def pci_address(value: Any) -> str:
    if not sysfs.is_pci_address(string(value)):
        raise ValueError("want the PCI address of a VF, such as 0000:3b:00.2")
    return str(value).lower()


def vlan_protocol(value: Any) -> str:
    return str(one_of("802.1q", "802.1ad")(string(value).lower()))


KEYS = (
    Key("deviceID", optional(pci_address), "", "PCI address of the VF; runtimeConfig.deviceID comes first", "pci"),
    Key("vlan", integer(0, 4094), None, "VLAN of the VF, which it does not see itself; 0: none"),
    Key("vlanQoS", integer(0, 7), None, "priority in that VLAN; default: 0"),
    Key("vlanProto", vlan_protocol, None, "kind of its tag: 802.1q or 802.1ad; default: 802.1q"),
    Key("mac", optional(hardware_address), "", "MAC address; default: as the VF has it"),
    Key("min_tx_rate", integer(0, 2**32 - 1), None, "least rate of sending in Mbit/s; 0: none"),
    Key("max_tx_rate", integer(0, 2**32 - 1), None, "greatest rate of sending in Mbit/s; 0: no bound"),
    Key("spoofchk", optional(one_of("on", "off")), "", "drop what the VF sends from another MAC"),
    Key("trust", optional(one_of("on", "off")), "", "let the VF become promiscuous and change its MAC"),
    Key(
        "link_state",
        optional(one_of("auto", "enable", "disable")),
        "",
        "carrier of the VF: the PF's, or always, or never",
    ),
    Key("mtu", integer(0, 65535), 0, "MTU in the sandbox in bytes, at most the PF's; 0: as the VF has it"),
    Key("dad", boolean, False, "wait for duplicate address detection of IPv6 addresses"),
    Key("logLevel", optional(one_of(*LOG_LEVELS), "warning"), "warning", "least level of the log lines"),
    Key("logFile", optional(string), "", "path of a file that log lines are appended to, besides stderr"),
    Key("ipam", ipam_block, {}, "the IPAM plugin's configuration; absent or {}: no addresses"),
    Key("dns", mapping, {}, "DNS settings for the result; default: the IPAM plugin's"),
)
OF_PF = ("vlan", "vlanQoS", "vlanProto", "min_tx_rate", "max_tx_rate", "spoofchk", "trust", "link_state")


class Config:
    """The keys of KEYS, checked; those of OF_PF None or "" when left out. `mac` is the one that counts."""

    __slots__ = tuple(k.attribute for k in KEYS)

    pci: str
    vlan: int | None
    vlanQoS: int | None  # the keys of cni.kernel.vfs
    vlanProto: str | None
    mac: str
    min_tx_rate: int | None
    max_tx_rate: int | None
    spoofchk: str
    trust: str
    link_state: str
    mtu: int
    dad: bool
    logLevel: str
    logFile: str
    ipam: dict[str, Any]
    dns: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """What is to be set of the VF by its PF, each setting whole, as cni.kernel.vfs has it; not the MAC."""
        found: dict[str, Any] = {}
        if self.vlan is not None:
            found |= {"vlan": self.vlan, "vlanQoS": self.vlanQoS or 0, "vlanProto": self.vlanProto or "802.1q"}
        if self.min_tx_rate is not None or self.max_tx_rate is not None:
            found |= {"min_tx_rate": self.min_tx_rate or 0, "max_tx_rate": self.max_tx_rate or 0}
        for key in ("spoofchk", "trust", "link_state"):
            if getattr(self, key):
                found[key] = getattr(self, key)
        return found


class Facts:
    """What `survey` found. `holder` has the VF: an attachment, or the path of a sandbox; `lock` is the VF's."""

    __slots__ = (
        "device",
        "driver",
        "exists",
        "function",
        "holder",
        "is_physical",
        "lock",
        "reason",
        "state",
        "taken",
        "tied",
    )

    def __init__(self) -> None:
        self.device: Link | None = None
        self.driver = ""
        self.exists = True
        self.function: sriov_vf.Function | None = None
        self.holder: Attachment | str = ""
        self.is_physical = False
        self.lock: Held | None = None
        self.reason = ""
        self.state: dict[str, Any] = {}
        self.taken: Link | None = None
        self.tied = ""


class Plan(moved.Plan):
    """The move, and what is set by the PF: `wanted`; `keys` of `former`, the VF's state before, are to be restored.

    `mac` is the one to give, or ""; `told` the MAC and MTU for the result when there is no netdev. `cache`: the files of
    Go's plugin that speak of this attachment, and its sandbox there.
    """

    __slots__ = ("cache", "former", "keys", "mac", "sandbox", "told", "wanted")

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.wanted: dict[str, Any] = document["wanted"]
        self.keys: list[str] = document["keys"]
        self.former: dict[str, Any] = document["former"]
        self.mac: str = document["mac"]
        self.told: list[Any] = document["told"]
        self.cache: list[str] = []
        self.sandbox = ""

    def document(self) -> dict[str, Any]:
        """The plan as the record keeps it."""
        own = {"wanted": self.wanted, "keys": self.keys, "former": self.former, "mac": self.mac, "told": self.told}
        return super().document() | own


load = Plan
refused_up = moved.refused_up
present = moved.present
recognises = moved.recognises
lingers = moved.lingers


def read(request: Request, faults: list[Fault]) -> Config:
    """The checked configuration; all that is wrong with it goes to `faults`."""
    config = Config()
    fill(config, KEYS, request.config, faults)
    runtime = member(request.config, "runtimeConfig")
    of_runtime = runtime if isinstance(runtime, dict) else {}
    for key, attribute, reader, value in (
        ("runtimeConfig.deviceID", "pci", pci_address, member(of_runtime, "deviceID")),
        ("CNI_ARGS MAC", "mac", hardware_address, request.args.get("MAC")),
        ("runtimeConfig.mac", "mac", hardware_address, member(of_runtime, "mac")),
    ):
        if value:
            try:
                setattr(config, attribute, reader(value))
            except ValueError as fault:
                faults.append(Fault(key, value, str(fault)))
    faults += _contradictions(config)
    return config


def _contradictions(config: Config) -> list[Fault]:
    found = []
    if config.vlan is None:
        for key in ("vlanQoS", "vlanProto"):
            if getattr(config, key) is not None:
                found.append(Fault(key, getattr(config, key), "needs the key `vlan`"))
    elif config.vlan == 0 and config.vlanQoS:
        found.append(Fault("vlanQoS", config.vlanQoS, "needs a `vlan` of 1 to 4094"))
    elif config.vlan == 0 and config.vlanProto == "802.1ad":
        found.append(Fault("vlanProto", config.vlanProto, "needs a `vlan` of 1 to 4094"))
    if config.max_tx_rate and (config.min_tx_rate or 0) > config.max_tx_rate:
        found.append(Fault("min_tx_rate", config.min_tx_rate, f"is above max_tx_rate {config.max_tx_rate}"))
    if config.logFile:
        from cni import policy

        try:
            policy.current().confine("logRoots", config.logFile)
        except ValueError as fault:
            found.append(Fault("logFile", config.logFile, str(fault)))
    return found


def survey(config: Config, request: Request, host: Rtnl, box: Rtnl, book: Book) -> Facts:
    """Find the VF and its PF, and read what they have. From here on the VF's lock is held."""
    facts = Facts()
    if not config.pci:
        return facts
    facts.lock = book.locked_device(config.pci)
    facts.exists = sysfs.is_pci(config.pci)
    facts.is_physical = sysfs.is_physical_function(config.pci)
    facts.driver = sysfs.driver_of_pci(config.pci)
    facts.taken = box.link(name=request.attachment.ifname)
    if not facts.exists or facts.is_physical:
        return facts
    facts.holder = _holder(config.pci, request, host, book)
    facts.function = sriov_vf.find(config.pci, host)
    links = host.links()
    facts.device = devices.find(links, "", "", "", config.pci, "")
    moved.permit(facts.device, config.pci)
    if facts.device:
        facts.reason = _reason(facts.device, links, host)
        facts.state, facts.tied = moved.look(facts.device, links, host, book)
    return facts


def _reason(device: Link, links: Sequence[Link], host: Rtnl) -> str:
    """Why the node needs the VF's netdev, or ""."""
    from cni.plugins import uplink  # an ADD asks

    own = (device.index, routes.RA_PROTOCOL)  # a VF that is up takes a route from any router of its fabric
    defaults = [route for route in uplink.default_routes(host) if (route.index, route.protocol) != own]
    return uplink.needed(device, links, defaults)


def _holder(pci: str, request: Request, host: Rtnl, book: Book) -> Attachment | str:
    """Who has the VF; an attachment whose sandbox died without a DEL gives it back first."""
    for attachment, record in moved.recorded(request.attachment, book):
        if record["link"]["pci"] != pci:
            continue
        held = book.try_locked(attachment, moved.PART)
        if held is None:
            return attachment
        with held:
            if sandbox.of_record(record, request):
                return attachment
            try:
                moved.reclaim(attachment, record, host, book)
            except Lingers:
                return attachment
    book.refuse_newer(pci)
    from cni.plugins import sriov_cache

    return sriov_cache.holder(pci)


def plan(config: Config, request: Request, facts: Facts) -> Plan:
    """What to set and to move, or the error that says why it cannot be."""
    selected = f'deviceID "{config.pci}"'
    unfit = _unfit(config, selected, facts)
    if unfit:
        raise unfit
    function, device = facts.function, facts.device
    if device:
        fault = moved.fit(selected, device, facts.reason, facts.tied, facts.taken, config.mtu, request)
        if fault:
            raise fault
    if function and config.mtu > function.pf.mtu:
        raise InvalidConfig(
            f'mtu {config.mtu} is above {function.pf.mtu}, the MTU of PF "{function.pf.name}": lower the key `mtu`, or'
            f" raise the PF's (ip link set {function.pf.name} mtu {config.mtu})"
        )
    wanted = config.settings()
    former = function.state if function else {}
    mac = config.mac or ("" if former.get("mac") == vfs.NO_MAC else former.get("mac", ""))
    return Plan(
        {
            "name": request.attachment.ifname,
            "mtu": (config.mtu or device.mtu) if device else 0,
            "pci": config.pci,
            "device": facts.state,
            "restoresState": True,
            "wanted": wanted,
            "keys": [*wanted, *(["mac"] if config.mac and function else [])],
            "former": former,
            "mac": config.mac,
            "told": ["", 0] if device else [mac, function.pf.mtu if function else 0],
        }
    )


def _unfit(config: Config, selected: str, facts: Facts) -> InvalidConfig | TryAgainLater | None:
    if not config.pci:
        return InvalidConfig(
            "no VF is given: let a device plugin's resource bring it (the NAD's annotation"
            " k8s.v1.cni.cncf.io/resourceName), or give its PCI address in the key `deviceID`"
        )
    if not facts.exists:
        return InvalidConfig(
            f"{selected} is no PCI device of this node: see `lspci -D`, and whether the PF has its VFs"
        )
    if facts.is_physical:
        return InvalidConfig(f"{selected} is a physical function: give one of its VFs, or use the plugin host-device")
    if facts.holder:
        if isinstance(facts.holder, str):
            return TryAgainLater(f"{selected} is in use by Go's sriov-cni in sandbox {facts.holder}: wait for its DEL")
        return moved.held_by(selected, facts.holder)
    if facts.device is None and facts.driver not in moved.USERSPACE_DRIVERS:
        driver = f"its driver is {facts.driver}" if facts.driver else "no driver is bound to it"
        return InvalidConfig(
            f"{selected} has no netdev on the host ({driver}): bind it to the NIC's VF driver, or for DPDK to"
            f" {moved.USERSPACE_DRIVERS[0]}"
        )
    asked = [key for key in OF_PF if getattr(config, key) not in (None, "")]
    if facts.device is None and config.mac:
        asked.append("mac")
    if asked and facts.function is None:
        return InvalidConfig(
            f"{', '.join(asked)}: the PF of {selected} sets this, and it is not to be seen here (a virtual machine, or a PF"
            " without a netdev in the host's namespace): leave the key out, and set it where the PF is"
        )
    return None


def adopt(request: Request, host: Rtnl, box: Rtnl | None) -> Plan | None:
    """The plan of a VF that Go's plugin attached, by the cache that it left."""
    from cni.attachment import Book
    from cni.plugins import sriov_cache

    found = sriov_cache.plan(request.attachment)
    if found is None:
        return None
    document, files = found
    planned = Plan(document)
    planned.cache, planned.sandbox = files, request.netns
    planned.returned = any(r["link"]["pci"] == planned.pci for _, r in moved.recorded(request.attachment, Book()))
    return planned


def apply(planned: Plan, host: Rtnl, box: Rtnl, sandbox: Namespace) -> Link | None:
    """Set the VF by its PF, move it, and give it its MAC."""
    function = sriov_vf.find(planned.pci, host) if planned.keys else None
    if function:
        sriov_vf.settle(function, planned.wanted, host)
    link = moved.move(planned, host, box, sandbox)
    if not planned.mac:
        return link
    sriov_vf.give_mac(planned.mac, function, link, box, host)
    return box.link(index=link.index) if link else None


def unmoved(planned: Plan) -> tuple[str, int] | None:
    """The MAC and MTU of a VF that a userspace driver holds."""
    return None if planned.device else (planned.told[0], planned.told[1])


def remove(planned: Plan, host: Rtnl, box: Rtnl | None, log: Log) -> None:
    """Out of the sandbox, then all as it was, from whatever point an earlier call reached.

    Lingers, and nothing is reset, while the VF is in a sandbox that cannot be found: it would be heard on another VLAN.
    """
    if not planned.returned:
        device = moved.bring_back(planned, host, box, log)
        sriov_vf.clear(planned.pci, planned.keys, planned.former, host)
        try:
            if device:
                moved.restore(planned, device, host, log)
        finally:
            sriov_vf.finish(planned.pci, planned.keys, planned.former, host)
    if planned.cache:
        from cni.plugins import sriov_cache

        sriov_cache.forget(planned.cache, planned.sandbox)


def differences(planned: Plan, config: Config, link: Link | None, host: Rtnl, box: Rtnl) -> list[str]:
    """What of the VF is not as planned, or not as configured."""
    found = moved.differences(planned, link)
    if config.pci and config.pci != planned.pci:
        return [*found, f"deviceID is {planned.pci}, configured is {config.pci}"]
    configured = config.settings()
    if not (planned.keys or configured or config.mac):
        return found
    function = sriov_vf.find(planned.pci, host)
    if function:
        of_function = (
            {**settings, "mac": mac} for settings, mac in ((planned.wanted, planned.mac), (configured, config.mac))
        )
        return found + sriov_vf.differences(function, *of_function)
    return found + ([f"the PF of VF {planned.pci} is gone"] if planned.keys or configured else [])


def carrier(planned: Plan) -> tuple[str, bool]:
    """The VF's netdev itself, while it is on the host."""
    return planned.device.get("name", ""), False


def pci_id(planned: Plan) -> str:
    """The PCI address for the result."""
    return planned.pci


def check_addresses(planned: Plan, ips: list[IPConfig]) -> None:
    """Any address fits a device whose MTU is its own."""


def status(config: Config, host: Rtnl, log: Log) -> Link | None:
    """The VF's netdev, while it is on the host; NotAvailable when the configuration names a VF that is none here."""
    if not config.pci:
        return None  # it comes with each request
    if not sysfs.is_pci(config.pci) or sysfs.is_physical_function(config.pci):
        raise NotAvailable(f'deviceID "{config.pci}" is no VF of this node: correct the key, or make the VFs')
    links = host.links()
    device = devices.find(links, "", "", "", config.pci, "")
    moved.permit(device, config.pci)
    reason = _reason(device, links, host) if device else ""
    if reason:
        raise NotAvailable(f'deviceID "{config.pci}" cannot be moved: {reason}; select another VF')
    return device
