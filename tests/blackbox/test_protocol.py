"""The CNI protocol, as a runtime sees it: environment and stdin in, stdout and exit code out, for every executable."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni.link.plugins import LINK_PLUGINS
from tests import node as nodes
from tests.blackbox.test_host_device import PCI, bus
from tests.each import ATTACHING, each_and, each_attaching, each_plugin
from tests.node import BIN, INTERPRETER, VERSIONS, Node, Pod

pytestmark = pytest.mark.forked

VERBS = ("ADD", "CHECK", "DEL", "GC", "STATUS")
UNREADABLE = ("< /", "<&-", "0> /dev/null", "<&- 2>&-")
LEASES = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}


def configuration(plugin: str, version: str = "1.1.0", **more: Any) -> dict[str, Any]:
    own: dict[str, dict[str, Any]] = {
        "macvlan": {"master": "ens2f0"}, "host-device": {"device": "ens9"}, "whereabouts": {}, "sriov": {"deviceID": PCI},
        "rdma": {"prevResult": {"cniVersion": version, "ips": [], "interfaces": []}},
    }  # fmt: skip
    return {"cniVersion": version, "name": "rdma-net", "type": plugin, **own[plugin], "ipam": LEASES, **more}


@pytest.fixture
def pod(request: pytest.FixtureRequest, node: Node) -> Pod:
    """A pod on a node that has what the plugin's configuration asks for."""
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    node.remember()
    if request.node.callspec.params["plugin"] == "sriov":
        bus(node, "pci", PCI, "ens9", driver="mlx5_core")
    return node.pod()


@pytest.fixture(scope="module")
def unchanged(executables: Path) -> Iterator[Node]:
    """A node with what each configuration asks for, and a pod, for calls that are all refused."""
    if nodes.unusable():
        pytest.skip(nodes.unusable())
    with Node(executables, is_forked=True) as node:
        node.master()
        node.host.add_veth("ens9", "ens9-peer")
        node.remember()
        bus(node, "pci", PCI, "ens9", driver="mlx5_core")
        node.pod()
        yield node


@pytest.fixture
def site(unchanged: Node) -> Iterator[Node]:
    """That node; the calls that the test has made have left nothing on it."""
    yield unchanged
    assert unchanged.leftovers() == []


def environment(verb: str) -> dict[str, str]:
    named = {"CONTAINERID": "c1", "NETNS": "/run/netns/pod1", "IFNAME": "net1", "PATH": str(BIN)}
    return {"CNI_COMMAND": verb, **{f"CNI_{name}": value for name, value in named.items()}}


# --- VERSION, and no command at all ---
@each_plugin
def test_version_is_answered_without_reading_stdin(executables: Path, plugin: str) -> None:
    how: dict[str, Any] = {"env": {"CNI_COMMAND": "VERSION"}, "capture_output": True, "timeout": 10}
    endless = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
    try:
        for closed in ("", "<&- 2>&-"):
            done = subprocess.run(
                ["sh", "-c", f'exec "$0" {closed}', executables / plugin], stdin=endless.stdout, **how
            )
            assert (done.returncode, done.stderr) == (0, b"")
            assert json.loads(done.stdout) == {"cniVersion": "1.1.0", "supportedVersions": list(VERSIONS)}
    finally:
        endless.kill()
        endless.communicate()


@each_and("redirection", UNREADABLE)
def test_a_stdin_that_cannot_be_read_is_an_io_failure(executables: Path, plugin: str, redirection: str) -> None:
    argv = ["sh", "-c", f"exec {executables / plugin} {redirection}"]
    done = subprocess.run(argv, env=environment("ADD"), capture_output=True)
    error = json.loads(done.stdout)
    assert (done.returncode, error["code"], done.stderr) == (1, 5, b"")
    assert error["msg"].startswith("stdin cannot be read")


