"""railcni ipam reclaim: free what an audit has found dead.

Nothing is freed on the report's word. All is looked at anew, at least a grace later; what is found dead again, with the
same entry in the store, is read once more by itself right before it is freed, and its change is tested by the store: the
pool's resourceVersion, the reservation's UID, all that makes a lease this one. What has changed is passed over.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from cni.cli import output, report, subcommand
from cni.cli import store as stores
from cni.cli.findings import Finding
from cni.cli.ipam_audit import seen_twice
from cni.cli.ipam_free import Changed, freeing
from cni.cli.progress import Progress
from cni.cli.report import Report
from cni.spec.errors import CniError, InvalidConfig

GRACE = 60.0  # seconds: longer than a sandbox takes to be made anew

FREED, WOULD_FREE, SKIPPED, FAILED = "freed", "would free", "skipped", "failed"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `reclaim`."""
    about = "free what an audit has found dead, if it still is; exit code 1: something could not be freed"
    parser = subcommand.add(commands, "reclaim", about, ". A pending pod's lease and an IPAMClaim's are never touched.")
    stores.add_options(parser)
    output.add_option(parser)
    parser.add_argument("--from-report", required=True, metavar="FILE", help="what `railcni ipam audit --report` wrote")
    parser.add_argument("--dry-run", action="store_true", help="say what would be freed, and free nothing")
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=GRACE,
        metavar="SECONDS",
        help=f"how old the report must be; until then the command waits (default: {GRACE:g})",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    made = report.load(options.from_report)
    choice = stores.choose(options)
    if choice.identity() != dict(made.store):
        raise InvalidConfig(
            f"{options.from_report} is of {_shown(made.store)}, and the store chosen here is {_shown(choice.identity())}: choose"
            " that one with --config, --kubeconfig or --data-dir, or make a new report"
        )
    done: list[dict[str, Any]] = []
    for result in _reclaim(made, choice, options):
        done.append(result)
        if options.output == "table":
            output.console().print(_line(result))
    if options.output != "table":
        output.print_data(done, options.output)
    elif not done:
        output.console().print(f"{options.from_report} holds nothing that is dead")
    return 1 if any(result["result"] == FAILED for result in done) else 0


def _reclaim(made: Report, choice: stores.Choice, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if not made.dead:
        return
    with Progress() as progress:
        if not options.dry_run:
            _wait(made, options.grace, progress)
        seen = seen_twice(choice, progress)
    again = {finding.key(): finding for finding in seen.findings}
    try:
        free = freeing(choice, seen)
    except Changed as fault:
        raise InvalidConfig(f"nothing can be reclaimed: {fault}") from None
    try:
        for finding in made.dead:
            yield _one(finding, finding.key() in again, free, options.dry_run)
    finally:
        free.close()


def _one(finding: Finding, found_again: bool, free: Any, dry_run: bool) -> dict[str, Any]:
    result, why = (WOULD_FREE if dry_run else FREED), finding.message
    try:
        if not found_again:
            raise Changed("it is not as it was found")
        free.free(finding, dry_run)
    except Changed as fault:
        result, why = SKIPPED, str(fault)
    except CniError as fault:
        result, why = FAILED, fault.msg
    return {
        "result": result,
        "kind": finding.kind,
        "pool": finding.pool,
        "address": finding.address,
        "pod": finding.pod,
        "containerID": finding.container_id,
        "reservation": finding.reservation[0],
        "why": why,
    }


def _wait(made: Report, grace: float, progress: Progress) -> None:
    """Until the report is as old as the grace, so that what is dead was so for that long."""
    age = (datetime.now(UTC) - made.created).total_seconds()
    end = time.monotonic() + min(grace - age, grace)
    while (left := end - time.monotonic()) > 0:
        progress.say(f"the report is new: looking again in {left:.0f} s")
        time.sleep(min(left, 1.0))


def _line(result: dict[str, Any]) -> str:
    if result["result"] in (FREED, WOULD_FREE):  # then the finding says of what
        return f"{result['result']}: {result['why']}"
    what = result["address"] or result["reservation"]
    pool = f" of {result['pool']}" if result["pool"] else ""
    return f"{result['result']}: {what}{pool}: {result['why']}"


def _shown(store: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in dict(store).items())


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 86400:
        raise argparse.ArgumentTypeError(f'"{text}": want seconds, up to a day')
    return value
