"""The verbs of sriov: configure a virtual function (VF) through its PF, move it into a sandbox, and restore it later.

A VF is identified by its PCI address. ADD makes the settings before the move, and DEL restores them after the move
back, so a pod is never in a wrong VLAN. The record stays until all is restored. A VF of a userspace driver (DPDK) is
not moved.

Sources: k8snetworkplumbingwg/sriov-cni for keys, defaults and results; its issue 219 for a late DEL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cni.link.plugins.common import LinkConfig
from cni.link.plugins.host_device import devices, moved
from cni.link.plugins.sriov import go_cache, vf
from cni.shared import log as levels
from cni.shared import policy
from cni.shared.config import Fault, declare, hardware_address, integer, one_of, optional, string, take
from cni.shared.kernel import sysfs, vfs
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig, NotAvailable, Unrestored

if TYPE_CHECKING:
    from cni.link.plugins.base import Named
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.netns import Namespace
    from cni.shared.log import Log
    from cni.shared.spec.request import Request

NAME = "sriov"
SHARES_NETDEV = False
ADVERTISED = False  # argument of `uplink.needed`: any router of the fabric may give a VF that is up a default route
ONLY_OURS = "the VF would keep the settings of this pod, and its name there"
LOG_LEVELS = ("panic", "error", "warning", "info", "verbose", "debug")


def pci_address(value: Any) -> str:
    """Check a PCI address; return it in lower case. Raises ValueError for any other value."""
    if not sysfs.is_pci_address(string(value)):
        raise ValueError("want the PCI address of a VF, such as 0000:3b:00.2")
    return str(value).lower()


def vlan_protocol(value: Any) -> str:
    """Check the protocol of a VLAN; return it in lower case. Raises ValueError for any other value."""
    return str(one_of("802.1q", "802.1ad")(string(value).lower()))


OF_PF = ("vlan", "vlanQoS", "vlanProto", "min_tx_rate", "max_tx_rate", "spoofchk", "trust", "link_state")


class SriovConfig(LinkConfig):
    """The checked values of KEYS. An absent setting of the VF (OF_PF) is None or "". `mac` comes from runtimeConfig,
    else from CNI_ARGS, else from the configuration."""

    pci: str = declare(optional(pci_address), "", "deviceID").means(
        "PCI address of the VF; runtimeConfig.deviceID comes first"
    )
    vlan: int | None = declare(integer(0, 4094), None).means("VLAN of the VF, invisible to the pod; 0: none")
    vlanQoS: int | None = declare(integer(0, 7), None).means("priority in that VLAN; default: 0")
    vlanProto: str | None = declare(vlan_protocol, None).means(
        "protocol of the VLAN: 802.1q or 802.1ad; default: 802.1q"
    )
    mac: str = declare(optional(hardware_address), "").means("MAC address; default: the VF's")
    min_tx_rate: int | None = declare(integer(0, 2**32 - 1), None).means("minimum transmit rate in Mbit/s; 0: none")
    max_tx_rate: int | None = declare(integer(0, 2**32 - 1), None).means("maximum transmit rate in Mbit/s; 0: no limit")
    spoofchk: str = declare(optional(one_of("on", "off")), "").means("drop the VF's packets with another source MAC")
    trust: str = declare(optional(one_of("on", "off")), "").means(
        "allow the VF promiscuous mode and a change of its MAC"
    )
    link_state: str = declare(optional(one_of("auto", "enable", "disable")), "").means(
        "carrier of the VF: as the PF's, always, or never"
    )
    mtu: int = declare(integer(0, 65535), 0).means(
        "MTU in the sandbox in bytes, at most the PF's; 0: the VF's, or for a VF without a netdev (DPDK) the PF's, in the result"
    )
    logLevel: str = declare(optional(one_of(*LOG_LEVELS), "warning"), "warning").means("lowest level that is logged")
    logFile: str = declare(optional(string), "").means(
        "path of a file to which log lines are appended, in addition to stderr"
    )

    def settings(self) -> dict[str, Any]:
        """The settings to make through the PF, except the MAC, in the form of cni.shared.kernel.vfs."""
        found: dict[str, Any] = {}
        if self.vlan is not None:
            found |= {"vlan": self.vlan, "vlanQoS": self.vlanQoS or 0, "vlanProto": self.vlanProto or "802.1q"}
        if self.min_tx_rate is not None or self.max_tx_rate is not None:
            found |= {"min_tx_rate": self.min_tx_rate or 0, "max_tx_rate": self.max_tx_rate or 0}
        for key in ("spoofchk", "trust", "link_state"):
            if getattr(self, key):
                found[key] = getattr(self, key)
        return found


KEYS = SriovConfig.KEYS


def read(request: Request, faults: list[Fault]) -> SriovConfig:
    """Return the checked configuration, and append all its faults to `faults`."""
    config = SriovConfig(request, faults)
    take(config, "pci", pci_address, faults, (("runtimeConfig.deviceID", request.of_runtime("deviceID")),))
    given = ("CNI_ARGS MAC", request.args.get("MAC")), ("runtimeConfig.mac", request.of_runtime("mac"))
    take(config, "mac", hardware_address, faults, given)
    faults += _contradictions(config)
    return config


def _contradictions(config: SriovConfig) -> list[Fault]:
    found = []
    of_vlan = {"vlanQoS": config.vlanQoS, "vlanProto": config.vlanProto}
    if config.vlan is None:
        found = [Fault(key, value, "needs the key `vlan`") for key, value in of_vlan.items() if value is not None]
    elif config.vlan == 0:
        strange = [(key, value) for key, value in of_vlan.items() if value not in (None, 0, "802.1q")]
        found = [Fault(key, value, "needs a `vlan` of 1 to 4094") for key, value in strange[:1]]
    if config.max_tx_rate and (config.min_tx_rate or 0) > config.max_tx_rate:
        found.append(Fault("min_tx_rate", config.min_tx_rate, f"is above max_tx_rate {config.max_tx_rate}"))
    return found


def direct_log(request: Request, log: Log) -> None:
    """Set file and level of `log` to those of the network, if they are valid and the node's policy allows the file."""
    level = request.member("logLevel")
    level = "verbose" if level == "info" else level
    if level in levels.LEVELS:
        log.level = level
    path = request.member("logFile")
    if path and isinstance(path, str):
        try:
            log.path = policy.current().confine("logRoots", path)
        except ValueError as fault:
            log.warning(f"logFile {path} {fault}; until then log lines go to stderr alone")


