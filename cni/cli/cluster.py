"""The Kubernetes API as the command and the agent read it: lightkube, reached as the plugin reaches it.

The kubeconfig, the service account, its rotating token and `exec` helpers are read by the same code as on the plugin's
path (ipam.stores.kubeconfig), so what a node can use the command can. Reads are in pages, and are asked again when the
server says that it is busy.
"""

from __future__ import annotations

import posix
import ssl
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

import httpx2
from lightkube import ApiError, Client
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import Cluster as ClusterConfig
from lightkube.config.models import Context, User
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.resources.core_v1 import Pod as PodObject

from cni.cli.inventory import Network, Node, Pod, PoolState, Reserved
from cni.cli.objects import nad_name, parse_networks, parse_node, parse_pod, parse_pool, parse_reservation
from cni.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores import http, kubeconfig
from ipam.stores.base import Unreachable
from ipam.stores.kubeconfig import Access
from ipam.stores.kubernetes_api import GROUP, VERSION
from ipam.stores.kubernetes_objects import MOVED, NODE_LABEL

T = TypeVar("T")

PAGE = 500  # objects in one reply
SECONDS = 30.0  # for one request, with all its attempts
_ATTEMPT_SECONDS = 10.0
_LONGEST_PAUSE = 2.0

IPPool = create_namespaced_resource(GROUP, VERSION, "IPPool", "ippools")
OverlappingRangeIPReservation = create_namespaced_resource(
    GROUP, VERSION, "OverlappingRangeIPReservation", "overlappingrangeipreservations"
)
NodeSlicePool = create_namespaced_resource(GROUP, VERSION, "NodeSlicePool", "nodeslicepools")
NetworkAttachmentDefinition = create_namespaced_resource(
    "k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition", "network-attachment-definitions"
)
_CUSTOM = (IPPool, OverlappingRangeIPReservation, NodeSlicePool, NetworkAttachmentDefinition)


class Forbidden(InvalidConfig):
    """The credentials do not allow this read."""


