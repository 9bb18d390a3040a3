"""sriov: a virtual function (VF), set through its physical function, moved into the sandbox and given back as it was.

    read    the configuration, with all its faults                                              pure
    claim   the VF's lock, until the record is written; an attachment whose sandbox died gives the VF back
    survey  the VF, its PF, and what both have now
    plan    configuration + survey -> what to set and to move, or why not                       pure
    apply   settings through the PF, the move (cni.plugins.host_device.moved), the MAC
    remove  out of the sandbox first, then the former settings and state: until then nobody hears another VLAN

A VF is known by its PCI address. The record is kept until all is restored. A VF that a userspace driver holds (DPDK) is set and stays where it is.

Sources: k8snetworkplumbingwg/sriov-cni for keys, defaults and results, and its issue 219 for what a late DEL must not reset.
"""

from __future__ import annotations

from cni.plugins.base import DeviceClaim
from cni.plugins.host_device import devices, moved
from cni.plugins.host_device import planned as plans
from cni.plugins.sriov import config as configuration
from cni.plugins.sriov import go_cache, vf
from cni.plugins.sriov.config import Config
from cni.shared.kernel import routes, sysfs, vfs
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig, NotAvailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cni.plugins.base import Named
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.kernel.netns import Namespace
    from cni.shared.log import Log
    from cni.shared.spec.request import Attachment, Request

NAME = "sriov"
SHARES_NETDEV = False
ONLY_OURS = "the VF would keep the settings of this pod, and its name there"
KEYS = configuration.KEYS
direct_log = configuration.direct_log
read = configuration.read


class Facts(moved.Facts):
    """With the VF as its PF sees it, and whether there is such a PCI device, and it is a PF itself."""

    __slots__ = ("exists", "function", "is_physical")

    def __init__(self) -> None:
        super().__init__()
        self.exists = True
        self.function: vf.VirtualFunction | None = None
        self.is_physical = False


class Plan(plans.Plan):
    """The move, and the settings `wanted` from the PF. The `keys` of `former`, the former state of the VF, are to be restored.

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
present = plans.present
recognises = plans.recognises
lingers = moved.lingers


def claim(config: Config, request: Request, host: Rtnl, records: Records, named: Named) -> DeviceClaim:
    """Take the VF's lock, and find the attachment that has the VF; one whose sandbox died without a DEL gives it back first."""
    if not config.pci:
        return DeviceClaim()
    claimed = DeviceClaim(records.locked_device(config.pci))
    try:
        if sysfs.is_pci(config.pci) and not sysfs.is_physical_function(config.pci):
            claimed.holder = _holder(config.pci, request, host, records, named)
    except BaseException:
        claimed.__exit__(None, None, None)
        raise
    return claimed


def survey(config: Config, request: Request, host: Rtnl, inside: Rtnl, claimed: DeviceClaim, log: Log) -> Facts:
    """Find the VF and its PF, and read their state."""
    facts = Facts()
    if not config.pci:
        return facts
    facts.holder = claimed.holder
    facts.exists = sysfs.is_pci(config.pci)
    facts.is_physical = sysfs.is_physical_function(config.pci)
    facts.driver = sysfs.driver_of_pci(config.pci)
    facts.taken = inside.link(name=request.attachment.ifname)
    if not facts.exists or facts.is_physical:
        return facts
    facts.function = vf.find(config.pci, host)
    links = host.links()
    facts.device = devices.find(links, "", "", "", config.pci, "")
    moved.permit(facts.device, config.pci)
    if facts.device:
        bodies = routes.all_bodies(host)
        facts.reason = _reason(facts.device, links, bodies, host)
        facts.state, facts.tied = moved.look(facts.device, links, bodies, host, log)
    return facts


def _reason(device: Link, links: Sequence[Link], bodies: Sequence[bytes], host: Rtnl) -> str:
    """Why the node needs the VF's netdev, or ""."""
    from cni.plugins import uplink  # only an ADD needs it

    own = (device.index, routes.RA_PROTOCOL)  # a VF that is up takes a route from any router of its fabric
    defaults = [route for route in uplink.default_routes(host, bodies) if (route.index, route.protocol) != own]
    return uplink.needed(device, links, defaults)


def _holder(pci: str, request: Request, host: Rtnl, records: Records, named: Named) -> Attachment | str:
    """The attachment that has the VF; one whose sandbox died without a DEL gives it back first."""
    found = ((a, record) for a, record in plans.recorded(request.attachment, records) if record["link"]["pci"] == pci)
    holder, _ = moved.holder_of(found, request, host, records, named)
    if holder:
        return holder
    records.refuse_newer(pci)
    return go_cache.holder(pci)


