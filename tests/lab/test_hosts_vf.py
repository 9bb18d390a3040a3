"""The matrix of tests/hosts with virtual functions of a card, which the kernel itself gives back when a pod's namespace goes."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from tests.hosts import cells
from tests.hosts.endings import ENDINGS
from tests.hosts.host import Host
from tests.hosts.judge import parameters
from tests.hosts.scenes import DEVICE, HOST_DEVICE, OTHER, SCENES
from tests.lab import pci
from tests.lab.machine import Machine, command
from tests.lab.test_hosts import judge, none_differs
from tests.node import until

MACHINES = ("sriov",)
SRIOV = "sriov"
_SCENES = ("plain", "on-link-gateway", "dhcp-lease", "ecmp-over-two-nics", "sysctls-of-firewalld")
_EVERY = [(scene, plugin, ending) for scene in _SCENES for plugin in (SRIOV, HOST_DEVICE) for ending in ENDINGS]
_CELLS = [cell for cell in _EVERY if cell[0] == "plain" or cell[2] == "del"]
_outcomes: Counter[str] = Counter()


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
        self.set_up("ip addr add 10.3.0.2/24 dev ens3f0", "ip addr add fd00:3::2/64 dev ens3f0 nodad")

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


@pytest.mark.parametrize("cell", parameters(_CELLS))
def test_a_vf_comes_home_with_all_that_it_had(machine: Machine, without_vfs: None, cell: cells.Cell) -> None:
    run(machine, cell)


@pytest.mark.long
@pytest.mark.parametrize("cell", parameters(_EVERY))
def test_every_vf_comes_home_with_all_that_it_had(machine: Machine, without_vfs: None, cell: cells.Cell) -> None:
    run(machine, cell)


def test_no_cell_of_a_vf_differs_or_is_skipped(say: Callable[[str], None]) -> None:
    none_differs(_outcomes, say)


def run(machine: Machine, cell: cells.Cell) -> None:
    scene, plugin, ending = cell
    with VfHost(SCENES[scene], plugin, machine) as host:
        judge(cell, cells.judged(host, ending), _outcomes)