class Cluster:
    """The cluster of the kubeconfig at `path`, "" for the service account of the pod that we run in.

    `namespace` is where whereabouts' objects are: the one that is given, else that of the current context, else
    kube-system. `client` is lightkube's, for what is not read here. CniErrors say what is wrong.
    """

    def __init__(self, path: str = "", namespace: str = "", seconds: float = SECONDS) -> None:
        self.access = kubeconfig.load(path) if path else kubeconfig.in_cluster(posix.environ)
        self.namespace = namespace or self.access.namespace
        config = SingleConfig(
            "railcni",
            Context(cluster="railcni", namespace=self.namespace),
            ClusterConfig(server=str(self.access), insecure=True),  # what is verified is the transport's business
            User(),
        )
        timeout = httpx2.Timeout(min(_ATTEMPT_SECONDS, seconds))
        transport = _Transport(self.access, seconds)
        self.client = Client(config, timeout=timeout, field_manager="railcni", trust_env=False, transport=transport)

    def __str__(self) -> str:
        return f"the API server {self.access}"

    def close(self) -> None:
        self.client.close()

    # --- whereabouts' objects ---

    def documents(self, kind: Any) -> list[dict[str, Any]]:
        """All objects of `kind`, IPPool or another one made above, in `namespace`; [] where it is not defined."""
        with self.reading(f"list {kind.__name__}", f"in namespace {self.namespace}"):
            return self._listed(kind, lambda document: document, namespace=self.namespace)

    def pools(self, networks: Collection[Network] = ()) -> tuple[list[PoolState], list[Reserved], list[str]]:
        """The pools, the reservations, and what is said of pools that cannot be read.

        `networks` tell which names a reservation's may begin with, and which pools are of node slices.
        """
        pools = self.documents(IPPool)
        reservations = self.documents(OverlappingRangeIPReservation)
        states, faults = _parsed(pools, (), networks)
        known = {"", *(n.network_name for n in networks), *(state.scope or "" for state in states)}
        reserved = [parse_reservation(document, known) for document in reservations]
        return _parsed(pools, reserved, networks)[0], reserved, faults

    def reservations_of(self, node: str) -> list[Reserved]:
        """The reservations that are marked as those of `node`, which must be a label's value."""
        with self.reading("list OverlappingRangeIPReservation", f"in namespace {self.namespace}"):
            labels = {NODE_LABEL: node}
            return self._listed(
                OverlappingRangeIPReservation, parse_reservation, namespace=self.namespace, labels=labels
            )

    def pool(self, name: str) -> dict[str, Any] | None:
        """An IPPool as it stands now; None when there is none."""
        return self._one(IPPool, name, self.namespace)

    def reservation(self, name: str) -> dict[str, Any] | None:
        """An OverlappingRangeIPReservation as it stands now; None when there is none."""
        return self._one(OverlappingRangeIPReservation, name, self.namespace)

    # --- the cluster's ---

    def pods(self, node: str = "", met: Callable[[int], object] = int) -> list[Pod]:
        """The pods of all namespaces, or of one node; `met` is told after each page how many there are."""
        fields = {"spec.nodeName": node} if node else None
        with self.reading("list pods", "in all namespaces"):
            return self._listed(PodObject, parse_pod, met, namespace="*", fields=fields)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """A pod as it is now; None when there is none."""
        document = self._one(PodObject, name, namespace) if namespace and name else None
        return parse_pod(document) if document else None

    def nodes(self) -> dict[str, Node]:
        """The nodes, by name."""
        with self.reading("list nodes", ""):
            return {node.name: node for node in self._listed(NodeObject, parse_node)}

    def node(self, name: str) -> Node | None:
        """A node as it is now; None when there is none."""
        document = self._one(NodeObject, name, None)
        return parse_node(document) if document else None

    def networks(self) -> tuple[list[Network], set[str]]:
        """The networks of all NADs that whereabouts serves, and "namespace/name" of every NAD."""
        with self.reading("list network-attachment-definitions", "in all namespaces"):
            found = self._listed(NetworkAttachmentDefinition, lambda d: (nad_name(d), parse_networks(d)), namespace="*")
        return [network for _, networks in found for network in networks], {name for name, _ in found}

    # --- one request ---

    def _listed(
        self, kind: Any, parse: Callable[[dict[str, Any]], T], met: Callable[[int], object] = int, **choice: Any
    ) -> list[T]:
        """The objects, read in pages; from the start again when the snapshot that the pages are of is gone."""
        while True:
            found: list[T] = []
            try:
                for item in self.client.list(kind, chunk_size=PAGE, **choice):
                    found.append(parse(item.to_dict()))
                    if len(found) % PAGE == 0:
                        met(len(found))
                return found
            except httpx2.HTTPStatusError as fault:
                if fault.response.status_code == 404 and kind in _CUSTOM:
                    return []  # the kind is not defined
                if fault.response.status_code != 410:
                    raise

    def _one(self, kind: Any, name: str, namespace: str | None) -> dict[str, Any] | None:
        with self.reading(f"get {kind.__name__} {name}", f"in namespace {namespace}" if namespace else ""):
            try:
                if namespace is None:
                    found = self.client.get(kind, name)
                else:
                    found = self.client.get(kind, name, namespace=namespace)
            except ApiError as fault:
                if fault.status.code == 404 and fault.status.reason == "NotFound":
                    return None  # it says so of this object: who is asked knows the kind
                raise
            document: dict[str, Any] = found.to_dict()
            return document

    @contextmanager
    def reading(self, what: str, where: str) -> Iterator[None]:
        """What lightkube raises becomes a CniError that says what could not be done, and where."""
        try:
            yield
        except ApiError as fault:
            raise self._refused(fault, what, where) from None
        except httpx2.HTTPStatusError as fault:
            raise InvalidConfig(
                f"{self} answers {fault.response.status_code} to {what}: is `server` of {self._named()} an API server's URL?"
            ) from None
        except httpx2.HTTPError as fault:
            if reason := _untrusted(fault):
                raise InvalidConfig(
                    f"{self} is not trusted: {reason}. certificate-authority(-data) in {self._named()} must hold the authority"
                    " that signed its certificate, and the certificate the host in `server` (else set tls-server-name)"
                ) from None
            raise Unreachable(
                f"{self} has not answered: {fault or type(fault).__name__}. See that it is well and can be reached from here"
            ) from None

    def _refused(self, fault: ApiError, what: str, where: str) -> CniError:
        code, message = fault.status.code, str(fault.status.message or "")
        if code == 401:
            return InvalidConfig(f"{self} does not accept the credentials of {self._named()} (401)")
        if code == 403:
            return Forbidden(
                f"{self} forbids to {what} {where}".rstrip()
                + f": {self._named()} needs that right; --kubeconfig names another, such as an administrator's",
                message,
            )
        if code == 429 or (code or 0) >= 500:
            return TryAgainLater(f"{self} does not serve now ({code}) to {what}: {message[:200]}. Retry")
        return InvalidConfig(f"{self} refuses to {what} {where} ({code}): {message[:300]}")

    def _named(self) -> str:
        return f"kubeconfig {self.access.path}" if self.access.path else "this pod's service account"


