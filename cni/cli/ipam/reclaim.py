"""railcni ipam reclaim: frees the leases and reservations that an audit reported as dead (their pods are gone).

The report alone frees nothing. All stores are read again, at least a grace period after the audit. A lease that is
unchanged and still dead is read once more right before it is freed. The store frees only this lease: it tests the
resourceVersion of pool, AddressLease or reservation, or all fields that identify the lease. A lease stays if it has
changed, or if its address may be in use. Only the lease's node knows whether the address is in use: `railcni` looks on
its own machine, `kubectl railcni` asks the node's agent. Without an answer the lease stays, unless the pod's containers
have ended or the node is off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cni.cli.ipam import options as stores
from cni.cli.ipam.audit import Report, load, seen_twice
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit import in_use, snapshot, store_rules
from cni.cluster.audit.cluster import Cluster
from cni.cluster.audit.findings import LEASE_OF_ENDED_POD, RECLAIM, Finding
from cni.cluster.audit.free import Changed, Freeing, Kept
from cni.cluster.audit.lease_rules import AuditRules, blocker
from cni.cluster.audit.model import OUT_OF_SERVICE, Key, Snapshot
from cni.cluster.audit.store import Choice
from cni.node.installation.files import below
from cni.node.installation.options import state_of
from cni.shared.log import Log
from cni.shared.records import STATE, Records
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig
from cni.shared.spec.request import Attachment
from ipam.leases import Lease
from ipam.stores.base import CHANGE
from ipam.stores.served import from_json

GRACE = 60.0  # seconds; a runtime needs less time to make a sandbox again

FREED, WOULD_FREE, SKIPPED, KEPT, FAILED = "freed", "would free", "skipped", "kept", "failed"
Told = Mapping[Key, tuple[str, str]]  # lease -> its node's answer: (ENDED, USED or UNKNOWN of in_use, reason)
_NOT_ASKED = "the command does not ask it; `kubectl railcni ipam reclaim` does"


def register(commands: subcommand.Commands) -> None:
    """Add the command `reclaim`."""
    about = "free the leases of dead pods that an audit reported, if they are still dead; exit code 1: some stay"
    more = ". Leases of pending pods and of IPAMClaims are never freed."
    parser = subcommand.add(commands, "reclaim", about, more, run=_run, shows=True)
    stores.add_options(parser, pods=True)
    about = "the file of `railcni ipam audit --report`"
    parser.add_argument("--from-report", required=True, metavar="FILE", help=about)
    common.add(parser, "dry-run")
    about = "here: also free leases whose node does not answer; first make sure that their pods run nowhere"
    common.add(parser, "force", about)
    parser.set_defaults(ask=None)
    about = f"the command waits until the report is this old; default: {GRACE:g}, with --dry-run 0"
    common.add(parser, "grace", about, type=partial(subcommand.seconds, least=0))


def register_in_use(commands: subcommand.Commands) -> None:
    """Add the command `in-use`."""
    about = "not for people: tell which leases, given as JSON on stdin, this node still uses"
    more = ". `kubectl railcni ipam reclaim` asks the nodes by it."
    parser = subcommand.add(commands, "in-use", about, more, run=_answer)
    common.add(parser, "root", "", "/")
    common.add(parser, "state-dir", "", STATE, made=True)


def _answer(options: argparse.Namespace) -> None:
    records = Records(state_of(options), Log())
    place = str if options.root == "/" else partial(below, options.root)
    try:
        leases = [from_json(one) for one in codec.loads(sys.stdin.read().encode())]
    except (ValueError, TypeError) as fault:
        raise InvalidConfig(f"stdin: want leases as `kubectl railcni` of this version writes them: {fault}") from None
    print(json.dumps([in_use.use(lease, records, place) for lease in leases]))


def _run(options: argparse.Namespace) -> int:
    made = load(options.from_report)
    known = stores.named(options)
    choices = [choice for choice in known if choice.identity() in made.stores]
    if len(choices) < len(made.stores):
        there, here = (", ".join(f"{k} {v}" for k, v in one.items()) for one in (made.stores[0], known[0].identity()))
        remedy = "choose that one with --flat-file, --kubeconfig or --data-dir, or make a new report"
        raise InvalidConfig(f"{options.from_report} is of {there}, and the store chosen here is {here}: {remedy}")
    done: list[dict[str, Any]] = []
    for result in _reclaim(made, choices, options):
        done.append(result)
        if options.output == "table":
            output.console().print(_line(result))
    if options.output != "table":
        output.print_data(done, options.output)
    elif not done:
        output.console().print(f"{options.from_report} holds nothing that is dead")
    return int(any(result["result"] in (FAILED, KEPT) for result in done))


def _reclaim(made: Report, choices: list[Choice], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if not made.dead:
        return
    with output.progress() as say:
        usual = 0 if options.dry_run else GRACE
        _wait(made, usual if options.grace is None else options.grace, say)
        seen = seen_twice(choices, say)
    again = {finding.key() for finding in seen.findings}
    pairs = zip(choices, seen.snapshots, strict=True)
    found = {choice.kind: _Found(choice, snapshot, options) for choice, snapshot in pairs}
    of_store = [(finding, found.get(finding.store) or found[choices[0].kind]) for finding in made.dead]
    with output.progress() as say:
        say("asking the nodes")
        asked = [lease for one, store in of_store if (lease := store.elsewhere(one))]
        told = options.ask(asked) if options.ask else {}
    for finding, store in of_store:
        result, why = (WOULD_FREE if options.dry_run else FREED), finding.message
        try:
            if finding.key() not in again:
                raise Changed("it is not as it was found")
            store.free(finding, told)
        except Changed as fault:
            result, why = (KEPT if isinstance(fault, Kept) else SKIPPED), str(fault)
        except CniError as fault:
            result, why = FAILED, fault.msg
        where = {"pool": finding.pool, "address": finding.address, "pod": finding.pod}
        where |= {"containerID": finding.container_id, "reservation": finding.reservation[0]}
        yield {"result": result, "kind": finding.kind, **where, "why": why}


class _Found:
    """A store in which leases are freed, and its snapshot, which must have records or pods (else: InvalidConfig)."""

    def __init__(self, choice: Choice, seen: Snapshot, options: argparse.Namespace) -> None:
        if seen.records is None and seen.pods is None:
            raise InvalidConfig("nothing can be reclaimed: the pods cannot be read")
        self._choice, self._seen, self._options = choice, seen, options
        self._cluster = Cluster(choice.kubeconfig, choice.namespace) if seen.pods is not None else None
        self._freeing = Freeing(choice.open(CHANGE), Records(STATE, Log()))
        self._freed: set[Attachment] = set()
        self._leases = {(lease.pool, lease.text, lease.container_id, lease.ifname): lease for lease in seen.leases}

    def elsewhere(self, finding: Finding) -> Lease | None:
        """Return the finding's lease if an agent must tell whether the address is in use; else None. With
        `options.ask`, this node's agent is asked too, since a container may not see the node's namespaces."""
        lease = self._lease(finding)
        if self._options.force or lease is None or finding.kind == LEASE_OF_ENDED_POD:
            return None
        is_here = not self._options.ask and self._freeing.is_here(lease)
        return None if is_here or self._is_off(lease) else lease

    def _lease(self, finding: Finding) -> Lease | None:
        """The lease of the finding; for a reservation without a lease, the lease that the reservation describes."""
        if finding.pool:
            return self._leases.get((finding.pool, finding.address, finding.container_id, finding.ifname))
        return next((r.lease for r in self._seen.reserved or () if r.name == finding.reservation[0]), None)

    def _is_off(self, lease: Lease) -> bool:
        """Whether the lease's node is off: it is tainted out-of-service, or its Node is gone and its agent silent."""
        seen = self._seen
        if self._cluster is None or seen.nodes is None or not lease.node:
            return False
        if node := self._cluster.node(lease.node):
            return node.out_of_service
        named = {one.node for one in seen.leases}
        return seen.agents is not None and not blocker(lease, seen.nodes, None, False, named, seen.agents)

    def free(self, finding: Finding, told: Told) -> None:
        """Free the finding's lease or reservation. `told` has the agents' answers, by lease. Raises Changed or Kept if
        the lease or reservation must stay, CniError on a failure."""
        options, lease = self._options, self._lease(finding)
        if lease is None:
            raise Changed("it is gone")
        if self.elsewhere(finding):
            state, why = told.get(lease.identity, (in_use.UNKNOWN, _NOT_ASKED))
            if state == in_use.USED:
                raise Changed(f"{why}: node {lease.node}" if lease.node else why)
            if state != in_use.ENDED:
                where = f"node {lease.node}" if lease.node else "the node of its pod, which the store does not name"
                remedy = f"Run `railcni ipam reclaim` there, or taint the node with {OUT_OF_SERVICE} when it is off"
                remedy += "; --force frees it if its pod runs nowhere"
                raise Kept(f"it may be in use on {where}: {why}. {remedy}")
        is_ended = bool(options.ask or options.force or finding.kind == LEASE_OF_ENDED_POD)
        check = partial(self._check, finding)
        networks = [n for n in self._seen.networks if n.holds(lease.address) and (n.sliced or lease.pool in n.pools())]
        cooldown = max((n.cooldown for n in networks), default=0) or self._choice.cooldown
        try:
            self._freeing.free_lease(lease, check, cooldown, options.dry_run, is_ended)
        except Changed:  # an attachment with a record loses all its leases at once
            if lease.attachment not in self._freed or self._freeing.store.holder(lease):
                raise
        self._freed.add(lease.attachment)

    def _check(self, finding: Finding, lease: Lease) -> None:
        """Judge the present lease or reservation by the audit's rules. Raises Changed if the finding differs."""
        if not finding.pool:
            reserved = self._cluster.reservation(lease) if self._cluster else None
            if reserved is None or reserved.uid != finding.reservation[1]:
                raise Changed("another has taken its place" if reserved else "the reservation is gone")
            again = self._rules_for(lease).reservation(reserved)
        elif self._seen.records is not None:
            again = store_rules.of_lease(lease, snapshot.record_of(lease.attachment, self._choice), snapshot.is_there)
        else:
            again = self._rules_for(lease).lease(lease)
        if again is None:
            raise Changed("it is in use")
        if again.action != RECLAIM:
            raise Changed(again.message)
        if again.kind != finding.kind:
            raise Changed(f"it is another finding now: {again.message}")

    def _rules_for(self, lease: Lease) -> AuditRules:
        """Read the pod and node of `lease` again. Return the audit rules for a snapshot of the lease's address."""
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


def _wait(made: Report, grace: float, say: Callable[[str], object]) -> None:
    """Wait until the audit report `made` is `grace` seconds old."""
    age = (datetime.now(UTC) - made.created).total_seconds()
    end = time.monotonic() + min(grace - age, grace)
    while (left := end - time.monotonic()) > 0:
        say(f"the report is new: looking again in {left:.0f} s")
        time.sleep(min(left, 1.0))


def _line(result: dict[str, Any]) -> str:
    if result["result"] in (FREED, WOULD_FREE):  # the finding's message names the lease
        return f"{result['result']}: {result['why']}"
    what = result["address"] or result["reservation"]
    pool = f" of {result['pool']}" if result["pool"] else ""
    return f"{result['result']}: {what}{pool}: {result['why']}"
