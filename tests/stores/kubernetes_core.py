"""The resources of Kubernetes itself that the API server for tests has: pods, nodes, Events, Leases, tokens."""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import Callable
from typing import Any

Place = tuple[str, str, str]  # resource, namespace ("" for a node), name
LEASES = "coordination.k8s.io"


class Missing(Exception):
    """There is no such object."""


class Exists(Exception):
    """There is one of the name, or one of another version."""


def annotations(status: str = "", static_uid: str = "", preferred: str = "") -> dict[str, str]:
    """Of a pod: its network-status, the UID of the static pod whose mirror it is, the address that it would rather have."""
    found = {
        "k8s.v1.cni.cncf.io/network-status": status,
        "kubernetes.io/config.mirror": static_uid,
        "whereabouts.cni.cncf.io/preferred-ip": preferred,
    }
    return {key: value for key, value in found.items() if value}


class Unfit(Exception):
    """A patch does not apply."""


Apply = Callable[[Any, dict[str, Any]], None]  # one operation of a JSON patch


class Core:
    """Objects by resource, namespace and name; `gone` are namespaces that are not there."""

    def __init__(self) -> None:
        self.objects: dict[Place, dict[str, Any]] = {}
        self.gone: set[str] = set()
        self.page = 500  # the most objects in one reply
        self.tokens: list[tuple[dict[str, Any], str]] = []  # requests for one, and what was issued
        self._versions = itertools.count(1)

    # --- for tests ---

    def add_pod(
        self,
        namespace: str,
        name: str,
        node: str = "",
        phase: str = "Running",
        status: str = "",
        static_uid: str = "",
        preferred: str = "",
    ) -> str:
        """The uid of a new pod; `status`, `static_uid` and `preferred` as `annotations` says."""
        metadata = {"uid": str(uuid.uuid4()), "annotations": annotations(status, static_uid, preferred)}
        document: dict[str, Any] = {
            "metadata": metadata,
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase},
        }
        self._put(("pods", namespace, name), document)
        return str(document["metadata"]["uid"])

    def add_node(self, name: str, ready: bool = True, out_of_service: bool = False) -> None:
        taints = [{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]
        conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        spec = {"taints": taints} if out_of_service else {}
        self._put(("nodes", "", name), {"metadata": {}, "spec": spec, "status": {"conditions": conditions}})

    def named(self, resource: str) -> list[dict[str, Any]]:
        return [copy.deepcopy(found) for place, found in sorted(self.objects.items()) if place[0] == resource]

    # --- requests ---

    def get(self, place: Place) -> dict[str, Any]:
        if place not in self.objects:
            raise Missing
        return copy.deepcopy(self.objects[place])

    def create(self, resource: str, namespace: str, document: dict[str, Any]) -> dict[str, Any]:
        place = (resource, namespace, document["metadata"]["name"])
        if namespace in self.gone:
            raise Missing
        if place in self.objects:
            raise Exists
        document["metadata"].setdefault("uid", str(uuid.uuid4()))
        return self._put(place, document)

    def replace(self, place: Place, document: dict[str, Any]) -> dict[str, Any]:
        former = self.get(place)["metadata"]
        if document["metadata"].get("resourceVersion") != former["resourceVersion"]:
            raise Exists
        document["metadata"]["uid"] = former["uid"]
        return self._put(place, document)

    def patch(self, place: Place, operations: list[dict[str, Any]], apply: Apply) -> dict[str, Any]:
        document = self.get(place)
        try:
            for operation in operations:
                apply(document, operation)
        except (KeyError, ValueError, TypeError) as fault:
            raise Unfit(str(fault)) from None
        return self._put(place, document)

    def list(self, resource: str, query: dict[str, list[str]]) -> dict[str, Any]:
        """A page of all namespaces."""
        node = next(
            (t.partition("=")[2] for t in query.get("fieldSelector", []) if t.startswith("spec.nodeName=")), None
        )
        found = [
            (f"{place[1]}/{place[2]}", document)
            for place, document in sorted(self.objects.items())
            if place[0] == resource and (node is None or document["spec"].get("nodeName") == node)
        ]
        after = query.get("continue", [""])[0]
        found = [one for one in found if one[0] > after]
        size = min(int(query.get("limit", ["0"])[0]) or self.page, self.page)
        metadata: dict[str, Any] = {"resourceVersion": "1"}
        if len(found) > size:
            metadata["continue"] = found[size - 1][0]
        items = [copy.deepcopy(document) for _, document in found[:size]]
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}

    def token(self, account: str, document: dict[str, Any]) -> dict[str, Any]:
        """A TokenRequest's answer."""
        text = f"token.of.{account}-{len(self.tokens)}"
        self.tokens.append((document, text))
        return {**document, "status": {"token": text, "expirationTimestamp": "2099-01-01T00:00:00Z"}}

    def _put(self, place: Place, document: dict[str, Any]) -> dict[str, Any]:
        version = {"name": place[2], "resourceVersion": str(next(self._versions))}
        document = {**document, "metadata": {**document["metadata"], **version}}
        if place[1]:
            document["metadata"]["namespace"] = place[1]
        self.objects[place] = document
        return copy.deepcopy(document)
