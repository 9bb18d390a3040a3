"""Render networks of NVIDIA's Network Operator (mellanox.com/v1alpha1) and of the SR-IOV Network Operator as NADs.

The NADs have the keys and values that the operators write, but another layout and no metadata of the operators (labels,
revision, owner).

Sources: Mellanox/network-operator: manifests/state-{macvlan,hostdevice,ipoib}-network, pkg/state, api/v1alpha1;
k8snetworkplumbingwg/sriov-network-operator: bindata/manifests/cni-config/sriov, api/v1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from cni.documents import reader
from cni.documents.diagnostic import ERROR, Diagnostic, Scope, correction, near, shown
from cni.documents.models import matching
from cni.documents.networks import RESOURCE_NAME
from cni.documents.tree import string_at, value_at

VERSION = "mellanox.com/v1alpha1"
_RESOURCE_PREFIX = "nvidia.com/"
SRIOV_PREFIX = "openshift.io"  # RESOURCE_PREFIX of the SR-IOV Network Operator; NVIDIA's chart sets nvidia.com
_RESOURCE = re.compile(rf"({re.escape(_RESOURCE_PREFIX)})?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_NAMES = "want letters, digits, - _ . with a letter or digit first and last, such as hostdev"
_MOST = (1 << 63) - 1


class _Spec(BaseModel):
    """The spec of an operator's network. The plugin in the NAD has the keys of `plugin` and each field that is not
    marked `exclude`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    api: ClassVar[str] = VERSION
    cni_version: ClassVar[str] = "0.3.1"
    plugin: ClassVar[dict[str, Any]] = {}
    networkNamespace: str = Field("", exclude=True)
    ipam: str = Field("", exclude=True)


class MacvlanNetwork(_Spec):
    """The spec of a MacvlanNetwork; `mtu` is in bytes, 0 for the MTU of the master."""

    plugin = {"type": "macvlan"}
    master: str = ""
    mode: Literal["", "bridge", "private", "vepa", "passthru"] = ""
    mtu: Annotated[int, Field(ge=0, le=_MOST)] = 0
    metaPlugins: str = Field("", exclude=True)


class HostDeviceNetwork(_Spec):
    """The spec of a HostDeviceNetwork; `resourceName` may have the prefix nvidia.com/."""

    plugin = {"type": "host-device"}
    resourceName: Annotated[str, matching(_RESOURCE.fullmatch, _NAMES)] = Field(exclude=True)
    metaPlugins: str = Field("", exclude=True)


class IPoIBNetwork(_Spec):
    plugin = {"type": "ipoib", "master": ""}
    master: str = ""


class SriovNetwork(_Spec):
    """The spec of a SriovNetwork. Rates are in Mbit/s, -1 when they are not given."""

    api = "sriovnetwork.openshift.io/v1"
    cni_version = "1.0.0"
    plugin = {"type": "sriov", "vlan": 0}
    resourceName: Annotated[str, matching(_RESOURCE.fullmatch, _NAMES)] = Field(exclude=True)
    vlan: Annotated[int, Field(ge=0, le=4096)] = 0
    spoofChk: Literal["", "on", "off"] = Field("", serialization_alias="spoofchk")
    trust: Literal["", "on", "off"] = ""
    vlanQoS: Annotated[int, Field(ge=0, le=7)] = 0
    vlanProto: Literal["", "802.1q", "802.1Q", "802.1ad", "802.1AD"] = ""
    minTxRate: int = Field(-1, ge=-1, serialization_alias="min_tx_rate")
    maxTxRate: int = Field(-1, ge=-1, serialization_alias="max_tx_rate")
    capabilities: str = ""
    linkState: Literal["", "auto", "enable", "disable"] = Field("", serialization_alias="link_state")
    logLevel: Literal["", "panic", "error", "warning", "info", "debug"] = ""
    logFile: str = ""
    metaPlugins: str = Field("", exclude=True)


_SPECS: tuple[type[_Spec], ...] = (MacvlanNetwork, HostDeviceNetwork, IPoIBNetwork, SriovNetwork)
KINDS = {spec.__name__: spec for spec in _SPECS}


def is_network(document: Any) -> bool:
    """Whether `document` has a kind in KINDS. In NVIDIA's API group, the kind may be misspelt."""
    kind, group = string_at(document, "kind"), string_at(document, "apiVersion").partition("/")[0]
    return kind in KINDS or (group == VERSION.partition("/")[0] and near(kind, KINDS) != "")


