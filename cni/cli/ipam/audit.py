"""railcni ipam audit: compares pools, reservations and indexes with living pods. It reads, and changes nothing.

All is read twice, a moment apart, for between the reading of the leases and that of the pods attachments come and go; only
findings of both readings are reported.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from cni.cli.ipam.report import Report
from cni.cli.terminal import output, subcommand
from cni.cli.terminal.progress import Progress
from cni.library.audit import snapshot
from cni.library.audit import store as stores
from cni.library.audit.findings import KEEP, RECLAIM

PAUSE = 0.3  # seconds between the readings


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `audit`."""
    about = (
        "compare the leases with the pods, records and namespaces that they are for; exit code 1: something is wrong"
    )
    parser = subcommand.add(commands, "audit", about, ". It changes nothing, and needs no railcni on the nodes.")
    stores.add_options(parser)
    output.add_option(parser)
    parser.add_argument(
        "--report", default="", metavar="FILE", help="write what is found there, for `railcni ipam reclaim`"
    )
    parser.add_argument(
        "--all", action="store_true", help="in the table also what is right as it is: pending pods, IPAMClaims"
    )
    parser.set_defaults(run=_run)


def seen_twice(choices: Sequence[stores.Choice], progress: Progress) -> snapshot.Audit:
    """The second of two audits, with those findings that the first had too."""
    first = snapshot.audit(choices, progress.say)
    if not first.findings:
        return first
    time.sleep(PAUSE)
    second = snapshot.audit(choices, lambda text: progress.say(f"{text}, for the second time"))
    known = {finding.key() for finding in first.findings}
    kept = [finding for finding in second.findings if finding.key() in known]
    return replace(second, findings=kept)


def _run(options: argparse.Namespace) -> int:
    choices = stores.choose(options, output.print_fault)
    with Progress() as progress:
        seen = seen_twice(choices, progress)
    identities = [choice.identity() for choice in choices]
    unread = list(dict.fromkeys(why for one in seen.snapshots for why in one.unread))
    made = Report(identities, datetime.now(UTC), seen.counts, seen.findings, unread)
    if options.report:
        made.write(options.report)
    if options.output != "table":
        output.print_data(made.document(), options.output)
    else:
        _show(made, stores.told(choices), options)
    return 1 if made.faults else 0


def _show(made: Report, where: str, options: argparse.Namespace) -> None:
    shown = made.findings if options.all else made.faults
    if shown:
        output.print_table(("finding", "to do", "pool", "what"), [(f.kind, f.action, f.pool, f.message) for f in shown])
        output.console().print()
    looked = ", ".join(output.counted(count, what.removesuffix("s")) for what, count in made.counts.items())
    output.console().print(f"read: {where}")
    output.console().print(looked)
    for kind, count in sorted(Counter(f.kind for f in made.findings if f.action == KEEP).items()):
        output.console().print(f"kept, as it should be: {count} {kind}")
    for what in made.unread:
        output.console().print(f"not read: {what}")
    if not made.faults:
        output.console().print("nothing is wrong")
        return
    dead = sum(f.action == RECLAIM for f in made.faults)
    output.console().print(
        f"{output.counted(len(made.faults), 'finding')}, {dead} of which `railcni ipam reclaim` would free"
    )
    if dead and not options.report:
        output.console().print("it needs their report: add --report FILE")
