"""host-device: a device of the host, moved into the sandbox as a whole and given back as it was (cni.plugins.moved).

    read    the configuration, with all its faults                                             pure
    survey  the device that the selectors name, what it has now, who holds it if it is away
    plan    configuration + survey -> what to move, or why not                                 pure

Source: plugins/main/host-device of containernetworking/plugins for keys and results.
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
    netdev,
    optional,
    string,
)
from cni.kernel import sysfs
from cni.plugins import devices, moved
from cni.plugins.moved import USERSPACE_DRIVERS, Plan
from cni.spec.errors import InvalidConfig, Lingers, NotAvailable, TryAgainLater
from cni.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cni.attachment import Book
    from cni.kernel.links import Link, Rtnl
    from cni.log import Log
    from cni.spec.request import Attachment, Request
    from cni.spec.result import IPConfig

NAME = "host-device"

KEYS = (
    Key("device", optional(netdev), "", "name of the device, such as ens2f0"),
    Key("hwaddr", optional(hardware_address), "", "MAC address of the device"),
    Key("kernelpath", optional(string), "", "the device's directory under /sys/devices"),
    Key("pciBusID", optional(string), "", "PCI address of the device, such as 0000:3b:00.0", "pci"),
    Key("mtu", integer(0, 65535), 0, "MTU in the sandbox in bytes; 0: as the device has it"),
    Key("dad", boolean, False, "wait for duplicate address detection of IPv6 addresses"),
    Key("ipam", ipam_block, {}, "the IPAM plugin's configuration; absent or {}: no addresses"),
    Key("dns", mapping, {}, "DNS settings for the result; default: the IPAM plugin's"),
)


class Config:
    """The keys of KEYS, checked, and `device_id`: runtimeConfig.deviceID, a PCI address or auxiliary device."""

    __slots__ = ("device_id", *(k.attribute for k in KEYS))

    device: str
    hwaddr: str
    kernelpath: str
    pci: str
    device_id: str
    mtu: int
    dad: bool
    ipam: dict[str, Any]
    dns: dict[str, Any]

    def selected(self) -> str:
        """The selector that counts, as key and value; "" when there is none."""
        for key, value in (
            ("device", self.device),
            ("hwaddr", self.hwaddr),
            ("kernelpath", self.kernelpath),
            ("runtimeConfig.deviceID", self.device_id),
            ("pciBusID", self.pci),
        ):
            if value:
                return f'{key} "{value}"'
        return ""


class Facts:
    """What `survey` found: the device and its state, or who holds it; `reason` or `tied` when it must not be moved."""

    __slots__ = ("device", "driver", "holder", "names", "reason", "state", "taken", "tied")

    def __init__(self) -> None:
        self.device: Link | None = None
        self.driver = ""
        self.holder: Attachment | None = None
        self.names: list[str] = []
        self.reason = ""
        self.state: dict[str, Any] = {}
        self.taken: Link | None = None
        self.tied = ""


def read(request: Request, faults: list[Fault]) -> Config:
    """The checked configuration; all that is wrong with it goes to `faults`."""
    config = Config()
    fill(config, KEYS, request.config, faults)
    runtime = member(request.config, "runtimeConfig")
    config.device_id = (member(runtime, "deviceID") if isinstance(runtime, dict) else None) or ""
    if not isinstance(config.device_id, str):
        faults.append(Fault("runtimeConfig.deviceID", config.device_id, "want a PCI address or auxiliary device name"))
    if config.kernelpath and (not config.kernelpath.startswith("/sys/devices/") or "/.." in config.kernelpath):
        faults.append(Fault("kernelpath", config.kernelpath, "want an absolute path under /sys/devices/ without .."))
    for key, value in (("pciBusID", config.pci), ("runtimeConfig.deviceID", config.device_id)):
        if isinstance(value, str) and "/" in value:
            faults.append(Fault(key, value, "want the name of one device, without /"))
    return config


load = Plan
apply = moved.move
refused_up = moved.refused_up
remove = moved.remove
present = moved.present
recognises = moved.recognises
lingers = moved.lingers
unmoved = moved.unmoved
carrier = moved.carrier


def survey(config: Config, request: Request, host: Rtnl, box: Rtnl, book: Book) -> Facts:
    """Find the device and read what it has."""
    facts = Facts()
    links = host.links()
    facts.names = [link.name for link in links]
    facts.taken = box.link(name=request.attachment.ifname)
    pci = _pci_address(config)
    if pci:
        facts.driver = sysfs.driver_of_pci(pci)
        if facts.driver in USERSPACE_DRIVERS:
            moved.permit(None, pci)
            return facts
    facts.device = _found(config, pci, links)
    for attachment, record in moved.holders(request.attachment, facts.device, _is_meant(config, pci), book):
        held = book.try_locked(attachment, moved.PART)
        if held is None or sandbox.of_record(record, request):
            facts.holder = attachment
            break
        with held:  # that sandbox died without a DEL, and the kernel brought the device back as it was in there
            try:
                moved.reclaim(attachment, record, host, book)
            except Lingers:
                facts.holder = attachment
                break
        links = host.links()
        facts.device = _found(config, pci, links)
    if not facts.device and not facts.holder and _found(config, pci, host.links()):
        raise TryAgainLater(f"{config.selected()} has just come back from another attachment: retry")
    if facts.device:
        moved.permit(facts.device, pci)
        from cni.plugins import uplink  # an ADD asks

        facts.reason = uplink.needed(facts.device, links, uplink.default_routes(host))
        facts.state, facts.tied = moved.look(facts.device, links, host, book)
    return facts


def _found(config: Config, pci: str, links: Sequence[Link]) -> Link | None:
    return devices.find(links, config.device, config.hwaddr, config.kernelpath, pci, config.device_id)


def _pci_address(config: Config) -> str:
    """The PCI address that counts: deviceID when it names a PCI function, else pciBusID; "" when `device` etc. decide."""
    if config.device or config.hwaddr or config.kernelpath:
        return ""
    if config.device_id:
        return config.device_id if sysfs.is_pci(config.device_id) else ""
    return config.pci


def _is_meant(config: Config, pci: str) -> Callable[[dict[str, Any]], bool]:
    """Whether the `link` of a record speaks of the device that the selectors name, while it is not on the host."""

    def compare(link: dict[str, Any]) -> bool:
        former = link["device"]
        return bool(
            (config.device and former.get("name") == config.device)
            or (config.hwaddr and config.hwaddr in (former.get("mac"), former.get("permanentMac")))
            or (pci and link["pci"] == pci)
        )

    return compare


def plan(config: Config, request: Request, facts: Facts) -> Plan:
    """What to move, or the error that says why it cannot be."""
    selected = config.selected()
    if not selected:
        raise InvalidConfig(
            "no device is selected: give one of the keys `device`, `hwaddr`, `kernelpath`, `pciBusID`, or let the runtime"
            " pass runtimeConfig.deviceID (capability deviceID, or the NAD's annotation k8s.v1.cni.cncf.io/resourceName)"
        )
    pci = _pci_address(config)
    if facts.driver in USERSPACE_DRIVERS:
        return Plan({"name": request.attachment.ifname, "mtu": 0, "pci": pci, "device": {}, "restoresState": False})
    device = facts.device
    if facts.holder:
        raise moved.held_by(selected, facts.holder)
    if device is None:
        raise _absent(selected, facts)
    unfit = moved.fit(selected, device, facts.reason, facts.tied, facts.taken, config.mtu, request)
    if unfit:
        raise unfit
    return Plan(
        {
            "name": request.attachment.ifname,
            "mtu": config.mtu or device.mtu,
            "pci": pci or (device.parent_device if device.parent_bus == "pci" else ""),
            "device": facts.state,
            "restoresState": True,
        }
    )


def _absent(selected: str, facts: Facts) -> InvalidConfig:
    driver = f" (its driver is {facts.driver})" if facts.driver else ""
    return InvalidConfig(
        f"{selected} names no netdev of the host{driver}: correct the key, or load the device's network driver",
        f"netdevs of the host: {' '.join(facts.names)}",
    )


def adopt(request: Request, host: Rtnl, box: Rtnl | None) -> Plan | None:
    """The plan of a device that Go's plugin moved: its alias is its name on the host; what else it had is not known."""
    if box is None:
        return None
    link = box.link(name=request.attachment.ifname)
    if link is None or not link.alias or link.name != request.attachment.ifname:
        return None
    state = devices.identity_of(link)
    state["name"] = link.alias
    pci = link.parent_device if link.parent_bus == "pci" else ""
    return Plan({"name": link.name, "mtu": 0, "pci": pci, "device": state, "restoresState": False})


