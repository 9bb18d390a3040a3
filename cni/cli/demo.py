"""railcni demo: two pods on one RDMA-like master, end to end, without touching the machine.

It does what Multus does on a node, with the plugins in bin/ and nothing else in their environment, and looks at the
outcome by other means: pyroute2 reads the links, echo requests cross the wire. Every expectation is a line of the
report; the exit code is 1 when one was not met.
"""

from __future__ import annotations

import errno
import hashlib
import os
import statistics
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyroute2 import IPRoute

from cni.cli import attachments, icmp, ipam, iproute, networks, output, private
from cni.cli.cache import Cache, Parameters
from cni.cli.executables import Executables
from cni.cli.options import ROOT
from cni.cli.runtime import Runtime
from cni.kernel.netns import open_namespace
from cni.spec.errors import CniError

NAD = os.path.join(ROOT, "conf", "nad", "rdma-net-ipam.yaml")
FLAT_FILE = os.path.join(ROOT, "conf", "whereabouts.d", "file-store.conf")
_FLAT_FILE_PLACE = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
_MASTER, _MTU, _IFNAME = "ens2f0", 9000, "net1"
_HEADERS = 28  # bytes of IPv4 and ICMP before an echo's payload
_PINGS = 3


@dataclass(frozen=True)
class Pod:
    """A pod of the demo, and what its attachment must turn out to be."""

    number: int

    @property
    def name(self) -> str:
        return f"rdma-pod-{self.number}"

    @property
    def address(self) -> str:
        return f"192.168.111.{self.number}"

    @property
    def parameters(self) -> Parameters:
        """As Multus passes them for a pod of the namespace `default`."""
        netns = f"/run/netns/{self.name}"
        sandbox = hashlib.sha256(self.name.encode()).hexdigest()
        args = (
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", "default"),
            ("K8S_POD_NAME", self.name),
            ("K8S_POD_INFRA_CONTAINER_ID", sandbox),
            ("K8S_POD_UID", str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))),
        )
        return Parameters(sandbox, netns, _IFNAME, args)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread in the pod's network namespace, for as long as the block lasts."""
        namespace = open_namespace(self.parameters.netns)
        try:
            with namespace.entered():
                yield
        finally:
            namespace.close()


PODS = (Pod(1), Pod(2))


