"""A real API server behind the interface of the one for tests: requests are noted, faults given, and the rest passed on.

RAILCNI_TEST_KUBECONFIG names its kubeconfig. Every namespace of a test is one of its own there, made when it is first
named, and deleted in the end; the custom resources are made when the server does not know them.

A request with a token comes from an agent or a plugin that has one: it is made as their service account, which has the
rights of conf/kubernetes and no other. Whatever else asks is the administrator.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ipam.stores import http
from ipam.stores.apiserver import kubeconfig
from tests.stores.kubernetes_api import ADDRESSES, KINDS, VERSION, ApiServer, group_of
from tests.stores.kubernetes_core import LEASES, MULTUS
from tests.stores.kubernetes_real_core import RealCore

AGENT, PLUGIN = ("railcni", "railcni"), ("kube-system", "railcni")  # service accounts of conf/kubernetes
VARIABLES = ("RAILCNI_TEST_KUBECONFIG", "RAILCNI_KUBECONFIG")
CRDS = Path(__file__).resolve().parents[2] / "conf/kubernetes/crds"
_RIGHTS = ("rbac.yaml", "serviceaccount.yaml", "agent-rbac.yaml")
_SECONDS = 30.0
_IDLE = 10.0  # seconds after which a server may have closed a connection


def path() -> str:
    """The kubeconfig of the real server; "" when none is given."""
    return next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")


def start() -> ApiServer:
    """The server to test against: the real one if there is one."""
    return Proxy(path()) if path() else ApiServer()


class Proxy(ApiServer):
    """Passes requests on to the server of the kubeconfig at `path`."""

    _numbers = itertools.count()

    def __init__(self, path: str) -> None:
        super().__init__()
        self._access = kubeconfig.load(path)
        self._local = threading.local()
        self._namespaces: dict[str, str] = {}
        self._prefix = f"railcni-test-{os.getpid()}-{next(self._numbers)}"
        self._granted: list[str] = []  # what has no namespace, and is removed in the end
        self._grants = threading.Lock()
        self.core: RealCore = RealCore(self._send, self._real, self._prefix)
        for file in CRDS.glob("*.yaml"):
            document = yaml.safe_load(file.read_text())
            place = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            if self._send("POST", place, document)[0] == 409:  # it may be an older one
                merge = "application/merge-patch+json"
                self._send("PATCH", f"{place}/{document['metadata']['name']}", document, merge)
        deadline = time.monotonic() + _SECONDS
        while any(self._send("GET", f"/apis/{group_of(kind)}/{VERSION}/{kind}?limit=1")[0] != 200 for kind in KINDS):
            assert time.monotonic() < deadline, "the server does not serve the custom resources"
            time.sleep(0.1)

    def close(self) -> None:
        super().close()
        self.core.close()
        for target in self._granted:
            self._send("DELETE", target)
        for name in list(self._namespaces.values()):
            for kind in KINDS:
                self._send("DELETE", f"/apis/{group_of(kind)}/{VERSION}/namespaces/{name}/{kind}")
            self._send("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")  # others list all pods
            self._send("DELETE", f"/api/v1/namespaces/{name}")

    def put(
        self, resource: str, namespace: str, name: str, spec: dict[str, Any], status: Any = None, **metadata: Any
    ) -> None:
        place = self._place(namespace, resource)
        document = {"apiVersion": f"{group_of(resource)}/{VERSION}", "kind": KINDS[resource], "spec": spec}
        if status is not None:
            document["status"] = status
        code, former = self._send("GET", f"{place}/{name}")
        if code == 200:
            document["metadata"] = {"name": name, "resourceVersion": former["metadata"]["resourceVersion"]}
            code, said = self._send("PUT", f"{place}/{name}", document)
        else:
            code, said = self._send("POST", place, document | {"metadata": {"name": name, **metadata}})
        assert code < 300, said

    def remove_pod(self, namespace: str, name: str) -> None:
        self.core.remove_pod(namespace, name)

    def spec(self, resource: str, name: str, namespace: str = "kube-system") -> dict[str, Any] | None:
        status, found = self._send("GET", f"{self._place(namespace, resource)}/{name}")
        return found["spec"] if status == 200 else None

    def status(self, resource: str, name: str, namespace: str = "kube-system") -> Any:
        return self._send("GET", f"{self._place(namespace, resource)}/{name}")[1]["status"]

    def metadata(self, resource: str, name: str, namespace: str = "kube-system") -> dict[str, Any]:
        status, found = self._send("GET", f"{self._place(namespace, resource)}/{name}")
        assert status == 200, found
        return dict(found["metadata"])

    def note(self, resource: str, name: str, noted: dict[str, str], namespace: str = "kube-system") -> None:
        patch = {"metadata": {"labels": noted, "annotations": noted}}
        kind = "application/merge-patch+json"
        status, said = self._send("PATCH", f"{self._place(namespace, resource)}/{name}", patch, kind)
        assert status == 200, said

    def names(self, resource: str) -> list[str]:
        found = [self._send("GET", self._place(ns, resource))[1]["items"] for ns in list(self._namespaces)]
        return sorted(item["metadata"]["name"] for items in found for item in items)

    def remove(self, resource: str, name: str, namespace: str = "kube-system") -> None:
        status, said = self._send("DELETE", f"{self._place(namespace, resource)}/{name}")
        assert status < 300, said

    def _serve(
        self, method: str, parts: list[str], query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, Any]:
        token = (headers.get("Authorization") or "").removeprefix("Bearer ")
        issued = any(token == text for _, text in self.core.tokens)
        with self._as(self._account(*(PLUGIN if issued else AGENT)) if token else ""):
            return self._pass_on(method, parts, query, headers, body)

    def _pass_on(
        self, method: str, parts: list[str], query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, Any]:
        if parts[0] == "api" or parts[:2] in (["apis", LEASES], ["apis", MULTUS]):
            return super()._serve(method, parts, query, headers, body)
        if len(parts) < 6 or parts[5] not in self.resources:
            return 404, "404 page not found\n"
        self._refuse_forbidden(method, parts)
        target = self._place(parts[4], parts[5]) + "".join(f"/{part}" for part in parts[6:])
        if query:
            target += "?" + urllib.parse.urlencode({key: value[0] for key, value in query.items()})
        kind = headers.get("Content-Type") or "application/json"
        return self._send(method, target, json.loads(body) if body else None, kind, headers.get("Accept") or "*/*")

    def _account(self, namespace: str, name: str) -> str:
        """The name of a service account as a user, which has the rights of conf/kubernetes from now on."""
        with self._grants:
            if not self._granted:
                for file in _RIGHTS:
                    for document in yaml.safe_load_all((CRDS.parent / file).read_text()):
                        if document["kind"] != "Namespace":  # those of a test are made when they are named
                            self._grant(document)
                for account in (AGENT, PLUGIN):
                    self._wait_for_rights(f"system:serviceaccount:{self._real(account[0])}:{account[1]}")
        return f"system:serviceaccount:{self._real(namespace)}:{name}"

    def _grant(self, document: dict[str, Any]) -> None:
        kind, metadata, reference = document["kind"], document["metadata"], document.get("roleRef", {})
        for subject in document.get("subjects", ()):
            subject["namespace"] = self._real(subject["namespace"])
        if reference.get("kind") == "ClusterRole":
            reference["name"] = f"{self._prefix}-{reference['name']}"
        target = f"/apis/{document['apiVersion']}" if "/" in document["apiVersion"] else "/api/v1"
        if kind.startswith("Cluster"):
            metadata["name"] = f"{self._prefix}-{metadata['name']}"
            target += f"/{kind.lower()}s"
            self._granted.append(f"{target}/{metadata['name']}")
        else:
            metadata["namespace"] = self._real(metadata["namespace"])
            target += f"/namespaces/{metadata['namespace']}/{kind.lower()}s"
        code, said = self._send("POST", target, document)
        assert code == 201, said

    def _wait_for_rights(self, account: str) -> None:
        """The server learns of a new binding a moment later."""
        asked = (
            {"resource": "pods"},
            {"resource": ADDRESSES, "group": "railcni.io", "namespace": self._real(PLUGIN[0])},
        )
        deadline = time.monotonic() + _SECONDS
        for attributes in asked:
            review = {"spec": {"user": account, "resourceAttributes": {"verb": "get", **attributes}}}
            target = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
            while not self._send("POST", target, review)[1]["status"]["allowed"]:
                assert time.monotonic() < deadline, f"{account} has no right to get {attributes}"
                time.sleep(0.02)

    @contextmanager
    def _as(self, account: str) -> Iterator[None]:
        """What this thread asks is asked by `account`, "" for the administrator."""
        former, self._local.account = getattr(self._local, "account", ""), account
        try:
            yield
        finally:
            self._local.account = former

    def _real(self, namespace: str) -> str:
        self._place(namespace, "")
        return self._namespaces[namespace]

    def _place(self, namespace: str, resource: str) -> str:
        with self._lock:
            if namespace not in self._namespaces:
                name = self._namespaces[namespace] = f"{self._prefix}-{len(self._namespaces)}"
                with self._as(""):
                    status, said = self._send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
                assert status in (201, 409), said
        return f"/apis/{group_of(resource)}/{VERSION}/namespaces/{self._namespaces[namespace]}/{resource}"

    def _send(
        self, method: str, target: str, document: Any = None, kind: str = "application/json", accept: str = "*/*"
    ) -> tuple[int, Any]:
        deadline = time.monotonic() + _SECONDS
        access, connection = self._access, getattr(self._local, "connection", None)
        if connection is None or connection.closed or time.monotonic() - self._local.used > _IDLE:
            _, socket = http.dial([(access.host, access.port)], _SECONDS)
            connection = http.Connection(socket, access.verified_name, access.context(deadline), deadline)
            self._local.connection = connection
        self._local.used = time.monotonic()
        token = access.token(deadline)
        headers = f"Accept: {accept}\r\nContent-Type: {kind}\r\n" + (
            f"Authorization: Bearer {token}\r\n" if token else ""
        )
        account = getattr(self._local, "account", "")
        if account:
            headers += f"Impersonate-User: {account}\r\nImpersonate-Group: system:authenticated\r\n"
        body = b"" if document is None else json.dumps(document).encode()
        status, reply = connection.request(method, access.base + target, headers, body, deadline)
        try:
            return status, json.loads(reply)
        except ValueError:
            return status, reply.decode()
