"""A cluster of one node for the commands of the pages: an API server that kubectl and helm can talk to, and its kubelet.

The objects of the stores are those of tests/stores/kubernetes_api.py, with all that it checks of them. Objects of the other
kinds are kept as they come, without their schemas, and nobody's rights are asked for. tests/docs/kubelet.py does with pods what
a cluster does. Run as a program in a node of the tests: `python -m tests.docs.cluster PORT FOLDER`.
"""

import base64
import copy
import hashlib
import http.client
import json
import os
import signal
import struct
import subprocess
import sys
import time
import uuid
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from tests.docs import protobuf
from tests.docs.kubelet import Kubelet
from tests.stores.kubernetes_api import KINDS, ApiServer, Refusal, apply, group_of

Document = dict[str, Any]


class Kind(NamedTuple):
    group: str
    version: str
    kind: str
    namespaced: bool = True

    @property
    def path(self) -> str:
        return f"apis/{self.group}/{self.version}" if self.group else f"api/{self.version}"

    @property
    def api_version(self) -> str:
        return self.path.partition("/")[2]


RESOURCES = {
    **{name: Kind(group_of(name), "v1alpha1", kind) for name, kind in KINDS.items()},
    "namespaces": Kind("", "v1", "Namespace", False),
    "nodes": Kind("", "v1", "Node", False),
    "pods": Kind("", "v1", "Pod"),
    "configmaps": Kind("", "v1", "ConfigMap"),
    "secrets": Kind("", "v1", "Secret"),
    "serviceaccounts": Kind("", "v1", "ServiceAccount"),
    "events": Kind("", "v1", "Event"),
    "daemonsets": Kind("apps", "v1", "DaemonSet"),
    "deployments": Kind("apps", "v1", "Deployment"),
    "controllerrevisions": Kind("apps", "v1", "ControllerRevision"),
    "cronjobs": Kind("batch", "v1", "CronJob"),
    "leases": Kind("coordination.k8s.io", "v1", "Lease"),
    "resourceclaims": Kind("resource.k8s.io", "v1", "ResourceClaim"),
    "clusterroles": Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", False),
    "clusterrolebindings": Kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", False),
    "validatingadmissionpolicies": Kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", False),
    "validatingadmissionpolicybindings": Kind(
        "admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", False
    ),
    "roles": Kind("rbac.authorization.k8s.io", "v1", "Role"),
    "rolebindings": Kind("rbac.authorization.k8s.io", "v1", "RoleBinding"),
    "customresourcedefinitions": Kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", False),
    "network-attachment-definitions": Kind("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition"),
    "mpijobs": Kind("kubeflow.org", "v2beta1", "MPIJob"),
}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
SCALE = {"name": "deployments/scale", "group": "autoscaling", "version": "v1", "kind": "Scale", "namespaced": True}
_FINISHED = ("Succeeded", "Failed")


class Request(NamedTuple):
    resource: str
    namespace: str
    name: str
    sub: str
    query: dict[str, list[str]]

    def first(self, key: str) -> str:
        return self.query.get(key, [""])[0]