def differences(planned: Plan, config: Config, link: Link | None, host: Rtnl, box: Rtnl) -> list[str]:
    """What of the device is not as planned, and whether the configuration selects another one."""
    found = moved.differences(planned, link)
    selected = config.selected()
    if selected and not _selects(config, planned, link):
        name = planned.device.get("name") or planned.pci
        found.append(f'device is "{name}", configured is {selected}')
    return found


def _selects(config: Config, planned: Plan, link: Link | None) -> bool:
    """Whether the selector that counts names the device of the plan; True when that cannot be told."""
    former = planned.device
    if config.device:
        altnames = link.altnames if link else []
        return config.device in (former.get("name"), *former.get("altnames", ()), *altnames)
    if config.hwaddr:
        known = (former.get("mac"), former.get("permanentMac"), link.permanent_mac if link else "")
        return config.hwaddr in known
    bus, parent = former.get("bus", ""), former.get("parent", "")
    path = sysfs.path_of(bus, parent) if parent else ""
    if config.kernelpath:
        return not path or f"{path}/".startswith(config.kernelpath.rstrip("/") + "/")
    pci = config.device_id or config.pci
    if sysfs.is_pci_address(pci):
        return (planned.pci or sysfs.pci_above(path) or pci) == pci
    return bus == "" or (bus, parent) == ("auxiliary", config.device_id)


def pci_id(planned: Plan) -> str:
    """The PCI address for the result; "" for a device that has none."""
    return planned.pci


def check_addresses(planned: Plan, ips: list[IPConfig]) -> None:
    """Any address fits a device whose MTU is its own."""


def status(config: Config, host: Rtnl, log: Log) -> Link | None:
    """The device; None while another attachment has it; NotAvailable when the configuration names one that is nowhere."""
    if not config.selected() or config.device_id:
        return None  # the device comes with each request
    pci = _pci_address(config)
    if pci and sysfs.driver_of_pci(pci) in USERSPACE_DRIVERS:
        moved.permit(None, pci)
        return None
    links = host.links()
    device = devices.find(links, config.device, config.hwaddr, config.kernelpath, pci, "")
    if device:
        moved.permit(device, pci)
        from cni.plugins import uplink

        reason = uplink.needed(device, links, uplink.default_routes(host))
        if reason:
            raise NotAvailable(f"{config.selected()} cannot be moved: {reason}; select another device")
        return device
    from cni.attachment import Book

    if not any(moved.holders(None, None, _is_meant(config, pci), Book(log=log))):
        raise NotAvailable(
            f"{config.selected()} names no netdev of the host: correct the key, or bring the device back"
        )
    return None
