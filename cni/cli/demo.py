"""railcni test on one machine: two pods on one RDMA-like master, end to end, without touching the machine.

It does what Multus does on a node, with the plugins in bin/ and an empty environment, and checks the
outcome independently: pyroute2 reads the links, echo requests cross the wire, and `ip`, where it is installed, shows
the pods' interfaces. Every expectation is a line of the report; the exit code is 1 when one was not met.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2 import IPRoute
from pyroute2 import netns as namespaces

from cni.cli import target
from cni.cli.attach import ROOT
from cni.cli.doctor.finding import FAULT, OK, Observation
from cni.cli.terminal import output
from cni.library.audit import snapshot
from cni.library.audit.store import Choice
from cni.library.documents import networks
from cni.library.inventory import attachments as recorded
from cni.library.runtime import icmp
from cni.library.runtime.cache import Cache, Parameters
from cni.library.runtime.calls import Runtime
from cni.library.runtime.executables import Executables
from cni.shared.kernel.netns import open_namespace
from cni.shared.records import STATE
from cni.shared.spec.errors import CniError, IoFailure
from cni.warm import places

NAD = os.path.join(ROOT, "conf", "nad", "rdma-net-ipam.yaml")
FLAT_FILE = os.path.join(ROOT, "conf", "whereabouts.d", "file-store.conf")
_FLAT_FILE_PLACE = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
_MASTER, _MTU, _IFNAME = "ens2f0", 9000, "net1"
_HEADERS = 28  # bytes of IPv4 and ICMP before an echo's payload
_IFF_UP = 1  # include/uapi/linux/if.h

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000  # include/uapi/linux/sched.h
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000  # include/uapi/linux/mount.h
_LIBC = ctypes.CDLL(None, use_errno=True)
_COVERED = ("/etc", "/run", "/var/lib")
_HIDDEN = ("/etc/cni", "/run/netns", "/run/railcni", "/var/lib/cni")
_AS_ROOT = "run it where root may mount (CAP_SYS_ADMIN): on the machine itself, or in a privileged container"
_AS_USER = (
    "run it as root, or allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns)"
)


class DemoPod:
    """A pod of the demo: its expected address, and the parameters that Multus passes for a pod of the namespace `default`."""

    def __init__(self, number: int) -> None:
        self.name = f"rdma-pod-{number}"
        self.address = f"192.168.111.{number}"
        netns = f"/run/netns/{self.name}"
        args = (("K8S_POD_NAMESPACE", "default"), ("K8S_POD_NAME", self.name))
        self.parameters = Parameters(target.default_container_id(netns), netns, _IFNAME, args)

    @contextmanager
    def links(self) -> Iterator[dict[str, Any]]:
        """The links of the pod's network namespace; the block runs there."""
        with open_namespace(self.parameters.netns) as there, there.entered():
            yield _links()


PODS = (DemoPod(1), DemoPod(2))


class DemoReport:
    """The lines of the report, on stderr if JSON or YAML is wanted, and the outcome of each expectation."""

    def __init__(self, form: str) -> None:
        self.found: list[Observation] = []
        self.stream = sys.stdout if form == "table" else sys.stderr
        self._out = output.console(self.stream)

    @property
    def missed(self) -> int:
        return sum(one.level == FAULT for one in self.found)

    def section(self, title: str) -> None:
        self._title = title
        self._out.print()
        self._out.print(output.styled(title, "bold cyan"))

    def text(self, text: str) -> None:
        self._out.print(text)

    def expect(self, is_met: bool, text: str, otherwise: object = "") -> None:
        """Print a line for the expectation `text`; if it is not met, with the actual value."""
        self.found.append(
            Observation(OK if is_met else FAULT, text, "" if is_met else str(otherwise), check=self._title)
        )
        mark = output.styled("  ok    ", "green") if is_met else output.styled("  FAILED", "bold red")
        self._out.print(mark.append(f"  {text}" + ("" if is_met else f": {otherwise}"), style="not bold default"))


def run(form: str) -> int:
    """Run the demo, with its outcome as `form` says; return the exit code. Raises IoFailure if the machine allows no such namespaces."""
    place = "a user namespace of its own, without root" if os.geteuid() else "namespaces of its own"
    try:
        _isolate()
    except OSError as fault:
        remedy = _AS_USER if os.geteuid() else _AS_ROOT
        raise IoFailure(f"no private namespaces can be had here: {fault.strerror}; {remedy}") from None
    report = DemoReport(form)
    try:
        _prepare(report, place)
        runtime = Runtime(Executables([os.path.join(ROOT, "bin")], environ={}), Cache())
        network = networks.find(NAD)
        _show_pool(report, "The pool before", [])
        report.section(f"ADD for {len(PODS)} pods, by the executables in bin/ with nothing but the CNI variables")
        for pod in PODS:
            result = runtime.add(network, pod.parameters, runtime.negotiate(network))
            addresses = [a["address"] for a in result.get("ips", [])]
            report.expect(addresses == [f"{pod.address}/24"], f"{pod.name} gets {pod.address}/24", addresses)
        for pod in PODS:
            _show_pod(report, pod)
        _ping(report)
        _show_pool(report, "The pool with both pods attached", [f"{p.address} default/{p.name}" for p in PODS])
        report.section("DEL for both")
        for pod in PODS:
            runtime.delete(network, pod.parameters)
        _show_pool(report, "The pool after", [])
        _show_remains(report)
    except (CniError, OSError) as fault:
        why = f"code {fault.code}: {fault.msg} {fault.details}" if isinstance(fault, CniError) else fault.strerror
        report.expect(False, "no step fails", why)
    report.section("The demo found all as it must be" if not report.missed else f"{report.missed} expectations not met")
    output.show(form, [one.document() for one in report.found], lambda: None)
    return 1 if report.missed else 0


