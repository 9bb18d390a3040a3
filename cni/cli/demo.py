"""railcni test without a NAD: attaches two pods, which are network namespaces, to one veth master. Private namespaces
keep the machine unchanged.

The demo calls the plugins in bin/ with an empty environment, as Multus does on a node. The plugins' own code takes no
part in two checks: pyroute2 reads the links, and one pod pings the other.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyroute2 import IPRoute
from pyroute2 import netns as namespaces

from cni.cli.attach import default_container_id
from cni.cli.doctor.finding import Observation, broken, ok
from cni.cli.doctor.pods import ping
from cni.cluster.audit import snapshot
from cni.cluster.audit.store import Choice
from cni.documents import networks
from cni.node.inventory import attachments as recorded
from cni.node.runtime import ROOT
from cni.node.runtime.cache import Cache, Parameters
from cni.node.runtime.calls import Runtime
from cni.node.runtime.executables import Executables
from cni.shared.kernel.netns import open_namespace
from cni.shared.records import STATE
from cni.shared.spec.errors import CniError, IoFailure
from cni.warm import protocol

NAD = os.path.join(ROOT, "conf", "nad", "rdma-net-ipam.yaml")
FLAT_FILE = os.path.join(ROOT, "conf", "whereabouts.d", "file-store.conf")
_FLAT_FILE_PLACE = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
_MASTER, _SWITCH, _MTU, _IFNAME = "ens2f0", "switch", 9000, "net1"
_LOCAL = "locally administered"

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000  # include/uapi/linux/sched.h
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000  # include/uapi/linux/mount.h
_LIBC = ctypes.CDLL(None, use_errno=True)
_COVERED = ("/etc", "/run", "/var/lib")
_HIDDEN = ("/etc/cni", "/run/netns", "/run/railcni", "/var/lib/cni")
_AS_ROOT = "run it where root may mount (CAP_SYS_ADMIN): on the machine itself, or in a privileged container"
_SWITCHES = "user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"
_AS_USER = f"run it as root, or allow user namespaces (sysctl {_SWITCHES})"


class DemoPod:
    """A pod of the demo in namespace `default`. `parameters` are the values that Multus would pass for it."""

    def __init__(self, number: int) -> None:
        self.name = f"rdma-pod-{number}"
        self.address = f"192.168.111.{number}"
        netns = f"/run/netns/{self.name}"
        args = (("K8S_POD_NAMESPACE", "default"), ("K8S_POD_NAME", self.name))
        self.parameters = Parameters(default_container_id(netns), netns, _IFNAME, args)


PODS = (DemoPod(1), DemoPod(2))


def run() -> Iterator[Observation]:
    """Run the demo; yield a finding for each step. Raises IoFailure if this user cannot make the namespaces."""
    place = "a user namespace of its own, without root" if os.geteuid() else "namespaces of its own"
    try:
        _isolate()
    except OSError as fault:
        remedy = _AS_USER if os.geteuid() else _AS_ROOT
        raise IoFailure(f"no private namespaces can be had here: {fault.strerror}; {remedy}") from None
    try:
        _prepare()
        yield ok(f"in {place}", f"{_MASTER}, MTU {_MTU}, is one end of a veth pair", check="node")
        runtime = Runtime(Executables([os.path.join(ROOT, "bin")], environ={}), Cache())
        network = networks.find(NAD)
        for pod in PODS:
            result = runtime.add(network, pod.parameters, runtime.negotiate(network))
            addresses = [a["address"] for a in result.get("ips", [])]
            yield _compared("attached", pod.name, {"addresses": addresses}, {"addresses": [f"{pod.address}/24"]})
        for pod in PODS:
            yield _link(pod)
        wanted = {"leases": [f"{pod.address} default/{pod.name}" for pod in PODS]}
        yield _compared("leases", "", {"leases": _leases()}, wanted)
        first, second = PODS
        with open_namespace(first.parameters.netns) as there, there.entered():
            pings = ping(second.address, first.address, _MTU)
        yield from (replace(one, check="ping") for one in pings)
        for pod in PODS:
            runtime.delete(network, pod.parameters)
        yield _remains()
    except (CniError, OSError) as fault:
        why = f"code {fault.code}: {fault.msg} {fault.details}" if isinstance(fault, CniError) else fault.strerror
        yield broken("", f"a step failed: {why}", "no step fails", check="steps")


def _isolate() -> None:
    """Move this process into new mount and network namespaces. A user other than root first becomes root of a new user
    namespace. In the new mount namespace, a tmpfs covers /etc, /run and /var/lib; it has symbolic links to the former
    entries, except CNI's. Raises OSError if the kernel refuses."""
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", (_CLONE_NEWUSER if uid else 0) | _CLONE_NEWNS | _CLONE_NEWNET)
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    for directory in _COVERED:
        covered = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        _mount("tmpfs", directory, "tmpfs", 0)
        os.mkdir(f"{directory}/.machine")
        _mount(f"/proc/self/fd/{covered}", f"{directory}/.machine", "", _MS_BIND | _MS_REC)
        for name in os.listdir(covered):
            if f"{directory}/{name}" not in _HIDDEN:
                os.symlink(f".machine/{name}", f"{directory}/{name}")
        os.close(covered)
    os.mkdir(protocol.PARENT, 0o700)
    with open(protocol.DIRECTORY, "x"):
        pass  # a file in place of the directory prevents warm workers, which would outlive the demo


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        code = ctypes.get_errno()
        words = " ".join([name, *(a.decode() for a in arguments if isinstance(a, bytes) and a)])
        raise OSError(code, f"{words}: {os.strerror(code)}")


