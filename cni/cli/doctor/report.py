"""The checks made, and their findings as a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cni.cli.doctor.facts import NodeFacts
from cni.cli.doctor.finding import FAULT, OK, SKIPPED, UNKNOWN, Check, Observation
from cni.cli.doctor.table import CHECKS, POD_CHECKS
from cni.cli.rdma import views
from cni.library.inventory import topology
from cni.library.inventory.denied import REMEDY, is_denied
from cni.shared.spec.errors import CniError


@dataclass(frozen=True)
class DoctorReport:
    """What was found about a node, or about one of its pods."""

    facts: NodeFacts
    findings: Sequence[Observation]

    @property
    def faults(self) -> list[Observation]:
        return [f for f in self.findings if f.level == FAULT]

    @property
    def is_healthy(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def document(self) -> dict[str, Any]:
        """The report as JSON, with the node's verbs devices and the distances of GPUs and NICs."""
        columns, rows = topology.table(self.facts.topology)
        return {
            "node": self.facts.node_name,
            "pod": self.facts.pod or None,
            "healthy": self.is_healthy,
            "faults": len(self.faults),
            "findings": [f.document() for f in self.findings],
            "devices": views.document(self.facts.devices),
            "distances": {str(row[1]): dict(zip(columns[3:], row[3:], strict=True)) for row in rows},
        }


def examine(facts: NodeFacts | None = None) -> DoctorReport:
    """Make all checks of this node, or of the pod that `facts` names; CniError when that pod is not found."""
    known = facts or NodeFacts()
    if known.pod:
        _ = known.chosen  # a pod that is not there is no finding: it was asked for wrongly
        return DoctorReport(known, run(POD_CHECKS, known))
    return DoctorReport(known, run(CHECKS, known))


def run(checks: Iterable[Check], facts: NodeFacts) -> list[Observation]:
    """The findings of `checks`, in order. What cannot be read is a finding too, and stops no other check; what this user
    may not read is no fault of the node."""
    found: list[Observation] = []
    stopped: set[str] = set()
    for check in checks:
        cause = [need for need in check.needs if need in stopped]
        if cause:
            stopped.add(check.name)
            found.append(
                Observation(SKIPPED, check.title, f"not looked at, because of {', '.join(cause)}", check=check.name)
            )
            continue
        try:
            made = [_as_seen(replace(finding, check=check.name)) for finding in check.run(facts)]
        except (OSError, ValueError, CniError) as fault:
            made = [_as_seen(Observation(UNKNOWN, check.title, f"cannot be read: {fault}", check=check.name))]
        if any(finding.level == FAULT for finding in made):
            stopped.add(check.name)
        found += made
    return found


def _as_seen(finding: Observation) -> Observation:
    """`finding`, or that it is not known because this user may not look."""
    if finding.level in (FAULT, UNKNOWN) and is_denied(finding.found):
        return replace(finding, level=UNKNOWN, healthy="", remedy=REMEDY)
    return finding


def counts(findings: Sequence[Observation]) -> dict[str, int]:
    """How many of each level."""
    return {
        level: sum(f.level == level for f in findings) for level in dict.fromkeys([OK, *(f.level for f in findings)])
    }
