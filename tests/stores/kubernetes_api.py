"""An API server for tests: the custom resources of whereabouts over HTTP or TLS on loopback, as a real one serves them.

It keeps resource versions, refuses what conflicts (409; 422 when the test of a JSON patch fails), heeds preconditions,
prunes what the schema does not name, lists in pages, and refuses objects that etcd would not take. `faults` are answers
that it gives in place of its own; `seen` is what it was asked.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import ssl
import sys
import threading
import urllib.parse
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests import http_server, served
from tests.stores.kubernetes_core import DRA, LEASES, MULTUS, NADS, OF_DRA, Core, Exists, Invalid, Missing, Unfit

if TYPE_CHECKING:
    import pytest

GROUP, VERSION = "whereabouts.cni.cncf.io", "v1alpha1"
KINDS = {
    "ippools": "IPPool",
    "overlappingrangeipreservations": "OverlappingRangeIPReservation",
    "nodeslicepools": "NodeSlicePool",
    "addressleases": "AddressLease",
}
ADDRESSES = "addressleases"
LIMIT = 1536 << 10
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def group_of(resource: str) -> str:
    """The API group of a custom resource."""
    return "railcni.io" if resource == ADDRESSES else GROUP


def _schema(resource: str, part: str = "spec") -> dict[str, Any]:
    """What the definition of a resource says of `spec` or `status`."""
    path = Path(__file__).resolve().parents[2] / f"conf/kubernetes/crds/{resource}.yaml"
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


SPECS = {resource: _schema(resource) for resource in KINDS}
STATUS = _schema("nodeslicepools", "status")
KEEPS = "x-kubernetes-preserve-unknown-fields"
_ALLOCATION = SPECS["ippools"]["properties"]["allocations"]["additionalProperties"]


def outdate(patch: pytest.MonkeyPatch) -> None:
    """Let the definition of IPPool be that of a whereabouts that knew no ifname."""
    patch.delitem(_ALLOCATION["properties"], "ifname")
    patch.delitem(_ALLOCATION, KEEPS)


Answer = tuple[int, dict[str, Any]]
DROP_BEFORE, DROP_AFTER = "drop before", "drop after"  # the connection is closed, before or after the request is served
DROP_LATE = "drop late"  # the connection is closed, and the request is served by `catch_up`
Fault = Answer | tuple[int, str, tuple[str, str]] | str | Callable[[], object]  # with one more header


class Refusal(Exception):
    """A Status that is no success."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        self.code = code
        self.document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}, "code": code}
        self.document |= {"reason": reason, "message": message, "details": details}


def _status(code: int, reason: str, message: str, **details: Any) -> Answer:
    return code, Refusal(code, reason, message, **details).document


Place = tuple[str, str, str]  # resource, namespace, name


class Objects(dict[Place, dict[str, Any]]):
    """The objects, and which of them have a label: a real server's cache finds those fast enough."""

    def __init__(self) -> None:
        super().__init__()
        self._labelled: dict[tuple[str, str, str, str], set[str]] = {}

    def __setitem__(self, place: Place, document: dict[str, Any]) -> None:
        if place in self:
            del self[place]
        for key, value in document["metadata"].get("labels", {}).items():
            self._labelled.setdefault((*place[:2], key, value), set()).add(place[2])
        super().__setitem__(place, document)

    def __delitem__(self, place: Place) -> None:
        for key, value in self[place]["metadata"].get("labels", {}).items():
            self._labelled[*place[:2], key, value].discard(place[2])
        super().__delitem__(place)

    def named(self, resource: str, namespace: str, selector: str) -> set[str]:
        """The names of the objects that have all labels of `selector`, KEY=VALUE,…"""
        wanted = [requirement.partition("=") for requirement in selector.split(",") if requirement]
        if not wanted:
            return {name for kind, ns, name in self if (kind, ns) == (resource, namespace)}
        return set.intersection(
            *(set(self._labelled.get((resource, namespace, key, value), ())) for key, _, value in wanted)
        )