class Cluster(ApiServer):
    """Serves until the process ends; `folder` is for the kubelet's files."""

    kubelet_of: Any = Kubelet

    def __init__(self, port: int, folder: Path) -> None:
        super().__init__(port=port)
        for name in ("default", "kube-system"):
            self.keep("namespaces", "", {"metadata": {"name": name}})
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        self.keep("nodes", "", {"metadata": {"name": "node-1", "labels": labels}, "spec": {}, "status": {}})
        self.kubelet = self.kubelet_of(self, folder)

    # --- objects ---

    def found(self, resource: str) -> list[Document]:
        """All objects of a resource, as they are answered."""
        store = self.objects if resource in KINDS else self.core.objects
        kind = RESOURCES[resource]
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        with self._lock:
            return [head | copy.deepcopy(store[place]) for place in sorted(store) if place[0] == resource]

    def read(self, resource: str, namespace: str, name: str) -> Document | None:
        found = (d["metadata"] for d in self.found(resource))
        at = [m.get("namespace", "") == namespace and m["name"] == name for m in found]
        return self.found(resource)[at.index(True)] if True in at else None

    def keep(self, resource: str, namespace: str, document: Document) -> Document:
        """Write an object as it is, new or changed."""
        with self._lock:
            metadata = document["metadata"]
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            former = self.core.objects.get((resource, namespace, metadata["name"]), {})
            if former.get("spec") != document.get("spec"):
                metadata["generation"] = former.get("metadata", {}).get("generation", 0) + 1
            if resource == "namespaces":
                document["status"] = {"phase": "Active"}
            return self.core._put((resource, namespace, metadata["name"]), document)

    def drop(self, resource: str, namespace: str, name: str) -> None:
        with self._lock:
            self.core.objects.pop((resource, namespace, name), None)

    # --- requests ---

    def _answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any] | None:
        if body.startswith(protobuf.MAGIC):
            body = json.dumps(protobuf.document(body)).encode()
        return super()._answer(method, target, headers, body)

    def _serve(
        self, method: str, parts: list[str], query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, Any]:
        told = self._discovered("/".join(parts))
        if told:
            return 200, told
        request = parsed(parts, query)
        if not request:
            return 404, "404 page not found\n"
        if request.resource in KINDS and (request.name or (request.namespace and method == "POST")):
            return super()._serve(method, parts, query, headers, body)
        if request.sub == "token":
            return super()._serve(method, parts, query, headers, body)
        if request.sub in ("log", "exec"):
            raise self._refused(request) or AssertionError("it streams")
        code, answer = self._of_any_kind(method, request, headers, json.loads(body) if body else {})
        if "as=PartialObjectMetadata" in headers.get("Accept", "") and "items" not in answer:
            answer = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": answer["metadata"]}
        return code, answer

    def _of_any_kind(self, method: str, request: Request, headers: Any, document: Document) -> tuple[int, Document]:
        resource, namespace, name, sub, _ = request
        kind = RESOURCES[resource]
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        if method == "GET" and not name:
            items = [d for d in self.found(resource) if matches(d, request)]
            return 200, {**head, "kind": f"{kind.kind}List", "metadata": {"resourceVersion": "1"}, "items": items}
        if method == "POST":
            metadata = document["metadata"]
            if "generateName" in metadata:
                metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
            if namespace and not self.read("namespaces", "", namespace):
                raise refusal(404, "NotFound", "namespaces", namespace)
            if self.read(resource, namespace, metadata["name"]):
                raise refusal(409, "AlreadyExists", resource, metadata["name"])
            return 201, head | self.keep(resource, namespace, document)
        former = self.read(resource, namespace, name)
        sent = headers.get("Content-Type", "")
        if former is None and method == "PATCH" and sent == "application/apply-patch+yaml":
            return 201, head | self.keep(resource, namespace, document)
        if former is None:
            raise refusal(404, "NotFound", resource, name)
        if method == "DELETE":
            self._delete(request, former)
            return 200, former
        if method in ("PUT", "PATCH"):
            changed = copy.deepcopy(scale(former) if sub == "scale" else former)
            if sent == "application/json-patch+json":
                for operation in document:
                    apply(changed, operation)  # type: ignore[arg-type]
            else:
                changed = document if method == "PUT" else merged(changed, document)
            if sub == "scale":
                former["spec"]["replicas"] = changed["spec"]["replicas"]
                changed = former
            version = document["metadata"].get("resourceVersion") if method == "PUT" and not sub else ""
            if version and version != former["metadata"]["resourceVersion"]:
                raise refusal(409, "Conflict", resource, name)
            former = head | self.keep(resource, namespace, changed)
        return 200, scale(former) if sub == "scale" else former

    def _delete(self, request: Request, former: Document) -> None:
        """Pods end first, and what a controller has made goes with it."""
        resource, namespace, name, _, _ = request
        if resource == "pods":
            former["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.keep(resource, namespace, former)
            return
        self.drop(resource, namespace, name)
        for store, uid in ((self.core.objects, former["metadata"]["uid"]), (self.objects, "")):
            for place in list(store):
                owners = [o["uid"] for o in store[place]["metadata"].get("ownerReferences", ())]
                if (uid and uid in owners) or (resource == "namespaces" and place[1] == name):
                    if place[0] == "pods":
                        self._delete(Request(*place, "", {}), store[place])
                    else:
                        store.pop(place, None)

    # --- what clients ask to learn what there is ---

    def _discovered(self, path: str) -> Document | None:
        """What a client asks first, None for another path. No document has a schema, so a client asks the server to check."""
        groups = {kind.path: kind for kind in RESOURCES.values()}
        if path == "version":
            return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        if path == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "apis":
            found = []
            for kind in groups.values():
                if kind.group:
                    version = {"groupVersion": kind.api_version, "version": kind.version}
                    found.append({"name": kind.group, "versions": [version], "preferredVersion": version})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
        if path == "openapi/v3":
            return {"paths": {at: {"serverRelativeURL": f"/openapi/v3/{at}"} for at in groups}}
        if path.startswith("openapi/v3/"):
            paths = {}
            for name, kind in RESOURCES.items():
                gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
                parameters = [{"name": "fieldValidation", "in": "query"}]
                operation = {"parameters": parameters, "x-kubernetes-group-version-kind": gvk, "responses": {}}
                if path == f"openapi/v3/{kind.path}":
                    paths[f"/{kind.path}/{name}/{{name}}"] = {"patch": operation}
            return {"openapi": "3.0.0", "info": {"title": "tests", "version": "1"}, "paths": paths}
        if path in groups:
            resources: list[Document] = [
                {"name": n, "singularName": k.kind.lower(), "namespaced": k.namespaced, "kind": k.kind, "verbs": VERBS}
                for n, k in RESOURCES.items()
                if k.path == path
            ]
            if path == "apis/apps/v1":
                resources.append(SCALE | {"singularName": "", "verbs": ["get", "patch", "update"]})
            return {"kind": "APIResourceList", "groupVersion": groups[path].api_version, "resources": resources}
        return None

    # --- answers that are more than one document ---

    def streams(self, handler: BaseHTTPRequestHandler) -> bool:
        url = urlsplit(handler.path)
        request = parsed([unquote(part) for part in url.path.strip("/").split("/")], parse_qs(url.query))
        if not request:
            return False
        if request.first("watch") in ("true", "1"):
            self._watch(handler, request)
        elif request.sub == "log":
            if self._refused(request):
                return False
            self._log(handler, request)
        elif request.sub == "exec":
            if self._refused(request):
                return False
            self._exec(handler, request)
        elif request.sub.startswith("proxy/"):
            self._proxy(handler, request)
        else:
            return False
        handler.close_connection = True
        return True

    def _watch(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        """Tell what differs from look to look, until the client goes."""
        begin(handler, "application/json")
        known: dict[str, Document] = {}
        deadline = time.monotonic() + float(request.first("timeoutSeconds") or 300)
        while time.monotonic() < deadline:
            now = {d["metadata"]["uid"]: d for d in self.found(request.resource) if matches(d, request)}
            for uid, document in now.items():
                if (
                    uid not in known
                    or known[uid]["metadata"]["resourceVersion"] != document["metadata"]["resourceVersion"]
                ):
                    self._tell(handler, "MODIFIED" if uid in known else "ADDED", document)
            for uid in known.keys() - now.keys():
                self._tell(handler, "DELETED", known[uid])
            known = now
            time.sleep(0.03)

    def _tell(self, handler: BaseHTTPRequestHandler, kind: str, document: Document) -> None:
        handler.wfile.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")
        handler.wfile.flush()

    def _refused(self, request: Request) -> Refusal | None:
        """The refusal of a log or an exec, as a real server and kubelet word it; None where it is served."""
        pod, name = self.read("pods", request.namespace, request.name), request.first("container")
        if pod is None:
            return refusal(404, "NotFound", "pods", request.name)
        names = [one["name"] for one in pod["spec"]["containers"]]
        if not name and len(names) > 1:
            why = f"a container name must be specified for pod {request.name}, choose one of: [{' '.join(names)}]"
            return Refusal(400, "BadRequest", why)
        name = name or names[0]
        if name not in [*names, *(one["name"] for one in pod["spec"].get("initContainers", ()))]:
            return Refusal(400, "BadRequest", f"container {name} is not valid for pod {request.name}")
        status = pod.get("status", {})
        found = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        state = {one["name"]: one["state"] for one in found}.get(name, {})
        if request.sub == "exec":
            if "running" in state:
                return None
            return Refusal(500, "InternalError", f'unable to upgrade connection: container not found ("{name}")')
        if not (waiting := state.get("waiting")):
            return None
        why = f'container "{name}" in pod "{request.name}" is waiting to start: {waiting["reason"]}'
        return Refusal(400, "BadRequest", why)

    def _log(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        """What a container has said; with `follow` until the pod has ended."""
        while request.first("follow") in ("true", "1"):
            pod = self.read("pods", request.namespace, request.name)
            if pod is None or pod.get("status", {}).get("phase") in _FINISHED:
                break
            time.sleep(0.03)
        begin(handler, "text/plain")
        handler.wfile.write(self.kubelet.log(request.namespace, request.name, request.first("container")))

    def _proxy(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", int(request.name.partition(":")[2]))
        connection.request("GET", request.sub.removeprefix("proxy"))
        answer = connection.getresponse()
        begin(handler, "text/plain", answer.status)
        handler.wfile.write(answer.read())

    def _exec(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        """Run a command in a pod: WebSocket (RFC 6455), with kubectl's channels 1 stdout, 2 stderr and 3 the outcome."""
        digest = hashlib.sha1(f"{handler.headers['Sec-WebSocket-Key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode())
        handler.send_response(101)
        for name, value in (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", base64.b64encode(digest.digest()).decode()),
            ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
        ):
            handler.send_header(name, value)
        handler.end_headers()
        argv = self.kubelet.inside(
            request.namespace, request.name, request.first("container"), request.query["command"]
        )
        given = stdin_of(handler) if request.first("stdin") == "true" else b""
        done = subprocess.run(argv, input=given, capture_output=True)
        causes = {"causes": [{"reason": "ExitCode", "message": str(done.returncode)}]}
        failed = {"status": "Failure", "reason": "NonZeroExitCode", "message": "it failed", "details": causes}
        outcome = json.dumps(failed if done.returncode else {"status": "Success"}).encode()
        for channel, data in ((1, done.stdout), (2, done.stderr), (3, outcome)):
            handler.wfile.write(b"\x82\x7f" + struct.pack(">QB", len(data) + 1, channel) + data)
        handler.wfile.write(b"\x88\x02\x03\xe8")
        handler.wfile.flush()


def stdin_of(handler: BaseHTTPRequestHandler) -> bytes:
    """What kubectl sends on channel 0 before it closes that channel: frames of RFC 6455, protocol v5 of Kubernetes."""
    given = b""
    while True:
        length = handler.rfile.read(2)[1] & 0x7F
        if length > 125:
            length = int.from_bytes(handler.rfile.read(2 if length == 126 else 8), "big")
        mask = handler.rfile.read(4)
        data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(handler.rfile.read(length)))
        if data[:1] == b"\xff":
            return given
        given += data[1:] if data[:1] == b"\0" else b""


def parsed(parts: list[str], query: dict[str, list[str]]) -> Request | None:
    """The object of a path, None when it names none."""
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if not rest or rest[0] not in RESOURCES or not "/".join(parts).startswith(RESOURCES[rest[0]].path):
        return None
    return Request(rest[0], namespace, rest[1] if len(rest) > 1 else "", "/".join(rest[2:]), query)


def matches(document: Document, request: Request) -> bool:
    """Whether an object is in the namespace, and is chosen by the selectors, of a request."""
    metadata = document["metadata"]
    if request.namespace and metadata.get("namespace") != request.namespace:
        return False
    fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata.get("namespace", ""),
        "spec.nodeName": document.get("spec", {}).get("nodeName", ""),
        **{f"involvedObject.{key}": value for key, value in document.get("involvedObject", {}).items()},
    }
    for selector, found in (
        (request.first("fieldSelector"), fields),
        (request.first("labelSelector"), metadata.get("labels", {})),
    ):
        for requirement in filter(None, selector.split(",")):
            key, _, value = requirement.partition("=")
            if found.get(key) != value.removeprefix("="):
                return False
    return True


def merged(former: Any, patch: Any) -> Any:
    """A merge patch (RFC 7396), or a strategic one, whose lists of objects with a name are merged by the name."""
    if isinstance(patch, list) and patch and all(isinstance(one, dict) and "name" in one for one in patch):
        known = {one["name"]: one for one in former or [] if isinstance(one, dict) and "name" in one}
        kept = [one for name, one in known.items() if name not in {p["name"] for p in patch}]
        return [*(merged(known.get(one["name"], {}), one) for one in patch if one.get("$patch") != "delete"), *kept]
    if not isinstance(patch, dict):
        return patch
    former = former if isinstance(former, dict) and patch.get("$patch") != "replace" else {}
    changed = {**former, **{key: merged(former.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in changed.items() if value is not None and not key.startswith("$")}


def scale(document: Document) -> Document:
    metadata = {key: document["metadata"][key] for key in ("name", "namespace", "resourceVersion", "uid")}
    replicas = document["spec"].get("replicas", 1)
    head = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata}
    return {**head, "spec": {"replicas": replicas}, "status": {"replicas": replicas}}


def refusal(code: int, reason: str, resource: str, name: str) -> Refusal:
    said = {"NotFound": "not found", "AlreadyExists": "already exists"}.get(reason, "conflicts")
    return Refusal(code, reason, f'{resource} "{name}" {said}', name=name, kind=resource)


def begin(handler: BaseHTTPRequestHandler, kind: str, code: int = 200) -> None:
    """An answer that ends with the connection."""
    handler.send_response(code)
    handler.send_header("Content-Type", kind)
    handler.send_header("Connection", "close")
    handler.end_headers()


if __name__ == "__main__":
    cluster = Cluster(int(sys.argv[1]), Path(sys.argv[2]))
    signal.signal(signal.SIGTERM, lambda *_: (cluster.kubelet.end(), os._exit(0)))
    while True:
        signal.pause()
