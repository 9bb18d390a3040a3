"""railcni nad schema: the published JSON Schema accepts what the plugins' readers accept, and nothing else, where it can say so."""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni.link import features, plugins
from cni.link.features import routing
from cni.link.features import verbs_device as rdma_key
from cni.link.plugins import LINK_PLUGINS, macvlan, rdma
from cni.link.plugins.host_device import plugin as host_device
from cni.link.plugins.sriov import plugin as sriov
from cni.lint import known, schema
from cni.lint.addresses import FlatFile
from cni.shared.config import Fault, Key, fill
from cni.shared.spec.request import Request
from ipam import config as ipam_config
from ipam import keys
from ipam.source import Source
from tests.blackbox.command import run_any
from tests.cli.test_conf import CONF, CONFLISTS

KNOWN = {"$schema", "$defs", "title", "description", "default", "additionalProperties"}  # they say nothing of a value


def accepts(rule: Any, value: Any, root: dict[str, Any]) -> bool:
    """Whether `value` fits the JSON Schema `rule`: the keywords that ours use (draft 2020-12)."""
    if rule is True:
        return True
    return all(word in KNOWN or WORDS[word](wanted, value, rule, root) for word, wanted in rule.items())


def is_a(kind: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "object": isinstance(value, dict), "array": isinstance(value, list), "string": isinstance(value, str),
        "boolean": isinstance(value, bool), "null": value is None,
        "integer": number and value == value and value not in (float("inf"), float("-inf")) and int(value) == value,
    }[kind]  # fmt: skip


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def found(pattern: str, value: str) -> bool:
    return bool(re.search(pattern.replace("$", r"\Z"), value))  # ECMA's $ is the end alone


def same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


WORDS: dict[str, Any] = {
    "type": lambda w, v, r, root: is_a(w, v),
    "minimum": lambda w, v, r, root: not number(v) or v >= w,
    "maximum": lambda w, v, r, root: not number(v) or v <= w,
    "maxLength": lambda w, v, r, root: not isinstance(v, str) or len(v) <= w,
    "pattern": lambda w, v, r, root: not isinstance(v, str) or found(w, v),
    "enum": lambda w, v, r, root: any(same(x, v) for x in w),
    "const": lambda w, v, r, root: same(w, v),
    "anyOf": lambda w, v, r, root: any(accepts(x, v, root) for x in w),
    "allOf": lambda w, v, r, root: all(accepts(x, v, root) for x in w),
    "if": lambda w, v, r, root: not accepts(w, v, root) or accepts(r["then"], v, root),
    "then": lambda w, v, r, root: True,
    "$ref": lambda w, v, r, root: accepts(root["$defs"][w.removeprefix("#/$defs/")], v, root),
    "required": lambda w, v, r, root: not isinstance(v, dict) or set(w) <= set(v),
    "properties": lambda w, v, r, root: not isinstance(v, dict) or all(accepts(w[k], v[k], root) for k in w if k in v),
    "items": lambda w, v, r, root: not isinstance(v, list) or all(accepts(w, x, root) for x in v),
    "maxItems": lambda w, v, r, root: not isinstance(v, list) or len(v) <= w,
    "minItems": lambda w, v, r, root: not isinstance(v, list) or len(v) >= w,
}

