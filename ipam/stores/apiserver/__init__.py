"""Requests to an API server: one connection for all requests of a call, credentials, and repeated attempts.

A request that reads is repeated, within its time limit, after any temporary fault. A request that changes an object is
repeated only when the server has surely not carried it out (status 429, or 503 with Retry-After). After a lost reply it
raises OutcomeUnknown, and the caller reads the object.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any
from urllib.parse import quote  # http.client has loaded it

from cni.shared.spec import codec
from cni.shared.spec.errors import CniError, InvalidConfig
from ipam.stores import http
from ipam.stores.apiserver import kubeconfig
from ipam.stores.apiserver.faults import Conflict, Expired, refusal, right_missing
from ipam.stores.apiserver.kubeconfig import Access
from ipam.stores.apiserver.resources import EVERYWHERE, PODS, POOLS, REVIEWS, RIGHTS, VERBS, group_of, path_of, verb_of
from ipam.stores.base import OutcomeUnknown, Pauses, Unreachable

JSON_PATCH = "application/json-patch+json"
BRIEF = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"  # the object's metadata
BRIEF_LIST = BRIEF.replace("Metadata;", "MetadataList;")
# a table is a tenth of the size of the metadata, which contain managedFields
_TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"

_STATIC = "kubernetes.io/config.mirror"  # annotation of a mirror pod: the uid that the kubelet gave the static pod
_UNWARNED = "fieldValidation=Ignore"  # warnings about pruned members would take a tenth of a patch's time

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds
_RETRY_AFTER_LIMIT = 10.0  # seconds; a longer Retry-After of a server is cut
_CONNECT_SECONDS = 1.0  # for `connect`; the first request still has its whole time
_PAGE, _POOLS = 500, 40  # objects in one reply of a list; of IPPools, which may have 1.5 MiB each
_BRIEF_PAGE = 5000  # of a list of metadata


class Api(http.Client):
    """A client of the API server that the kubeconfig at `path` names; "" means the service account of this pod.

    `namespace` is the namespace of the objects; "" means that of the kubeconfig's context. A request takes at most
    `seconds`. Once the server has answered or done a TLS handshake, a reply may come until `deadline`. `observe`, if
    set, is called after each request of this process with (verb, resource, duration in seconds, exception or None).
    """

    observe: Callable[[str, str, float, BaseException | None], object] | None = None

    def __init__(self, path: str, seconds: float, namespace: str = "") -> None:
        super().__init__(seconds)
        self._path = path
        self._namespace = namespace
        self._access: Access | None = None
        self._token: str | None = None
        self.warn: Callable[[str], object] = lambda text: None  # called with each warning for the administrator

    @property
    def access(self) -> Access:
        """The server and its credentials. Raises InvalidConfig if the kubeconfig cannot be used."""
        if self._access is None:
            self._access = kubeconfig.load(self._path) if self._path else kubeconfig.in_cluster(os.environb)
            self._access.namespace = self._namespace or self._access.namespace
        return self._access

    def __str__(self) -> str:
        return f"the API server {self.access}"

    def get(self, resource: str, name: str, query: str = "", namespace: str = "") -> tuple[dict[str, Any], int]:
        """Return (the object, the size of its JSON in bytes). Raises NotFound when there is no such object."""
        body = self._call("GET", resource, name, query, namespace=namespace, accept="application/json")
        return self._object(body), len(body)

    def list_all(self, resource: str, labels: str = "", **choice: Any) -> list[dict[str, Any]]:
        """All objects of `resource`. The parameters are those of `pages`. If the list expires, it is read again."""
        while True:
            try:
                return [item for page in self.pages(resource, labels, **choice) for item in page]
            except Expired:
                continue

    def pages(
        self,
        resource: str,
        labels: str = "",
        brief: bool = False,
        recent: bool = False,
        fields: str = "",
        namespace: str = "",
        size: int = 0,
        table: bool = False,
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the objects of `resource` that match the selectors `labels` and `fields`, in pages of at most `size`.

        If `brief` is true, yield only metadata. If `table` is true, yield rows of a Table, with the name in the first
        cell; objects, if the server makes no tables. If `recent` is true, read from the server's cache, which may be a
        moment old. Raises Expired when the caller waits so long between two pages that the server drops the list.
        """
        usual = _BRIEF_PAGE if brief or table else _POOLS if resource == POOLS else _PAGE
        chosen = f"limit={size or usual}"
        chosen += "&includeObject=None" if table else ""
        chosen += f"&labelSelector={quote(labels, safe='')}" if labels else ""
        chosen += f"&fieldSelector={quote(fields, safe='')}" if fields else ""
        query = chosen + ("&resourceVersion=0" if recent else "")
        accept = _TABLE if table else BRIEF_LIST if brief else "application/json"
        while query:
            page = self._object(self._call("GET", resource, "", query, namespace=namespace, accept=accept))
            following = (page.get("metadata") or {}).get("continue") or ""
            query = f"{chosen}&continue={quote(following, safe='')}" if following else ""
            yield page.get("rows") or page.get("items") or []

    def pod(self, namespace: str, name: str) -> dict[str, Any]:
        """The metadata of a pod. Raises NotFound when there is no such pod."""
        return self._object(self._call("GET", PODS, name, namespace=namespace, accept=BRIEF)).get("metadata") or {}

    def create(
        self, resource: str, document: dict[str, Any], namespace: str = "", brief: bool = False
    ) -> dict[str, Any]:
        """Create an object. Returns the object as the server has it; with `brief` perhaps only its metadata, which is
        faster. Raises Conflict if the name is in use, OutcomeUnknown after a lost reply."""
        accept = BRIEF if brief else ""
        body = codec.dumps(document).encode()
        return self._object(self._call("POST", resource, "", _UNWARNED, body, namespace, accept))

    def try_create(self, resource: str, document: dict[str, Any]) -> dict[str, Any]:
        """Try `create` in a server-side dry run. Returns {} if the name is in use. Raises CniError for a refusal."""
        try:
            return self._object(self._call("POST", resource, "", "dryRun=All", codec.dumps(document).encode()))
        except Conflict:
            return {}

    def check_rights(self, resource: str) -> None:
        """Raise Forbidden if the server says that the credentials lack a right that railcni needs for `resource`."""
        what = {"namespace": self.access.namespace, "group": group_of(resource), "resource": resource}
        for verb in RIGHTS[resource].split():
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {**what, "verb": verb}},
            }
            try:
                status = self.create(REVIEWS, review, EVERYWHERE).get("status") or {}
            except InvalidConfig:
                return
            if status.get("allowed") is False:
                raise right_missing(self, verb, resource, self.access.namespace)

    def patch(self, resource: str, name: str, operations: list[dict[str, Any]], namespace: str = "") -> dict[str, Any]:
        """Apply a JSON patch. Returns at least metadata. Raises NotFound, OutcomeUnknown, Conflict if a test fails."""
        return self._object(self._call("PATCH", resource, name, _UNWARNED, codec.dumps(operations).encode(), namespace))

    def delete(self, resource: str, name: str, uid: str, version: str = "", namespace: str = "") -> None:
        """Delete the object. Raises NotFound, OutcomeUnknown, Conflict if the uid, or a given `version`, differs."""
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        self._call("DELETE", resource, name, "", codec.dumps(options).encode(), namespace=namespace)

    @property
    def has_answered(self) -> bool:
        """Whether the server has replied on the present connection."""
        return self._connection is not None and self._connection.reused

    def connect(self) -> None:
        """Connect if the server can be reached now. If it cannot, the next request raises the error."""
        try:
            self._connected(monotonic() + min(self.seconds, _CONNECT_SECONDS))
        except (http.Failed, Unreachable):
            pass

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
        began, fault = monotonic(), None
        try:
            return self._request(method, resource, name, query, body, namespace, accept)
        except BaseException as raised:
            fault = raised
            raise
        finally:
            if Api.observe:
                Api.observe(verb_of(method, name), resource, monotonic() - began, fault)

    def _request(
        self, method: str, resource: str, name: str, query: str, body: bytes, namespace: str, accept: str
    ) -> bytes:
        deadline = min(monotonic() + self.seconds, self.deadline)
        namespace = namespace or self.access.namespace
        place = "" if namespace == EVERYWHERE else f"namespaces/{quote(namespace, safe='')}/"
        target = f"{self.access.base}/{path_of(resource)}/{place}{resource}"
        target += (f"/{quote(name, safe='')}" if name else "") + (f"?{query}" if query else "")
        accept = accept or (BRIEF if method == "PATCH" else "application/json")
        attempts = Pauses(deadline, _FIRST_PAUSE, _LONGEST_PAUSE)
        renewed = False
        while True:
            asked = 0.0
            try:
                status, reply = self._attempt(method, target, body, accept, deadline)
                if status < 300:
                    return reply
                if status == 401 and not renewed and self.access.renews():
                    renewed, self._token, self._context = True, None, None
                    self.drop()
                    continue
                failure, asked = refusal(self, status, reply, method, resource, name, namespace)
                if self._connection:  # a proxy in front of a busy server sends no Status
                    asked = max(asked, self._connection.retry_after)
            except http.Failed as failed:
                failure = failed.failure
                if failed.sent and method != "GET":
                    where = f"{resource}/{name}" if name else resource
                    raise OutcomeUnknown(f"{failure.msg} ({VERBS[method]} {where})") from None
            if not attempts.wait(min(asked, _RETRY_AFTER_LIMIT)):
                raise failure

    def _attempt(self, method: str, target: str, body: bytes, accept: str, deadline: float) -> tuple[int, bytes]:
        connection = self._connected(deadline)
        if self._token is None:
            self._token = self.access.token(deadline)
        headers = f"Accept: {accept}\r\n"
        if self._token:
            headers += f"Authorization: Bearer {self._token}\r\n"
        if body:
            headers += f"Content-Type: {JSON_PATCH if method == 'PATCH' else 'application/json'}\r\n"
        try:
            patient = self.deadline if connection.answers else deadline
            limit = max(min(patient, monotonic() + self.attempt_seconds), monotonic() + 0.1)
            return connection.request(method, target, headers, body, limit)
        except http.Untrusted as fault:
            self.drop()
            raise self.untrusted(fault) from None
        except http.ConnectionLost as fault:
            self._connection = None
            said = f"{self} has not answered: {fault.strerror}. See that it is well and can be reached from this node"
            raise http.Failed(Unreachable(said), True) from None

    def _connected(self, deadline: float) -> http.Connection:
        access = self.access
        if connection := self.kept(access.kept_as):
            return connection
        if self._context is None:
            self._context = access.context(deadline)
        return self.connect_to([access], lambda _: self._context, deadline)

    def unreachable(self, reasons: Sequence[tuple[http.ServerAddress, str]]) -> Unreachable:
        return Unreachable(
            f"{self} could not be reached{self.within}: {reasons[0][1]}. See that it runs and that the server in"
            f" {self.named()} can be reached from this node"
        )

    def named(self) -> str:
        return f"kubeconfig {self.access.path}" if self.access.path else "the pod's environment"

    def untrusted(self, fault: http.Untrusted) -> CniError:
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
            document = codec.loads_reply(body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise Unreachable(f"{self} has sent something that is no JSON object: is `server` an API server's URL?")
        return document


def is_static(pod: dict[str, Any]) -> bool:
    """Whether `pod` is the metadata of a static pod's mirror pod."""
    return bool((pod.get("annotations") or {}).get(_STATIC))


def uid_of(pod: dict[str, Any]) -> str:
    """The uid by which the runtime knows the pod with the metadata `pod`; a static pod has it in an annotation."""
    return str((pod.get("annotations") or {}).get(_STATIC) or pod.get("uid") or "")
