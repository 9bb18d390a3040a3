"""The PCI side of RDMA NICs: link width and speed, relaxed ordering, ACS, IOMMU, virtual functions.

Source: Documentation/ABI/testing/sysfs-bus-pci (current_link_*, max_link_*, sriov_*), sysfs-kernel-iommu_groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cni.cli.doctor import config_space
from cni.cli.doctor.finding import ADVICE, FAULT, NOTE, OK, UNKNOWN, Observation
from cni.library.inventory.topology import PIX, PXB, Topology, device, is_address, text


@dataclass(frozen=True)
class PcieLink:
    """A PCIe link: GT/s and lanes, 0 where nobody says."""

    speed: float = 0.0
    width: int = 0

    def __str__(self) -> str:
        return f"{self.speed:g} GT/s x{self.width}"

    @property
    def rate(self) -> float:
        return self.speed * self.width


@dataclass(frozen=True)
class PcieFunction:
    """A NIC's PCI function. `slot_best` is the best that the port above can do. `domain` is the type of its IOMMU
    group: "identity" passes DMA through, "DMA" and "DMA-FQ" translate it, "" there is none. None: cannot be read."""

    name: str
    address: str
    now: PcieLink
    best: PcieLink
    slot_best: PcieLink
    relaxed_ordering: bool | None = None
    domain: str = ""
    virtual_functions: int = 0
    most_virtual_functions: int = 0


Bridges = dict[str, bool | None]
"""The PCI bridges above NICs and GPUs that are near one another; whether ACS there redirects, None: not read."""


def read(nics: Iterable[tuple[str, str]], root: str = "/sys") -> list[PcieFunction]:
    """The functions of `nics`: names of verbs devices with their PCI addresses."""
    return [_function(name, address, f"{root}/bus/pci/devices/{address}", root) for name, address in nics]


def _function(name: str, address: str, place: str, root: str) -> PcieFunction:
    above = device(address, root).above[-1:]
    port = f"{root}/bus/pci/devices/{above[0]}" if above and is_address(above[0]) else ""
    return PcieFunction(
        name=name,
        address=address,
        now=_link(place, "current"),
        best=_link(place, "max"),
        slot_best=_link(port, "max") if port else PcieLink(),
        relaxed_ordering=config_space.relaxed_ordering(_config(place)),
        domain=text(f"{place}/iommu_group/type"),
        virtual_functions=_number(text(f"{place}/sriov_numvfs")),
        most_virtual_functions=_number(text(f"{place}/sriov_totalvfs")),
    )


def read_bridges(topology: Topology, root: str = "/sys") -> Bridges:
    """The bridges between GPUs and the NICs that share a switch with them."""
    near: set[str] = set()
    for gpu in topology.gpus:
        for _, nic in topology.nics:
            if topology.distance(gpu, nic) in (PIX, PXB):
                near.update(b for b in (*gpu.above, *nic.above) if is_address(b))
    return {b: config_space.redirects_peers(_config(f"{root}/bus/pci/devices/{b}")) for b in sorted(near)}


def check_links(functions: Sequence[PcieFunction]) -> Iterator[Observation]:
    """Links that run slower or narrower than both of their ends can."""
    for function in functions:
        subject = f"{function.name} ({function.address})"
        now, best, slot = function.now, function.best, function.slot_best
        if not now.width or not best.width:
            yield Observation(UNKNOWN, subject, "its PCIe link is not told, as of a virtual function")
            continue
        here = PcieLink(min(best.speed, slot.speed or best.speed), min(best.width, slot.width or best.width))
        if now.rate < here.rate:
            remedy = "reseat the card or its riser; see `lspci -vv` of it and of the port above for errors"
            yield Observation(FAULT, subject, f"PCIe {now}", f"{here}, which both ends can", remedy)
        elif now.rate < best.rate:
            remedy = "move the card to a slot that can, if its network is faster than this one"
            yield Observation(ADVICE, subject, f"PCIe {now}, as fast as its slot", f"{best}, as the card can", remedy)
        else:
            yield Observation(OK, subject, f"PCIe {now}")


def check_settings(functions: Sequence[PcieFunction], bridges: Bridges) -> Iterator[Observation]:
    """What costs speed: ordered writes, translated DMA, and ACS that sends what GPU and NIC exchange to the host."""
    for function in functions:
        subject = f"{function.name} ({function.address})"
        if function.relaxed_ordering is None:
            yield Observation(UNKNOWN, subject, "relaxed ordering: only root can read it")
        elif not function.relaxed_ordering:
            remedy = "in the firmware: PCI_WR_ORDERING=1 (mlxconfig); or in the BIOS"
            yield Observation(ADVICE, subject, "relaxed ordering is off", "on: writes to memory go faster", remedy)
        else:
            yield Observation(OK, subject, "relaxed ordering is on")
        if function.domain.startswith("DMA"):
            remedy = "iommu=pt on the kernel's command line"
            yield Observation(
                ADVICE, subject, f"the IOMMU translates its DMA ({function.domain})", "pass-through", remedy
            )
    wrong = [bridge for bridge, redirects in bridges.items() if redirects]
    unread = [bridge for bridge, redirects in bridges.items() if redirects is None]
    if wrong:
        yield Observation(
            ADVICE,
            "ACS",
            f"on at {', '.join(wrong[:4])}{', …' if len(wrong) > 4 else ''}: GPU and NIC of one switch talk by the host",
            "off between GPUs and NICs, unless virtual machines get them",
            "disable ACS in the BIOS, or with setpci ECAP_ACS+0x6.w=0000 on each of these bridges at boot",
        )
    elif unread:
        yield Observation(UNKNOWN, "ACS", f"only root can read it ({len(unread)} bridges)")
    elif bridges:
        yield Observation(OK, "ACS", f"off on the {len(bridges)} bridges between GPUs and NICs")


def check_virtual_functions(functions: Sequence[PcieFunction]) -> Iterator[Observation]:
    """How many virtual functions there are, and may be."""
    for function in functions:
        if function.most_virtual_functions:
            found = f"{function.virtual_functions} of {function.most_virtual_functions} virtual functions"
            yield Observation(NOTE, f"{function.name} ({function.address})", found)


def _link(place: str, which: str) -> PcieLink:
    speed = text(f"{place}/{which}_link_speed").split(" ")[0]  # "32.0 GT/s PCIe"; "Unknown" of virtual functions
    try:
        return PcieLink(float(speed), _number(text(f"{place}/{which}_link_width")))
    except ValueError:
        return PcieLink()


def _number(digits: str) -> int:
    return int(digits) if digits.isdigit() else 0


def _config(place: str) -> bytes:
    try:
        with open(f"{place}/config", "rb") as file:
            return file.read(4096)
    except OSError:
        return b""
