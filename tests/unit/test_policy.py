"""What a node lets networks do: the file railcni.json, the roots of paths, the lists of masters and devices."""

import fnmatch
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni.shared import policy
from cni.shared.policy import Policy, matches
from cni.shared.spec.errors import InvalidConfig
from ipam import source
from ipam.keys import IPAM_KEYS, ROOTS

STORES = "/var/lib/cni/railcni/stores"


@pytest.mark.parametrize(("document", "wanted"), [
    ({}, (600, 14)), ({"warm": {}}, (600, 14)), ({"warm": {"workers": 0}}, (600, 0)),
    ({"warm": {"idleSeconds": 5, "workers": 256}}, (5, 256)),
    *(({"warm": wrong}, None) for wrong in ([], {"worker": 1}, {"workers": -1}, {"workers": 257}, {"idleSeconds": "60"})),
])  # fmt: skip
def test_the_node_says_how_many_warm_workers_there_are_and_for_how_long(
    document: dict[str, object], wanted: tuple[int, int] | None
) -> None:
    if wanted:
        assert Policy(document).warm == wanted
    else:
        with pytest.raises(InvalidConfig, match="warm"):
            Policy(document)


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(pattern: str, name: str) -> None:
    assert matches(pattern, name) == fnmatch.fnmatchcase(name, pattern)
    assert matches("a.*", "a.c") and not matches("a.*", "abc")
    for plain in ("[a]", "?", "a.c", "ens2f0 "):
        assert [matches(plain, other) for other in (plain, "a", "abc", "ens2f0")] == [True, False, False, False]


MIGRATION = (Path(__file__).resolve().parents[2] / "docs/migration.md").read_text()
FORMER = re.findall(r"\| `(\{.*\})`", MIGRATION.partition("# From railcni 0.1.0")[2].partition("\n# ")[0])


@pytest.mark.parametrize("line", FORMER)
def test_each_line_that_restores_a_former_default_is_a_policy_that_says_something_else(line: str) -> None:
    (name,) = json.loads(line)
    assert getattr(Policy(json.loads(line)), name) != getattr(Policy({}), name)


def test_without_a_file_every_device_is_permitted_and_paths_are_confined() -> None:
    usual = Policy({})
    usual.permit("masters", "master", ["ens2f0"])
    usual.permit("devices", "device", ["ens9", "0000:3b:00.1"])
    kubeconfig = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"
    within = {"dataRoots": f"{STORES}/mine", "logRoots": "/var/log/railcni/x", "configRoots": kubeconfig}
    assert {key: usual.confine(key, path) for key, path in within.items()} == within
    folders = tuple(os.path.dirname(path) for path in source.PATHS)  # the policy lies there too, in this order
    assert usual.configRoots == tuple(os.path.dirname(path) for path in policy.PATHS) == folders


@pytest.mark.parametrize(("key", "path"), [
    ("dataRoots", "/etc"), ("dataRoots", "/var/lib/cni/mine"), ("dataRoots", f"{STORES}/../mine"),
    ("dataRoots", f"{STORES}x"), ("dataRoots", "relative"), ("logRoots", "/tmp/whereabouts.log"),
    ("logRoots", "/var/log/containers/other.log"), ("logRoots", "/var/log/../spool/cron/root"),
    ("configRoots", "/home/admin/.kube/config"), ("configRoots", "/proc/self/environ"),
    ("configRoots", "/etc/kubernetes/admin.conf"), ("configRoots", "/etc/kubernetes/pki/etcd/server.key"),
    ("configRoots", "/etc/cni/net.d/calico-kubeconfig"),
    ("configRoots", "/etc/cni/net.d/whereabouts.d/../10-calico.conf"),
])  # fmt: skip
def test_a_path_outside_of_its_roots_is_refused_with_the_roots_and_the_remedy(key: str, path: str) -> None:
    with pytest.raises(ValueError, match=" not in ") as refused:
        Policy({}).confine(key, path)
    roots = next(k.default for k in policy.KEYS if k.name == key)
    assert f"not in {key} ({policy.shortened(roots)}): want a path there" in str(refused.value)
    assert "or change /etc/cni/net.d/whereabouts.d/railcni.json" in str(refused.value)


