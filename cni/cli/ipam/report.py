"""The report of an audit: a JSON document that `railcni ipam audit` writes and `railcni ipam reclaim` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cni.cli.terminal import output
from cni.library.audit.findings import KEEP, RECLAIM, Finding
from cni.shared.spec.errors import InvalidConfig, IoFailure

KIND, API_VERSION = "IpamAudit", "railcni.io/v1"
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class Report:
    """The findings of an audit. `counts` are numbers of examined objects, `unread` the reasons for missing ones.

    `stores` are the identities of the stores that were read.
    """

    stores: Sequence[Mapping[str, Any]]
    created: datetime
    counts: Mapping[str, int]
    findings: Sequence[Finding]
    unread: Sequence[str] = field(default=())

    @property
    def faults(self) -> list[Finding]:
        """The findings that are faults."""
        return [f for f in self.findings if f.action != KEEP]

    @property
    def dead(self) -> list[Finding]:
        """The findings that may be reclaimed."""
        return [f for f in self.findings if f.action == RECLAIM]

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "created": self.created.strftime(_TIME),
            "stores": list(self.stores),
            "looked_at": dict(self.counts),
            "unread": list(self.unread),
            "findings": [_document(f) for f in self.findings],
        }

    def write(self, path: str) -> None:
        """Write it to `path`, whole or not at all; IoFailure."""
        output.write_file("report", path, f"{json.dumps(self.document(), indent=2)}\n".encode(), mode=0o666)


def load(path: str) -> Report:
    """The report at `path`; InvalidConfig for another file, IoFailure."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except OSError as fault:
        raise IoFailure(f"report {path} cannot be read: {fault.strerror}") from None
    except ValueError as fault:
        raise InvalidConfig(f"report {path} is not JSON: {fault}") from None
    try:
        if (document["kind"], document["apiVersion"]) != (KIND, API_VERSION):
            raise ValueError(f"{document['apiVersion']} {document['kind']}")
        created = datetime.strptime(document["created"], _TIME).replace(tzinfo=UTC)
        return Report(document["stores"], created, {}, [_finding(f) for f in document["findings"]])
    except (KeyError, TypeError, ValueError) as fault:
        raise InvalidConfig(
            f"{path} is no report of `railcni ipam audit --report` of this version: {type(fault).__name__} {fault}"
        ) from None


_TEXTS = {
    "pool": "pool",
    "address": "address",
    "network": "network",
    "container_id": "containerID",
    "ifname": "ifname",
    "pod": "pod",
    "pod_uid": "podUID",
    "node": "node",
    "store": "store",
}


def _document(finding: Finding) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": finding.kind, "action": finding.action, "message": finding.message}
    document |= {key: getattr(finding, name) for name, key in _TEXTS.items() if getattr(finding, name)}
    if finding.sequence:
        document["sequence"] = finding.sequence
    if finding.reservation[0]:
        document["reservation"] = {"name": finding.reservation[0], "uid": finding.reservation[1]}
    return document


def _finding(document: Mapping[str, Any]) -> Finding:
    reservation = document.get("reservation") or {"name": "", "uid": ""}
    return Finding(
        kind=str(document["kind"]),
        action=str(document["action"]),
        message=str(document["message"]),
        sequence=int(document.get("sequence", 0)),
        reservation=(str(reservation["name"]), str(reservation["uid"])),
        **{name: str(document.get(key, "")) for name, key in _TEXTS.items()},
    )
