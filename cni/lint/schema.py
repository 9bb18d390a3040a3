"""The JSON Schema of the plugins' configurations, made from the tables of keys that the plugins use.

Each reader (the function that parses a key's value) has a rule: a JSON Schema that accepts the same values, as far as
JSON Schema can express them. It cannot express that the case of keys is ignored, whether an address is valid, or how
keys depend on each other. If a reader has no rule, any value is valid.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from cni.link import features, plugins
from cni.link.plugins import LINK_PLUGINS, rdma
from cni.link.plugins.sriov import plugin as sriov
from cni.lint import known
from cni.shared import config, rail
from cni.shared.config import Key
from cni.shared.spec.request import SUPPORTED
from ipam import keys

Rule = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_LONGEST = 4095  # characters of a string, cni.shared.config
_SPACE = "".join(f"\\u{c:04x}" for c in range(0x3100) if chr(c).isspace())
_HEX = "[0-9a-fA-F]"
_MAC = (  # a unicast MAC that is not all zeros
    rf"^(?![0:.\-]*$)({_HEX}?[02468aceACE]([:\-]{_HEX}{{1,2}}){{5}}|{_HEX}[02468aceACE]{_HEX}{{2}}([.]{_HEX}{{4}}){{2}})$"
)
_PCI = f"^{_HEX}{{4,}}:{_HEX}{{2}}:{_HEX}{{2}}[.]{_HEX}$"
_SLICE = "^/?(0{0,2}[1-9]|0?[1-9][0-9]|1[01][0-9]|12[0-8])$"
_STRING, _NULL, _SWITCH = {"type": "string"}, {"type": "null"}, {"type": "boolean"}
_OBJECT = {"additionalProperties": True, "type": "object"}
_RANGE = {"anyOf": [_STRING, _OBJECT]}
_NAME = {**_STRING, "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$"}


def _text(pattern: str = "^[^\\u0000]*$", longest: int = _LONGEST) -> Rule:
    return {"maxLength": longest, "pattern": pattern, **_STRING}


def _list(items: Rule, **bounds: int) -> Rule:
    return {"items": items, **bounds, "type": "array"}


_RULES: dict[Callable[[Any], Any], Rule] = {
    config.string: _text(),
    config.netdev: _text(rf"^[^/\u0000{_SPACE}]*$", 127),
    config.boolean: _SWITCH,
    config.mapping: _OBJECT,
    config.dns_settings: _OBJECT,
    config.hardware_address: _text(_MAC),
    config.ipam_block: {  # the block of whereabouts, or any other object with a type
        "if": {
            "properties": {"type": {"enum": [known.OWN_IPAM, f"{known.PREFIX}{known.OWN_IPAM}"]}},
            "required": ["type"],
        },
        "properties": {"type": {"anyOf": [_STRING, _NULL]}},
        "then": {"$ref": f"#/$defs/{known.OWN_IPAM}"},
        "type": "object",
    },
    keys.address: _text("^[0-9A-Fa-f:.]+$"),
    keys.interface_address: _text("^[0-9A-Fa-f:.]+/[0-9]+$"),
    keys.destination: _text("^[0-9A-Fa-f:.]+/[0-9]+$"),
    keys.absolute_path: _text("^/[^\\u0000]*$"),
    keys.etcd_prefix: _text("^/[ -~]*$", 200),
    keys.slice_size: _text(_SLICE),
    keys.log_level: _text(),
    rail.group: _text("^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$"),
    rail.ranges: {"anyOf": [_STRING, _OBJECT, _list(_RANGE, maxItems=rail.MOST_RAILS, minItems=1)]},
    rdma.device_name: _text("^[^/\\u0000]*$"),
    sriov.pci_address: _text(_PCI),
    sriov.vlan_protocol: _text("^802[.]1([qQ]|[aA][dD])$"),
}


def rule_of(read: Callable[[Any], Any]) -> Rule:
    """The JSON Schema of the values that the parser `read` accepts. An unknown parser gives {}: any value is valid."""
    kind = getattr(read, "__qualname__", "").partition(".<locals>")[0]
    if read in _RULES or kind not in ("integer", "one_of", "list_of", "optional"):
        return _RULES.get(read, {})
    made_of = inspect.getclosurevars(read).nonlocals
    if kind == "integer":
        return {"maximum": made_of["high"], "minimum": made_of["low"], "type": "integer"}
    if kind == "one_of":
        choices = made_of["choices"]
        return {**({"enum": [*choices]} if len(choices) > 1 else {"const": choices[0]}), **_STRING}
    inner = rule_of(made_of["read"])
    if kind == "list_of":
        return _list(inner, maxItems=made_of["most"])
    return {"anyOf": [{"const": "", **_STRING}, inner]} if inner else {}


def table(name: str, members: Iterable[Key], definitions: dict[str, Rule], about: str = "") -> Rule:
    """The JSON Schema of an object with the keys `members`, the title `name` and the description `about`. The schema of
    each nested object is added to `definitions`: a key "a.b" means a nested object "a" with the key "b"."""
    members = list(members)
    properties: dict[str, Rule] = {}
    for key in members:
        outer, _, inner = key.name.partition(".")
        if inner:
            if outer not in definitions:
                nested = [k for k in members if k.name.startswith(outer + ".")]
                nested = [Key(k.read, k.default, k.name.partition(".")[2]).means(k.doc) for k in nested]
                definitions[outer] = table(f"{name}.{outer}", nested, definitions)
            properties[outer] = {"anyOf": [{"$ref": f"#/$defs/{outer}"}, _NULL], "default": None}
            continue
        rule = rule_of(key.read)
        extra = next((name for name in features.NAMES if features.named(name).KEY is key), "")
        if extra:  # an object or, if the reader accepts these, a boolean or word
            definitions[extra] = table(extra, features.named(extra).KEYS, definitions)
            more = [] if key.read is config.mapping else [_SWITCH, {"const": "auto", **_STRING}]
            rule = {"anyOf": [{"$ref": f"#/$defs/{extra}"}, *more]} if more else {"$ref": f"#/$defs/{extra}"}
        elif key.name in keys.MEMBERS and key in keys.BLOCK_KEYS:
            definitions[key.name] = table(key.name, keys.MEMBERS[key.name], definitions)
            rule = _list({"$ref": f"#/$defs/{key.name}"})
        default = list(key.default) if isinstance(key.default, tuple) else key.default
        properties[key.name] = {
            **({"anyOf": [*rule.get("anyOf", [rule]), _NULL]} if rule else {}),
            "default": default,
            "description": key.doc,
            **({} if "$ref" in rule else {"title": key.name.title().replace("_", " ")}),
        }
    described = {"description": about} if about else {}
    return {"additionalProperties": True, **described, "properties": properties, "title": name, "type": "object"}


def schema(name: str) -> Rule:
    """The JSON Schema (2020-12) of `name`: a link plugin, "rdma", "whereabouts" (the `ipam` block) or "conflist"."""
    inner: dict[str, Rule] = {}
    definitions: dict[str, Rule] = {}
    about = "The ipam block of type whereabouts, and the flat file."
    whereabouts = table(known.OWN_IPAM, keys.BLOCK_KEYS, inner, about)
    if name == known.OWN_IPAM:
        document = whereabouts
    else:
        document = _conflist(definitions) if name == "conflist" else _plugin(name, definitions)
    if name not in (known.OWN_IPAM, known.OWN_CHAINED):  # has `ipam`
        definitions[known.OWN_IPAM] = whereabouts
    if name != known.OWN_CHAINED:
        definitions |= inner
    return {"$schema": DRAFT, **document, **({"$defs": definitions} if definitions else {})}


def _plugin(name: str, definitions: dict[str, Rule]) -> Rule:
    if name == known.OWN_CHAINED:
        document = table(name, rdma.KEYS, definitions, f"A configuration of the chained plugin {name}.")
    else:
        members = [*plugins.named(name).KEYS, *(features.named(extra).KEY for extra in features.NAMES)]
        about = f"A configuration of the plugin {name}; keys match without regard to case."
        document = table(name, members, definitions, about)
    runtime = {"type": {"enum": [name, f"{known.PREFIX}{name}"]}, "name": _NAME, "cniVersion": {"enum": [*SUPPORTED]}}
    return {**document, "properties": {**runtime, **document["properties"]}, "required": ["type"]}


def _conflist(definitions: dict[str, Rule]) -> Rule:
    """The schema of a conflist. The schema of each railcni plugin is added to `definitions`."""
    branches = []
    for name in (*LINK_PLUGINS, known.OWN_CHAINED):
        prefixed = f"{known.PREFIX}{name}"  # the key `rdma` has a definition of this name
        document = definitions[prefixed] = _plugin(name, definitions)
        ours = {"properties": {"type": document["properties"]["type"]}, "required": ["type"]}
        branches.append({"if": ours, "then": {"$ref": f"#/$defs/{prefixed}"}})
    entry = {"type": "object", "required": ["type"], "properties": {"type": _STRING}, "allOf": branches}
    switch = {"anyOf": [_SWITCH, {"enum": ["true", "false"]}]}
    return {
        "title": "conflist",
        "type": "object",
        "properties": {
            "name": _NAME,
            "cniVersion": {"enum": [*SUPPORTED]},
            "cniVersions": _list(_STRING),
            **dict.fromkeys(("disableCheck", "disableGC", "loadOnlyInlinedPlugins"), switch),
            "plugins": _list(entry, minItems=1),
        },
        "required": ["name", "plugins"],
    }
