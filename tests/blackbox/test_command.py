"""railcni attach, detach, check, gc, status: what plugins get from it, and what a person gets from it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.node import BIN, GO_PLUGINS, Node, Pod, railcni

GO = pytest.mark.skipif(
    not (GO_PLUGINS / "macvlan").exists(), reason="needs Go's plugins: apt-get install containernetworking-plugins"
)

# It notes stdin and the environment of a call, and does what the files PLUGIN.VERB.* say.
RECORDER = """#!/bin/sh
folder=${0%/*}
plan=$folder/plan/${0##*/}.$CNI_COMMAND
call=$folder/calls/$(printf %03d $(ls $folder/calls | wc -l)).${0##*/}.$CNI_COMMAND
if [ $CNI_COMMAND != VERSION ]; then cat /proc/$$/environ - > $call; fi
if [ -e $plan.stderr ]; then cat $plan.stderr >&2; fi
if [ -e $plan.signal ]; then kill -$(cat $plan.signal) $$; fi
if [ -e $plan.command ]; then kill -$(cat $plan.command) $PPID; exec sleep 100; fi
if [ -e $plan.answer ]; then cat $plan.answer
elif [ $CNI_COMMAND = VERSION ]; then
    echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}'
elif [ $CNI_COMMAND = ADD ]; then
    echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "'${0##*/}'"}]}'
