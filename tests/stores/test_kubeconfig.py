"""Kubeconfigs as nodes have them: what is read, what is refused, and how the API server is then spoken to."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni.cluster.audit import cluster as clusters
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores import apiserver
from ipam.stores.apiserver import Api, kubeconfig
from ipam.stores.apiserver.faults import NotFound
from ipam.stores.apiserver.resources import POOLS
from ipam.stores.base import OutcomeUnknown, Unreachable
from tests.stores.kubernetes_api import DROP_BEFORE, ApiServer, Refusal

pytestmark = pytest.mark.well("it is about how a server is reached, and scripts the answer to each request")

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, user: Any = None, cluster: Any = None, context: Any = None, **more: Any) -> str:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "current-context": "x",
        **more,
    }
    path.write_text(json.dumps(document))
    return str(path)


def test_a_kubeconfig_in_yaml_is_read_where_pyyaml_is_installed_else_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "k")
    as_json = str(kubeconfig.load(path))
    (tmp_path / "k").write_text(yaml.safe_dump(json.loads((tmp_path / "k").read_text())))
    assert str(kubeconfig.load(path)) == as_json
    monkeypatch.setitem(sys.modules, "yaml", None)  # as if it were not installed
    with pytest.raises(
        InvalidConfig, match=r"no PyYAML \(Debian: python3-yaml\).*`kubectl config view --raw --flatten -o json`"
    ):
        kubeconfig.load(path)


def test_a_kubeconfig_that_is_not_there_and_the_line_of_a_fault_of_yaml_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=f"{tmp_path}/k cannot be read"):
        kubeconfig.load(str(tmp_path / "k"))
    (tmp_path / "k").write_text("a: b\nc: {d\n")
    with pytest.raises(InvalidConfig, match="line 3 is not YAML"):
        kubeconfig.load(str(tmp_path / "k"))
    for value in ("!!timestamp 1", "!!bool maybe", "!!int _"):
        (tmp_path / "k").write_text(f"a: {value}\n")
        with pytest.raises(InvalidConfig, match="it is not YAML"):
            kubeconfig.load(str(tmp_path / "k"))


def test_the_plugins_interpreter_finds_pyyaml(tmp_path: Path) -> None:
    """It starts without the folders of installed libraries (-S)."""
    path = write(tmp_path / "k")
    Path(path).write_text(yaml.safe_dump(json.loads(Path(path).read_text())))
    script = "import sys; sys.path.insert(0, sys.argv[1]); from ipam.stores.apiserver import kubeconfig; print(kubeconfig.load(sys.argv[2]))"
    done = subprocess.run([sys.executable, "-IS", "-c", script, str(ROOT), path], capture_output=True, text=True)
    assert done.stdout == "https://10.0.0.1:6443\n", done.stderr


def test_the_current_context_counts_and_its_namespace_is_kube_system_unless_named(tmp_path: Path) -> None:
    access = kubeconfig.load(write(tmp_path / "k"))
    assert (str(access), access.namespace) == ("https://10.0.0.1:6443", "kube-system")
    assert kubeconfig.load(write(tmp_path / "k", context={"namespace": "net"})).namespace == "net"


@pytest.mark.parametrize(
    ("server", "meant"),
    [
        ("https://[fd00::1]:443", (True, "fd00::1", 443, "")),
        ("https://api.example/k8s/c-1/", (True, "api.example", 443, "/k8s/c-1")),
        ("http://localhost", (False, "localhost", 80, "")),
        ("10.0.0.1:8080", (False, "10.0.0.1", 8080, "")),
    ],
)
def test_the_server_is_a_url(tmp_path: Path, server: str, meant: tuple[bool, str, int, str]) -> None:
    access = kubeconfig.load(write(tmp_path / "k", cluster={"server": server}))
    assert (access.tls, access.host, access.port, access.base) == meant


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"current-context": "y"}, "current-context names none of its contexts"),
        ({"current-context": ""}, "current-context is missing"),
        ({"context": {"cluster": "z"}}, "cluster of its context names none of its clusters"),
        ({"context": {"user": "z"}}, "user of its context names none of its users"),
        ({"cluster": {"server": "ftp://x"}}, "want a URL"),
        ({"cluster": {"server": "https://x:99999"}}, "want a URL"),
        ({"cluster": {"proxy-url": "http://p"}}, "proxy-url"),
        ({"cluster": {"certificate-authority-data": "%"}}, "not base64"),
        ({"user": {"username": "a", "password": "b"}}, "username"),
        ({"user": {"as": "admin"}}, "as of its user"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "use `exec`"),
        ({"user": {"exec": {"command": "x", "apiVersion": "v0"}}}, "apiVersion"),
        ({"user": {"token": 5}}, "token is no text"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "k", **more)
    with pytest.raises(InvalidConfig) as caught:
        kubeconfig.load(path)
    assert said in caught.value.msg[:250]
    assert path in caught.value.msg


SECRET = "s3cr3t-0f-s0meb0dy"
OF_CLUSTER = ("server", "certificate-authority", "certificate-authority-data", "tls-server-name", "proxy-url")
OF_USER = (
    *("token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data", "exec"),
    *("username", "password", "auth-provider", "as", "as-uid", "as-groups"),
)
PLACES: list[tuple[str, str]] = [
    *(("", key) for key in ("current-context", "clusters", "users", "contexts")),
    *(("context", key) for key in ("cluster", "user", "namespace")),
    *(("cluster", key) for key in OF_CLUSTER),
    *(("user", key) for key in OF_USER),
]


@pytest.mark.parametrize(("where", "key"), PLACES)
def test_no_message_shows_a_value_of_a_kubeconfig_whatever_is_wrong(tmp_path: Path, where: str, key: str) -> None:
    """A network names the path of a kubeconfig, which may belong to anybody. The message names the server alone, where nothing listens."""
    exec_of = {"apiVersion": "client.authentication.k8s.io/v1", "command": f"/bin/{SECRET}"}
    values: list[Any] = [SECRET, f"/{SECRET}", f"ftp://{SECRET}", [SECRET], {SECRET: SECRET}, 4711_4711, exec_of]
    values += [{**exec_of, "apiVersion": SECRET}, {**exec_of, "command": "/bin/false", "args": [SECRET]}]
    cluster = {"server": "https://127.0.0.1:1"}
    for value in values:
        parts: dict[str, Any] = {"cluster": cluster}
        parts |= {where: {**parts.get(where, {}), key: value}} if where else {key: value}
        if where == "cluster" and key == "server" and value in (SECRET, f"/{SECRET}"):
            continue
        try:
            access = kubeconfig.load(write(tmp_path / "k", **parts))
            access.token(time.monotonic() + 5)
            access.context(time.monotonic() + 5)
            works(Api(str(tmp_path / "k"), 0.1))
        except CniError as refused:
            text = f"{refused.msg} {refused.details}"
            assert "s3cr3t" not in text and "4711" not in text, text
            assert str(tmp_path / "k") in text or "127.0.0.1:1" in text


@pytest.mark.parametrize(
    "text", [f"{SECRET}: 1\n{SECRET}: 2\n", f"a: {{{SECRET}\n", f"a:\n\t{SECRET}\n", f"- {SECRET}\n", '{"a": 4711e999}']
)
def test_nothing_is_told_of_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        kubeconfig.load(str(tmp_path / "k"))
    assert "s3cr3t" not in caught.value.msg and "4711" not in caught.value.msg


def test_the_status_of_an_exec_helper_is_known_though_the_caller_ignores_sigchld(tmp_path: Path, start: Start) -> None:
    former = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(InvalidConfig, match="status 3"):
            works(api(tmp_path, start(tls=False), helper(tmp_path, "exit 3"), 5))
    finally:
        signal.signal(signal.SIGCHLD, former)


# --- against a server ---


Start = Callable[..., ApiServer]


@pytest.fixture
def start(pki: Path) -> Iterator[Start]:
    started = []

    def begin(tls: bool = True, certificate: str = "server", client: bool = False) -> ApiServer:
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pki / f"{certificate}.pem", pki / f"{certificate}.key")
            if client:
                context.load_verify_locations(pki / "ca.pem")
                context.verify_mode = ssl.CERT_REQUIRED
        started.append(ApiServer(context))
        return started[-1]

    yield begin
    for server in started:
        server.close()


def api(tmp_path: Path, server: ApiServer, user: Any = None, seconds: float = 2, **cluster: Any) -> Api:
    return Api(write(tmp_path / "k", user, {"server": server.url, **cluster}), seconds)


def works(one: Api) -> bool:
    try:
        one.get(POOLS, "none")
    except NotFound:
        return True
    finally:
        one.close()
    return False


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_the_certificate_is_verified_by_file_data_or_relative_path(tmp_path: Path, start: Start, pki: Path) -> None:
    server = start()
    assert works(api(tmp_path, server, **{"certificate-authority": str(pki / "ca.pem")}))
    assert works(api(tmp_path, server, **{"certificate-authority-data": encoded(pki / "ca.pem")}))
    (tmp_path / "own.pem").write_bytes((pki / "ca.pem").read_bytes())
    assert works(api(tmp_path, server, **{"certificate-authority": "own.pem"}))
    with pytest.raises(InvalidConfig, match="certificate-authority"):
        works(api(tmp_path, server, **{"certificate-authority": str(pki / "other-ca.pem")}))
    with pytest.raises(InvalidConfig, match="not trusted"):
        works(api(tmp_path, server))
    assert works(api(tmp_path, server, **{"insecure-skip-tls-verify": True}))


def test_a_certificate_for_another_name_needs_tls_server_name(tmp_path: Path, start: Start, pki: Path) -> None:
    server, ca = start(certificate="elsewhere"), {"certificate-authority": str(pki / "ca.pem")}
    with pytest.raises(InvalidConfig, match="tls-server-name"):
        works(api(tmp_path, server, **ca))
    assert works(api(tmp_path, server, **ca, **{"tls-server-name": "elsewhere.example"}))


def test_a_client_certificate_is_shown_from_files_or_data(tmp_path: Path, start: Start, pki: Path) -> None:
    server, ca = start(client=True), {"certificate-authority": str(pki / "ca.pem")}
    files = {"client-certificate": str(pki / "client.pem"), "client-key": str(pki / "client.key")}
    assert works(api(tmp_path, server, files, **ca))
    assert works(api(tmp_path, server, {f"{key}-data": encoded(Path(path)) for key, path in files.items()}, **ca))
    with pytest.raises(CniError):
        works(api(tmp_path, server, None, 1, **ca))
    with pytest.raises(InvalidConfig, match="client-certificate with the key client-key"):
        works(api(tmp_path, server, {**files, "client-key": str(pki / "stranger.key")}, **ca))


def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path: Path, start: Start) -> None:
    server = start(tls=False)
    one = api(tmp_path, server, {"tokenFile": "token", "token": "never used"})
    for token in ("first", "second"):
        server.tokens = {token}
        (tmp_path / "token").write_text(f"{token}\n")
        assert works(one)
    server.tokens = {"third"}
    with pytest.raises(InvalidConfig, match="does not accept the credentials"):
        works(one)
    asked = len(server.seen)
    with pytest.raises(InvalidConfig):
        works(one)
    assert len(server.seen) == asked + 2  # once again with what the file says now, and no more


def helper(tmp_path: Path, script: str, **more: Any) -> dict[str, Any]:
    path = tmp_path / "helper"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./helper", **more}}


PRINT = """echo x >> "$0.runs"; printf '{"status": {"token": "%s"}}' "$(cat "$0.token")$SUFFIX$1" """


def test_an_exec_helper_is_run_once_and_again_when_its_token_is_refused(tmp_path: Path, start: Start) -> None:
    server = start(tls=False)
    user = helper(tmp_path, PRINT, args=["-c"], env=[{"name": "SUFFIX", "value": "-b"}])
    one = api(tmp_path, server, user)
    for token in ("a", "z"):
        server.tokens = {f"{token}-b-c"}
        (tmp_path / "helper.token").write_text(token)
        assert works(one) and works(one)
    assert (tmp_path / "helper.runs").read_text() == "x\nx\n"


@pytest.mark.parametrize(("caller", "passed"), [("a runtime", "/root b"), ("a person", "/root s3cret b")])
def test_an_exec_helper_of_a_call_gets_no_variables_of_the_runtime_that_may_be_secrets(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, caller: str, passed: str
) -> None:
    environ = {b"HOME": b"/root", b"SECRET": b"s3cret ", **({b"CNI_COMMAND": b"ADD"} if caller == "a runtime" else {})}
    monkeypatch.setattr(os, "environb", environ)
    server = start(tls=False)
    server.tokens = {passed.replace(" ", "-")}
    prints = """printf '{"status": {"token": "%s"}}' "$(echo "$HOME $SECRET$OWN" | tr ' ' -)" """
    assert works(api(tmp_path, server, helper(tmp_path, prints, env=[{"name": "OWN", "value": "b"}])))


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        ("exit 3", InvalidConfig, "status 3"),
        ("echo nonsense", InvalidConfig, "ExecCredential"),
        ("echo '{}'", InvalidConfig, "ExecCredential"),
        ("exec sleep 60", TryAgainLater, "not ended in time"),
    ],
)
def test_an_exec_helper_that_fails_is_named(
    tmp_path: Path, start: Start, script: str, kind: type[CniError], said: str
) -> None:
    began = time.monotonic()
    with pytest.raises(kind, match=said) as caught:
        works(api(tmp_path, start(tls=False), helper(tmp_path, script), 0.5))
    assert "helper" in caught.value.msg[:250]
    assert time.monotonic() - began < 30


def test_a_server_that_does_not_speak_tls_is_said_so(tmp_path: Path, start: Start) -> None:
    server = start(tls=False)
    server.url = server.url.replace("http:", "https:")
    with pytest.raises(CniError, match=r"http://|TLS"):
        works(api(tmp_path, server, seconds=5))


def test_nobody_at_the_address_is_unreachable_and_named(tmp_path: Path, start: Start) -> None:
    server = start(tls=False)
    server.close()
    with pytest.raises(Unreachable) as caught:
        works(api(tmp_path, server, seconds=0.2))
    assert server.url in caught.value.msg[:250]
    assert caught.value.code == 11


def test_lists_come_in_pages(tmp_path: Path, start: Start) -> None:
    server = start(tls=False)
    for i in range(1203):
        server.put(POOLS, "kube-system", f"p{i:05d}", {"range": "10.0.0.0/24", "allocations": {}})
    one = api(tmp_path, server)
    assert len(one.list_all(POOLS)) == 1203
    assert len(server.seen) == 31  # 40 at a time
    one.close()


# --- in a pod, and at a server that is busy ---


def test_in_a_pod_the_service_account_is_used_and_its_namespace(
    tmp_path: Path, start: Start, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    server.tokens = {"token-1"}
    for name, text in (("token", "token-1"), ("namespace", "networks"), ("ca.crt", (pki / "ca.pem").read_text())):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", str(tmp_path))
    environ = {b"KUBERNETES_SERVICE_HOST": b"127.0.0.1", b"KUBERNETES_SERVICE_PORT": str(server.port).encode()}
    monkeypatch.setattr(os, "environb", environ)
    one = Api("", 2)
    assert one.access.namespace == "networks"
    assert works(one)
    server.tokens = {"token-2"}
    (tmp_path / "token").write_text("token-2")  # kubelet renews it
    assert works(one)


def busy(code: int) -> tuple[int, dict[str, Any]]:
    return code, Refusal(code, "TooManyRequests", "busy").document


def test_a_read_is_repeated_while_the_server_is_busy_or_drops_it(tmp_path: Path, start: Start) -> None:
    server = start(tls=False)
    answers: list[Any] = [busy(429), DROP_BEFORE, busy(503), busy(500)]
    server.faults = lambda method, resource, number: answers.pop(0) if answers else None
    assert works(api(tmp_path, server, seconds=5))
    assert len(server.seen) == 5
    server.faults = lambda method, resource, number: busy(429)
    with pytest.raises(TryAgainLater, match=r"does not serve now \(429\)"):
        works(api(tmp_path, server, seconds=0.2))


@pytest.mark.parametrize("code", [500, 503])
def test_a_change_is_not_repeated(tmp_path: Path, start: Start, code: int) -> None:
    server = start(tls=False)
    server.faults = lambda method, resource, number: busy(code)
    with pytest.raises(OutcomeUnknown, match=str(code)):
        api(tmp_path, server).create(POOLS, {"metadata": {"name": "a"}, "spec": {}})
    assert len(server.seen) == 1


def test_a_change_is_repeated_when_the_server_has_refused_it_and_asks_to_retry_later(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(tls=False)
    monkeypatch.setattr(apiserver, "_RETRY_AFTER_LIMIT", 0.1)
    answers = [(503, Refusal(503, "ServiceUnavailable", "overloaded", retryAfterSeconds=1).document)]
    server.faults = lambda *_: answers.pop() if answers else None
    spec = {"range": "10.0.0.0/24", "allocations": {}}
    made = api(tmp_path, server).create(POOLS, {"metadata": {"name": "a"}, "spec": spec})
    assert made["metadata"]["name"] == "a" and len(server.seen) == 2


def test_a_list_whose_pages_expire_is_read_from_its_beginning(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_PAGE", 2)
    server = start(tls=False)
    for n in range(5):
        server.add_pod("team", f"p{n}", node="node-1")
    gone = 410, Refusal(410, "Expired", "busy").document
    server.faults = lambda method, resource, number: gone if number == 2 else None
    one = clusters.Cluster(server.kubeconfig(tmp_path))
    assert [pod.name for pod in clusters.read_all(one.pods)] == [f"p{n}" for n in range(5)]
    assert list(one.pods("node-2")) == [[]]
    assert len(server.seen) > 4
    one.api.close()


def test_what_is_no_api_server_is_told(tmp_path: Path, start: Start) -> None:
    server = start(tls=False)
    server.faults = lambda method, resource, number: (403, "<html>no</html>")  # type: ignore[return-value]
    with pytest.raises(InvalidConfig, match="an API server's URL"):
        works(api(tmp_path, server))
