"""The resources of Kubernetes itself that the API server for tests has: pods, nodes, Events, Leases, tokens, and those of DRA."""

from __future__ import annotations

import copy
import ipaddress
import itertools
import re
import uuid
from collections.abc import Callable
from typing import Any

Place = tuple[str, str, str]  # resource, namespace ("" for a node), name
LEASES = "coordination.k8s.io"
DRA = "resource.k8s.io"
MULTUS = "k8s.cni.cncf.io"
NADS = "network-attachment-definitions"
NAD_DEFINITION: dict[str, Any] = {
    "metadata": {"name": f"{NADS}.{MULTUS}"},
    "spec": {
        "group": MULTUS,
        "scope": "Namespaced",
        "names": {"plural": NADS, "singular": "network-attachment-definition", "kind": "NetworkAttachmentDefinition"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": {"config": {"type": "string"}}}},
                    }
                },
            }
        ],
    },
}
OF_DRA = ("resourceslices", "resourceclaims", "deviceclasses")


class Missing(Exception):
    """There is no such object."""


class Exists(Exception):
    """There is one of the name, or one of another version."""


def pod_annotations(status: str = "", static_uid: str = "", preferred: str = "") -> dict[str, str]:
    """Of a pod: its network-status, the UID of the static pod whose mirror it is, the address that it would rather have."""
    found = {
        "k8s.v1.cni.cncf.io/network-status": status,
        "kubernetes.io/config.mirror": static_uid,
        "whereabouts.cni.cncf.io/preferred-ip": preferred,
    }
    return {key: value for key, value in found.items() if value}


class Unfit(Exception):
    """A patch does not apply."""


class Invalid(Exception):
    """The object breaks a rule of its resource."""


_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_slice(spec: dict[str, Any]) -> None:
    """The rules of pkg/apis/resource/validation of Kubernetes that a driver may break; Invalid."""
    devices = spec["devices"]
    names = [device["name"] for device in devices]
    if len(devices) > 128 or len({*names}) < len(names) or not all(map(_LABEL.fullmatch, names)):
        raise Invalid(f"spec.devices: {names}")
    for device in devices:
        attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
        if len(attributes) + len(capacity) > 32:
            raise Invalid("too many attributes and capacities")
        for name in (*attributes, *capacity):
            if not _ID.fullmatch(name.rpartition("/")[2]):
                raise Invalid(f"attributes[{name}]: must be a C identifier")
        for name, value in attributes.items():
            ((kind, content),) = value.items()
            if kind == "string" and len(content) > 64:
                raise Invalid(f"attributes[{name}]: too long")
        for name, value in capacity.items():
            policy, most = value.get("requestPolicy"), int(value["value"])
            if policy and not device.get("allowMultipleAllocations"):
                raise Invalid(f"capacity[{name}].requestPolicy: allowMultipleAllocations is not set")
            if spans := (policy or {}).get("validRange"):
                least, step, usual = int(spans["min"]), int(spans["step"]), int(policy["default"])
                if least > most or least + step > most or usual < least or (usual - least) % step:
                    raise Invalid(f"capacity[{name}].requestPolicy: {policy}")


def check_claim(status: dict[str, Any]) -> None:
    """The rules for `devices` in the status of a claim; Invalid."""
    keys = ("driver", "pool", "device", "shareID")
    results = (status.get("allocation") or {}).get("devices", {}).get("results", [])
    allocated, named = ([tuple(one.get(key) for key in keys) for one in each] for each in (results, status["devices"]))
    if not {*named} <= {*allocated} or len({*named}) < len(named) or len(named) > 32:
        raise Invalid(f"status.devices: {named}: must be an allocated device in the claim")
    for device in status["devices"]:
        data = device.get("networkData", {})
        ips = data.get("ips", [])
        if len(data.get("interfaceName", "")) > 256 or len(data.get("hardwareAddress", "")) > 128 or len(ips) > 16:
            raise Invalid(f"status.devices.networkData: too long: {data}")
        if len({*ips}) < len(ips) or any(str(ipaddress.ip_interface(ip)) != ip for ip in ips):
            raise Invalid(f"status.devices.networkData.ips: {ips}")
        for one in device.get("conditions", []):
            if not all(one.get(key) for key in ("type", "status", "reason", "lastTransitionTime")):
                raise Invalid(f"status.devices.conditions: {one}")


def without_sharing(spec: dict[str, Any]) -> None:
    """Drop what a server without the feature gate DRAConsumableCapacity drops."""
    for device in spec["devices"]:
        device.pop("allowMultipleAllocations", None)
        for value in device.get("capacity", {}).values():
            value.pop("requestPolicy", None)


Apply = Callable[[Any, dict[str, Any]], None]  # one operation of a JSON patch


