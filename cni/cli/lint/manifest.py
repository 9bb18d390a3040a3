"""What is wrong with a NetworkAttachmentDefinition, around its network."""

from __future__ import annotations

import re
from typing import Any

from cni.cli.lint import jsontext, known, network
from cni.cli.lint.addresses import Files
from cni.cli.lint.finding import ERROR, Finding
from cni.cli.lint.plugin import Surroundings
from cni.cli.lint.scope import Scope
from cni.cli.lint.tree import Node
from cni.cli.models import NetworkAttachmentDefinition
from cni.cli.networks import RESOURCE_NAME
from cni.cli.refusals import shown
from cni.cli.source import Source

KIND, GROUP, VERSION = "NetworkAttachmentDefinition", "k8s.cni.cncf.io", "k8s.cni.cncf.io/v1"
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_RESOURCE = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")


def is_nad(document: Any) -> bool:
    """Whether a Kubernetes object is a NAD, or was meant to be one."""
    if not isinstance(document, dict):
        return False
    kind, version = str(document.get("kind", "")), str(document.get("apiVersion", ""))
    return known.near(kind, (KIND,)) != "" or version.partition("/")[0] == GROUP


def examine(source: Source, root: Node, flat: Files, findings: list[Finding]) -> None:
    """Note what is wrong with the NAD `root`, and with the network inside it."""
    document = root.data
    scope = Scope(source, root, findings)
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    scope.network = name if isinstance(name, str) else ""
    for key in document:
        if key not in _KEYS and (meant := known.near(key, _KEYS)):
            scope.error((key,), f'a NAD has no key "{key}"', f'write "{meant}"', at_key=True)
    checked = {k: v for k, v in document.items() if k != "spec"}
    scope.model(NetworkAttachmentDefinition, checked, fixes={"kind": f"write {KIND}", "apiVersion": f"write {VERSION}"})
    if scope.network and not (len(scope.network) <= 253 and _OBJECT_NAME.fullmatch(scope.network)):
        message = f"{shown(name)}: Kubernetes takes no object of this name"
        scope.error(
            ("metadata", "name"), message, "write small letters, digits, - and . , the first and last no - or ."
        )
    resource = _resource(scope, metadata)
    _config(scope, document, Surroundings(scope.network, nad=True, resource=resource, flat=flat))


def _resource(scope: Scope, metadata: Any) -> str:
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    found = ""
    for key, value in (annotations if isinstance(annotations, dict) else {}).items():
        at = ("metadata", "annotations", key)
        if key == RESOURCE_NAME and isinstance(value, str):
            found = value
            if not _RESOURCE.fullmatch(value):
                message = f"{shown(value)}: want the name of a device plugin's resource"
                scope.error(at, message, "write DOMAIN/RESOURCE, such as rdma/hca_shared_devices_a")
        elif key != RESOURCE_NAME and known.near(key, (RESOURCE_NAME,)):
            message = f'the annotation "{key}" is read by nobody'
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
        meant = known.near(key, ("config",))
        message = f'spec has no key "{key}": Kubernetes drops it'
        scope.error(("spec", key), message, f'write "{meant}"' if meant else "move it into config", at_key=True)
    _, node, depth = scope.root.walk(("spec", "config"))
    config = node.data if depth == 2 else None
    if config is None or (isinstance(config, str) and not config.strip()):
        if not any(known.near(key, ("config",)) for key in spec or {}):
            message = f"is empty: Multus looks on each node for a network of the name {scope.network}"
            scope.warn(("spec", "config"), message, "write the network here, or see that each node's net.d has it")
        return
    if not isinstance(config, str):
        scope.error(("spec", "config"), "is no string: want JSON text", "write config: | and the JSON below it")
        if isinstance(config, dict):
            inner = Scope(scope.source, node, scope.findings, scope.network)
            network.examine(inner, around)
        return
    if node.scalar is None:  # of a JSON file
        source = scope.source.part(node.start, node.end).quoted(config)
    else:
        source = scope.source.scalar(node.scalar)
    inner_root = json_tree(source, scope.findings, scope.network, config)
    if inner_root is None:
        return
    inner = Scope(source, inner_root, scope.findings, scope.network)
    written = inner_root.data.get("name") if isinstance(inner_root.data, dict) else None
    if isinstance(written, str) and written and scope.network and written != scope.network:
        message = f"the network is called {written}, and its NAD {scope.network}: leases and records go by the first"
        inner.warn(("name",), message, f'write "{scope.network}"')
    network.examine(inner, around)


def json_tree(source: Source, findings: list[Finding], name: str, text: str) -> Node | None:
    """The tree of JSON `text`, with its faults noted; None when there is nothing to go on with."""
    root, faults = jsontext.parse(text)
    scope = Scope(source, root or Node(0, 0), findings, name)
    for fault in faults:
        scope.span(ERROR, fault.start, fault.end, "", f"not JSON: {fault.message}", fault.fix)
    return root if root is not None and (root.members or not faults) else None
