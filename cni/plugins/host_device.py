"""host-device: a device of the host, moved into the sandbox as a whole and given back as it was.

    read    the configuration, with all its faults                                             pure
    survey  the device that the selectors name, what it has now, who holds it if it is away
    plan    configuration + survey -> what to move, or why not                                 pure
    apply   one message moves, names and marks the device
    remove  back to the host: name, alias, alternative names, MTU, MAC, up, addresses, routes

The device's former state stands in the record before it is touched. A device is known again by its PCI path or
permanent MAC, never by its name alone; a virtual one, which has neither, by kind and alias. The alias in the sandbox
is the name on the host, which is the mark that Go's plugin uses too, so either can give back what the other took.

Sources: plugins/main/host-device of containernetworking/plugins; net/core/dev.c (__dev_change_net_namespace: a move
closes the device and drops its addresses and routes; default_device_exit_net: a dying namespace returns a physical
device to the initial one under the name that it had in the pod, and destroys a virtual one).
"""

from __future__ import annotations

import errno
import posix

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
    refuse,
    string,
)
from cni.kernel import node, routes, sysfs
from cni.kernel.netlink import KernelError
from cni.plugins import devices
from cni.spec.errors import InvalidConfig, InvalidEnvironment, KernelRefused, NotAvailable, TryAgainLater
from cni.spec.request import member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cni.attachment import Book
    from cni.kernel.links import Link, Rtnl
    from cni.kernel.netns import Namespace
    from cni.log import Log
    from cni.spec.request import Attachment, Request
    from cni.spec.result import IPConfig

NAME = "host-device"
_PART = "link"  # of the attachment records
USERSPACE_DRIVERS = ("vfio-pci", "uio_pci_generic", "igb_uio")

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
    """What `survey` found: the device and its state, or who holds it; `reason` when it must not be moved."""

    __slots__ = ("device", "driver", "holder", "names", "reason", "state", "taken")

    def __init__(self) -> None:
        self.device: Link | None = None
        self.driver = ""
        self.holder: Attachment | None = None
        self.names: list[str] = []
        self.reason = ""
        self.state: dict[str, Any] = {}
        self.taken: Link | None = None


class Plan:
    """The move. `device` is the state to restore ({} for a function that a userspace driver holds)."""

    __slots__ = ("device", "mtu", "name", "pci", "restores_state")

    def __init__(self, document: dict[str, Any]) -> None:
        self.name: str = document["name"]
        self.mtu: int = document["mtu"]
        self.pci: str = document["pci"]
        self.device: dict[str, Any] = document["device"]
        self.restores_state: bool = document["restoresState"]

    def document(self) -> dict[str, Any]:
        """The plan as the record keeps it."""
        return {
            "name": self.name,
            "mtu": self.mtu,
            "pci": self.pci,
            "device": self.device,
            "restoresState": self.restores_state,
        }


def read(request: Request) -> Config:
    """The checked configuration; InvalidConfig with all faults."""
    config = Config()
    faults: list[Fault] = []
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
    refuse(faults)
    return config


def load(document: dict[str, Any]) -> Plan:
    return Plan(document)


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
            _permit(None, pci)
            return facts
    facts.device = devices.find(links, config.device, config.hwaddr, config.kernelpath, pci, config.device_id)
    for attachment, record in _holders(config, request.attachment, pci, facts.device, book):
        held = book.try_locked(attachment, _PART)
        if facts.device is None or held is None or sandbox.of_record(record, request):
            facts.holder = attachment
            break
        with held:  # that sandbox died without a DEL, and the kernel brought the device back as it was in there
            _restore(load(record["link"]), facts.device, host)
        facts.device = host.link(index=facts.device.index)
    if facts.device:
        _permit(facts.device, pci)
        facts.reason = devices.carries_default_route(facts.device, links, routes.default_route_link(host))
        facts.state = devices.state_of(facts.device, host)
    return facts


def _permit(device: Link | None, pci: str) -> None:
    """InvalidConfig when the node does not allow networks the device."""
    parent = device.parent_device if device and device.parent_bus == "pci" else ""
    names = [name for name in (device.name if device else "", pci or parent) if name]
    from cni import policy  # a DEL asks nobody

    policy.current().permit("devices", f'device "{" ".join(names)}"', names)


