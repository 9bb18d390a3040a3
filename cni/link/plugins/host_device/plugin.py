"""The verbs of host-device: move a device of the host into a sandbox, and later restore it (the module `moved`).
Source: plugins/main/host-device of containernetworking/plugins for keys and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cni.link.plugins.common import LinkConfig, keep_log
from cni.link.plugins.host_device import devices, moved
from cni.link.plugins.host_device.devices import MovePlan
from cni.link.plugins.host_device.moved import USERSPACE_DRIVERS
from cni.shared.config import Fault, declare, hardware_address, integer, netdev, optional, string
from cni.shared.kernel import sysfs
from cni.shared.records import Records
from cni.shared.spec.errors import InvalidConfig, NotAvailable, TryAgainLater

if TYPE_CHECKING:
    from cni.link.plugins.base import Named
    from cni.shared.kernel.links import Link, Rtnl
    from cni.shared.log import Log
    from cni.shared.spec.request import Request

NAME = "host-device"
SHARES_NETDEV = False
ONLY_OURS = "the device would come back without its MTU, MAC, addresses and routes"


class HostDeviceConfig(LinkConfig):
    """The checked values of KEYS, and `device_id`: runtimeConfig.deviceID, a PCI address or auxiliary device.

    If several keys select a device, the first counts, in the order of Go's host-device. `kind` and `value` are the
    arguments of `devices.find`, `selected` is the text 'KEY "VALUE"'. All three are "" if no key selects a device.
    """

    device: str = declare(optional(netdev), "").means("name of the device, such as ens2f0")
    hwaddr: str = declare(optional(hardware_address), "").means("MAC address of the device")
    kernelpath: str = declare(optional(string), "").means("the device's directory under /sys/devices")
    pci: str = declare(optional(string), "", "pciBusID").means("PCI address of the device, such as 0000:3b:00.0")
    mtu: int = declare(integer(0, 65535), 0).means(
        "MTU in the sandbox in bytes; 0: the device's. For a device without a netdev (DPDK) it is only in the result"
    )
    device_id: str
    kind = value = selected = ""

    def select(self) -> None:
        """Set `kind`, `value` and `selected` from the first key that selects a device."""
        of_runtime = "pci" if sysfs.is_pci_address(self.device_id) else "auxiliary"
        for kind, key, value in (
            ("name", "device", self.device),
            ("mac", "hwaddr", self.hwaddr),
            ("path", "kernelpath", self.kernelpath),
            (of_runtime, "runtimeConfig.deviceID", self.device_id),
            ("pci", "pciBusID", self.pci),
        ):
            if value:
                self.kind, self.value, self.selected = kind, value, f'{key} "{value}"'
                return

    @property
    def pci_address(self) -> str:
        """The PCI address that selects the device; "" with another selector."""
        return self.value if self.kind == "pci" else ""


KEYS = HostDeviceConfig.KEYS


class HostDeviceFacts(moved.MoveFacts):
    """The facts of a move, and the names of the host's netdevs."""

    names: Sequence[str] = ()


def read(request: Request, faults: list[Fault]) -> HostDeviceConfig:
    """Return the checked configuration, and append all its faults to `faults`."""
    config = HostDeviceConfig(request, faults)
    config.device_id = request.of_runtime("deviceID") or ""
    if not isinstance(config.device_id, str):
        faults.append(Fault("runtimeConfig.deviceID", config.device_id, "want a PCI address or auxiliary device name"))
        config.device_id = ""
    if request.member("useInterfaceNetwork"):
        wanted = "is a key of Go's host-device alone: remove it, and give the pod's addresses and routes in `ipam`"
        faults.append(Fault("useInterfaceNetwork", request.member("useInterfaceNetwork"), wanted))
    if config.kernelpath and (not config.kernelpath.startswith("/sys/devices/") or "/.." in config.kernelpath):
        faults.append(Fault("kernelpath", config.kernelpath, "want an absolute path under /sys/devices/ without .."))
    for key, value in (("pciBusID", config.pci), ("runtimeConfig.deviceID", config.device_id)):
        if "/" in value:
            faults.append(Fault(key, value, "want the name of one device, without /"))
    config.select()
    if config.selected.startswith("pciBusID") and not sysfs.is_pci_address(config.pci):
        faults.append(Fault("pciBusID", config.pci, "want a PCI address such as 0000:3b:00.0"))
    return config


direct_log = keep_log
load = MovePlan
apply = moved.move_in
refused_up = moved.refused_up
remove = moved.remove
present = devices.present
recognises = devices.recognises
lingers = moved.lingers
without_link = moved.without_link
carrier = moved.carrier


def survey(
    config: HostDeviceConfig, request: Request, host: Rtnl, inside: Rtnl, records: Records, named: Named
) -> HostDeviceFacts:
    """Find the device and read its state, or find the attachment that has the device. No lock is needed, since the
    kernel lets only one of several concurrent ADDs move the device."""
    facts = HostDeviceFacts()
    pci = config.pci_address
    if pci:
        facts.driver = sysfs.driver_of_pci(pci)
        if facts.driver in USERSPACE_DRIVERS:
            moved.permit(None, pci)
            return facts
    links = host.links()
    facts.device = devices.find(links, config.kind, config.value)
    found = moved.holders(request.attachment, facts.device, _is_meant(config), records)
    facts.holder, is_back = moved.holder_of(found, request, host, records, named)
    if is_back:
        links = host.links()
        facts.device = devices.find(links, config.kind, config.value)
    facts.names = [link.name for link in links]
    if not facts.device and not facts.holder and devices.find(host.links(), config.kind, config.value):
        raise TryAgainLater(f"{config.selected} has just come back from another attachment: retry")
    if facts.device:
        moved.permit(facts.device, pci)
        facts.look(facts.device, links, host, records.log)
    return facts