class Core:
    """Objects by resource, namespace and name; `gone` are namespaces that are not there."""

    def __init__(self) -> None:
        self.objects: dict[Place, dict[str, Any]] = {}
        self.gone: set[str] = set()
        self.page = 500  # the most objects in one reply
        self.tokens: list[tuple[dict[str, Any], str]] = []  # requests for one, and what was issued
        self._versions = itertools.count(1)
        self.shares = True  # whether the feature gate DRAConsumableCapacity is on,
        self.extends = True  # and DRAExtendedResource

    # --- for tests ---

    def add_claim(self, namespace: str, name: str, *results: dict[str, Any], **allocation: Any) -> str:
        """The uid of a new ResourceClaim to which the devices `results` are allocated; without any it is pending."""
        metadata = {"uid": str(uuid.uuid4())}
        devices = {"devices": {"results": list(results), **allocation}}
        status: dict[str, Any] = {"allocation": devices} if results else {}
        self._put(("resourceclaims", namespace, name), {"metadata": metadata, "spec": {}, "status": status})
        return metadata["uid"]

    def add_pod(
        self, namespace: str, name: str, node: str = "", phase: str = "Running", status: str = "", **noted: str
    ) -> str:
        """The uid of a new pod; `status` and `noted` as `pod_annotations` says."""
        metadata = {"uid": str(uuid.uuid4()), "annotations": pod_annotations(status, **noted)}
        spec = {"nodeName": node, "containers": []}
        self._put(("pods", namespace, name), {"metadata": metadata, "spec": spec, "status": {"phase": phase}})
        return str(metadata["uid"])

    def add_network(self, namespace: str, name: str, config: str) -> None:
        """A NetworkAttachmentDefinition; before the first one a cluster without Multus has no such resource."""
        self._put((NADS, namespace, name), {"metadata": {}, "spec": {"config": config}})

    def add_node(self, name: str, ready: bool = True, out_of_service: bool = False) -> None:
        taints = [{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}]
        status = {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}
        spec = {"taints": taints} if out_of_service else {}
        self._put(("nodes", "", name), {"metadata": {"uid": str(uuid.uuid4())}, "spec": spec, "status": status})

    def find(self, place: Place) -> dict[str, Any] | None:
        try:
            return self.get(place)
        except Missing:
            return None

    def named(self, resource: str) -> list[dict[str, Any]]:
        return [copy.deepcopy(found) for place, found in sorted(self.objects.items()) if place[0] == resource]

    # --- requests ---

    def get(self, place: Place) -> dict[str, Any]:
        if place not in self.objects:
            raise Missing
        return copy.deepcopy(self.objects[place])

    def create(self, resource: str, namespace: str, document: dict[str, Any]) -> dict[str, Any]:
        place = (resource, namespace, document["metadata"]["name"])
        if namespace in self.gone:
            raise Missing
        if place in self.objects:
            raise Exists
        document["metadata"].setdefault("uid", str(uuid.uuid4()))
        return self._put(place, document)

    def replace(self, place: Place, document: dict[str, Any]) -> dict[str, Any]:
        former = self.get(place)["metadata"]
        if document["metadata"].get("resourceVersion") != former["resourceVersion"]:
            raise Exists
        document["metadata"]["uid"] = former["uid"]
        return self._put(place, document)

    def patch(self, place: Place, operations: list[dict[str, Any]], apply: Apply) -> dict[str, Any]:
        document = self.get(place)
        try:
            for operation in operations:
                apply(document, operation)
        except (KeyError, ValueError, TypeError) as fault:
            raise Unfit(str(fault)) from None
        return self._put(place, document)

    def delete(self, place: Place, options: dict[str, Any] | None) -> None:
        del self.objects[place]

    def list(self, resource: str, namespace: str, query: dict[str, list[str]]) -> dict[str, Any]:
        """A page of a namespace; "": of all namespaces."""
        terms = ",".join(query.get("fieldSelector", [])).split(",")
        wanted = dict(term.removeprefix("spec.").split("=") for term in terms if term.startswith("spec."))
        after = query.get("continue", [""])[0]
        found = [
            (f"{place[1]}/{place[2]}", document)
            for place, document in sorted(self.objects.items())
            if place[0] == resource
            and namespace in ("", place[1])
            and all(document["spec"].get(key) == value for key, value in wanted.items())
        ]
        found = [one for one in found if one[0] > after]
        size = min(int(query.get("limit", ["0"])[0]) or self.page, self.page)
        metadata = {"resourceVersion": "1"} | ({"continue": found[size - 1][0]} if len(found) > size else {})
        items = [copy.deepcopy(document) for _, document in found[:size]]
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}

    def token(self, account: str, document: dict[str, Any]) -> dict[str, Any]:
        """A TokenRequest's answer."""
        text = f"token.of.{account}-{len(self.tokens)}"
        self.tokens.append((document, text))
        return {**document, "status": {"token": text, "expirationTimestamp": "2099-01-01T00:00:00Z"}}

    def _put(self, place: Place, document: dict[str, Any]) -> dict[str, Any]:
        renewed = document.get("spec", {}).get("renewTime") if place[0] == "leases" else None
        if renewed and not _MICRO_TIME.fullmatch(renewed):
            raise Invalid(f"spec.renewTime: {renewed}")
        if place[0] == "resourceslices":
            document = copy.deepcopy(document)
            check_slice(document["spec"])
            if not self.shares:
                without_sharing(document["spec"])
        if place[0] == "resourceclaims" and "devices" in document["status"]:
            check_claim(document["status"])
        if place[0] == "deviceclasses" and not self.extends:
            document["spec"].pop("extendedResourceName", None)
        version = {"name": place[2], "resourceVersion": str(next(self._versions))}
        document = {**document, "metadata": {**document["metadata"], **version}}
        if place[1]:
            document["metadata"]["namespace"] = place[1]
        self.objects[place] = document
        return copy.deepcopy(document)