def _pci_address(config: Config) -> str:
    """The PCI address that counts: deviceID when it names a PCI function, else pciBusID; "" when `device` etc. decide."""
    if config.device or config.hwaddr or config.kernelpath:
        return ""
    if config.device_id:
        return config.device_id if sysfs.is_pci(config.device_id) else ""
    return config.pci


def _holders(
    config: Config, own: Attachment | None, pci: str, device: Link | None, book: Book
) -> Iterator[tuple[Attachment, dict[str, Any]]]:
    """The attachments other than `own`, with their records, that have the device, or have not given it back whole."""
    boot = node.boot_id()
    for attachment, _, record in book.all(_PART):
        link = record["link"]
        former = link.get("device")
        if former is None or attachment == own or record["bootID"] != boot:
            continue
        if device:
            if former and devices.known_again(former, [device], (former["name"], link["name"]), marked=True):
                yield attachment, record
        elif (
            (config.device and former.get("name") == config.device)
            or (config.hwaddr and config.hwaddr in (former.get("mac"), former.get("permanentMac")))
            or (pci and link["pci"] == pci)
        ):
            yield attachment, record


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
    if facts.holder:  # also of a device on the host: what it has now is not what it must get back
        raise TryAgainLater(
            f"{selected} is in use by container {facts.holder.container_id} as {facts.holder.ifname} (network"
            f" {facts.holder.network}): wait until that is deleted, or select another device"
        )
    if device is None:
        raise _absent(selected, facts)
    if facts.reason:
        raise InvalidConfig(
            f"{selected} is refused: {facts.reason}, and moving it would cut the node off; select another device"
        )
    if facts.taken is not None:
        raise InvalidEnvironment(
            f'CNI_IFNAME "{request.attachment.ifname}" exists already in the sandbox {request.netns}: choose another ifname, or remove that link'
        )
    if config.mtu and not device.min_mtu <= config.mtu <= (device.max_mtu or 65535):
        raise InvalidConfig(
            f'mtu {config.mtu} is not one that device "{device.name}" can have: give {device.min_mtu} to {device.max_mtu or 65535}'
        )
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


def adopt(request: Request, host: Rtnl, box: Rtnl) -> Plan | None:
    """The plan of a device that Go's plugin moved: its alias is its name on the host; what else it had is not known."""
    link = box.link(name=request.attachment.ifname)
    if link is None or not link.alias or link.name != request.attachment.ifname:
        return None
    state = devices.identity_of(link)
    state["name"] = link.alias
    pci = link.parent_device if link.parent_bus == "pci" else ""
    return Plan({"name": link.name, "mtu": 0, "pci": pci, "device": state, "restoresState": False})


def apply(planned: Plan, host: Rtnl, box: Rtnl, sandbox: Namespace) -> Link | None:
    """Move, name and mark the device in one message; None when there is no netdev to move."""
    if not planned.device:
        return None
    device = planned.device
    mtu = planned.mtu if planned.mtu != device["mtu"] else 0
    try:
        host.change_link(device["index"], netns_fd=sandbox.fd, name=planned.name, alias=device["name"], mtu=mtu)
    except KernelError as fault:
        raise _refused_move(planned, fault) from None
    link = box.link(name=planned.name)
    if link is None:
        raise KernelRefused(
            f'device "{device["name"]}" vanished as it was moved: was the sandbox or the device removed?'
        )
    return link


def _refused_move(planned: Plan, fault: KernelError) -> KernelRefused | TryAgainLater:
    name = planned.device["name"]
    if fault.errno == errno.ENODEV:
        return TryAgainLater(
            f'device "{name}" is gone from the host: another attachment may have taken it; retry', str(fault)
        )
    if fault.errno == errno.EEXIST:
        return KernelRefused(
            f'a name of device "{name}" is taken in the sandbox: remove the link or alternative name there', str(fault)
        )
    if fault.errno == errno.EINVAL:
        return KernelRefused(
            f'device "{name}" cannot change its network namespace (its driver marks it as local): select another device',
            str(fault),
        )
    return KernelRefused(f'the kernel refused to move device "{name}": {fault.strerror}', str(fault))


