"""The steps of a plan, done by sysfs.

A VF that is made is bound by nobody at first (sriov_drivers_autoprobe is 0 meanwhile), so that no driver has it before its
own. Sources: Documentation/ABI/testing/sysfs-bus-pci, Documentation/ABI/testing/sysfs-class-net of the kernel.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Sequence

from cni.library.inventory.topology import text
from cni.library.resources.models import VfPolicy
from cni.library.vfs import cards
from cni.library.vfs.plan import DRIVER, KERNELS_CHOICE, MODULE, MTU, NUMBER, UP, VfStep, plan
from cni.shared.kernel import sysfs
from cni.shared.spec.errors import CniError, IoFailure

_RENAMES = 10  # udev renames a netdev that was just made
_PAUSE = 0.2  # seconds
_UP = 1  # IFF_UP
_REMEDIES = {
    errno.EROFS: "sysfs is mounted read-only: run it on the host, or give the container a writable /sys",
    errno.EACCES: "run it as root",
    errno.EPERM: "it needs root with CAP_NET_ADMIN",
    errno.ENOENT: "the driver of the card does not offer this",
    errno.ENOMEM: "the firmware of the machine has left no room for so many VFs: pci=realloc helps, or fewer VFs",
    errno.EBUSY: "something holds the functions: see `railcni vfs show`",
}


def apply(policies: Sequence[VfPolicy], root: str, kubelet: str, done: Callable[[VfStep], object]) -> list[str]:
    """Make the VFs; `done` is called after each step. What was refused or failed, with its reason.

    A card is left after its first failure; the others are gone on with.
    """
    planned = plan(policies, cards.read(root, kubelet))
    failed: dict[str, str] = {}
    for step in planned.steps:
        if step.card in failed:
            continue
        try:
            _do(step, root)
        except CniError as fault:
            failed[step.card] = fault.msg
        else:
            done(step)
    return [*planned.refused, *failed.values()]


def _do(step: VfStep, root: str = "") -> None:
    """Do the step on the node whose sys is below `root`; IoFailure with the kernel's reason and a remedy."""
    if step.what == MODULE:
        _load(step.then)
        return
    card = f"{root}/sys/bus/pci/devices/{step.card}"
    if step.what == NUMBER:
        _number(card, step)
        return
    address = os.path.basename(os.path.realpath(f"{card}/virtfn{step.vf}")) if step.vf >= 0 else step.card
    if step.what == DRIVER:
        _bind(f"{root}/sys", address, step)
    elif step.what == MTU:
        _netdev(f"{root}/sys", address, "mtu", step.then, step)
    elif step.what == UP:
        flags = _flags(f"{root}/sys", address)
        _netdev(f"{root}/sys", address, "flags", hex(flags | _UP), step)


def _load(module: str) -> None:
    try:
        done = subprocess.run(["modprobe", module], capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise IoFailure(
            f"the kernel module {module} is missing, and so is modprobe here: load it on the host"
        ) from None
    except subprocess.TimeoutExpired:
        raise IoFailure(f"modprobe {module} did not end in 120 s") from None
    if done.returncode:
        raise IoFailure(
            f"modprobe {module}: {done.stderr.strip() or done.returncode}: install the module, or load it on the host"
        )


def _number(card: str, step: VfStep) -> None:
    """Make the VFs, with no driver; what the drivers do by themselves stays as it was."""
    if step.now != "0":
        _write(f"{card}/sriov_numvfs", "0", step)
    if step.then == "0":
        return
    probes = text(f"{card}/sriov_drivers_autoprobe")
    if probes == "1":
        _write(f"{card}/sriov_drivers_autoprobe", "0", step)
    try:
        _write(f"{card}/sriov_numvfs", step.then, step)
    finally:
        if probes == "1":
            _write(f"{card}/sriov_drivers_autoprobe", "1", step)


def _bind(sys: str, address: str, step: VfStep) -> None:
    """Give the function to the driver; a function without one of its own is asked of all drivers."""
    device, bus = f"{sys}/bus/pci/devices/{address}", f"{sys}/bus/pci"
    own = "" if step.then == KERNELS_CHOICE else step.then
    if os.path.islink(f"{device}/driver"):
        _write(f"{device}/driver/unbind", address, step)
    _write(f"{device}/driver_override", own or "\n", step)
    if own or text(f"{device}/physfn/sriov_drivers_autoprobe") != "0":
        _write(f"{bus}/drivers_probe", address, step)
    else:  # else the kernel lets no driver have a VF without an override
        autoprobe = f"{device}/physfn/sriov_drivers_autoprobe"
        _write(autoprobe, "1", step)
        try:
            _write(f"{bus}/drivers_probe", address, step)
        finally:
            _write(autoprobe, "0", step)
    if not sysfs.driver_of_pci(address, sys):
        wanted = own or f"its own ({text(f'{device}/modalias')})"
        raise IoFailure(f"{step.place} {address}: no driver took it: load the module of {wanted}")


def _netdev(sys: str, address: str, name: str, value: str, step: VfStep) -> None:
    """Write an attribute of the function's netdev, whatever it is called by then."""
    for last in [False] * (_RENAMES - 1) + [True]:
        netdevs = sysfs.netdevs_of_pci(address, sys)
        try:
            if netdevs:
                _put(f"{sys}/class/net/{netdevs[0]}/{name}", value)
                return
        except FileNotFoundError:
            pass
        except OSError as fault:
            raise _failure(step, f"{netdevs[0]} {name} {value}", fault) from None
        if last:
            raise IoFailure(f"{step.place} {address}: it has no netdev whose {name} could be set: see `dmesg`")
        time.sleep(_PAUSE)


def _flags(sys: str, address: str) -> int:
    netdevs = sysfs.netdevs_of_pci(address, sys)
    found = text(f"{sys}/class/net/{netdevs[0]}/flags") if netdevs else ""
    return int(found, 16) if found.startswith("0x") else 0


def _write(path: str, value: str, step: VfStep) -> None:
    try:
        _put(path, value)
    except OSError as fault:
        raise _failure(step, f"{value.strip() or 'nothing'} to {path}", fault) from None


def _put(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never makes a file
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _failure(step: VfStep, what: str, fault: OSError) -> IoFailure:
    remedy = _REMEDIES.get(fault.errno or 0, "see `dmesg`")
    return IoFailure(f"{step.place}: {step.what} {step.then}: the kernel refuses {what}: {fault.strerror}: {remedy}")
