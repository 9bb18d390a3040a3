"""The comparisons of `railcni rails check`: the rails of a pod with each other, with their configuration and with a peer."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cni.cli.rails.attached import AttachedRail, Found, Interfaces, look
from cni.library.runtime import icmp
from cni.shared.kernel import netns

_PAYLOAD = 56  # bytes, as ping(8)
_SECONDS = 2.0


@dataclass
class RailReport:
    """One rail: its state, its faults, and round trips in ms by the address of the peer."""

    found: Found
    faults: list[str] = field(default_factory=list)
    trips: dict[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The report for programs."""
        attached = self.found.attached
        return {
            "group": attached.rail.group,
            "rail": attached.rail.index,
            "network": attached.network,
            "interface": attached.ifname,
            "addresses": [str(a) for a in self.found.addresses],
            "index": self.found.indexes[0] if self.found.indexes else None,
            "table": attached.rail.table if attached.routing else None,
            "mtu": attached.mtu or None,
            "gids": self.found.gids,
            "pings": {address: round(ms, 3) for address, ms in self.trips.items()},
            "faults": self.faults,
        }


def check(rails: Sequence[AttachedRail]) -> list[RailReport]:
    """Each rail by itself, and the indexes of all that should be equal."""
    reports = [RailReport(found, list(found.differences)) for found in map(look, rails)]
    groups = {report.found.attached.rail.group for report in reports}
    for group in groups:
        same = [r for r in reports if r.found.attached.rail.group == group and r.found.attached.rail.is_same_index]
        counts: dict[int, int] = {}
        for report in same:
            for index in report.found.indexes:
                counts[index] = counts.get(index, 0) + 1
        usual = max(counts, key=lambda index: counts[index], default=0)
        for report in same:
            for address, index in zip(report.found.addresses, report.found.indexes, strict=True):
                if index != usual:
                    report.faults.append(f"{address} is index {index}, and other rails of {group} have {usual}")
    return reports


def of_pod(rails: Sequence[AttachedRail]) -> dict[tuple[str, int], list[str]]:
    """The addresses of a peer on this node, by group and rail."""
    return {(a.rail.group, a.rail.index): [str(i.ip) for i in look(a).addresses] for a in rails}


def of_index(reports: Sequence[RailReport], index: int) -> dict[tuple[str, int], list[str]]:
    """The addresses of a peer anywhere that has this index on every rail; of a subnet without it none."""
    return {
        (r.found.attached.rail.group, r.found.attached.rail.index): [
            str(a.network[index]) for a in r.found.addresses if index < a.network.num_addresses
        ]
        for r in reports
    }


def index_of(reports: Sequence[RailReport], address: str) -> int | None:
    """The index that an address of any rail stands for."""
    wanted = ipaddress.ip_address(address)
    for report in reports:
        for own in report.found.addresses:
            if wanted in own.network:
                return int(wanted) - int(own.network.network_address)
    return None


def ping(reports: Sequence[RailReport], peer: dict[tuple[str, int], list[str]]) -> None:
    """Send an echo from each address of each rail to the peer's on the same rail, and note what does not answer."""
    for report in reports:
        rail = report.found.attached.rail
        theirs = peer.get((rail.group, rail.index), [])
        if not theirs:
            report.faults.append(f"the peer has no address on rail {rail.index} of {rail.group}")
        for address in theirs:
            source = _source(report.found.addresses, address)
            if not source:
                report.faults.append(f"no address of {report.found.attached.ifname} is of the family of {address}")
                continue
            with netns.open_namespace(report.found.attached.netns) as there, there.entered():
                try:
                    report.trips[address] = 1e3 * icmp.ping(address, _PAYLOAD, rail.index + 1, _SECONDS, source)
                except OSError as fault:
                    why = f"no answer within {_SECONDS:g} s" if isinstance(fault, TimeoutError) else fault.strerror
                    report.faults.append(f"ping {address} from {source}: {why}")


def _source(own: Sequence[Interfaces], address: str) -> str:
    """The address to send from: that in the peer's subnet, else one of its family."""
    wanted = ipaddress.ip_address(address)
    same = [a for a in own if a.version == wanted.version]
    best = [a for a in same if wanted in a.network] or same
    return str(best[0].ip) if best else ""


COLUMNS = ("group", "rail", "interface", "addresses", "index", "table", "GID", "ping ms", "faults")


def row(report: RailReport) -> Sequence[object]:
    """A line of the table."""
    d = report.document()
    trips = " ".join(f"{ms:.2f}" for ms in report.trips.values())
    gids = " ".join(report.found.gids.values())
    faults = "; ".join(report.faults) or "none"
    return d["group"], d["rail"], d["interface"], " ".join(d["addresses"]), d["index"], d["table"], gids, trips, faults
