"""What the kernel's refusals of a macvlan mean, and what to do about them (drivers/net/macvlan.c). Loaded when it refuses."""

from __future__ import annotations

import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.kernel.netlink import KernelError
    from cni.plugins.macvlan import Plan


def making(planned: Plan, fault: KernelError) -> str:
    """Why the kernel did not make the link (macvlan_common_newlink)."""
    master = planned.master
    if fault.errno == errno.EBUSY:
        return f'master "{master}" is taken by a bridge, bond or other upper device: use another netdev, or take it out of that device'
    if fault.errno == errno.EINVAL and planned.mode == "passthru":
        return f'mode passthru needs master "{master}" for itself, and it has another macvlan: use mode bridge, or another master'
    if fault.errno == errno.EINVAL:
        return (
            f'master "{master}" cannot carry this macvlan: is it in use by one of mode passthru, or no Ethernet link?'
        )
    if fault.errno == errno.EADDRINUSE:
        return _mac_in_use(planned)
    if fault.errno == errno.EEXIST:  # before Linux 6.14 also when the host has it
        return f'a link has the temporary name "{planned.temporary}" already, in the sandbox or on the host: remove it'
    if fault.errno in (errno.ENODEV, errno.ENXIO):
        return f'master "{master}" vanished meanwhile: retry when it is back'
    if fault.errno == errno.EADDRNOTAVAIL:
        return f"the MAC address {planned.mac} is not one that a link can have: give a unicast address in the key `mac`"
    if fault.errno == errno.EPERM:
        return "the kernel does not permit making links here: run as root, with CAP_NET_ADMIN on the host's and the sandbox's namespace"
    return f'the kernel refused a macvlan on master "{master}": {fault.strerror}'


def up(planned: Plan, fault: KernelError) -> str:
    """Why the kernel did not set the link up (macvlan_open)."""
    if fault.errno == errno.EADDRINUSE:
        return _mac_in_use(planned)
    return f'the link "{planned.name}" cannot be set up: {fault.strerror}'


def _mac_in_use(planned: Plan) -> str:
    return f'the MAC address {planned.mac} is in use on master "{planned.master}" already: give each attachment its own (runtimeConfig.mac, CNI_ARGS MAC, key `mac`)'