class ApiServer:
    """`url` is where it listens. `tokens`: who may come in, anybody when empty, but for those `refused`. `forbidden`: (verb,
    resource) pairs.

    `faults` is asked for each request: (method, resource, number of the request) to a Fault, or None for none. `lag` keeps the
    watch cache as it is now.
    """

    def __init__(self, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.objects = Objects()
        self.resources = set(KINDS)
        self.tokens: set[str] = set()
        self.refused: set[str] = set()
        self.forbidden: set[tuple[str, str]] = set()
        self.absent: set[str] = set()  # namespaces that there are not
        self.ending: set[str] = set()  # namespaces that are being deleted
        self.agents: set[str] = set()  # the User-Agent of every request
        self.faults: Callable[[str, str, int], Fault | None] = lambda method, resource, number: None
        self.seen: list[tuple[str, str, Any]] = []
        self.queries: list[tuple[str, dict[str, list[str]]]] = []  # the path and query of each request that has one
        self.core = Core()
        self.dra = {*OF_DRA}  # of the resources of DRA those that the server has
        self.asked: set[tuple[str, str, str, str]] = set()  # verb, API group, resource, namespace ("" for all)
        self._late: list[tuple[str, list[str], dict[str, list[str]], Any, bytes]] = []
        self._cache: tuple[int, Objects] | None = None  # its version, and what it has
        self._versions = itertools.count(1000)
        self._lock = threading.RLock()
        outer = self

        class Handler(http_server.Handler):
            def answer(self) -> None:
                if outer.streams(self):
                    return
                answer = outer._answer(self.command, self.path, self.headers, self.body())
                if answer is None:
                    self.close_connection = True
                    return
                code, document, *more = answer
                if isinstance(document, str):
                    self.reply(code, document.encode(), "text/plain", *more)
                else:
                    self.reply(code, json.dumps(document).encode(), "application/json", *more)

        self._server = http_server.Server(Handler, port)
        if context:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_port
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self._server.__enter__()

    def close(self) -> None:
        self._server.close()

    def kubeconfig(self, directory: Path, namespace: str = "kube-system", user: dict[str, Any] | None = None) -> str:
        """The path of a kubeconfig with the members that whereabouts' installer writes."""
        path = directory / "whereabouts.kubeconfig"
        context = {"cluster": "local", "user": "whereabouts", "namespace": namespace}
        document = {
            "clusters": [{"name": "local", "cluster": {"server": self.url}}],
            "users": [{"name": "whereabouts", "user": user or {}}],
            "contexts": [{"name": "whereabouts-context", "context": context}],
            "current-context": "whereabouts-context",
        }
        path.write_text(json.dumps(document))
        return str(path)

    # --- for tests ---

    def put(
        self, resource: str, namespace: str, name: str, spec: dict[str, Any], status: Any = None, **metadata: Any
    ) -> None:
        """Write an object as Go or etcdctl might, past the schema."""
        document = {"apiVersion": f"{group_of(resource)}/{VERSION}", "kind": KINDS[resource], "spec": spec}
        document |= {} if status is None else {"status": status}
        with self._lock:
            former = self.objects.get((resource, namespace, name), {}).get("metadata")
            metadata = {**(former or self._metadata(namespace, name)), **metadata}
            metadata["resourceVersion"] = str(next(self._versions))
            self.objects[resource, namespace, name] = {**document, "metadata": metadata}

    def add_pod(self, namespace: str, name: str, **more: str) -> str:
        """The uid of a new pod; `more` as Core.add_pod says."""
        with self._lock:
            return self.core.add_pod(namespace, name, **more)

    def remove_pod(self, namespace: str, name: str) -> None:
        with self._lock:
            del self.core.objects["pods", namespace, name]

    def spec(self, resource: str, name: str, namespace: str = "kube-system") -> dict[str, Any] | None:
        with self._lock:
            found = self.objects.get((resource, namespace, name))
            return copy.deepcopy(found["spec"]) if found else None

    def status(self, resource: str, name: str, namespace: str = "kube-system") -> Any:
        with self._lock:
            return copy.deepcopy(self.objects[resource, namespace, name]["status"])

    def metadata(self, resource: str, name: str, namespace: str = "kube-system") -> dict[str, Any]:
        with self._lock:
            return copy.deepcopy(self.objects[resource, namespace, name]["metadata"])

    def note(self, resource: str, name: str, noted: dict[str, str], namespace: str = "kube-system") -> None:
        """Add labels and annotations to an object."""
        with self._lock:
            document = copy.deepcopy(self.objects[resource, namespace, name])
            metadata = document["metadata"]
            for key in ("labels", "annotations"):
                metadata[key] = {**metadata.get(key, {}), **noted}
            metadata["resourceVersion"] = str(next(self._versions))
            self.objects[resource, namespace, name] = document

    def names(self, resource: str) -> list[str]:
        with self._lock:
            return sorted(name for kind, _, name in self.objects if kind == resource)

    def remove(self, resource: str, name: str, namespace: str = "kube-system") -> None:
        with self._lock:
            del self.objects[resource, namespace, name]

    def lag(self) -> None:
        """From now on reads of the watch cache (resourceVersion=0, or a version) see nothing newer."""
        served.note_unwell()
        with self._lock:
            cache = Objects()
            for place, document in self.objects.items():
                cache[place] = copy.deepcopy(document)
            self._cache = next(self._versions), cache

    def catch_up(self) -> list[int]:
        """Serve the requests that DROP_LATE has kept; their codes."""
        codes = []
        with self._lock:
            while self._late:
                try:
                    codes.append(self._serve(*self._late.pop(0))[0])
                except Refusal as refusal:
                    codes.append(refusal.code)
        return codes

    def _seen_by(self, query: dict[str, list[str]]) -> Objects:
        """What a read with this query sees."""
        version = int(query.get("resourceVersion", ["-1"])[0])
        if version < 0 or self._cache is None:
            return self.objects
        current, objects = self._cache
        if version > current:
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            message = f"Timeout: Too large resource version: {version}, current: {current}"
            raise Refusal(504, "Timeout", message, causes=[cause], retryAfterSeconds=1)
        return objects

    # --- one request ---

    def streams(self, handler: BaseHTTPRequestHandler) -> bool:
        """Whether the answer is no single document, and has been given: tests/docs/cluster.py has such ones."""
        return False

    def _answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any] | None:
        url = urllib.parse.urlsplit(target)
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        place = parts[2 if parts[0] == "api" else 3 :]
        place = place[2:] if place[:1] == ["namespaces"] else place
        resource = place[0] if place else ""
        if resource in KINDS:
            served.note()
        with self._lock:
            self.agents.add(headers.get("User-Agent", ""))
            self.seen.append((method, "/".join(place), json.loads(body) if body else None))
            if url.query:
                self.queries.append(("/".join(place), urllib.parse.parse_qs(url.query)))
            number = len(self.seen)
        fault = self.faults(method, resource, number)
        if callable(fault):
            fault = fault()
        if fault == DROP_LATE:
            self._late.append((method, parts, urllib.parse.parse_qs(url.query), headers, body))
        if fault in (DROP_BEFORE, DROP_LATE):
            return None
        if isinstance(fault, tuple):
            return fault
        try:
            self._authenticate(headers)
            with self._lock:
                answer = self._serve(method, parts, urllib.parse.parse_qs(url.query), headers, body)
        except Refusal as refusal:
            answer = refusal.code, refusal.document
        return None if fault == DROP_AFTER else answer

    def _authenticate(self, headers: Any) -> None:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        if token in self.refused or (self.tokens and token not in self.tokens):
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def _serve(
        self, method: str, parts: list[str], query: dict[str, list[str]], headers: Any, body: bytes
    ) -> tuple[int, Any]:
        answer = self._serve_core(method, parts, query, headers, body)
        if answer:
            return answer
        if parts[-1] == "selfsubjectaccessreviews":
            asked = json.loads(body)["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.forbidden
            return 201, {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}
        if parts[:3] == ["api", "v1", "namespaces"] or parts[:2] == ["apis", "apiextensions.k8s.io"]:
            return 201, {}  # every namespace and definition is there
        shown = parts[3] if len(parts) == 4 else parts[5] if len(parts) > 5 else ""
        if shown not in self.resources or parts[:3] != ["apis", group_of(shown), VERSION]:
            return 404, "404 page not found\n"
        if len(parts) == 4:
            return 200, self._everywhere(shown, query)
        namespace, resource, name = parts[4], parts[5], parts[6] if len(parts) > 6 else ""
        group = group_of(resource)
        where = f'{resource}.{group} "{name}"'
        self._refuse_forbidden(method, parts)
        if method == "POST":
            made = self._create(resource, namespace, json.loads(body), "dryRun" not in query)
            return 201, _brief(made) if "as=PartialObjectMetadata" in headers.get("Accept", "") else made
        if not name:
            brief = "as=PartialObjectMetadataList" in headers.get("Accept", "")
            listed = self._list(resource, namespace, query, brief)
            if "as=Table" in headers.get("Accept", ""):
                rows = [{"cells": [item["metadata"]["name"]]} for item in listed.pop("items")]
                listed |= {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "rows": rows}
            return 200, listed
        found = self._seen_by(query).get((resource, namespace, name))
        if found is None:
            raise Refusal(404, "NotFound", f"{where} not found", name=name, group=group, kind=resource)
        if method == "DELETE":
            _check_preconditions(body, found["metadata"], where, name, resource)
            del self.objects[resource, namespace, name]
            details = {"name": name, "group": group, "kind": resource, "uid": found["metadata"]["uid"]}
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}
        if method == "PUT":
            document = json.loads(body)
            if document["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                message = "the object has been modified; please apply your changes to the latest version and try again"
                raise Refusal(409, "Conflict", f"Operation cannot be fulfilled on {where}: {message}", name=name)
            operations = [{"op": "replace", "path": "/spec", "value": document["spec"]}]
            return 200, copy.deepcopy(self._patch(resource, namespace, name, found, operations))
        if method == "PATCH":
            if headers.get("Content-Type") != "application/json-patch+json":
                raise Refusal(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
            found = self._patch(resource, namespace, name, found, json.loads(body))
        is_brief = "as=PartialObjectMetadata" in headers.get("Accept", "")
        return 200, copy.deepcopy(_brief(found) if is_brief else found)

    def _serve_core(
        self, method: str, parts: list[str], query: dict[str, list[str]], headers: Any, body: bytes
    ) -> Answer | None:
        """The answer for a resource of Kubernetes itself, else None."""
        if parts[:2] not in (["api", "v1"], ["apis", LEASES], ["apis", DRA], ["apis", MULTUS]):
            return None
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        resource, name, sub = (*rest, "", "", "")[:3]
        if resource not in ("pods", "nodes", "events", "leases", "serviceaccounts", "configmaps", NADS, *OF_DRA):
            return None
        if parts[1] == DRA and (parts[2] != "v1" or resource not in self.dra):
            return 404, "404 page not found\n"
        if resource == NADS and not self.core.named(NADS):
            return 404, "404 page not found\n"
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, "")
        verb = verb or ("get" if name else "list")
        shown = f"{resource}/{sub}" if sub else resource
        self.asked.add((verb, parts[1] if parts[0] == "apis" else "", shown, namespace))
        if shown == "resourceclaims/status":  # Kubernetes asks for a second right of the writer of `devices`
            self.asked.add((f"associated-node:{verb}", DRA, "resourceclaims/driver", namespace))
        if (verb, shown) in self.forbidden:
            message = f'{shown} "{name}" is forbidden: User "u" cannot {verb} resource "{shown}"'
            raise Refusal(403, "Forbidden", message, name=name)
        try:
            if verb == "list":
                return 200, self.core.list(resource, namespace, query)
            if sub == "token":
                return 201, self.core.token(name, json.loads(body))
            if verb == "create":
                return 201, self.core.create(resource, namespace, json.loads(body))
            if verb == "update":
                return 200, self.core.replace((resource, namespace, name), json.loads(body))
            if verb == "patch":
                return 200, self.core.patch((resource, namespace, name), json.loads(body), apply)
            found = self.core.get((resource, namespace, name))
            if verb == "delete":
                _check_preconditions(body, found["metadata"], f"{resource} {name}", name, resource)
                self.core.delete((resource, namespace, name), json.loads(body) if body else None)
        except Missing:
            raise Refusal(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource) from None
        except Exists:
            raise Refusal(409, "Conflict", f'{resource} "{name}" conflicts', name=name, kind=resource) from None
        except Unfit:
            raise _unfit() from None
        except Invalid as fault:
            raise Refusal(
                422, "Invalid", f'{resource} "{name}" is invalid: {fault}', name=name, kind=resource
            ) from None
        if "as=PartialObjectMetadata" in headers.get("Accept", ""):
            return 200, _brief(found)
        return 200, found

    def _refuse_forbidden(self, method: str, parts: list[str]) -> None:
        namespace, resource, name = parts[4], parts[5], parts[6] if len(parts) > 6 else ""
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(method, "get" if name else "list")
        group = group_of(resource)
        self.asked.add((verb, group, resource, namespace))
        if (verb, resource) in self.forbidden:
            message = (
                f'{resource}.{group} is forbidden: User "u" cannot {verb} resource "{resource}" in API group "{group}"'
            )
            raise Refusal(403, "Forbidden", f'{message} in the namespace "{namespace}"', name=name, kind=resource)
        if method == "POST" and namespace in self.absent:
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found', name=namespace, kind="namespaces")
        if method == "POST" and namespace in self.ending:
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise Refusal(403, "Forbidden", f"{resource}.{group} is forbidden: {message}", kind=resource)

    def _create(self, resource: str, namespace: str, document: dict[str, Any], keep: bool = True) -> dict[str, Any]:
        metadata = document.get("metadata") or {}
        name = metadata.get("name") or ""
        group = group_of(resource)
        where = f'{resource}.{group} "{name}"'
        if not _NAME.fullmatch(name) or len(name) > 253:
            raise Refusal(
                422, "Invalid", f"{KINDS[resource]}.{group} {name!r} is invalid: metadata.name: a lowercase RFC 1123"
            )
        self._refuse_labels(metadata)
        if (resource, namespace, name) in self.objects:
            raise Refusal(409, "AlreadyExists", f"{where} already exists", name=name, group=group, kind=resource)
        document = self._valid(resource, document)
        document["metadata"] = {**self._metadata(namespace, name), **metadata}
        document["metadata"]["managedFields"] = [{"manager": "test", "operation": "Update"}]
        if keep:
            self.objects[resource, namespace, name] = document
        return copy.deepcopy(document)

    def _refuse_labels(self, metadata: dict[str, Any]) -> None:
        for value in metadata.get("labels", {}).values():
            if len(value) > 63 or not _LABEL.fullmatch(value):
                raise Refusal(422, "Invalid", f"metadata.labels: Invalid value: {value!r}: a valid label must be ...")

    def _everywhere(self, resource: str, query: dict[str, list[str]]) -> dict[str, Any]:
        """The objects in all namespaces, of the name that a field selector has, if it is there."""
        if ("list", f"{resource} in all namespaces") in self.forbidden:
            raise Refusal(403, "Forbidden", f'User "u" cannot list resource "{resource}" at the cluster scope')
        name = query.get("fieldSelector", [""])[0].removeprefix("metadata.name=")
        chosen = [place for place in self.objects if place[0] == resource and name in ("", place[2])]
        return {"items": [copy.deepcopy(self.objects[place]) for place in chosen]}

    def _list(self, resource: str, namespace: str, query: dict[str, list[str]], brief: bool) -> dict[str, Any]:
        after = query.get("continue", [""])[0]
        cached = query.get("resourceVersion") == ["0"]  # then a real server's cache answers with all that it has
        limit = None if cached else int(query.get("limit", ["0"])[0]) or None
        objects = self._seen_by(query)
        chosen = objects.named(resource, namespace, query.get("labelSelector", [""])[0])
        names = sorted(name for name in chosen if name > after)
        page = names[:limit]
        metadata: dict[str, Any] = {"resourceVersion": "1"}
        if len(page) < len(names):
            metadata |= {"continue": page[-1], "remainingItemCount": len(names) - len(page)}
        items = [objects[resource, namespace, n] for n in page]
        if brief:
            kind, version = "PartialObjectMetadata", "meta.k8s.io/v1"
            items = [{"kind": kind, "apiVersion": version, "metadata": item["metadata"]} for item in items]
        else:
            kind, version = KINDS[resource], f"{group_of(resource)}/{VERSION}"
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}

    def _patch(
        self, resource: str, namespace: str, name: str, found: dict[str, Any], operations: list[dict[str, Any]]
    ) -> dict[str, Any]:
        changed = copy.deepcopy(found)
        try:
            for operation in operations:
                apply(changed, operation)
        except (KeyError, ValueError, TypeError):
            raise _unfit() from None
        changed = self._valid(resource, changed)
        self._refuse_labels(changed["metadata"])
        if changed["metadata"].get("managedFields") == [{}]:  # then nothing is tracked any more
            del changed["metadata"]["managedFields"]
        if changed["metadata"]["name"] != name or changed["metadata"]["uid"] != found["metadata"]["uid"]:
            raise Refusal(422, "Invalid", "metadata.uid: field is immutable")
        if changed != found:
            changed["metadata"]["resourceVersion"] = str(next(self._versions))
            self.objects[resource, namespace, name] = changed
        return changed

    def _valid(self, resource: str, document: dict[str, Any]) -> dict[str, Any]:
        pruned = {key: document[key] for key in ("apiVersion", "kind", "metadata") if key in document}
        pruned["spec"] = _prune(document.get("spec"), SPECS[resource], "spec", resource)
        if "status" in document and resource == "nodeslicepools":
            pruned["status"] = _prune(document["status"], STATUS, "status", resource)
        if len(json.dumps(pruned)) > LIMIT:
            raise Refusal(500, "", "etcdserver: request is too large")
        return pruned

    def _metadata(self, namespace: str, name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()), "generation": 1}
        return metadata | {"resourceVersion": str(next(self._versions)), "creationTimestamp": "2026-01-01T00:00:00Z"}


