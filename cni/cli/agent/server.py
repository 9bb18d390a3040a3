"""What the agent asks of the API server: reads by lightkube, and changes of whereabouts' objects as the plugin makes them.

Every request is measured. A request may take a few seconds at most, since the agent does one thing at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, time
from typing import Any

from lightkube import ApiError
from lightkube.resources.coordination_v1 import Lease as LeaseObject
from lightkube.resources.core_v1 import Event as EventObject
from lightkube.resources.core_v1 import ServiceAccountToken

from cni.cli.agent.metrics import Metrics
from cni.cli.cluster import Cluster
from cni.cli.inventory import Held, Node, Pod, PoolState, Reserved, lease_of
from cni.cli.objects import parse_reservation
from ipam.stores import kubernetes_objects as objects
from ipam.stores.base import Lease, Owner, Unreachable
from ipam.stores.kubernetes_api import POOLS, RESERVATIONS, Api, Conflict, Gone, TooLarge
from ipam.stores.kubernetes_objects import PoolObject

SECONDS = 3.0


class Server:
    """The API server of the kubeconfig at `path`, whose namespace holds whereabouts' objects. CniErrors say what is wrong.

    `cooldown` tells for how many seconds an address that is freed goes to no other pod.
    """

    def __init__(
        self, path: str, metrics: Metrics, seconds: float = SECONDS, cooldown: Callable[[], int] = int
    ) -> None:
        self.path = path
        self._cooldown = cooldown
        self._cluster = Cluster(path, seconds=seconds)
        self._api = Api(path, seconds)
        self._metrics = metrics
        self.namespace = self._cluster.namespace

    def __str__(self) -> str:
        return str(self._cluster)

    def close(self) -> None:
        self._cluster.close()
        self._api.close()

    # --- reads ---

    def pods(self, node: str = "") -> dict[tuple[str, str], Pod]:
        with self._timed("list", "pods"):
            return {(pod.namespace, pod.name): pod for pod in self._cluster.pods(node)}

    def pod(self, namespace: str, name: str) -> Pod | None:
        with self._timed("get", "pods"):
            return self._cluster.pod(namespace, name)

    def nodes(self) -> dict[str, Node]:
        with self._timed("list", "nodes"):
            return self._cluster.nodes()

    def node(self, name: str) -> Node | None:
        with self._timed("get", "nodes"):
            return self._cluster.node(name)

    def pools(self) -> tuple[list[PoolState], list[Reserved], list[str]]:
        """The pools, the reservations, and what is said of pools that cannot be read."""
        with self._timed("list", POOLS):
            return self._cluster.pools()

    def reservations_of(self, node: str) -> list[Reserved]:
        """The reservations that are marked as those of `node`."""
        with self._timed("list", RESERVATIONS):
            return self._cluster.reservations_of(node)

    def schema_fault(self) -> str:
        """What is wrong with the served definition of IPPool; "" for nothing."""
        with self._timed("create", POOLS):
            return objects.pruned(self._api.try_create(POOLS, objects.probe()))

    def pool(self, name: str) -> PoolObject | None:
        with self._timed("get", POOLS):
            try:
                return PoolObject(*self._api.get(POOLS, name))
            except (Gone, ValueError):
                return None

    def reservation(self, held: Held) -> Reserved | None:
        """The reservation of the address of `held`, whosesoever it is; None when there is none."""
        if held.scope is None:
            return None
        with self._timed("get", RESERVATIONS):
            try:
                found = self._api.get(RESERVATIONS, objects.reservation_name(held.scope, *held.address))[0]
            except Gone:
                return None
            return parse_reservation(found, {held.scope})

    # --- changes of whereabouts' objects: whether it was made; False: the object is no longer as it was read ---

    def remove_allocation(self, pool: PoolObject, held: Held) -> bool:
        """Remove the allocation of `held`, if the whole object is as it was read; its address cools down."""
        cooled = pool.cooled([lease_of(held)], self._cooldown(), int(time()))
        operations = pool.patch({held.address[1]: None}, cooled)
        return self._changed("patch", POOLS, lambda: self._api.patch(POOLS, pool.name, operations))

    def allocate(self, pool: PoolObject | None, lease: Lease) -> bool:
        """Put the lease into its pool, None for one that is gone, if its address is free there."""
        api, value = self._api, lease.value
        try:
            if pool is None:  # made empty: a creation may come late, and then must claim nothing
                empty = objects.new_pool(lease.pool, objects.range_of(lease.pool, lease.family, value), {})
                with self._timed("create", POOLS):
                    pool = PoolObject(api.create(POOLS, empty), 0)
            operations = pool.patch({value: objects.entry_of(Owner(lease.attachment, lease.pod))})
        except (Conflict, Gone, ValueError):
            return False  # it is there, but cannot be read, as after a migration
        return self._changed("patch", POOLS, lambda: api.patch(POOLS, lease.pool, operations))

    def remove_reservation(self, found: Reserved) -> bool:
        """Delete the reservation; an ADD that takes the address over changes it in place, so its UID alone would not do."""
        delete = self._api.delete
        return self._changed("delete", RESERVATIONS, lambda: delete(RESERVATIONS, found.name, found.uid, found.version))

    def reserve(self, lease: Lease) -> bool:
        name = objects.reservation_name(lease.scope or "", lease.family, lease.value)
        document = objects.reservation(name, lease)
        return self._changed("create", RESERVATIONS, lambda: self._api.create(RESERVATIONS, document))

    def _changed(self, verb: str, resource: str, request: Callable[[], object]) -> bool:
        with self._timed(verb, resource):
            try:
                request()
            except Gone:
                return False
            except TooLarge:
                return False
            except Conflict:
                self._metrics.conflicts.add(1, resource)
                return False
            return True

    # --- the election's object, and Events ---

    def lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        with self._timed("get", "leases"), self._reading(f"get lease {name}"):
            try:
                found = self._cluster.client.get(LeaseObject, name, namespace=namespace)
                return dict(found.to_dict())
            except ApiError as fault:
                if fault.status.code == 404:
                    return None
                raise

    def put_lease(self, namespace: str, document: dict[str, Any], is_new: bool) -> bool:
        """Create or replace the object; False when another was there first."""
        client, resource = self._cluster.client, LeaseObject.from_dict(document)
        with self._timed("create" if is_new else "update", "leases"), self._reading("write the election's lease"):
            try:
                if is_new:
                    client.create(resource, namespace=namespace)  # type: ignore[call-overload]
                else:
                    client.replace(resource, namespace=namespace)  # type: ignore[call-overload]
            except ApiError as fault:
                if fault.status.code == 409:
                    self._metrics.conflicts.add(1, "leases")
                    return False
                raise
            return True

    def token(self, namespace: str, account: str, seconds: int) -> tuple[str, int]:
        """A token for a service account, and for how many seconds it is good."""
        what = f"request a token for the service account {account}"
        with self._timed("create", "serviceaccounts/token"), self._reading(what):
            wanted: Any = ServiceAccountToken.from_dict(
                {"metadata": {}, "spec": {"audiences": [], "expirationSeconds": seconds}}
            )
            answer = self._cluster.client.create(wanted, account, namespace=namespace)
        status, spec = answer.status, answer.spec
        if not status or not status.token:
            raise Unreachable(f"{self} has issued no token for the service account {namespace}/{account}")
        return str(status.token), int((spec and spec.expirationSeconds) or seconds)

    def tell(self, namespace: str, document: dict[str, Any]) -> bool:
        """Create an Event; False when its namespace is gone."""
        with self._timed("create", "events"), self._reading("create an event"):
            try:
                self._cluster.client.create(EventObject.from_dict(document), namespace=namespace)  # type: ignore[call-overload]
            except ApiError as fault:
                if fault.status.code == 404 or "being terminated" in (fault.status.message or ""):
                    return False
                raise
            return True

    # --- one request ---

    @contextmanager
    def _timed(self, verb: str, resource: str) -> Iterator[None]:
        began = monotonic()
        try:
            yield
        except Exception:
            self._metrics.failures.add(1, verb, resource)
            raise
        finally:
            self._metrics.durations.observe(monotonic() - began, verb, resource)

    @contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        with self._cluster.reading(what, f"in namespace {self.namespace}"):
            yield
