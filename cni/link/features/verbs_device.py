"""The key `rdma`: the verbs device of the netdev that carries an attachment, and a GID for each of its addresses.

RDMA over Ethernet needs a RoCE v2 entry for each address of the pod's link in the GID table of the NIC's port. The
kernel makes these entries some time after an address is set, if the table has room. A missing entry causes no error in
the pod or the runtime. So an ADD waits for the entries and reports missing entries.

Sources: drivers/infiniband/core/roce_gid_mgmt.c and cache.c for the entries of the table; the Device Information
Specification of the Network Plumbing Working Group, version 1.1.0, for the device-info file.
"""

from __future__ import annotations

from typing import Any

from cni.link.features import deviceinfo, gids
from cni.link.features.gids import Ports
from cni.shared.config import Fault, Key, boolean, declare, fill, integer, keys_of
from cni.shared.kernel import files, rdma_netlink, rdma_sysfs
from cni.shared.kernel.links import Link
from cni.shared.kernel.sandbox import Sandbox
from cni.shared.log import Log
from cni.shared.spec.errors import InvalidConfig, KernelRefused, LimitedConnectivity, NotAvailable, TryAgainLater
from cni.shared.spec.request import Request
from cni.shared.spec.result import Result

MOST_SECONDS = 60
WARN_PERCENT = 80


def switch(value: Any) -> Any:
    """Check a value of the key `rdma`, a boolean, "auto" or an object, and return it."""
    if isinstance(value, bool | dict) or value == "auto":
        return value
    raise ValueError('want true, false, "auto", or an object')


KEY = Key(switch, "auto", "rdma").means(
    "auto: when the netdev has a verbs device, wait for the GIDs of the addresses; true: as with `required`; false: do not look; or an object"
)


class VerbsConfig:
    """The checked key `rdma`. `info` is runtimeConfig.CNIDeviceInfoFile, unchecked, or None if absent."""

    info: Any
    required: bool = declare(boolean, False).means(
        "an ADD fails without a verbs device, or when an address has no GID in time"
    )
    wait_seconds: int = declare(integer(0, MOST_SECONDS), 2, "waitSeconds").means(
        "how long an ADD waits for the GIDs, in seconds"
    )
    link_local: bool = declare(boolean, True, "ipv6LinkLocal").means(
        "false: the link gets no fe80 address of the kernel's, which would take two more GIDs of the port"
    )


KEYS = keys_of(VerbsConfig)


def read(value: Any, request: Request, faults: list[Fault]) -> VerbsConfig | None:
    """The checked configuration; None when the key `rdma` is false or wrong."""
    config = VerbsConfig()
    try:
        chosen = KEY.default if value is None else KEY.read(value)
    except ValueError as fault:
        faults.append(Fault(KEY.name, value, str(fault)))
        return None
    if chosen is False:
        return None
    fill(config, KEYS, chosen if isinstance(chosen, dict) else {}, faults, f"{KEY.name}.")
    if chosen is True:
        config.required = True
    config.info = request.of_runtime(deviceinfo.CAPABILITY)
    return config


def plan(
    config: VerbsConfig, request: Request, carrier: tuple[str, bool], is_shared: bool, sandbox: Sandbox, log: Log
) -> dict[str, Any] | None:
    """Make a plan with the verbs ports of the netdev and the settings; None if the netdev has no verbs port. Raises
    InvalidConfig if `required` is true and pods could not use a port. Also raises the errors of `deviceinfo.claim`."""
    netdev, in_sandbox = carrier
    ports: Ports = []
    if netdev and in_sandbox:
        with sandbox.namespace.entered():  # by netlink, since sysfs shows the host's netdevs
            ports = rdma_netlink.ports_of_netdev(netdev, sandbox.rtnl)
    elif netdev:
        ports = rdma_sysfs.ports_of_netdev(netdev)
    if not ports:
        if config.required:
            raise InvalidConfig(*_without_device(netdev))
        return None
    roce = [port for port in ports if rdma_sysfs.is_roce(*port)]  # recorded, since the device may be gone later
    if is_shared:
        unusable = _unusable_by_others(netdev, ports)
        if unusable and config.required:
            raise InvalidConfig(f"`rdma` is required, and {unusable}")
        if unusable:
            log.warning(unusable)
            roce = []  # nothing to wait for
    info, whose = deviceinfo.claim(config.info, [device for device, _ in ports], request, log)
    return {
        "ports": [list(port) for port in ports],
        "roce": [list(port) for port in roce],
        "netdev": netdev,
        "required": config.required,
        "waitSeconds": config.wait_seconds,
        "ipv6LinkLocal": config.link_local,
        "info": info,
        "whose": whose,
        "missing": [],
    }