def render_files(paths: Iterable[str], prefix: str = SRIOV_PREFIX) -> tuple[list[dict[str, Any]], list[Diagnostic]]:
    """Return the NADs for the operators' networks in the files `paths` ("-" for stdin), and the findings. Other objects
    are skipped. `prefix` precedes the resource of an SriovNetwork, such as openshift.io in openshift.io/NAME."""
    nads: list[dict[str, Any]] = []
    findings: list[Diagnostic] = []
    for path in paths:
        before, found = len(findings), 0
        for _, document in reader.documents(path, None, findings):
            for scope in reader.objects(document):
                if is_network(scope.root.data):
                    found += 1
                    reader.duplicates(scope)
                    nads += filter(None, [render(scope, prefix)])
        if not found and len(findings) == before:
            findings.append(reader.about(path, f"there is none of {', '.join(KINDS)}", "name another file"))
    return nads, findings


def render(scope: Scope, prefix: str = SRIOV_PREFIX) -> dict[str, Any] | None:
    """Return the NAD for the operator's network in `scope`. If the network is faulty, return None, and add findings.
    `prefix` precedes the resource of an SriovNetwork, such as openshift.io in openshift.io/NAME."""
    document, findings = scope.root.data, scope.findings
    before = len(findings)
    scope.network = name = string_at(document, "metadata", "name")
    if not name:
        found = shown(value_at(document, "metadata", "name"))
        scope.error(("metadata", "name"), f"{found}: want a name", 'write "name": ... below metadata')
        return None
    kind = near(str(document.get("kind")), KINDS)
    for key, wanted in (("kind", kind), ("apiVersion", KINDS[kind].api)):
        if document.get(key) != wanted:
            scope.error((key,), f"{shown(document.get(key))}: want {wanted}", f"write {wanted}")
    spec = _spec(scope, kind, document)
    if spec is None:
        return None
    config = _config(scope, name, spec)
    if any(f.severity == ERROR for f in findings[before:]):
        return None
    nad = _nad(name, spec, str(value_at(document, "metadata", "namespace") or "default"), prefix)
    nad["spec"] = {"config": json.dumps(config, indent=2) + "\n"}
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
            scope.error(("spec", key), message, correction(key, model.model_fields), at_key=True)
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


def _objects(scope: Scope, spec: _Spec, key: str) -> list[Any]:
    """Return the JSON objects in the text of the field `key`, and add faults to the findings. The field metaPlugins is
    a JSON list without its brackets; other fields are one object."""
    text, is_list = getattr(spec, key, ""), key == "metaPlugins"
    if not text:
        return []
    if is_list and text.lstrip().startswith("["):
        scope.error(("spec", key), "the operator puts the brackets around it", "write the plugins without [ and ]")
        return []
    inner = reader.json_inside(scope, ("spec", key), is_list)
    if inner is None:
        return []
    root = inner.root.data
    found = root if is_list else [root]
    if not all(isinstance(one, dict) for one in found):
        wanted = "objects" if is_list else "an object"
        scope.error(("spec", key), f"{shown(root)}: want {wanted}", "write {...}")
    return list(found)


# --- the NAD ---


def _nad(name: str, spec: _Spec, namespace: str, prefix: str) -> dict[str, Any]:
    of_own = namespace if isinstance(spec, SriovNetwork) else "default"
    metadata: dict[str, Any] = {"name": name, "namespace": spec.networkNamespace or of_own}
    if isinstance(spec, SriovNetwork):
        metadata["annotations"] = {RESOURCE_NAME: f"{prefix}/{spec.resourceName}"}
    if isinstance(spec, HostDeviceNetwork):
        resource = _RESOURCE_PREFIX + spec.resourceName.removeprefix(_RESOURCE_PREFIX)
        metadata["annotations"] = {RESOURCE_NAME: resource}
    return {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": metadata}


def _config(scope: Scope, name: str, spec: _Spec) -> dict[str, Any]:
    """The configuration in the operator's NAD for `spec`: a conflist if it has metaPlugins, else a single plugin."""
    ipam, capabilities, chained = (_objects(scope, spec, key) for key in ("ipam", "capabilities", "metaPlugins"))
    plugin = {**spec.plugin, **spec.model_dump(by_alias=True, exclude_defaults=True)}
    if capabilities:
        plugin["capabilities"] = capabilities[0]
    plugin["ipam"] = ipam[0] if ipam else {}
    head = {"cniVersion": spec.cni_version, "name": name}
    return {**head, "plugins": [plugin, *chained]} if chained else {**head, **plugin}
