"""How the command finds and reads networks: conflists, single configurations, NADs; and what it says about faults."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cni.documents import networks
from cni.documents.diagnostic import shown
from cni.documents.networks import Network
from cni.shared.spec.errors import CniError

MACVLAN = {"cniVersion": "1.0.0", "name": "rdma", "type": "macvlan", "master": "ens2f0"}
NAD = {
    "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
    "metadata": {"name": "rdma", "namespace": "default"}, "spec": {"config": json.dumps(MACVLAN)},
}  # fmt: skip


def written(folder: Path, name: str, content: Any) -> str:
    """The path of a new file: `content` is text, or what JSON makes of it."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def only(path: str) -> Network:
    (network,) = networks.read(path)
    return network


def faults(path: str) -> list[str]:
    """What reading says, a line a fault, without the path."""
    with pytest.raises(CniError) as raised:
        networks.read(path)
    assert raised.value.code == 7
    return [line.replace(path + ":", "") for line in (raised.value.details or raised.value.msg).splitlines()]


def test_a_conflist_keeps_its_plugins_in_order_and_unread(tmp_path: Path) -> None:
    plugins = [{"type": "macvlan", "MTU": 1, "x": {"y": [None, 1.5]}}, {"type": "tuning"}]
    network = only(written(tmp_path, "a.conflist", {"cniVersion": "1.0.0", "name": "rdma", "plugins": plugins}))
    assert network.name == "rdma"
    assert [s.document for s in network.steps] == plugins


def test_a_single_configuration_becomes_a_list_of_one_as_in_libcni(tmp_path: Path) -> None:
    network = only(written(tmp_path, "a.conf", MACVLAN))
    assert network.document == {"name": "rdma", "cniVersion": "1.0.0", "plugins": [MACVLAN]}
    assert [s.type for s in network.steps] == ["macvlan"]
    twice = '{"NAME": "rdma", "Type": "x", "type": "macvlan", "CAPABILITIES": {"mac": true}, "type": "bridge"}'
    network = only(written(tmp_path, "a.conf", twice))
    (step,) = network.steps
    assert (network.name, step.type, step.capabilities) == ("rdma", "bridge", {"mac": True}), "the last one counts"


@pytest.mark.parametrize(("keys", "versions"), [
    ({}, ("0.1.0",)), ({"cniVersion": "0.3.1"}, ("0.3.1",)),
    ({"cniVersion": "0.4.0", "cniVersions": ["1.1.0", "0.3.1"]}, ("0.3.1", "0.4.0", "1.1.0")),
    ({"cniVersions": ["2.0.0", "1.0.0"]}, ("1.0.0",)),
])  # fmt: skip
def test_a_network_is_of_every_version_it_names(
    tmp_path: Path, keys: dict[str, Any], versions: tuple[str, ...]
) -> None:
    assert only(written(tmp_path, "a.conflist", {"name": "n", "plugins": [{"type": "x"}], **keys})).versions == versions


def test_switches_may_be_written_as_strings_as_libcni_allows(tmp_path: Path) -> None:
    for value, read in ((True, True), ("TRUE", True), ("false", False), (False, False)):
        document = {"name": "n", "plugins": [{"type": "x"}], "disableCheck": value, "disableGC": value}
        network = only(written(tmp_path, "a.conflist", document))
        assert (network.disable_check, network.disable_gc) == (read, read)


def test_plugins_from_the_directory_of_the_networks_name_are_appended(tmp_path: Path) -> None:
    written(tmp_path, "rdma/20-b.conf", {"type": "sbr"})
    written(tmp_path, "rdma/10-a.conf", {"type": "tuning"})
    written(tmp_path, "rdma/ignored.txt", "no JSON")
    document = {"name": "rdma", "plugins": [{"type": "macvlan"}]}
    path = written(tmp_path, "a.conflist", document)
    assert [s.type for s in only(path).steps] == ["macvlan", "tuning", "sbr"]
    path = written(tmp_path, "a.conflist", {**document, "loadOnlyInlinedPlugins": True})
    assert [s.type for s in only(path).steps] == ["macvlan"]


def test_a_nad_is_read_as_multus_reads_it(tmp_path: Path) -> None:
    nad = {**NAD, "metadata": {"name": "rdma", "annotations": {networks.RESOURCE_NAME: "nvidia.com/hostdev"}}}
    network = only(written(tmp_path, "a.yaml", yaml.safe_dump(nad)))
    assert (network.name, network.nad, network.resource_name) == ("rdma", "rdma", "nvidia.com/hostdev")
    assert network.steps[0].document == MACVLAN
    nad = {**NAD, "spec": {"config": '{"cniVersion": "0.3.1", "type": "macvlan"}'}}
    network = only(written(tmp_path, "a.yaml", yaml.safe_dump(nad)))
    assert (network.name, network.nad) == ("rdma", "default/rdma"), "it lends its name to a config without one"


