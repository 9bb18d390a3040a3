"""The requests of the agent to the API server that concern no leases: the election's object, Events, tokens."""

from __future__ import annotations

from typing import Any

from cni.library.audit.cluster import Cluster
from cni.library.service.metrics import Metrics
from cni.shared.spec.errors import CniError
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Gone, NoNamespace, Terminating, Undefined
from ipam.stores.apiserver.resources import POOLS
from ipam.stores.base import Unreachable
from ipam.stores.kubernetes.objects import MOVED

SECONDS = 3.0  # for a request: the agent does one thing at a time
_LEASES = "leases"


class Server(Cluster):
    """The API server of the kubeconfig at `path`. CniErrors say what is wrong."""

    def has_pools(self) -> bool:
        """Whether the cluster has IPPools that give addresses."""
        ranges = self.pages(POOLS, lambda pool: str((pool.get("spec") or {}).get("range")), size=4)
        return any(not text.startswith(MOVED) for page in ranges for text in page)

    def lease(self, namespace: str, name: str) -> tuple[str, dict[str, Any]]:
        """The resourceVersion and the spec of a Lease of the coordination API; "" and {} when there is none."""
        try:
            found, _ = self.api.get(_LEASES, name, namespace=namespace)
        except Gone:
            return "", {}
        return found["metadata"]["resourceVersion"], found.get("spec") or {}

    def put_lease(self, namespace: str, name: str, version: str, spec: dict[str, Any]) -> bool:
        """Let a Lease that is as in `version`, or is to be created when that is "", have `spec`; False when it is not."""
        metadata = {"name": name, "namespace": namespace}
        new = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        try:
            if version:
                self.api.patch(_LEASES, name, [test, {"op": "add", "path": "/spec", "value": spec}], namespace)
            else:
                self.api.create(_LEASES, new, namespace)
        except (Conflict, Gone):
            return False
        return True

    def token(self, namespace: str, account: str, seconds: int) -> tuple[str, int]:
        """A token for a service account, and for how many seconds it is good."""
        wanted = {"metadata": {}, "spec": {"audiences": [], "expirationSeconds": seconds}}
        answer = self.api.create(f"serviceaccounts/{account}/token", wanted, namespace)
        token = (answer.get("status") or {}).get("token")
        if not token:
            raise Unreachable(f"{self} has issued no token for the service account {namespace}/{account}")
        return str(token), int((answer.get("spec") or {}).get("expirationSeconds") or seconds)

    def tell(self, namespace: str, document: dict[str, Any]) -> bool:
        """Create an Event; False when its namespace is gone, or on its way out."""
        try:
            self.api.create("events", document, namespace)
        except (NoNamespace, Undefined, Terminating):
            return False
        except Conflict:
            pass  # it is there
        return True


def measure(metrics: Metrics) -> None:
    """Count every request of this process to an API server."""

    def observe(verb: str, resource: str, seconds: float, fault: BaseException | None) -> None:
        place = resource.split("/")
        kind = f"{place[0]}/{place[-1]}" if len(place) > 1 else resource
        metrics.durations.observe(seconds, verb, kind)
        if isinstance(fault, Conflict):
            metrics.conflicts.add(1, kind)
        elif isinstance(fault, CniError):
            metrics.failures.add(1, verb, kind)

    Api.observe = staticmethod(observe)
