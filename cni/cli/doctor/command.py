"""railcni doctor: finds what keeps RDMA in pods from working on this node, and names remedies."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from cni.cli.doctor.finding import ADVICE, FAULT, MEANINGS, NOTE, OK, SKIPPED, UNKNOWN, Observation
from cni.cli.terminal import common, output, subcommand
from cni.documents import NET_DIRECTORY
from cni.node.inventory import topology
from cni.node.inventory.places import namespace_path
from cni.shared.spec.errors import CniError

if TYPE_CHECKING:
    from cni.cli.doctor.report import DoctorReport

_ABOUT = "find what keeps RDMA from working in pods of this node, with remedies"
_STYLES = {FAULT: "bold red", ADVICE: "yellow", UNKNOWN: "cyan", SKIPPED: "dim", OK: "green", NOTE: ""}
FEATURES = "/etc/kubernetes/node-feature-discovery/features.d/railcni"
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # the address of a PCI function
_CODES = "Exit codes: 0 no fault, 1 a fault, 2 a wrong call, or a pod that is not on this node. Levels: " + "; ".join(
    f"{level}: {meaning}" for level, meaning in MEANINGS.items()
)


def register(commands: subcommand.Commands) -> None:
    """Add the command `doctor`."""
    more = ". The command reads sysfs, proc, netlink and CNI's files, and changes nothing."
    parser = subcommand.add(commands, "doctor", _ABOUT, more, run=_run, shows=True, epilog=_CODES + ".")
    of, needs = parser.add_mutually_exclusive_group(), "GIDs, MTU, modules, device nodes, limits and the node's policy"
    common.add(of, "pod", f"check all that this pod's RDMA needs: its links, their masters and ports, {needs}")
    about = "in place of --pod: the path of the pod's namespace, or its name in /run/netns"
    subcommand.option(of, "--netns", None, about, "NETNS", dest="pod", type=namespace_path)
    address = subcommand.typed(ipaddress.ip_address, "want an IP address such as 192.168.111.2")
    about = "an address; with --pod or --netns: test whether it answers small packets and packets of the full MTU"
    common.add(parser, "peer", about, type=address)
    common.add(parser, "conf-dir", "", NET_DIRECTORY)
    common.add(parser, "cni-path", "default: those of the node's runtimes", "")
    about = f"also write the labels of node-feature-discovery; default: {FEATURES}; - for stdout alone"
    subcommand.option(parser, "--nfd", "", about, "FILE", nargs="?", const=FEATURES)
    about = "count the errors of the ports for so long, while traffic runs; default: those since the start of each port"
    parser.add_argument("--watch", type=subcommand.seconds, default=0.0, metavar="SECONDS", help=about)
    common.add(parser, "verbose")


def _run(options: argparse.Namespace) -> int:
    options.only(options.pod, "with --pod or --netns", "--peer")
    options.only(not options.pod, "without --pod, since it labels the node", "--nfd")
    options.only(options.nfd != "-", "without --nfd -", "-o")
    options.only(options.nfd != "-" and not options.pod, "for a node", "-v")
    from cni.cli.doctor import facts, report  # load the lint and its libraries, which --help does not need

    folders = tuple(f for f in options.cni_path.split(":") if f)
    places = facts.NodePlaces(networks=options.conf_dir, plugins=folders)
    of_node = facts.NodeFacts(places, options.pod or "", str(options.peer or ""), options.watch)
    try:
        with output.progress() as say:
            if options.watch:
                say(f"counting errors of ports for {options.watch:g} s")
            found = report.examine(of_node)
    except CniError as fault:  # the pod is not on this node; no check has run
        output.print_fault(f"railcni: {fault.msg}", fault.details)
        return 2
    if options.nfd != "-":
        if options.output != "table":
            output.print_data(found.document(), options.output)
        else:
            _print(found, options.verbose)
    if options.nfd:  # after the report, which is useful even if the file cannot be written
        write_features(found, options.nfd)
    return int(not found.is_healthy)


def _print(found: DoctorReport, verbose: bool) -> None:
    findings = _folded(found.findings)
    hidden = () if verbose or found.facts.pod else (OK, SKIPPED)
    if plain := [f for f in findings if not f.remedy and f.level not in hidden]:
        cells = ((output.styled(f.level, _STYLES[f.level]), f.check, f"{f.subject}: {f.found}") for f in plain)
        output.print_table(("level", "check", "found"), cells)
    out = output.console()
    for finding in (f for f in findings if f.remedy):
        out.print()
        out.print(output.styled(f"{finding.level}: {finding.subject}: {finding.found}", _STYLES[finding.level]))
        for name, text in (("healthy", finding.healthy), ("remedy", finding.remedy)):
            if text:
                output.print_paragraph(f"  {name + ':':8}", text)
    if found.facts.topology.gpus and not found.facts.pod:
        sys.stdout.write("\n")
        sys.stdout.flush()
        output.print_table(*topology.table(found.facts.topology))
    levels = [finding.level for finding in found.findings]
    summary = ", ".join(f"{levels.count(level)} {level}" for level in dict.fromkeys([OK, *levels]))
    verdict = "healthy" if found.is_healthy else "not healthy"
    out.print(f"\n{verdict}: {summary}")


def _folded(findings: Iterable[Observation]) -> list[Observation]:
    """Merge findings that differ only in the subject, or in PCI addresses in the remedy. The merged finding has all
    subjects and the first remedy. OK findings are not merged. Checks that were skipped for the same reason become one
    finding, whose `check` is "N checks"."""
    groups: dict[object, list[Observation]] = {}
    for one in findings:
        found = _ADDRESS.sub("", one.found) if one.level == UNKNOWN else one.found
        texts = (text.replace(one.subject, "") for text in (found, one.healthy, _ADDRESS.sub("", one.remedy)))
        check = "" if one.level == SKIPPED else one.check
        groups.setdefault(id(one) if one.level == OK else (one.level, check, *texts), []).append(one)
    merged = []
    for same in groups.values():
        checks = {one.check for one in same}
        name = same[0].check if len(checks) == 1 else f"{len(checks)} checks"
        merged.append(replace(same[0], subject=", ".join(one.subject for one in same), check=name))
    return merged


# --- labels: the feature file of node-feature-discovery, lines NAME=VALUE ---


def features(report: DoctorReport) -> dict[str, str]:
    """Return the node's labels for node-feature-discovery, by label name. The values seldom change, since each change
    is a write to the API server."""
    ports = [p for p in report.facts.ports if p.is_active]
    rates = [int(p.speed) for p in ports if p.speed is not None]
    mtus = [p.roce_mtu for p in ports if p.roce_mtu is not None]
    known = {
        "rdma": str(bool(report.facts.devices)).lower(),
        "rdma.healthy": str(report.is_healthy).lower(),
        "rdma.faults": ".".join(sorted({f.check for f in report.faults}))[:63].strip(".-"),
        "rdma.devices": str(len(report.facts.devices)),
        "rdma.active-ports": str(len(ports)),
        "rdma.link-layer": "_".join(sorted({p.link_layer for p in ports})),
        "rdma.rate-gbps": str(min(rates)) if rates else "",
        "rdma.roce-mtu": str(min(mtus)) if mtus else "",
        "rdma.netns-mode": report.facts.netns_mode,
        "rdma.gpus": str(len(report.facts.topology.gpus)),
    }
    return {f"railcni.io/{name}": value for name, value in known.items() if value}


def write_features(report: DoctorReport, path: str) -> None:
    """Write the labels to the file `path`, or to stdout for "-". Raises IoFailure if the file cannot be written.

    The file has a hidden name until it is complete. The worker of node-feature-discovery ignores hidden files (its
    customization guide, "Local feature source")."""
    lines = "".join(f"{name}={value}\n" for name, value in features(report).items())
    if path == "-":
        sys.stdout.write(lines)
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    output.write_file("feature file", path, lines.encode(), mode=0o666)
