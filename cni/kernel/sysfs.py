"""Devices and their netdevs, as sysfs shows them.

A mount of sysfs shows the netdevs of the network namespace in which it was mounted, whichever one the reader is in.
`root` is where it is mounted. What is not there is answered with "" or an empty list; other OSErrors pass through.
Sources: Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net of the kernel.
"""

from __future__ import annotations

import posix

_HEX = frozenset("0123456789abcdefABCDEF")


def is_pci(device: str, root: str = "/sys") -> bool:
    """Whether this node has a PCI device with the address `device`, "0000:3b:00.2"."""
    return _is_name(device) and _exists(f"{root}/bus/pci/devices/{device}")


def is_auxiliary(device: str, root: str = "/sys") -> bool:
    """Whether this node has an auxiliary device of this name, "mlx5_core.sf.4" (a scalable function)."""
    return _is_name(device) and _exists(f"{root}/bus/auxiliary/devices/{device}")


def driver_of_pci(address: str, root: str = "/sys") -> str:
    """The driver that the PCI device is bound to, "mlx5_core" or "vfio-pci"; "" for none."""
    return _target(f"{root}/bus/pci/devices/{address}/driver").rpartition("/")[2] if _is_name(address) else ""


def netdevs_of_pci(address: str, root: str = "/sys") -> list[str]:
    """The netdevs of a PCI device, in order of name; those of a virtio device lie one level deeper."""
    return _netdevs(f"{root}/bus/pci/devices/{address}") if _is_name(address) else []


def netdevs_of_auxiliary(device: str, root: str = "/sys") -> list[str]:
    """The netdevs of an auxiliary device, in order of name."""
    return _netdevs(f"{root}/bus/auxiliary/devices/{device}") if _is_name(device) else []


def netdevs_of_path(path: str, root: str = "/sys") -> list[str]:
    """The netdevs of the device at `path`, which begins with "/sys/devices/", in order of name."""
    return _netdevs(root + path.removeprefix("/sys"))


def pci_path_of_netdev(name: str, root: str = "/sys") -> str:
    """The path "/sys/devices/pci…/ADDRESS" of the PCI device nearest above the netdev; "" when there is none.

    The path ends with the address of the device. It says the slot, so it stays when names and MACs change.
    """
    parts = _target(f"{root}/class/net/{name}").split(
        "/"
    )  # ../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/net/NAME
    while parts and not _is_pci_address(parts[-1]):
        parts.pop()
    return "/sys/" + "/".join(parts[parts.index("devices") :]) if parts else ""


def _netdevs(device: str) -> list[str]:
    found = _listed(f"{device}/net")
    if not found:
        for entry in _listed(device):
            if entry.startswith("virtio"):
                found += _listed(f"{device}/{entry}/net")
    return sorted(found)


def _is_pci_address(text: str) -> bool:
    """Whether `text` is domain:bus:device.function, in hexadecimal digits; a domain may have more than four."""
    parts = text.replace(".", ":", 1).split(":")
    return len(parts) == 4 and [len(p) for p in parts[1:]] == [2, 2, 1] and _HEX.issuperset("".join(parts))


def _is_name(text: str) -> bool:
    return bool(text) and text not in (".", "..") and "/" not in text and "\0" not in text


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except FileNotFoundError:
        return False
    return True


def _target(link: str) -> str:
    try:
        return posix.readlink(link)
    except FileNotFoundError:
        return ""


def _listed(directory: str) -> list[str]:
    try:
        return posix.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
