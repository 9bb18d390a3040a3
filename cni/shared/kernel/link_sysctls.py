"""Save and restore the sysctls of a single link: the files below /proc/sys/net/FAMILY/conf/LINK.

The files are those of the thread's namespace. Sources: devinet_sysctl (net/ipv4/devinet.c), addrconf_sysctl
(net/ipv6/addrconf.c), mpls_dev_table (net/mpls/af_mpls.c).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from errno import EACCES, EIO, EPERM

from cni.shared.kernel import files

_READ_ONLY = "mc_forwarding"
_STABLE = "ipv6/stable_secret"
_PAGE = 4096


def read(link: str) -> dict[str, str]:
    """The values of the sysctls of `link`, by "FAMILY/NAME", in the order in which they must be restored.

    Raises FileNotFoundError when there is no such link, or it is renamed during the call, and another OSError for a
    failure that may be transient.
    """
    found: dict[str, str | None] = {}
    for family in ("ipv6", "ipv4", "mpls"):
        try:
            folder = os.open(f"/proc/sys/net/{family}/conf/{link}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            if family == "ipv4":
                raise
            continue  # the kernel does not have the family, or the link's MTU is too small for IPv6
        try:
            found |= {f"{family}/{name}": _value(folder, name) for name in sorted(os.listdir(folder))}
        finally:
            os.close(folder)
    values = {key: value for key, value in found.items() if value is not None and not key.endswith(_READ_ONLY)}
    return {key: values[key] for key in sorted(values, key=lambda key: key != _STABLE)}


def due(link: str, wanted: dict[str, str]) -> Iterator[tuple[str, Callable[[str, str], None], str, str]]:
    """Compare the sysctls of `link` with the values `wanted`, which `read` returned, and yield (description, function,
    path, value) for each that differs: `function(path, value)` then sets the sysctl."""
    held = read(link)
    for key, value in wanted.items():
        if held.get(key) != value:
            family, _, name = key.partition("/")
            path = f"net/{family}/conf/{link}/{name}"
            yield f"{path} = {value}", files.write_sysctl, path, value
            if key == _STABLE:
                held = read(link)  # with the secret of stable addresses, the kernel has set addr_gen_mode


def _value(folder: int, name: str) -> str | None:
    """The value of the file `name` in the open directory `folder`; None for a file that cannot be read, such as a
    secret that is not set. The kernel finds a file in an open directory four times as fast as by its path."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        try:
            return os.read(fd, _PAGE).decode().rstrip("\n")
        finally:
            os.close(fd)
    except OSError as fault:
        if fault.errno not in (EACCES, EIO, EPERM):
            raise
        return None
