"""The checks, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Iterator

from cni.cli.doctor import congestion, gpus, modules, namespaces, pcie, pods, ports, runtime, setup
from cni.cli.doctor.facts import NodeFacts
from cni.cli.doctor.finding import SKIPPED, Check, Observation
from cni.shared.kernel.rdma_netlink import EXCLUSIVE


def _sharing(f: NodeFacts) -> list[str]:
    return [str(link) for link in f.attached if link.interface.lower]


def _masters(f: NodeFacts) -> list[str]:
    return sorted({link.interface.lower for link in f.attached} - {""})


def _peer_memory(f: NodeFacts) -> Iterator[Observation]:
    """Of one pod: where it has a GPU."""
    if not f.pod or any(process.gpus for process in f.pod_processes):
        yield from gpus.check_memory(f.peer_memory, f.topology)


def _rest(f: NodeFacts) -> Iterator[Observation]:
    titles = [check.title for check in CHECKS if not check.of_pod]
    yield Observation(SKIPPED, "the node", f"not looked at for a pod: {', '.join(titles)}; run `railcni doctor`")


CHECKS: tuple[Check, ...] = (
    Check("access", "namespaces of pods", lambda f: pods.check_unread(f.unread), of_pod=True),
    Check("modules", "kernel modules", lambda f: modules.check(f.loaded), of_pod=True),
    Check(
        "netns-mode",
        "RDMA netns mode",
        lambda f: namespaces.check_mode(f.netns_mode, f.moves_devices, _sharing(f)),
        of_pod=True,
    ),
    Check(
        "devices",
        "verbs devices",
        lambda f: modules.check_devices(
            [d.name for d in f.devices], f.loaded, f.moves_devices and f.netns_mode == EXCLUSIVE
        ),
        of_pod=True,
    ),
    Check("nodes", "/dev/infiniband", lambda f: modules.check_nodes(f.nodes), ("devices",), of_pod=True),
    Check(
        "ports",
        "ports",
        lambda f: ports.check_state(f.ports, f.uses, f.administrative_states),
        ("devices",),
        of_pod=True,
    ),
    Check("mtu", "MTU", lambda f: ports.check_mtu(f.ports, f.management), ("devices",), of_pod=True),
    Check("gids", "GID tables", lambda f: ports.check_gids(f.ports), ("devices",), of_pod=True),
    Check("pods", "GIDs of pods", lambda f: pods.check(f.attached), ("devices",), of_pod=True),
    Check(
        "parameters",
        "rp_filter and ARP",
        lambda f: namespaces.check_parameters(f.parameters, f.subnets),
        ("devices",),
    ),
    Check("congestion", "PFC, trust, ECN", lambda f: congestion.check(f.congestion), ("devices",), of_pod=True),
    Check("pcie", "PCIe links", lambda f: pcie.check_links(f.functions), ("devices",), of_pod=True),
    Check(
        "pcie-settings",
        "PCIe settings",
        lambda f: pcie.check_settings(f.functions, f.bridges),
        ("devices",),
        of_pod=True,
    ),
    Check("sriov", "SR-IOV", lambda f: pcie.check_virtual_functions(f.functions), ("devices",)),
    Check("peer-memory", "GPU memory", _peer_memory, ("devices",), of_pod=True),
    Check("distance", "GPU to NIC", lambda f: gpus.check_distance(f.topology), ("devices",)),
    Check("memlock", "memlock", lambda f: runtime.check_memlock(f.runtimes)),
    Check("plugins", "CNI plugins", lambda f: setup.check_plugins(f.plugins, f.folders)),
    Check("warm", "warm workers", lambda f: setup.check_workers(f.workers)),
    Check(
        "networks",
        "CNI networks",
        lambda f: setup.check_networks(f.network_files, f.folders, f.places.networks),
    ),
    Check("policy", "policy", lambda f: setup.check_policy(_masters(f)), of_pod=True),
    Check("store", "store of leases", lambda f: setup.check_store(f.store)),
    Check("clock", "clock", lambda f: runtime.check_clock(f.clock)),
)

POD_CHECKS: tuple[Check, ...] = (
    *(check for check in CHECKS if check.of_pod),
    Check(
        "links",
        "the pod's links",
        lambda f: pods.check_links(f.chosen, f.attached, f.pod_records, f.links_up),
    ),
    Check(
        "pod",
        "the pod",
        lambda f: pods.check_pod(f.chosen, f.attached, f.pod_parameters, f.pod_processes, f.pod_needs),
        ("devices",),
    ),
    Check("peer", "a peer", lambda f: pods.check_peer(f.peer, f.answers)),
    Check("node", "the node", _rest),
)