def _is_meant(config: HostDeviceConfig) -> Callable[[dict[str, Any]], bool]:
    """Return a function that tells whether `config` selects the device in the member `link` of a record."""
    return lambda recorded: _selects(config, recorded, None, unknown=False)


def plan(config: HostDeviceConfig, request: Request, facts: HostDeviceFacts) -> MovePlan:
    """Plan the move. Raises CniError, with the reason, when the device cannot be moved."""
    selected = config.selected
    if not selected:
        raise InvalidConfig(
            "no device is selected: give one of the keys `device`, `hwaddr`, `kernelpath`, `pciBusID`, or let the runtime"
            " pass runtimeConfig.deviceID (capability deviceID, or the NAD's annotation k8s.v1.cni.cncf.io/resourceName)"
        )
    pci = config.pci_address
    if facts.driver in USERSPACE_DRIVERS:
        moved.refuse_mtu(config.mtu, selected)
        name = request.attachment.ifname
        return MovePlan({"name": name, "mtu": config.mtu, "pci": pci, "device": {}, "restoresState": False})
    device = facts.device
    if facts.holder:
        raise moved.held_by(selected, facts.holder)
    if device is None:
        driver = f" (its driver is {facts.driver})" if facts.driver else ""
        raise InvalidConfig(
            f"{selected} names no netdev of the host{driver}: correct the key, or load the device's network driver",
            f"netdevs of the host: {' '.join(facts.names)}",
        )
    moved.refuse_unfit(selected, device, facts.reason, facts.tied, config.mtu)
    return MovePlan(
        {
            "name": request.attachment.ifname,
            "mtu": config.mtu or device.mtu,
            "mtuIsAsked": config.mtu > 0,
            "pci": pci or (device.parent_device if device.parent_bus == "pci" else ""),
            "device": facts.state,
            "restoresState": True,
        }
    )


def adopt(request: Request, host: Rtnl, inside: Rtnl | None) -> MovePlan | None:
    """The plan of a device that Go's plugin moved; None if there is none. The alias of the device is its name on the
    host. Its other state is unknown.

    Any link can have an alias. So if the configuration has a selector, a DEL adopts only the selected link. A CHECK
    adopts any link, and reports a link that is not the selected one.
    """
    if inside is None:
        return None
    link = inside.link(name=request.attachment.ifname)
    if link is None or not link.alias or link.name != request.attachment.ifname:
        return None
    state = devices.identity_of(link)
    state["name"] = link.alias
    pci = link.parent_device if link.parent_bus == "pci" else ""
    planned = MovePlan({"name": link.name, "mtu": 0, "pci": pci, "device": state, "restoresState": False})
    config = read(request, [])  # a DEL goes on with a configuration that an ADD would refuse
    if devices.stands_on_its_own(state, link) or _stands_on_host(link, host):
        return None
    if request.command != "CHECK" and config.selected:
        is_hardware = not link.kind  # older kernels do not show its parent device
        return planned if _selects(config, planned.document(), link, unknown=is_hardware) else None
    return planned


def _stands_on_host(link: Link, host: Rtnl) -> bool:
    """Whether the device named by the alias of `link` is still on the host, so that the pod itself has made `link`. A
    host link of that name counts as the device if it is hardware or has the MAC of `link`."""
    other = host.link(name=link.alias)
    return other is not None and (bool(other.parent_device) or other.mac == link.mac)


def differences(planned: MovePlan, config: HostDeviceConfig, link: Link | None, host: Rtnl, inside: Rtnl) -> list[str]:
    """A text for each difference of the device from the plan and from the selector of the configuration."""
    found = moved.differences(planned, link)
    selected = config.selected
    if selected and not _selects(config, planned.document(), link, unknown=True):
        name = planned.device.get("name") or planned.pci
        found.append(f'device is "{name}", configured is {selected}')
    return found


def _selects(config: HostDeviceConfig, recorded: dict[str, Any], link: Link | None, unknown: bool) -> bool:
    """Whether the selector names the recorded device. Returns `unknown` if the record does not show this."""
    former, value = recorded["device"], config.value
    if config.kind == "name":
        return value in (former.get("name"), *former.get("altnames", ()), *(link.altnames if link else ()))
    if config.kind == "mac":
        return value in (former.get("mac"), former.get("permanentMac"), link.permanent_mac if link else "")
    bus, parent = former.get("bus", ""), former.get("parent", "")
    if config.kind == "auxiliary":
        return (bus, parent) == ("auxiliary", value) if bus else unknown
    path = sysfs.path_of(bus, parent) if parent else ""
    if config.kind == "path":
        return f"{path}/".startswith(value.rstrip("/") + "/") if path else unknown
    address = recorded["pci"] or sysfs.pci_above(path)
    return address == value if address else unknown


def status(config: HostDeviceConfig, host: Rtnl, log: Log) -> Link | None:
    """The selected netdev; None while a pod has it, or if each request names its device (runtimeConfig.deviceID).
    Raises NotAvailable if no ADD can take the netdev."""
    if not config.selected or config.device_id:
        return None  # the device comes with each request
    pci = config.pci_address
    if pci and sysfs.driver_of_pci(pci) in USERSPACE_DRIVERS:
        moved.permit(None, pci)
        return None
    links = host.links()
    device = devices.find(links, config.kind, config.value)
    if device:
        return moved.available(device, pci, config.selected, links, host, config.mtu)
    if not any(moved.holders(None, None, _is_meant(config), Records(log=log))):
        raise NotAvailable(f"{config.selected} names no netdev of the host: correct the key, or bring the device back")
    return None