def _parsed(
    documents: list[dict[str, Any]], reserved: Collection[Reserved], networks: Collection[Network]
) -> tuple[list[PoolState], list[str]]:
    states, faults = [], []
    for document in documents:
        if str((document.get("spec") or {}).get("range")).startswith(MOVED):
            continue
        try:
            states.append(parse_pool(document, reserved, networks))
        except ValueError as fault:
            faults.append(f"spec.range of IPPool {(document.get('metadata') or {}).get('name')}: {fault}")
    return states, faults


class _Transport(httpx2.BaseTransport):
    """Requests with the credentials of an Access, which may rotate; a read that fails is tried again for `seconds`."""

    def __init__(self, access: Access, seconds: float) -> None:
        self._access = access
        self._seconds = seconds
        self._inner: httpx2.HTTPTransport | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        deadline = monotonic() + self._seconds
        pause, renewed = 0.1, False
        while True:
            failure: httpx2.TransportError | None = None
            try:
                response = self._attempt(request, deadline)
                if response.status_code == 401 and not renewed and self._access.renews():
                    renewed = True
                    response.close()
                    self.close()
                    continue
                if response.status_code not in (429, 500, 502, 503, 504):
                    return response
                wait = response.headers.get("Retry-After", "")
                pause = max(pause, min(float(wait), 10.0)) if wait.isdigit() else pause
            except httpx2.TransportError as fault:
                failure = fault
            if request.method != "GET" or monotonic() + pause > deadline or (failure and _untrusted(failure)):
                if failure:
                    raise failure
                return response
            if not failure:
                response.close()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _attempt(self, request: httpx2.Request, deadline: float) -> httpx2.Response:
        if self._inner is None:
            context = self._access.context(deadline, _context) if self._access.tls else ssl.create_default_context()
            self._inner = httpx2.HTTPTransport(verify=context, trust_env=False)
        if token := self._access.token(deadline):
            request.headers["Authorization"] = f"Bearer {token}"
        request.headers["User-Agent"] = http.AGENT
        request.extensions = {**request.extensions, "sni_hostname": self._access.verified_name}
        return self._inner.handle_request(request)

    def close(self) -> None:
        if self._inner:
            self._inner.close()
            self._inner = None


def _untrusted(fault: BaseException | None) -> str:
    """Why the server's certificate is not accepted; "" when that is not what has failed."""
    while fault is not None:
        if isinstance(fault, ssl.SSLCertVerificationError):
            return fault.verify_message
        fault = fault.__cause__ or fault.__context__
    return ""


def _context(authority: str, certificate: str, key: str) -> ssl.SSLContext:
    """A context that trusts the file `authority`, or what the system trusts, and shows `certificate`."""
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as fault:
        raise ValueError(f"{fault.strerror or fault}") from None
    return context
