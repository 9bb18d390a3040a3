"""Conflists, single configurations and NADs as pydantic models.

The models have the keys that a runtime itself reads. It passes all other keys to the plugin. As in Go's encoding/json,
a plugin's keys match in any case, and null counts as absent. Keys of a conflist and a NAD match exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from cni.shared.spec.request import SUPPORTED, is_identifier, member


def matching(fits: Callable[[str], object], wanted: str) -> AfterValidator:
    """A pydantic validator that refuses a text for which `fits` returns a false value, with the message `wanted`."""

    def check(text: str) -> str:
        if not fits(text):
            raise ValueError(wanted)
        return text

    return AfterValidator(check)


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
"""The name of a Kubernetes object, a subdomain of RFC 1123, which has 253 characters at most."""


def is_namespace(text: str) -> bool:
    """Whether `text` is a valid name of a Kubernetes namespace (a label of RFC 1123)."""
    return bool(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text))


def _boolean(value: object) -> object:
    """Turn "true" and "false", in any case, into booleans, as libcni does. Other values are returned unchanged."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


Identifier = Annotated[str, matching(is_identifier, "start with a letter or digit, then letters, digits, _ . -")]
_NAMESPACE = "want the name of a namespace: small letters, digits and -, the first and last no -"
Namespace = Annotated[str, matching(is_namespace, _NAMESPACE)]
_EXECUTABLE = "want the name of an executable in CNI_PATH, without a directory"
Executable = Annotated[str, matching(re.compile(r"(?!\.\.?\Z)[^/]+", re.DOTALL).fullmatch, _EXECUTABLE)]
Switch = Annotated[bool, BeforeValidator(_boolean)]


class DocumentModel(BaseModel):
    """An object whose keys match exactly; unknown keys are ignored."""

    model_config = {"extra": "ignore", "strict": True}


class GoModel(DocumentModel):
    """An object that a Go program reads: its keys match in any case, and null counts as absent."""

    @model_validator(mode="before")
    @classmethod
    def _as_go_reads_it(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        found = {name: member(value, name) for name in cls.model_fields}
        return {name: inner for name, inner in found.items() if inner is not None}


class PluginModel(GoModel):
    """One plugin of a network. `type` is the executable; `capabilities` says which capability arguments it takes."""

    type: Executable
    capabilities: dict[str, bool] = {}


class Configuration(DocumentModel):
    """A conflist. `cniVersion` and `cniVersions` together are the spec versions that the conflist allows."""

    name: Identifier
    cniVersions: list[str] = []
    cniVersion: Annotated[str, Field(validate_default=True)] = ""
    disableCheck: Switch = False
    disableGC: Switch = False
    loadOnlyInlinedPlugins: Switch = False
    plugins: Annotated[list[PluginModel] | None, Field(min_length=1, validate_default=True)] = None

    @field_validator("cniVersion")
    @classmethod
    def _one_is_known(cls, version: str, info: ValidationInfo) -> str:
        others = info.data.get("cniVersions", [])
        if (version or others) and not {version, *others} & {*SUPPORTED}:
            raise ValueError(f"want one of {', '.join(SUPPORTED)}")
        return version

    @field_validator("plugins")
    @classmethod
    def _some_are_named(cls, plugins: list[PluginModel] | None, info: ValidationInfo) -> list[PluginModel] | None:
        if plugins is None and info.data.get("loadOnlyInlinedPlugins"):
            raise ValueError("want a list, since loadOnlyInlinedPlugins is true")
        return plugins

    @property
    def versions(self) -> tuple[str, ...]:
        """The spec versions that the conflist allows, oldest first; 0.1.0 if it names no version."""
        written = {*self.cniVersions, self.cniVersion} - {""} or {SUPPORTED[0]}
        return tuple(v for v in SUPPORTED if v in written)


class Metadata(DocumentModel):
    """The part of a Kubernetes object's metadata that this project reads."""

    name: Annotated[str, Field(min_length=1)]
    namespace: str = ""
    annotations: dict[str, str] | None = None


class Spec(DocumentModel):
    """The spec of a NAD. `config` is the network as JSON text, or "" if a file in the node's net.d has it."""

    config: str = ""


class NetworkAttachmentDefinition(DocumentModel):
    """A NAD, as Multus reads it."""

    apiVersion: Literal["k8s.cni.cncf.io/v1"]
    kind: Literal["NetworkAttachmentDefinition"]
    metadata: Metadata
    spec: Spec = Spec()