TABLES: dict[str, Sequence[Key]] = {
    "macvlan": macvlan.KEYS,
    "host-device": host_device.KEYS,
    "sriov": sriov.KEYS,
    "rdma of a chain": rdma.KEYS,
    "rdma": rdma_key.KEYS,
    "rail": routing.KEYS,
    "extras": [rdma_key.KEY],  # what is said of `rail` besides, its reader leaves to the table's
    "range": keys.RANGE_KEYS,
    "ipam": [k for k in keys.IPAM_KEYS if "." not in k.name and k.name not in keys.MEMBERS],
    "accepted": keys.ACCEPTED_KEYS,
    "address": keys.ADDRESS_KEYS,
    "route": keys.ROUTE_KEYS,
}
TEXTS = ["", "bridge", "file", "ens2f0", "a b", "/var/lib", "//", "02:00:00:00:00:01", "03-0-0-0-0-1", "0:0:0:0:0:0", "0200.5e00.5301", "0100.5e00.5301", "0000.0000.0000", "0200.0.5301", "/26", "026", "129", "0", "x\0y", "\u2028", "a" * 127, "a" * 128, "a" * 4096, "10.0.0.1", "10.0.0.1/24", "fd00::1/64", "::ffff:10.0.0.1", "true", "auto", "debug", "0000:3b:00.2", "10000:3B:00.f", "0000:3b:00:2", "000:3b:00.2", "802.1Q", "802.1ad", "g" * 63, "g" * 64, "-g", "mlx5/0"]  # fmt: skip
TEXT = st.sampled_from(TEXTS) | st.text(st.characters(max_codepoint=0x7F), max_size=5) | st.from_regex(r"[0-9a-f]{1,2}([:-][0-9a-f]{1,2}){4,6}", fullmatch=True) | st.from_regex(r"[0-9a-f]{4}([.][0-9a-f]{3,4}){2}", fullmatch=True) | st.from_regex("/?[0-9]{1,4}", fullmatch=True)  # fmt: skip
NUMBER = st.sampled_from([0, 1, -1, 255, 256, 600, 601, 65535, 65536, 2**31, 2**32, 2**63, -(2**63), 86401]) | st.floats(0.1, 0.9)  # fmt: skip
VALUE = st.recursive(TEXT | NUMBER | st.booleans() | st.none(), lambda v: st.lists(v, max_size=2) | st.dictionaries(st.sampled_from(["type", "a"]), v, max_size=2), max_leaves=4)  # fmt: skip
EVERY = [(name, key) for name, table in TABLES.items() for key in table]


class Anything:
    """What a table fills."""


def test_the_schema_accepts_the_texts_that_the_reader_of_a_key_accepts() -> None:
    hold(TEXTS)


@settings(max_examples=6, deadline=None)
@given(st.lists(VALUE, min_size=12, max_size=12))
def test_the_schema_accepts_what_the_reader_of_a_key_accepts(values: list[Any]) -> None:
    hold(values)


def hold(values: list[Any]) -> None:
    """The schema and the reader of each key are of one opinion about `values`."""
    for name, key in EVERY:
        rule = rule_of(name, key)
        for value in values:
            faults: list[Fault] = []
            fill(Anything(), [key], {key.name: value}, faults)
            said = accepts(rule, {key.name: value}, rule)
            if not (inexact(key) and said):
                assert said == (not faults), (name, key.name, value, [str(f) for f in faults])


@cache
def rule_of(name: str, key: Key) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    rule = schema.table(name, [key], definitions)
    return {**rule, "$defs": {**definitions, "whereabouts": True}}


INEXACT = (keys.address, keys.interface_address, keys.destination)
"""Readers of which the schema says less than they do."""


def inexact(key: Key) -> bool:
    inside = [cell.cell_contents for cell in (getattr(key.read, "__closure__", None) or ())]
    return bool({key.read, *(c for c in inside if callable(c))} & {*INEXACT})


