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
_STABLE = "stable_secret"  # cannot be read while there is none


def read(link: str) -> dict[str, str]:
    """The values of the sysctls of `link`, by "FAMILY/NAME", in the order in which they must be restored.

    The secret of stable addresses comes first: with it, the kernel sets addr_gen_mode. Raises FileNotFoundError when
    there is no such link, or it is renamed meanwhile, and OSError for a failure that may pass.
    """
    found = {}
    for family in ("ipv6", "ipv4", "mpls"):
        try:
            names = os.listdir(f"/proc/sys/net/{family}/conf/{link}")
        except FileNotFoundError:
            if family == "ipv4":
                raise
            continue  # the kernel does not have the family, or the link's MTU is too small for IPv6
        for name in sorted(names, key=lambda name: (name != _STABLE, name)):
            if name == _READ_ONLY:
                continue
            try:
                found[f"{family}/{name}"] = files.read_sysctl(_path(f"{family}/{name}", link))
            except OSError as fault:
                if fault.errno not in (EACCES, EIO, EPERM):
                    raise
    return found


def due(link: str, wanted: dict[str, str]) -> Iterator[tuple[str, Callable[[str, str], None], str, str]]:
    """Yield each write that the sysctls of `link` still need, in order, to have the values `wanted`, which `read`
    returned: its description, the function to call, the path, the value. Each file is compared after the earlier writes,
    because a write may change other files."""
    for key, value in wanted.items():
        path = _path(key, link)
        try:
            is_due = files.read_sysctl(path) != value
        except OSError:
            is_due = True  # a secret that is not set cannot be read
        if is_due:
            yield f"{path} = {value}", files.write_sysctl, path, value


def _path(key: str, link: str) -> str:
    family, _, name = key.partition("/")
    return f"net/{family}/conf/{link}/{name}"