class SriovFacts(moved.MoveFacts):
    """The facts of a move, the VF as its PF sees it, and whether the PCI device `exists` and `is_physical` (a PF)."""

    exists = True
    function: vf.VirtualFunction | None = None
    is_physical = False


class SriovPlan(devices.MovePlan):
    """The plan of a move, and of VF settings. ADD makes the settings `wanted`. DEL restores the settings that are named
    in `keys` to their values in `former`.

    `mac` is the MAC to set, or "". For a VF without a netdev, `told` is the [MAC, MTU] that the result shows. For an
    attachment of Go's plugin, `cache` has the names of its files (go_cache), and `sandbox` the path of its sandbox.
    """

    wanted: dict[str, Any]
    keys: list[str]
    former: dict[str, Any]
    mac: str
    told: list[Any]
    cache: Sequence[str] = ()
    sandbox = ""


load = SriovPlan
refused_up = moved.refused_up
present = devices.present
recognises = devices.recognises
lingers = moved.lingers
carrier = moved.carrier


def survey(
    config: SriovConfig, request: Request, host: Rtnl, inside: Rtnl, records: Records, named: Named
) -> SriovFacts:
    """Lock the VF, find the attachment that has it, and read the state of VF and PF."""
    facts = SriovFacts()
    if not config.pci:
        return facts
    facts.lock = records.locked_device(config.pci)
    try:
        facts.exists = sysfs.is_pci(config.pci)
        facts.is_physical = sysfs.is_physical_function(config.pci)
        if not facts.exists or facts.is_physical:
            facts.driver = sysfs.driver_of_pci(config.pci)
            return facts
        every = devices.recorded(request.attachment, records, config.pci)
        found = ((a, record) for a, record in every if record["link"]["pci"] == config.pci)
        facts.holder, _ = moved.holder_of(found, request, host, records, named)
        if not facts.holder:
            records.refuse_newer(config.pci)
            facts.holder = go_cache.holder(config.pci)
        facts.driver = sysfs.driver_of_pci(
            config.pci
        )  # a holder whose sandbox is gone may have returned the VF just now
        facts.function = vf.find(config.pci, host)
        links = host.links()
        facts.device = devices.find(links, "pci", config.pci)
        moved.permit(facts.device, config.pci)
        if facts.device:
            facts.look(facts.device, links, host, records.log, ADVERTISED)
    except BaseException:
        facts.lock.release()
        raise
    return facts


