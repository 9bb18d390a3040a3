"""The objects of a Kubernetes cluster that `railcni ipam` and the agent read with the API client of the lease stores.
Lists are read in pages, so a whole list is in memory only if the caller keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from cni.cluster.audit import model
from cni.cluster.audit.model import IpamBlock, Name, Node, Pod
from cni.shared.spec.errors import InvalidConfig
from ipam.leases import Lease
from ipam.stores import IN_CLUSTER
from ipam.stores.addresslease import objects as addresses
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Expired, NotFound, Undefined
from ipam.stores.apiserver.resources import ADDRESSES, CONFIGMAPS, EVERYWHERE, PODS, POOLS, RESERVATIONS, SLICES
from ipam.stores.ippool.objects import IPPool, Reservation, is_closed, reservation_name

T = TypeVar("T")

SECONDS = 30.0  # the limit for one request with all its attempts
NADS, NODES = "network-attachment-definitions", "nodes"
_DEFINED = (POOLS, RESERVATIONS, SLICES, ADDRESSES, NADS)  # resources with a CRD, which may be missing
CHOICE = "railcni-datastore"  # the ConfigMap that names the store of the cluster's nodes
_PAGE = 250  # objects of some KiB in one reply
_POOLS = 4  # IPPools in one reply: one may have 1.5 MiB, which needs ten times as much memory


class Cluster:
    """The cluster of the kubeconfig at `path`; "" means this pod's service account. Failing requests raise CniError.

    `namespace` is the namespace of the leases; "" means the namespace of the current context, or kube-system if it has
    none. A request may take at most `seconds`.
    """

    def __init__(self, path: str = "", namespace: str = "", seconds: float = SECONDS) -> None:
        self.path = path
        self.api = Api(path, seconds, namespace)

    def pages(self, resource: str, parse: Callable[[dict[str, Any]], T], **choice: Any) -> Iterator[list[T]]:
        """Yield the parsed objects of `resource`, page by page. Yields nothing if the CRD is missing. `choice` is
        passed to Api.pages. Raises Expired when the reader is too slow; `read_all` then begins again."""
        try:
            for page in self.api.pages(resource, **{"size": _PAGE, **choice}):
                yield [parse(document) for document in page]
        except Undefined:
            if resource not in _DEFINED:
                raise

    def _one(self, resource: str, parse: Callable[[dict[str, Any]], T], name: str, namespace: str = "") -> T | None:
        try:
            return parse(self.api.get(resource, name, namespace=namespace)[0]) if name else None
        except NotFound:
            return None
        except Undefined:
            if resource not in _DEFINED:
                raise
            return None

    # --- the store of the nodes ---

    def datastore(self) -> str:
        """The kind of store that the nodes use, from the ConfigMap CHOICE; "" while there is no such ConfigMap."""
        found = self._one(CONFIGMAPS, lambda document: (document.get("data") or {}).get("datastore", ""), CHOICE)
        if found is not None and found not in IN_CLUSTER:
            raise InvalidConfig(
                f'data.datastore of ConfigMap {self.api.access.namespace}/{CHOICE} is "{found}": want {" or ".join(IN_CLUSTER)},'
                " the store of the cluster's leases"
            )
        return found or ""

    def choose(self, kind: str) -> str:
        """Record `kind` as the store of the cluster's nodes, if none is recorded; return the recorded kind."""
        while not (chosen := self.datastore()):
            with suppress(Conflict):  # another agent was first
                self.api.create(CONFIGMAPS, {"metadata": {"name": CHOICE}, "data": {"datastore": kind}})
        return chosen

    def move(self, kind: str) -> None:
        """Change the recorded store of the cluster's nodes to `kind`. Do nothing if no store is recorded."""
        if self.datastore() not in ("", kind):
            self.api.patch(CONFIGMAPS, CHOICE, [{"op": "add", "path": "/data/datastore", "value": kind}])

    def used(self) -> list[str]:
        """The kinds of stores in use: IPPools if one is not closed by a migration, AddressLeases if one has a lease."""
        pools = self.pages(POOLS, is_closed, size=_POOLS)
        held = addresses.selector({addresses.STATE: addresses.HELD})
        found = {
            "kubernetes": any(not closed for page in pools for closed in page),
            "addresslease": any(self.pages(ADDRESSES, str, labels=held, brief=True, size=1)),
        }
        return [kind for kind, is_used in found.items() if is_used]

    # --- pods, nodes, networks ---

    def pods(self, node: str = "") -> Iterator[list[Pod]]:
        """Yield the pods of all namespaces or, if `node` is given, only those on this node, page by page."""
        return self.pages(PODS, model.parse_pod, namespace=EVERYWHERE, fields=f"spec.nodeName={node}" if node else "")

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod as it is now; None when it does not exist."""
        return self._one(PODS, model.parse_pod, name, namespace) if namespace else None

    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in read_all(lambda: self.pages(NODES, model.parse_node, namespace=EVERYWHERE))}

    def node(self, name: str) -> Node | None:
        """The node as it is now; None when it does not exist."""
        return self._one(NODES, model.parse_node, name, EVERYWHERE)

    def networks(self) -> tuple[list[IpamBlock], set[str]]:
        """Return the ipam blocks of all NADs (model.parse_networks), and "namespace/name" of every NAD."""
        found = read_all(
            lambda: self.pages(NADS, lambda nad: (model.nad_name(nad), model.parse_networks(nad)), namespace=EVERYWHERE)
        )
        return [network for _, networks in found for network in networks], {name for name, _ in found}

    # --- whereabouts' objects ---

    def pool(self, name: str) -> IPPool | None:
        """The present IPPool with unparsed leases; None if it is missing. Raises ValueError for a migrated IPPool."""
        return self._one(POOLS, lambda document: IPPool(document, 0), name)

    def reservation(self, lease: Lease) -> Reservation | None:
        """The reservation of the address of `lease`, even if another pod owns the reservation."""
        scope = lease.scope
        if scope is None:
            return None
        return self._one(RESERVATIONS, lambda found: Reservation(found, (scope,)), reservation_name(lease))


class PoolReading:
    """A reading of the IPPools of `cluster` and their reservations, page by page. The names of reservations and pools
    may begin with a network name in `networks`, which also show which networks have one pool per node."""

    def __init__(self, cluster: Cluster, networks: list[IpamBlock] | None = None) -> None:
        self._cluster = cluster
        self._networks = networks or []
        self._scopes = {"", *(n.network_name for n in self._networks)}
        self._reserved: dict[str, Reservation] = {}
        self._leased: set[str] = set()  # the names of the reservations for leases in pools
        self.faults: list[str] = []  # the faults of pools that cannot be read

    def read(self) -> Iterator[list[IPPool]]:
        """Read the reservations, and yield [] for each page. Then yield the pools in pages. Each call begins anew."""
        self._reserved, self._leased, self.faults = {}, set(), []
        for page in self._cluster.pages(RESERVATIONS, Reservation):
            self._reserved.update((one.name, one) for one in page)
            yield []
        for documents in self._cluster.pages(POOLS, dict, size=_POOLS):
            yield [state for state in map(self._parsed, documents) if state]

    def _parsed(self, document: dict[str, Any]) -> IPPool | None:
        if is_closed(document):
            return None
        try:
            state = model.parse_pool(document, self._reserved.get, self._networks)
        except ValueError as fault:
            self.faults.append(f"spec.range of IPPool {(document.get('metadata') or {}).get('name')}: {fault}")
            return None
        self._scopes.add(state.scope or "")
        self._leased.update(map(reservation_name, state.leases if state.scope is not None else ()))
        return state

    def reserved(self) -> list[Reservation]:
        """All reservations. Call this only after `read` has yielded all pools."""
        for one in self._reserved.values():
            one.place(self._scopes)
        return list(self._reserved.values())

    def unleased(self) -> list[Reservation]:
        """The reservations without a lease in any pool. Call this only after `read` has yielded all pools."""
        return [one for one in self.reserved() if one.name not in self._leased]


def read_all(read: Callable[[], Iterable[list[T]]], progress: Callable[[str], object] = str, kind: str = "") -> list[T]:
    """The objects in all pages of `read()`. If the server's list expires meanwhile, `read` is called again. After each
    page `progress` gets a text with the number of objects so far, and `kind`."""
    while True:
        found: list[T] = []
        try:
            for page in read():
                found += page
                progress(f"{len(found)} {kind} read")
            return found
        except Expired:
            continue


def by_name(pods: Iterable[Pod]) -> dict[Name, Pod]:
    return {(pod.namespace, pod.name): pod for pod in pods}
