"""railcni doctor: what keeps RDMA of pods from working on this node, and what to do about it."""

from __future__ import annotations

import argparse
import sys

from cni.cli import output, subcommand
from cni.cli.doctor import nfd
from cni.cli.doctor.finding import ADVICE, FAULT, MEANINGS, NOTE, OK, SKIPPED, UNKNOWN, Finding
from cni.cli.places import NET_DIRECTORY
from cni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.cli.doctor.report import Report

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
        help="look at this pod alone: its links, GIDs, parameters, device nodes and limits",
    )
    parser.add_argument(
        "--conf-dir", default=NET_DIRECTORY, metavar="DIR", help=f"the node's networks; default: {NET_DIRECTORY}"
    )
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
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from cni.cli.doctor import report  # with the lint and its libraries, which --help has no use for
    from cni.cli.doctor.facts import Facts, Places

    folders = tuple(f for f in options.cni_path.split(":") if f)
    facts = Facts(Places(networks=options.conf_dir, plugins=folders), options.pod)
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


def _print(found: Report, verbose: bool) -> None:
    from cni.cli import topology
    from cni.cli.doctor import report

    verbose = verbose or bool(found.facts.pod)
    rows = [_row(f) for f in found.findings if verbose or f.level not in (OK, SKIPPED)]
    skipped = [f.check for f in found.findings if f.level == SKIPPED]
    if skipped and not verbose:
        rows.append(_row(Finding(SKIPPED, f"{len(skipped)} checks", ", ".join(skipped))))
    if rows:
        output.print_table(("level", "check", "subject", "found"), rows)
    for fault in (f for f in found.findings if f.level in (FAULT, ADVICE) or (f.level == UNKNOWN and f.remedy)):
        out = output.console()
        out.print(output.styled(f"\n{fault.subject}: {fault.found}", _STYLES[fault.level]))
        if fault.healthy:
            out.print(f"  healthy: {fault.healthy}")
        if fault.remedy:
            out.print(f"  remedy:  {fault.remedy}")
    if found.facts.topology.gpus and not found.facts.pod:
        sys.stdout.write("\n")
        sys.stdout.flush()
        output.print_table(*topology.table(found.facts.topology))
    summary = ", ".join(f"{number} {level}" for level, number in report.counts(found.findings).items())
    verdict = "healthy" if found.is_healthy else "not healthy"
    sys.stdout.write(f"\n{verdict}: {summary}\n")


def _row(finding: Finding) -> tuple[object, ...]:
    return output.styled(finding.level, _STYLES[finding.level]), finding.check, finding.subject, finding.found