def plan(config: SriovConfig, request: Request, facts: SriovFacts) -> SriovPlan:
    """Plan the settings and the move. Raises CniError, with the reason, when the VF is unfit for one of these."""
    selected = f'deviceID "{config.pci}"'
    _refuse_unfit(config, selected, facts)
    function, device = facts.function, facts.device
    if device:
        moved.refuse_unfit(selected, device, facts.reason, facts.tied, config.mtu)
    else:
        moved.refuse_mtu(config.mtu, selected)
    if function and config.mtu > function.pf.mtu:
        raise InvalidConfig(
            f'mtu {config.mtu} is above {function.pf.mtu}, the MTU of PF "{function.pf.name}": lower the key `mtu`, or'
            f" raise the PF's (ip link set {function.pf.name} mtu {config.mtu})"
        )
    wanted = config.settings()
    former = function.state if function else {}
    mac = config.mac or ("" if former.get("mac") == vfs.NO_MAC else former.get("mac", ""))
    return SriovPlan(
        {
            "name": request.attachment.ifname,
            "mtu": config.mtu or (device.mtu if device else 0),
            "mtuIsAsked": config.mtu > 0,
            "pci": config.pci,
            "device": facts.state,
            "restoresState": True,
            "wanted": wanted,
            "keys": [*wanted, *(["mac"] if config.mac and function else [])],
            "former": former,
            "mac": config.mac,
            "told": ["", 0] if device else [mac, config.mtu or (function.pf.mtu if function else 0)],
        }
    )


def _refuse_unfit(config: SriovConfig, selected: str, facts: SriovFacts) -> None:
    if not config.pci:
        raise InvalidConfig(
            "no VF is given: take it from a device plugin's resource (the NAD's annotation"
            " k8s.v1.cni.cncf.io/resourceName), or give its PCI address in the key `deviceID`"
        )
    if not facts.exists:
        raise InvalidConfig(f"{selected} is no PCI device of this node: see `lspci -D`, and whether the PF has its VFs")
    if facts.is_physical:
        raise InvalidConfig(f"{selected} is a physical function: give one of its VFs, or use the plugin host-device")
    if facts.holder:
        raise moved.held_by(selected, facts.holder)
    if facts.device is None and facts.driver not in moved.USERSPACE_DRIVERS:
        driver = f"its driver is {facts.driver}" if facts.driver else "no driver is bound to it"
        raise InvalidConfig(
            f"{selected} has no netdev on the host ({driver}): bind it to the NIC's VF driver, or for DPDK to"
            f" {moved.USERSPACE_DRIVERS[0]}"
        )
    asked = [key for key in OF_PF if getattr(config, key) not in (None, "")]
    if facts.device is None and config.mac:
        asked.append("mac")
    if asked and facts.function is None:
        raise InvalidConfig(
            f"{', '.join(asked)}: only the PF of {selected} can set this, and the PF is not visible here (a virtual machine, or a PF"
            " without a netdev in the host's namespace): remove the key, and set it where the PF is"
        )


