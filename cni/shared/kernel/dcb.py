"""Read the Data Center Bridging (DCB) settings of a link: its priority flow control and its trust mode.

Numbers are those of include/uapi/linux/dcbnl.h. The request needs no privilege (net/dcb/dcbnl.c). It fails with
EOPNOTSUPP if the driver has no DCB operations or the kernel no CONFIG_DCB.
"""

from __future__ import annotations

import sys

from cni.shared.kernel.netlink import KernelError, Socket, string, unpack_attributes, unpack_list

_GETDCB = 78  # RTM_GETDCB
_HEADER = b"\0\x15\0\0"  # struct dcbmsg: AF_UNSPEC, DCB_CMD_IEEE_GET, padding
_IFNAME, _IEEE = 1, 13
_PFC, _APP_TABLE = 2, 3  # in DCB_ATTR_IEEE
_APP = 1  # in DCB_ATTR_IEEE_APP_TABLE: struct dcb_app: the selector, the priority, and the DSCP in two octets
_SELECTOR_DSCP = 5


class Dcb:
    """DCB settings. `pfc` has the lossless priorities (0 to 7), or is None if the driver does not show them. `dscp`
    maps DSCPs to priorities. In trust mode DSCP, mlx5 lists all 64 DSCPs (en_dcbnl.c)."""

    def __init__(self, pfc: tuple[int, ...] | None, dscp: dict[int, int]) -> None:
        self.pfc = pfc
        self.dscp = dscp


def read(socket: Socket, name: str) -> Dcb | None:
    """The settings of the link `name`; None when its driver shows no settings. `socket` is an rtnetlink socket."""
    try:
        replies = socket.request(_GETDCB, _HEADER + string(_IFNAME, name))
    except KernelError:
        return None
    return parse(replies[0]) if replies else None


def parse(body: bytes) -> Dcb:
    """The settings in `body`, the answer to DCB_CMD_IEEE_GET. Raises ValueError for a truncated body."""
    told = unpack_attributes(unpack_attributes(body, len(_HEADER)).get(_IEEE, b""))
    pfc = None
    if len(told.get(_PFC, b"")) > 1:  # struct ieee_pfc: capabilities, enabled priorities as bits, ...
        enabled = told[_PFC][1]
        pfc = tuple(n for n in range(8) if enabled >> n & 1)
    entries = unpack_list(told.get(_APP_TABLE, b""))
    apps = [app for kind, app in entries if kind == _APP and len(app) >= 4 and app[0] == _SELECTOR_DSCP]
    return Dcb(pfc, {int.from_bytes(app[2:4], sys.byteorder): app[1] for app in apps})
