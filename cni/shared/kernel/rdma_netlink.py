"""RDMA netlink: list the verbs devices of a network namespace, move a device to another one, and read the netns mode.

An `Rdma` stays bound to the namespace in which the thread makes it. Numbers are those of
include/uapi/rdma/rdma_netlink.h; the kernel's part is in drivers/infiniband/core/nldev.c.
"""

from __future__ import annotations

from cni.shared.kernel.links import Rtnl, with_those_below
from cni.shared.kernel.netlink import Socket, number, number_of, string, text_of, unpack_attributes

_NETLINK_RDMA = 20
_NLDEV = 5 << 10  # RDMA_NL_NLDEV, in the upper bits of a message's type
_GET, _SET, _PORT_GET, _SYS_GET = _NLDEV + 1, _NLDEV + 2, _NLDEV + 5, _NLDEV + 6

_DEVICE_INDEX, _DEVICE_NAME, _PORT_INDEX, _NDEV_INDEX, _NETNS_MODE, _NETNS_FD = 1, 2, 3, 50, 66, 68

SHARED, EXCLUSIVE = "shared", "exclusive"


class RdmaDevice:
    """A verbs device: its `index` and `name`."""

    def __init__(self, body: bytes) -> None:
        found = unpack_attributes(body)
        self.index = number_of(found.get(_DEVICE_INDEX, b""))
        self.name = text_of(found.get(_DEVICE_NAME, b""))


class Rdma(Socket):
    """A socket for RDMA netlink. Raises OSError EPROTONOSUPPORT if the kernel has no RDMA, KernelError for a refusal."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_RDMA)

    def netns_mode(self) -> str:
        """SHARED if all namespaces see all verbs devices, EXCLUSIVE if each device is in one (since Linux 5.2)."""
        for body in self.request(_SYS_GET, b""):
            mode = unpack_attributes(body).get(_NETNS_MODE)
            if mode is not None:
                return SHARED if number_of(mode) else EXCLUSIVE
        return SHARED

    def devices(self) -> list[RdmaDevice]:
        """The verbs devices that the namespace can use."""
        return [RdmaDevice(body) for body in self.dump(_GET, b"")]

    def device(self, name: str) -> RdmaDevice | None:
        """The verbs device `name`; None when the namespace has no such device."""
        return next((d for d in self.devices() if d.name == name), None)

    def ports(self, device_index: int) -> list[tuple[int, int]]:
        """Return (number, index of the netdev) of each port. The index is 0 if the netdev is in another namespace."""
        found = [unpack_attributes(body) for body in self.dump(_PORT_GET, number(_DEVICE_INDEX, device_index))]
        return [(number_of(port.get(_PORT_INDEX, b"")), number_of(port.get(_NDEV_INDEX, b""))) for port in found]

    def move(self, device_index: int, netns_fd: int) -> None:
        """Move a verbs device to the namespace `netns_fd`, in exclusive mode.

        The thread must be in the device's namespace: the kernel checks the thread, not the socket
        (rdma_dev_change_netns). Errors: EOPNOTSUPP in shared mode and for drivers that cannot move a device (rxe);
        ENODEV when the device is not in this namespace; EPERM without CAP_NET_ADMIN in the new namespace; EEXIST when
        the device's name is taken there.
        """
        self.request(_SET, number(_DEVICE_INDEX, device_index) + number(_NETNS_FD, netns_fd))

    def rename(self, device_index: int, name: str) -> None:
        """Rename a verbs device. Raises EEXIST when a device in any namespace has the name."""
        self.request(_SET, number(_DEVICE_INDEX, device_index) + string(_DEVICE_NAME, name))


def netns_mode() -> str:
    """The RDMA netns mode, SHARED or EXCLUSIVE (see `Rdma.netns_mode`); SHARED when the kernel has no RDMA."""
    socket = _opened()
    if socket is None:
        return SHARED
    with socket:
        return socket.netns_mode()


def has_device(name: str) -> bool:
    """Whether the thread's namespace can use the verbs device `name`."""
    socket = _opened()
    if socket is None:
        return False
    with socket:
        return socket.device(name) is not None


def ports_of_netdev(name: str, rtnl: Rtnl) -> list[tuple[str, int]]:
    """Return (verbs device, port number), sorted, of each port that the traffic of the netdev `name` can use. The
    thread must be in the namespace of `rtnl`."""
    socket = _opened()
    if socket is None:
        return []
    links = rtnl.links()
    wanted = {index for link in links if link.name == name for index in with_those_below(link.index, links)}
    with socket:
        ports = [(device.name, *port) for device in socket.devices() for port in socket.ports(device.index)]
    return sorted((device, port) for device, port, netdev in ports if netdev in wanted)


def _opened() -> Rdma | None:
    try:
        return Rdma()
    except OSError:  # EPROTONOSUPPORT
        return None
