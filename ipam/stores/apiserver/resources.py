"""The resources of an API server that railcni reads and changes: names, groups, paths, and the rights that it needs."""

from __future__ import annotations

import hashlib
import re
from typing import Any

GROUP = "whereabouts.cni.cncf.io"
ADDRESS_GROUP = "railcni.io"
VERSION = "v1alpha1"
ADDRESSES = "addressleases"  # of ADDRESS_GROUP
CLAIMS, CLASSES, NODE_SLICES, NODES = "resourceclaims", "deviceclasses", "resourceslices", "nodes"
REVIEWS = "selfsubjectaccessreviews"  # every account may create them (ClusterRole system:basic-user)
CONFIGMAPS = "configmaps"
BINDINGS = "validatingadmissionpolicybindings"
POOLS, RESERVATIONS, SLICES, PODS = "ippools", "overlappingrangeipreservations", "nodeslicepools", "pods"
OF_STORES = {"addresslease": (ADDRESSES, "AddressLeases"), "kubernetes": (POOLS, "IPPools")}
"""(resource of the leases, name in messages) by the kind of a store in a cluster."""
ADDRESS_POOL, ADDRESS_STATE = "railcni.io/pool", "railcni.io/state"  # labels of AddressLeases
HELD = "held"  # a value of the label ADDRESS_STATE
MOVED = "moved to addressleases.railcni.io: "  # prefix of spec.range of an IPPool whose leases are AddressLeases
MOVING = "moving from addressleases.railcni.io: "  # prefix while `railcni ipam migrate` moves the leases back
EVERYWHERE = "*"  # in place of a namespace: all namespaces, or no namespace for a cluster-scoped resource

_PATHS = {
    **dict.fromkeys((PODS, NODES, "events", "serviceaccounts", CONFIGMAPS), "api/v1"),
    ADDRESSES: f"apis/{ADDRESS_GROUP}/{VERSION}",
    "leases": "apis/coordination.k8s.io/v1",
    **dict.fromkeys((CLAIMS, CLASSES, NODE_SLICES), "apis/resource.k8s.io/v1"),
    BINDINGS: "apis/admissionregistration.k8s.io/v1",
    REVIEWS: "apis/authorization.k8s.io/v1",
    "network-attachment-definitions": "apis/k8s.cni.cncf.io/v1",
}
ALNUM = "abcdefghijklmnopqrstuvwxyz0123456789"
_LABEL = re.compile("([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
RIGHTS = {
    ADDRESSES: "get list create patch delete",
    POOLS: "get list create patch",
    RESERVATIONS: "get list create patch delete",
    SLICES: "get patch",
    PODS: "get",
}
"""The verbs that the plugins need for each resource: for pods in all namespaces, else in the context's namespace."""


def path_of(resource: str) -> str:
    """The URL path of the group and version of a resource, such as "api/v1"; also for a subresource ("pods/status")."""
    return _PATHS.get(resource.partition("/")[0]) or f"apis/{GROUP}/{VERSION}"


def group_of(resource: str) -> str:
    """The API group of a resource; "" for the core group."""
    path = path_of(resource)
    return path.split("/")[1] if path.startswith("apis/") else ""


def verb_of(method: str, name: str) -> str:
    """The Kubernetes verb of an HTTP request. A GET without a name is a "list"."""
    return "list" if method == "GET" and not name else VERBS[method]


def replacement(uid: str, version: str, members: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON patch that sets `members` (JSON pointer: value). It fails if uid or resourceVersion differ."""
    tests = (("/metadata/uid", uid), ("/metadata/resourceVersion", version))
    changes = [{"op": "add", "path": path, "value": value} for path, value in members.items()]
    return [{"op": "test", "path": path, "value": value} for path, value in tests] + changes


def label(text: str) -> str:
    """`text` if it is a valid value of a label, otherwise a hash of `text`."""
    return text if _LABEL.fullmatch(text) else f"hash-{hashed(text)}"


def hashed(*names: str) -> str:
    """A hash of `names` in hexadecimal digits, for names and labels of objects."""
    data = "\0".join(names).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(data, digest_size=16).hexdigest()
