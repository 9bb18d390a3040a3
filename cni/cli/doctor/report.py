"""The checks in the order in which they are run, and the report of their findings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cni.cli import rdma
from cni.cli.doctor import kernel, pcie, pods, ports, setup
from cni.cli.doctor.facts import NodeFacts
from cni.cli.doctor.finding import FAULT, SKIPPED, UNKNOWN, Check, Observation, broken, unknown
from cni.node.inventory import attachments as recorded
from cni.node.inventory import devices as inventory
from cni.node.inventory import functions, topology
from cni.node.inventory.sandboxes import REMEDY, is_denied
from cni.resources.containers import own_folder
from cni.shared.kernel.rdma_netlink import EXCLUSIVE
from cni.shared.spec.errors import CniError


def _peer_memory(f: NodeFacts) -> Iterator[Observation]:
    """Check that NICs reach the memory of GPUs. In a report about one pod, skip this if the pod has no GPU."""
    if not f.pod or any(process.gpus for process in f.pod_processes):
        yield from pcie.check_memory(f.topology, f.places.sys, f.places.proc)


def _mode(f: NodeFacts) -> Iterator[Observation]:
    sharing = [str(link) for link in f.attached if link.interface.lower]
    return kernel.check_mode(f.netns_mode, f.moves_devices, sharing)


def _devices(f: NodeFacts) -> Iterator[Observation]:
    is_moved = f.moves_devices and f.netns_mode == EXCLUSIVE
    return kernel.check_devices([d.name for d in f.devices], f.loaded, is_moved)


def _pcie_settings(f: NodeFacts) -> Iterator[Observation]:
    return pcie.check_settings(f.functions, pcie.read_bridges(f.topology, f.places.sys))


def _nodes(f: NodeFacts) -> Iterator[Observation]:
    """Check the device nodes; in a report about one pod, only the device nodes that the pod's links need."""
    needed = {"rdma_cm", *(need.node for need in f.pod_needs)} if f.pod else None
    return kernel.check_nodes(f.places.sys, f.places.dev, needed)


def _guids(f: NodeFacts) -> Iterator[Observation]:
    used = {port.device for port in f.ports}
    return ports.check_guids([device for device in f.devices if device.name in used], f.places.sys)


def _store(f: NodeFacts) -> Iterator[Observation]:
    yield from setup.check_store()
    yield from setup.check_admission(os.path.isdir(own_folder(f.places.kubelet)))
    yield from setup.check_state(f.places.state)
    yield from setup.check_pending(f.places.state)


def _claims(f: NodeFacts) -> Iterator[Observation]:
    """Check the ResourceClaims that kubelet has for the pod."""
    own = [a for a in recorded.found(directory=f.places.state) if a["netns"] == f.chosen.netns]
    uids = {str(part["pod"][2]) for a in own for part in a["records"].values() if part.get("pod")}
    found = [claim for claim in f.node_claims if uids & {*claim.pods}]
    known = functions.read(f.places.sys) if found else []
    return pods.check_claims(found, f.chosen, f.attached, known, inventory.ports(f.devices))


def _rest(f: NodeFacts) -> Iterator[Observation]:
    titles = [check.title for check in CHECKS if not check.of_pod]
    yield Observation(SKIPPED, "the node", f"not looked at for a pod: {', '.join(titles)}; run `railcni doctor`")