fi
exit $(cat $plan.exit 2>/dev/null || echo 0)
"""


AB = [{"type": "a"}, {"type": "b"}]
UNDONE = ["a ADD", "b ADD", "c DEL", "b DEL", "a DEL"]


class Recorded:
    """A directory with recording plugins `a`, `b` and `c`, a network made of them, and a cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "cache" / "results"
        self.netns = folder / "ns"
        self.netns.touch()
        for name in "abc":
            (folder / name).write_text(RECORDER)
            (folder / name).chmod(0o755)
        self.plan({})
        self.write([*AB, {"type": "c"}])

    def plan(self, answers: dict[str, dict[str, Any]]) -> None:
        """What "PLUGIN VERB" shall do: its answer, its exit code, what it says on stderr, the signal that it dies of or sends."""
        shutil.rmtree(self.folder / "plan", ignore_errors=True)
        (self.folder / "plan").mkdir()
        for call, parts in answers.items():
            for part, value in parts.items():
                text = json.dumps(value) if isinstance(value, dict) else str(value)
                (self.folder / "plan" / f"{call.replace(' ', '.')}.{part}").write_text(text)

    def write(self, plugins: Sequence[Mapping[str, Any]], version: str = "1.0.0", **more: Any) -> None:
        document = {"cniVersion": version, "name": "rec", "plugins": plugins, **more}
        (self.folder / "rec.conflist").write_text(json.dumps(document))

    def run(self, verb: str, *more: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        shutil.rmtree(self.folder / "calls", ignore_errors=True)
        (self.folder / "calls").mkdir()
        argv = [verb, "rec", *([] if verb in ("gc", "status") else [str(self.netns)]), *more]
        argv += ["--conf-dir", str(self.folder), "--cni-path", str(self.folder)]
        if verb != "status":
            argv += ["--cache-dir", str(self.results.parent)]
        if verb not in ("attach", "status") and not self.results.parent.exists():
            self.results.parent.mkdir()  # which attach makes
        done = railcni(*argv, env=env or {})
        assert "Traceback" not in done.stderr, done.stderr
        return done

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of the last run, without VERSION."""
        return [self._call(file) for file in sorted((self.folder / "calls").iterdir())]

    def _call(self, file: Path) -> dict[str, Any]:
        _, plugin, verb = file.name.split(".")
        *environ, config = file.read_text().split("\0")
        variables = dict(line.split("=", 1) for line in environ)
        return {"plugin": plugin, "verb": verb, "config": json.loads(config), "environ": variables}

    @property
    def order(self) -> list[str]:
        return [f"{c['plugin']} {c['verb']}" for c in self.calls]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def failed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stderr.startswith("railcni: ")
    return done.stderr


# --- what plugins get: libcni's side of the protocol ---


def test_add_runs_the_chain_in_order_and_hands_each_result_on(recorded: Recorded) -> None:
    ok(recorded.run("attach"))
    assert recorded.order == ["a ADD", "b ADD", "c ADD"]
    first, second, third = (c["config"] for c in recorded.calls)
    assert first == {"type": "a", "name": "rec", "cniVersion": "1.0.0"}
    assert second["prevResult"] == {"cniVersion": "1.0.0", "interfaces": [{"name": "a"}]}
    assert third["prevResult"]["interfaces"] == [{"name": "b"}]


def container_of(recorded: Recorded) -> str:
    """The name that cnitool gives the container of a namespace."""
    return "cnitool-" + hashlib.sha512(str(recorded.netns).encode()).hexdigest()[:20]


def test_plugins_get_the_variables_of_the_spec_beside_the_callers_own(recorded: Recorded) -> None:
    ok(recorded.run("attach", "-i", "net7", "--args", "K8S_POD_NAME=p;X=1=2", env={"LANG": "C", "HTTP_PROXY": "x"}))
    expected = {"COMMAND": "ADD", "CONTAINERID": container_of(recorded), "NETNS": str(recorded.netns), "IFNAME": "net7"}
    expected |= {"ARGS": "IgnoreUnknown=1;K8S_POD_NAME=p;X=1=2", "PATH": str(recorded.folder)}
    environ = recorded.calls[0]["environ"]
    assert environ.items() >= {f"CNI_{name}": value for name, value in expected.items()}.items()
    assert environ["HTTP_PROXY"] == "x"


def test_cnitools_own_variables_are_read(recorded: Recorded) -> None:
    env = {"CNI_IFNAME": "net9", "CNI_ARGS": "A=1", "CAP_ARGS": '{"mac": "02:00:00:00:00:01"}'}
    recorded.write([{"type": "a", "capabilities": {"mac": True}}])
    ok(recorded.run("attach", env=env))
    (call,) = recorded.calls
    assert (call["environ"]["CNI_IFNAME"], call["environ"]["CNI_ARGS"]) == ("net9", "IgnoreUnknown=1;A=1")
    assert call["config"]["runtimeConfig"] == {"mac": "02:00:00:00:00:01"}


def test_a_capability_argument_reaches_the_plugins_that_declare_it_and_no_other(recorded: Recorded) -> None:
    a = {"type": "a", "capabilities": {"ips": True, "mac": True}}
    recorded.write([a, {"type": "b", "capabilities": {"ips": False}}])
    done = recorded.run("attach", "--capability-args", '{"ips": ["10.0.0.9/24"], "portMappings": []}')
    told = "railcni: no plugin of rec has the capability portMappings: these arguments are left out\n"
    assert (done.returncode, done.stderr) == (0, told)
    first, second = (c["config"] for c in recorded.calls)
    assert (first["runtimeConfig"], "runtimeConfig" in second) == ({"ips": ["10.0.0.9/24"]}, False)


def test_del_runs_the_chain_in_reverse_with_the_result_of_the_add(recorded: Recorded) -> None:
    ok(recorded.run("attach"))
    ok(recorded.run("detach"))
    assert recorded.order == ["c DEL", "b DEL", "a DEL"]
    assert all(c["config"]["prevResult"]["interfaces"] == [{"name": "c"}] for c in recorded.calls)
    assert list(recorded.results.iterdir()) == []


def test_del_takes_every_step_before_it_reports_and_can_be_repeated(recorded: Recorded) -> None:
    ok(recorded.run("attach"))
    recorded.plan({"c DEL": {"answer": {"code": 11, "msg": "busy"}, "exit": 1}, "b DEL": {"signal": 9}})
    told = failed(recorded.run("detach"))
    assert recorded.order == ["c DEL", "b DEL", "a DEL"]
    assert "railcni: c DEL failed with code 11: busy\n" in told
    assert "railcni: b DEL ended with signal 9 and without an error message\n" in told
    assert len(list(recorded.results.iterdir())) == 1
    recorded.plan({})
    ok(recorded.run("detach"))
    assert list(recorded.results.iterdir()) == []


def test_del_before_0_4_0_passes_no_result(recorded: Recorded) -> None:
    recorded.write([{"type": "a"}], "0.3.1")
    ok(recorded.run("attach"))
    ok(recorded.run("detach"))
    assert "prevResult" not in recorded.calls[0]["config"]


def test_a_detach_repeats_what_the_attach_was_told_and_its_configuration(recorded: Recorded) -> None:
    a = {"type": "a", "capabilities": {"mac": True}, "mark": "old"}
    recorded.write([a])
    ok(recorded.run("attach", "--args", "A=1", "--capability-args", '{"mac": "02:00:00:00:00:01"}'))
    recorded.write([{**a, "mark": "new"}, {"type": "b"}])
    ok(recorded.run("detach"))
    (call,) = recorded.calls
    assert call["environ"]["CNI_ARGS"] == "IgnoreUnknown=1;A=1"
    assert (call["config"]["runtimeConfig"], call["config"]["mark"]) == ({"mac": "02:00:00:00:00:01"}, "old")


def test_a_network_whose_file_is_gone_can_still_be_detached(recorded: Recorded) -> None:
    ok(recorded.run("attach"))
    (recorded.folder / "rec.conflist").unlink()
    ok(recorded.run("detach"))
    assert recorded.order == ["c DEL", "b DEL", "a DEL"]
    assert "no network rec in" in failed(recorded.run("detach"))


def test_check_passes_the_cached_result_in_the_networks_version(recorded: Recorded) -> None:
    recorded.write(AB, "0.4.0")
    address = {"address": "10.0.0.1/24", "interface": 0}
    newer: dict[str, Any] = {"cniVersion": "1.0.0", "interfaces": [{"name": "i"}], "ips": [address]}
    recorded.plan({"b ADD": {"answer": newer}})
    ok(recorded.run("attach"))
    ok(recorded.run("check"))
    assert recorded.order == ["a CHECK", "b CHECK"]
    older = {**newer, "cniVersion": "0.4.0", "ips": [{**address, "version": "4"}], "dns": {}}
    assert recorded.calls[0]["config"]["prevResult"] == older
    recorded.plan({"a CHECK": {"answer": {"code": 100, "msg": "differs"}, "exit": 1}})  # the command must print this
    assert "a CHECK failed with code 100: differs" in failed(recorded.run("check"))
    assert recorded.order == ["a CHECK"]


def test_check_asks_nobody_where_the_network_disables_it(recorded: Recorded) -> None:
    ok(recorded.run("attach"))
    recorded.write([{"type": "a"}], disableCheck=True)
    assert "disableCheck" in ok(recorded.run("check"))
    assert recorded.order == []


def test_a_network_too_old_for_check_is_checked_in_the_newest_version_of_its_plugins(recorded: Recorded) -> None:
    recorded.write(AB, "0.3.1")
    recorded.plan({"b VERSION": {"answer": {"cniVersion": "1.0.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]}}})
    ok(recorded.run("attach"))
    ok(recorded.run("check"))
    config = recorded.calls[0]["config"]
    assert config["cniVersion"] == config["prevResult"]["cniVersion"] == "1.0.0"
    recorded.plan({"b VERSION": {"answer": {"cniVersion": "0.3.1", "supportedVersions": ["0.3.1"]}}})
    told = failed(recorded.run("check"))
    assert "CHECK needs cniVersion 0.4.0 or newer: a speaks 1.1.0, b speaks 0.3.1 at most" in told


def test_check_of_what_is_not_attached_says_so(recorded: Recorded) -> None:
    told = failed(recorded.run("check"))
    assert "rec is not attached as eth0" in told and "attach it first, or name another --ifname" in told
    assert recorded.order == []


def test_gc_deletes_what_lost_its_namespace_and_names_the_rest_to_the_plugins(recorded: Recorded) -> None:
    recorded.write(AB, "1.1.0")
    ok(recorded.run("attach", "--container-id", "stale", "-i", "net1"))
    (cached,) = recorded.results.iterdir()
    entry = json.loads(cached.read_text())
    alive = {**entry, "containerId": "alive", "netns": "/proc/self/ns/net", "result": {"interfaces": [None]}}
    (recorded.results / "rec-alive-net1").write_text(json.dumps(alive))
    multus = recorded.folder / "cache" / "multus" / "results"
    multus.mkdir(parents=True)
    (multus / "rec-multus-net1").write_text(json.dumps({**alive, "containerId": "multus"}))
    (recorded.results / "other-x-net1").write_text(json.dumps({**entry, "networkName": "other"}))
    told = json.loads(ok(recorded.run("gc", "-o", "json")))
    assert recorded.order == ["b DEL", "a DEL", "a GC", "b GC"]
    valid = [{"containerID": "alive", "ifname": "net1"}, {"containerID": "multus", "ifname": "net1"}]
    gc = recorded.calls[2]
    assert gc["config"]["cni.dev/valid-attachments"] == gc["config"]["cni.dev/attachments"] == valid
    assert gc["environ"]["CNI_CONTAINERID"] == gc["environ"]["CNI_NETNS"] == ""
    containers = {key: [each["containerID"] for each in told[key]] for key in ("kept", "removed")}
    assert containers == {"kept": ["alive", "multus"], "removed": ["stale"]}
    assert {p.name for p in recorded.results.iterdir()} == {"rec-alive-net1", "other-x-net1"}


def test_gc_goes_on_after_a_failure_and_reports_all(recorded: Recorded) -> None:
    recorded.write(AB, "1.1.0")
    failure = {"answer": {"code": 11, "msg": "busy"}, "exit": 1}
    recorded.plan({"a GC": failure, "b GC": failure})
    told = failed(recorded.run("gc"))
    assert (recorded.order, told.count("GC failed with code 11: busy")) == (["a GC", "b GC"], 2)


def test_gc_asks_no_plugin_before_1_1_0_nor_where_the_network_disables_it(recorded: Recorded) -> None:
    ok(recorded.run("attach"))
    assert "is older: its plugins were not asked" in ok(recorded.run("gc"))
    assert recorded.order == ["c DEL", "b DEL", "a DEL"]
    ok(recorded.run("attach"))
    recorded.write([{"type": "a"}], "1.1.0", disableGC=True)
    assert "disableGC: nothing was collected" in ok(recorded.run("gc"))
    assert (recorded.order, len(list(recorded.results.iterdir()))) == ([], 1)


def test_gc_of_a_network_without_attachments_says_so(recorded: Recorded) -> None:
    recorded.write([{"type": "a"}], "1.1.0")
    assert ok(recorded.run("gc")) == "rec: this node knows no attachment\n"
    assert recorded.calls[0]["config"]["cni.dev/valid-attachments"] == []


def test_status_asks_every_plugin_in_1_1_0_whatever_the_network_says(recorded: Recorded) -> None:
    recorded.write([*AB, {"type": "c"}], "0.3.1")
    assert ok(recorded.run("status")).splitlines()[1:] == ["a       ready", "b       ready", "c       ready"]
    assert recorded.calls[0]["config"] == {"type": "a", "name": "rec", "cniVersion": "1.1.0"}
    old = {"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}
    recorded.plan({"a STATUS": {"answer": {"code": 50, "msg": "full"}, "exit": 1}, "b VERSION": {"answer": old}})
    done = recorded.run("status", "-o", "json")
    assert done.returncode == 1
    a, b, c = json.loads(done.stdout)["plugins"]
    assert (a["ready"], a["error"]["code"], a["error"]["msg"]) == (False, 50, "full")
    assert b["error"]["msg"] == "STATUS needs cniVersion 1.1.0 or newer: b speaks 1.0.0 at most"
    assert c == {"plugin": "c", "ready": True}


def test_the_newest_version_that_all_plugins_speak_is_used(recorded: Recorded) -> None:
    recorded.write(AB, "0.4.0", cniVersions=["1.0.0", "1.1.0"])
    recorded.plan({"b VERSION": {"answer": {"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}}})
    ok(recorded.run("attach"))
    ok(recorded.run("detach"))
    assert {c["config"]["cniVersion"] for c in recorded.calls} == {"1.0.0"}
    recorded.plan({"b VERSION": {"answer": {"code": 4, "msg": "unknown CNI_COMMAND: VERSION"}, "exit": 1}})
    assert "network rec needs cniVersion 0.4.0 or 1.0.0 or 1.1.0: b speaks 0.1.0" in failed(recorded.run("attach"))
    assert recorded.order == []


# --- the cache, as libcni writes it (what cnitool of libcni 1.1.2 left for such an ADD) ---

LIBCNI_ENTRY: dict[str, Any] = {
    "kind": "cniCacheV1", "containerId": "cnitool-77383ca0a0715733ca6f", "ifName": "eth0", "networkName": "rec",
    "netns": "/run/netns/one", "cniArgs": [["A", "1"]], "capabilityArgs": {"mac": "02:00:00:00:00:01"},
    "result": {"cniVersion": "1.0.0", "interfaces": [{"name": "a"}]},
}  # fmt: skip


def test_a_cached_result_has_libcnis_name_and_fields(recorded: Recorded) -> None:
    done = recorded.run("attach", "--args", "A=1", "--capability-args", '{"mac": "02:00:00:00:00:01"}')
    assert done.returncode == 0, done.stderr
    (file,) = recorded.results.iterdir()
    assert file.name == f"rec-{container_of(recorded)}-eth0"
    assert (file.stat().st_mode & 0o777, recorded.results.stat().st_mode & 0o777) == (0o600, 0o700)
    entry = json.loads(file.read_text())
    config = json.loads(base64.b64decode(entry.pop("config")))
    assert config == json.loads((recorded.folder / "rec.conflist").read_text())
    own = {"containerId": container_of(recorded), "netns": str(recorded.netns)}
    own |= {"cniArgs": [["IgnoreUnknown", "1"], ["A", "1"]]}
    assert entry == {**LIBCNI_ENTRY, **own, "result": {"cniVersion": "1.0.0", "interfaces": [{"name": "c"}]}}


def cached(recorded: Recorded, **members: Any) -> None:
    """Put an entry into the cache, with these members; a None leaves one out."""
    entry = {**LIBCNI_ENTRY, "config": base64.b64encode((recorded.folder / "rec.conflist").read_bytes()).decode()}
    entry = {key: value for key, value in {**entry, **members}.items() if value is not None}
    recorded.results.mkdir(parents=True)
    (recorded.results / f"rec-{entry['containerId']}-eth0").write_text(json.dumps(entry))


def test_what_cnitool_attached_is_detached_under_any_path_of_its_namespace(recorded: Recorded) -> None:
    link = recorded.folder / "link"
    link.symlink_to(recorded.netns)
    cached(recorded, netns=str(link))
    ok(recorded.run("detach"))
    environ = recorded.calls[0]["environ"]
    assert environ["CNI_CONTAINERID"] == "cnitool-77383ca0a0715733ca6f"
    assert (environ["CNI_NETNS"], environ["CNI_ARGS"]) == (str(link), "A=1")
    assert list(recorded.results.iterdir()) == []


def test_an_entry_of_an_old_libcni_tells_its_namespace_by_its_result(recorded: Recorded) -> None:
    """libcni before 1.2 keeps no netns, as in podman 4.3."""
    result = {"cniVersion": "1.0.0", "interfaces": [{"name": "v"}, {"name": "a", "sandbox": str(recorded.netns)}]}
    cached(recorded, containerId="podman", result=result, netns=None)
    ok(recorded.run("detach"))
    environ = recorded.calls[0]["environ"]
    assert (environ["CNI_CONTAINERID"], environ["CNI_NETNS"]) == ("podman", str(recorded.netns))


@pytest.mark.parametrize(("verb", "known"), [("detach", True), ("detach", False), ("check", True)])
def test_a_device_that_is_given_reaches_the_plugins_in_every_verb(recorded: Recorded, verb: str, known: bool) -> None:
    if known:
        ok(recorded.run("attach"))
    ok(recorded.run(verb, "--device-id", "0000:3b:00.2"))
    assert {call["config"]["deviceID"] for call in recorded.calls} == {"0000:3b:00.2"}


@pytest.mark.parametrize("text", ['{"kind": "cniCacheV1", "containerId": 5', "[" * 9000])
def test_a_damaged_cache_entry_stops_a_check_but_no_detach(recorded: Recorded, text: str) -> None:
    ok(recorded.run("attach"))
    (file,) = recorded.results.iterdir()
    file.write_text(text)
    assert "is no cached result of libcni" in failed(recorded.run("check"))
    ok(recorded.run("detach"))
    assert recorded.order == ["c DEL", "b DEL", "a DEL"]
    assert list(recorded.results.iterdir()) == []


# --- what a person gets ---


def test_a_failed_attach_is_undone_and_its_own_error_comes_first(recorded: Recorded) -> None:
    wrong = {"code": 7, "msg": "wrong key"}
    add = {"answer": {**wrong, "details": "one\ntwo"}, "exit": 1}
    busy = {"answer": {"code": 11, "msg": "busy"}, "exit": 1}
    recorded.plan({"b ADD": add, "b DEL": {"answer": wrong, "exit": 1}, "a DEL": busy})
    told = failed(recorded.run("attach"))
    assert recorded.order == UNDONE
    said = "railcni: b ADD failed with code 7: wrong key\n  one\n  two\nrailcni: a DEL failed with code 11: busy\n"
    assert (told, recorded.results.exists()) == (said, False)


@pytest.fixture
def heeded() -> Iterator[None]:
    """The signals of the terminal, which a shell has its background processes ignore, and so all that these start."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_attach_that_a_signal_ends_is_undone(recorded: Recorded, heeded: None, number: signal.Signals) -> None:
    recorded.plan({"b ADD": {"command": int(number)}})
    assert failed(recorded.run("attach")) == "railcni: interrupted\n"
    assert (recorded.order, recorded.results.exists()) == (UNDONE, False)


def test_an_attach_whose_result_cannot_be_kept_is_undone(recorded: Recorded) -> None:
    (recorded.folder / "cache").touch()
    assert "the result cannot be kept in" in failed(recorded.run("attach"))
    assert recorded.order[3:] == ["c DEL", "b DEL", "a DEL"]


def test_a_second_attach_is_refused_and_says_how_to_detach(recorded: Recorded) -> None:
    ok(recorded.run("attach"))
    told = failed(recorded.run("attach"))
    where = str(recorded.netns)
    assert f"rec is attached already as eth0 to {where}: `railcni detach rec {where} -i eth0` first" in told
    assert recorded.order == []
    ok(recorded.run("attach", "-i", "eth1"))


def test_a_detach_without_an_ifname_finds_the_only_attachment_but_does_not_guess(recorded: Recorded) -> None:
    ok(recorded.run("attach", "-i", "net5"))
    assert ok(recorded.run("detach")).startswith("rec detached: net5 in")
    for ifname in ("eth0", "net6"):  # eth0 is what an attach without --ifname makes
        ok(recorded.run("attach", "-i", ifname))
    assert "more than once: choose with --ifname and --container-id: eth0 (cnitool-" in failed(recorded.run("detach"))
    assert recorded.order == []


def test_a_detach_of_what_is_not_attached_is_done_all_the_same(recorded: Recorded) -> None:
    assert "the cache did not know it" in ok(recorded.run("detach"))
    assert recorded.order == ["c DEL", "b DEL", "a DEL"]


ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({"answer": "no JSON"}, "a ADD answered something that is not JSON: 'no JSON'"),
    ({"answer": "[" * 9000}, f"a ADD answered something that is not JSON: '{'[' * 200}'"),
    ({"answer": "", "exit": 3, "stderr": "why\n"}, "a ADD ended with exit code 3 and without an error message\n  why\n"),
    ({"answer": ""}, "a ADD answered no result, but null"),
    ({"answer": {"cniVersion": "1.0.0", "ips": [{}]}}, "the answer of a is not a CNI result of version 1.0.0: "),
]  # fmt: skip


