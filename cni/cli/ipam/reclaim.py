"""railcni ipam reclaim: free what an audit has found dead.

Nothing is freed because of the report alone. All is read again, at least a grace later; a lease that is dead again, and the
same, is read once more by itself right before it is freed, and the store tests the change: the resourceVersion of pool,
AddressLease or reservation, all that makes a lease this one. A lease that has changed stays, and so does one whose address
may be in use on the machine that the command runs on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cni.cli.ipam import options as stores
from cni.cli.ipam.audit import Report, load, seen_twice
from cni.cli.terminal import output, subcommand
from cni.library.audit import snapshot, store_rules
from cni.library.audit.cluster import Cluster
from cni.library.audit.findings import RECLAIM, Finding
from cni.library.audit.free import Changed, Freeing
from cni.library.audit.lease_rules import AuditRules
from cni.library.audit.model import Snapshot
from cni.library.audit.snapshot import record_of
from cni.library.audit.store import Choice
from cni.shared.log import Log
from cni.shared.records import STATE, Records
from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import Attachment
from ipam.leases import Lease
from ipam.stores.base import CHANGE

GRACE = 60.0  # seconds: longer than a sandbox takes to be made again

FREED, WOULD_FREE, SKIPPED, FAILED = "freed", "would free", "skipped", "failed"


def register(commands: subcommand.Commands) -> None:
    """Add `reclaim`."""
    about = "free the leases that an audit found dead, if they still are; exit code 1: some could not be freed"
    more = ". Leases of pending pods and of IPAMClaims are never freed."
    parser = subcommand.add(commands, "reclaim", about, more, run=_run, shows=True)
    stores.add_options(parser, pods=True)
    parser.add_argument(
        "--from-report", required=True, metavar="FILE", help="the file of `railcni ipam audit --report`"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the leases to free, and free none")
    about = f"the command waits until the report is this old (default: {GRACE:g}, with --dry-run 0)"
    subcommand.option(parser, "--grace", None, about, "SECONDS", type=partial(subcommand.seconds, least=0))


def _run(options: argparse.Namespace) -> int:
    made = load(options.from_report)
    known = stores.named(options)
    choices = [choice for choice in known if choice.identity() in made.stores]
    if len(choices) < len(made.stores):
        raise InvalidConfig(
            f"{options.from_report} is of {_shown(made.stores[0])}, and the store chosen here is {_shown(known[0].identity())}:"
            " choose that one with --config, --kubeconfig or --data-dir, or make a new report"
        )
    done: list[dict[str, Any]] = []
    for result in _reclaim(made, choices, options):
        done.append(result)
        if options.output == "table":
            output.console().print(_line(result))
    if options.output != "table":
        output.print_data(done, options.output)
    elif not done:
        output.console().print(f"{options.from_report} holds nothing that is dead")
    return 1 if any(result["result"] == FAILED for result in done) else 0


def _reclaim(made: Report, choices: list[Choice], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if not made.of(RECLAIM):
        return
    with output.progress() as say:
        usual = 0 if options.dry_run else GRACE
        _wait(made, usual if options.grace is None else options.grace, say)
        seen = seen_twice(choices, say)
    again = {finding.key() for finding in seen.findings}
    found = {choice.kind: _Found(choice, snapshot) for choice, snapshot in zip(choices, seen.snapshots, strict=True)}
    for finding in made.of(RECLAIM):
        store = found.get(finding.store) or found[choices[0].kind]
        yield _one(finding, finding.key() in again, store, options.dry_run)


class _Found:
    """A chosen store as an audit has `seen` it; InvalidConfig when its pods could not be read."""

    def __init__(self, choice: Choice, seen: Snapshot) -> None:
        if seen.records is None and seen.pods is None:
            raise InvalidConfig("nothing can be reclaimed: the pods cannot be read")
        self._choice = choice
        self._seen = seen
        self._cluster = Cluster(choice.kubeconfig, choice.namespace) if seen.pods is not None else None
        self._freeing = Freeing(choice.open(CHANGE), self._cluster, Records(STATE, Log()))
        self._freed: set[Attachment] = set()
        self._leases = {(lease.pool, lease.text, lease.container_id, lease.ifname): lease for lease in seen.leases}

    def free(self, finding: Finding, dry_run: bool) -> None:
        """Free what the finding is about; Changed when it must not be freed, CniError when it cannot be."""
        if not finding.pool:
            (reserved,) = (r for r in self._seen.reserved or () if r.name == finding.reservation[0])
            self._freeing.delete_reservation(
                reserved, lambda now: _agree(finding, self._rules_for(now.lease).reservation(now)), dry_run
            )
            return
        lease = self._leases[finding.pool, finding.address, finding.container_id, finding.ifname]
        try:
            self._freeing.free_lease(lease, lambda now: self._check(finding, now), self._cooldown(lease), dry_run)
        except Changed:  # an attachment with a record loses all its leases with the first
            if lease.attachment not in self._freed or self._freeing.store.holder(lease):
                raise
        self._freed.add(lease.attachment)

    def _check(self, finding: Finding, lease: Lease) -> None:
        if self._seen.records is not None:
            record = record_of(lease.attachment, self._choice)
            _agree(finding, store_rules.of_lease(lease, record, snapshot.is_there))
        else:
            _agree(finding, self._rules_for(lease).lease(lease))

    def _rules_for(self, lease: Lease) -> AuditRules:
        """The rules over this lease, its pod and node as they are now, and all else that concerns its address."""
        seen, cluster = self._seen, self._cluster
        if cluster is None:
            raise Changed("its pod cannot be read")
        pods = {name: pod for name, pod in (seen.pods or {}).items() if lease.address in pod.addresses()}
        pods.pop(lease.pod_name, None)
        if pod := cluster.pod(*lease.pod_name):
            pods[lease.pod_name] = pod
        node = None if seen.nodes is None else cluster.node(lease.node)
        nodes = {node.name: node} if node else {}
        same = [one for one in seen.leases if one.address == lease.address]
        reserved = None if seen.reserved is None else [r for r in seen.reserved if r.address == lease.address]
        return AuditRules(replace(seen, leases=same, reserved=reserved, pods=pods, nodes=nodes, pools=()))

    def _cooldown(self, lease: Lease) -> int:
        """For how many seconds a freed address is given to no other pod: as its networks say, or the flat file."""
        own = [
            n.cooldown for n in self._seen.networks if n.holds(lease.address) and (n.sliced or lease.pool in n.pools())
        ]
        return max(own, default=0) or self._choice.cooldown


def _agree(finding: Finding, again: Finding | None) -> None:
    if again is None:
        raise Changed("it is in use")
    if again.action != RECLAIM:
        raise Changed(again.message)
    if again.kind != finding.kind:
        raise Changed(f"it is another finding now: {again.message}")


def _one(finding: Finding, found_again: bool, found: _Found, dry_run: bool) -> dict[str, Any]:
    result, why = (WOULD_FREE if dry_run else FREED), finding.message
    try:
        if not found_again:
            raise Changed("it is not as it was found")
        found.free(finding, dry_run)
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


def _wait(made: Report, grace: float, say: Callable[[str], object]) -> None:
    """Until the report is as old as the grace, so that what is dead was so for that long."""
    age = (datetime.now(UTC) - made.created).total_seconds()
    end = time.monotonic() + min(grace - age, grace)
    while (left := end - time.monotonic()) > 0:
        say(f"the report is new: looking again in {left:.0f} s")
        time.sleep(min(left, 1.0))


def _line(result: dict[str, Any]) -> str:
    if result["result"] in (FREED, WOULD_FREE):  # then the finding says of what
        return f"{result['result']}: {result['why']}"
    what = result["address"] or result["reservation"]
    pool = f" of {result['pool']}" if result["pool"] else ""
    return f"{result['result']}: {what}{pool}: {result['why']}"


def _shown(store: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in dict(store).items())
