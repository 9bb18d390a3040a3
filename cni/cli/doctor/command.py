"""railcni doctor: what keeps RDMA of pods from working on this node, and what to do about it."""

from __future__ import annotations

import argparse
import ipaddress
import sys

from cni.cli.doctor import nfd
from cni.cli.doctor.finding import ADVICE, FAULT, MEANINGS, NOTE, OK, SKIPPED, UNKNOWN, Observation
from cni.cli.terminal import output, subcommand
from cni.library.inventory import topology
from cni.library.inventory.places import NET_DIRECTORY
from cni.shared.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.cli.doctor.report import DoctorReport

_ABOUT = "what keeps RDMA of pods from working on this node, and the remedy"
_STYLES = {FAULT: "bold red", ADVICE: "yellow", UNKNOWN: "cyan", SKIPPED: "dim", OK: "green", NOTE: ""}
_CALLED_WRONGLY = 2
_CODES = "Exit codes: 0 no fault, 1 a fault, 2 called wrongly, or for a pod that is not here. Levels: " + "; ".join(
    f"{level}: {meaning}" for level, meaning in MEANINGS.items()
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor`."""
    parser = subcommand.add(
        commands,
        "doctor",
        _ABOUT,
        ". It reads sysfs, proc, netlink and CNI's files, and changes nothing.",
        epilog=_CODES + ".",
    )
    parser.add_argument(
        "--pod",
        default="",
        metavar="NAMESPACE/POD|NETNS",
        help="look at all that this pod's RDMA needs: its links, their masters and ports, GIDs, MTU, modules, device nodes,"
        " limits and the node's policy",
    )
    parser.add_argument(
        "--peer",
        type=_address,
        metavar="ADDRESS",
        help="with --pod: whether this address answers, to small packets and to those of the whole MTU",
    )
    subcommand.option(parser, "--conf-dir", NET_DIRECTORY, "the node's networks")
    parser.add_argument(
        "--cni-path", default="", metavar="DIR:DIR", help="the plugin folders; default: those of the node's runtimes"
    )
    parser.add_argument(
        "--nfd",
        nargs="?",
        const=nfd.DEFAULT,
        default="",
        metavar="FILE",
        help=f"write the labels of node-feature-discovery besides; default: {nfd.DEFAULT}; - for stdout alone",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="a table with what is as it should be, too")
    output.add_option(parser)
    parser.set_defaults(run=_run, refuse=parser.error)


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is no IP address: want one such as 192.168.111.2') from None


def _run(options: argparse.Namespace) -> int:
    if options.peer and not options.pod:
        options.refuse("--peer needs --pod, from which the peer is asked")
    from cni.cli.doctor import report  # with the lint and its libraries, which --help has no use for
    from cni.cli.doctor.facts import NodeFacts, NodePlaces

    folders = tuple(f for f in options.cni_path.split(":") if f)
    facts = NodeFacts(NodePlaces(networks=options.conf_dir, plugins=folders), options.pod, options.peer or "")
    try:
        found = report.examine(facts)
    except CniError as fault:  # of the pod that is not there: nothing was found of the node
        output.print_fault(f"railcni: {fault.msg}", fault.details)
        return _CALLED_WRONGLY
    if options.nfd:
        nfd.write(found, options.nfd)
    if options.nfd != "-":
        if options.output != "table":
            output.print_data(found.document(), options.output)
        else:
            _print(found, options.verbose)
    return int(not found.is_healthy)


def _print(found: DoctorReport, verbose: bool) -> None:
    from cni.cli.doctor import report

    verbose = verbose or bool(found.facts.pod)
    told = [f for f in found.findings if f.remedy]
    rows = [_row(f) for f in found.findings if not f.remedy and (verbose or f.level not in (OK, SKIPPED))]
    skipped = [f.check for f in found.findings if f.level == SKIPPED]
    if skipped and not verbose:
        rows.append(_row(Observation(SKIPPED, f"{len(skipped)} checks", ", ".join(skipped))))
    if rows:
        output.print_table(("level", "check", "found"), rows)
    out = output.console()
    for finding in told:
        out.print()
        out.print(output.styled(f"{finding.level}: {finding.subject}: {finding.found}", _STYLES[finding.level]))
        for name, text in (("healthy", finding.healthy), ("remedy", finding.remedy)):
            if text:
                output.print_paragraph(f"  {name + ':':8}", text)
    if found.facts.topology.gpus and not found.facts.pod:
        sys.stdout.write("\n")
        sys.stdout.flush()
        output.print_table(*topology.table(found.facts.topology))
    summary = ", ".join(f"{number} {level}" for level, number in report.counts(found.findings).items())
    verdict = "healthy" if found.is_healthy else "not healthy"
    out.print(f"\n{verdict}: {summary}")


def _row(finding: Observation) -> tuple[object, ...]:
    return output.styled(finding.level, _STYLES[finding.level]), finding.check, f"{finding.subject}: {finding.found}"
