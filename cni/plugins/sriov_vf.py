"""What sriov sets of a VF through its PF, and puts back; and its MAC, which has two places.

    find      the PF's netdev, and the VF's number there; None where the PF is not to be seen
    settle    the settings that are wanted, before the VF is in the sandbox: it never sees another VLAN
    give_mac  the VF's own MAC and the administrative one
    clear     the former settings, once the VF has left the sandbox; the administrative MAC is put off
    finish    the administrative MAC, and a look at whether all is as it was

A VF has the MAC that its netdev uses and the administrative one, which the PF keeps for it. Drivers differ: some take
the administrative one over at once or when they are loaded again, some refuse the VF any other while there is one
(igb, i40e: drivers/net/ethernet/intel), some know nothing of each other (mlx5). So the VF is given its MAC first; when
that is refused, the administrative one is taken away for it. Both are looked at until they are right.
"""

from __future__ import annotations

import time

from cni.kernel import sysfs, vfs
from cni.kernel.netlink import KernelError
from cni.spec.errors import KernelRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cni.kernel.links import Link, Rtnl

MAC_SECONDS = 2.0  # as in Go's plugin: a driver may be busy with the reset that a change has brought about
_AGAIN_SECONDS = 0.1


class Function:
    """A VF as its PF sees it: the PF's netdev `pf`, the `number` there, and `state`, as cni.kernel.vfs describes it."""

    __slots__ = ("number", "pf", "state")

    def __init__(self, pf: Link, number: int, state: dict[str, Any]) -> None:
        self.pf = pf
        self.number = number
        self.state = state

    def __str__(self) -> str:
        return f'VF {self.number} of PF "{self.pf.name}"'


def find(pci: str, host: Rtnl) -> Function | None:
    """The VF at a PCI address; None when its PF is in another machine, or has no netdev here that knows the VF."""
    place = sysfs.function_of(pci)
    if place is None:
        return None
    physical, number = place
    for name in sysfs.netdevs_of_pci(physical):  # besides the PF's own there may be representors of its VFs
        pf = host.link(name=name)
        state = vfs.read(host, pf.index, number) if pf else None
        if pf and state:
            return Function(pf, number, state)
    return None


def settle(function: Function, wanted: dict[str, Any], host: Rtnl) -> None:
    """Set what is wanted and not so yet; KernelRefused names the key."""
    for setting in vfs.SETTINGS:
        if setting[0] in wanted and any(wanted[key] != function.state[key] for key in setting):
            try:
                vfs.write(host, function.pf.index, function.number, setting, wanted)
            except KernelError as fault:
                value = ", ".join(f"{key} {wanted[key]}" for key in setting)
                raise KernelRefused(
                    f"{value} cannot be set on {function}: {vfs.refusal(setting, fault)}", str(fault)
                ) from None


def give_mac(mac: str, function: Function | None, link: Link | None, box: Rtnl, host: Rtnl) -> None:
    """Give the VF `mac`: `link`, its netdev in the namespace of `box`, and the PF for it; KernelRefused."""
    end = time.monotonic() + MAC_SECONDS
    first = True
    while True:
        fault = _own_mac(mac, link, box)
        if fault and function and first:  # an administrative MAC may forbid it
            _administrative(vfs.NO_MAC, function, host)
            fault = _own_mac(mac, link, box)
        first = False
        if function:
            fault = _administrative(mac, function, host) or fault
        if fault is None and _has_mac(mac, function, link, box, host):
            return
        if time.monotonic() > end:
            words = fault.strerror if fault else "the driver keeps another one"
            raise KernelRefused(
                f"mac {mac} cannot be set on {function or 'the VF'}: {words}; give another, set `trust` to on, or set it"
                " before the VF's driver is loaded",
                str(fault or ""),
            )
        time.sleep(_AGAIN_SECONDS)


def _own_mac(mac: str, link: Link | None, box: Rtnl) -> KernelError | None:
    now = box.link(index=link.index) if link else None
    if now is None or now.mac == mac:
        return None
    try:
        box.change_link(now.index, mac=mac)
    except KernelError as fault:
        return fault
    return None


def _administrative(mac: str, function: Function, host: Rtnl) -> KernelError | None:
    try:
        vfs.write(host, function.pf.index, function.number, ("mac",), {"mac": mac})
    except KernelError as fault:
        return fault
    return None


def _has_mac(mac: str, function: Function | None, link: Link | None, box: Rtnl, host: Rtnl) -> bool:
    now = box.link(index=link.index) if link else None
    if now and now.mac != mac:
        return False
    state = vfs.read(host, function.pf.index, function.number) if function else None
    return state is None or state["mac"] == mac


def clear(pci: str, keys: list[str], former: dict[str, Any], host: Rtnl) -> None:
    """Give the VF back what it had of the settings `keys`, in their reversed order; KernelRefused.

    Of the MACs the administrative one is only taken away, if it is another: the VF's own is free to be restored then.
    """
    function = find(pci, host)
    if function is None:
        return  # the VFs are gone with their PF, or were made anew by another machine's
    for setting in reversed(vfs.SETTINGS):
        now = function.state
        if setting[0] not in keys or former[setting[0]] == "" or all(now[key] == former[key] for key in setting):
            continue
        state = {"mac": vfs.NO_MAC} if setting[0] == "mac" else former
        try:
            vfs.write(host, function.pf.index, function.number, setting, state)
        except KernelError as fault:
            raise _not_as_it_was(function, setting[0], former, fault.strerror, str(fault)) from None


def finish(pci: str, keys: list[str], former: dict[str, Any], host: Rtnl) -> None:
    """Give the VF its former administrative MAC, unless it has it; KernelRefused when anything else is not as it was."""
    end = time.monotonic() + MAC_SECONDS
    while True:
        function = find(pci, host)
        if function is None:
            return
        different = [key for key in keys if former[key] not in ("", function.state[key])]
        if not different:
            return
        fault = _administrative(former["mac"], function, host) if "mac" in different else None
        if different != ["mac"] or time.monotonic() > end:
            words = fault.strerror if fault else f"it is {function.state[different[0]]}"
            raise _not_as_it_was(function, different[0], former, str(words), str(fault or ""))
        if fault:
            time.sleep(_AGAIN_SECONDS)


def _not_as_it_was(function: Function, key: str, former: dict[str, Any], words: str | None, text: str) -> KernelRefused:
    return KernelRefused(f"{function} cannot get its {key} {former[key]} back: {words}; DEL again", text)


def differences(function: Function, wanted: dict[str, Any], configured: dict[str, Any]) -> list[str]:
    """What of the VF is neither as ADD set it (`wanted`) nor as it is configured; what the driver does not tell is passed by."""
    from cni.plugins.compare import differs

    return [
        text
        for key, now in function.state.items()
        for text in differs(f"{key} of {function}", now, wanted.get(key), configured.get(key))
    ]
