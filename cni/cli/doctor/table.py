"""The checks, in the order in which they are made."""

from __future__ import annotations

from cni.cli.doctor import congestion, gpus, modules, namespaces, pcie, pods, ports, runtime, setup
from cni.cli.doctor.facts import Facts
from cni.cli.doctor.finding import Check
from cni.kernel.rdma_netlink import EXCLUSIVE


def _sharing(f: Facts) -> list[str]:
    return [str(link) for link in f.attached if link.interface.lower]


CHECKS: tuple[Check, ...] = (
    Check("access", "namespaces of pods", lambda f: pods.check_unread(f.unread)),
    Check("modules", "kernel modules", lambda f: modules.check(f.loaded)),
    Check("netns-mode", "RDMA netns mode", lambda f: namespaces.check_mode(f.netns_mode, f.moves_devices, _sharing(f))),
    Check(
        "devices",
        "verbs devices",
        lambda f: modules.check_devices(
            [d.name for d in f.devices], f.loaded, f.moves_devices and f.netns_mode == EXCLUSIVE
        ),
        of_pod=True,
    ),
    Check("nodes", "/dev/infiniband", lambda f: modules.check_nodes(f.nodes), ("devices",)),
    Check("ports", "ports", lambda f: ports.check_state(f.ports, f.uses, f.administrative_states), ("devices",)),
    Check("mtu", "MTU", lambda f: ports.check_mtu(f.ports, f.management), ("devices",)),
    Check("gids", "GID tables", lambda f: ports.check_gids(f.ports), ("devices",)),
    Check("pods", "GIDs of pods", lambda f: pods.check(f.attached), ("devices",), of_pod=True),
    Check(
        "parameters",
        "rp_filter and ARP",
        lambda f: namespaces.check_parameters(f.parameters, f.subnets),
        ("devices",),
    ),
    Check("congestion", "PFC, trust, ECN", lambda f: congestion.check(f.congestion), ("devices",)),
    Check("pcie", "PCIe links", lambda f: pcie.check_links(f.functions), ("devices",)),
    Check("pcie-settings", "PCIe settings", lambda f: pcie.check_settings(f.functions, f.bridges), ("devices",)),
    Check("sriov", "SR-IOV", lambda f: pcie.check_virtual_functions(f.functions), ("devices",)),
    Check("peer-memory", "GPU memory", lambda f: gpus.check_memory(f.peer_memory, f.topology), ("devices",)),
    Check("distance", "GPU to NIC", lambda f: gpus.check_distance(f.topology), ("devices",)),
    Check("memlock", "memlock", lambda f: runtime.check_memlock(f.runtimes)),
    Check("plugins", "CNI plugins", lambda f: setup.check_plugins(f.plugins, f.folders)),
    Check(
        "networks",
        "CNI networks",
        lambda f: setup.check_networks(f.network_files, f.folders, f.places.networks),
    ),
    Check("store", "store of leases", lambda f: setup.check_store(f.store)),
    Check("clock", "clock", lambda f: runtime.check_clock(f.clock)),
)

POD_CHECKS: tuple[Check, ...] = (
    Check("access", "namespaces of pods", lambda f: pods.check_unread(f.unread)),
    *(check for check in CHECKS if check.of_pod),
    Check(
        "pod",
        "the pod",
        lambda f: pods.check_pod(f.chosen, f.attached, f.pod_parameters, f.pod_processes),
        ("devices",),
    ),
)