def plan(config: Config, request: Request, facts: Facts) -> Plan:
    """The settings and the move; the CniError says why they cannot be made."""
    selected = f'deviceID "{config.pci}"'
    _refuse_unfit(config, selected, facts)
    function, device = facts.function, facts.device
    if device:
        moved.refuse_unfit(selected, device, facts, config.mtu, request)
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
    return Plan(
        {
            "name": request.attachment.ifname,
            "mtu": config.mtu or (device.mtu if device else 0),
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


def _refuse_unfit(config: Config, selected: str, facts: Facts) -> None:
    if not config.pci:
        raise InvalidConfig(
            "no VF is given: let a device plugin's resource bring it (the NAD's annotation"
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
    asked = [key for key in configuration.OF_PF if getattr(config, key) not in (None, "")]
    if facts.device is None and config.mac:
        asked.append("mac")
    if asked and facts.function is None:
        raise InvalidConfig(
            f"{', '.join(asked)}: the PF of {selected} sets this, and it is not to be seen here (a virtual machine, or a PF"
            " without a netdev in the host's namespace): leave the key out, and set it where the PF is"
        )


def adopt(request: Request, host: Rtnl, inside: Rtnl | None) -> Plan | None:
    """The plan of a VF that Go's plugin attached, by the cache that it left."""
    found = go_cache.plan(request.attachment)
    if found is None:
        return None
    document, files = found
    planned = Plan(document)
    planned.cache, planned.sandbox = files, request.netns
    planned.returned = any(r["link"]["pci"] == planned.pci for _, r in plans.recorded(request.attachment, Records()))
    return planned


def apply(planned: Plan, host: Rtnl, inside: Rtnl, sandbox: Namespace) -> Link | None:
    """Set the VF by its PF, move it, and give it its MAC."""
    function = vf.find(planned.pci, host) if planned.keys else None
    if function:
        vf.settle(function, planned.wanted, host)
    link = moved.move(planned, host, inside, sandbox)
    if not planned.mac:
        return link
    vf.give_mac(planned.mac, function, link, inside, host)
    return inside.link(index=link.index) if link else None


def unmoved(planned: Plan) -> tuple[str, int] | None:
    """The MAC and MTU of a VF that a userspace driver holds."""
    return None if planned.device else (planned.told[0], planned.told[1])


def remove(planned: Plan, host: Rtnl, inside: Rtnl | None, log: Log) -> None:
    """Bring the VF back to the host and restore its state; it goes on where an earlier call stopped.

    Lingers, and nothing is reset, while the VF is in a sandbox that cannot be found: it would be heard on another VLAN.
    """
    if not planned.returned:
        device = moved.bring_back(planned, host, inside, log)
        vf.clear(planned.pci, planned.keys, planned.former, host)
        try:
            device = host.link(index=device.index) if device else None  # its MAC may be another now
            if device:
                moved.restore(planned, device, host, log)
        finally:
            vf.finish(planned.pci, planned.keys, planned.former, host)
    if planned.cache:
        go_cache.forget(planned.cache, planned.sandbox)


def differences(planned: Plan, config: Config, link: Link | None, host: Rtnl, inside: Rtnl) -> list[str]:
    """The differences of the VF from the plan and from the configuration."""
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


def carrier(planned: Plan) -> tuple[str, bool]:
    """The VF's netdev itself, while it is on the host."""
    return planned.device.get("name", ""), False


def pci_id(planned: Plan) -> str:
    """The PCI address for the result."""
    return planned.pci


def status(config: Config, host: Rtnl, log: Log) -> Link | None:
    """The VF's netdev, while it is on the host. NotAvailable when this node has no such VF."""
    if not config.pci:
        return None  # it comes with each request
    if not sysfs.is_pci(config.pci) or sysfs.is_physical_function(config.pci):
        raise NotAvailable(f'deviceID "{config.pci}" is no VF of this node: correct the key, or make the VFs')
    links = host.links()
    device = devices.find(links, "", "", "", config.pci, "")
    moved.permit(device, config.pci)
    reason = _reason(device, links, routes.all_bodies(host), host) if device else ""
    if reason:
        raise NotAvailable(f'deviceID "{config.pci}" cannot be moved: {reason}; select another VF')
    return device
