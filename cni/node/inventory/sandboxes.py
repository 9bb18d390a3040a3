"""The network namespaces of this node, with their links, addresses and pods.

The pod of a namespace is found in railcni's records, or in libcni's cache, which has other plugins' attachments too.
Namespaces are found in the records, in the cache, below /run/netns, and in the /proc of processes that this user may
inspect.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from cni.node.inventory import attachments as recorded
from cni.node.inventory.places import NAMED_NAMESPACES, is_of_pod, namespace_path, read_pod
from cni.node.runtime.cache import DIRECTORY, Cache
from cni.shared.kernel import addresses
from cni.shared.kernel import netns as namespaces
from cni.shared.kernel.files import names_in
from cni.shared.kernel.links import Link, Rtnl
from cni.shared.records import STATE
from cni.shared.spec.errors import CniError, InvalidConfig, InvalidNamespace

_LINK_LOCAL = "fe80:"
REMEDY = "run it as root"  # the remedy if the user lacks rights


@dataclass(frozen=True)
class SandboxInterface:
    """A link of a namespace. `addresses` have no prefix lengths; `networks` are the IPv4 addresses with prefix lengths.

    `lower` is the name of the link below, or "" if that link is not in the command's own namespace. `up` is the
    administrative state, `carrier` the link state. `bus` and `device` name the parent device."""

    name: str
    kind: str
    mtu: int
    up: bool
    addresses: tuple[str, ...]
    lower: str = ""
    bus: str = ""
    device: str = ""
    networks: tuple[str, ...] = ()
    carrier: bool = True

    @property
    def global_addresses(self) -> list[str]:
        """The addresses that are not link-local."""
        return [a for a in self.addresses if not a.startswith(_LINK_LOCAL)]


@dataclass(frozen=True)
class NamespaceView:
    """A network namespace. `netns` is its path, "" for the command's own; `pod` is "namespace/name", "" if unknown."""

    netns: str
    pod: str
    interfaces: tuple[SandboxInterface, ...]

    @property
    def owner(self) -> str:
        """The pod, or else the path, for messages."""
        return self.pod or self.netns


def read(state: str = STATE, cache: str = DIRECTORY, unread: list[str] | None = None) -> list[NamespaceView]:
    """The command's own namespace, and then all other namespaces that can be entered. `state` is the directory of
    railcni's records, and `cache` the directory of libcni's cache.

    Failures to read are added to `unread` as sentences. If `unread` is None, a failure to read the pods raises
    CniError, and namespaces that this user may not enter are skipped."""
    missed = [] if unread is None else unread
    pods: dict[str, str] = {}
    for known in (_recorded(state), _cached(cache)):
        try:
            pods |= dict(known)
        except CniError as fault:
            if unread is None:
                raise
            missed.append(f"which namespace is which pod's is not known: {fault.msg}")
    denied = False
    with namespaces.own() as own:
        found = [NamespaceView("", "", tuple(_interfaces(own, own)))]
        seen = {own.inode}
        named = [f"{NAMED_NAMESPACES}/{name}" for name in sorted(names_in(NAMED_NAMESPACES))]
        of_processes = [f"/proc/{pid}/ns/net" for pid in sorted(filter(str.isdigit, names_in("/proc")), key=int)]
        for path in (*pods, *named, *of_processes):
            inode = inode_of(path)
            if inode in seen:
                continue
            try:
                with namespaces.open_namespace(path) as there:
                    seen.add(there.inode)
                    found.append(NamespaceView(path, pods.get(path, ""), tuple(_interfaces(there, own))))
            except (CniError, OSError) as fault:  # the namespace is gone, or this user may not enter it
                denied = denied or is_denied(fault)
    if denied:
        missed.append(f"those of others cannot be entered: {os.strerror(errno.EACCES)}")
    return found


def find(text: str, sandboxes: list[NamespaceView], state: str = STATE, cache: str = DIRECTORY) -> NamespaceView:
    """The namespace named `text`: [NAMESPACE/]POD, a path, or a name in /run/netns. Raises InvalidConfig if missing."""
    named = {s.pod: s for s in sandboxes if "/" not in text and is_of_pod(s.pod.partition("/")[::2], text)}
    if len(named) > 1:
        raise InvalidConfig(f"several pods have the name {text}: want one of {', '.join(sorted(named))}")
    if named:
        return next(iter(named.values()))
    try:
        wanted = read_pod(text)
    except ValueError:
        return _at(namespace_path(text), sandboxes)
    found = next((sandbox for sandbox in sandboxes if sandbox.pod == wanted), None)
    if found is None:
        raise InvalidConfig(
            f"no namespace of pod {wanted} on this node: neither a record in {state} nor libcni's cache in {cache}/results"
            " names one that is still there; give the path of its namespace, /proc/PID/ns/net"
        )
    return found


def _at(path: str, sandboxes: list[NamespaceView]) -> NamespaceView:
    with namespaces.open_namespace(path) as there, namespaces.own() as own:
        if namespaces.is_own(there):
            return sandboxes[0]
        known = (sandbox for sandbox in sandboxes[1:] if inode_of(sandbox.netns) == there.inode)
        try:
            return next(known, None) or NamespaceView(path, "", tuple(_interfaces(there, own)))
        except PermissionError as fault:
            msg = f'network namespace "{path}" cannot be entered: {fault.strerror}; {REMEDY}'
            raise InvalidNamespace(msg) from None


def _recorded(state: str) -> Iterator[tuple[str, str]]:
    """Yield, for each attachment in railcni's records, the path of the namespace and the pod."""
    for attachment in recorded.found(directory=state):
        if attachment["netns"]:
            yield attachment["netns"], attachment["pod"] or f"container {attachment['containerID'][:13]}"


def _cached(cache: str) -> Iterator[tuple[str, str]]:
    """Yield, for each attachment in libcni's cache, the path of the namespace and the pod."""
    for entry in Cache(cache).all():
        if entry.parameters.netns and entry.pod:
            yield entry.parameters.netns, entry.pod


def is_denied(fault: object) -> bool:
    """Whether `fault`, an error or the text of an error, is due to the lack of a right that root has."""
    return os.geteuid() != 0 and any(os.strerror(number) in str(fault) for number in (errno.EACCES, errno.EPERM))


def inode_of(path: str) -> int:
    """The inode number of `path`; 0 when the path does not exist or cannot be read."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _interfaces(there: namespaces.Namespace, own: namespaces.Namespace) -> Iterator[SandboxInterface]:
    is_own = there.inode == own.inode  # every user may read this namespace, but only root may enter one
    with nullcontext() if is_own else there.entered():
        rtnl = Rtnl()
    with rtnl, Rtnl() as host:
        own_id = rtnl.netns_id(own.fd)
        for link in rtnl.links():
            below = _lower(link, host, own_id, is_own)
            given = [a.text for a in addresses.list_of(rtnl, link.index)]
            texts = tuple(a.partition("/")[0] for a in given)
            inet = tuple(a for a in given if ":" not in a)
            parent = link.parent_bus, link.parent_device
            yield SandboxInterface(link.name, link.kind, link.mtu, link.up, texts, below, *parent, inet, link.carrier)


def _lower(link: Link, host: Rtnl, own_id: int | None, is_own: bool) -> str:
    """The name of the lower link of `link` (IFLA_LINK); "" if it is not in the command's own namespace."""
    there = link.lower_netnsid is None if is_own else link.lower_netnsid is not None and link.lower_netnsid == own_id
    if not link.lower_index or not there or link.kind == "veth":
        return ""
    found = host.link(index=link.lower_index)
    return found.name if found else ""
