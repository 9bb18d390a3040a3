"""The JSON Schema of our plugins' configurations, made of the tables of keys that the plugins read by.

Each table becomes a pydantic model, each reader the type that accepts the same values, as far as JSON Schema
can say it: it cannot say that keys match without regard to case, that an address is one, how keys go together.
A reader that is not known here counts as one that takes anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, WithJsonSchema, create_model

from cni import features, plugins
from cni.library.lint import known
from cni.library.lint.addresses import BLOCK, MEMBERS
from cni.plugins import LINK_PLUGINS
from cni.plugins.rdma import plugin as rdma
from cni.plugins.sriov import plugin as sriov
from cni.shared import config, rail
from cni.shared.config import Key
from cni.shared.spec.versions import SUPPORTED
from ipam import keys

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_LONGEST = 4095  # characters of a string, cni.shared.config
_SPACE = "".join(f"\\u{c:04x}" for c in range(0x3100) if chr(c).isspace())
_HEX = "[0-9a-fA-F]"
_MAC = rf"^(?![0:\-]*$){_HEX}?[02468aceACE]([:\-]{_HEX}{{1,2}}){{5}}$"  # a unicast one, and not all zeros
_PCI = f"^{_HEX}{{4,}}:{_HEX}{{2}}:{_HEX}{{2}}[.]{_HEX}$"
_SLICE = "^/?(0{0,2}[1-9]|0?[1-9][0-9]|1[01][0-9]|12[0-8])$"


def _text(pattern: str = "^[^\\u0000]*$", longest: int = _LONGEST) -> Any:
    return Annotated[StrictStr, Field(pattern=pattern, max_length=longest)]


_RANGE = StrictStr | dict[str, Any]
_TYPES: dict[Callable[[Any], Any], Any] = {
    config.string: _text(),
    config.netdev: _text(rf"^[^/\u0000{_SPACE}]*$", 127),
    config.boolean: StrictBool,
    config.mapping: dict[str, Any],
    config.dns_settings: dict[str, Any],
    config.hardware_address: _text(_MAC),
    keys.address: _text("^[0-9A-Fa-f:.]+$"),
    keys.interface_address: _text("^[0-9A-Fa-f:.]+/[0-9]+$"),
    keys.destination: _text("^[0-9A-Fa-f:.]+/[0-9]+$"),
    keys.absolute_path: _text("^/[^\\u0000]*$"),
    keys.etcd_prefix: _text("^/[ -~]*$", 200),
    keys.slice_size: _text(_SLICE),
    keys.log_level: _text(),
    rail.group: _text("^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$"),
    rail.ranges: _RANGE | Annotated[list[_RANGE], Field(min_length=1, max_length=rail.MOST_RAILS)],
    rdma.device_name: _text("^[^/\\u0000]*$"),
    sriov.pci_address: _text(_PCI),
    sriov.vlan_protocol: _text("^802[.]1([qQ]|[aA][dD])$"),
}
_HERE = {"title": f"the schema of {known.OWN_IPAM}"}  # stands for it while pydantic works: it knows no $ref of others


def type_of(read: Callable[[Any], Any]) -> Any:
    """The type that accepts the values that `read` accepts; Any for a reader that is not known."""
    if read in _TYPES:
        return _TYPES[read]
    kind = getattr(read, "__qualname__", "").partition(".<locals>")[0]
    made_of = inspect.getclosurevars(read).nonlocals if kind in ("integer", "one_of", "list_of", "optional") else {}
    if kind == "integer":
        return Annotated[StrictInt, Field(ge=made_of["low"], le=made_of["high"])]
    if kind == "one_of":
        return Literal[made_of["choices"]]
    if kind == "list_of":
        return Annotated[list[type_of(made_of["read"])], Field(max_length=made_of["most"])]  # type: ignore[misc]
    if kind == "optional":
        inner = type_of(made_of["read"])
        return inner if inner is Any else Literal[""] | inner
    if read is config.ipam_block:
        return Annotated[dict[str, Any], WithJsonSchema(_ipam())]
    return Any


def _ipam() -> dict[str, Any]:
    """The schema of an `ipam` block: that of whereabouts when it is of this type, otherwise any object with a type."""
    whereabouts = {
        "properties": {"type": {"enum": [known.OWN_IPAM, f"{known.PREFIX}{known.OWN_IPAM}"]}},
        "required": ["type"],
    }
    named = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    return {
        "type": "object",
        "properties": {"type": named},
        "if": whereabouts,
        "then": _HERE,
    }


def _extra(name: str) -> Any:
    """An extra takes an object of its keys, and perhaps a word or switch that its reader knows."""
    extra = features.named(name)
    made = table(name, extra.KEYS)
    return made if extra.KEY.read is config.mapping else made | StrictBool | Literal["auto"]


def table(name: str, members: Iterable[Key], about: str = "") -> type[BaseModel]:
    """The model of a table of keys; those with a dot are keys of an inner object."""
    members = list(members)
    fields: dict[str, Any] = {}
    for key in members:
        outer, _, inner = key.name.partition(".")
        if not inner:
            extra = next((name for name in features.NAMES if features.named(name).KEY is key), "")
            kind = _extra(extra) if extra else type_of(key.read)
            if key.name in MEMBERS and key in BLOCK:
                kind = list[table(key.name, MEMBERS[key.name])]  # type: ignore[misc]
            default = list(key.default) if isinstance(key.default, tuple) else key.default
            fields[key.name] = (kind | None if kind is not Any else Any, Field(default, description=key.doc))
        elif outer not in fields:
            nested = [
                Key(k.name.partition(".")[2], k.read, k.default, k.doc)
                for k in members
                if k.name.startswith(outer + ".")
            ]
            fields[outer] = (table(f"{name}.{outer}", nested) | None, Field(None))
    settings = ConfigDict(extra="allow", strict=True, regex_engine="python-re")
    made: type[BaseModel] = create_model(name, __config__=settings, __doc__=about or None, **fields)
    return made


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a plugin's configuration, of the block of whereabouts, or of a conflist."""
    if name == known.OWN_IPAM:
        return {"$schema": DRAFT, **_whereabouts()}
    if name == "conflist":
        return _conflist()
    document = _plugin(name)
    if name == known.OWN_CHAINED:  # has no `ipam`
        return {"$schema": DRAFT, **document}
    return _with_block({"$schema": DRAFT, **document})


