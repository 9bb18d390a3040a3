"""The networks of NVIDIA's Network Operator (mellanox.com/v1alpha1) and of the SR-IOV Network Operator, rendered to the
NADs that they make of them.

An operator writes a NAD as text, with the resource's strings in it as they are, and reads that text as YAML. So does
this module: text that is no YAML or JSON there is none here, and the JSON has the operator's spacing. Its own
bookkeeping (labels, revision, owner) is left out.

Sources: Mellanox/network-operator: manifests/state-{macvlan,hostdevice,ipoib}-network, pkg/state, api/v1alpha1;
k8snetworkplumbingwg/sriov-network-operator: bindata/manifests/cni-config/sriov, api/v1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cni.library.documents import jsontext, reader
from cni.library.documents.diagnostic import ERROR, Diagnostic
from cni.library.documents.networks import RESOURCE_NAME
from cni.library.documents.refusals import shown
from cni.library.documents.scope import Scope
from cni.library.documents.tree import TreeNode
from cni.library.lint import known

VERSION = "mellanox.com/v1alpha1"
_RESOURCE_PREFIX = "nvidia.com/"
SRIOV_PREFIX = "openshift.io"  # RESOURCE_PREFIX of the SR-IOV Network Operator; NVIDIA's chart sets nvidia.com
_RESOURCE = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_GO_SPACE = re.compile("[\t\n\v\f\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")  # unicode.IsSpace
_MOST = (1 << 63) - 1


def _resource(text: str) -> str:
    if not _RESOURCE.fullmatch(text.removeprefix(_RESOURCE_PREFIX)):
        raise ValueError("want letters, digits, - _ . with a letter or digit first and last, such as hostdev")
    return text


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    networkNamespace: str = ""
    ipam: str = ""


class MacvlanNetwork(_Spec):
    """The spec of a MacvlanNetwork; `mtu` in bytes, 0 for the master's."""

    master: str = ""
    mode: Literal["", "bridge", "private", "vepa", "passthru"] = ""
    mtu: Annotated[int, Field(ge=0, le=_MOST)] = 0
    metaPlugins: str = ""


class HostDeviceNetwork(_Spec):
    """The spec of a HostDeviceNetwork; `resourceName` with or without the prefix nvidia.com/."""

    resourceName: Annotated[str, AfterValidator(_resource)]
    metaPlugins: str = ""


class IPoIBNetwork(_Spec):
    """The spec of an IPoIBNetwork."""

    master: str = ""


class SriovNetwork(_Spec):
    """The spec of a SriovNetwork; rates in Mbit/s, -1 for those that are not given."""

    resourceName: Annotated[str, AfterValidator(_resource)]
    capabilities: str = ""
    vlan: Annotated[int, Field(ge=0, le=4096)] = 0
    vlanQoS: Annotated[int, Field(ge=0, le=7)] = 0
    vlanProto: Literal["", "802.1q", "802.1Q", "802.1ad", "802.1AD"] = ""
    spoofChk: Literal["", "on", "off"] = ""
    trust: Literal["", "on", "off"] = ""
    linkState: Literal["", "auto", "enable", "disable"] = ""
    minTxRate: Annotated[int, Field(ge=-1)] = -1
    maxTxRate: Annotated[int, Field(ge=-1)] = -1
    logLevel: Literal["", "panic", "error", "warning", "info", "debug"] = ""
    logFile: str = ""
    metaPlugins: str = ""


KINDS: dict[str, type[_Spec]] = {
    "MacvlanNetwork": MacvlanNetwork,
    "HostDeviceNetwork": HostDeviceNetwork,
    "IPoIBNetwork": IPoIBNetwork,
    "SriovNetwork": SriovNetwork,
}
VERSIONS = {"SriovNetwork": "sriovnetwork.openshift.io/v1"}


def is_network(document: Any) -> bool:
    """Whether a Kubernetes object is one of these networks, or was meant to be one."""
    if not isinstance(document, dict):
        return False
    kind, group = str(document.get("kind")), str(document.get("apiVersion", "")).partition("/")[0]
    if kind in KINDS or group != VERSION.partition("/")[0]:
        return kind in KINDS
    return known.near(kind, KINDS) != ""


