"""Virtual functions of a guest's network cards (igb), found and changed through sysfs."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.machine import Machine, command
from tests.node import until

DEVICES, DRIVERS = Path("/sys/bus/pci/devices"), Path("/sys/bus/pci/drivers")
_SECONDS = 60


def cards() -> list[Path]:
    """The physical functions that can have virtual ones."""
    return sorted(p for p in DEVICES.iterdir() if (p / "sriov_totalvfs").exists())


def set_vfs(card: Path, number: int) -> list[str]:
    """Give the card so many virtual functions; their PCI addresses, once each has its netdev."""
    (card / "sriov_numvfs").write_text("0")
    if number:
        (card / "sriov_numvfs").write_text(str(number))
    found = [os.path.basename(os.readlink(card / f"virtfn{n}")) for n in range(number)]
    for address in found:
        wait_for_netdev(address)
    return found


def netdev(address: str) -> str:
    """The name of the function's netdev in this network namespace; "" for none."""
    top = DEVICES / address / "net"
    return next((p.name for p in top.iterdir()), "") if top.exists() else ""


def wait_for_netdev(address: str, name: str = "") -> str:
    """The netdev of the function, once it is here; `name`: once it is here under that name."""
    assert until(lambda: netdev(address) if not name else netdev(address) == name, _SECONDS), f"no netdev: {address}"
    return netdev(address)


@dataclass(frozen=True)
class Card:
    """`pf` is the netdev of the physical function, `vfs` the PCI addresses of its virtual ones."""

    pf: str
    vfs: Sequence[str]

    def state(self, number: int) -> dict[str, Any]:
        """What the VF has, by ip-link(8)."""
        (link,) = json.loads(command("ip", "-j", "-d", "link", "show", self.pf))
        found: dict[str, Any] = link["vfinfo_list"][number]
        return found


@contextmanager
def card(machine: Machine, vfs: int = 2) -> Iterator[Card]:
    """The first card, up, with VFs whose netdevs are named ens1f0v0, ens1f0v1, ... and have an alias, an alternative name,
    an MTU of their own, and are up."""
    machine.host.set_sysctl("net/ipv6/conf/default/accept_ra", 0)  # QEMU's network would give the VFs a default route
    place = cards()[0]
    pf = netdev(place.name)
    command("ip", "link", "set", pf, "up")
    assert until(lambda: machine.host.link(pf).carrier, _SECONDS)
    addresses = set_vfs(place, vfs)
    try:
        for n, address in enumerate(addresses):
            name = f"ens1f0v{n}"
            command("ip", "link", "set", netdev(address), "name", name)
            command("ip", "link", "property", "add", "dev", name, "altname", f"enp1s16f{n}")
            command("ip", "link", "set", name, "alias", f"vf {n}", "mtu", "1400", "up")
        yield Card(pf, addresses)
    finally:
        set_vfs(place, 0)


def rebind(address: str, driver: str) -> None:
    """Take the function from its driver and give it to another one."""
    bound = DEVICES / address / "driver"
    if bound.exists():
        (bound / "unbind").write_text(address)
    (DEVICES / address / "driver_override").write_text(driver)
    (DRIVERS / driver / "bind").write_text(address)
