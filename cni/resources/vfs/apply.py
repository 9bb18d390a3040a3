"""Carry out the steps of a plan, most of them through sysfs. While VFs are made, sriov_drivers_autoprobe is 0, so only
the wanted driver binds to them. Sources: Documentation/ABI/testing/sysfs-bus-pci and sysfs-class-net of the kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from cni.node.inventory.functions import Function
from cni.node.inventory.topology import text
from cni.resources.models import VfPolicy
from cni.resources.vfs import cards
from cni.resources.vfs.plan import ADDRESSES, DRIVER, KERNELS_CHOICE, MODULE, MTU, NUMBER, REBIND, VfStep, plan
from cni.shared.kernel import files, sysfs
from cni.shared.spec.errors import CniError, IoFailure

_RENAMES = 10  # tries, since udev renames a new netdev
_PAUSE = 0.2  # seconds between two tries
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
    """Make the VFs, and call `done` after each step. Returns a sentence for each refusal and failure.

    After a failed step the other steps of the card are skipped. If the failed step sets a MAC or GUID, only the card's
    steps for MACs, GUIDs and rebinding are skipped.
    """
    node = cards.read(root, kubelet)
    functions = {card.function.id: card.function for card in node.cards}
    planned = plan(policies, node)
    failed: dict[str, str] = {}
    without_mac: dict[str, str] = {}
    for step in planned.steps:
        if step.card in failed or (step.what in (*ADDRESSES, REBIND) and step.card in without_mac):
            continue
        try:
            if step.what in ADDRESSES:
                _give_mac(functions[step.card], step, root)
            else:
                _do(step, root)
        except CniError as fault:
            (without_mac if step.what in ADDRESSES else failed)[step.card] = fault.msg
        else:
            done(step)
    return [*planned.refused, *without_mac.values(), *failed.values()]


def _give_mac(card: Function, step: VfStep, root: str) -> None:
    try:
        cards.write_mac(card, step.vf, step.then, root)
    except OSError as fault:
        kind = step.what.upper()
        remedy = _REMEDIES.get(fault.errno or 0, f"the VFs of this card have {kind}s that their drivers choose")
        raise IoFailure(
            f"{step.place}: the card's driver refuses an administrative {kind}: {fault}: {remedy}"
        ) from None


def _do(step: VfStep, root: str = "") -> None:
    """Do the step on the node whose sys is below `root`. Raises IoFailure with the kernel's reason and a remedy."""
    sys = f"{root}/sys"
    card = f"{sys}/bus/pci/devices/{step.card}"
    address = os.path.basename(os.path.realpath(f"{card}/virtfn{step.vf}")) if step.vf >= 0 else step.card
    try:
        if step.what == MODULE:
            _load(step.then)
        elif step.what == NUMBER:
            if step.now != "0":  # the kernel changes the number only through 0
                _write(f"{card}/sriov_numvfs", "0")
            if step.then != "0":
                with _autoprobe(card, "0"):
                    _write(f"{card}/sriov_numvfs", step.then)
        elif step.what in (DRIVER, REBIND):
            _bind(sys, address, step)
        else:
            _set(sys, address, step)
    except OSError as fault:
        remedy = _REMEDIES.get(fault.errno or 0, "see `dmesg`")
        refused = f"the kernel refuses {fault.filename}: {fault.strerror}"
        raise IoFailure(f"{step.place}: {step.what} {step.then}: {refused}: {remedy}") from None


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


def _bind(sys: str, address: str, step: VfStep) -> None:
    """Bind the function to the driver that the step names or, for KERNELS_CHOICE, that the kernel chooses."""
    device = f"{sys}/bus/pci/devices/{address}"
    own = "" if step.then == KERNELS_CHOICE else step.then
    if os.path.islink(f"{device}/driver"):
        _write(f"{device}/driver/unbind", address)
    _write(f"{device}/driver_override", own or "\n")
    # without an override, the kernel binds a VF only with autoprobe
    with nullcontext() if own else _autoprobe(f"{device}/physfn", "1"):
        _write(f"{sys}/bus/pci/drivers_probe", address)
    if not sysfs.driver_of_pci(address, sys):
        wanted = own or f"its own ({text(f'{device}/modalias')})"
        raise IoFailure(f"{step.place} {address}: no driver took it: load the module of {wanted}")


@contextmanager
def _autoprobe(card: str, wanted: str) -> Iterator[None]:
    """Set sriov_drivers_autoprobe of the card to `wanted`, "1" or "0", during the block, and restore it afterwards."""
    path = f"{card}/sriov_drivers_autoprobe"
    before = text(path)
    if before in ("", wanted):
        yield
        return
    _write(path, wanted)
    try:
        yield
    finally:
        _write(path, before)


def _set(sys: str, address: str, step: VfStep) -> None:
    """Set the MTU of the function's netdev, or set the netdev up, even if udev renames the netdev meanwhile."""
    name = "mtu" if step.what == MTU else "flags"
    for _ in range(_RENAMES):
        for netdev in sysfs.netdevs_of_pci(address, sys)[:1]:
            path = f"{sys}/class/net/{netdev}/{name}"
            with suppress(FileNotFoundError):
                _write(path, step.then if step.what == MTU else hex(int(text(path) or "0", 16) | _UP))
                return
        time.sleep(_PAUSE)
    raise IoFailure(f"{step.place} {address}: it has no netdev whose {name} could be set: see `dmesg`")


def _write(path: str, value: str) -> None:
    """Write `value` to the file `path` of sysfs. The `filename` of an OSError is the text "VALUE to PATH"."""
    try:
        files.write(path, value)
    except OSError as fault:
        raise OSError(fault.errno, fault.strerror, f"{value.strip() or 'nothing'} to {path}") from None