def test_a_plugin_that_is_missing_or_breaks_the_protocol_is_named(recorded: Recorded) -> None:
    for plan, told in ANSWERS:
        recorded.plan({"a ADD": plan})
        assert told in failed(recorded.run("attach"))
    (recorded.folder / "c").unlink()
    told = failed(recorded.run("attach"))
    assert f"there is no plugin c in {recorded.folder}: correct `type`, or install the plugin there" in told
    (recorded.folder / "c").write_text("#!/nonexistent\n")
    (recorded.folder / "c").chmod(0o755)
    told = failed(recorded.run("attach"))
    assert "c cannot be run: No such file or directory (its interpreter: /nonexistent)" in told


def test_what_plugins_say_is_passed_on_and_a_result_without_a_version_has_that_of_the_network(
    recorded: Recorded,
) -> None:
    recorded.plan({"a ADD": {"stderr": "a hint\n"}, "c ADD": {"answer": {"interfaces": [{"name": "c"}]}}})
    done = recorded.run("attach", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "a hint\n")
    assert json.loads(done.stdout) == {"cniVersion": "1.0.0", "interfaces": [{"name": "c"}]}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("attach rec", "the following arguments are required: NETNS"),
        ("completion", "the following arguments are required: SHELL, one of bash, zsh, fish"),
        ("attach rec ns --args A", '"A" has no "=": write KEY=VALUE;KEY=VALUE'),
        ("attach rec ns --capability-args {", "not JSON:"),
        (f"attach rec ns --capability-args {'[' * 9000}", "not JSON: it is nested too deeply"),
        ("attach rec ns --capability-args []", "want a JSON object"),
        ("attach rec ns -i a/b", '"a/b" has a character that no link may have'),
        ("attach rec ns --container-id=-x", "start with a letter or digit"),
        ("ipam show 10.0.0", '"10.0.0" is neither an IP address nor NAMESPACE/POD'),
        ("doctro", 'there is no "doctro": did you mean "doctor"?'),
        ("ipam leses", 'there is no "leses": did you mean "leases"?'),
        ("doctor -o jsn", 'there is no "jsn": did you mean "json"?'),
    ],
)
def test_a_wrong_call_is_exit_code_2_and_says_what_is_wrong(call: str, told: str) -> None:
    done = railcni(*call.split(), env={})
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


