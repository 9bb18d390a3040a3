"""railcni support-bundle: all that helps is in it, no secret is, and what cannot be read is said inside."""

import base64
import io
import json
import os
import shlex
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni.cli import support
from cni.cli.doctor import report
from cni.cli.main import main
from cni.cli.support import Part, cleaned
from cni.cli.terminal import output
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from tests.each import quick
from tests.node import COMMAND, Node, unusable

KEY = base64.b64encode(bytes(range(200))).decode()
PRIVATE = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY[:64]}\n{KEY[64:128]}\n-----END RSA PRIVATE KEY-----\n"
TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJzeXN0ZW06c2EifQ.c2lnbmF0dXJlLW9mLXRva2Vu"
PASSWORD, OPAQUE, EXEC, ARGUMENT, SHORT = "hunter2-äö\"x", "opaque-token-0123456789", "exec-env-secret", "long-exec-argument-secret", "q7Zx"  # fmt: skip
SECRETS = [KEY[:64], KEY[64:128], TOKEN, PASSWORD, OPAQUE, EXEC, ARGUMENT, "url-password", "flag-secret", "bearer-abc.def", "kubernetes-secret-value", "basic-secret", "flow-secret", "block-secret-line", "nested-secret", "client-secret-1"]  # fmt: skip