class Report:
    """The lines of the report, and how many expectations were not met."""

    def __init__(self) -> None:
        self.missed = 0
        self._out = output.console()

    def section(self, title: str) -> None:
        self._out.print()
        self._out.print(output.styled(title, "bold cyan"))

    def text(self, text: str) -> None:
        self._out.print(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        output.print_table(columns, rows)

    def expect(self, met: bool, text: str, otherwise: object = "") -> None:
        """A line that says whether what `text` claims is so, and, when it is not, what is."""
        self.missed += not met
        mark = output.styled("  ok    ", "green") if met else output.styled("  FAILED", "bold red")
        self._out.print(mark.append(f"  {text}" + ("" if met else f": {otherwise}"), style="not bold default"))


def run() -> int:
    """Run it; the exit code. IoFailure: the machine allows no such namespaces."""
    sys.stdout.flush()
    whose = "namespaces of its own" if os.geteuid() == 0 else "a user namespace of its own, without root"
    return private.run_isolated(lambda: _demo(whose))


def _demo(whose: str) -> int:
    report = Report()
    try:
        _prepare(report, whose)
        runtime = Runtime(Executables([os.path.join(ROOT, "bin")], environ={}), Cache())
        network = networks.find(NAD)
        _show_pool(report, "The pool before", [])
        _attach(report, runtime, network)
        _show_pods(report)
        _ping(report)
        _show_pool(report, "The pool with both pods attached", [f"{p.address} default/{p.name}" for p in PODS])
        _detach(report, runtime, network)
        _show_pool(report, "The pool after", [])
        _show_remains(report)
    except CniError as fault:
        report.expect(False, "no step fails", f"code {fault.code}: {fault.msg} {fault.details}".strip())
    except OSError as fault:
        report.expect(False, "no step fails", fault.strerror)
    report.section("The demo found all as it must be" if not report.missed else f"{report.missed} expectations not met")
    sys.stdout.flush()
    return 1 if report.missed else 0


def _prepare(report: Report, whose: str) -> None:
    os.makedirs(os.path.dirname(_FLAT_FILE_PLACE))
    with open(FLAT_FILE, "rb") as source, open(_FLAT_FILE_PLACE, "xb") as place:
        place.write(source.read())
    with IPRoute() as ipr:
        ipr.link("add", ifname=_MASTER, kind="veth", mtu=_MTU, peer={"ifname": "switch", "mtu": _MTU})
        for name in ("lo", _MASTER, "switch"):
            ipr.link("set", index=ipr.link_lookup(ifname=name)[0], state="up")
    for pod in PODS:
        private.new_network_namespace(pod.parameters.netns)
    report.section(f"A node in {whose}")
    report.text(f"  master     {_MASTER}, MTU {_MTU}, up: one end of a veth pair")
    report.text(f"  network    {os.path.relpath(NAD, ROOT)}")
    report.text(f"  flat file  {_FLAT_FILE_PLACE}: the leases in a file instead of a cluster")


def _attach(report: Report, runtime: Runtime, network: networks.Network) -> None:
    report.section(f"ADD for {len(PODS)} pods, by the executables in bin/ with nothing but the CNI variables")
    for pod in PODS:
        result = runtime.add(network, pod.parameters, runtime.negotiate(network))
        addresses = [a["address"] for a in result.get("ips", [])]
        report.expect(addresses == [f"{pod.address}/24"], f"{pod.name} gets {pod.address}/24", addresses)


def _show_pods(report: Report) -> None:
    report.section("What the kernel has made")
    shown = {pod: _look(pod) for pod in PODS}
    rows = [(p.name, s.name, s.mac, s.mtu, s.inet) for p, s in shown.items() if s]
    report.table(("pod", "interface", "mac", "mtu", "address"), rows)
    for pod, link in shown.items():
        report.section(f"{pod.name}: ip addr show dev {_IFNAME}")
        if link is None:
            report.expect(False, f"{_IFNAME} is there", "it is not")
            continue
        report.text(link.text)
        report.expect(link.up and "LOWER_UP" in link.text and "state UP" in link.text, "it is up", link.text)
        report.expect(link.mtu == _MTU, f"its MTU is {_MTU}", link.mtu)
        wanted = f"inet {pod.address}/24 brd 192.168.111.255 scope global {_IFNAME}"
        report.expect(f"    {wanted}\n" in link.text, wanted, link.inet)
        local = bool(link.mac and int(link.mac[:2], 16) & 3 == 2)
        report.expect(local, "its MAC is locally administered", link.mac)
        report.expect("link-netnsid 0" in link.text, "it stands on a link of another namespace", link.text)


def _look(pod: Pod) -> iproute.Shown | None:
    with pod.entered():
        return iproute.show(_IFNAME)


def _ping(report: Report) -> None:
    first, second = PODS
    report.section(f"{first.name} pings {second.name} ({second.address})")
    with first.entered():
        times = [_ping_once(report, second, 56, number) for number in range(1, _PINGS + 1)]
        whole = _MTU - _HEADERS
        _ping_once(report, second, whole, _PINGS + 1, f", {whole + _HEADERS} on the wire, not to be fragmented")
        try:
            icmp.ping(second.address, whole + 1, _PINGS + 2)
            refused = "it was sent"
        except OSError as fault:
            refused = "" if fault.errno == errno.EMSGSIZE else str(fault)
        report.expect(not refused, f"one byte more is refused: {_MTU} is the MTU", refused)
    known = [t for t in times if t is not None]
    if known:
        lost = (len(times) - len(known)) * 100 // len(times)
        report.text(
            f"  rtt min/avg/max = {min(known):.3f}/{statistics.mean(known):.3f}/{max(known):.3f} ms, {lost}% loss"
        )


def _ping_once(report: Report, pod: Pod, payload: int, sequence: int, note: str = "") -> float | None:
    try:
        milliseconds = icmp.ping(pod.address, payload, sequence) * 1000
    except OSError as fault:
        report.expect(False, f"{payload} bytes come back{note}", fault)
        return None
    report.expect(True, f"{payload} bytes from {pod.address}: seq={sequence} time={milliseconds:.3f} ms{note}")
    return milliseconds


def _show_pool(report: Report, title: str, wanted: list[str]) -> None:
    report.section(title)
    found = [ipam.document(lease) for lease in ipam.leases()]
    if found:
        rows = [(f["pool"], f["address"], f["pod"], f["ifname"], f["containerID"][:12]) for f in found]
        report.table(("pool", "address", "pod", "interface", "container"), rows)
    held = [f"{f['address']} {f['pod']}" for f in found]
    report.expect(held == wanted, f"{len(wanted)} leases" if wanted else "no lease", held)


def _detach(report: Report, runtime: Runtime, network: networks.Network) -> None:
    report.section("DEL for both")
    for pod in PODS:
        runtime.delete(network, pod.parameters)
        left = _look(pod)
        report.expect(left is None, f"{pod.name} has no {_IFNAME}", left and left.text)


def _show_remains(report: Report) -> None:
    report.section("What is left on the node")
    for pod in PODS:
        with pod.entered():
            links = iproute.names()
        report.expect(not links, f"no link in {pod.name}", links)
        private.remove_network_namespace(pod.parameters.netns)
    links = iproute.names()
    report.expect(sorted(links) == sorted([_MASTER, "switch"]), f"no link beside {_MASTER} and its wire", links)
    master = iproute.show(_MASTER)
    unchanged = master is not None and master.up and master.mtu == _MTU
    report.expect(unchanged, f"{_MASTER} is up with MTU {_MTU}", master and master.text)
    records = attachments.found()
    report.expect(not records, "no record of an attachment", records)
    cached = [e.network for e in Cache().all()]
    report.expect(not cached, "no cached result", cached)