class Asked(dict[str, Any]):
    """A configuration that notes the keys which it is asked for."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.names: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)


OF_REQUEST = {"runtimeConfig", "args", "prevResult", "cniVersion", "name", "type"}  # no keys of a plugin's


def properties(name: str, *inside: str) -> dict[str, Any]:
    """The properties that the schema of `name` has, or those of the object that is the value of a key."""
    root = schema.schema(name)
    found = root
    for key in inside:
        branches = found["properties"][key]["anyOf"]
        found = root["$defs"][next(b["$ref"] for b in branches if "$ref" in b).removeprefix("#/$defs/")]
    return dict(found["properties"])


@pytest.mark.parametrize("name", LINK_PLUGINS)
def test_the_schema_of_a_plugin_has_the_keys_that_its_reader_asks_for_and_no_other(name: str) -> None:
    document = Asked({})
    request = Request({"CNI_COMMAND": "ADD"}, b"", document, {})
    plugins.named(name).read(request, [])
    features.read(request, [])
    refused = {"useInterfaceNetwork"}  # by name, as a key of Go's plugin alone
    assert {*properties(name)} == document.names - OF_REQUEST - refused | {"type", "name", "cniVersion"}
    defaults = {key.name: json.loads(json.dumps(key.default)) for key in plugins.named(name).KEYS}
    assert {key: rule["default"] for key, rule in properties(name).items() if key in defaults} == defaults


@pytest.mark.parametrize("name", features.NAMES)
def test_the_schema_of_an_extra_has_the_keys_that_its_reader_asks_for_and_no_other(name: str) -> None:
    for plugin in LINK_PLUGINS:
        inner = Asked({})
        features.named(name).read(inner, Request({"CNI_COMMAND": "ADD"}, b"", {name: inner}, {}), [])
        assert {*properties(plugin, name)} == inner.names


def test_the_schemas_of_rdma_and_whereabouts_have_the_keys_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = Asked({})
    rdma.read(Request({"CNI_COMMAND": "ADD"}, b"", document, {}))
    others = OF_REQUEST | {"ipam"}  # a request reads its type, whatever the plugin
    assert {*properties("rdma")} == document.names - others | {"type", "name", "cniVersion"}
    asked: set[str] = set()

    def fill_and_note(source: Source, target: object, table: Sequence[Key], faults: list[Fault]) -> None:
        asked.update(key.name.partition(".")[0] for key in table)
        fill_of_source(source, target, table, faults)

    fill_of_source = Source.fill
    monkeypatch.setattr(Source, "fill", fill_and_note)
    request = Request({"CNI_COMMAND": "ADD"}, b"", {"name": "n", "ipam": {"type": "whereabouts"}}, {})
    ipam_config.examine(request, [], FlatFile())
    assert {*properties("whereabouts")} == asked | {"type"}


def test_a_conflist_with_a_chain_is_held_to_the_keys_of_each_of_ours() -> None:
    rule = schema.schema("conflist")
    for last, fits in (({"type": "rdma", "verbsDevice": "mlx5_0"}, True), ({"type": "rdma", "verbsDevice": 5}, False)):
        chain = [{"type": "sriov", "vlan": 5, "rail": {"index": 0, "group": "gpu"}}, last]
        assert accepts(rule, {"cniVersion": "1.0.0", "name": "n", "plugins": chain}, rule) is fits
    for wrong in ({"vlan": "5"}, {"deviceID": "3b:00.2"}, {"rail": {"index": 99}}, {"rail": True}, {"rdma": "on"}):
        chain = [{"type": "sriov", **wrong}]
        assert not accepts(rule, {"cniVersion": "1.0.0", "name": "n", "plugins": chain}, rule), wrong


def test_every_reader_in_the_tables_has_a_rule_of_its_own() -> None:
    unknown = [key.name for name, key in EVERY if name != "extras" and not schema.rule_of(key.read)]
    assert unknown == [], "give the reader a rule in cni/lint/schema.py"


@pytest.mark.parametrize("name", sorted(CONFLISTS.values()))
def test_our_conflists_fit_the_schema_and_a_fault_in_them_does_not(name: str) -> None:
    rule = schema.schema("conflist")
    document = json.loads((CONF / name).read_text())
    assert accepts(rule, document, rule)
    document["plugins"][0]["mtu"] = "9000"
    assert not accepts(rule, document, rule)


def test_an_ipam_block_of_whereabouts_is_held_to_its_keys_and_that_of_another_is_not() -> None:
    rule = schema.schema("macvlan")
    for kind, fits in (("whereabouts", False), ("host-local", True)):
        assert accepts(rule, {"type": "macvlan", "ipam": {"type": kind, "exclude": "10.0.0.1"}}, rule) is fits
    wrong = {"type": "whereabouts", "ipRanges": [{"range": "10.0.0.0/8", "exclude": 5}]}
    assert not accepts(rule, {"type": "macvlan", "ipam": wrong}, rule)
    assert not accepts(rule, {"type": "macvlan", "ipam": {"type": "whereabouts", "dns": {"domain": 5}}}, rule)


def test_the_command_prints_each_schema() -> None:
    for name in ("conflist", *LINK_PLUGINS, known.OWN_CHAINED, known.OWN_IPAM):
        document = json.loads(run_any("nad", "schema", name))
        assert document == json.loads(json.dumps(schema.schema(name)))
        assert document["$schema"].startswith("https://json-schema.org/")
        listed = json.dumps(document)
        for reference in re.findall(r'"#/\$defs/([^"]+)"', listed):
            assert reference in document["$defs"]