def render_files(paths: Iterable[str], prefix: str = SRIOV_PREFIX) -> tuple[list[dict[str, Any]], list[Diagnostic]]:
    """The NADs of the networks in the files `paths`, "-" for stdin; objects of other kinds are passed over."""
    nads: list[dict[str, Any]] = []
    findings: list[Diagnostic] = []
    for path in paths:
        shown_path, before = reader.shown_path(path), len(findings)
        try:
            text = reader.read_text(path)
        except OSError as fault:
            findings.append(reader.unreadable(shown_path, fault))
            continue
        found = 0
        for _, document in reader.documents(shown_path, text, findings):
            for scope in reader.objects(document):
                if is_network(scope.root.data):
                    found += 1
                    reader.duplicates(scope)
                    nads += filter(None, [render(scope, prefix)])
        if not found and len(findings) == before:
            findings.append(reader.about(shown_path, f"there is none of {', '.join(KINDS)}", "name another file"))
    return nads, findings


def render(scope: Scope, prefix: str = SRIOV_PREFIX) -> dict[str, Any] | None:
    """The NAD of the network in `scope`; None when it has faults, which are noted. `prefix`: of a SriovNetwork's resource."""
    document, findings = scope.root.data, scope.findings
    before = len(findings)
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        scope.error(("metadata", "name"), f"{shown(name)}: want a name", 'write "name": ... below metadata')
        return None
    scope.network = name
    kind = known.near(str(document.get("kind")), KINDS)
    for key, wanted in (("kind", kind), ("apiVersion", VERSIONS.get(kind, VERSION))):
        if document.get(key) != wanted:
            scope.error((key,), f"{shown(document.get(key))}: want {wanted}", f"write {wanted}")
    if yaml.safe_load(f"name: {name}")["name"] != name:
        message = f"{shown(name)}: the operator writes it without quotes, and YAML reads something else"
        scope.error(("metadata", "name"), message, "choose a name that begins with a letter")
    spec = _spec(scope, kind, document)
    if spec is None:
        return None
    _check_texts(scope, spec)
    if any(f.severity == ERROR for f in findings[before:]):
        return None
    nad = _nad(name, spec, str(metadata.get("namespace") or "default"), prefix)
    try:
        config = yaml.safe_load("'" + _text(name, spec) + "'")
        json.loads(config)
    except (yaml.YAMLError, ValueError) as fault:
        message = f"the text that the operator makes of it is no JSON: {fault}"
        scope.error(("spec",), message.split("\n")[0], "check the quotes in its strings")
        return None
    nad["spec"] = {"config": config}
    return nad


def _spec(scope: Scope, kind: str, document: dict[str, Any]) -> _Spec | None:
    model = KINDS[kind]
    written = document.get("spec") or {}
    if not isinstance(written, dict):
        scope.error(("spec",), f"{shown(written)}: want an object", "write its keys below spec:")
        return None
    before = len(scope.findings)
    for key in written:
        if key not in model.model_fields:
            message = f'a {kind} has no key "{key}": Kubernetes drops it'
            scope.error(("spec", key), message, known.remedy(key, model.model_fields), at_key=True)
    given = {k: v for k, v in written.items() if k in model.model_fields and v is not None}
    if given.get("mode") == "":
        scope.error(("spec", "mode"), '"": want one of bridge, private, vepa, passthru', "remove it, or write bridge")
    fixes = {
        "ipam": "write ipam: | and the JSON below it",
        "mtu": "write a number, such as 9000",
        "mode": "write bridge",
        "resourceName": "write hostdev",
    }
    spec: _Spec | None = scope.model(model, given, ("spec",), fixes)
    if kind == "HostDeviceNetwork" and spec is not None and not spec.networkNamespace:
        message = "the operator has no default for it here, and Kubernetes takes no NAD without a namespace"
        scope.error(("spec", "networkNamespace"), message, "add networkNamespace: default")
    return spec if len(scope.findings) == before else None