def _without_device(netdev: str) -> tuple[str, str]:
    """The message and the details of the error for a missing verbs device. `netdev` may be ""."""
    known = [
        f"{d} port {p} ({rdma_sysfs.netdev_of(d, p) or 'no netdev'})"
        for d in rdma_sysfs.devices()
        for p in rdma_sysfs.ports(d)
    ]
    what = f'netdev "{netdev}" has no verbs device' if netdev else "the device has no netdev, and no verbs device"
    return (
        f"`rdma` is required, and {what}: name a netdev of an RDMA NIC, or load its driver (mlx5_ib; rdma_rxe for soft-RoCE)",
        f"verbs devices of the node: {', '.join(known) or 'none'}",
    )


def _unusable_by_others(netdev: str, ports: Ports) -> str:
    """The reason why pods cannot open the verbs device of the shared `netdev`; "" if pods can open it."""
    if rdma_netlink.netns_mode() != rdma_netlink.EXCLUSIVE:
        return ""
    return (
        f'RDMA is in exclusive netns mode: verbs device {ports[0][0]} of master "{netdev}" is the host\'s alone, and no'
        " macvlan's pod can open it. Use host-device or sriov, or the shared mode (module option ib_core netns_mode=1)"
    )


def before_up(document: dict[str, Any], link: Link, sandbox: Sandbox) -> None:
    """If `ipv6LinkLocal` is false, keep the kernel from making a link-local address."""
    if document["ipv6LinkLocal"]:
        return
    try:
        files.write_sysctl(f"net/ipv6/conf/{link.name}/addr_gen_mode", "1")  # IN6_ADDR_GEN_MODE_NONE, if_link.h
    except FileNotFoundError:
        pass  # without IPv6 in the kernel there is no link-local address
    except OSError as fault:
        raise KernelRefused(
            f"rdma.ipv6LinkLocal false cannot be applied to {link.name}: {fault.strerror}; is /proc/sys writable here?"
        ) from None


def after_up(document: dict[str, Any], link: Link, result: Result, sandbox: Sandbox, log: Log) -> bool:
    """Wait for the GIDs, log the missing GIDs, and write the device-info file. Returns whether `document` has changed.
    Raises TryAgainLater if `required` is true and a GID is missing."""
    ports, roce = document["ports"], document["roce"]
    interface = result.interfaces[0]
    found: dict[str, gids.Place] = {}
    if roce:
        addresses = [a.address.partition("/")[0] for a in result.ips]
        found = gids.wait(roce, addresses, link.name, document["waitSeconds"])
        document["missing"] = [a for a in addresses if a not in found]
        for address in document["missing"]:
            text = gids.missing(roce, address, link.name)
            if document["required"]:
                raise TryAgainLater(text, f"`rdma` is required, and {document['waitSeconds']} s have passed")
            log.warning(text)
        for text in remarks(roce, document["netdev"], interface.name, interface.mtu):
            log.warning(text)
    device, port, _ = next(iter(found.values()), (*ports[0], 0))
    interface.pci_id = interface.pci_id or rdma_sysfs.pci_of(device)
    if document["info"]:
        indexes = {address: index for address, (_, _, index) in found.items()}
        deviceinfo.write(document["info"], deviceinfo.described(device, port, indexes), document["whose"], log)
    return bool(document["missing"])


