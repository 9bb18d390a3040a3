"""The API server for tests as the command's own tests fill it: pods, nodes, claims and networks of the namespace team."""

from __future__ import annotations

import json
import uuid
from typing import Any

from tests.stores.kubernetes_api import ApiServer

READABLE = {
    "pods": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "network-attachment-definitions": ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),
    "resourceclaims": ("resource.k8s.io/v1", "ResourceClaim"),
}
STATUS = "k8s.v1.cni.cncf.io/network-status"


class ClusterServer(ApiServer):
    @property
    def lists(self) -> list[str]:
        """The resources of READABLE whose pages were asked for, one after another."""
        return [path for method, path, _ in self.seen if method == "GET" and path in READABLE]

    def add(self, resource: str, namespace: str, name: str, **members: Any) -> dict[str, Any]:
        """Make an object again."""
        version, kind = READABLE[resource]
        metadata = {"uid": str(uuid.uuid4()), **members.pop("metadata", {})}
        document = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}, "status": {}, **members}
        with self._lock:
            return self.core._put((resource, namespace, name), document)

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

    def add_network(self, name: str, **ipam: Any) -> None:
        """A NAD of the namespace team."""
        block = {"type": "whereabouts", "range": "192.168.111.0/24", **ipam}
        config = {"cniVersion": "1.0.0", "name": name, "type": "macvlan", "master": "ens2f0", "ipam": block}
        self.core.add_network("team", name, json.dumps(config))