def test_a_nad_without_a_config_means_the_network_of_its_name_in_net_d(tmp_path: Path) -> None:
    path = written(tmp_path, "nad.yaml", yaml.safe_dump({**NAD, "spec": {}}))
    folder = tmp_path / "net.d"
    with pytest.raises(CniError, match=r"spec\.config: is empty, and .* has no network of the name rdma"):
        networks.find(path, str(folder))
    written(folder, "10.conf", MACVLAN)
    network = networks.find(path, str(folder))
    assert network.steps[0].document == MACVLAN
    assert network.nad == "default/rdma"


def test_nads_are_found_among_other_objects_in_lists_and_in_json(tmp_path: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    several = written(tmp_path, "a.yaml", yaml.safe_dump_all([pod, NAD, None, pod]))
    assert only(several).nad == "default/rdma"
    listed = {"apiVersion": "v1", "kind": "List", "items": [pod, NAD]}
    assert only(written(tmp_path, "b.yaml", yaml.safe_dump(listed))).nad == "default/rdma"
    assert only(written(tmp_path, "c.json", NAD)).nad == "default/rdma"


def test_a_device_reaches_every_plugin_under_both_names_that_multus_uses(tmp_path: Path) -> None:
    network = only(written(tmp_path, "a.conflist", {"name": "n", "plugins": [{"type": "a"}, {"type": "b"}]}))
    given = network.with_device("0000:18:00.2")
    device = {"deviceID": "0000:18:00.2", "pciBusID": "0000:18:00.2"}
    assert [s.document for s in given.steps] == [{"type": "a", **device}, {"type": "b", **device}]
    assert given.document["plugins"] == [s.document for s in given.steps]


def test_by_name_conflists_come_first_then_configurations_then_nads(tmp_path: Path) -> None:
    def marked(mark: str) -> dict[str, Any]:
        return {"type": "macvlan", "mark": mark}

    nad = {**NAD, "spec": {"config": json.dumps(marked("nad"))}}
    second = {"name": "rdma", "plugins": [marked("second")]}
    written(tmp_path, "02.conflist", {"name": "other", "plugins": [marked("other")]})
    for name, content, found in (
        ("00.yaml", yaml.safe_dump(nad), "nad"), ("01.json", {"name": "rdma", **marked("conf")}, "conf"),
        ("02.conflist", second, "second"), ("01.conflist", {"name": "rdma", "plugins": [marked("first")]}, "first"),
    ):  # fmt: skip
        written(tmp_path, name, content)
        assert networks.find("rdma", str(tmp_path)).steps[0].document["mark"] == found


def test_a_broken_neighbour_does_not_hide_a_network_and_is_told_about_when_it_is_missing(tmp_path: Path) -> None:
    written(tmp_path, "00.conflist", "{")
    written(tmp_path, "10.conf", MACVLAN)
    assert networks.find("rdma", str(tmp_path)).name == "rdma"
    with pytest.raises(CniError) as raised:
        networks.find("other", str(tmp_path))
    assert "there is rdma; 1 file(s) there cannot be read" in raised.value.msg
    assert "00.conflist:1:1: not JSON" in raised.value.details


def test_a_name_is_no_path_unless_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "rdma.conf", MACVLAN)
    assert networks.find("./rdma.conf", "/nonexistent").name == "rdma"
    with pytest.raises(CniError, match=r'for the file write "\./rdma\.conf"'):
        networks.find("rdma.conf", "/nonexistent")
    for name in ("rdma.yaml", "other.conf"):
        with pytest.raises(CniError, match=f"no file {name} here, and no network of that name in "):
            networks.find(name, "/nonexistent")
    with pytest.raises(CniError, match="no network is defined there; name a file with its path, or --conf-dir$"):
        networks.find("rdma", "/nonexistent")


def test_one_of_several_nads_in_a_file_is_chosen_by_name(tmp_path: Path) -> None:
    other = {**NAD, "metadata": {"name": "other"}, "spec": {"config": '{"type": "bridge"}'}}
    path = written(tmp_path, "a.yaml", yaml.safe_dump_all([NAD, other]))
    assert networks.find(f"{path}#other").steps[0].type == "bridge"
    assert networks.find(f"{path}#default/rdma").steps[0].type == "macvlan"
    with pytest.raises(CniError, match=f"several networks: write {path}#NAME with one of default/rdma, other"):
        networks.find(path)
    with pytest.raises(CniError, match="no network third: there is default/rdma, other"):
        networks.find(f"{path}#third")


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CniError, match=r"none.conf: cannot be read: No such file or directory; name a readable file"):
        networks.find(str(tmp_path / "none.conf"))
    with pytest.raises(CniError, match="cannot be read: it is a directory; name a readable file"):
        networks.find(f"{tmp_path}/.")
    (tmp_path / "binary.conf").write_bytes(b"\xff\xfe{")
    with pytest.raises(CniError, match="is not UTF-8 text: byte 0") as raised:
        networks.find(str(tmp_path / "binary.conf"))
    assert raised.value.code == 7