def _prepare() -> None:
    """Make the flat file (whereabouts.conf) and the master of a node, and the network namespaces of the pods."""
    os.makedirs(os.path.dirname(_FLAT_FILE_PLACE))
    shutil.copyfile(FLAT_FILE, _FLAT_FILE_PLACE)
    with IPRoute() as ipr:
        ipr.link("add", ifname=_MASTER, kind="veth", mtu=_MTU, peer={"ifname": _SWITCH, "mtu": _MTU})
        for name in ("lo", _MASTER, _SWITCH):
            ipr.link("set", index=ipr.link_lookup(ifname=name)[0], state="up")
    for pod in PODS:
        namespaces.create(pod.parameters.netns, _LIBC)


def _compared(check: str, subject: str, seen: dict[str, Any], wanted: dict[str, Any]) -> Observation:
    """Compare `seen` and `wanted` by key. Return a fault with the differences, or `ok` with the values in `seen`."""
    if wrong := [f"{key}: {seen[key]}, and {wanted[key]} is wanted" for key in wanted if seen[key] != wanted[key]]:
        return broken(subject, "; ".join(wrong), check=check)
    texts = {key: (", ".join(v) or "none") if isinstance(v, list) else str(v) for key, v in seen.items()}
    return ok(subject, "; ".join(f"{key}: {text}" for key, text in texts.items()), check=check)


def _links(netns: str = "/proc/self/ns/net") -> dict[str, Any]:
    """The links of a network namespace except lo, by name, as pyroute2 reads them."""
    with open_namespace(netns) as there, there.entered(), IPRoute() as ipr:
        return {link.get("ifname"): link for link in ipr.get_links() if link.get("ifname") != "lo"}


def _link(pod: DemoPod) -> Observation:
    """Compare the state, MTU, MAC and addresses of a pod's link with the settings of its network."""
    with open_namespace(pod.parameters.netns) as there, there.entered(), IPRoute() as ipr:
        addresses = ipr.get_addr(family=socket.AF_INET, label=_IFNAME)
        inet = [f"{a.get('local')}/{a['prefixlen']} brd {a.get('broadcast')}" for a in addresses]
    link = _links(pod.parameters.netns).get(_IFNAME, {})
    mac = link.get("address") or "none"
    seen = {"state": link.get("operstate"), "MTU": link.get("mtu"), "inet": inet}
    seen["on a link of"] = "its own namespace" if link.get("link_netnsid") is None else "the node"
    seen["MAC"] = _LOCAL if mac[1] in "26ae" else mac
    wanted = {"state": "UP", "MTU": _MTU, "inet": [f"{pod.address}/24 brd 192.168.111.255"]}
    wanted |= {"on a link of": "the node", "MAC": _LOCAL}
    return _compared("link", f"{_IFNAME} of {pod.name}", seen, wanted)


def _leases() -> list[str]:
    return [f"{lease.text} {lease.pod_ref}" for lease in snapshot.read(Choice({"kind": "file", "path": STATE})).leases]


def _remains() -> Observation:
    """Check that the detached pods have left nothing on the node."""
    node = _links()
    nothing: dict[str, Any] = {f"links of {pod.name}": sorted(_links(pod.parameters.netns)) for pod in PODS}
    results = [entry.network for entry in Cache().all()]
    nothing |= {"leases": _leases(), "records": recorded.found(), "cached results": results}
    seen = {**nothing, "links of the node": sorted(node), f"MTU of {_MASTER}": node.get(_MASTER, {}).get("mtu")}
    wanted = {**{what: [] for what in nothing}, "links of the node": [_MASTER, _SWITCH], f"MTU of {_MASTER}": _MTU}
    return _compared("detached", "", seen, wanted)