def remarks(ports: Ports, netdev: str, ifname: str, mtu: int, root: str = "/sys") -> list[str]:
    """The texts of warnings about a RoCE MTU below 4096 bytes, the maximum, and GID tables that are nearly full."""
    found = []
    size = rdma_sysfs.roce_mtu(mtu)
    if size < rdma_sysfs.WHOLE_ROCE_MTU:
        found.append(
            f"MTU {mtu} of {ifname} makes a RoCE MTU of {size}, and {rdma_sysfs.WHOLE_ROCE_MTU} needs {rdma_sysfs.MTU_FOR_WHOLE_ROCE} or more:"
            f" raise the MTU of {netdev} and the key `mtu`, and on switches"
        )
    for device, port in ports:
        used, room = gids.use(device, port, root)
        if room and 100 * used >= WARN_PERCENT * room:
            found.append(
                f"the GID table of {device} port {port} ({netdev}) has {used} of {room} entries in use: when it is full,"
                " addresses of further pods get no GID. rdma.ipv6LinkLocal false saves those of fe80 addresses"
            )
    return found


def remove(document: dict[str, Any], sandbox: Sandbox | None, log: Log) -> None:
    """Remove the device-info file; the kernel removes the GIDs."""
    if document["info"]:
        deviceinfo.remove(document["info"], document["whose"], log)


def differences(document: dict[str, Any], link: Link, expected: Result, sandbox: Sandbox) -> list[str]:
    """A text for a verbs device that is gone, or for each address that had a GID after ADD and has no GID now."""
    ports, roce = document["ports"], document["roce"]
    known = rdma_sysfs.devices()
    gone = [device for device, _ in ports if device not in known]
    if gone:
        with sandbox.namespace.entered():  # the host's sysfs does not show a device in the sandbox
            return [] if rdma_netlink.has_device(gone[0]) else [f"verbs device {gone[0]} is gone"]
    if not roce:
        return []
    addresses = [a.address.partition("/")[0] for a in expected.ips]
    wanted = [a for a in addresses if a not in document["missing"]]
    found = gids.find(roce, wanted, link.name)
    return [gids.missing(roce, address, link.name) for address in wanted if address not in found]


def unlike(document: dict[str, Any] | None, config: VerbsConfig) -> list[str]:
    """A text for each difference between plan and configuration. A missing plan differs only if `required` is true."""
    if document is None:
        return ["rdma has no verbs device, configured is that one is required"] if config.required else []
    was = document["ipv6LinkLocal"]
    if was == config.link_local:
        return []
    return [f"rdma.ipv6LinkLocal is {str(was).lower()}, configured is {str(config.link_local).lower()}"]


def status(config: VerbsConfig, is_shared: bool, netdev: Link | None) -> None:
    """Raise NotAvailable if a required device is missing or unusable, LimitedConnectivity if a port does not work."""
    if netdev is None:
        return
    ports = rdma_sysfs.ports_of_netdev(netdev.name)
    if not ports and config.required:
        raise NotAvailable(*_without_device(netdev.name))
    if ports and config.required and is_shared:
        unusable = _unusable_by_others(netdev.name, ports)
        if unusable:
            raise NotAvailable(f"`rdma` is required, and {unusable}")
    fault = port_fault(ports, netdev.name) if netdev.up else ""  # a device that waits for its pod is down
    if fault:
        raise LimitedConnectivity(fault)


def port_fault(ports: Ports, netdev: str, root: str = "/sys") -> str:
    """The text for the first port that does not work, with the remedy; "" when all ports work."""
    for device, number in ports:
        port = rdma_sysfs.PortState(device, number, root)
        if port.state and port.state != rdma_sysfs.ACTIVE:
            return (
                f'port {number} of verbs device {device} (netdev "{netdev}") is {port.state}, {port.physical_state}: see its'
                " cable and switch port, and `rdma link`"
            )
    return ""
