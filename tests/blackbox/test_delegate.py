"""Delegation: any IPAM plugin is run from CNI_PATH with the very bytes and variables that came, and cleaned up after."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import callers
from tests.blackbox.test_foreign_ipam import ROOT, Ipam, call, each_plugin, network
from tests.each import one_link
from tests.node import GO_PLUGINS, Call, Node, Pod, Reply, until

pytestmark = pytest.mark.forked

RESULT = {"cniVersion": "1.1.0", "ips": [{"address": "10.5.0.7/24", "gateway": "10.5.0.1"}], "dns": {}}


@pytest.fixture
def ipam(node: Node) -> Ipam:
    node.caller = callers.CONTAINERD.environ
    made = Ipam(node)
    made.replies("ADD", RESULT)
    return made


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    node.remember()
    return node.pod()


# --- what it is given ---


@one_link
def test_stdin_and_variables_are_passed_on_to_the_byte(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    how: dict[str, Any] = {"netns": pod, "path": ["/nowhere", ROOT, GO_PLUGINS]}
    text = json.dumps(network(plugin))[1:].encode()
    odd = b'\n {\t"\\u0061": 1.50,  "a": 1e3, "a": "\\u00e4\\/", "long": "' + b"x" * 3_000_000 + b'",\r\n' + text
    previous = node.cni(plugin, "ADD", odd, **how, args="K8S_POD_NAME=p;K8S_POD_NAMESPACE=ns").succeeded()
    assert ipam.heard("stdin", "ADD") == odd
    valued = {"ARGS": "K8S_POD_NAME=p;K8S_POD_NAMESPACE=ns", "COMMAND": "ADD", "CONTAINERID": "c1", "IFNAME": "net1"}
    valued |= {"NETNS": pod.path, "PATH": f"/nowhere:{ROOT}:{GO_PLUGINS}"}
    assert ipam.heard("env", "ADD").decode().split() == [f"CNI_{key}={value}" for key, value in valued.items()]
    more = {verb: b', "prevResult" : ' + json.dumps(previous).encode() + b"}" for verb in ("STATUS", "CHECK", "DEL")}
    more["GC"] = b', "cni.dev/valid-attachments" :[ ]}'
    for verb, end in more.items():
        stdin = odd.rstrip()[:-1] + end
        node.cni(plugin, verb, stdin, **how).succeeded()
        assert ipam.heard("stdin", verb) == stdin
    assert (ipam.verbs, node.leftovers()) == (["ADD", "STATUS", "CHECK", "DEL", "GC"], [])


@pytest.mark.parametrize("name", callers.CALLERS)
def test_it_gets_the_parameters_and_the_calls_of_each_caller(node: Node, pod: Pod, ipam: Ipam, name: str) -> None:
    caller = callers.CALLERS[name]
    node.caller = caller.environ
    args, previous = caller.args_of("p", "c1"), {}
    for step in caller.order:
        config = network("macvlan", **({"prevResult": previous} if step.has_previous else {}))
        netns = pod if step.has_netns else ""
        folders = ["/nowhere", ROOT]
        how = {"netns": netns, "path": folders, "args": args, "ifname": caller.ifname}
        previous = node.cni("macvlan", step.verb, config, **how).succeeded() or previous
        own = {"CNI_COMMAND": step.verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": caller.ifname, "CNI_ARGS": args}
        own |= {"CNI_NETNS": netns.path if isinstance(netns, Pod) else "", "CNI_PATH": ":".join(folders)}
        heard = dict(line.split("=", 1) for line in ipam.heard("all", step.verb).decode().splitlines())
        assert {key: value for key, value in heard.items() if key.startswith("CNI_")} == own
        of_caller = {key: heard.get(key) for key in caller.environ.keys() - {"PATH"}}  # PATH is the stand-in's
        assert {key: value for key, value in of_caller.items() if value not in (None, caller.environ[key])} == {}
        assert not heard.keys() & {"NOTIFY_SOCKET", "JOURNAL_STREAM"}
    assert ipam.verbs == [step.verb for step in caller.order]
    assert node.leftovers() == []


def test_of_the_runtimes_own_variables_only_those_that_a_plugin_needs_are_passed_on(
    node: Node, pod: Pod, ipam: Ipam
) -> None:
    passed = {"CNI_NEW": "a parameter of a later version", "HOME": "/root", "https_proxy": "http://p"}
    passed |= {"LD_AUDIT": "", "NODENAME": "n1"}
    kept = {"AWS_SECRET_ACCESS_KEY": "s3cret", "NOTIFY_SOCKET": "/run/s", "SUDO_CNI_": "x"}
    call(node, "ADD", network("macvlan"), pod, more={**passed, **kept}).succeeded()
    heard = dict(line.split("=", 1) for line in ipam.heard("all", "ADD").decode().splitlines())
    assert (heard.items() >= passed.items(), heard.keys() & kept.keys()) == (True, set())


@one_link
def test_its_stderr_is_seen_and_its_stdout_is_not(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    for verb in ("STATUS", "ADD", "DEL"):
        if verb != "ADD":
            ipam.replies(verb, {"cniVersion": "1.1.0"})
        reply = call(node, verb, network(plugin), pod)
        assert f"a line of the IPAM plugin for {verb}" in reply.stderr
        assert (reply.document is None) == (verb != "ADD")


@one_link
@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_result_of_an_old_form_is_understood(node: Node, pod: Pod, ipam: Ipam, plugin: str, version: str) -> None:
    routes = [{"dst": "10.99.0.0/16", "gw": "10.5.0.1"}]
    ipam.replies("ADD", {"cniVersion": version, "ip4": {"ip": "10.5.0.7/24", "gateway": "10.5.0.1", "routes": routes}})
    result = call(node, "ADD", network(plugin, version), pod).succeeded()
    assert result["ip4"] == {"ip": "10.5.0.7/24", "gateway": "10.5.0.1", "routes": routes}
    assert pod.view.link("net1").texts == ["10.5.0.7/24"]


# --- when it fails ---


NONSENSE: list[tuple[Any, int, str]] = [
    ("", 102, "JSON"),
    ({"cniVersion": "1.1.0"}, 102, "address"),
    ({"cniVersion": "1.1.0", "ips": [{"address": 7}]}, 6, ""),
    ({"cniVersion": "9.9.9", "ips": []}, 6, "9.9.9"),
    ("null", 6, "not a JSON object"),
    ({"cniVersion": "1.1.0", "ips": [7]}, 6, "ips is not a list of objects"),
    ({"cniVersion": "0.2.0", "ip4": [7]}, 6, "ip4 is not an object"),
    ({"cniVersion": "1.1.0", "ips": [{"address": "10.5.0.700/24"}]}, 6, "10.5.0.700/24"),
    ({"code": 11, "msg": "no address today"}, 11, "no address today"),  # with exit code 0
]


def test_an_add_that_answers_nonsense_is_refused_and_undone(node: Node, pod: Pod, ipam: Ipam) -> None:
    for number, (answer, code, word) in enumerate(NONSENSE, 1):
        ipam.replies("ADD", answer)
        reply = call(node, "ADD", network("macvlan"), pod)
        reply.refused(code, "recorder", word)
        assert not any(word in reply.msg for word in ("NoneType", "attribute", "iterable")), "Python's own words"
        assert (ipam.verbs, node.leftovers()) == (["ADD", "DEL"] * number, []), answer


def test_an_error_that_is_none_is_reported_as_the_plugins_failure(node: Node, pod: Pod, ipam: Ipam) -> None:
    errors: list[dict[str, Any]] = [{}, {"code": "11", "msg": 7}, {"code": 11}, {"code": 11, "msg": ""}]
    errors += [{"code": 11, "msg": {"a": 1}}, {"code": True, "msg": "bad"}, {"code": 0, "msg": "bad"}]
    for answer in ("nonsense", [], *errors):
        ipam.replies("ADD", answer, 3)
        call(node, "ADD", network("macvlan"), pod).refused(102, "recorder", "its log")
        assert node.leftovers() == [], answer


def test_an_ipam_plugin_that_is_killed_is_reported_and_undone(node: Node, pod: Pod, ipam: Ipam) -> None:
    (ipam.folder / "signal.ADD").touch()
    ipam.replies("ADD", "")
    call(node, "ADD", network("macvlan"), pod).refused(102, "recorder", "signal 9")
    assert (ipam.verbs, node.leftovers()) == (["ADD", "DEL"], [])


def test_check_and_status_pass_on_its_error(node: Node, pod: Pod, ipam: Ipam) -> None:
    config = network("macvlan")
    result = call(node, "ADD", config, pod).succeeded()
    ipam.fails("CHECK", 100, "the lease is gone")
    call(node, "CHECK", {**config, "prevResult": result}, pod).refused(100, "the lease is gone")
    ipam.fails("STATUS", 50, "nothing is left")
    call(node, "STATUS", config, pod).refused(50, "nothing is left")


@one_link
def test_gc_is_forwarded_also_when_its_delete_fails(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    call(node, "ADD", network(plugin), pod).succeeded()
    ipam.fails("DEL", 11, "the store is away")
    config = network(plugin) | {"cni.dev/valid-attachments": []}
    call(node, "GC", config, pod).refused(11, "the store is away")
    assert ipam.verbs == ["ADD", "DEL", "GC"]
    ipam.replies("DEL", None)
    call(node, "GC", config, pod).succeeded()
    assert node.leftovers() == []


@each_plugin
def test_a_delete_of_what_was_never_added_asks_it_too(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    call(node, "DEL", network(plugin), pod).succeeded()
    assert ipam.verbs == ["DEL"]


# --- two at once on one attachment ---


class Adding:
    """An ADD whose IPAM plugin is at work until `end`, which returns the answer."""

    def __init__(self, node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
        self._slow = ipam.folder / "slow.ADD"
        self._slow.touch()
        self._pool = ThreadPoolExecutor(1)
        self._reply = self._pool.submit(start(node, plugin, "ADD", pod).finish)
        assert until((ipam.folder / "waiting.ADD").exists)

    def end(self) -> Reply:
        self._slow.unlink()
        with self._pool:
            return self._reply.result()


def start(node: Node, plugin: str, verb: str, pod: Pod) -> Call:
    return node.start_cni(plugin, verb, network(plugin), netns=pod, path=[ROOT])


@each_plugin
def test_gc_leaves_a_pod_alone_that_is_being_set_up(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    adding = Adding(node, pod, ipam, plugin)
    call(node, "GC", network(plugin) | {"cni.dev/valid-attachments": []}, pod).succeeded()
    told = json.loads(ipam.heard("stdin", "GC"))["cni.dev/valid-attachments"]
    assert told == [{"containerID": "c1", "ifname": "net1"}]  # for the IPAM plugin must spare it too
    assert adding.end().addresses == ["10.5.0.7/24"] == pod.view.link("net1").texts
    assert "DEL" not in ipam.verbs


# --- which file is run ---


def test_a_file_that_cannot_be_run_is_named(node: Node, pod: Pod, ipam: Ipam) -> None:
    (ipam.folder / "plain").write_text("no program")
    reply = call(node, "ADD", network("macvlan", ipam={"type": "plain"}), pod)
    assert (reply.code in (7, 102), f"{ROOT}/plain" in reply.msg, node.leftovers()) == (True, True, [])


@one_link
def test_the_first_of_the_path_is_run_also_when_it_has_our_name(node: Node, pod: Pod, ipam: Ipam, plugin: str) -> None:
    ipam.install("whereabouts")
    config = network(plugin, ipam={"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"})
    result = node.cni(plugin, "ADD", config, netns=pod, path=[ROOT, node.executables]).succeeded()
    assert result["ips"][0]["address"] == "10.5.0.7/24"
    assert (ipam.verbs, node.leases()) == (["ADD"], [])


@one_link
@pytest.mark.parametrize("name", ["whereabouts", "railcni-whereabouts"])
def test_ours_is_found_under_each_of_its_names_and_by_links(
    node: Node, pod: Pod, tmp_path: Path, plugin: str, name: str
) -> None:
    (tmp_path / name).symlink_to(node.executables / name)
    config = network(plugin, ipam={"type": name, "range": "192.168.111.0/24", "datastore": "file"})
    for path in ([node.executables], [tmp_path]):
        result = node.cni(plugin, "ADD", config, netns=pod, path=path).succeeded()
        assert result["ips"][0]["address"] == "192.168.111.1/24"
        node.ended(plugin, config, netns=pod, path=path)


def test_ours_answers_the_same_in_this_process_and_by_exec(node: Node, pod: Pod, tmp_path: Path) -> None:
    """A copy of the launcher is another file to the plugin, and is run; a link to it is not."""
    node.script(str(tmp_path / "whereabouts"), f'#!/bin/sh\nexec {node.executables}/whereabouts "$@"\n')
    answers = []
    for path in ([node.executables], [tmp_path]):
        for ipam in ({"range": "192.168.111.0/24", "datastore": "file"}, {"range": "nonsense"}, {}):
            config = network("macvlan", ipam={"type": "whereabouts", **ipam})
            for verb in ("ADD", "ADD", "CHECK", "STATUS", "DEL", "DEL", "GC") if len(ipam) > 1 else ("ADD", "DEL"):
                reply = node.start_cni("macvlan", verb, config, netns=pod, path=path).finish()
                answers.append((ipam, verb, reply.status, reply.document))
                if verb == "ADD" and not reply.status:
                    config |= {"prevResult": reply.document, "cni.dev/valid-attachments": []}
            assert node.leftovers() == []
    half = len(answers) // 2
    assert answers[:half] == answers[half:]
