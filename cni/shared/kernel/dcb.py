"""Data Center Bridging of a link: priority flow control and trust, as far as its driver shows them.

Numbers are those of include/uapi/linux/dcbnl.h; the kernel answers in net/dcb/dcbnl.c, without a privilege. A driver
that has no operations for it refuses with EOPNOTSUPP, as does a kernel without CONFIG_DCB.
"""

from __future__ import annotations

from cni.shared.kernel.netlink import KernelError, Socket, string, unpack_attributes

_GETDCB = 78  # RTM_GETDCB
_HEADER = b"\0\x15\0\0"  # struct dcbmsg: AF_UNSPEC, DCB_CMD_IEEE_GET, padding
_IFNAME, _IEEE = 1, 13
_PFC, _APP_TABLE = 2, 3  # in DCB_ATTR_IEEE
_APP = 1  # in DCB_ATTR_IEEE_APP_TABLE: struct dcb_app, whose first octet is the selector
_SELECTOR_DSCP = 5


class Dcb:
    """`pfc` are the priorities, 0 to 7, whose frames are lossless; None: the driver does not say. `by_dscp`: there are
    entries that map DSCP to priorities, which is what mlx5 makes of trust in DSCP (en_dcbnl.c)."""

    def __init__(self, pfc: tuple[int, ...] | None, by_dscp: bool) -> None:
        self.pfc = pfc
        self.by_dscp = by_dscp


def read(socket: Socket, name: str) -> Dcb | None:
    """The settings that the driver of the link `name` shows; None when it shows none. `socket` is a route socket."""
    try:
        replies = socket.request(_GETDCB, _HEADER + string(_IFNAME, name))
    except KernelError:
        return None
    return parse(replies[0]) if replies else None


def parse(body: bytes) -> Dcb:
    """The answer to DCB_CMD_IEEE_GET; ValueError when it is cut off."""
    told = dict(unpack_attributes(dict(unpack_attributes(body, len(_HEADER))).get(_IEEE, b"")))
    pfc = None
    if len(told.get(_PFC, b"")) > 1:  # struct ieee_pfc: capabilities, enabled priorities as bits, ...
        enabled = told[_PFC][1]
        pfc = tuple(n for n in range(8) if enabled >> n & 1)
    entries = unpack_attributes(told.get(_APP_TABLE, b""))
    return Dcb(pfc, any(kind == _APP and app[:1] == bytes([_SELECTOR_DSCP]) for kind, app in entries))
