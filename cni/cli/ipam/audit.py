"""railcni ipam audit: compares leases and reservations with living pods, and a file store's index with its leases. It
changes nothing.

An attachment may come or go after the leases are read and before the pods are read. So all objects are read twice, a
moment apart, and only findings of both readings are reported. The report is JSON, which `railcni ipam reclaim` reads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from cni.cli.ipam import options as stores
from cni.cli.terminal import common, output, subcommand
from cni.cluster.audit import snapshot
from cni.cluster.audit.findings import KEEP, LOOK, RECLAIM, RELEASE_PENDING, Finding
from cni.cluster.audit.store import Choice
from cni.node.inventory import attachments as recorded
from cni.shared.kernel.files import read_whole
from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig, IoFailure

PAUSE = 0.3  # seconds between the readings
KIND, API_VERSION = "IpamAudit", "railcni.io/v1"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_REMEDY = "make a new one by `railcni ipam audit --report FILE`"
_KEYS = {f.name: f.name for f in fields(Finding)} | {"container_id": "containerID", "pod_uid": "podUID"}


@dataclass(frozen=True)
class Report:
    """The part of an audit report that `railcni ipam reclaim` reads. `stores` are the identities of the stores, and
    `created` is the time of the audit. `dead` are the findings whose leases or reservations may be freed."""

    stores: Sequence[Mapping[str, Any]]
    created: datetime
    dead: Sequence[Finding]


def _document(finding: Finding) -> dict[str, Any]:
    document = {key: getattr(finding, name) for name, key in _KEYS.items() if getattr(finding, name)}
    name, uid = document.pop("reservation")
    return {**document, "reservation": {"name": name, "uid": uid}} if name else document


def _finding(document: Mapping[str, Any]) -> Finding:
    known: dict[str, Any] = {name: str(document[key]) for name, key in _KEYS.items() if key in document}
    reserved = document.get("reservation") or {"name": "", "uid": ""}
    known["reservation"] = (str(reserved["name"]), str(reserved["uid"]))
    return Finding(**{**known, "sequence": int(document.get("sequence", 0))})


def load(path: str) -> Report:
    """Read the report at `path`. Raises InvalidConfig if the file is no report, IoFailure if it cannot be read."""
    try:
        document = codec.loads(read_whole(path))
    except OSError as fault:
        raise IoFailure(f"report {path} cannot be read: {fault.strerror}; {_REMEDY}") from None
    except ValueError as fault:
        raise InvalidConfig(f"report {path} is not JSON: {fault}; {_REMEDY}") from None
    try:
        if (document["kind"], document["apiVersion"]) != (KIND, API_VERSION):
            raise ValueError
        created = datetime.strptime(document["created"], _TIME).replace(tzinfo=UTC)
        findings = [_finding(one) for one in document["findings"]]
        return Report(document["stores"], created, [one for one in findings if one.action == RECLAIM])
    except (KeyError, TypeError, ValueError):
        raise InvalidConfig(f"{path} is no report of `railcni ipam audit` of this version: {_REMEDY}") from None


def register(commands: subcommand.Commands) -> None:
    """Add the command `audit`."""
    about = "compare the leases with their pods, records and namespaces; exit code 1: something is wrong"
    more = ". The command changes nothing, and needs no railcni on the nodes."
    parser = subcommand.add(commands, "audit", about, more, run=_run, shows=True)
    stores.add_options(parser, pods=True)
    subcommand.option(parser, "--report", "", "write the findings to this file, for `railcni ipam reclaim`", "FILE")
    common.add(parser, "all", "here: leases of pending pods and IPAMClaims")


def seen_twice(choices: Sequence[Choice], say: Callable[[str], object]) -> snapshot.Audit:
    """Audit the stores twice; return the second audit with only the findings that the first audit has too."""
    first = snapshot.audit(choices, say)
    if not first.findings:
        return first
    time.sleep(PAUSE)
    second = snapshot.audit(choices, lambda text: say(f"{text}, for the second time"))
    known = {finding.key() for finding in first.findings}
    return replace(second, findings=[finding for finding in second.findings if finding.key() in known])


def _pending(found: Sequence[Finding], unread: list[str]) -> Iterator[Finding]:
    """Yield a finding for each pending release of this node that is not in `found`. If the node's attachment records
    cannot be read, add the reason to `unread`."""
    told = {(f.network, f.container_id, f.ifname) for f in found if f.kind == RELEASE_PENDING}
    try:
        for attachment in recorded.pending():
            key = attachment["network"], attachment["containerID"], attachment["ifname"]
            if key not in told:
                message = f"{recorded.named(attachment)} is not released: {attachment['pending']}; `railcni ipam flush`"
                yield Finding(RELEASE_PENDING, LOOK, message, "", "", *key, attachment["pod"])
    except CniError as fault:
        unread.append(fault.msg)


def _run(options: argparse.Namespace) -> int:
    choices = stores.choose(options)
    with output.progress() as say:
        seen = seen_twice(choices, say)
    unread = list(dict.fromkeys(why for one in seen.snapshots for why in one.unread))
    findings = [*seen.findings, *_pending(seen.findings, unread)]
    made: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "created": datetime.now(UTC).strftime(_TIME),
        "stores": [choice.identity() for choice in choices],
        "looked_at": {**seen.counts},
        "unread": unread,
        "findings": [*map(_document, findings)],
    }
    if options.report:
        output.write_file("report", options.report, f"{json.dumps(made, indent=2)}\n".encode(), mode=0o666)
    output.show(options.output, made, lambda: _show(made, stores.told(choices), options))
    return int(any(one.action != KEEP for one in findings))


def _show(made: dict[str, Any], where: str, options: argparse.Namespace) -> None:
    out, faults = output.console(), [one for one in made["findings"] if one["action"] != KEEP]
    if shown := made["findings"] if options.all else faults:
        rows = [(one["kind"], one["action"], one.get("pool"), one["message"]) for one in shown]
        output.print_table(("finding", "to do", "pool", "what"), rows)
        out.print()
    looked = ", ".join(output.counted(count, what.removesuffix("s")) for what, count in made["looked_at"].items())
    kept = sorted(Counter(one["kind"] for one in made["findings"] if one["action"] == KEEP).items())
    dead = sum(one["action"] == RECLAIM for one in faults)
    found = f"{output.counted(len(faults), 'finding')}, {dead} of which `railcni ipam reclaim` would free"
    lines = [f"read: {where}", looked, *(f"kept, as it should be: {count} {kind}" for kind, count in kept)]
    lines += [*(f"not read: {what}" for what in made["unread"]), found if faults else "nothing is wrong"]
    lines += ["it needs their report: add --report FILE"] if dead and not options.report else []
    out.print("\n".join(lines))
