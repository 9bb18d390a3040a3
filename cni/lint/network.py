"""The lint's rules for a network (a conflist or a single configuration), for the chain of its plugins, and for a
NetworkAttachmentDefinition (NAD)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cni.documents import reader
from cni.documents.diagnostic import Scope, correction, near, shown
from cni.documents.models import OBJECT_NAME, Configuration, NetworkAttachmentDefinition, PluginModel, is_namespace
from cni.documents.networks import RESOURCE_NAME
from cni.documents.tree import Keys, object_at, string_at
from cni.lint import known, plugin
from cni.lint.known import executable
from cni.lint.plugin import ResourceWant, Surroundings
from cni.shared.spec.request import SUPPORTED, member

KIND, GROUP, VERSION = "NetworkAttachmentDefinition", "k8s.cni.cncf.io", "k8s.cni.cncf.io/v1"
_RESOURCE = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS = ("apiVersion", "kind", "metadata", "spec", "status")
LIST, SINGLE = (".conflist",), (".conf", ".json")
_NEWEST_COMMON = "1.0.0"  # the newest spec version that all runtimes and plugins in use support


def examine(scope: Scope, around: Surroundings, extension: str = "", appended: int = 0) -> None:
    """Add the faults of the network in `scope` to the findings of `scope`. The file's `extension` decides how libcni
    reads the file. `appended` is the number of plugins that libcni appends to the network from other files."""
    document = scope.root.data
    if not isinstance(document, dict):
        scope.error((), f"want a JSON object, not {shown(document)}")
        return
    scope.network = scope.network or str(document.get("name") or member(document, "name") or "")
    if "plugins" in document or member(document, "type") is None:
        _list(scope, document, around, extension, appended)
        return
    if extension in LIST:
        message = "libcni needs a list `plugins` in a .conflist: it does not find this network"
        scope.error((), message, 'write {"name": ..., "cniVersion": ..., "plugins": [...]}, or call the file .conf')
    name, version = member(document, "name"), member(document, "cniVersion")
    outer = {"name": name, "cniVersion": "" if version is None else version, "plugins": [{"type": "any"}]}
    model = _configuration(scope, {k: v for k, v in outer.items() if v not in (None, "")}, around)
    _versions(scope, document)
    _plugin(scope, (), document, _inside(around, document, model), alone=True)


def _list(scope: Scope, document: dict[str, Any], around: Surroundings, extension: str, appended: int) -> None:
    if extension in SINGLE and "plugins" in document:
        message = "libcni takes a .conf or .json for a single plugin: it does not find this network"
        scope.error((), message, "call the file .conflist")
    known_keys = {name.lower(): name for name in known.OF_LISTS}
    for name in document:
        if name in known.OF_LISTS:
            continue
        if same := known_keys.get(name.lower()):
            scope.error(
                (name,), f'"{name}" is not read: the keys of a list match to the letter', f'write "{same}"', at_key=True
            )
        elif meant := near(name, known.OF_LISTS):
            scope.error((name,), f'a network has no key "{name}": it is ignored', f'write "{meant}"', at_key=True)
        elif "plugins" in document:
            message = f'a list has no key "{name}": it is ignored'
            scope.warn((name,), message, "move it into one of the plugins, or remove it", at_key=True)
    model = _configuration(scope, document, around)
    _versions(scope, document)
    listed = document.get("plugins")
    misspelled = any(near(n, ("plugins", "type")) for n in document if n not in known.OF_LISTS)
    inside = _inside(around, document, model)
    if listed is None and not appended and not misspelled:
        if extension in SINGLE and member(document, "ipam", "type"):
            message = "there is no plugin, neither `type` nor `plugins`: only DRANET's webhook reads it, as a profile"
            scope.warn((), message, 'add "type": "macvlan" if it is to be a network, or leave it as it is')
            plugin.examine(scope, (), document, inside)
        else:
            fix = 'add "type": "macvlan" for a single plugin, or a list "plugins"'
            scope.error((), "there is no plugin: neither `type` nor `plugins`", fix)
    for i, entry in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(entry, dict):
            _plugin(scope, ("plugins", i), entry, inside)
    _chain(scope, listed if isinstance(listed, list) else [])


def _inside(around: Surroundings, document: dict[str, Any], model: Configuration | None) -> Surroundings:
    named = [member(document, "cniVersion"), *(v for v in _strings(document.get("cniVersions")))]
    versions = model.versions if model else tuple(v for v in SUPPORTED if v in named)
    name = member(document, "name")
    given = name if isinstance(name, str) and name else around.name
    return replace(around, name=given, versions=versions)


def _configuration(scope: Scope, document: dict[str, Any], around: Surroundings) -> Configuration | None:
    """Check the keys outside of `plugins` that a runtime reads. Returns the network's model, or None after a fault."""
    outer = {k: v for k, v in document.items() if k != "plugins"}
    listed = document.get("plugins")
    if listed is not None and not isinstance(listed, list):
        scope.error(("plugins",), f"{shown(listed)}: want a list", "write [...]")
    elif listed == []:
        scope.error(("plugins",), "is empty: the network attaches nothing", 'add {"type": "macvlan", ...}')
    elif listed is None and document.get("loadOnlyInlinedPlugins") is True:
        scope.error(("loadOnlyInlinedPlugins",), "there is no list `plugins`, and no other file may have it", "add it")
        outer.pop("loadOnlyInlinedPlugins")
    if around.nad and not outer.get("name"):
        outer["name"] = around.name or "unnamed"  # Multus gives a nameless network the NAD's name
    written = str(member(document, "cniVersion") or "")
    begun = [v for v in SUPPORTED if written and v.startswith(written.removeprefix("v"))]
    likely = begun[-1] if begun else near(written, SUPPORTED) or _NEWEST_COMMON
    fixes = {"name": "write letters, digits, _ . -, the first a letter or digit", "cniVersion": f'write "{likely}"'}
    found: Configuration | None = scope.model(Configuration, outer, fixes=fixes)
    return found


