"""Thick Multus on a node with a real kubelet: `multus-daemon` in a pod, with the mounts, rights and variables of its manifest,
deployments/multus-daemonset-thick.yml. It makes the network of which containerd calls `multus-shim`.

The executables lie beside that of RAILCNI_TEST_MULTUS. The image is busybox; the root of the pod has them by a mount.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.core_v1 import Service
from lightkube.resources.rbac_authorization_v1 import ClusterRoleBinding

from tests.containerd import image
from tests.containerd.cluster import Cluster
from tests.containerd.kubelet import Kubelet
from tests.containerd.runtime import MULTUS, TOP, Runtime
from tests.node import BIN, GO_PLUGINS, Node

DAEMON, SHIM = (Path(MULTUS).parent / name for name in ("multus-daemon", "multus-shim"))
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of its image, Debian's, which also has the users
)
_NETWORKS, _FILE, _USERS = f"{TOP}/net.d", f"{TOP}/daemon.json", f"{TOP}/passwd"
_CONFIG = {
    "chrootDir": "/hostroot", "cniVersion": "0.3.1", "logLevel": "verbose", "logToStderr": True,
    "cniConfigDir": _NETWORKS, "multusAutoconfigDir": _NETWORKS, "multusConfigFile": "auto",
    "socketDir": "/host/run/multus/", "binDir": f"{TOP}/bin",
}  # fmt: skip
_PASSED_ON = ("/hostroot", "/run/netns", "/var/run/netns")  # the node's later mounts come there too


@contextmanager
def running(node: Node, default: Mapping[str, Any], **more: Path) -> Iterator[tuple[Cluster, Runtime, Kubelet]]:
    """Pods of `default` and of NetworkAttachmentDefinitions; `more` are plugins."""
    with Cluster(node) as cluster, Runtime(node, default, more={"multus-shim": SHIM, **more}) as runtime:
        service = cluster.client.get(Service, "kubernetes", namespace="default").spec
        assert service and service.ports and service.clusterIP
        runtime.enter(["ip", "address", "add", f"{service.clusterIP}/32", "dev", "lo"])
        runtime.enter(["mount", "--make-rshared", "/"])
        node.path(_FILE).write_text(json.dumps(_CONFIG))
        node.path(_USERS).write_text("root:x:0:0:root:/root:/bin/sh\n")
        with cluster.served(service.clusterIP, service.ports[0].port), Kubelet(runtime, cluster) as kubelet:
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
            account = {"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}
            binding = {"metadata": {"name": cluster.namespace}, "roleRef": role, "subjects": [account]}
            cluster.client.create(ClusterRoleBinding.from_dict(binding))
            try:
                cluster.client.create(PodObject.from_dict(_daemon(cluster, {place.parent for place in more.values()})))
                assert kubelet.becomes(node.path(f"{_NETWORKS}/00-multus.conf").exists), _log(node)
                yield cluster, runtime, kubelet
                cluster.delete_pods()
                assert kubelet.becomes(lambda: not runtime.remains()), runtime.remains()
            finally:
                cluster.client.delete(ClusterRoleBinding, cluster.namespace)


def _log(node: Node) -> str:
    """The end of what the daemon said."""
    return "".join(path.read_text() for path in node.path("/var/log/pods").glob("*_multus_*/*/*.log"))[-6000:]


def _daemon(cluster: Cluster, folders: set[Path]) -> dict[str, Any]:
    """The pod's object. Where its executables and those that it calls are links, both ends are mounted."""
    own = {"/hostroot": "/", "/host/run": "/run", "/var/run/netns": "/run/netns"}
    same = ("/run/netns", "/var/lib/kubelet", "/run/k8s.cni.cncf.io", "/var/lib/cni/multus", TOP, BIN, GO_PLUGINS)
    own |= {str(path): str(path) for path in (*same, DAEMON.parent, *folders)}
    names = {at: f"v{number}" for number, at in enumerate(own)}
    host = [{"name": names[at], "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for at, path in own.items()]
    passed_on = {at: {"mountPropagation": "HostToContainer"} for at in _PASSED_ON}
    mounts = [{"name": names[at], "mountPath": at, **passed_on.get(at, {})} for at in own]
    mounts.append({"name": names[TOP], "mountPath": "/etc/passwd", "subPath": Path(_USERS).name})
    node = {"name": "MULTUS_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container = {
        "name": "kube-multus", "image": image.NAME, "imagePullPolicy": "Never",
        "command": [str(DAEMON), f"-config={_FILE}"], "securityContext": {"privileged": True},
        "env": [node, {"name": "PATH", "value": _PATH}], "volumeMounts": mounts,
    }  # fmt: skip
    spec = {
        "nodeName": cluster.node, "hostNetwork": True, "hostPID": True, "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": host,
    }  # fmt: skip
    return {"metadata": {"name": "multus"}, "spec": spec}