_of_devices = partial(Check, needs=("devices",))
_of_both = partial(Check, needs=("devices",), of_pod=True)
_of_pod = partial(Check, of_pod=True)
CHECKS: tuple[Check, ...] = (
    _of_pod("access", "namespaces of pods", lambda f: [broken("namespaces of pods", why) for why in f.unread]),
    _of_pod("modules", "kernel modules", lambda f: kernel.check_modules(f.loaded)),
    _of_pod("netns-mode", "RDMA netns mode", _mode),
    _of_pod("devices", "verbs devices", _devices),
    _of_both("nodes", "/dev/infiniband", _nodes),
    _of_both(
        "ports", "ports", lambda f: ports.check_state(f.ports, f.uses, topology.administrative_states(f.places.sys))
    ),
    _of_both("mtu", "MTU", lambda f: ports.check_mtu(f.ports, f.management)),
    _of_both("gids", "GID tables", lambda f: ports.check_gids(f.ports)),
    _of_both("counters", "errors of ports", lambda f: ports.check_counters(*f.counts)),
    _of_devices("siblings", "NICs of one kind", lambda f: ports.check_siblings(f.devices)),
    _of_both("node-guids", "node GUIDs", _guids),
    _of_both("pods", "GIDs of pods", lambda f: pods.check(f.attached)),
    _of_devices("parameters", "rp_filter and ARP", lambda f: kernel.check_parameters(f.parameters, f.subnets)),
    _of_both("congestion", "PFC, trust, ECN", lambda f: ports.check_congestion(f.congestion)),
    _of_both("pcie", "PCIe links", lambda f: pcie.check_links(f.functions)),
    _of_both("pcie-settings", "PCIe settings", _pcie_settings),
    _of_both("peer-memory", "GPU memory", _peer_memory),
    Check("memlock", "memlock", lambda f: setup.check_runtimes(f.places.proc)),
    Check("plugins", "CNI plugins", lambda f: setup.check_plugins(f.folders)),
    Check("claims", "ResourceClaims", lambda f: pods.check_node_claims(f.node_claims, f.places.kubelet)),
    Check("networks", "CNI networks", lambda f: setup.check_networks(f.network_files, f.folders, f.places.networks)),
    _of_pod("policy", "policy", lambda f: setup.check_policy({link.interface.lower for link in f.attached})),
    Check("store", "store of leases", _store),
)

POD_CHECKS: tuple[Check, ...] = (
    *(check for check in CHECKS if check.of_pod),
    Check(
        "links", "the pod's links", lambda f: pods.check_links(f.chosen, f.attached, f.pod_records, f.own_interfaces)
    ),
    _of_devices("pod", "the pod", lambda f: pods.check_pod(f.chosen, f.attached, f.pod_processes, f.pod_needs)),
    Check("claims", "the pod's claims", _claims),
    Check("peer", "a peer", lambda f: pods.check_peer(f.chosen, f.attached, f.peer)),
    Check("node", "the node", _rest),
)


@dataclass(frozen=True)
class DoctorReport:
    """The findings about a node, or about one of its pods."""

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
        """The report as JSON, with the node's verbs devices and the distances between GPUs and NICs."""
        columns, rows = topology.table(self.facts.topology)
        return {
            "node": topology.text(f"{self.facts.places.proc}/sys/kernel/hostname"),
            "pod": self.facts.pod or None,
            "healthy": self.is_healthy,
            "faults": len(self.faults),
            "findings": [f.document() for f in self.findings],
            "devices": rdma.document(self.facts.devices),
            "distances": {str(row[1]): dict(zip(columns[3:], row[3:], strict=True)) for row in rows},
        }


def examine(facts: NodeFacts) -> DoctorReport:
    """Run the checks of the node, or of the pod that `facts` names. Raises CniError if that pod is not found."""
    if facts.pod:
        _ = facts.chosen  # a missing pod is a wrong call, not a finding
    return DoctorReport(facts, run(POD_CHECKS if facts.pod else CHECKS, facts))


def run(checks: Iterable[Check], facts: NodeFacts) -> list[Observation]:
    """Run `checks` in order; return their findings. An error becomes a finding, and the other checks still run. A
    finding that is caused by a missing right of this user has the level UNKNOWN."""
    found: list[Observation] = []
    stopped: dict[str, str] = {}  # name of a faulty or skipped check -> title of the faulty check
    for check in checks:
        causes = dict.fromkeys(stopped[need] for need in check.needs if need in stopped)
        if causes:
            stopped[check.name] = ", ".join(causes)
            why = f"not looked at: first mend the fault of {stopped[check.name]}"
            found.append(Observation(SKIPPED, check.title, why, check=check.name))
            continue
        try:
            made = [_as_seen(replace(finding, check=check.name)) for finding in check.run(facts)]
        except (OSError, ValueError, CniError) as fault:
            made = [_as_seen(unknown(check.title, f"cannot be read: {fault}", check=check.name))]
        if any(finding.level == FAULT for finding in made):
            stopped[check.name] = check.title
        found += made
    return found


def _as_seen(finding: Observation) -> Observation:
    """The finding, with its level changed to UNKNOWN if the cause is a missing right of this user."""
    if finding.level in (FAULT, UNKNOWN) and is_denied(finding.found):
        return replace(finding, level=UNKNOWN, healthy="", remedy=REMEDY)
    return finding