def adopt(request: Request, host: Rtnl, inside: Rtnl | None) -> SriovPlan | None:
    """The plan of a VF that Go's plugin attached, read from the files of that plugin; None without the files."""
    found = go_cache.plan(request.attachment)
    if found is None:
        return None
    document, files = found
    planned = SriovPlan(document)
    planned.cache, planned.sandbox = files, request.netns
    planned.returned = any(
        r["link"]["pci"] == planned.pci for _, r in devices.recorded(request.attachment, Records(), planned.pci)
    )
    return planned


def apply(planned: SriovPlan, host: Rtnl, inside: Rtnl, sandbox: Namespace) -> Link | None:
    """Configure the VF through its PF, move it, and set its MAC. Returns the VF's netdev, None without one (DPDK)."""
    function = vf.find(planned.pci, host) if planned.keys else None
    if function:
        vf.settle(function, planned.wanted, host)
    link = moved.move_in(planned, host, inside, sandbox)
    if not planned.mac:
        return link
    vf.give_mac(planned.mac, function, link, inside, host)
    return inside.link(index=link.index) if link else None


def without_link(planned: SriovPlan) -> tuple[str, int] | None:
    """The MAC and MTU of a VF with a userspace driver; None for a VF with a netdev."""
    return None if planned.device else (planned.told[0], planned.told[1])


def remove(planned: SriovPlan, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
    """Return the VF to the host and restore its state. A repeated call continues the first. While the VF is in a
    sandbox that cannot be found, its VLAN must not change. So nothing is restored then, and Lingers is raised."""
    try:
        if not planned.returned:
            _give_back(planned, host, inside, log)
    except Unrestored:  # if Go's files stayed, each further DEL would fail too
        go_cache.forget(planned.cache, planned.sandbox)
        raise
    go_cache.forget(planned.cache, planned.sandbox)


def _give_back(planned: SriovPlan, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
    from cni.link.plugins.host_device import restore  # an ADD that succeeds restores nothing

    device = moved.move_out(planned, host, inside, log)
    vf.clear(planned.pci, planned.keys, planned.former, host)
    try:
        device = host.link(index=device.index) if device else None  # the MAC may have changed
        if device:
            restore.restore(planned, device, host, log)
    finally:
        vf.finish(planned.pci, planned.keys, planned.former, host)


def differences(planned: SriovPlan, config: SriovConfig, link: Link | None, host: Rtnl, inside: Rtnl) -> list[str]:
    """A text for each difference of the VF from the plan and from the configuration."""
    found = moved.differences(planned, link)
    if config.pci and config.pci != planned.pci:
        return [*found, f"deviceID is {planned.pci}, configured is {config.pci}"]
    configured = config.settings()
    if not (planned.keys or configured or config.mac):
        return found
    function = vf.find(planned.pci, host)
    if function:
        of_function = (
            {**settings, "mac": mac} for settings, mac in ((planned.wanted, planned.mac), (configured, config.mac))
        )
        return found + vf.differences(function, *of_function)
    return found + ([f"the PF of VF {planned.pci} is gone"] if planned.keys or configured else [])


def status(config: SriovConfig, host: Rtnl, log: Log) -> Link | None:
    """The VF's netdev; None while it is not on the host. Raises NotAvailable if the node lacks or needs the VF."""
    if not config.pci:
        return None  # the VF comes with each request
    if not sysfs.is_pci(config.pci) or sysfs.is_physical_function(config.pci):
        raise NotAvailable(f'deviceID "{config.pci}" is no VF of this node: correct the key, or make the VFs')
    links = host.links()
    device = devices.find(links, "pci", config.pci)
    if device is None:
        moved.permit(None, config.pci)
        return None
    return moved.available(device, config.pci, f'deviceID "{config.pci}"', links, host, config.mtu, ADVERTISED)
