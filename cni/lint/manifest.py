"""The rules for a NetworkAttachmentDefinition (NAD), without the rules for its network."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from cni.documents import reader
from cni.documents.diagnostic import Scope
from cni.documents.models import OBJECT_NAME, NetworkAttachmentDefinition, is_namespace
from cni.documents.networks import RESOURCE_NAME
from cni.documents.refusals import correction, near, shown
from cni.documents.tree import object_at, string_at
from cni.lint import network
from cni.lint.plugin import ResourceWant, Surroundings

KIND, GROUP, VERSION = "NetworkAttachmentDefinition", "k8s.cni.cncf.io", "k8s.cni.cncf.io/v1"
_RESOURCE = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")


def is_nad(document: Any) -> bool:
    """Whether a Kubernetes object has the API group of NADs, or a kind that equals or resembles theirs."""
    if not isinstance(document, dict):
        return False
    kind, version = str(document.get("kind", "")), str(document.get("apiVersion", ""))
    return near(kind, (KIND,)) != "" or version.partition("/")[0] == GROUP


def examine(scope: Scope, around: Surroundings) -> None:
    """Note the faults of the NAD in `scope`, and of the network inside it."""
    document = scope.root.data
    metadata = object_at(document, "metadata")
    scope.network = string_at(metadata, "name")
    for key in document:
        if key not in _KEYS and (meant := near(key, _KEYS)):
            scope.error((key,), f'a NAD has no key "{key}"', f'write "{meant}"', at_key=True)
    checked = {k: v for k, v in document.items() if k != "spec"}
    scope.model(NetworkAttachmentDefinition, checked, fixes={"kind": f"write {KIND}", "apiVersion": f"write {VERSION}"})
    if scope.network and not (len(scope.network) <= 253 and OBJECT_NAME.fullmatch(scope.network)):
        message = f"{shown(scope.network)}: Kubernetes takes no object of this name"
        scope.error(
            ("metadata", "name"), message, "write small letters, digits, - and . , the first and last no - or ."
        )
    _namespace(scope, metadata, around)
    resource = _resource(scope, metadata)
    if resource:
        around.wants.append(ResourceWant(resource, scope, ("metadata", "annotations", RESOURCE_NAME)))
        around.resources[str(metadata.get("namespace") or "default"), scope.network] = resource
    _config(scope, document, replace(around, name=scope.network, nad=True, resource=resource))


def _namespace(scope: Scope, metadata: dict[str, Any], around: Surroundings) -> None:
    """Check the name of the NAD's namespace, and that no other NAD in the namespace has the same name."""
    namespace = metadata.get("namespace")
    if isinstance(namespace, str) and not is_namespace(namespace):
        message = f"{shown(namespace)}: Kubernetes has no namespace of this name"
        scope.error(("metadata", "namespace"), message, "write small letters, digits and -, the first and last no -")
    path, key = scope.text.path, (str(namespace or ""), scope.network)
    first = around.nads.get(key) if scope.network else None
    around.nads[key] = path
    if first:
        where = "this file has another" if first == path else f"{first} has a"
        message = f"{where} NAD {scope.network}: kubectl apply keeps the last alone"
        scope.error(("metadata", "name"), message, "give one of them another name, or remove it")


def _resource(scope: Scope, metadata: dict[str, Any]) -> str:
    found = ""
    for key, value in object_at(metadata, "annotations").items():
        at = ("metadata", "annotations", key)
        if key == RESOURCE_NAME and isinstance(value, str):
            found = value
            if not _RESOURCE.fullmatch(value):
                message = f"{shown(value)}: want the name of a device plugin's resource"
                scope.error(at, message, "write DOMAIN/RESOURCE, such as rdma/hca_shared_devices_a")
        elif key != RESOURCE_NAME and near(key, (RESOURCE_NAME,)):
            message = f'the annotation "{key}" is read by no program'
            scope.error(at, message, f"write {RESOURCE_NAME}", at_key=True)
    return found


def _config(scope: Scope, document: dict[str, Any], around: Surroundings) -> None:
    spec = document.get("spec")
    if spec is not None and not isinstance(spec, dict):
        scope.error(("spec",), f"{shown(spec)}: want an object", "write spec: with config: | below it")
        return
    for key in spec or {}:
        if key == "config":
            continue
        message = f'spec has no key "{key}": Kubernetes drops it'
        scope.error(("spec", key), message, correction(key, ("config",), "move it into config"), at_key=True)
    _, node, depth = scope.root.walk(("spec", "config"))
    config = node.data if depth == 2 else None
    if config is None or (isinstance(config, str) and not config.strip()):
        if not any(near(key, ("config",)) for key in spec or {}):
            message = f"is empty: Multus looks on each node for a network of the name {scope.network}"
            scope.warn(("spec", "config"), message, "write the network here, or check that each node's net.d has it")
        return
    if not isinstance(config, str):
        scope.error(("spec", "config"), "is no string: want JSON text", "write config: | and the JSON below it")
        if isinstance(config, dict):
            network.examine(scope.inside(node), around)
        return
    inner = reader.of_json(reader.string(scope, node), scope.findings, scope.network)
    if inner is None:
        return
    reader.duplicates(inner)
    written = string_at(inner.root.data, "name")
    if written and scope.network and written != scope.network:
        message = f"the network is called {written}, and its NAD {scope.network}: leases and records go by the first"
        inner.warn(("name",), message, f'write "{scope.network}"')
    network.examine(inner, around)