@each_and("environ", [{}, {"CNI_COMMAND": ""}], ids=["unset", "empty"])
def test_without_a_command_a_person_is_told_what_this_is(executables: Path, plugin: str, environ: Any) -> None:
    done = subprocess.run([executables / plugin], env=environ, stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (0, b"", 1)
    assert plugin in done.stderr.decode()


# --- where it runs from ---
@each_and("prefix", ["", "railcni-"])
def test_it_runs_from_anywhere_under_any_name(node: Node, pod: Pod, tmp_path: Path, plugin: str, prefix: str) -> None:
    target = node.executables / f"{prefix}{plugin}"
    (tmp_path / "direct").symlink_to(target)
    (tmp_path / "chain").symlink_to("direct")  # relative, to another link
    (tmp_path / "down").mkdir()
    (tmp_path / "down" / "up").symlink_to("../chain")
    (tmp_path / "cni").mkdir()  # whose names must not be taken for ours
    (tmp_path / "cni" / "__init__.py").write_text("raise SystemExit(9)")
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    verbs = ("ADD", "DEL") if plugin in ATTACHING else ("DEL",)
    for path in (target, tmp_path / "down" / "up"):
        for verb in verbs:
            reply = node.cni(path, verb, configuration(plugin), netns=pod, cwd=str(tmp_path))
            assert reply.status == 0, (path, verb, reply.document)
    assert node.leftovers() == []


@each_plugin
def test_python_variables_of_the_runtime_have_no_effect(node: Node, pod: Pod, tmp_path: Path, plugin: str) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(9)")
    (tmp_path / "cni.py").write_text("raise SystemExit(9)")
    more = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere", "LC_ALL": "C"}
    for verb in ("ADD", "DEL") if plugin in ATTACHING else ("DEL",):
        assert node.start_cni(plugin, verb, configuration(plugin), netns=pod, more=more).finish().status == 0


@each_attaching
def test_it_writes_no_file_beside_its_own_state(node: Node, pod: Pod, plugin: str) -> None:
    node.cni(plugin, "ADD", configuration(plugin), netns=pod).succeeded()
    tops = [node.path(top) for top in ("/var/lib", "/run")]
    found = {str(p).removeprefix(node.root) for top in tops for p in top.rglob("*") if p.is_file()}
    own = ("/var/lib/cni/railcni/", "/run/netns/", "/run/wires/", "/run/railcni/")
    assert [path for path in found if not path.startswith(own)] == []


# --- the environment: code 4 ---
@each_and("good", ["fifteen-bytes-x", "net1@x", "ä", "a.1"], plugins=ATTACHING)
def test_an_ifname_that_the_kernel_takes_is_taken(node: Node, pod: Pod, plugin: str, good: str) -> None:
    node.cni(plugin, "ADD", configuration(plugin), netns=pod, ifname=good).succeeded()
    if plugin != "whereabouts":
        assert pod.view.names() == [good]
    node.ended(plugin, configuration(plugin), netns=pod, ifname=good)


@each_and("verb", ["add", "UPDATE", "ADD ", "\N{SNOWMAN}"], ids=repr)
def test_an_unknown_command_is_refused_after_the_name_of_the_network(site: Node, plugin: str, verb: str) -> None:
    site.cni(plugin, verb, {"cniVersion": "1.1.0"}).refused(7, "name")
    site.cni(plugin, verb, configuration(plugin, "9.9.9")).refused(4, "CNI_COMMAND", "ADD", "STATUS")


# --- stdin: codes 6 and 7 ---
@each_plugin
def test_stdin_that_is_no_configuration_is_refused_with_line_and_column(site: Node, plugin: str) -> None:
    for verb in VERBS:
        reply = site.cni(plugin, verb, b'{"name": "n",\n "type": }', netns="/run/netns/none")
        reply.refused(6, "not JSON", "line 2", "column 10")


# --- versions: code 1 ---
@each_and("version", VERSIONS[::-1], plugins=ATTACHING)
def test_every_verb_of_a_version_is_served_in_it(node: Node, pod: Pod, plugin: str, version: str) -> None:
    config = configuration(plugin, version)
    reply = node.cni(plugin, "ADD", config, netns=pod)
    assert (reply.succeeded()["cniVersion"], reply.addresses) == (version, ["192.168.111.1/24"])
    if version >= "0.4.0":
        check = node.cni(plugin, "CHECK", {**config, "prevResult": reply.document}, netns=pod)
        assert (check.succeeded(), check.stderr) == (None, "")
    if version >= "1.1.0":
        assert node.cni(plugin, "STATUS", config).succeeded() is None
        valid = [{"containerID": "c1", "ifname": "net1"}]
        assert node.cni(plugin, "GC", {**config, "cni.dev/valid-attachments": valid}).succeeded() is None
        assert node.leases() == ["192.168.111.1"]
    node.ended(plugin, {**config, "prevResult": reply.document}, netns=pod)


@each_attaching
def test_gc_with_null_for_the_list_collects_all_of_the_network(node: Node, pod: Pod, plugin: str) -> None:
    """What CRI-O sends for a network without pods: a nil slice of Go."""
    config = configuration(plugin, "1.1.0")
    node.cni(plugin, "ADD", config, netns=pod).succeeded()
    assert node.cni(plugin, "GC", {**config, "CNI.dev/valid-Attachments": None}).succeeded() is None
    assert node.leftovers() == []


@each_plugin
def test_gc_without_the_list_collects_nothing_and_says_so(node: Node, pod: Pod, plugin: str) -> None:
    """What cnitool 1.3 sends: it says nothing of what is attached."""
    config = configuration(plugin, "1.1.0")
    if plugin in ATTACHING:
        node.cni(plugin, "ADD", config, netns=pod).succeeded()
    before = node.leftovers()
    reply = node.cni(plugin, "GC", config)
    assert (reply.succeeded(), node.leftovers()) == (None, before)
    assert "cni.dev/valid-attachments" in reply.stderr


# --- the form of an error ---
@each_and("version", VERSIONS[::-1])
def test_an_error_goes_to_stdout_in_the_version_asked(site: Node, plugin: str, version: str) -> None:
    config = configuration(plugin, version, ipam={**LEASES, "range": "nonsense"})
    words = ["ipam.range", "nonsense"]
    if plugin == "rdma":  # which has no IPAM plugin
        config["verbsDevice"], words = "non/sense", ["verbsDevice", "non/sense"]
    reply = site.cni(plugin, "ADD", config, netns=site.pods["pod1"])
    reply.refused(7, *words)
    assert reply.document["cniVersion"] == version
    assert set(reply.document) <= {"cniVersion", "code", "msg", "details"}


@each_plugin
def test_a_call_answers_also_when_nobody_reads_stderr(site: Node, plugin: str) -> None:
    argv = ["sh", "-c", f"exec {site.executables / plugin} 2>&-"]
    failed = site.run(argv, env=environment("ADD"), stdin=b"nonsense")
    done = site.run(argv, env=environment("DEL"), stdin=json.dumps(configuration(plugin)).encode())
    assert (failed.returncode, json.loads(failed.stdout)["code"], done.returncode, done.stdout) == (1, 6, 0, b"")


# --- the namespace: code 8 ---
@each_and("spelling", ["/proc/self/ns/net", "/proc/1/ns/net/../net", "/run/netns/own"], plugins=(*LINK_PLUGINS, "rdma"))
def test_the_plugins_own_namespace_is_refused_at_once(node: Node, pod: Pod, plugin: str, spelling: str) -> None:
    if spelling == "/run/netns/own":
        node.path(spelling).touch()
        node.run(["mount", "--bind", "/proc/self/ns/net", spelling]).check_returncode()
    elif spelling != "/proc/self/ns/net":
        spelling = "/run/netns/own-link"
        node.path(spelling).symlink_to("/proc/self/ns/net")
    before = node.host.links()
    node.cni(plugin, "ADD", configuration(plugin), netns=spelling).refused(8, "CNI_NETNS", spelling)
    assert (node.host.links(), node.leftovers()) == (before, [])


@each_and("yes", ["1", "true", "TRUE"], plugins=LINK_PLUGINS)
def test_the_plugins_own_namespace_is_taken_if_the_caller_insists(node: Node, pod: Pod, plugin: str, yes: str) -> None:
    how: dict[str, Any] = {"netns": "/proc/self/ns/net", "more": {"CNI_NETNS_OVERRIDE": yes}}
    before = {name: link.texts for name, link in node.host.links().items()}
    result = node.cni(plugin, "ADD", configuration(plugin), **how)
    assert node.host.link("net1").texts[-len(result.addresses) :] == result.addresses != []
    node.ended(plugin, configuration(plugin), **how)
    assert {name: link.texts for name, link in node.host.links().items()} == before


NO_NAMESPACES = [
    "missing",
    "file",
    "fifo",
    "directory",
    "device",
    "other namespace",
    "huge",
    "socket",
    "kernel log",
    "loop",
]


@each_and("kind", NO_NAMESPACES, plugins=(*LINK_PLUGINS, "rdma"))
def test_a_path_that_is_no_network_namespace_is_refused(node: Node, pod: Pod, plugin: str, kind: str) -> None:
    """And not waited for."""
    path = f"/run/{kind.replace(' ', '-')}"
    makes = {
        "file": f"echo no namespace > {path}",
        "fifo": f"mkfifo {path}",
        "directory": f"mkdir {path}",
        "huge": f"truncate -s 1T {path}",
        "socket": f"""{INTERPRETER} -c "import socket; socket.socket(1).bind('{path}')" """,
        "kernel log": f"ln -s /proc/kmsg {path}",
        "loop": f"ln -s {path} {path}",
    }
    node.run(["sh", "-ec", makes.get(kind, ":")]).check_returncode()
    path = {"device": "/dev/zero", "other namespace": "/proc/self/ns/uts"}.get(kind, path)
    node.cni(plugin, "ADD", configuration(plugin), netns=path).refused(8, path)
    assert node.leftovers() == []
