"""Checks of the PCI side of RDMA NICs: link width and speed, relaxed ordering, ACS, IOMMU, and access to the memory of
GPUs.

Source: Documentation/ABI/testing/sysfs-bus-pci (current_link_*, max_link_*), sysfs-kernel-iommu_groups. The file
`config` has the registers of include/uapi/linux/pci_regs.h: a list of capabilities begins at 0x34, a list of extended
capabilities at 0x100. Only root can read beyond the first 64 bytes, which contain no capability.

A NIC can reach the memory of GPUs by one of three means: the module nvidia_peermem, its predecessor nv_peer_mem, or
DMA-BUF, which NVIDIA's open kernel modules offer on Linux 5.12 and newer (GPUDirect RDMA documentation;
drivers/infiniband/core/umem_dmabuf.c).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cni.cli.doctor.finding import Observation, advice, broken, ok, unknown
from cni.cli.terminal.output import counted
from cni.node.inventory.topology import PIX, PXB, Topology, device, is_address, text

_FIRST, _FIRST_EXTENDED = 0x34, 0x100
_EXPRESS, _ACS = 0x10, 0x0D
_DEVICE_CONTROL, _RELAXED_ORDERING = 8, 0x0010
_ACS_CONTROL, _REDIRECTS = 6, 0x0004 | 0x0008 | 0x0010  # request redirect, completion redirect, upstream forwarding
_OPEN = 64  # bytes of a configuration space that every user can read
_MOST = 96  # capabilities to read at most: a damaged list may have no end
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_NVIDIA = 0x10DE
_DMA_BUF = (5, 12)


@dataclass(frozen=True)
class PcieLink:
    """A PCIe link: its speed in GT/s and its width in lanes, each 0 if not known."""

    speed: float = 0.0
    width: int = 0

    def __str__(self) -> str:
        return f"{self.speed:g} GT/s x{self.width}"

    @property
    def rate(self) -> float:
        return self.speed * self.width


@dataclass(frozen=True)
class PcieFunction:
    """A NIC's PCI function. `now` is its current link. `best` is the best link that the card supports, and `slot_best`
    the best link that the port above the card supports. `domain` is the type of its IOMMU group: "identity" passes DMA
    through, "DMA" and "DMA-FQ" translate it, "" means no group. `relaxed_ordering` is True, False, or the reason why it
    is not known. `unread` is the reason why a link is not known."""

    name: str
    address: str
    now: PcieLink
    best: PcieLink
    slot_best: PcieLink
    relaxed_ordering: bool | str = ""
    domain: str = ""
    unread: str = ""


Bridges = dict[str, bool | str]
"""For each PCI bridge above a GPU or a NIC near one: whether ACS redirects peer traffic, or why that is not known."""


def read(nics: Iterable[tuple[str, str]], root: str = "/sys") -> list[PcieFunction]:
    """Read the PCI functions of `nics`, given as (verbs device, PCI address)."""
    found = []
    for name, address in nics:
        place, above = f"{root}/bus/pci/devices/{address}", device(address, root).above[-1:]
        port = f"{root}/bus/pci/devices/{above[0]}" if above and is_address(above[0]) else ""
        links = _link(place, "current"), _link(place, "max"), _link(port, "max") if port else PcieLink()
        domain = text(f"{place}/iommu_group/type")
        found.append(PcieFunction(name, address, *links, _read(relaxed_ordering, place), domain, _unread(place)))
    return found


def read_bridges(topology: Topology, root: str = "/sys") -> Bridges:
    """Read the ACS setting of each PCI bridge above a GPU and a NIC that share a PCIe switch."""
    pairs = [(a, b) for a in topology.gpus for _, b in topology.nics if topology.distance(a, b) in (PIX, PXB)]
    near = {bridge for pair in pairs for one in pair for bridge in one.above if is_address(bridge)}
    return {b: _read(redirects_peers, f"{root}/bus/pci/devices/{b}") for b in sorted(near)}


def check_links(functions: Sequence[PcieFunction]) -> Iterator[Observation]:
    """Find PCIe links with less bandwidth than both ends support (a fault), or than the card supports (advice)."""
    for function in functions:
        subject = f"{function.name} ({function.address})"
        now, best, slot = function.now, function.best, function.slot_best
        if not now.width or not best.width:
            yield unknown(subject, f"its PCIe link is not known: {function.unread}")
            continue
        here = PcieLink(min(best.speed, slot.speed or best.speed), min(best.width, slot.width or best.width))
        if now.rate < here.rate:
            remedy = "reseat the card or its riser; see `lspci -vv` of it and of the port above for errors"
            yield broken(subject, f"PCIe {now}", f"{here}, which both ends can", remedy)
        elif now.rate < best.rate:
            remedy = "move the card to a slot that can, if its network is faster than this one"
            yield advice(subject, f"PCIe {now}, as fast as its slot", f"{best}, as the card can", remedy)
        else:
            yield ok(subject, f"PCIe {now}")


def check_settings(functions: Sequence[PcieFunction], bridges: Bridges) -> Iterator[Observation]:
    """Find settings that cost speed: relaxed ordering is off, the IOMMU translates DMA, or ACS sends traffic between a
    GPU and a NIC through the host bridge."""
    for function in functions:
        subject = f"{function.name} ({function.address})"
        if isinstance(function.relaxed_ordering, str):
            yield unknown(subject, f"relaxed ordering: {function.relaxed_ordering}")
        elif not function.relaxed_ordering:
            remedy = f"mlxconfig -d {function.address} set PCI_WR_ORDERING=1 (NVIDIA's firmware), or in the BIOS"
            yield advice(subject, "relaxed ordering is off", "on: writes to memory go faster", remedy)
        else:
            yield ok(subject, "relaxed ordering is on")
        if function.domain.startswith("DMA"):
            remedy = "iommu=pt on the kernel's command line"
            yield advice(subject, f"the IOMMU translates its DMA ({function.domain})", "pass-through", remedy)
    wrong = [bridge for bridge, redirects in bridges.items() if redirects is True]
    unread = [redirects for redirects in bridges.values() if isinstance(redirects, str)]
    if wrong:
        where = f"{', '.join(wrong[:4])}{', …' if len(wrong) > 4 else ''}"
        healthy = "off between GPUs and NICs, unless virtual machines get them"
        remedy = "disable ACS in the BIOS, or with setpci ECAP_ACS+0x6.w=0000 on each of these bridges at boot"
        yield advice("ACS", f"on at {where}: GPU and NIC of one switch talk by the host", healthy, remedy)
    elif unread:
        for why in dict.fromkeys(unread):
            yield unknown("ACS", f"of {counted(unread.count(why), 'bridge')}: {why}")
    elif bridges:
        yield ok("ACS", f"off on the {len(bridges)} bridges between GPUs and NICs")


def _unread(place: str) -> str:
    for name in (f"{which}_link_{what}" for which in ("current", "max") for what in ("speed", "width")):
        told = text(f"{place}/{name}")
        if not told[:1].isdigit() or told == "0":  # "Unknown" without a link, as in many virtual machines
            return f"{name} is {told or 'missing'} in sysfs"
    return ""


def _link(place: str, which: str) -> PcieLink:
    speed = text(f"{place}/{which}_link_speed").split(" ")[0]  # "32.0 GT/s PCIe"; virtual functions have "Unknown"
    width = text(f"{place}/{which}_link_width")
    try:
        return PcieLink(float(speed), int(width) if width.isdigit() else 0)
    except ValueError:
        return PcieLink()


def _read(setting: Callable[[bytes], bool | None], place: str) -> bool | str:
    """Apply the function `setting` to the configuration space of the PCI device in the sysfs folder `place`. Return the
    value, or the reason why it is not known."""
    try:
        with open(f"{place}/config", "rb") as file:
            config = file.read(4096)
    except OSError:
        return "the file `config` in sysfs is missing or cannot be read"
    if (is_on := setting(config)) is not None:
        return is_on
    return "only root can read it" if len(config) == _OPEN else "the configuration space has no such register"


# --- the configuration space; pure ---


def relaxed_ordering(config: bytes) -> bool | None:
    """Whether `config`, a configuration space, enables relaxed ordering; None if its register cannot be read."""
    control = _register(config, _EXPRESS, _DEVICE_CONTROL)
    return None if control is None else bool(control & _RELAXED_ORDERING)


def redirects_peers(config: bytes) -> bool | None:
    """Whether ACS of a bridge sends traffic between devices below the bridge up to the host bridge; None if `config`,
    the bridge's configuration space, is too short."""
    if len(config) <= _FIRST_EXTENDED:
        return None
    return bool((_register(config, _ACS, _ACS_CONTROL, is_extended=True) or 0) & _REDIRECTS)