# --- with Go's plugins, in a node ---

LEASES = {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}
MACVLAN = {"type": "macvlan", "master": "ens2f0", "mtu": 9000, "ipam": LEASES}


class Hand:
    """A person at the prompt of a node, with Go's plugins and the network `go`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.folder = node.path("/run/net.d")
        self.folder.mkdir()
        document = {"cniVersion": "1.0.0", "name": "go", "plugins": [MACVLAN]}
        (self.folder / "go.conflist").write_text(json.dumps(document))

    def __call__(self, *argv: str | Pod) -> subprocess.CompletedProcess[str]:
        words = [a.path if isinstance(a, Pod) else a for a in argv]
        env = {"CNI_PATH": str(GO_PLUGINS), "NETCONFPATH": "/run/net.d"}
        done = self.node.railcni(*words, env=env)
        text = subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in text.stderr, text.stderr
        return text


@pytest.fixture
def hand(node: Node) -> Hand:
    node.master()
    return Hand(node)


@GO
def test_attach_makes_what_the_plugins_make_and_detach_leaves_nothing(hand: Hand) -> None:
    pod = hand.node.pod()
    head, row = ok(hand("attach", "go", pod)).splitlines()
    link = pod.view.link("eth0")
    assert (link.kind, link.mtu, link.texts) == ("macvlan", 9000, ["10.9.0.2/24"])
    assert head.split() == ["INTERFACE", "MAC", "MTU", "ADDRESS", "GATEWAY", "NAMESPACE"]
    assert row.split() == ["eth0", link.mac, str(link.mtu), "10.9.0.2/24", "10.9.0.1", pod.path]
    assert ok(hand("check", "go", pod.name)) == f"go is as it was attached: eth0 in {pod.path}\n"
    hand.node.host.set("ens2f0", state="down")
    told = failed(hand("check", "go", pod))
    assert f"eth0 has no carrier: its master or port is down; `railcni doctor --netns {pod.path}`" in told
    assert ok(hand("detach", "go", pod.name)) == f"go detached: eth0 in {pod.path}\n"
    assert hand.node.leftovers() == []


@GO
def test_a_failed_attach_does_not_remove_what_was_there_before(hand: Hand) -> None:
    pod = hand.node.pod()
    ok(hand("attach", "go", pod, "--container-id", "first"))
    told = failed(hand("attach", "go", pod, "--container-id", "second"))
    assert "eth0 was there before: nothing has been undone" in told
    assert pod.view.names() == ["eth0"]
    ok(hand("check", "go", pod, "--container-id", "first"))


@GO
def test_a_nad_is_attached_as_net1(hand: Hand) -> None:
    pod = hand.node.pod()
    nad = {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "go"}}
    nad["spec"] = {"config": json.dumps({"cniVersion": "0.3.1", "name": "go", **MACVLAN})}
    (hand.folder / "nad.yaml").write_text(json.dumps(nad))
    ok(hand("attach", "/run/net.d/nad.yaml", pod))
    assert pod.view.names() == ["net1"]
    ok(hand("detach", "/run/net.d/nad.yaml", pod))
    assert hand.node.leftovers() == []


def test_the_launcher_in_bin_runs_the_command_from_anywhere(tmp_path: Path) -> None:
    if not (BIN / "railcni").exists():
        pytest.skip("bin/railcni is not made: run make")
    link = tmp_path / "railcni"
    link.symlink_to(BIN / "railcni")
    done = subprocess.run([link, "--version"], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("railcni ")
    assert os.listdir(tmp_path) == ["railcni"]