KUBECONFIG = f"""apiVersion: v1
kind: Config
clusters:
- name: a
  cluster: {{server: "https://admin:url-password@10.0.0.1:6443", certificate-authority-data: Q0E=}}
users:
- name: token
  user: {{token: {TOKEN}}}
- name: opaque
  user:
    token: "{OPAQUE}"
    password: '{SHORT}'
- name: certificate
  user:
    client-certificate-data: {base64.b64encode(b"-----BEGIN CERTIFICATE-----" + bytes(60)).decode()}
    client-key-data: {base64.b64encode(PRIVATE.encode()).decode()}
- name: exec
  user:
    exec:
      command: helper
      args: [get, "--client-secret=client-secret-1", {ARGUMENT}]
      env:
      - name: ANYTHING
        value: {EXEC}
- name: provider
  user: {{auth-provider: {{name: oidc, config: {{id: flow-secret}}}}}}
"""
FLAT = {"datastore": "etcd", "etcd_host": "127.0.0.1:1", "etcd_username": "root", "etcd_password": PASSWORD}
NAD = {
    "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "n"},
    "spec": {
        "config": json.dumps({"type": "macvlan", "ipam": {"type": "whereabouts", "etcd_password": "nested-secret"}})},
}  # fmt: skip
SECRET = {"kind": "Secret", "apiVersion": "v1", "data": {"a": base64.b64encode(b"kubernetes-secret-value").decode()}}
LOG = f"""started with --etcd-password=flag-secret for master ens2f0
GET /api Authorization: Bearer bearer-abc.def
Authorization: Basic basic-secret
etcd at http://root:url-password@127.0.0.1:2379 refused {PASSWORD}
the token {TOKEN} expired; {OPAQUE} too; short one {SHORT} too
{{"level":"debug","config":"{{\\"etcd_password\\":\\"{json.dumps(json.dumps(PASSWORD))[2:-2]}\\"}}"}}
private_key: |
  block-secret-line
etcd_password = "{PASSWORD}
{PRIVATE}
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's files, with a secret of each kind in each kind of place."""
    networks = tmp_path / "net.d"
    flat = networks / "whereabouts.d"
    flat.mkdir(parents=True)
    (flat / "whereabouts.conf").write_text(json.dumps({**FLAT, "log_file": str(tmp_path / "own.log")}))
    (flat / "whereabouts.kubeconfig").write_text(KUBECONFIG)
    (flat / "tls.key").write_text(PRIVATE)
    (networks / "10-a.conflist").write_text(json.dumps({"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "macvlan", "master": "ens2f0", "ipam": {"type": "whereabouts", **FLAT, "range": "10.0.0.0/8"}}]}))  # fmt: skip
    (networks / "20-broken.conf").write_text(
        '{"etcd_password": "' + PASSWORD.replace('"', '\\"') + '" "token": "' + OPAQUE + '"'
    )
    (networks / "30-nad.yaml").write_text(json.dumps(NAD) + "\n---\n" + json.dumps(SECRET) + "\n---\nenv:\n- name: API_TOKEN\n  value: block-secret-line\n")  # fmt: skip
    (networks / "40-binary.conf").write_bytes(b"\0\1\2" + OPAQUE.encode())
    os.mkfifo(networks / "50-fifo.conf")
    (networks / "60-loop.conf").symlink_to("60-loop.conf")
    (tmp_path / "own.log").write_text(LOG)
    (tmp_path / "other.log").write_text("x" * (support.MOST_BYTES + 10) + "\n" + LOG)
    Records(str(tmp_path / "state")).write(
        Attachment("n", "c1", "net1"), "link", {"config": FLAT, "netns": "/run/netns/x"}
    )
    results = tmp_path / "cache/results"
    results.mkdir(parents=True)
    (results / "n-c1-net1").write_text(json.dumps({"kind": "cniCacheV1", "config": base64.b64encode(json.dumps(FLAT).encode()).decode()}))  # fmt: skip
    plugins = tmp_path / "bin"
    plugins.mkdir()
    (plugins / "macvlan").write_text("#!/bin/sh\n")
    return tmp_path


def run(node: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[Path, int]:
    target = node / "bundle.tar.gz"
    argv = ["railcni", "support-bundle", "--file", str(target), "--conf-dir", str(node / "net.d"), "--state-dir", str(node / "state"), "--cache-dir", str(node / "cache"), "--cni-path", str(node / "bin"), "--config", str(node / "net.d/whereabouts.d/whereabouts.conf"), "--log", str(node / "other.log"), *more]  # fmt: skip
    monkeypatch.setattr(sys, "argv", argv)
    return target, main()


def members(target: Path) -> dict[str, str]:
    with tarfile.open(target) as tar:
        found = {}
        for entry in tar:
            file = tar.extractfile(entry)
            assert file and entry.isfile() and entry.mode == 0o600 and entry.mtime == 0 and entry.uid == 0
            found[entry.name.removeprefix(f"{support.TOP}/")] = file.read().decode()
        return found


def forms(secret: str) -> list[str]:
    plain = secret.encode()
    escaped = json.dumps(secret)[1:-1]
    return [secret, escaped, json.dumps(escaped)[1:-1], base64.b64encode(plain).decode(), base64.b64encode(plain).decode()[4:-4]]  # fmt: skip


def test_no_secret_of_any_kind_is_in_the_archive_and_what_helps_is(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, code = run(node, monkeypatch)
    said = capsys.readouterr()
    assert code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    inside = members(target)
    everything = "\n".join([*inside, *inside.values(), said.out, said.err])
    for secret in SECRETS:
        for form in forms(secret):
            assert form not in everything, (secret, [n for n, text in inside.items() if form in text])
    assert (
        f"short one {support.TOP and 'REMOVED'} too"
        in inside[f"logs/{str(node / 'own.log').strip('/').replace('/', '_')}"]
    )
    assert "ens2f0" in inside["config/net.d/10-a.conflist"]
    assert '"etcd_username": "root"' in inside["config/net.d/10-a.conflist"]
    assert "server:" in inside["config/net.d/whereabouts.d/whereabouts.kubeconfig"]
    assert "command: helper" in inside["config/net.d/whereabouts.d/whereabouts.kubeconfig"]
    assert json.loads(inside["attachments.json"])[0]["containerID"] == "c1"
    assert "macvlan" in json.loads(inside["versions.json"])["plugins"][str(node / "bin")]
    report = json.loads(inside["doctor.json"])
    assert any(f["check"] == "networks" and f["level"] == "fault" for f in report["findings"]) and "devices" in report

    check_index(inside, said.err)


def check_index(inside: dict[str, str], said: str) -> None:
    """What cannot be had is named, and keeps nothing else away."""
    index = json.loads(inside["index.json"])
    assert next(iter(inside)) == "index.json"
    assert {f["path"] for f in index["files"]} == set(inside) - {"index.json"}
    assert all(len(inside[f["path"]].encode()) == f["bytes"] for f in index["files"])
    missing = {m["path"]: m["why"] for m in index["missing"]}
    assert "is no text" in missing["config/net.d/40-binary.conf"]
    assert "no regular file" in missing["config/net.d/50-fifo.conf"]
    assert "symbolic links" in missing["config/net.d/60-loop.conf"]
    assert missing["config/net.d/whereabouts.d/tls.key"] == "certificates and keys are not gathered"
    assert "etcd" in missing["leases"]  # nobody listens at port 1
    assert all(f"not in the bundle: {name}:" in said for name in missing)


def test_a_named_log_that_is_absent_is_told(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, code = run(node, monkeypatch, "--log", "/no/file.log")
    missing = [one["path"] for one in json.loads(members(target)["index.json"])["missing"]]
    assert (code, [path for path in missing if path.startswith("logs/")]) == (0, ["logs/no_file.log"])
    assert "railcni: not in the bundle: logs/no_file.log: No such file or directory\n" in capsys.readouterr().err


def test_an_empty_node_has_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "examine", lambda _: 1 / 0)
    monkeypatch.setattr(support, "NET_DIRECTORY", f"{tmp_path}/none")
    monkeypatch.setattr(support, "STATE", f"{tmp_path}/none")
    target = tmp_path / "bundle.tar.gz"
    monkeypatch.setattr(sys, "argv", ["railcni", "support-bundle", "--file", str(target)])
    assert main() == 0
    missing = {m["path"]: m["why"] for m in json.loads(members(target)["index.json"])["missing"]}
    assert missing["checks"] == "a fault of railcni itself: ZeroDivisionError: division by zero"
    assert "No such file" in missing["files-of-the-nodes-networks"]


def test_a_bundle_that_cannot_be_written_leaves_nothing(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "gather", lambda places, report: [])
    target, code = run(node, monkeypatch, "--file", str(node / "none/x.tar.gz"))
    assert code == 1
    with pytest.raises(Exception, match="cannot be written"):
        output.write_file("support bundle", str(node), b"")
    assert not [p for p in node.iterdir() if ".tmp" in p.name]
    assert not target.exists()


def test_the_same_parts_give_the_same_bytes() -> None:
    some = [Part("b", "x", "1"), Part("a", "y", "2"), Part("c", "z", fault="gone")]
    first, second = support.pack(some, {"node": "n"}), support.pack(some[::-1], {"node": "n"})
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as tar:
        assert tar.getnames() == [f"{support.TOP}/{n}" for n in ("index.json", "a", "b")]


@pytest.mark.parametrize(("text", "left"), [
    (f"before\n{PRIVATE}after", "before\nREMOVED\nafter"), (f"cut off: {PRIVATE[:60]}", "cut off: REMOVED"),
    (f"key {base64.b64encode(PRIVATE.encode()).decode()}, end", "key REMOVED, end"),
    (f"got {TOKEN}, expired", "got REMOVED, expired"),
    ("curl -H 'x: Bearer abcd.efgh' URL", "curl -H 'x: Bearer REMOVED' URL"),
    ("http://root:hunter2@10.0.0.1:2379/", "http://root:REMOVED@10.0.0.1:2379/"),
    ("run --etcd-password hunter2 --master ens2f0", "run --etcd-password REMOVED --master ens2f0"),
    ("http://root:p@ss:w@rd@10.0.0.1:2379, http://b:2 a@b", "http://root:REMOVED@10.0.0.1:2379, http://b:2 a@b"),
    ("run --token=hunter2 now", "run --token=REMOVED now"),
    ('"client-key-data":"aHVudGVyMg=="', '"client-key-data":"REMOVED"'),
    ("kubeconfig=/etc/cni/k tokenFile: /run/t", "kubeconfig=/etc/cni/k tokenFile: /run/t"),
])  # fmt: skip
def test_what_looks_like_a_secret_is_removed_where_no_file_names_it(text: str, left: str) -> None:
    assert support.scrub(text) == left


@pytest.mark.parametrize(
    ("name", "secret"),
    [*((n, True) for n in ("token", "etcd_password", "id-token", "PASSWORD", "client-key-data", "apiKey", "AWS_SECRET_ACCESS_KEY", "bearer", "tokenData")),
     *((n, False) for n in ("tokenFile", "secretName", "etcd_key_file", "master", "name", "tokens", "serviceAccountToken_path"))],
)  # fmt: skip
def test_which_keys_hold_secrets(name: str, secret: bool) -> None:
    assert support.is_secret(name) is secret


@pytest.mark.parametrize(("document", "found"), [
    ({"exec": {"env": 1, "args": 2}}, []),
    ({"exec": {"env": [{"name": "A", "value": 12345}, "x"], "args": "--a=b"}}, ["12345", "--a=b"]),
    ({"exec": {"args": ["get", "--token", "short", "-v", "2"]}}, ["short"]),
    ({"kind": "Secret", "data": {"exec": {"command": "whole"}}}, ["whole"]),
    ({"auth-provider": {"name": "oidc", "config": {"a": ["deep", None, True]}}}, ["deep"]),
    ({"env": [{"name": "API_TOKEN", "value": "named"}, {"name": "PATH", "value": "/bin"}]}, ["named"]),
    ({"data": {"a": "a ConfigMap's"}, "credentials": [{"a": 1}]}, ["1"]),
])  # fmt: skip
def test_a_secret_is_known_by_its_place(document: Any, found: list[str]) -> None:
    assert list(support._secrets_of(document)) == found


@pytest.mark.parametrize("cut", [None, -1, -2, -3, -4, -9])
def test_a_secret_in_the_configuration_that_libcni_keeps_in_base64_is_removed(cut: int | None) -> None:
    config = json.dumps({"name": "n-ä", "plugins": [{"ipam": {"etcd_password": "in-base64"}, "master": "ens2f0"}]})
    kept = base64.b64encode(config.encode()).decode()
    whole, damaged = cleaned([Part("a", "", json.dumps({"config": kept})), Part("b", "", f'{{"config": "{kept[:cut]}')])
    assert json.loads(json.loads(whole.text)["config"])["plugins"][0]["ipam"] == {"etcd_password": "REMOVED"}
    assert "ens2" in damaged.text and "in-base64" not in damaged.text and kept[:40] not in damaged.text


@pytest.mark.parametrize(
    "text", ["eyJhbGciOiJub25lIn0", "eyAAAAAAAAAAAAAAAAAAAAAAAAAA", "ewogICJ", "e" * 40, "sha256-ey" + "A" * 40]
)
def test_what_is_no_json_in_base64_stays_as_it_is(text: str) -> None:
    (found,) = cleaned([Part("a", "", f"before {text} after")])
    assert found.text == f"before {text} after"


@settings(max_examples=60, deadline=None)
@given(
    st.text(
        st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["Cs", "Cc"]), min_size=6, max_size=20
    ),
    st.sampled_from(["etcd_password", "token", "client-secret"]),
)
def test_whatever_a_password_is_made_of_it_is_found_everywhere(password: str, key: str) -> None:
    found: list[Any] = cleaned(
        [
            Part("a", "", json.dumps({key: password})),
            Part("b", "", f"before {password} after"),
            Part("c", "", json.dumps([password])),
        ]
    )
    for part in found:
        assert password not in part.text.replace("REMOVED", "\n") or password in 'before after ["]{}: ' + key
        assert json.dumps(password)[1:-1] not in part.text or password in "before after REMOVED" + key


def test_the_archive_is_a_file_and_the_form_of_the_summary_is_chosen_as_everywhere(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [Part("a", "x", "1"), Part("b", "y", fault="gone")]
    monkeypatch.setattr(support, "gather", lambda places, report: parts)
    target, code = run(node, monkeypatch, "-o", "json")
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["file"] == str(target)
    assert "a" in members(target) and document["missing"] == ["b"]


# Files of a node that a part reads; a container has empty ones, links to /dev/null, or none.
OF_HOST = (
    *("/dev/kmsg", "/proc/modules", "/proc/cmdline", "/proc/net/route", "/proc/net/ipv6_route", "/proc/1/mountinfo"),
    *("/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/etc/os-release", "/etc/hostname", "/etc/resolv.conf"),
    *("/sys/class/dmi/id/product_uuid", "/sys/class/net", "/sys/class/infiniband", "/sys/bus/pci/devices"),
)
INSTEAD = {
    "an empty file": "touch /run/it", "/dev/null": "ln -s /dev/null /run/it",
    "words": "echo a b c; echo 'a b c' > /run/it", "bytes": "printf '\\377\\0\\001;\\n' > /run/it",
}  # fmt: skip


@pytest.mark.skipif(bool(unusable()), reason=unusable())
@pytest.mark.parametrize("what", quick(["/dev/null", "bytes", "an empty file", "words"], "bytes"))
def test_no_file_of_the_host_makes_a_part_fail_by_a_fault_of_ours(what: str) -> None:
    """An index names each missing part with a reason that an administrator can act on."""
    lay = f"""{INSTEAD[what]}; mkdir /run/empty
        for file in {" ".join(OF_HOST)}; do
            if [ -d $file ]; then mount --bind /run/empty $file; elif [ -e $file ]; then mount --bind /run/it $file; fi
        done
        {shlex.join(map(str, COMMAND))} support-bundle --file /run/b.tar.gz"""
    with Node() as host:
        done = host.run(["sh", "-ec", lay])
        assert done.returncode == 0, done.stderr.decode()
        inside = members(host.path("/run/b.tar.gz"))
    missing = {one["path"]: one["why"] for one in json.loads(inside["index.json"])["missing"]}
    assert not {path: why for path, why in missing.items() if "railcni itself" in why}