def _register(config: bytes, wanted: int, offset: int, is_extended: bool = False) -> int | None:
    """The 16-bit register at `offset` in the first capability with the ID `wanted`; None if the configuration space
    `config` lacks this capability, or ends before the register."""
    first, end = (_FIRST_EXTENDED, len(config)) if is_extended else (0x40, min(len(config), _FIRST_EXTENDED))
    at = first if is_extended else int.from_bytes(config[_FIRST : _FIRST + 1], "little") & ~3
    for _ in range(_MOST):
        if not first <= at <= end - 4:
            break
        header = int.from_bytes(config[at : at + 4], "little")
        kind, following = (header & 0xFFFF, header >> 20) if is_extended else (header & 0xFF, header >> 8 & 0xFF)
        if kind == wanted and at + offset + 2 <= len(config):
            return int.from_bytes(config[at + offset : at + offset + 2], "little")
        at = following & ~3
    return None


# --- GPUs ---


def check_memory(topology: Topology, root: str = "/sys", proc: str = "/proc") -> Iterator[Observation]:
    """Check whether NICs reach the memory of NVIDIA GPUs."""
    if not any(gpu.vendor == _NVIDIA for gpu in topology.gpus):
        return
    module = next((m for m in _PEER_MODULES if os.path.isdir(f"{root}/module/{m}")), "")
    driver = text(f"{proc}/driver/nvidia/version").partition("\n")[0]
    subject = "memory of the GPUs"
    version = re.match(r"(\d+)\.(\d+)", text(f"{proc}/sys/kernel/osrelease"))
    is_new = version is not None and (int(version[1]), int(version[2])) >= _DMA_BUF
    if module:
        yield ok(subject, f"reached by {module}")
    elif is_new and "Open Kernel Module" in driver:
        yield ok(subject, "reached by DMA-BUF (NVIDIA's open kernel modules)")
    elif not driver:
        yield unknown(subject, "NVIDIA's driver is not seen here: in a container, or not installed")
    else:
        why = "neither nvidia_peermem nor NVIDIA's open kernel modules are loaded"
        found = f"NICs do not reach it: {why}, so all that GPUs send is copied through the host's memory"
        healthy = "nvidia_peermem loaded, or the open kernel modules on Linux 5.12 or newer (DMA-BUF)"
        remedy = "modprobe nvidia_peermem, and add it to /etc/modules-load.d"
        yield broken(subject, found, healthy, f"{remedy} (with the GPU Operator: driver.rdma.enabled)")