def _versions(scope: Scope, document: dict[str, Any]) -> None:
    if member(document, "cniVersion") in (None, "") and not document.get("cniVersions"):
        message = "no cniVersion is named: it counts as 0.1.0, which has no interfaces in results, no CHECK, and one address a family"
        scope.warn(("cniVersion",), message, f'add "cniVersion": "{_NEWEST_COMMON}"')
    for i, version in enumerate(_strings(document.get("cniVersions"))):
        if version not in SUPPORTED:
            scope.warn(("cniVersions", i), f"{shown(version)} is not known", f"write one of {', '.join(SUPPORTED)}")


def _strings(value: Any) -> Sequence[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _plugin(scope: Scope, keys: Keys, document: dict[str, Any], around: Surroundings, alone: bool = False) -> None:
    kind = member(document, "type")
    if kind is None and (meant := next((n for n in document if near(n, ("type",))), "")):
        scope.error((*keys, meant), f'a plugin has no key "{meant}"', 'write "type"', at_key=True)
    else:
        name = "the name of an executable"
        if isinstance(kind, str) and "/" in kind:
            name = f'"{kind.rstrip("/").rpartition("/")[2]}", without a directory'
        scope.model(PluginModel, document, keys, {"type": f"write {name}"})
    at = (*keys, "type")
    if not isinstance(kind, str) or not kind or "/" in kind:
        pass
    elif known.own(kind) == known.OWN_IPAM or (kind in known.IPAMS and kind not in known.LINKS):
        message = f"{kind} gives addresses alone: it makes no interface"
        scope.error(at, message, f'write "ipam": {{"type": "{kind}", ...}} inside a plugin such as macvlan')
    else:
        executable(scope, at, kind, known.PLUGINS, "plugin")
    if not alone:
        for name in ("name", "cniVersion"):
            own, outer = member(document, name), member(scope.root.data, name)
            if own is not None and outer is not None and own != outer:
                message = f"{shown(own)} of a plugin has no effect: the runtime writes the list's, {shown(outer)}"
                scope.warn((*keys, name), message, "remove it", at_key=True)
    if member(document, "prevResult") is not None:
        scope.warn((*keys, "prevResult"), "is written by the runtime", "remove it", at_key=True)
    plugin.examine(scope, keys, document, around)


def _chain(scope: Scope, listed: list[Any]) -> None:
    kinds = [member(entry, "type") for entry in listed]
    makers: list[str] = []
    for i, kind in enumerate(kinds):
        if not isinstance(kind, str):
            continue
        at = ("plugins", i, "type")
        if kind in known.CHAINED and not makers and all(isinstance(k, str) and k in known.CHAINED for k in kinds[:i]):
            later = next((k for k in kinds[i:] if isinstance(k, str) and k in known.LINKS), "")
            fix = f"put it after {later}" if later else 'put a plugin such as {"type": "macvlan", ...} before it'
            if kind != "loopback" or len(kinds) > 1:
                scope.error(at, f"{kind} changes the interface of a plugin before it, and there is no such plugin", fix)
        names_device = member(listed[i], "verbsDevice") or member(listed[i], "deviceID")
        is_chained = known.own(kind) == known.OWN_CHAINED and not names_device
        if is_chained and (sharing := [m for m in makers if m in known.SHARING]):
            message = f"{kind} moves the verbs device of a whole NIC or VF, and {sharing[0]} makes a link beside it: its ADD fails"
            scope.error(at, message, "remove it: links share the verbs device; or take host-device or sriov before it")
        if kind in known.LINKS:
            if makers:
                message = f"{kind} makes a second interface, of the same name as that of {makers[0]}: its ADD fails"
                scope.error(at, message, "write a network for each, and name both in the pod's annotation")
            makers.append(kind)


def examine_plugin(scope: Scope, outer: dict[str, Any], around: Surroundings) -> None:
    """Add the faults of the plugin in `scope`, which libcni appends from its own file to the conflist `outer`."""
    _plugin(scope, (), scope.root.data, _inside(around, outer, None), alone=True)


# --- a NetworkAttachmentDefinition (NAD), without the rules for its network ---


def is_nad(document: Any) -> bool:
    """Whether a Kubernetes object is meant to be a NAD, by its API group, or by its kind, which may be misspelt."""
    group = string_at(document, "apiVersion").partition("/")[0]
    return near(string_at(document, "kind"), (KIND,)) != "" or group == GROUP


def examine_nad(scope: Scope, around: Surroundings) -> None:
    """Add the faults of the NAD in `scope`, and of the network in the NAD, to the findings."""
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
    """Check that the NAD's namespace has a valid name, and that no other NAD of this namespace has the NAD's name."""
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
            examine(scope.inside(node), around)
        return
    inner = reader.of_json(reader.string(scope, node), scope.findings, scope.network)
    if inner is None:
        return
    reader.duplicates(inner)
    written = string_at(inner.root.data, "name")
    if written and scope.network and written != scope.network:
        message = f"the network is called {written}, and its NAD {scope.network}: leases and records go by the first"
        inner.warn(("name",), message, f'write "{scope.network}"')
    examine(inner, around)