def test_all_faults_of_a_conflist_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    text = dedent("""\
        {
          "cniVersion": "9.9.9",
          "name": "-rdma",
          "disableCheck": "maybe",
          "plugins": [
            {"type": "../sh", "capabilities": {"mac": "yes"}},
            {"typ": "tuning"},
            7
          ]
        }
        """)
    assert faults(written(tmp_path, "a.conflist", text)) == [
        '3:11: name: "-rdma": start with a letter or digit, then letters, digits, _ . -',
        '2:17: cniVersion: "9.9.9": want one of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0',
        '4:19: disableCheck: "maybe": want true or false',
        '6:14: plugins[0].type: "../sh": want the name of an executable in CNI_PATH, without a directory',
        '6:47: plugins[0].capabilities.mac: "yes": want true or false',
        '7:5: plugins[1].type: type is missing; add "type"',
        "8:5: plugins[2]: 7: want an object",
    ]


@pytest.mark.parametrize(("text", "fault"), [
    ('{"name": "n"\n "type": "x"}', "1:12: not JSON: expecting ',' delimiter; write , after this"),
    ('{\n\t"name": "n",\n\t"type": 5}', "3:10: type: 5: want a string"),
    ('{"name": "n', '1:10: not JSON: unterminated string starting; write " where it ends'),
    ("[1]", " holds neither a CNI network (JSON) nor a NetworkAttachmentDefinition"),
    ("", '1:1: not JSON: is empty: want a JSON object; write {"cniVersion": "1.0.0", "name": ..., "type": ...}'),
    ("kind: Pod", " holds neither a CNI network (JSON) nor a NetworkAttachmentDefinition"),
    ("a: [1",
     "1:6: not YAML: expected ',' or ']', but got '<stream end>'; check the quotes and the indentation before it"),
    ("a: !!timestamp 1", " not YAML: a value does not fit its tag (!!); remove the tag"),
    ("a: !!bool maybe", " not YAML: a value does not fit its tag (!!); remove the tag"),
    ('{"type": "x"}', '1:1: name: name is missing; add "name"'),
    ('{"name": "n"}', "1:1: has no plugins: want a list `plugins`, or `type` for a single plugin"),
    ('{"name": "n", "plugins": []}', "1:26: plugins: []: want 1 or more members"),
    ('{"name": "n", "loadOnlyInlinedPlugins": true}',
     "1:1: plugins: null: want a list, since loadOnlyInlinedPlugins is true"),
])  # fmt: skip
def test_a_fault_is_told_with_its_line_and_column(tmp_path: Path, text: str, fault: str) -> None:
    assert faults(written(tmp_path, "a.yaml" if text.startswith("a:") else "a.conf", text)) == [fault]


def test_faults_of_several_nads_are_told_together(tmp_path: Path) -> None:
    second = {**NAD, "metadata": {"name": "second"}, "spec": {"config": '{"a'}}
    third = {"kind": "NetworkAttachmentDefinition", "apiVersion": "v1", "metadata": {}, "spec": {"config": {}}}
    told = faults(written(tmp_path, "a.yaml", yaml.safe_dump_all([NAD, second, third])))
    assert [t.partition(": ")[2] for t in told] == [
        'not JSON: unterminated string starting (network second); write " where it ends',
        'apiVersion: "v1": want k8s.cni.cncf.io/v1',
        'metadata.name: name is missing; add "name"',
        "spec.config: {}: want a string",
    ]


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=8) | st.integers(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "type", "plugins", "cniVersion", "kind", "spec", "config", "metadata"]), inner, max_size=5), max_leaves=20))  # fmt: skip
def test_no_input_makes_the_reader_fail_otherwise_than_with_a_message(tmp_path_factory: Any, document: object) -> None:
    folder = tmp_path_factory.mktemp("any")
    for name, text in (("a.conf", json.dumps(document)), ("b.yaml", yaml.safe_dump(document))):
        try:
            networks.read(written(folder, name, text))
        except CniError as fault:
            assert fault.msg


def test_a_value_is_shown_whatever_yaml_makes_of_it_and_a_long_one_is_cut() -> None:
    texts = {"[1, a]": '[1, "a"]', "2026-11-22": '"2026-11-22"', "&x [*x]": "[[[[[[[...]]]]]]]"}
    assert {text: shown(yaml.safe_load(text)) for text in texts} == texts
    assert len(shown("x" * 1000)) < 200
    laughs = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert len(shown(yaml.safe_load(f"- &a0 [x]\n{laughs}"))) < 200
