"""Find the sandbox (network namespace) of an attachment again, or decide that the sandbox is gone.

A path does not identify a namespace. A later sandbox may have the path of an earlier one, and a namespace exists
without a path while a process, a mount or an open descriptor uses it. So the record has the namespace's identity.
"""

from __future__ import annotations

from typing import Any

from cni.shared.kernel import files, netns
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.kernel.netns import Namespace
from cni.shared.spec.errors import InvalidNamespace, TryAgainLater
from cni.shared.spec.request import Request

PAIRS = ("veth", "netkit", "vxcan")  # links made in pairs; IFLA_LINK_NETNSID is the namespace of the peer
PLACES = ("/run/netns", "/run/docker/netns")  # where runtimes mount the namespaces of sandboxes
SETTLED = 600.0  # seconds; kubelet calls DEL, and makes the pod's next sandbox, within this time after a sandbox's end
GONE = "gone"  # the member of a record with the uptime at which its sandbox was first seen to be gone


class Sandbox:
    """An open sandbox: its `namespace`, and `rtnl`, an rtnetlink socket in this namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        with namespace.entered():
            self.rtnl = Rtnl()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket and the namespace; a second call does nothing."""
        self.rtnl.close()
        self.namespace.close()

    def identity(self) -> dict[str, int]:
        """The identity of this namespace: its cookie (0 before Linux 5.14), device and inode. Searches use device and
        inode. Unlike the cookie, the inode may be reused when the namespace is gone."""
        return {"cookie": self.rtnl.namespace_cookie(), "device": self.namespace.device, "inode": self.namespace.inode}


def opened(request: Request) -> Sandbox:
    """Open the sandbox at CNI_NETNS. Raises InvalidNamespace if there is none, or it is the plugin's own namespace."""
    namespace = netns.open_namespace(request.netns)
    if _is_own(namespace, request):
        namespace.close()
        raise InvalidNamespace(
            f"CNI_NETNS {request.netns} is the plugin's own network namespace: pass the sandbox's, or set"
            " CNI_NETNS_OVERRIDE=1 if it is meant"
        )
    return Sandbox(namespace)


def at(path: str, request: Request) -> Sandbox | None:
    """Open the sandbox at `path`. Returns None if there is none, or if it is the plugin's own namespace. Raises
    TryAgainLater when the path cannot be examined."""
    try:
        namespace = netns.at(path) if path else None
    except OSError as fault:  # there may be a sandbox: its links must not count as gone
        raise TryAgainLater(f"network namespace {path} cannot be examined: {fault.strerror}; retry") from None
    if namespace is None:
        return None
    if _is_own(namespace, request):
        namespace.close()
        return None
    return Sandbox(namespace)


def of_record(record: dict[str, Any], request: Request) -> Sandbox | None:
    """Open the sandbox of `record` by its path, or through a process, mount or descriptor that uses it. Returns None if
    it is not found. Before Linux 5.14 the result may be a later sandbox with the same inode (see `is_certain`)."""
    for path in dict.fromkeys((record["netns"], request.netns)):
        found = at(path, request)
        if found:
            if found.identity() == record["sandbox"]:
                return found
            found.close()  # a later sandbox at the same path
    return kept(record["sandbox"])


def kept(identity: dict[str, int]) -> Sandbox | None:
    """Open the sandbox with this `identity` through a process, mount or descriptor that uses it, or return None."""
    from cni.shared.kernel import netns_users  # needed only when the path is gone

    namespace = netns_users.found_again(identity["device"], identity["inode"])
    if namespace is None:
        return None
    found = Sandbox(namespace)
    if found.identity() == identity:
        return found
    found.close()
    return None


def is_certain(identity: dict[str, int]) -> bool:
    """Whether no later namespace can have this `identity`, because the identity has a cookie (since Linux 5.14)."""
    return identity["cookie"] != 0


def _is_own(namespace: Namespace, request: Request) -> bool:
    return not request.netns_override and netns.is_own(namespace)


def end_of_pair(device: Link, host: Rtnl) -> str:
    """The reason to refuse a `device` that is the host's end of a link pair (veth) into a sandbox; else ""."""
    if device.kind in PAIRS and device.lower_netnsid is not None and _is_of_sandbox(device.lower_netnsid, host):
        return f'"{device.name}" is the host\'s end of a {device.kind} of a sandbox'
    return ""


def _is_of_sandbox(nsid: int, host: Rtnl) -> bool:
    """Whether the namespace with the id `nsid` in the host's namespace is mounted in PLACES, as a sandbox is."""
    for directory in PLACES:
        for name in files.names_in(directory):
            try:
                found = netns.at(f"{directory}/{name}")
            except OSError:
                continue
            if found:
                with found:
                    if host.netns_id(found.fd) == nsid:
                        return True
    return False