def _isolate() -> None:
    """Move this process into mount and network namespaces of its own; without root also into a user namespace, as its root.
    Raises OSError.

    There /etc, /run and /var/lib look as before, without CNI's files, and changes in them end with the process.
    """
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
    os.mkdir(places.PARENT, 0o700)
    with open(places.DIRECTORY, "x"):
        pass  # in place of the directory of warm workers: they would outlive the demo


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        code = ctypes.get_errno()
        words = " ".join([name, *(a.decode() for a in arguments if isinstance(a, bytes) and a)])
        raise OSError(code, f"{words}: {os.strerror(code)}")


def _prepare(report: DemoReport, place: str) -> None:
    os.makedirs(os.path.dirname(_FLAT_FILE_PLACE))
    shutil.copyfile(FLAT_FILE, _FLAT_FILE_PLACE)
    with IPRoute() as ipr:
        ipr.link("add", ifname=_MASTER, kind="veth", mtu=_MTU, peer={"ifname": "switch", "mtu": _MTU})
        for name in ("lo", _MASTER, "switch"):
            ipr.link("set", index=ipr.link_lookup(ifname=name)[0], state="up")
    for pod in PODS:
        namespaces.create(pod.parameters.netns, _LIBC)
    report.section(f"A node in {place}")
    report.text(f"  master     {_MASTER}, MTU {_MTU}, up: one end of a veth pair")
    report.text(f"  network    {os.path.relpath(NAD, ROOT)}")
    report.text(f"  flat file  {_FLAT_FILE_PLACE}: the leases in a file instead of a cluster")


def _links() -> dict[str, Any]:
    """The links of this thread's network namespace, as pyroute2 reads them, without lo."""
    with IPRoute() as ipr:
        return {link.get("ifname"): link for link in ipr.get_links() if link.get("ifname") != "lo"}


def _is_up(link: Any) -> bool:
    return bool(link.get("flags", 0) & _IFF_UP) and link.get("operstate") == "UP"


def _show_pod(report: DemoReport, pod: DemoPod) -> None:
    report.section(f"{pod.name}: ip addr show dev {_IFNAME}")
    with pod.links() as links, IPRoute() as ipr:
        program = shutil.which("ip", path="/usr/sbin:/usr/bin:/sbin:/bin") or "true"
        command = [program, "addr", "show", "dev", _IFNAME]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        addresses = ipr.get_addr(family=socket.AF_INET, label=_IFNAME)
        inet = [f"inet {a.get('local')}/{a['prefixlen']} brd {a.get('broadcast')}" for a in addresses]
    report.text(shown.rstrip() or "  (the program ip is not installed)")
    link = links.get(_IFNAME, {})
    wanted, mac = f"inet {pod.address}/24 brd 192.168.111.255", link.get("address") or "none"
    report.expect(_is_up(link), "it is up", link.get("operstate"))
    report.expect(link.get("mtu") == _MTU, f"its MTU is {_MTU}", link.get("mtu"))
    report.expect(inet == [wanted], wanted, inet)
    report.expect(mac[1] in "26ae", "its MAC is locally administered", mac)
    report.expect(link.get("link_netnsid") is not None, "it stands on a link of another namespace", link.get("link"))


def _ping(report: DemoReport) -> None:
    first, second = PODS
    report.section(f"{first.name} pings {second.name} ({second.address})")
    whole = _MTU - _HEADERS
    with first.links():
        for number, payload in enumerate((56, 56, 56, whole), 1):
            note = f", {_MTU} on the wire, not to be fragmented" if payload == whole else ""
            try:
                milliseconds = icmp.ping(second.address, payload, number) * 1000
            except OSError as fault:
                report.expect(False, f"{payload} bytes come back{note}", fault)
            else:
                text = f"{payload} bytes from {second.address}: seq={number} time={milliseconds:.3f} ms{note}"
                report.expect(True, text)
        try:
            icmp.ping(second.address, whole + 1, number + 1)
            refused = "it was sent"
        except OSError as fault:
            refused = "" if fault.errno == errno.EMSGSIZE else str(fault)
        report.expect(not refused, f"one byte more is refused: {_MTU} is the MTU", refused)


def _show_pool(report: DemoReport, title: str, wanted: list[str]) -> None:
    report.section(title)
    leases = snapshot.read(Choice({"kind": "file", "path": STATE})).leases
    if rows := [(lease.pool, lease.text, lease.pod_ref, lease.ifname, lease.container_id[:12]) for lease in leases]:
        output.print_table(("pool", "address", "pod", "interface", "container"), rows, report.stream)
    held = [f"{lease.text} {lease.pod_ref}" for lease in leases]
    report.expect(held == wanted, f"{len(wanted)} leases" if wanted else "no lease", held)


def _show_remains(report: DemoReport) -> None:
    report.section("What is left on the node")
    for pod in PODS:
        with pod.links() as links:
            report.expect(not links, f"no link in {pod.name}", sorted(links))
        namespaces.remove(pod.parameters.netns, _LIBC)
    left = _links()
    report.expect(sorted(left) == [_MASTER, "switch"], f"no link beside {_MASTER} and its wire", sorted(left))
    master = left.get(_MASTER, {})
    report.expect(_is_up(master) and master.get("mtu") == _MTU, f"{_MASTER} is up with MTU {_MTU}", master)
    for what, found in (("record of an attachment", recorded.found()), ("cached result", list(Cache().all()))):
        report.expect(not found, f"no {what}", found)
