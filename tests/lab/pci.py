"""Virtual functions of a guest's network cards (igb), found and changed through sysfs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.faults.scene import lasting
from tests.lab.machine import command
from tests.view import View

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


def wait_for_netdev(address: str) -> str:
    deadline = time.monotonic() + _SECONDS
    while not (name := netdev(address)):
        assert time.monotonic() < deadline, f"{address} has no netdev"
        time.sleep(0.1)
    return name


def furnish(host: View, address: str, name: str, number: int) -> dict[str, object]:
    """Name the function's netdev, and give it something of everything that a move takes away; how it is then."""
    card = (DEVICES / address / "physfn").resolve()
    command("ip", "link", "set", netdev(card.name), "up")  # else its functions have no carrier
    host.set(netdev(address), state="down")
    if netdev(address) != name:
        host.set(netdev(address), ifname=name)
    host.set(name, address=f"02:00:00:00:00:0{number}")
    host.set(name, ifalias=f"rail {number}", mtu=1400)
    if f"rdma-rail-{number}" not in host.link(name).altnames:
        command("ip", "link", "property", "add", "dev", name, "altname", f"rdma-rail-{number}")
    host.set(name, state="up")
    command("ip", "address", "flush", "dev", name)  # of an earlier time
    host.add_address(name, f"10.{number}.0.1/24")
    host.add_address(name, f"fd00:{number}::1/64")
    host.add_route(name, f"10.1{number}.0.0/16", gateway=f"10.{number}.0.254", priority=50)
    return lasting(host.link(name))


def rebind(address: str, driver: str) -> None:
    """Take the function from its driver and give it to another one."""
    bound = DEVICES / address / "driver"
    if bound.exists():
        (bound / "unbind").write_text(address)
    (DEVICES / address / "driver_override").write_text(driver)
    (DRIVERS / driver / "bind").write_text(address)