def _check_texts(scope: Scope, spec: _Spec) -> None:
    """Whether the strings that become part of the NAD's text leave it JSON, and YAML."""
    for key in ("networkNamespace", "master"):
        text = getattr(spec, key, "")
        plain = re.fullmatch(r"[A-Za-z0-9._@:-]+", text)
        if text and (not plain or (key == "networkNamespace" and yaml.safe_load(f"a: {text}")["a"] != text)):
            scope.error(("spec", key), f"{shown(text)}: the operator writes it without escapes", "write a plain name")
    for key, opening, closing in (("ipam", "", ""), ("capabilities", "", ""), ("metaPlugins", "[", "]")):
        text = getattr(spec, key, "")
        if not text:
            continue
        if "'" in text.replace("''", ""):
            scope.error(("spec", key), "an apostrophe ends the operator's text", "write '' for it")
        if key == "metaPlugins" and text.lstrip().startswith("["):
            scope.error(("spec", key), "the operator puts the brackets around it", "write the plugins without [ and ]")
            continue
        try:
            root = jsontext.parse(opening + text + closing)
        except jsontext.Fault as fault:
            _, node, _ = scope.root.walk(("spec", key))
            inner = Scope(reader.string(scope, node), node, scope.findings, scope.network)
            start, end = (min(max(0, at - len(opening)), len(text)) for at in (fault.start, fault.end))
            inner.span(ERROR, start, end, f"spec.{key}", f"not JSON: {fault}", fault.fix)
        else:
            _check_values(scope, key, root, not isinstance(spec, SriovNetwork))


def _check_values(scope: Scope, key: str, root: TreeNode, squeezes: bool) -> None:
    values = root.items or [] if key == "metaPlugins" else [root]
    if any(value.members is None for value in values):
        scope.error(
            ("spec", key),
            f"{shown(root.data)[:60]}: want {'objects' if key == 'metaPlugins' else 'an object'}",
            "write {...}",
        )
    if key == "ipam" and squeezes:
        for value in _strings(root.data):
            if _GO_SPACE.search(value):
                message = f"{shown(value)}: the operator removes the white space in it, and calls it {_GO_SPACE.sub('', value)}"
                scope.warn(("spec", key), message, "write it without")


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(inner)


# --- what the operator writes ---


def _nad(name: str, spec: _Spec, namespace: str, prefix: str) -> dict[str, Any]:
    of_own = namespace if isinstance(spec, SriovNetwork) else "default"
    metadata: dict[str, Any] = {"name": name, "namespace": spec.networkNamespace or of_own}
    if isinstance(spec, SriovNetwork):
        metadata["annotations"] = {RESOURCE_NAME: f"{prefix}/{spec.resourceName}"}
    if isinstance(spec, HostDeviceNetwork):
        resource = _RESOURCE_PREFIX + spec.resourceName.removeprefix(_RESOURCE_PREFIX)
        metadata["annotations"] = {RESOURCE_NAME: resource}
    return {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": metadata}


def _sriov(spec: SriovNetwork) -> str:
    given = {
        "spoofchk": spec.spoofChk,
        "trust": spec.trust,
        "vlanQoS": spec.vlanQoS or None,
        "vlanProto": spec.vlanProto,
        "min_tx_rate": spec.minTxRate if spec.minTxRate >= 0 else None,
        "max_tx_rate": spec.maxTxRate if spec.maxTxRate >= 0 else None,
        "capabilities": spec.capabilities and json.loads(spec.capabilities),
        "link_state": spec.linkState,
        "logLevel": spec.logLevel,
        "logFile": spec.logFile,
    }
    parts = {"type": "sriov", "vlan": spec.vlan, **{k: v for k, v in given.items() if v not in (None, "")}}
    return "".join(f'"{key}":{json.dumps(value)},' for key, value in parts.items())


def _text(name: str, spec: _Spec) -> str:
    """The text that stands between the single quotes of the NAD's config."""
    head = f'{{\n  "cniVersion":"0.3.1",\n  "name":"{name}",'
    squeezed = f'"ipam":{_GO_SPACE.sub("", spec.ipam) or "{}"}'
    if isinstance(spec, IPoIBNetwork):
        return f'{head}\n  "type":"ipoib",\n  "master": "{spec.master}",\n  {squeezed}\n}}'
    if isinstance(spec, SriovNetwork):
        head, plugin = head.replace("0.3.1", "1.0.0"), _sriov(spec) + f'"ipam":{spec.ipam or "{}"}'
    elif isinstance(spec, MacvlanNetwork):
        plugin = '"type":"macvlan",'
        plugin += f'"master": "{spec.master}",' if spec.master else ""
        plugin += f'"mode" : "{spec.mode}",' if spec.mode else ""
        plugin += f'"mtu" : {spec.mtu},' if spec.mtu else ""
        plugin += squeezed
    else:
        plugin = f'"type":"host-device",\n  "ipam":{spec.ipam or "{}"}'
    more = getattr(spec, "metaPlugins", "")
    if more:
        return f'{head}\n  "plugins": [\n    {{\n  {plugin}\n}}\n  ,\n  {more}\n  ]\n}}\n'
    return f"{head}\n  {plugin}\n}}\n"
