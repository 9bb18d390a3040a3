"""What is wrong with the addresses that live pods show in their network-status. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from cni.library.audit import findings as kinds
from cni.library.audit.findings import LOOK, Finding
from cni.library.audit.model import Address, Network, Pod, PodInterface, Snapshot
from ipam.leases import Lease
from ipam.ranges import BITS, format_address
from ipam.stores.kubernetes.objects import IPPool


class AddressUse:
    """The addresses in use, and which leases they go with; `leases` are those of the snapshot by address."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._all = snapshot
        self._users: dict[Address, list[tuple[Pod, PodInterface]]] = defaultdict(list)
        for pod in (snapshot.pods or {}).values():
            for interface in () if pod.is_over else pod.interfaces or ():
                for address in interface.addresses:
                    self._users[address].append((pod, interface))
        self.leases: dict[Address, list[Lease]] = defaultdict(list)
        for lease in snapshot.leases:
            self.leases[lease.address].append(lease)
        self._own: dict[str, list[Network]] = defaultdict(list)
        for network in snapshot.networks:
            self._own[network.name].append(network)

    def users(self, lease: Lease) -> list[str]:
        """The live pods that show the address of `lease` on a network that may take it from there."""
        return [str(pod) for pod, interface in self._users[lease.address] if self._draws(interface, lease)]

    def in_scope(self, scope: str, address: Address) -> list[str]:
        """The live pods that show an address on a network that reserves it in `scope`, or may."""
        found = []
        for pod, interface in self._users[address]:
            networks = [n for n in self._own[interface.network] if n.holds(address)]
            if not networks or networks[0].network_name == scope:
                found.append(str(pod))
        return found

    def without_lease(self) -> Iterator[Finding]:
        """Pods whose network-status shows an address that this store has not given them."""
        for address, users in self._users.items():
            for pod, interface in users:
                finding = self._without_lease(pod, interface, address)
                if finding:
                    yield finding

    def _without_lease(self, pod: Pod, interface: PodInterface, address: Address) -> Finding | None:
        networks = [n for n in self._own[interface.network] if n.holds(address)]
        if interface.network in self._all.nads and not networks:
            return None  # a static address, or another IPAM
        if networks and all(n.datastore not in ("", self._all.kind) for n in networks):
            return None
        found = [h for h in self.leases[address] if self._draws(interface, h)]
        if any(self._is_of(h, pod, interface) for h in found):
            return None
        if not networks and not found and not any(_holds(p, address) for p in self._all.pools):
            return None
        holder = (
            f"the store says it is that of {found[0].user()}" if found else "no pool holds it: it may be given again"
        )
        text = format_address(*address)
        return Finding(
            kind=kinds.POD_WITHOUT_LEASE,
            action=LOOK,
            message=f"{text} is in use by pod {pod} ({interface.ifname}, {interface.network}), and {holder}",
            pool=found[0].pool if found else next(iter(n.pools()[0] for n in networks if n.pools()), ""),
            address=text,
            network=networks[0].cni_name if networks else "",
            ifname=interface.ifname,
            pod=str(pod),
            pod_uid=pod.uid,
            node=pod.node,
        )

    @staticmethod
    def _is_of(lease: Lease, pod: Pod, interface: PodInterface) -> bool:
        if not lease.pod[1]:
            return lease.ifname == interface.ifname  # the container cannot be told from here
        return lease.pod_name == (pod.namespace, pod.name)

    def _draws(self, interface: PodInterface, lease: Lease) -> bool:
        """Whether the network of the interface may take addresses from the pool of `lease`."""
        if interface.network not in self._all.nads:
            return True
        networks = [n for n in self._own[interface.network] if n.holds(lease.address)]
        return any(
            lease.pool in n.pools() or (n.sliced and f"{lease.pool}-".startswith(f"{n.network_name}-".lstrip("-")))
            for n in networks
        )

    def duplicates(self) -> Iterator[Finding]:
        """Addresses that several pods show where they must be unique."""
        for address, users in self._users.items():
            spaces: dict[object, dict[str, Pod]] = defaultdict(dict)
            for pod, interface in users:
                spaces[self._space(interface, address)][str(pod)] = pod
            for space, pods in spaces.items():
                if len(pods) < 2 or space is None:
                    continue
                text, first = format_address(*address), next(iter(pods.values()))
                where = ", ".join(f"{pod} (node {pod.node})" for pod in pods.values())
                message = f"{text} is in use by {len(pods)} pods at once: {where}; delete all but one of them"
                yield Finding(kinds.DUPLICATE_ADDRESS, LOOK, message, address=text, pod=str(first), node=first.node)

    def _space(self, interface: PodInterface, address: Address) -> object:
        """In which an address is to be unique; None when it comes from elsewhere."""
        networks = [n for n in self._own[interface.network] if n.holds(address)]
        if networks:
            network = networks[0]
            return ("scope", network.network_name) if network.overlap else ("pools", *network.pools())
        if interface.network in self._all.nads or not self.leases[address]:
            return None
        return ("nad", interface.network)


def _holds(state: IPPool, address: Address) -> bool:
    try:
        family, length = state.family, int(state.cidr.rpartition("/")[2])
    except ValueError:
        return False
    hosts = BITS[family] - length
    return family == address[0] and state.first >> hosts == address[1] >> hosts