@pytest.mark.parametrize(("names", "shown"), [
    ([], "none"), (["a", "b"], "a, b"),
    (policy.CONFIG_ROOTS, "/etc/kubernetes/cni/net.d/whereabouts.d, …"),
    (["/x" * 60], f"{'/x' * 30}…"), (["/x" * 60, "b"], f"{'/x' * 30}…"),
])  # fmt: skip
def test_a_long_list_in_a_message_ends_with_a_whole_name(names: list[str], shown: str) -> None:
    assert policy.shortened(names) == shown


def test_a_link_out_of_a_root_is_refused_and_one_within_is_followed(tmp_path: Path) -> None:
    (tmp_path / "root/inner").mkdir(parents=True)
    (tmp_path / "root/out").symlink_to("/etc")
    (tmp_path / "root/in").symlink_to("inner")
    (tmp_path / "way").symlink_to("root")
    node = Policy({"dataRoots": [str(tmp_path / "way")]})  # the administrator's root may be a link itself
    assert node.confine("dataRoots", f"{tmp_path}/root/in/x") == f"{tmp_path}/root/inner/x"
    with pytest.raises(ValueError, match="leads to /etc/cron.d, not in dataRoots"):
        node.confine("dataRoots", f"{tmp_path}/root/out/cron.d")


def test_an_empty_list_permits_nothing() -> None:
    with pytest.raises(InvalidConfig, match="masters"):
        Policy({"masters": []}).permit("masters", "master", ["ens2f0"])
    with pytest.raises(ValueError, match="not in logRoots"):
        Policy({"logRoots": []}).confine("logRoots", "/var/log/railcni/x")


def write(path: Path, content: object) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o644)
    return str(path)


def test_the_file_gives_what_it_names_and_the_rest_is_as_without_it(tmp_path: Path) -> None:
    path = write(tmp_path / "railcni.json", {"Masters": ["ens*"], "dataRoots": None})
    read = policy.read(path)
    assert (read.masters, read.devices, read.path) == (["ens*"], ("*",), path)
    assert read.dataRoots == (STORES,)


@pytest.mark.parametrize(("content", "words"), [
    ("", ["cannot be read as JSON"]), ("[]", ["is no JSON object"]),
    ({"master": ["ens9"]}, ["master", "is unknown: want", "masters"]),  # would permit all, unseen
    ({"masters": "ens9"}, ["masters", "want a list"]), ({"masters": [""]}, ["masters", "want names"]),
    ({"dataRoots": ["var"]}, ["dataRoots", "want absolute paths"]),
])  # fmt: skip
def test_a_file_that_is_wrong_is_named_with_what_is_wrong(tmp_path: Path, content: object, words: list[str]) -> None:
    path = write(tmp_path / "railcni.json", content)
    with pytest.raises(InvalidConfig) as refused:
        policy.read(path)
    assert all(word in refused.value.msg for word in [path, *words]), refused.value.msg


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(InvalidConfig, match="is no regular file"):
            policy.read(str(path))


def test_the_first_file_that_exists_counts_and_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "none/railcni.json", tmp_path / "railcni.json"
    monkeypatch.setattr(policy, "PATHS", (str(first), str(second)))
    monkeypatch.setattr(policy, "_current", None)
    write(second, {"masters": ["one"]})
    assert policy.current().masters == ["one"]
    write(second, {"masters": ["two"]})
    assert policy.current().masters == ["one"]


def test_every_path_of_the_ipam_block_is_confined_by_a_key_of_the_policy() -> None:
    assert set(ROOTS.values()) <= {key.name for key in policy.KEYS}
    told = {key.name for key in IPAM_KEYS if "path of" in key.doc or "directory" in key.doc}
    assert told == set(ROOTS)
