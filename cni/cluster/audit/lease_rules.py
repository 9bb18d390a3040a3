"""The rules for leases and reservations, compared with live pods and the addresses in their network-status. Pure.

A lease is dead only when its address cannot be in use: its pod is gone, has ended, or was replaced by another pod with
the same name, and no other pod has the address in its network-status. A lease stays while its pod is pending, since the
pod may soon use the address. It stays while its node is not ready, since a deleted pod may still run. A lease of an
IPAMClaim stays, since the claim outlives the pod. The elected agent frees leases of nodes that are gone
(`is_abandoned`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from cni.cluster.audit import findings as kinds
from cni.cluster.audit.findings import KEEP, LOOK, RECLAIM, RESTORE, Finding, about
from cni.cluster.audit.model import Address, IpamBlock, Key, Name, Node, Pod, PodInterface, Snapshot
from ipam.leases import Lease
from ipam.ranges import format_address, range_of
from ipam.stores.apiserver.resources import OF_STORES
from ipam.stores.ippool.objects import IPPool, Reservation

_DEAD = (kinds.LEASE_WITHOUT_POD, kinds.LEASE_OF_ENDED_POD, kinds.LEASE_OF_ANOTHER_UID)
_WAITS_FOR_NODE = "node {}{} is not ready, and the pod may still run there: repair the node, delete it, or taint it with node.kubernetes.io/out-of-service when it is off"
_WAITS_FOR_AGENT = "it was on node {}, where it may still run, and that node's agent frees only what its records hold. If the pod has ended, free the lease with `railcni ipam reclaim`"
_NODE_UNKNOWN = "its node is unknown, and it may still run there: see `railcni ipam audit`. If the pod has ended, free the lease with `railcni ipam reclaim`"
AGENT_LIVES = "the agent of node {0}, which has no Node object, renews the Lease node-{0}, and its pods may still run there: start kubelet on the node again, or stop the node"


def find(snapshot: Snapshot) -> list[Finding]:
    """All findings in `snapshot`, sorted by pool and address."""
    rules = AuditRules(snapshot)
    found = [
        *rules.leases(),
        *rules.given_twice(),
        *filter(None, map(rules.reservation, snapshot.reserved or ())),
        *rules.without_lease(),
        *rules.duplicates(),
    ]
    for state in snapshot.pools:
        for key in state.stray:
            message = f"pool {state.name} has an allocation under the key {key!r}, which stands for no address of it"
            found.append(Finding(kinds.UNREADABLE, LOOK, message, pool=state.name))
    return sorted(found, key=lambda f: (f.pool, len(f.address), f.address, f.kind, f.pod))


class AuditRules:
    """The rules: each method gives the findings about a lease, a reservation or the whole `snapshot`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._all = snapshot
        self._users: dict[Address, list[tuple[Pod, PodInterface]]] = defaultdict(list)  # live pods by shown address
        for pod in (snapshot.pods or {}).values():
            for interface in () if pod.is_over else pod.interfaces or ():
                for address in interface.addresses:
                    self._users[address].append((pod, interface))
        self._held: dict[Address, list[Lease]] = defaultdict(list)
        for lease in snapshot.leases:
            self._held[lease.address].append(lease)
        self._own: dict[str, list[IpamBlock]] = defaultdict(list)  # by the names of their NADs
        for network in snapshot.networks:
            self._own[network.name].append(network)
        self._reserved = {r.key: r for r in snapshot.reserved or () if r.address}
        self._unreserved = {pool for n in snapshot.networks if not n.overlap for pool in n.pools()}

    # --- leases ---

    def leases(self) -> Iterator[Finding]:
        for lease in self._all.leases:
            if finding := self.lease(lease):
                yield finding
            if finding is None or finding.action != RECLAIM:
                yield from self._reservation_of(lease)

    def lease(self, lease: Lease) -> Finding | None:
        """The finding about a lease and its pod; None when the lease has no fault or its state is unknown."""
        if lease.claimed:
            return self._of(lease, kinds.LEASE_CLAIMED, KEEP, "belongs to an IPAMClaim, which outlives the pod")
        pods = self._all.pods
        if pods is None:
            return None
        if not lease.pod[1]:
            why = "names no pod, so who uses it cannot be told here: look on its node"
            return self._of(lease, kinds.LEASE_WITHOUT_OWNER, LOOK, why)
        pod = pods.get(lease.pod_name)
        if pod is None:
            return self._dead(lease, kinds.LEASE_WITHOUT_POD, "its pod does not exist")
        if lease.address in pod.addresses() and not pod.is_over:
            return None
        if pod.is_pending:
            return self._of(lease, kinds.LEASE_PENDING, KEEP, "its pod is pending, and may be about to use it")
        if lease.pod[2] and not pod.has_uid(lease.pod[2]):
            why = f"it was given to the pod with the UID {lease.pod[2]}; the one of that name now is another"
            if pod.interfaces is None and not pod.is_over:
                return self._of(lease, kinds.LEASE_OF_ANOTHER_UID, LOOK, f"{why}, and does not show what it uses")
            return self._dead(lease, kinds.LEASE_OF_ANOTHER_UID, why)
        if pod.is_over:
            return self._dead(lease, kinds.LEASE_OF_ENDED_POD, f"its pod has ended ({pod.phase})")
        same = [i for i in pod.interfaces or () if i.ifname == lease.ifname and lease.ifname]
        if not same:
            return None  # the pod's network-status is missing, or lacks the interface
        others = [format_address(*a) for i in same for a in i.addresses if a[0] == lease.family]
        if others and not pod.terminating:
            return self._dead(lease, kinds.LEASE_UNUSED, f"its pod has {', '.join(others)} on {lease.ifname} instead")
        return None

    def _dead(self, lease: Lease, kind: str, why: str) -> Finding:
        """The finding about a lease that its pod does not use. The action is RECLAIM, or LOOK if a use is possible."""
        users = [str(pod) for pod, interface in self._users[lease.address] if self._draws(interface, lease)]
        if users:
            return self._of(lease, kind, LOOK, f"{why}, but pod {users[0]} uses the address")
        nodes = self._all.nodes
        node = (nodes or {}).get(lease.node)
        if nodes is not None and node is None and lease.node in (self._all.agents or ()):
            return self._of(lease, kind, LOOK, f"{why}, but {AGENT_LIVES.format(lease.node)}")
        if node and node.may_run_on:
            return self._of(lease, kind, LOOK, f"{why}, but node {node.name} is not ready: it may still run there")
        return self._of(lease, kind, RECLAIM, why)

    def _of(self, lease: Lease, kind: str, action: str, why: str) -> Finding:
        reserved = self._reserved.get((lease.scope, lease.address)) if lease.scope is not None else None
        own = (reserved.name, reserved.uid) if reserved and reserved.is_of(lease) else ("", "")
        return about(lease, kind, action, why, reservation=own)

    def given_twice(self) -> Iterator[Finding]:
        """Yield a finding for each address that several pools have leased although it must be unique among them."""
        for leases in self._held.values():
            reserving = [h for h in leases if h.scope is not None and h.pool not in self._unreserved]
            for scope in {h.scope for h in reserving}:
                same = [h for h in reserving if h.scope == scope]
                if len(same) > 1:
                    where = " and ".join(f"{h.pool} to {h.user()}" for h in same)
                    yield self._of(same[0], kinds.DUPLICATE_LEASE, LOOK, f"it is given out by {where}")

    def in_both(self, other: Snapshot) -> Iterator[Finding]:
        """Yield findings about addresses that this store and `other`, the cluster's other store, have both leased,
        although they must be unique."""
        for lease in other.leases:
            for same in self._held[lease.address]:
                reserved = lease.scope is not None and not {lease.pool, same.pool} & self._unreserved
                if lease.pool == same.pool or (reserved and lease.scope == same.scope):
                    both = (self._all, same), (other, lease)
                    stores = [f"{one.user()} in {OF_STORES[store.kind][1]}" for store, one in both]
                    delete = "delete one of the pods, and " if lease.container_id != same.container_id else ""
                    why = f"it is leased to {' and to '.join(stores)}: {delete}let `railcni ipam migrate` bring the range into one store"
                    yield about(lease, kinds.DUPLICATE_LEASE, LOOK, why)

    # --- reservations ---

    def _reservation_of(self, lease: Lease) -> Iterator[Finding]:
        if self._all.reserved is None or lease.scope is None or lease.pool in self._unreserved:
            return
        reserved = self._reserved.get((lease.scope, lease.address))
        if reserved is None:
            why = "its overlap reservation is lost: a pool that overlaps could give the address again"
            yield self._of(lease, kinds.LOST_RESERVATION, RESTORE, why)
        elif not reserved.is_of(lease):
            others = [h for h in self._held[lease.address] if h.scope == lease.scope and reserved.is_of(h)]
            other = reserved.lease.pod_ref or reserved.lease.container_id
            if other and not others:
                yield self._of(lease, kinds.FOREIGN_RESERVATION, LOOK, f"its overlap reservation says {other}")

    def reservation(self, reserved: Reservation) -> Finding | None:
        """The finding about a reservation without a lease; None if it has a lease."""
        if reserved.address is None:
            return self._about(reserved, kinds.UNREADABLE, LOOK, "its name holds no address")
        if any(h.scope == reserved.lease.scope for h in self._held[reserved.address]):
            return None
        lease, pods = reserved.lease, self._all.pods
        pod, node = (pods or {}).get(lease.pod_name), (self._all.nodes or {}).get(lease.node)
        used = []  # the live pods that show the address on a network of this scope, or on an unknown network
        for user, interface in self._users[reserved.address]:
            networks = self._networks(interface, reserved.address)
            if not networks or networks[0].network_name == (lease.scope or ""):
                used.append(user)
        silent = pod is not None and not pod.is_over and pod.interfaces is None
        action, why = LOOK, ", and whether it is in use cannot be told"
        if pods is None:
            why = ""
        elif pod and pod.is_pending:
            action, why = KEEP, ", its pod is pending"
        elif used:
            why = f", and pod {used[0]} uses it"
        elif lease.pod[1] and not silent and not (node and node.may_run_on):
            action, why = RECLAIM, ", and its pod does not use it"
        return self._about(reserved, kinds.RESERVATION_WITHOUT_LEASE, action, f"no pool holds its address{why}")

    def _about(self, reserved: Reservation, kind: str, action: str, why: str) -> Finding:
        own = {"message": f"reservation {reserved.name}: {why}", "reservation": (reserved.name, reserved.uid)}
        address = format_address(*reserved.address) if reserved.address else ""
        return about(reserved.lease, kind, action, "", pool="", address=address, network="", **own)

    # --- addresses of pods ---

    def _networks(self, interface: PodInterface, address: Address) -> list[IpamBlock]:
        """The ipam blocks in the NAD of `interface` that have a range with the address."""
        return [network for network in self._own[interface.network] if network.holds(address)]

    def without_lease(self) -> Iterator[Finding]:
        """Yield findings about pods whose network-status shows an address that this store has not leased to them."""
        for pod, interface, address in ((*user, address) for address, users in self._users.items() for user in users):
            networks = self._networks(interface, address)
            if interface.network in self._all.nads and not networks:
                continue  # a static address, or an address from another IPAM plugin
            if networks and all(n.datastore not in ("", self._all.kind) for n in networks):
                continue
            found = [h for h in self._held[address] if self._draws(interface, h)]
            name = pod.namespace, pod.name
            if any(h.pod_name == name if h.pod[1] else h.ifname == interface.ifname for h in found):
                continue  # a lease without a pod is compared by ifname: network-status has no container ID
            if not networks and not found and not any(_holds(p, address) for p in self._all.pools):
                continue
            text, holder = format_address(*address), "no pool holds it: it may be given again"
            pool = next(iter(n.pools()[0] for n in networks if n.pools()), "")
            if found:
                pool, holder = found[0].pool, f"the store says it is that of {found[0].user()}"
            message = f"{text} is in use by pod {pod} ({interface.ifname}, {interface.network}), and {holder}"
            where = pool, text, networks[0].cni_name if networks else "", "", interface.ifname
            yield Finding(kinds.POD_WITHOUT_LEASE, LOOK, message, *where, str(pod), pod.uid, pod.node)

    def _draws(self, interface: PodInterface, lease: Lease) -> bool:
        """Whether the network of the interface may take addresses from the pool of `lease`."""
        if interface.network not in self._all.nads:
            return True
        return any(
            lease.pool in n.pools() or (n.sliced and f"{lease.pool}-".startswith(f"{n.network_name}-".lstrip("-")))
            for n in self._networks(interface, lease.address)
        )

    def duplicates(self) -> Iterator[Finding]:
        """Yield findings about addresses that several pods show in network-status, although they must be unique."""
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
        """A key: the address must be unique among interfaces with this key. None for an address from another IPAM."""
        if networks := self._networks(interface, address):
            network = networks[0]
            return ("scope", network.network_name) if network.overlap else ("pools", *network.pools())
        if interface.network in self._all.nads or not self._held[address]:
            return None
        return ("nad", interface.network)


