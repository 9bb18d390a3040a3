"""The rules for resources of device plugins: their configurations, and what networks and containers ask for."""

from __future__ import annotations

from typing import Any

from cni.library.documents import reader
from cni.library.documents.scope import Scope
from cni.library.documents.text import Keys
from cni.library.lint import known
from cni.library.lint.plugin import Surroundings, Want

_PODS: tuple[Keys, ...] = (("spec",), ("spec", "template", "spec"), ("spec", "jobTemplate", "spec", "template", "spec"))
_CONTAINERS = ("initContainers", "containers")


def is_configuration(document: Any) -> bool:
    """Whether a document is a device plugin's own configuration."""
    from cni.library.resources import config

    return config.is_own(document)


def examine(scope: Scope, around: Surroundings) -> None:
    """Note the faults of a device plugin's configuration; add its resources to `around`."""
    from cni.library.resources import config

    found = config.Config(findings=scope.findings)
    config.read_document(scope, found)
    around.offers.update(resource.name for resource in found.resources)


def examine_object(scope: Scope, around: Surroundings) -> bool:
    """Examine a ConfigMap, whose texts may be such configurations, and note what the containers of a pod, or of a template of
    pods, ask for; return whether it has a configuration."""
    document = scope.root.data
    if not isinstance(document, dict):
        return False
    if document.get("kind") == "ConfigMap":
        data = document.get("data")
        of_plugins = [key for key, text in (data if isinstance(data, dict) else {}).items() if _is_of_plugin(text)]
        for key in of_plugins:
            if inner := reader.json_inside(scope, ("data", key)):
                examine(inner, around)
        return bool(of_plugins)
    for keys in _PODS:
        _, pod, depth = scope.root.walk(keys)
        for name in _CONTAINERS if depth == len(keys) else ():
            found = pod.member(name)
            for number in range(len(found.node.items or ())) if found else ():
                place = (*keys, name, number, "resources", "limits")
                _, limits, depth = scope.root.walk(place)
                asked = limits.members or [] if depth == len(place) else []
                around.wants.extend(Want(one.name, scope, (*place, one.name), at_key=True) for one in asked)
    return False


def _is_of_plugin(text: object) -> bool:
    """Whether a text of a ConfigMap is a device plugin's configuration, or was meant to be one."""
    return isinstance(text, str) and any(
        f'"{key}"' in text for key in ("configList", "resourceList", "virtualFunctions")
    )


def compare(around: Surroundings) -> None:
    """Warn of resources that nobody offers, although a configuration has others of their domain."""
    domains = {name.partition("/")[0] for name in around.offers}
    for want in around.wants:
        if want.resource not in around.offers and want.resource.partition("/")[0] in domains:
            same = sorted(name for name in around.offers if name.partition("/")[0] == want.resource.partition("/")[0])
            message = f"no configuration of a device plugin here offers {want.resource}, but {', '.join(same[:5])}"
            fix = f"write {known.near(want.resource, same) or same[0]}, or have {want.resource} offered"
            want.scope.warn(want.keys, message, fix, at_key=want.at_key)
