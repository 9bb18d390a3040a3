"""Make and restore the settings of a virtual function (VF) through its PF, and set the two MACs of the VF.

A VF has the MAC of its netdev and the administrative MAC, which the PF keeps. Drivers differ: some VFs take over the
administrative MAC at once or when their driver is loaded, some refuse any other MAC while an administrative MAC is set
(igb, i40e: drivers/net/ethernet/intel), and for some the two are independent (mlx5). So the netdev's MAC is set first.
If the driver refuses, the administrative MAC is removed. These steps are repeated until the kernel shows both MACs.
"""

from __future__ import annotations

import time
from typing import Any

from cni.link.plugins.common import differs
from cni.shared.kernel import sysfs, vfs
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netlink import KernelError
from cni.shared.spec.errors import KernelRefused

MAC_SECONDS = 2.0  # as in Go's plugin: a change may reset the VF, which keeps its driver busy
_AGAIN_SECONDS = 0.1


class VirtualFunction:
    """A VF as its PF sees it: the PF's netdev `pf`, the VF's `number`, and its `state` (cni.shared.kernel.vfs)."""

    def __init__(self, pf: Link, number: int, state: dict[str, Any]) -> None:
        self.pf = pf
        self.number = number
        self.state = state

    def __str__(self) -> str:
        return f'VF {self.number} of PF "{self.pf.name}"'


def find(pci: str, host: Rtnl) -> VirtualFunction | None:
    """The VF at a PCI address; None if its PF has no netdev here or, as in a virtual machine, is not visible."""
    place = sysfs.function_of(pci)
    if place is None:
        return None
    physical, number = place
    for name in sysfs.netdevs_of_pci(physical):  # the PF's netdev, perhaps also representors of its VFs
        pf = host.link(name=name)
        state = vfs.read(host, pf.index, number) if pf else None
        if pf and state:
            return VirtualFunction(pf, number, state)
    return None


def settle(function: VirtualFunction, wanted: dict[str, Any], host: Rtnl) -> None:
    """Make the settings in `wanted` that the VF lacks. Raises KernelRefused with the key of a refused setting."""
    for setting in vfs.SETTINGS:
        if setting[0] in wanted and any(wanted[key] != function.state[key] for key in setting):
            try:
                vfs.write(host, function.pf.index, function.number, setting, wanted)
            except KernelError as fault:
                value = ", ".join(f"{key} {wanted[key]}" for key in setting)
                raise KernelRefused(
                    f"{value} cannot be set on {function}: {vfs.refusal(setting, fault)}", str(fault)
                ) from None


def give_mac(mac: str, function: VirtualFunction | None, link: Link | None, inside: Rtnl, host: Rtnl) -> None:
    """Set the MAC of the VF's netdev `link`, in the namespace of `inside`, and the VF's administrative MAC. Raises
    KernelRefused if this does not succeed within MAC_SECONDS."""
    end = time.monotonic() + MAC_SECONDS
    first = True
    while True:
        fault = _own_mac(mac, link, inside)
        if fault and function and first:  # the administrative MAC may forbid the change
            _administrative(vfs.NO_MAC, function, host)
            fault = _own_mac(mac, link, inside)
        first = False
        if function:
            fault = _administrative(mac, function, host) or fault
        if fault is None and _has_mac(mac, function, link, inside, host):
            return
        if time.monotonic() > end:
            words = fault.strerror if fault else "the driver keeps another one"
            raise KernelRefused(
                f"mac {mac} cannot be set on {function or 'the VF'}: {words}; give another, set `trust` to on, or set it"
                " before the VF's driver is loaded",
                str(fault or ""),
            )
        time.sleep(_AGAIN_SECONDS)


def _own_mac(mac: str, link: Link | None, inside: Rtnl) -> KernelError | None:
    now = inside.link(index=link.index) if link else None
    if now is None or now.mac == mac:
        return None
    try:
        inside.change_link(now.index, mac=mac)
    except KernelError as fault:
        return fault
    return None


def _administrative(mac: str, function: VirtualFunction, host: Rtnl) -> KernelError | None:
    try:
        vfs.write(host, function.pf.index, function.number, ("mac",), {"mac": mac})
    except KernelError as fault:
        return fault
    return None


def _has_mac(mac: str, function: VirtualFunction | None, link: Link | None, inside: Rtnl, host: Rtnl) -> bool:
    now = inside.link(index=link.index) if link else None
    if now and now.mac != mac:
        return False
    state = vfs.read(host, function.pf.index, function.number) if function else None
    return state is None or state["mac"] == mac


def clear(pci: str, keys: list[str], former: dict[str, Any], host: Rtnl) -> None:
    """Restore the VF's settings `keys` to the values `former`, in reverse order. Raises KernelRefused for a refusal.

    A changed administrative MAC is only removed here, since it may block a change of the netdev's MAC. `finish` sets
    the former administrative MAC.
    """
    function = find(pci, host)
    if function is None:
        return  # the VFs are gone with their PF, or the PF is not visible here
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
    """Restore the VF's administrative MAC in `former`. Raises KernelRefused if a setting of `keys` is not restored."""
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


def _not_as_it_was(
    function: VirtualFunction, key: str, former: dict[str, Any], words: str | None, text: str
) -> KernelRefused:
    return KernelRefused(f"{function} cannot get its {key} {former[key]} back: {words}; repeat the DEL", text)


def differences(function: VirtualFunction, wanted: dict[str, Any], configured: dict[str, Any]) -> list[str]:
    """A text for each setting of the VF that differs from `wanted`, the values that ADD set, or from `configured`."""
    return [
        text
        for key, now in function.state.items()
        for text in differs(f"{key} of {function}", now, wanted.get(key), configured.get(key))
    ]