def _brief(document: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": document["metadata"]}


def _unfit() -> Refusal:
    """What is said to a patch that does not apply."""
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request")


def apply(document: Any, operation: dict[str, Any]) -> None:
    """One operation of a JSON patch (RFC 6902) on `document`; a test for null also holds where nothing is."""
    *parents, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
    kind = operation["op"]
    for part in parents:
        document = document[part] if isinstance(document, dict) else document[int(part)]
    if not isinstance(document, dict):
        raise TypeError(f"{operation['path']} is not in an object")
    if kind == "test":
        if document.get(last) != operation.get("value"):
            raise ValueError(f"testing value {operation['path']} failed: test failed")
    elif kind == "add":
        document[last] = operation["value"]
    elif last not in document:
        raise KeyError(f"{kind} operation does not apply: doc is missing key: {operation['path']}")
    elif kind == "replace":
        document[last] = operation["value"]
    elif kind == "remove":
        del document[last]
    else:
        raise ValueError(f"unexpected kind: {kind}")


def _prune(value: Any, schema: dict[str, Any], path: str, resource: str) -> Any:
    """`value` without what the schema does not name; Refusal for what it does not allow."""

    def refuse(why: str) -> Refusal:
        return Refusal(422, "Invalid", f"{KINDS[resource]}.{group_of(resource)} is invalid: {path}: {why}")

    kind = schema.get("type")
    if kind == "string":
        if not isinstance(value, str):
            raise refuse(f'must be of type string: "{value}"')
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            raise refuse("length")
        if not re.search(schema.get("pattern", ""), value):
            raise refuse(f"should match {schema['pattern']!r}")
        if value not in schema.get("enum", [value]):
            raise refuse(f'Unsupported value: "{value}"')
        return value
    if kind == "integer":
        if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 63) <= value < 1 << 63:
            raise refuse("must be of type integer")
        if value < schema.get("minimum", value):
            raise refuse(f"should be greater than or equal to {schema['minimum']}")
        return value
    if "items" in schema and isinstance(value, list):
        return [_prune(inner, schema["items"], f"{path}[{i}]", resource) for i, inner in enumerate(value)]
    if not isinstance(value, dict):
        raise refuse("must be of type object")
    if each := schema.get("additionalProperties"):
        return {key: _prune(inner, each, f"{path}.{key}", resource) for key, inner in value.items()}
    for key in schema.get("required", ()):
        if key not in value:
            raise Refusal(
                422, "Invalid", f"{KINDS[resource]}.{group_of(resource)} is invalid: {path}.{key}: Required value"
            )
    known = schema["properties"]
    kept = {key: inner for key, inner in value.items() if schema.get(KEEPS) and key not in known}
    named = {key: _prune(inner, known[key], f"{path}.{key}", resource) for key, inner in value.items() if key in known}
    return named | kept


def _check_preconditions(body: bytes, metadata: dict[str, Any], where: str, name: str, kind: str) -> None:
    """Refuse a DELETE of another object or version than `body` names."""
    preconditions = (json.loads(body) if body else {}).get("preconditions") or {}
    for key, what in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, there = preconditions.get(key, metadata[key]), metadata[key]
        if wanted != there:
            said = f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {there}"
            raise Refusal(409, "Conflict", f"Operation cannot be fulfilled on {where}: {said}", name=name, kind=kind)


if __name__ == "__main__":  # a server for executables, until it is killed
    ApiServer(port=int(sys.argv[1]))
    threading.Event().wait()
