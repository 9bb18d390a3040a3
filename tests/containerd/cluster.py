"""A real API server for Multus on a node: its kubeconfig there, NetworkAttachmentDefinitions, and pods, in a namespace of a
test's own. The pods are bound to a node that is the test's, so that no kubelet but the test's runs them.

RAILCNI_TEST_KUBECONFIG names the kubeconfig of an administrator.
"""

from __future__ import annotations

import copy
import json
import os
import urllib.parse
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.storage_v1 import CSINode

from tests.attachment_definitions import Nad, define
from tests.containerd import image
from tests.containerd.runtime import Pod
from tests.node import Node
from tests.proxy import Proxy

KUBECONFIG = os.environ.get("RAILCNI_TEST_KUBECONFIG", "")
NETWORKS, STATUS = "k8s.v1.cni.cncf.io/networks", "k8s.v1.cni.cncf.io/network-status"
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


class Cluster:
    """`with Cluster(node) as cluster`: `kubeconfig` is of the node, from which the server is reached by a proxy."""

    kubeconfig = "/etc/cni/multus.kubeconfig"

    def __init__(self, node: Node) -> None:
        self.namespace = f"railcni-test-{uuid.uuid4().hex[:8]}"
        self.node = f"{self.namespace}-node"
        document = yaml.safe_load(Path(KUBECONFIG).read_text())
        self.client = Client(KubeConfig.from_dict(document).get(), namespace=self.namespace, trust_env=False)
        current = next(c for c in document["contexts"] if c["name"] == document["current-context"])
        name = current["context"]["cluster"]
        cluster = next(c for c in document["clusters"] if c["name"] == name)["cluster"]
        url = urllib.parse.urlsplit(cluster["server"])
        host = str(url.hostname)
        # It listens in the node, and connects from here: the node's network leads nowhere.
        self._server = partial(node._there.call_in, node.host.path, partial(Proxy, url.port or 443, host=host))
        self._proxy = self._server()
        cluster["server"] = f"{url.scheme}://127.0.0.1:{self._proxy.port}{url.path}"
        cluster.setdefault("tls-server-name", host)
        node.path(self.kubeconfig).parent.mkdir(parents=True, exist_ok=True)
        node.path(self.kubeconfig).write_text(json.dumps(document))

    def __enter__(self) -> Cluster:
        self._proxy.__enter__()
        try:
            define(self.client)
            self.client.create(Namespace.from_dict({"metadata": {"name": self.namespace}}))
        except BaseException:
            self._proxy.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.delete_pods()
        self.client.delete(Namespace, self.namespace)
        self.client.close()
        self._proxy.__exit__()

    def served(self, address: str, port: int) -> Proxy:
        """The server at another address of the node, such as that which its pods know."""
        return self._server(at=(address, port))

    def network(self, config: Mapping[str, Any], resource: str = "") -> None:
        """Make a NetworkAttachmentDefinition of the configuration's name, whose pods have a device of `resource`."""
        annotations = {RESOURCE: resource} if resource else {}
        metadata = {"name": config["name"], "annotations": annotations}
        self.client.create(Nad(metadata=metadata, spec={"config": json.dumps(config)}))

    def pod(
        self,
        name: str,
        *networks: str,
        devices: Mapping[str, int] | None = None,
        claim: str = "",
        template: str = "",
        scheduler: bool = False,
    ) -> Pod:
        """Make a pod's object with these networks beside the first, whose container asks for devices and has the claim, or one of
        the template; the pod to run. With `scheduler` that binds it to the node."""
        limits = {resource: str(number) for resource, number in (devices or {}).items()}
        container: dict[str, Any] = {
            "name": "main", "image": image.NAME, "imagePullPolicy": "Never", "resources": {"limits": limits},
        }  # fmt: skip
        spec: dict[str, Any] = {
            "nodeName": self.node, "containers": [container], "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False, "dnsPolicy": "Default",
        }  # fmt: skip
        if scheduler:
            spec |= {"nodeSelector": {"kubernetes.io/hostname": spec.pop("nodeName")}}
            spec |= {"tolerations": [{"operator": "Exists"}]}
        if claim or template:
            source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
            spec |= {"resourceClaims": [{"name": "claim", **source}]}
            container["resources"] |= {"claims": [{"name": "claim"}]}
        document = {"metadata": {"name": name, "annotations": {NETWORKS: ",".join(networks)}}, "spec": spec}
        made = self.client.create(PodObject.from_dict(copy.deepcopy(document)))
        assert made.metadata and made.metadata.uid
        return Pod(name, self.namespace, made.metadata.uid)

    def status(self, pod: Pod) -> dict[str, Any]:
        """The addresses by interface that Multus has noted at the pod."""
        found = self.client.get(PodObject, pod.config.metadata.name).metadata
        assert found and found.annotations
        return {one["interface"]: one.get("ips", []) for one in json.loads(found.annotations[STATUS])}

    def state(self, name: str) -> Any:
        """The status of a pod, which kubelet writes; None when there is no such pod."""
        try:
            return self.client.get(PodObject, name).status
        except ApiError as error:
            if error.status.code != 404:
                raise
            return None

    def container(self, name: str) -> str:
        """The ID of the pod's container in containerd, which has never been restarted."""
        (found,) = self.state(name).containerStatuses
        assert found.restartCount == 0
        return str(found.containerID).removeprefix("containerd://")

    def delete(self, name: str, grace_period: int | None = 0) -> None:
        """Delete a pod's object at once, as `kubectl delete --force` does; None: when kubelet has ended the pod."""
        self.client.delete(PodObject, name, grace_period=grace_period)

    def delete_pods(self) -> None:
        """Delete the objects of all pods at once."""
        for pod in list(self.client.list(PodObject)):
            assert pod.metadata and pod.metadata.name
            self.delete(pod.metadata.name)

    def allocatable(self) -> dict[str, str]:
        """What the node has for pods; {} before kubelet has made it."""
        try:
            status = self.client.get(NodeObject, self.node).status
        except ApiError as error:
            if error.status.code != 404:
                raise
            return {}
        return dict(status.allocatable or {}) if status else {}

    def delete_node(self) -> None:
        """Delete the node, and what kubelet has made beside it."""
        for kind, namespace in ((NodeObject, None), (CSINode, None), (Lease, "kube-node-lease")):
            try:
                self.client.delete(kind, self.node, namespace=namespace)
            except ApiError as error:
                if error.status.code != 404:
                    raise