def refused_up(planned: Plan, fault: KernelError) -> str:
    """Why the kernel did not set the device up."""
    return f'device "{planned.device["name"]}" cannot be set up in the sandbox: {fault.strerror}; see the kernel log for its driver'


def remove(planned: Plan, host: Rtnl, box: Rtnl | None, log: Log) -> None:
    """Bring the device back to the host and restore what it had, from whatever point an earlier call reached."""
    if not planned.device:
        return
    moved = _in_sandbox(planned, box) if box else None
    if moved and box:
        _bring_back(planned, moved, host, box)
    device = devices.known_again(
        planned.device, host.links(), names=(planned.device["name"], planned.name), marked=True
    )
    if device is None:
        log.warning(f'device "{planned.device["name"]}" is neither in the sandbox nor on the host: it vanished')
        return
    _restore(planned, device, host)


def _in_sandbox(planned: Plan, box: Rtnl) -> Link | None:
    return devices.known_again(planned.device, box.links(), names=(planned.name, planned.device["name"]), marked=True)


def _bring_back(planned: Plan, link: Link, host: Rtnl, box: Rtnl) -> None:
    name = planned.device["name"]
    other = host.link(name=name)
    if other is not None:
        raise TryAgainLater(
            f'device "{name}" cannot return to the host: another link has that name there; rename it (ip link set {name} name ...)'
            " and DEL again"
        )
    _name_again(link, name, box)
    home = host.namespace()  # the thread may be in the sandbox still, when what follows a failure to leave it
    try:
        box.change_link(link.index, netns_fd=home, name=name)
    except KernelError as fault:
        raise KernelRefused(
            f'device "{name}" cannot be moved back to the host: {fault.strerror}; DEL again', str(fault)
        ) from None
    finally:
        posix.close(home)


def _name_again(link: Link, name: str, box: Rtnl) -> None:
    """Give the device its name before it is on the host, where udev and others would act upon the pod's name.

    Where the sandbox has a link of that name already, the move itself changes the name.
    """
    if link.name == name:
        return
    try:
        box.change_link(link.index, up=False)  # before Linux 6.2 a link that is up keeps its name
        box.change_link(link.index, name=name)
    except KernelError:
        pass


def _restore(planned: Plan, link: Link, host: Rtnl) -> None:
    """Give the device, which is on the host, what the record says that it had; what it has already is left alone."""
    former = planned.device
    name = former["name"]
    try:
        if link.name != name:
            if host.link(name=name) is not None:
                raise TryAgainLater(
                    f'device "{link.name}" cannot get its name "{name}" back: another link has it; rename that one and DEL again'
                )
            host.change_link(link.index, up=False)
            host.change_link(link.index, name=name)
        if not planned.restores_state:
            if link.alias:
                host.change_link(link.index, alias="")
            return
        devices.restore(former, link, host)
    except KernelError as fault:
        raise KernelRefused(
            f'device "{name}" is on the host, but not as it was: {fault.strerror}; DEL again', str(fault)
        ) from None


def differences(planned: Plan, link: Link) -> list[str]:
    """What of the device is not as planned."""
    if planned.device and not devices.is_same(planned.device, link, marked=True):
        return [f'"{link.name}" is not the device "{planned.device["name"]}" of the host']
    return []


def pci_id(planned: Plan) -> str:
    """The PCI address for the result; "" for a device that has none."""
    return planned.pci


def check_addresses(planned: Plan, ips: list[IPConfig]) -> None:
    """Any address fits a device whose MTU is its own."""


def status(config: Config, host: Rtnl, log: Log) -> None:
    """NotAvailable when the device that the configuration names is nowhere."""
    if not config.selected() or config.device_id:
        return  # the device comes with each request
    pci = _pci_address(config)
    if pci and sysfs.driver_of_pci(pci) in USERSPACE_DRIVERS:
        _permit(None, pci)
        return
    device = devices.find(host.links(), config.device, config.hwaddr, config.kernelpath, pci, "")
    if device:
        _permit(device, pci)
        return
    from cni.attachment import Book

    if not any(_holders(config, None, pci, None, Book(log=log))):
        raise NotAvailable(
            f"{config.selected()} names no netdev of the host: correct the key, or bring the device back"
        )