def find_dead(leases: Collection[Lease], pods: Mapping[Name, Pod]) -> dict[Key, str]:
    """Return the reason for each dead lease, by the lease's key. `pods` are the existing pods that `leases` name.

    A lease is dead if its pod is gone, has ended, or was replaced by another pod with the same name, and no live pod in
    `pods` shows the address. A network-status without the address does not prove that the lease is dead, since Multus
    writes it after the ADD.
    """
    rules = AuditRules(Snapshot("", leases, pods=pods))
    found = ((one.identity, rules.lease(one)) for one in leases)
    return {key: f.message for key, f in found if f and f.action == RECLAIM and f.kind in _DEAD}


def _holds(state: IPPool, address: Address) -> bool:
    """Whether the range in the pool's name contains the address."""
    with suppress(ValueError):
        return bool(range_of(state.name, *address))
    return False


# --- lost nodes ---


def is_abandoned(lease: Lease, nodes: Mapping[str, Node]) -> bool:
    """Whether only the elected agent can free the lease, since its node is unknown, gone, or out of service."""
    node = nodes.get(lease.node)
    return node is None or node.out_of_service


def blocker(
    lease: Lease,
    nodes: Mapping[str, Node],
    seen_on: str | None,
    is_over: bool,
    named: Collection[str] = (),
    alive: Collection[str] = (),
) -> str:
    """The reason to keep an abandoned lease of a deleted pod: the pod may still run. "" if the lease may be freed.

    A pod that was deleted from the API may still run if its node does not answer, or if the deletion was forced and the
    pod ends slowly. Only the agent of the pod's node can see whether the pod runs. `seen_on` is the node on which the
    API showed the pod: "" for several nodes, None for no node. `is_over`: the API shows that the pod's containers have
    ended. `named` are the nodes that leases name. If the lease's node has no Node object, the node was deleted, or has
    another name in Kubernetes. In the second case it may be any node that is not ready and not in `named`. `alive` are
    the nodes whose agents renew their Leases. A node in `alive` may run pods even without a Node object.
    """
    for name in (seen_on, lease.node):
        if name and name not in nodes and name in alive:
            return AGENT_LIVES.format(name)
    where = nodes.get(seen_on) if seen_on else None
    if where and (where.may_run_on or not (is_over or where.out_of_service)):
        return _WAITS_FOR_NODE.format(where.name, "") if where.may_run_on else _WAITS_FOR_AGENT.format(where.name)
    if seen_on or lease.node in nodes:
        return ""  # the node is deleted, or an administrator has tainted it as out of service
    if not lease.node:
        return _NODE_UNKNOWN
    silent = sorted(n for n, node in nodes.items() if node.may_run_on and n not in named)
    if not silent:
        return ""
    return _WAITS_FOR_NODE.format(silent[0], f" and {len(silent) - 1} more" if len(silent) > 1 else "")
