"""Read devices and their netdevs from sysfs.

`root` is the mount point of sysfs. A mount shows the netdevs of the network namespace in which it was mounted, not of
the reader's namespace. For a missing device the functions return "" or an empty list. Other OSErrors are raised.
Sources: Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net of the kernel.
"""

from __future__ import annotations

import os

_HEX = frozenset("0123456789abcdefABCDEF")


def is_pci(device: str, root: str = "/sys") -> bool:
    """Whether this node has a PCI device with the address `device`, such as "0000:3b:00.2"."""
    return _is_name(device) and _exists(f"{root}/bus/pci/devices/{device}")


def driver_of_pci(address: str, root: str = "/sys") -> str:
    """The driver of the PCI device, such as "mlx5_core" or "vfio-pci"; "" when it has no driver."""
    return _target(f"{root}/bus/pci/devices/{address}/driver").rpartition("/")[2] if _is_name(address) else ""


def physical_function_of(address: str, root: str = "/sys") -> str:
    """The PCI address of the physical function of the VF `address`; "" when `address` is no VF."""
    return _target(f"{root}/bus/pci/devices/{address}/physfn").rpartition("/")[2] if _is_name(address) else ""


def is_physical_function(address: str, root: str = "/sys") -> bool:
    """Whether the PCI device can have virtual functions."""
    return _is_name(address) and _exists(f"{root}/bus/pci/devices/{address}/sriov_totalvfs")


def function_of(address: str, root: str = "/sys") -> tuple[str, int] | None:
    """The PCI address of the physical function of the VF `address`, and the number of the VF. None when `address` is no
    VF, or when this machine, such as a virtual machine, does not have the physical function."""
    physical = physical_function_of(address, root)
    for name in _listed(f"{root}/bus/pci/devices/{physical}") if physical else []:
        number = name.removeprefix("virtfn")
        if number != name and _target(f"{root}/bus/pci/devices/{physical}/{name}").rpartition("/")[2] == address:
            return physical, int(number)
    return None


def netdevs_of_pci(address: str, root: str = "/sys") -> list[str]:
    """The netdevs, sorted by name, of a PCI device or of the virtio device on it."""
    return netdevs_of("pci", address, root)


def netdevs_of(bus: str, device: str, root: str = "/sys") -> list[str]:
    """The netdevs, sorted by name, that a device of `bus` has in the namespace of the sysfs mount `root`."""
    return _netdevs(f"{root}/bus/{bus}/devices/{device}") if _is_name(device) else []


def has_netdev(bus: str, device: str, root: str = "/sys") -> bool:
    """Whether the device of `bus` has a netdev in any network namespace. Each mount of sysfs then has the device's
    directory `net`, although `net` does not list netdevs of other namespaces."""
    if not _is_name(device):
        return False
    path = f"{root}/bus/{bus}/devices/{device}"
    inner = [f"{path}/{entry}" for entry in _listed(path) if entry.startswith("virtio")]
    return any(_exists(f"{each}/net") for each in (path, *inner))


def netdevs_of_path(path: str, root: str = "/sys") -> list[str]:
    """The netdevs, sorted by name, of the device at `path`, which begins with "/sys/devices/"."""
    return _netdevs(root + path.removeprefix("/sys"))


def pci_path_of_netdev(name: str, root: str = "/sys") -> str:
    """The path "/sys/devices/pci…/ADDRESS" of the PCI device nearest above the netdev; "" when there is none. The path
    identifies the slot and ends with the PCI address. It stays the same when names and MACs change."""
    parts = _absolute(_target(f"{root}/class/net/{name}")).split("/")
    while parts and not is_pci_address(parts[-1]):
        parts.pop()
    return "/".join(parts)


def path_of(bus: str, device: str, root: str = "/sys") -> str:
    """The path "/sys/devices/…" of a device of `bus`; "" when there is no such device."""
    return _absolute(_target(f"{root}/bus/{bus}/devices/{device}")) if _is_name(bus) and _is_name(device) else ""


def pci_above(path: str) -> str:
    """The address of the last PCI device in `path`, a device's path below /sys/devices; "" if there is none."""
    return next((part for part in reversed(path.split("/")) if is_pci_address(part)), "")


def _absolute(target: str) -> str:
    """The absolute path "/sys/devices/…" for `target`, the relative target "../../devices/…" of a link in sysfs."""
    return "/sys/" + target[target.index("devices/") :] if "devices/" in target else ""


def _netdevs(device: str) -> list[str]:
    found = _listed(f"{device}/net")
    if not found:
        for entry in _listed(device):
            if entry.startswith("virtio"):
                found += _listed(f"{device}/{entry}/net")
    return sorted(found)


def is_pci_address(text: str) -> bool:
    """Whether `text` is domain:bus:device.function, in hexadecimal digits, of which the domain has four or more."""
    rest, dot, function = text.rpartition(".")
    domain, *parts = rest.split(":")
    lengths = [len(p) for p in (*parts, function)]
    return (
        dot != "" and len(domain) >= 4 and lengths == [2, 2, 1] and _HEX.issuperset(domain + "".join(parts) + function)
    )


def _is_name(text: str) -> bool:
    return bool(text) and text not in (".", "..") and "/" not in text and "\0" not in text


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
