"""The API server for tests with the rest of a cluster: pods, nodes, networks and node slices, to be read in pages."""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any

from tests.stores.kubernetes_api import ApiServer, Refusal

# resource: API, kind, and whether it is in a namespace
READABLE = {
    "pods": ("api/v1", "Pod"),
    "nodes": ("api/v1", "Node"),
    "network-attachment-definitions": ("apis/k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),
    "resourceclaims": ("apis/resource.k8s.io/v1", "ResourceClaim"),
    "nodeslicepools": ("apis/whereabouts.cni.cncf.io/v1alpha1", "NodeSlicePool"),
}
STATUS = "k8s.v1.cni.cncf.io/network-status"


class ClusterServer(ApiServer):
    """`add_*` make what is read; what is absent from `defined` is answered as a kind that no CRD defines."""

    def __init__(self, port: int = 0) -> None:
        self.defined = set(READABLE)
        self.readable: dict[str, dict[tuple[str, str], dict[str, Any]]] = {resource: {} for resource in READABLE}
        self.lists: list[str] = []  # the resources whose pages were asked for
        super().__init__(port=port)

    def add(self, resource: str, namespace: str, name: str, **members: Any) -> dict[str, Any]:
        """Make an object of one of READABLE again."""
        api, kind = READABLE[resource]
        metadata = {"name": name, "uid": str(uuid.uuid4()), "resourceVersion": "1", **members.pop("metadata", {})}
        metadata |= {"namespace": namespace} if namespace else {}
        document = {"apiVersion": api.split("/", 1)[1], "kind": kind, "metadata": metadata, **members}
        with self._lock:
            self.readable[resource][namespace, name] = document
        return document

    def run_pod(
        self,
        name: str,
        *ips: str,
        network: str = "team/rdma-net",
        phase: str = "Running",
        node: str = "node-1",
        **metadata: Any,
    ) -> str:
        """A pod of the namespace team that shows `ips` on net1; its UID."""
        status = [{"name": "cbr0", "interface": "eth0", "ips": ["10.244.0.9"], "default": True}]
        status += [{"name": network, "interface": "net1", "ips": list(ips)}] if ips else []
        annotations = {STATUS: json.dumps(status)} if ips else {}
        made = self.add(
            "pods",
            "team",
            name,
            metadata={"annotations": annotations, **metadata},
            spec={"nodeName": node, "containers": [{"name": "c", "image": "none.invalid/none"}]},
            status={"phase": phase},
        )
        return str(made["metadata"]["uid"])

    def run_node(self, name: str, ready: bool = True) -> None:
        conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        self.add("nodes", "", name, status={"conditions": conditions})

    def add_network(self, name: str, **ipam: Any) -> None:
        """A NAD of the namespace team."""
        block = {"type": "whereabouts", "range": "192.168.111.0/24", **ipam}
        config = {"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "ens2f0", "ipam": block}
        self.add("network-attachment-definitions", "team", name, spec={"config": json.dumps(config)})

    def _serve(
        self, method: str, parts: list[str], query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, Any]:
        api = "/".join(parts[: 2 if parts[0] == "api" else 3])
        rest = parts[2 if parts[0] == "api" else 3 :]
        namespace = rest.pop(1) if rest[:1] == ["namespaces"] and len(rest) > 2 else ""
        rest = rest[1:] if rest[:1] == ["namespaces"] and namespace else rest
        resource, name = rest[0] if rest else "", rest[1] if len(rest) > 1 else ""
        if resource not in READABLE or READABLE[resource][0] != api or method != "GET":
            return super()._serve(method, parts, query, headers, body)
        if ("get" if name else "list", resource) in self.forbidden:
            raise Refusal(403, "Forbidden", f'{resource} is forbidden: User "u" cannot read them', kind=resource)
        if resource not in self.defined:
            return 404, {"kind": "Status", "code": 404, "message": "the server could not find the requested resource"}
        objects = self.readable[resource]
        if name:
            if (namespace, name) not in objects:
                raise Refusal(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource)
            return 200, copy.deepcopy(objects[namespace, name])
        self.lists.append(resource)
        chosen = query.get("fieldSelector", [""])[0].partition("=")[2].lstrip("=")
        keys = sorted(
            key
            for key, found in objects.items()
            if namespace in ("", key[0]) and chosen in ("", found.get("spec", {}).get("nodeName"))
        )
        after = query.get("continue", [""])[0]
        left = [key for key in keys if "/".join(key) > after]
        page = left[: int(query.get("limit", ["0"])[0]) or None]
        metadata = {"resourceVersion": "1", **({"continue": "/".join(page[-1])} if len(page) < len(left) else {})}
        kind, version = READABLE[resource][1], api.split("/", 1)[1]
        items = [copy.deepcopy(objects[key]) for key in page]
        return 200, {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}
