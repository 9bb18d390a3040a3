"""Requests to an API server: one connection for all of a call, credentials, and attempts.

A request that changes nothing is repeated within its time, whatever became of it. One that changes something is
repeated only when the server says that it has not carried it out (429, and 503 with Retry-After); when that is open,
Open is raised, and the caller reads again.
"""

from __future__ import annotations

import errno
import posix
import time
from time import monotonic

from cni.spec import codec
from cni.spec.errors import CniError, InvalidConfig
from ipam.stores import http, kubeconfig
from ipam.stores.base import Unreachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ipam.stores.kubeconfig import Access

GROUP = "whereabouts.cni.cncf.io"
ADDRESS_GROUP = "railcni.io"
VERSION = "v1alpha1"
ADDRESSES = "addressleases"  # of ADDRESS_GROUP
POOLS, RESERVATIONS, SLICES, PODS = "ippools", "overlappingrangeipreservations", "nodeslicepools", "pods"
JSON_PATCH = "application/json-patch+json"
BRIEF = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"  # of the object, the metadata
BRIEF_LIST = BRIEF.replace("Metadata;", "MetadataList;")

_STATIC = "kubernetes.io/config.mirror"  # on the mirror of a static pod: the uid that its kubelet gave it
_UNWARNED = "fieldValidation=Ignore"  # no list of the members that are pruned: a tenth of the time of a patch

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds
_RETRY_AFTER_LIMIT = 10.0  # seconds: a server may ask for more
_ATTEMPT_SECONDS = 10.0  # for one reply
_CONNECT_SECONDS = 1.0  # ahead of the first request, which has all its time for it once more
_PAGE = 500  # objects in one reply of a list
_BRIEF_PAGE = 5000  # of a list of metadata
_PATHS = {PODS: "api/v1", ADDRESSES: f"apis/{ADDRESS_GROUP}/{VERSION}"}
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
RIGHTS = {
    ADDRESSES: "get list create patch delete",
    POOLS: "get list create patch",
    RESERVATIONS: "get list create patch delete",
    SLICES: "get patch",
    PODS: "get",
}
"""The verbs that are used: of pods in every namespace, of the rest in the context's."""


def group_of(resource: str) -> str:
    """The API group of a resource; "" for one of Kubernetes' core."""
    path = _PATHS.get(resource) or f"apis/{GROUP}/{VERSION}"
    return path.split("/")[1] if path.startswith("apis/") else ""


class Open(Unreachable):
    """A request was sent and no answer came: whether it was carried out is open."""


class Forbidden(InvalidConfig):
    """The credentials do not allow a request."""


class Conflict(Exception):
    """The object is not as the request supposes: it has changed, is there already, or a test of the patch failed."""


class Gone(Exception):
    """There is no such object."""


class TooLarge(Exception):
    """The server takes no object of this size."""


