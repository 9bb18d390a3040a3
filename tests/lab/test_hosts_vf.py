"""The matrix of tests/hosts with virtual functions of a card, which the kernel itself gives back when a pod's namespace goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.hosts import cells
from tests.hosts.endings import ENDINGS
from tests.hosts.host import Host
from tests.hosts.scenes import DEVICE, HOST_DEVICE, OTHER, SCENES
from tests.lab import pci
from tests.lab.machine import Machine, command
from tests.node import until

MACHINES = ("sriov",)
SRIOV = "sriov"
_SCENES = ("plain", "on-link-gateway", "dhcp-lease", "ecmp-over-two-nics", "sysctls-of-firewalld")
_CELLS = [
    *(("plain", plugin, ending) for plugin in (SRIOV, HOST_DEVICE) for ending in ENDINGS),
    *((scene, plugin, "del") for scene in _SCENES[1:] for plugin in (SRIOV, HOST_DEVICE)),
]


class VfHost(Host):
    """The guest as a host whose network cards are virtual functions."""

    known: ClassVar[dict[tuple[str, str], tuple[str, ...]]] = {}  # of all of them

    def furnish(self) -> None:
        self.node.host.set_sysctl("net/ipv6/conf/default/accept_ra", 0)  # QEMU's network advertises routes
        card = pci.cards()[0]
        command("ip", "link", "set", pci.netdev(card.name), "up")
        self.addresses = pci.set_vfs(card, 2)
        for address, name in zip(self.addresses, (DEVICE, OTHER), strict=True):
            self.node.host.set(pci.netdev(address), state="down")
            self.node.host.set(pci.netdev(address), ifname=name)
            self.node.host.set(name, mtu=1400, state="up")
        assert until(lambda: all(self.node.host.link(name).carrier for name in (DEVICE, OTHER)), 60)
        self._shell("ip addr add 10.3.0.2/24 dev ens3f0; ip addr add fd00:3::2/64 dev ens3f0 nodad")
        self._shell(self.scene.commands)
        self.node.remember()

    def _selected(self) -> dict[str, Any]:
        key = "deviceID" if self.plugin == SRIOV else "pciBusID"
        return {key: self.addresses[0]}

    def end_sandbox(self) -> None:
        self.node.delete_pod(self.pod)
        pci.wait_for_netdev(self.addresses[0])

    def points(self, verb: str) -> tuple[str, ...]:
        if (self.plugin, verb) not in self.known:
            self.known |= {(self.plugin, each): self.traced(each) for each in ("ADD", "DEL")}
        return self.known[self.plugin, verb]


@pytest.fixture
def without_vfs() -> Iterator[None]:
    yield
    pci.set_vfs(pci.cards()[0], 0)


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cells.name(cell)) for cell in _CELLS])
def test_a_vf_comes_home_with_all_that_it_had(machine: Machine, without_vfs: None, cell: cells.Cell) -> None:
    scene, plugin, ending = cell
    with VfHost(SCENES[scene], plugin, machine) as host:
        verdict = cells.judged(host, ending)
    if verdict.outcome == cells.DIFFERENT:
        pytest.fail(f"{cells.name(cell)}\n{verdict}", pytrace=False)
