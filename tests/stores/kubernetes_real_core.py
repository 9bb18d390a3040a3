"""The resources of Kubernetes itself on a real API server, behind the interface of those of the one for tests.

Namespaces are those of the proxy; nodes bear its prefix, for there are others' on the server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.stores.kubernetes_api import Refusal
from tests.stores.kubernetes_core import (
    LEASES,
    MULTUS,
    NAD_DEFINITION,
    NADS,
    Apply,
    Core,
    Exists,
    Missing,
    Place,
    Unfit,
    pod_annotations,
)

Send = Callable[..., tuple[int, Any]]
_MERGE = "application/merge-patch+json"


class RealCore(Core):
    """`send` makes a request (method, target, document, content type), `namespace` tells the real name of one."""

    def __init__(self, send: Send, namespace: Callable[[str], str], prefix: str) -> None:
        super().__init__()
        self._send = send
        self._namespace = namespace
        self._prefix = f"{prefix}-node-"
        self._aliases: dict[str, str] = {}
        self._nodes: set[str] = set()
        self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def close(self) -> None:
        for name in self._nodes:
            self._send("DELETE", f"/api/v1/nodes/{self._prefix}{name}")

    def add_pod(
        self, namespace: str, name: str, node: str = "", phase: str = "Running", status: str = "", **noted: str
    ) -> str:
        metadata = {"name": name, "annotations": pod_annotations(status, **noted)}
        spec: dict[str, Any] = {"containers": [{"name": "c", "image": "none.invalid/none"}]}
        if node or noted.get("static_uid"):  # the server takes no static pod without a node
            spec["nodeName"] = node or "of-a-static-pod"
        found = self.create("pods", namespace, {"metadata": metadata, "spec": spec})
        target = f"{self._target(('pods', namespace, name))}/status"
        code, said = self._send("PATCH", target, {"status": {"phase": phase}}, _MERGE)
        assert code == 200, said
        return str(found["metadata"]["uid"])

    def remove_pod(self, namespace: str, name: str) -> None:
        target = self._target(("pods", namespace, name))
        code, said = self._send("DELETE", f"{target}?gracePeriodSeconds=0")
        assert code == 200, said

    def add_network(self, namespace: str, name: str, config: str) -> None:
        """Make the definition of networks where the server has none, and the network."""
        target = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self._send("POST", target, NAD_DEFINITION)
        while self._send("GET", f"/apis/{MULTUS}/v1/{NADS}?limit=1")[0] == 404:
            time.sleep(0.1)
        document = {"apiVersion": f"{MULTUS}/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": name}}
        self.create(NADS, namespace, document | {"spec": {"config": config}})

    def add_node(self, name: str, ready: bool = True, out_of_service: bool = False) -> None:
        taints = [{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]
        target = self._target(("nodes", "", name))
        if name not in self._nodes:
            self._nodes.add(name)
            code, said = self._send("POST", "/api/v1/nodes", {"metadata": {"name": self._prefix + name}})
            assert code == 201, said
        code, said = self._send("PATCH", target, {"spec": {"taints": taints if out_of_service else []}}, _MERGE)
        assert code == 200, said
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Test", "message": "test"}
        condition |= {"lastTransitionTime": now, "lastHeartbeatTime": now}
        code, said = self._send("PATCH", f"{target}/status", {"status": {"conditions": [condition]}}, _MERGE)
        assert code == 200, said

    def named(self, resource: str) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self.list(resource, "", {})["items"]
        except Missing:  # the kind is not defined
            return []
        return found

    # --- requests ---

    def get(self, place: Place) -> dict[str, Any]:
        return self._answered("GET", self._target(place))

    def create(self, resource: str, namespace: str, document: dict[str, Any]) -> dict[str, Any]:
        return self._answered("POST", self._target((resource, namespace, "")), document)

    def replace(self, place: Place, document: dict[str, Any]) -> dict[str, Any]:
        return self._answered("PUT", self._target(place), document)

    def patch(self, place: Place, operations: list[dict[str, Any]], apply: Apply) -> dict[str, Any]:
        return self._answered("PATCH", self._target(place), operations, "application/json-patch+json")

    def delete(self, place: Place, options: dict[str, Any] | None) -> None:
        self._answered("DELETE", self._target(place), options)

    def list(self, resource: str, namespace: str, query: dict[str, list[str]]) -> dict[str, Any]:
        query = {key: values[0] for key, values in query.items()}
        if "limit" in query:
            query["limit"] = str(min(int(query["limit"]), self.page))
        field, _, node = query.get("fieldSelector", "").partition("=")
        if field == "spec.nodeName":
            query["fieldSelector"] = f"spec.nodeName={self._prefix}{node}"
        terms = "&".join(f"{key}={value}" for key, value in query.items())
        found = self._answered("GET", f"{self._target((resource, namespace, ''))}?{terms}")
        found["items"] = [item for item in found["items"] if self._is_ours(resource, item, item["metadata"])]
        return found

    def token(self, account: str, document: dict[str, Any]) -> dict[str, Any]:
        place = ("serviceaccounts", "kube-system", "")
        answer = self._answered("POST", f"{self._target((*place[:2], account))}/token", document)
        self.tokens.append((document, answer["status"]["token"]))
        return answer

    def _is_ours(self, resource: str, item: dict[str, Any], metadata: dict[str, Any]) -> bool:
        if resource == "nodes":
            return str(metadata["name"]) in self._nodes
        if metadata.get("namespace") == "default":  # Events on nodes: the cluster's controllers write such ones too
            is_new = str(metadata.get("creationTimestamp")) >= self._began
            return is_new and item.get("reportingComponent") == "railcni-agent"
        return metadata.get("namespace") in self._aliases

    def _answered(self, method: str, target: str, document: Any = None, *content_type: str) -> dict[str, Any]:
        code, said = self._send(method, target, self._translated(document, self._outward), *content_type)
        if code == 403:
            raise Refusal(403, "Forbidden", said["message"])
        if code == 404:
            raise Missing(said)
        if code == 409:
            raise Exists(said)
        if code == 422 and method == "PATCH":
            raise Unfit(said)
        assert code < 300, said
        answer: dict[str, Any] = self._translated(said, self._inward)
        return answer

    def _target(self, place: Place) -> str:
        resource, namespace, name = place
        name = f"/{self._outward('nodeName', name) if resource == 'nodes' else name}" if name else ""
        group = {"leases": f"/apis/{LEASES}/v1", NADS: f"/apis/{MULTUS}/v1"}.get(resource, "/api/v1")
        if not namespace:
            return f"{group}/{resource}{name}"
        return f"{group}/namespaces/{self._outward('namespace', namespace)}/{resource}{name}"

    def _outward(self, key: str, value: str) -> str:
        if key == "nodeName":
            return f"{self._prefix}{value}"
        if value == "default":
            return value
        self._aliases[value] = self._namespace(value) if value not in self._aliases else self._aliases[value]
        return self._aliases[value]

    def _inward(self, key: str, value: str) -> str:
        if key == "nodeName":
            return value.removeprefix(self._prefix)
        if value == "default":
            return value
        return next((alias for alias, name in self._aliases.items() if name == value), f"{value} of others")

    def _translated(self, document: Any, change: Callable[[str, str], str]) -> Any:
        """`document` with the names of namespaces and nodes changed, wherever they stand."""
        if isinstance(document, list):
            return [self._translated(item, change) for item in document]
        if not isinstance(document, dict):
            return document
        found = {key: self._translated(value, change) for key, value in document.items()}
        for key in ("namespace", "nodeName"):
            if isinstance(found.get(key), str) and found[key]:
                found[key] = change(key, found[key])
        if bound := found.get("boundObjectRef"):  # of a token
            bound["name"] = change("nodeName", bound["name"])
        metadata = found.get("metadata")
        if (
            isinstance(metadata, dict)
            and not metadata.get("namespace")
            and str(metadata.get("name")).startswith(self._prefix)
        ):
            metadata["name"] = change("nodeName", metadata["name"])
        return json.loads(json.dumps(found))