class Api:
    """The API server of the kubeconfig at `path`, "" for the service account of the pod that we run in.

    `seconds` bound each request, with all its attempts, and none takes longer than until `deadline` (time.monotonic).
    Nothing is read before it is needed.
    """

    __slots__ = ("_access", "_connection", "_context", "_path", "_token", "deadline", "requests", "seconds")

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._access: Access | None = None
        self._connection: http.Connection | None = None
        self._context: Any = None
        self._token: str | None = None
        self.requests = 0  # made so far
        self.seconds = seconds
        self.deadline = float("inf")

    @property
    def access(self) -> Access:
        """Where the server is; InvalidConfig when the kubeconfig cannot be used."""
        if self._access is None:
            self._access = kubeconfig.load(self._path) if self._path else kubeconfig.in_cluster(posix.environ)
        return self._access

    def __str__(self) -> str:
        return f"the API server {self.access}"

    def get(self, resource: str, name: str, query: str = "") -> tuple[dict[str, Any], int]:
        """(the object, the size of its JSON in bytes); Gone."""
        body = self._call("GET", resource, name, query)
        return self._object(body), len(body)

    def list_all(
        self, resource: str, labels: str = "", brief: bool = False, recent: bool = False
    ) -> list[dict[str, Any]]:
        """All objects of `resource` in the namespace that have `labels`, a selector; read in pages.

        `brief`: their metadata alone. `recent`: as the server's cache has them, which may be a moment old.
        """
        accept = BRIEF_LIST if brief else ""
        chosen = f"limit={_BRIEF_PAGE if brief else _PAGE}"
        if labels:
            chosen += f"&labelSelector={_escaped(labels)}"
        if recent:
            chosen += "&resourceVersion=0"
        found: list[dict[str, Any]] = []
        following = ""
        while True:
            query = (
                chosen
                if not following
                else chosen.replace("&resourceVersion=0", "") + f"&continue={_escaped(following)}"
            )
            try:
                page = self._object(self._call("GET", resource, "", query, accept=accept))
            except Expired:  # the snapshot that the pages are of is gone
                found, following = [], ""
                continue
            found += page.get("items") or []
            following = (page.get("metadata") or {}).get("continue") or ""
            if not following:
                return found

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """The metadata of a pod; Gone."""
        return self._object(self._call("GET", PODS, name, namespace=namespace)).get("metadata") or {}

    def pod_uid(self, namespace: str, name: str) -> str:
        """The uid of a pod as its runtime knows it, "" when there is none of the name.

        A static pod has another there than in the API, where its annotation tells it.
        """
        try:
            return uid_of(self.pod(namespace, name))
        except Gone:
            return ""

    def create(self, resource: str, document: dict[str, Any]) -> dict[str, Any]:
        """The new object as the server has it; Conflict when there is one of its name. Open."""
        return self._object(self._call("POST", resource, "", "", codec.dumps(document).encode()))

    def try_create(self, resource: str, document: dict[str, Any]) -> dict[str, Any]:
        """As `create`, but the server keeps nothing: {} where there is one of its name. CniError when none could be made."""
        try:
            return self._object(self._call("POST", resource, "", "dryRun=All", codec.dumps(document).encode()))
        except Conflict:
            return {}

    def patch(self, resource: str, name: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
        """The metadata, at least, of the object changed by a JSON patch; Conflict when a test fails. Gone, Open."""
        return self._object(self._call("PATCH", resource, name, _UNWARNED, codec.dumps(operations).encode()))

    def delete(self, resource: str, name: str, uid: str, version: str = "") -> None:
        """Delete the object if it still is that of `uid`, and as it was in `version` if that is given; Conflict when it
        is not. Gone, Open."""
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        self._call("DELETE", resource, name, "", codec.dumps(options).encode())

    def connect(self) -> None:
        """Be connected, if the server can be reached now: a request is what tells that it cannot."""
        try:
            self._connected(monotonic() + min(self.seconds, _CONNECT_SECONDS))
        except _Failed:
            pass

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    # --- one request ---

    def _call(
        self,
        method: str,
        resource: str,
        name: str,
        query: str = "",
        body: bytes = b"",
        namespace: str = "",
        accept: str = "",
    ) -> bytes:
        deadline = min(monotonic() + self.seconds, self.deadline)
        where = f"{resource}/{name}" if name else resource
        group = _PATHS.get(resource) or f"apis/{GROUP}/{VERSION}"
        target = f"{self.access.base}/{group}/namespaces/{_escaped(namespace or self.access.namespace)}/{resource}"
        target += (f"/{_escaped(name)}" if name else "") + (f"?{query}" if query else "")
        changes = method != "GET"
        accept = accept or (BRIEF if method == "PATCH" or resource == PODS else "application/json")
        pause, asked, renewed = _FIRST_PAUSE, 0.0, False
        while True:
            try:
                status, reply = self._attempt(method, target, body, accept, deadline)
                failure: CniError | None = None
            except _Failed as failed:
                failure = failed.failure
                if changes and failed.sent:
                    raise Open(f"{failure.msg} ({VERBS[method]} {where})") from None
            if failure is None:
                if status < 300:
                    return reply
                if status == 401 and not renewed and self.access.renews():
                    renewed, self._token, self._context = True, None, None
                    self.close()
                    continue
                from ipam.stores import kubernetes_refusals

                failure, asked = kubernetes_refusals.read(self, status, reply, method, resource, name)
                if self._connection:  # what answers for the server when it has too much to do sends no Status
                    asked = max(asked, self._connection.retry_after)
            wait = max(pause / 2, min(asked, _RETRY_AFTER_LIMIT)) + pause * posix.urandom(1)[0] / 256
            if monotonic() + wait > deadline:
                raise failure
            time.sleep(wait)
            pause, asked = min(2 * pause, _LONGEST_PAUSE), 0.0

    def _attempt(self, method: str, target: str, body: bytes, accept: str, deadline: float) -> tuple[int, bytes]:
        while True:
            connection = self._connected(deadline)
            if self._token is None:
                self._token = self.access.token(deadline)
            headers = f"Accept: {accept}\r\n"
            if self._token:
                headers += f"Authorization: Bearer {self._token}\r\n"
            if body:
                headers += f"Content-Type: {JSON_PATCH if method == 'PATCH' else 'application/json'}\r\n"
            self.requests += 1
            try:
                limit = max(min(deadline, monotonic() + _ATTEMPT_SECONDS), monotonic() + 0.1)
                return connection.request(method, target, headers, body, limit)
            except http.Untrusted as fault:
                raise self._untrusted(fault) from None
            except http.Lost as fault:
                self._connection = None
                said = f"{self} has not answered: {fault.strerror}"
                if fault.errno == errno.ECONNRESET and not connection.reused and not self.access.tls:
                    said += " (does it want TLS, https://?)"
                raise _Failed(
                    Unreachable(f"{said}. See that it is well and can be reached from this node"), True
                ) from None

    def _connected(self, deadline: float) -> http.Connection:
        if self._connection and not self._connection.closed:
            return self._connection
        access = self.access
        if self._context is None:
            self._context = access.context(deadline)
        try:
            _, socket = http.dial([(access.host, access.port)], max(0.1, deadline - monotonic()))
        except http.Refused as fault:
            raise _Failed(self._unreachable(fault.reasons[0]), False) from None
        try:
            self._connection = http.Connection(socket, access.verified_name, self._context, deadline)
        except http.Untrusted as fault:
            raise self._untrusted(fault) from None
        except OSError as fault:
            raise _Failed(self._unreachable(str(fault.strerror or fault)), False) from None
        return self._connection

    def _unreachable(self, reason: str) -> Unreachable:
        return Unreachable(
            f"{self} could not be reached within {self.seconds:g} s: {reason}. See that it runs and that the server in"
            f" {self.named()} can be reached from this node"
        )

    def named(self) -> str:
        return f"kubeconfig {self.access.path}" if self.access.path else "the pod's environment"

    def _untrusted(self, fault: http.Untrusted) -> CniError:
        self.close()
        if fault.by_peer:
            return InvalidConfig(
                f"{self} does not accept the client certificate of {self.named()}: {fault.strerror}. It must be signed by"
                " the server's --client-ca-file and be valid now"
            )
        if "not speak TLS" in (fault.strerror or ""):
            return InvalidConfig(f"{self}: {fault.strerror}. Write http:// in {self.named()}")
        return InvalidConfig(
            f"{self} is not trusted: {fault.strerror}. certificate-authority(-data) in {self.named()} must hold the"
            " authority that signed its certificate, and the certificate the host in `server` (else set tls-server-name)"
        )

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            document = codec.loads(body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise Unreachable(f"{self} has sent something that is no JSON object: is `server` an API server's URL?")
        return document


def is_static(pod: dict[str, Any]) -> bool:
    """Whether the metadata `pod` is that of a static pod's mirror."""
    return bool((pod.get("annotations") or {}).get(_STATIC))


def uid_of(pod: dict[str, Any]) -> str:
    """The uid of the pod with the metadata `pod`, as its runtime knows it."""
    return str((pod.get("annotations") or {}).get(_STATIC) or pod.get("uid") or "")


class Expired(Exception):
    """The list whose next page was asked for is no longer kept."""


class _Failed(Exception):
    """An attempt failed; `failure` is the error when there is time for no other, `sent`: it may have been served."""

    def __init__(self, failure: CniError, sent: bool) -> None:
        self.failure = failure
        self.sent = sent


def _escaped(text: str) -> str:
    """`text` as a segment of a path or a value of a query."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
    return "".join(chr(c) if c in plain else f"%{c:02X}" for c in text.encode())
