"""GPUs: which NIC is near which, and whether a NIC reaches their memory.

Three ways lead there: the module nvidia_peermem, its predecessor nv_peer_mem, and DMA-BUF, which NVIDIA's open kernel
modules offer on Linux 5.12 and newer (GPUDirect RDMA documentation; drivers/infiniband/core/umem_dmabuf.c).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cni.cli.doctor.finding import FAULT, NOTE, OK, UNKNOWN, Observation
from cni.library.inventory.topology import SYS, Topology, text

_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")
_NVIDIA = 0x10DE
_DMA_BUF = (5, 12)


@dataclass(frozen=True)
class PeerMemory:
    """`module`: the one of the two that is loaded, or "". `driver` is what NVIDIA's driver says of itself, "" for none."""

    module: str
    driver: str
    release: str

    @property
    def has_dma_buf(self) -> bool:
        """Whether kernel and driver can share GPU memory by dma-buf, without such a module."""
        release = re.match(r"(\d+)\.(\d+)", self.release)
        new = release is not None and (int(release[1]), int(release[2])) >= _DMA_BUF
        return new and "Open Kernel Module" in self.driver


def read(root: str = "/sys", proc: str = "/proc") -> PeerMemory:
    """The module for peer memory that is loaded, and the versions of NVIDIA's driver and of the kernel."""
    module = next((m for m in _PEER_MODULES if os.path.isdir(f"{root}/module/{m}")), "")
    driver = text(f"{proc}/driver/nvidia/version").partition("\n")[0]
    return PeerMemory(module, driver, text(f"{proc}/sys/kernel/osrelease"))


def check_memory(peer: PeerMemory, topology: Topology) -> Iterator[Observation]:
    """Whether the memory of the node's NVIDIA GPUs can be reached."""
    if not any(gpu.vendor == _NVIDIA for gpu in topology.gpus):
        return
    subject = "memory of the GPUs"
    if peer.module:
        yield Observation(OK, subject, f"reached by {peer.module}")
    elif peer.has_dma_buf:
        yield Observation(OK, subject, "reached by DMA-BUF (NVIDIA's open kernel modules)")
    elif not peer.driver:
        yield Observation(UNKNOWN, subject, "NVIDIA's driver is not seen here: in a container, or not installed")
    else:
        yield Observation(
            FAULT,
            subject,
            "NICs do not reach it: neither nvidia_peermem nor NVIDIA's open kernel modules are loaded, so all that GPUs"
            " send is copied through the host's memory",
            "nvidia_peermem loaded, or the open kernel modules on Linux 5.12 or newer (DMA-BUF)",
            "modprobe nvidia_peermem, and add it to /etc/modules-load.d (with the GPU Operator: driver.rdma.enabled)",
        )


def check_distance(topology: Topology) -> Iterator[Observation]:
    """For each GPU its nearest NICs."""
    for number, gpu in enumerate(topology.gpus):
        near = topology.nearest(gpu)
        if not near:
            continue
        distance = topology.distance(gpu, dict(topology.nics)[near[0]])
        found = f"{distance} to {', '.join(near)}"
        if distance == SYS:
            found += ": no NIC is on its NUMA node"
        yield Observation(NOTE, f"GPU{number} ({gpu.address})", found)
