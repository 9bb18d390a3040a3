"""Checks of kernel modules, of the NICs that need them, and of the device nodes in /dev/infiniband.

A built-in module may have no directory in /sys/module, but its other entries in sysfs are there: the classes infiniband
(ib_core) and infiniband_verbs (ib_uverbs), and the misc device rdma_cm (rdma_ucm).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cni.cli.doctor.finding import ADVICE, FAULT, Observation, broken, note, ok
from cni.node.inventory import functions
from cni.node.inventory.functions import Function
from cni.node.inventory.topology import beside, text
from cni.resources.models import VFIO
from cni.shared.kernel import rdma_sysfs
from cni.shared.kernel.files import names_in

_NEEDED = (
    ("ib_core", "class/infiniband", "nothing of RDMA works without it"),
    ("ib_uverbs", "class/infiniband_verbs", "programs reach no verbs device without it"),
    ("rdma_ucm", "class/misc/rdma_cm", "RDMA CM needs it: rping, ib_write_bw -R, and storage"),
)
# the driver of a NIC's netdev, and the module that makes a verbs device of the same function
_COMPANIONS = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "qede": "qedr",
    "ionic": "ionic_rdma",
    "hns3": "hns_roce_hw_v2",
    "mana": "mana_ib",
    "cxgb4": "iw_cxgb4",
}
_KNOWN = (*(name for name, _, _ in _NEEDED), *_COMPANIONS.values())
_MELLANOX = "15b3"


@dataclass(frozen=True)
class Modules:
    """The loaded RDMA modules, and the physical network functions.

    `bonded` maps the `id` of a function that has no verbs device of its own to the verbs device of its bond (LAG)."""

    loaded: frozenset[str]
    functions: tuple[Function, ...]
    bonded: Mapping[str, str] = field(default_factory=dict)


def read(root: str = "/sys") -> Modules:
    """Read the loaded kernel modules and the physical network functions."""
    signs = [*((name, sign) for name, sign, _ in _NEEDED), *((name, f"module/{name}") for name in _KNOWN)]
    loaded = {name for name, sign in signs if os.path.isdir(f"{root}/{sign}")}
    physical = [f for f in functions.read(root) if f.vendor and not f.is_virtual]
    with_verbs = [f for f in physical if f.verbs]
    loaded.update(_COMPANIONS[f.driver] for f in with_verbs if f.driver in _COMPANIONS)  # also one that is built in
    bonded = {
        one.id: other.verbs[0]
        for one in physical
        for other in with_verbs
        if not one.verbs and one.driver == other.driver and _uppers(one, root) & _uppers(other, root)
    }
    return Modules(frozenset(loaded), tuple(physical), bonded)


def _uppers(function: Function, root: str) -> set[str]:
    return {upper for netdev in function.netdevs for upper in beside(netdev, "upper_", root)}


def check(modules: Modules) -> Iterator[Observation]:
    """Check the needed kernel modules, and that each RDMA NIC has its driver and its verbs driver."""
    for name, _, why in _NEEDED if "ib_core" in modules.loaded else ():  # else `check_devices` reports it
        if name in modules.loaded:
            yield ok(name, "loaded")
        else:
            yield broken(name, f"not loaded: {why}", "loaded", f"modprobe {name}, and add it to /etc/modules-load.d")
    for function in modules.functions:
        companion = _COMPANIONS.get(function.driver, "")
        if function.verbs:
            yield ok(function.id, f"{function.driver}, with a verbs device")
        elif function.id in modules.bonded:
            yield ok(function.id, f"{function.driver}, in a bond with the verbs device {modules.bonded[function.id]}")
        elif function.vendor == _MELLANOX and not function.driver:
            yield broken(function.id, "an NVIDIA NIC without a driver", "mlx5_core", "modprobe mlx5_core; see dmesg")
        elif companion and companion not in modules.loaded:
            level = FAULT if function.vendor == _MELLANOX else ADVICE
            found = f"{function.driver} without {companion}: a NIC without a verbs device"
            yield Observation(level, function.id, found, f"{companion} loaded", f"modprobe {companion}")
        elif companion:
            yield note(function.id, f"{function.driver} and {companion}, and no verbs device is seen here")


def check_nodes(root: str, dev: str, chosen: Collection[str] | None = None) -> Iterator[Observation]:
    """Find device nodes that are missing or wrong: of all verbs devices and rdma_cm, or only those in `chosen`."""
    folder = f"{root}/class/infiniband_verbs"
    places = {name: f"{folder}/{name}" for name in sorted(names_in(folder)) if name.startswith("uverbs")}
    for name, place in {**places, "rdma_cm": f"{root}/class/misc/rdma_cm"}.items():
        if os.path.isdir(place) and (chosen is None or name in chosen):
            yield _node(f"{dev}/infiniband/{name}", text(f"{place}/dev"))


def _node(path: str, wanted: str) -> Observation:
    """Check that the device node at `path` is the character device `wanted`, MAJOR:MINOR."""
    healthy = f"character device {wanted}"
    try:
        status = os.stat(path)
    except OSError:
        remedy = "udevadm trigger; in a container: mount /dev/infiniband, as a device plugin does"
        return broken(path, "not there", healthy, remedy)
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    found = number if stat.S_ISCHR(status.st_mode) else "no character device"
    if wanted in ("", found):
        return ok(path, f"{found}, mode {stat.S_IMODE(status.st_mode):o}")
    return broken(path, found, healthy, "udevadm trigger; see udev's log")


def check_devices(names: Sequence[str], modules: Modules, moved: bool) -> Iterator[Observation]:
    """Check that there is a verbs device. `moved`: the plugin `rdma` may have moved all of them into pods."""
    if names:
        yield ok("verbs devices", ", ".join(names))
        return
    if moved:
        yield note("verbs devices", "none in this namespace: the plugin rdma may have moved them into pods")
        return
    for_dpdk = [f.id for f in modules.functions if f.driver == VFIO]
    nics = [f.id for f in modules.functions if f.driver in _COMPANIONS or (f.vendor == _MELLANOX and f.driver != VFIO)]
    remedy = "load the verbs driver of the node's RDMA NIC; without such a NIC, soft-RoCE: rdma link add rxe0 type rxe netdev NETDEV"
    if nics:
        remedy = f"load the verbs driver of {', '.join(nics)}"
    elif for_dpdk:
        remedy = f"for RDMA, bind {', '.join(for_dpdk)} to the vendor's driver: {VFIO} is for DPDK"
    found = f"none in /sys{rdma_sysfs.CLASS}"
    if "ib_core" not in modules.loaded:
        missing = [name for name, _, _ in _NEEDED if name not in modules.loaded]
        found += f": {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not loaded"
        remedy = f"modprobe -a {' '.join(missing)}, and add them to /etc/modules-load.d; then {remedy}"
    yield broken("verbs devices", found, "one for each RDMA NIC", remedy)