def _with_block(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with the schema of whereabouts' block among its definitions, and references to it."""
    inner = _whereabouts()
    definitions = {**document.pop("$defs", {}), **inner.pop("$defs", {}), known.OWN_IPAM: inner}
    linked: dict[str, Any] = _linked({**document, "$defs": definitions})
    return linked


def _linked(part: Any) -> Any:
    """`part` with the reference to the block's schema where it was kept free."""
    if part == _HERE:
        return {"$ref": f"#/$defs/{known.OWN_IPAM}"}
    if isinstance(part, dict):
        return {key: _linked(value) for key, value in part.items()}
    return [_linked(value) for value in part] if isinstance(part, list) else part


def _whereabouts() -> dict[str, Any]:
    return table(known.OWN_IPAM, BLOCK, "The ipam block of type whereabouts, and the flat file.").model_json_schema()


def model(name: str) -> type[BaseModel]:
    """The model of the link plugin `name`."""
    if name == known.OWN_CHAINED:
        return table(name, rdma.KEYS, f"A configuration of the chained plugin {name}.")
    members = [*plugins.named(name).KEYS, *(features.named(extra).KEY for extra in features.NAMES)]
    return table(name, members, f"A configuration of the plugin {name}; keys match without regard to case.")


def _plugin(name: str) -> dict[str, Any]:
    document = model(name).model_json_schema()
    runtime = {
        "type": {"enum": [name, f"{known.PREFIX}{name}"]},
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"},
        "cniVersion": {"enum": list(SUPPORTED)},
    }
    document["properties"] = {**runtime, **document["properties"]}
    return {**document, "required": ["type"]}


def _conflist() -> dict[str, Any]:
    """A list of plugins; those of ours by their own schemas."""
    definitions: dict[str, Any] = {}
    branches = []
    for name in (*LINK_PLUGINS, known.OWN_CHAINED):
        document = _plugin(name)
        definitions |= document.pop("$defs", {})
        prefixed = f"{known.PREFIX}{name}"  # there is a key `rdma` too
        definitions[prefixed] = document
        ours = {"properties": {"type": document["properties"]["type"]}, "required": ["type"]}
        branches.append({"if": ours, "then": {"$ref": f"#/$defs/{prefixed}"}})
    switch = {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}]}
    document = {
        "$schema": DRAFT,
        "title": "conflist",
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"},
            "cniVersion": {"enum": list(SUPPORTED)},
            "cniVersions": {"type": "array", "items": {"type": "string"}},
            "disableCheck": switch,
            "disableGC": switch,
            "loadOnlyInlinedPlugins": switch,
            "plugins": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"type": "string"}},
                    "allOf": branches,
                },
            },
        },
        "required": ["name", "plugins"],
        "$defs": definitions,
    }
    return _with_block(document)
