"""The rules for resources of device plugins: their configurations, and what networks and containers ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cni.library.documents import reader
from cni.library.documents.networks import NETWORKS
from cni.library.documents.refusals import near
from cni.library.documents.scope import Scope
from cni.library.documents.text import Keys
from cni.library.lint.plugin import Claim, PodNetworks, ResourceWant, Surroundings
from cni.library.resources import config
from cni.library.resources.models import label

_PODS: tuple[Keys, ...] = (("spec",), ("spec", "template", "spec"), ("spec", "jobTemplate", "spec", "template", "spec"))
_CLAIMS: dict[str, Keys] = {"ResourceClaim": (), "ResourceClaimTemplate": ("spec",)}
_CONTAINERS = ("initContainers", "containers")


def examine(scope: Scope, around: Surroundings) -> None:
    """Note the faults of a device plugin's configuration; add its resources to `around`."""
    found = config.Config(findings=scope.findings)
    config.read_document(scope, found)
    around.offers.update(resource.name for resource in found.resources)


def examine_object(scope: Scope, around: Surroundings) -> bool:
    """Examine a ConfigMap, whose texts may be such configurations, and note what a pod, a template of pods, or a claim asks for;
    return whether it has a configuration."""
    document = scope.root.data
    if not isinstance(document, dict):
        return False
    scope.network = ""
    metadata = document.get("metadata")
    namespace = str((metadata if isinstance(metadata, dict) else {}).get("namespace") or "default")
    if document.get("kind") == "ConfigMap":
        data = document.get("data")
        texts = {k: v for k, v in (data if isinstance(data, dict) else {}).items() if isinstance(v, str)}
        of_plugins = [key for key, text in texts.items() if any(f'"{name}"' in text for name in config.LISTS)]
        for key in of_plugins:
            if inner := reader.json_inside(scope, ("data", key)):
                examine(inner, around)
        return bool(of_plugins)
    if (kind := str(document.get("kind"))) in _CLAIMS:
        requests = _value(scope, (*_CLAIMS[kind], "spec", "devices", "requests"))
        name = str((metadata if isinstance(metadata, dict) else {}).get("name") or "")
        around.classes[kind, namespace, name] = set(_classes(requests))
        return False
    for keys in _PODS:
        asked = list(_asked(scope, keys))
        around.wants.extend(asked)
        claims = _claims(_value(scope, (*keys, "resourceClaims")), namespace)
        at = (*keys[:-1], "metadata", "annotations", NETWORKS)
        _, node, depth = scope.root.walk(at)
        if (asked or claims) and depth == len(at) and isinstance(node.data, str):
            names, resources = _names(node.data, namespace), {want.resource for want in asked}
            around.pods.append(PodNetworks(scope, at, names, resources, claims))
    return False


def _asked(scope: Scope, keys: Keys) -> Iterator[ResourceWant]:
    """The limits of the containers of the pod whose spec is at `keys`, if there is one."""
    _, pod, depth = scope.root.walk(keys)
    for name in _CONTAINERS if depth == len(keys) else ():
        found = pod.member(name)
        for number in range(len(found.node.items or ())) if found else ():
            place = (*keys, name, number, "resources", "limits")
            _, limits, reached = scope.root.walk(place)
            for one in limits.members or [] if reached == len(place) else []:
                yield ResourceWant(one.name, scope, (*place, one.name), at_key=True)


def _value(scope: Scope, keys: Keys) -> Any:
    _, node, depth = scope.root.walk(keys)
    return node.data if depth == len(keys) else None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _claims(listed: Any, namespace: str) -> list[Claim]:
    """The claims of a pod, by its `resourceClaims`."""
    kinds = {"resourceClaimTemplateName": "ResourceClaimTemplate", "resourceClaimName": "ResourceClaim"}
    return [(kinds[key], namespace, str(one[key])) for one in _objects(listed) for key in kinds if one.get(key)]


def _classes(requests: Any) -> Iterator[str]:
    """The DeviceClasses of the requests of a claim, with their alternatives."""
    for request in _objects(requests):
        for one in _objects([request.get("exactly"), *_objects(request.get("firstAvailable"))]):
            yield str(one.get("deviceClassName"))


def _names(text: str, namespace: str) -> list[tuple[str, str]]:
    """Namespace and name of each network in a pod's annotation: JSON, or "NAMESPACE/NAME@IFNAME, ..."."""
    try:
        listed = json.loads(text) if text.lstrip().startswith("[") else []
        return [(str(one.get("namespace") or namespace), str(one["name"])) for one in listed] or [
            (before or namespace, name)
            for before, _, name in (one.strip().partition("@")[0].rpartition("/") for one in text.split(","))
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        return []  # Multus refuses it


def compare(around: Surroundings) -> None:
    """Warn of resources that nobody offers, although a configuration has others of their domain; and of networks of pods that
    ask for other resources of the network's domain alone, also by claims. A pod that asks for none may get it by an admission
    webhook."""
    for pod in around.pods:
        classes = set().union(*(around.classes.get(claim, set()) for claim in pod.claims))
        for network in pod.networks:
            resource = around.resources.get(network, "")
            domain = resource.partition("/")[0]
            others = sorted(name for name in pod.resources if resource and name.startswith(f"{domain}/"))
            of_domain = sorted(name for name in classes if resource and name.startswith(f"{label(domain)}-"))
            if resource in others or (resource and label(resource) in classes):
                continue
            if of_domain:
                message = (
                    f"the network {network[1]} needs a device of {resource}, and the pod claims {', '.join(of_domain)}"
                )
                pod.scope.warn(pod.keys, message, f"add a request with deviceClassName {label(resource)} to its claim")
            elif others:
                message = (
                    f"the network {network[1]} needs a device of {resource}, and the pod asks for {', '.join(others)}"
                )
                pod.scope.warn(pod.keys, message, f"add {resource}: 1 to the limits of a container")
    domains = {name.partition("/")[0] for name in around.offers}
    for want in around.wants:
        if want.resource not in around.offers and want.resource.partition("/")[0] in domains:
            same = sorted(name for name in around.offers if name.partition("/")[0] == want.resource.partition("/")[0])
            message = f"no configuration of a device plugin here offers {want.resource}, but {', '.join(same[:5])}"
            fix = f"write {near(want.resource, same) or same[0]}, or have {want.resource} offered"
            want.scope.warn(want.keys, message, fix, at_key=want.at_key)
