"""railcni nad lint: what is wrong in a network's file is found at its place, all of it at once, and what to write instead."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cni.documents.diagnostic import Diagnostic
from cni.documents.reader import SyntaxFault, parse_json
from cni.link.plugins import macvlan
from cni.lint.file import lint
from cni.resources import rails
from cni.shared.config import Key, integer
from cni.shared.spec.errors import InvalidConfig
from tests.blackbox.command import run_any
from tests.cli.test_conf import CONF, CONFLISTS, NADS
from tests.linted import lint_text

GOOD: dict[str, Any] = {
    "cniVersion": "1.0.0", "name": "rdma-net", "type": "macvlan", "master": "ens2f0", "mtu": 9000,
    "ipam": {"type": "whereabouts", "range": "192.168.111.0/24"},
}  # fmt: skip
HEAD = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: rdma-net\n"


def of(document: Any, path: str = "a.conf") -> list[Diagnostic]:
    return lint_text(document if isinstance(document, str) else json.dumps(document), path)


def told(findings: list[Diagnostic]) -> list[tuple[str, str, str, str]]:
    """(severity, key, what is underlined, fix) of each."""
    return [(f.severity, f.key, f.text[f.column - 1 : f.column - 1 + f.length], f.fix) for f in findings]


def with_ipam(**more: Any) -> dict[str, Any]:
    return {**GOOD, "ipam": {**GOOD["ipam"], **more}}


# --- what is right ---


@pytest.mark.parametrize("name", sorted([*NADS.values(), *CONFLISTS.values()]))
def test_no_file_of_ours_has_an_error(name: str) -> None:
    findings = lint([str(CONF / name)])
    assert all(f.severity == "warning" and f.key.endswith("mtu") and "1500" in f.text for f in findings), findings


@pytest.mark.parametrize("block", [
    {}, {"network_name": "blue-1.x"}, {"network_name": "Blue_1", "datastore": "file"},
    {"addresses": [{"address": "10.9.0.7/24"}, {"address": "fd00::7/64"}], "gateway": "10.9.0.1",
     "routes": [{"dst": "10.0.0.0/8", "gw": "10.9.0.1"}, {"dst": "fd01::/64", "gw": "fe80::1"}]},
])  # fmt: skip
def test_a_network_without_fault_has_no_finding(block: dict[str, Any]) -> None:
    document = with_ipam(**block)
    assert of(document) == []
    assert (
        of({"cniVersion": "1.0.0", "name": "rdma-net", "plugins": [document, {"type": "tuning"}]}, "a.conflist") == []
    )
    assert of({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}) == []


# --- JSON, and where it is wrong ---


def test_a_missing_comma_is_found_in_the_yaml_file_behind_the_value_that_lacks_it() -> None:
    text = (
        HEAD
        + 'spec:\n  config: |\n    {\n      "type": "macvlan",\n      "mtu": 9000\n      "mode": "bridges"\n    }\n'
    )
    (first,) = lint_text(text, "nad.yaml")
    said = ("nad.yaml:9:17", "not JSON: expecting ',' delimiter", "write , after this")
    assert (first.place, first.message, first.fix) == said
    assert first.snippet() == ['9 |       "mtu": 9000', "  |                 ^"]


@pytest.mark.parametrize(("text", "underlined", "fix"), [
    ('{"a": 1,, "b": 2}', ",", "remove the comma before this, or write what is missing here"),
    ('{"a": 1; "b": 2}', "1", "write , for the character after this"),
    ('{"a" 1}', "1", "write : here"), ('{"a" = 1}', "=", "write : here"),
    ("{a: 1}", "a", "write it between double quotes"), ("{'a': 1}", "'", 'write " for this quotation mark'),
    ('{"a": “b”}', "“", 'write " for this quotation mark'),
    ('{"a": bridge}', "bridge", "write it between double quotes"),
    ('{"a": True}', "True", "write true, false or null"), ('{"a": None}', "None", "write true, false or null"),
    ('{"a": 09000}', "9000", "remove the zero before the number"),
    ('{"a": "b', '"', 'write " where it ends'),
    ('{"a": "b\tc"}', "\t", "write it as an escape, such as \\t or \\n"),
    ('{"a": "\\x"}', "\\", "write \\\\ for a backslash"),
    ('{"a": 1 // b\n}', "/", "remove the comment: JSON has none"),
    ('{"a": {"b": 1}', "}", "write , after this, or close the bracket that is open"),
    ('{"a": [1}', "1", "write , after this, or close the bracket that is open"),
    ('{"a": 1}}', "}", "remove it"),
    ('{"a":\u00a01}', "\u00a0", "write a JSON value or key in its place"),
    ('{"a": 1e999}', "1e999", "write a smaller number"), ('{"a": NaN}', "NaN", "write a smaller number"),
    pytest.param('{"a": ' + "1" * 5000 + "}", "1" * 5000, "write a smaller number", id="5000 digits"),
])  # fmt: skip
def test_a_fault_of_the_syntax_is_told_with_what_to_write(text: str, underlined: str, fix: str) -> None:
    with pytest.raises(SyntaxFault) as found:
        parse_json(text)
    fault = found.value
    assert (fault.fix, text[fault.start : fault.end]) == (fix, underlined)


@pytest.mark.parametrize("text", ['{"a": 1,}', '{"a": [1, 2,]}'])
def test_a_comma_before_a_closing_bracket_is_to_be_removed(text: str) -> None:
    with pytest.raises(SyntaxFault) as found:
        parse_json(text)
    assert "comma" in found.value.fix and "remove" in found.value.fix


@pytest.mark.parametrize(("path", "text", "place"), [
    ("a.conf", '{"name": "a", "type": "macvlan",\n "name": "a"}', "a.conf:2:2"),
    ("a.yaml", "name: a\ntype: macvlan\nname: a\n", "a.yaml:3:1"),
    ("b.yaml", f'{HEAD}spec:\n  config: \'{{"mtu": 1,\n    "mtu": 2}}\'\n', "b.yaml:7:5"),
])  # fmt: skip
def test_a_key_that_is_there_twice_is_an_error_of_the_lint(path: str, text: str, place: str) -> None:
    found = [(f.place, f.fix) for f in lint_text(text, path) if "is there twice" in f.message]
    assert found == [(place, "remove one")]


SOME_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=30)
@given(SOME_JSON, st.sampled_from([None, 2]), st.booleans())
def test_what_is_json_is_read_as_json_reads_it(value: Any, indent: int | None, escaped: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert parse_json(text).data == value


@settings(max_examples=50)
@given(SOME_JSON, st.lists(st.tuples(st.integers(0, 200), st.sampled_from("{}[],:\"'\\ \n\tx0-/#;=")), max_size=4))
@example({"a": "\ud800"}, [])
def test_whatever_is_no_json_has_a_fault_inside_the_text(value: Any, changes: list[tuple[int, str]]) -> None:
    text = json.dumps(value, indent=1)
    for place, character in changes:
        text = text[: place % (len(text) + 1)] + character + text[place % (len(text) + 1) + place % 2 :]
    right, read = True, None
    try:
        read = json.loads(text)
    except ValueError:
        right = False
    try:
        assert parse_json(text).data == read and right
    except SyntaxFault as fault:
        assert 0 <= fault.start <= fault.end <= len(text)
        assert not right or "surrogate" in str(fault)


@pytest.mark.parametrize("style", ["|", "|-", ">", "'", '"'])
def test_a_place_is_the_files_own_in_every_style_of_yaml(style: str) -> None:
    inner = '{\n  "cniVersion": "1.0.0",\n  "type": "macvlan",\n  "master": "ens2f0",\n  "mtu": -5\n}'
    if style in "|->":
        config = f"{style}\n    " + inner.replace("\n", "\n    ")
    elif style == "'":
        config = f"'{inner}'"
    else:
        config = json.dumps(inner)
    text = HEAD + f"spec:\n  config: {config}\n"
    (finding,) = lint_text(text, "a.yaml")
    assert told([finding])[0][:3] == ("error", "mtu", "-5")
    assert text.splitlines()[finding.line - 1][finding.column - 1 :].startswith("-5")


def test_a_broken_document_hides_no_other_and_each_has_its_own_lines() -> None:
    good = HEAD + "spec:\n  config: '" + json.dumps({**GOOD, "mtu": "9000"}) + "'\n"
    findings = lint_text(f"a: [1\n---\n{good}---\n\tb: 1\n---\n{good}", "a.yaml")
    assert [(f.line, f.message.partition(":")[0]) for f in findings] == [
        (2, "not YAML"), (8, '"9000"'), (10, "not YAML"), (15, "this file has another NAD rdma-net"), (17, '"9000"'),
    ]  # fmt: skip


def test_a_nad_in_json_in_a_list_or_among_others_is_looked_at() -> None:
    nad = {
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "rdma-net"},
        "spec": {"config": json.dumps({**GOOD, "mode": "x"}, indent=1)},
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    for text in (
        json.dumps(nad, indent=2),
        yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [pod, nad]}),
        yaml.safe_dump_all([pod, nad]),
    ):
        (finding,) = lint_text(text, "-")
        assert told([finding])[0][:2] == ("error", "mode")
        assert finding.text[finding.column - 1 :].lstrip('\\"').startswith("x")


# --- the plugins' own tables ---


def test_a_key_that_is_added_to_a_table_is_known_to_the_lint(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {**GOOD, "queues": "many"}
    assert told(of(document)) == [("warning", "queues", '"queues"', "remove it")]
    keys = (*macvlan.KEYS, Key(integer(1, 8), 1, "queues"))
    monkeypatch.setattr(macvlan, "KEYS", keys)
    monkeypatch.setattr(macvlan.MacvlanConfig, "KEYS", keys)
    assert told(of(document)) == [("error", "queues", '"many"', "write an integer from 1 to 8")]


@pytest.mark.parametrize(("document", "finding"), [
    ({**GOOD, "mtu": "9000"}, ("error", "mtu", '"9000"', "write 9000")),
    ({**GOOD, "mode": "Bridge"}, ("error", "mode", '"Bridge"', 'write "bridge"')),
    ({**GOOD, "linkInContainer": "true"}, ("error", "linkInContainer", '"true"', "write true")),
    ({**GOOD, "MTU": 9000}, ("warning", "MTU", '"MTU"', 'write "mtu"')),
    ({**GOOD, "mastr": "x"}, ("warning", "mastr", '"mastr"', 'write "master"')),
    ({**GOOD, "mut": 9000}, ("warning", "mut", '"mut"', 'write "mtu"')),
    ({**GOOD, "range": "10.0.0.0/8"}, ("warning", "range", '"range"', 'move "range" into "ipam"')),
    ({**GOOD, "dns": {"nameservers": "10.0.0.1"}},
     ("error", "dns", '{"nameservers": "10.0.0.1"}', "write a list as its `nameservers`")),
    ({**GOOD, "dns": {"search": ["a"], "domain": 5}},
     ("error", "dns", '{"search": ["a"], "domain": 5}', "write a string as its `domain`")),
    ({**GOOD, "rdma": "on"}, ("error", "rdma", '"on"', 'write true, false, "auto", or an object')),
    ({**GOOD, "rdma": {"waitSeconds": "2"}}, ("error", "rdma.waitSeconds", '"2"', "write 2")),
    ({**GOOD, "rdma": {"require": True}}, ("warning", "rdma.require", '"require"', 'write "required"')),
    ({**GOOD, "mtu": 1500}, ("warning", "mtu", "1500", "write 9000, where the fabric carries it")),
    ({**GOOD, "mtu": 9500}, ("warning", "mtu", "9500", "write 9000")),
    ({k: v for k, v in GOOD.items() if k != "master"},
     ("warning", "master", "{", 'add "master": "ens2f0", the name of the RDMA netdev')),
    ({**GOOD, "type": "mcvlan"}, ("error", "type", '"mcvlan"', 'write "macvlan"')),
    ({**GOOD, "type": "Macvlan"}, ("error", "type", '"Macvlan"', 'write "macvlan"')),
    ({**GOOD, "type": "railcni-macvaln"}, ("error", "type", '"railcni-macvaln"', 'write "railcni-macvlan"')),
    ({**GOOD, "type": "macvlan2"}, ("warning", "type", '"macvlan2"', 'write "macvlan"')),
    ({**GOOD, "type": "my-macvlan"}, ("warning", "type", '"my-macvlan"', 'write "macvlan"')),
    ({**GOOD, "type": "vxlan"}, ("warning", "type", '"vxlan"', 'write "vlan"')),
    ({**GOOD, "type": "zebra"}, ("warning", "type", '"zebra"', "check that the runtime's plugin folder has it")),
    ({**GOOD, "type": "/opt/macvlan"}, ("error", "type", '"/opt/macvlan"', 'write "macvlan", without a directory')),
    ({**GOOD, "cniVersion": "1.0"}, ("error", "cniVersion", '"1.0"', 'write "1.0.0"')),
    ({k: v for k, v in GOOD.items() if k != "cniVersion"}, ("warning", "cniVersion", "{", 'add "cniVersion": "1.0.0"')),
    ({k: v for k, v in GOOD.items() if k != "name"}, ("error", "name", "{", 'add "name"')),
    (with_ipam(type="wherabouts"), ("error", "ipam.type", '"wherabouts"', 'write "whereabouts"')),
    (with_ipam(type="tuning"), ("error", "ipam.type", '"tuning"', 'write "whereabouts"')),
    ({**GOOD, "ipam": {"range": "10.0.0.0/8"}},
     ("error", "ipam", '{"range": "10.0.0.0/8"}', 'add "type": "whereabouts"')),
    (with_ipam(gatway="x"), ("warning", "ipam.gatway", '"gatway"', 'write "gateway"')),
    (with_ipam(store_timeout=61),
     ("error", "ipam.store_timeout", "61", "write 60 at most: only the node's own flat file may have more")),
    (with_ipam(mtu=9000), ("warning", "ipam.mtu", '"mtu"', 'move "mtu" out of "ipam", to the plugin')),
    (with_ipam(exclude="192.168.111.7"), ("error", "ipam.exclude", '"192.168.111.7"', 'write ["192.168.111.7"]')),
    (with_ipam(range="192.168.111.0"),
     ("error", "ipam.range", '"192.168.111.0"',
      "write a CIDR or first-last/length, such as 192.168.2.0/24 or 192.168.2.10-192.168.2.20/24")),
    (with_ipam(range_start="192.168.112.1"),
     ("error", "ipam.range_start", '"192.168.112.1"', "write an address of the range 192.168.111.0/24")),
    (with_ipam(exclude=["192.168.111.1", "10.0.0.0/8"]),
     ("warning", "ipam.exclude[1]", '"10.0.0.0/8"', "correct it, or remove it")),
    (with_ipam(gateway="192.168.112.1"),
     ("warning", "ipam.gateway", '"192.168.112.1"', "write an address of 192.168.111.0/24, such as 192.168.111.1")),
    (with_ipam(routes=[{"dst": "10.0.0.0/8", "gw": "192.168.111.9"}, {"dst": "10.1.0.0/16", "gw": "10.9.0.1"}]),
     ("warning", "ipam.routes[1].gw", '"10.9.0.1"', "write an address of 192.168.111.0/24, such as 192.168.111.1")),
    (with_ipam(routes=[{"dst": "10.0.0.0/8", "gateway": "192.168.111.9"}]),
     ("warning", "ipam.routes[0].gateway", '"gateway"',
      "remove it, or write one of advmss, dst, gw, mtu, priority, scope, table")),
    (with_ipam(network_name="Blue_1"),
     ("error", "ipam.network_name", '"Blue_1"', "write lowercase letters, digits, - and ., such as blue-1")),
    (with_ipam(node_slice_size="/22"), ("error", "ipam.node_slice_size", '"/22"', "write /24 or a longer prefix")),
    (with_ipam(ipRanges=[{"range": "192.168.0.0/16"}]),
     ("warning", "ipam.ipRanges[0].range", '"192.168.0.0/16"', "write ranges apart from one another")),
    (with_ipam(ipRanges=[{"range": "10.0.0.0/8", "excludes": []}]),
     ("warning", "ipam.ipRanges[0].excludes", '"excludes"', 'write "exclude"')),
    (with_ipam(dns={"nameserver": []}), ("warning", "ipam.dns.nameserver", '"nameserver"', 'write "nameservers"')),
    (with_ipam(log_file="/root/x"), ("warning", "ipam.log_file", '"log_file"', "correct it, or remove it")),
])  # fmt: skip
def test_a_fault_is_told_with_its_key_and_what_to_write(document: Any, finding: tuple[str, str, str, str]) -> None:
    assert told(of(document)) == [finding]


def test_a_profile_of_dranet_is_no_network_with_a_fault_and_its_ipam_block_is_looked_at() -> None:
    """Its fix must not be a `type`, with which `railcni dranet-ipam` refuses the profile."""
    profile = {
        k: v for k, v in with_ipam(gatway="x", range="10.0.0.0/33").items() if k not in ("type", "master", "mtu")
    }
    found = {(f.severity, f.key) for f in of(profile)}
    assert found == {("warning", ""), ("warning", "ipam.gatway"), ("error", "ipam.range")}
    assert "DRANET" in of(profile)[0].message
    for path in ("a.conflist", "a.yaml"):
        assert ("error", "") in {(f.severity, f.key) for f in of(profile, path)}


def on_rails(*ranges: str, **more: Any) -> dict[str, Any]:
    return {**GOOD, "rail": {"index": 0, "group": "gpu", "addressing": "same-index", "ranges": ranges}, **more}


def test_what_the_ipam_plugin_refuses_of_a_groups_ranges_is_an_error() -> None:
    own = "192.168.111.0/24"
    assert of(on_rails(own, "192.168.112.0/24")) == []
    assert [(f.severity, f.key) for f in of(on_rails(own, "bogus"))] == [("error", "rail.ranges[1][0].range")]
    assert [(f.severity, f.key) for f in of(on_rails(own, own))] == [("error", "rail.ranges[1]")]


ALL_RAILS: dict[str, Any] = {
    "cniVersion": "1.0.0", "name": "rdma-net", "type": "macvlan", "mtu": 9000,
    "rail": {
        "group": "gpu", "addressing": "same-index", "nics": ["eth_r0", "eth_r1"],
        "ranges": [{"range": f"192.168.{r}.0/24", "gateway": f"192.168.{r}.1"} for r in (1, 2)]},
    "ipam": {"type": "whereabouts", "datastore": "file"},
}  # fmt: skip


@pytest.mark.parametrize(("key", "more", "found"), [
    ({}, {}, set()), ({"nics": ["eth_r0"]}, {}, {"rail.nics"}), ({"addressing": "plain"}, {}, {"rail.nics"}),
    ({"nics": []}, {}, {"rail.index", "ipam"}),
    ({"ranges": ["192.168.1.0/24", "bogus"]}, {}, {"rail.ranges[1][0].range"}),
    ({}, {"master": "eth_r0"}, {"master"}),
    ({}, {"ipam": {**ALL_RAILS["ipam"], "range": "192.168.1.0/24"}}, {"ipam.range"}),
])  # fmt: skip
def test_one_network_for_all_rails_names_nics_and_ranges(
    key: dict[str, Any], more: dict[str, Any], found: set[str]
) -> None:
    network = {**ALL_RAILS, **more, "rail": {**ALL_RAILS["rail"], **key}}
    told = nad(network, RESOURCE % "railcni.io/rail")
    assert {f.key for f in told if f.severity == "error"} == found
    if not found:
        assert told == []
        assert [f.key for f in nad(network)] == ["rail.nics"], "not `master` too, which such a network may not have"


def test_a_next_hop_that_rail_ranges_would_give_is_found() -> None:
    own = GOOD["ipam"]["range"]
    block = {**GOOD["ipam"], "routes": [{"dst": "10.0.0.0/8", "gw": "192.168.111.9"}]}
    (finding,) = of(on_rails(own, "192.168.112.0/24", ipam=block))
    assert (finding.severity, finding.key) == ("warning", "ipam.routes[0].gw")
    assert finding.fix == "exclude it in rail.ranges[0] in every network of the group"
    spared = {"range": own, "exclude": ["192.168.111.9"]}
    assert of(on_rails(spared, "192.168.112.0/24", ipam=block)) == []
    assert [f.severity for f in of(on_rails("192.168.112.0/24"))] == ["error"]


def test_rails_of_one_index_that_another_ipam_plugin_would_count_are_an_error() -> None:
    (finding,) = of(on_rails("192.168.111.0/24", ipam={"type": "host-local"}))
    assert (finding.severity, finding.key) == ("error", "rail.addressing")
    assert finding.fix == 'write "whereabouts" as ipam.type, or "plain" here'


def test_an_mtu_too_small_for_the_ipv6_range_is_an_error() -> None:
    document = {**with_ipam(range="fd00::/64"), "mtu": 1000}
    assert [f.severity for f in of(document)] == ["warning", "error"]


# --- lists and chains ---


def chain(*plugins: Any, **more: Any) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "name": "n", "plugins": list(plugins), **more}


BARE = {"type": "macvlan", "master": "ens2f0"}


@pytest.mark.parametrize(("document", "findings"), [
    (chain(BARE, {"type": "rdma", "deviceID": 5, "verbsDevic": "x"}), [("error", "plugins[1].deviceID", "5", 'write "5"'), ("warning", "plugins[1].verbsDevic", '"verbsDevic"', 'write "verbsDevice"')]),
    (chain({"type": "tuning"}, BARE), [("error", "plugins[0].type", '"tuning"', "put it after macvlan")]),
    (chain(BARE, {"type": "host-device", "device": "ens2f1"}),
     [("error", "plugins[1].type", '"host-device"', "write a network for each, and name both in the pod's annotation")]),
    (chain({"type": "whereabouts"}),
     [("error", "plugins[0].type", '"whereabouts"', 'write "ipam": {"type": "whereabouts", ...} inside a plugin such as macvlan')]),
    (chain(), [("error", "plugins", "[]", 'add {"type": "macvlan", ...}')]),
    (chain({**BARE, "name": "m"}), [("warning", "plugins[0].name", '"name"', "remove it")]),
    (chain({**BARE, "prevResult": {}}), [("warning", "plugins[0].prevResult", '"prevResult"', "remove it")]),
    (chain(BARE, CniVersions=[]), [("error", "CniVersions", '"CniVersions"', 'write "cniVersions"')]),
    (chain(BARE, cniVersions=["1.0.0", "7"]), [("warning", "cniVersions[1]", '"7"', "write one of " + ", ".join(("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")))]),
    (chain(BARE, mtu=9000), [("warning", "mtu", '"mtu"', "move it into one of the plugins, or remove it")]),
    (chain({"typ": "macvlan"}), [("error", "plugins[0].typ", '"typ"', 'write "type"')]),
    ({"cniVersion": "1.0.0", "name": "n", "Plugins": [BARE]}, [("error", "Plugins", '"Plugins"', 'write "plugins"')]),
])  # fmt: skip
def test_a_fault_of_a_list_is_told(document: Any, findings: list[tuple[str, str, str, str]]) -> None:
    assert told(of(document, "a.conflist")) == findings


def test_a_file_that_libcni_passes_over_is_told_by_its_extension() -> None:
    assert "call the file .conflist" in [f.fix for f in of(chain(BARE), "a.conf")]
    assert [f.severity for f in of(GOOD, "a.conflist")] == ["error"]
    finding, _ = of(yaml.safe_dump(GOOD), "a.conflist")
    assert (finding.severity, finding.message) == ("error", "this is YAML, and a runtime reads JSON alone")


def test_two_networks_of_one_name_in_a_directory_are_told(tmp_path: Path) -> None:
    (tmp_path / "10-a.conf").write_text(json.dumps(GOOD))
    (tmp_path / "20-b.conflist").write_text(json.dumps({**chain(BARE), "name": "rdma-net"}))
    (tmp_path / "notes.txt").write_text("{")
    os.mkfifo(tmp_path / "30-fifo.conf")  # nobody writes into it: who opens it waits for ever
    (tmp_path / "pod.yaml").write_text("kind: Pod\napiVersion: v1\n")
    finding, fifo = lint([str(tmp_path)])
    assert (finding.path, finding.severity) == (str(tmp_path / "10-a.conf"), "warning")
    assert "no regular file" in fifo.message
    assert "the network rdma-net is in 20-b.conflist too" in finding.message


def test_plugins_that_libcni_appends_from_a_directory_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "n.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": "n"}))
    (tmp_path / "n").mkdir()
    (tmp_path / "n/10.conf").write_text(json.dumps({**BARE, "mtu": "9000"}))
    (finding,) = lint([str(tmp_path)])
    assert (finding.path, finding.key, finding.fix) == (str(tmp_path / "n/10.conf"), "mtu", "write 9000")


# --- NADs ---


def nad(config: Any, head: str = HEAD) -> list[Diagnostic]:
    return lint_text(head + "spec:\n  config: '" + json.dumps(config) + "'\n", "a.yaml")


HOST_DEVICE = {"cniVersion": "0.3.1", "name": "rdma-net", "type": "host-device", "mtu": 9000}
RESOURCE = HEAD + "  annotations:\n    k8s.v1.cni.cncf.io/resourceName: %s\n"


def test_a_host_device_without_a_device_wants_the_nads_resource() -> None:
    (finding,) = nad(HOST_DEVICE)
    assert finding.severity == "error"
    assert "no annotation k8s.v1.cni.cncf.io/resourceName" in finding.message
    assert nad(HOST_DEVICE, RESOURCE % "nvidia.com/hostdev") == []
    assert nad({**HOST_DEVICE, "pciBusID": "0000:3b:00.0"}) == []
    assert nad({**HOST_DEVICE, "capabilities": {"deviceID": True}}) != []
    assert of({**HOST_DEVICE, "capabilities": {"deviceID": True}}) == []


def test_a_macvlan_without_a_master_wants_the_nads_resource() -> None:
    without = {key: value for key, value in GOOD.items() if key != "master"}
    (finding,) = nad(without)
    assert (finding.severity, finding.key) == ("warning", "master")
    assert nad(without, RESOURCE % "rdma/hca_shared_devices_a") == []


def test_a_device_beside_a_resource_is_warned_about_and_a_bad_resource_name_refused() -> None:
    (finding,) = nad({**HOST_DEVICE, "device": "ens2f0"}, RESOURCE % "nvidia.com/hostdev")
    assert (finding.severity, finding.key) == ("warning", "device")
    (finding,) = nad(HOST_DEVICE, RESOURCE % "hostdev")
    assert told([finding]) == [
        ("error", "metadata.annotations.k8s.v1.cni.cncf.io/resourceName", "hostdev",
         "write DOMAIN/RESOURCE, such as rdma/hca_shared_devices_a"),
    ]  # fmt: skip
    misspelled = RESOURCE.replace("resourceName", "resourcename")
    assert "write k8s.v1.cni.cncf.io/resourceName" in [f.fix for f in nad(GOOD, misspelled % "a/b")]


def test_a_name_that_differs_from_the_nads_is_warned_about() -> None:
    (finding,) = nad({**GOOD, "name": "other"})
    assert told([finding])[0] == ("warning", "name", '"other"', 'write "rdma-net"')
    assert nad({k: v for k, v in GOOD.items() if k != "name"}) == []  # Multus gives it the NAD's


@pytest.mark.parametrize(("text", "finding"), [
    (HEAD + "spec:\n  Config: '" + json.dumps(GOOD) + "'", ("error", "spec.Config", "Config", 'write "config"')),
    (HEAD, ("warning", "spec.config", "a", "write the network here, or check that each node's net.d has it")),
    (HEAD + "spec:\n  config: " + json.dumps(GOOD),
     ("error", "spec.config", json.dumps(GOOD), "write config: | and the JSON below it")),
    ((HEAD + "spec:\n  config: '" + json.dumps(GOOD) + "'").replace("Definition", "Defintion"),
     ("error", "kind", "NetworkAttachmentDefintion", "write NetworkAttachmentDefinition")),
    ((HEAD + "spec:\n  config: '" + json.dumps(GOOD) + "'").replace("k8s.cni.cncf.io/v1", "v1"),
     ("error", "apiVersion", "v1", "write k8s.cni.cncf.io/v1")),
    (HEAD.replace("rdma-net", "RDMA_net") + 'spec:\n  config: \'{"type": "loopback", "cniVersion": "1.0.0"}\'',
     ("error", "metadata.name", "RDMA_net", "write small letters, digits, - and . , the first and last no - or .")),
])  # fmt: skip
def test_a_fault_of_the_nad_around_the_network_is_told(text: str, finding: tuple[str, str, str, str]) -> None:
    assert told(lint_text(text, "a.yaml")) == [finding]


# --- bounds, secrets, and whatever comes ---


def test_a_password_is_not_shown() -> None:
    for document in (with_ipam(etcd_password="hunter2", mtu=1), with_ipam(etcd_password=["hunter2"])):
        for text in (json.dumps(document), json.dumps({**document, "etcd_host": 5}, indent=1)):
            findings = of(text)
            assert findings
            assert "hunter2" not in "".join(json.dumps(f.document()) + "".join(f.snippet()) for f in findings)


@pytest.mark.parametrize(
    "text",
    ["[" * 150, "{" * 150, '{"a":' * 300 + "1" + "}" * 300, "a: &a [*a]", "&a [" + "*a, " * 3 + "]", "!!python/object:os.system {}", "%YAML 9\n---\na: 1", "\x00", "- - - ?", "a: 2020-99-99"],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("path", ["a.yaml", "a.conf", "-"])
def test_a_strange_text_gives_findings_and_nothing_else(text: str, path: str) -> None:
    assert lint_text(text, path)


WORDS = ["name", "type", "plugins", "cniVersion", "kind", "apiVersion", "spec", "config", "metadata", "ipam", "range", "ipRanges", "mtu", "exclude", "annotations", "items", "macvlan", "host-device", "whereabouts", "List", "NetworkAttachmentDefinition", "k8s.cni.cncf.io/v1", "capabilities", "gateway", "routes", "addresses", "dns", "kubernetes"]  # fmt: skip


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.sampled_from(WORDS) | st.text(max_size=6) | st.integers() | st.floats(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
        max_leaves=25,
    )
)
@example(
    {"cniVersion": "1.0.0", "name": "n", "type": "macvlan", "mtu": 1000, "ipam": {"ipRanges": 5, "addresses": True}}
)
def test_no_document_makes_the_lint_fail(document: Any) -> None:
    texts = {"a.conf": json.dumps(document), "b.yaml": yaml.safe_dump(document)}
    texts["c.yaml"] = HEAD + "spec:\n  config: " + json.dumps(texts["a.conf"]) + "\n"
    for path, text in texts.items():
        for finding in lint_text(text, path):
            assert finding.message
            assert finding.line == 0 or finding.text == text.splitlines()[finding.line - 1]


# --- the command ---


def written(folder: Path, **documents: Any) -> list[str]:
    """The paths of files of these names, with these documents, or texts."""
    paths = [folder / f"{name}.conf" for name in documents]
    for path, document in zip(paths, documents.values(), strict=True):
        path.write_text(document if isinstance(document, str) else json.dumps(document))
    return [str(path) for path in paths]


def test_the_command_tells_all_files_and_its_exit_code_says_whether_there_are_faults(tmp_path: Path) -> None:
    good, warned, bad = written(tmp_path, good=GOOD, warned={**GOOD, "mtu": 1500}, bad={**GOOD, "mtu": "9000"})
    assert run_any("nad", "lint", good) == "no faults\n"
    for code, argv in enumerate(((warned,), ("--strict", warned), ())):
        run_any("nad", "lint", *argv, code=code)
    said = run_any("nad", "lint", bad, good, warned, code=1)
    assert said.endswith("1 error, 1 warning\n")
    assert f"{bad}:1:91: error: mtu:" in said and "fix: write 9000\n" in said and "^^^^^^" in said
    assert "No such file" in run_any("nad", "lint", str(tmp_path / "none.conf"), code=1)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_command_reads_stdin_and_gives_data(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps({**GOOD, "mode": "x"}).encode())))
    data = yaml.safe_load(run_any("nad", "lint", "-", "-o", form, code=1))
    assert (data["errors"], data["warnings"]) == (1, 0)
    (finding,) = data["findings"]
    assert (finding["file"], finding["line"], finding["key"], finding["severity"]) == ("<stdin>", 1, "mode", "error")


def test_a_host_of_a_store_needs_the_permission_of_the_nodes(tmp_path: Path) -> None:
    document = with_ipam(datastore="etcd", etcd_host="10.0.0.9:1,10.0.0.1")
    network, flat = written(tmp_path, a=document, flat={"log_level": "error"})
    for files in ("", flat):
        found = lint([network], files)
        assert [(f.key, f.severity) for f in found] == [("ipam.etcd_host", "warning")] * 2
        assert ['"10.0.0.9"' in found[0].message, '"10.0.0.1"' in found[1].message] == [True, True]


@pytest.mark.parametrize(("change", "keys", "fix"), [
    ({"dns": {"nameserver": ["10.0.0.53"]}}, ["dns.nameserver"], ['write "nameservers"']),
    ({"capabilities": {"ip": True, "mac": True, "own": True}}, ["capabilities.ip"], ['write "ips"']),
    ({"capabilities": {"deviceId": True, "IPs": True}}, ["capabilities.deviceId", "capabilities.IPs"], ['write "deviceID"', 'write "ips"']),
    ({"rail": {"index": 0, "group": "g", "ranges": [
        {"range": "192.168.111.0/24", "rangestart": "192.168.111.7"}, [{"range": "fd00::/64", "exlude": []}],
    ]}}, ["rail.ranges[0].rangestart", "rail.ranges[1][0].exlude"], ['write "range_start"', 'write "exclude"']),
    ({"rail": {"index": 0, "group": "g", "ranges": [
        {"range": "192.168.111.0/24", "gateway": "192.168.111.1"}, "192.168.112.0/24",
    ]}}, [], []),
    ({"ipam": {"type": "whereabouts"}, "rail": {"index": 0, "group": "g", "ranges": [
        {"range": "192.168.111.0/24", "gatewy": "192.168.111.1"},
    ]}}, ["rail.ranges[0].gatewy"], ['write "gateway"']),
])  # fmt: skip
def test_an_unknown_key_is_found_in_an_inner_object(change: dict[str, Any], keys: list[str], fix: list[str]) -> None:
    found = of({**GOOD, **change})
    assert [(f.key, f.severity, f.fix) for f in found] == [(k, "warning", f) for k, f in zip(keys, fix, strict=True)]


def test_the_flat_file_of_a_node_is_taken_into_account(tmp_path: Path) -> None:
    (network,) = written(tmp_path, a=with_ipam(datastore="etcd"))
    assert lint([network]) == []
    (finding,) = lint([network], str(CONF / "whereabouts.d/whereabouts.conf"))
    assert (finding.key, "etcd_host" in finding.message) == ("ipam.datastore", True)


def test_a_flat_file_that_names_no_store_and_its_misspelt_keys_are_warnings_told_once(tmp_path: Path) -> None:
    flat, network, other = written(
        tmp_path, flat={"etcd_hos": "http://127.0.0.1:2379"}, a=GOOD,
        b={**with_ipam(range="192.168.112.0/24"), "name": "b"},
    )  # fmt: skip
    found = lint([network], flat)
    assert {(f.key, f.severity) for f in found} == {("ipam", "warning")}
    assert f'there is no key {flat}: etcd_hos, and it is ignored: write "etcd_host"' in [f.message for f in found]
    assert f"no store is named, here or in {flat}: a pod of Kubernetes gets no address" in [f.message for f in found]
    assert lint([network, other], flat) == found
    written(tmp_path, flat={"datastore": "file"})
    assert lint([network], flat) == []


def test_a_path_of_the_flat_file_is_not_looked_up_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    network, flat = written(tmp_path, a=GOOD, flat={"datastore": "file", "log_file": str(tmp_path / "loop/log")})
    assert lint([network], flat) == []


@pytest.mark.parametrize(("block", "key"), [
    ({"kubernetes": {"kubeconfig": "/etc/kubernetes/admin.conf"}}, "ipam.kubernetes.kubeconfig"),
    ({"configuration_path": "/etc/cni/net.d/10-calico.conf"}, "ipam.configuration_path"),
    ({"etcd_prefix": "/registry"}, "ipam.etcd_prefix"), ({"etcd_host": "10.0.0.9"}, "ipam.etcd_host"),
])  # fmt: skip
def test_a_store_that_a_network_may_not_name_is_an_error(tmp_path: Path, block: dict[str, Any], key: str) -> None:
    own = {"etcd_host": "10.0.0.1", "etcd_prefix": "/own", "etcd_username": "own"}
    network, flat = written(tmp_path, a=with_ipam(**block), flat=own)
    found = lint([network], flat)
    assert [(f.key, f.severity) for f in found] == [(key, "error")]
    assert not key.startswith("ipam.etcd") or f"is not that of {flat}" in found[0].message


@pytest.mark.parametrize(("content", "told"), [
    (None, 'railcni: --flat-file "{path}": there is no such file'),
    ('{"log_level": 3}', "error: ipam: {path}: log_level 3: want a string"),
    ("{", "error: ipam: the flat file {path} is not JSON"), ("[]", "error: ipam: the flat file {path} is no JSON object"),
])  # fmt: skip
def test_a_fault_of_the_flat_file_names_that_file(tmp_path: Path, content: str | None, told: str) -> None:
    (network,), path = written(tmp_path, good=GOOD), str(tmp_path / "flat.conf")
    if content is not None:
        written(tmp_path, flat=content)
    said = run_any("nad", "lint", "--flat-file", path, network, code=1)
    assert told.format(path=path) in said, said


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize(("changes", "told"), [
    ({}, []), ({"pairing": "gpu"}, ["master, pci and pairing: want one of them"]),
    ({"addressing": None}, ["null: want one of same-index, plain"]),
    ({"mtu": -1, "shard": 3}, ["-1: want 0 or more", "is no key here"]),
    ({"subnet": "192.168.0.0/24"}, ["overlaps 192.168.0.0/24 of rail 0"]),
    ({"mastr": "eth{n}", "numberVFs": 8, "colour": 3}, ['write "master"', 'write "numVfs"', "remove it"]),
])  # fmt: skip
def test_a_plan_of_rails_has_its_commands_faults(
    tmp_path: Path, form: str, changes: dict[str, Any], told: list[str]
) -> None:
    plan = yaml.safe_load((CONF / "examples/rails-8.yaml").read_text()) | changes
    file = tmp_path / f"rails.{form}"
    file.write_text(json.dumps(plan) if form == "json" else yaml.safe_dump(plan))
    found = lint([str(file)])
    assert lint([str(tmp_path)]) == found
    assert len(found) == len(told) and all(any(text in f"{f.message} {f.fix}" for f in found) for text in told), found
    if found:
        with pytest.raises(InvalidConfig) as refused:
            rails.read(str(file))
        assert all(f.message in f"{refused.value.msg} {refused.value.details}" for f in found)
