"""A network card of the guest with virtual functions: made, named as a node's would be, and taken away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.machine import Machine, command

PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Card:
    """`pf` is the netdev of the physical function, `vfs` the PCI addresses of its virtual ones."""

    pf: str
    vfs: tuple[str, ...]

    def state(self, number: int) -> dict[str, Any]:
        """What the VF has, by ip-link(8)."""
        (link,) = json.loads(command("ip", "-j", "-d", "link", "show", self.pf))
        found: dict[str, Any] = link["vfinfo_list"][number]
        return found


@contextmanager
def card(machine: Machine, number: int = 0, vfs: int = 2) -> Iterator[Card]:
    """The card `number` of the guest, up, with VFs whose netdevs are named ens1f0v0, ens1f0v1, ... and have an alias, an
    alternative name, an MTU of their own, and are up."""
    command("modprobe", "igb")
    command("modprobe", "igbvf")
    machine.host.set_sysctl("net/ipv6/conf/default/accept_ra", 0)  # QEMU's network would give the VFs a default route
    device = sorted(Path("/sys/bus/pci/drivers/igb").glob("0000:*"))[number]
    pf = next((device / "net").iterdir()).name
    command("ip", "link", "set", pf, "up")
    until(lambda: machine.host.link(pf).up and (Path("/sys/class/net") / pf / "carrier").read_text().strip() == "1")
    (device / "sriov_numvfs").write_text("0")
    (device / "sriov_numvfs").write_text(str(vfs))
    try:
        addresses = tuple((device / f"virtfn{n}").resolve().name for n in range(vfs))
        for n, address in enumerate(addresses):
            until(lambda address=address: netdev(address))
            name = f"ens1f0v{n}"
            command("ip", "link", "set", netdev(address), "name", name)
            command("ip", "link", "property", "add", "dev", name, "altname", f"enp1s16f{n}")
            command("ip", "link", "set", name, "alias", f"vf {n}", "mtu", "1400", "up")
        yield Card(pf, addresses)
    finally:
        (device / "sriov_numvfs").write_text("0")


def netdev(address: str) -> str:
    """The netdev of a PCI function that this namespace has; "" for none."""
    top = PCI / address / "net"
    return next((path.name for path in top.iterdir()), "") if top.exists() else ""


def until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.1)
