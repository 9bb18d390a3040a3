"""Our plugins alone killed around another's IPAM plugin (Debian's host-local): the next DEL leaves nothing of either."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.faults.inject import unavailable
from tests.node import GO_PLUGINS, Call, Node, Pod

pytestmark = [
    pytest.mark.skipif(bool(unavailable()), reason=unavailable()),
    pytest.mark.skipif(
        not (GO_PLUGINS / "host-local").exists(), reason="needs Debian's package containernetworking-plugins"
    ),
]

KILLS = 6  # of each verb, spread over its calls
CHANGING = {
    "clone", "clone3", "exit_group", "fsync", "ftruncate", "mkdir", "openat", "pwrite64", "read", "rename", "renameat",
    "sendmsg", "sendto", "setns", "unlink", "vfork", "wait4", "write",
}  # fmt: skip
HOST_LOCAL = {"type": "host-local", "ranges": [[{"subnet": "10.6.0.0/24"}]]}


def network(plugin: str) -> dict[str, object]:
    own = {"macvlan": {"master": "ens2f0"}, "host-device": {"device": "ens2f0"}}[plugin]
    return {"cniVersion": "1.0.0", "name": "n", "type": plugin, **own, "ipam": HOST_LOCAL}


def traced(node: Node, pod: Pod, plugin: str, verb: str, trace: Path, *options: str) -> None:
    """Call the plugin under strace, which follows no child; whatever comes of it."""
    environ = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "net1", "CNI_NETNS": pod.path,
        "CNI_PATH": str(GO_PLUGINS),
    }  # fmt: skip
    strace = [shutil.which("strace") or "strace", "-qq", "-o", str(trace), *options]
    process = node.start([*strace, node.executables / plugin], env=environ)
    process.communicate(json.dumps(network(plugin)).encode(), 60)


def points(trace: Path) -> list[tuple[str, int]]:
    """The calls that may change something, each with its number among those of its name."""
    seen: dict[str, int] = {}
    found = []
    for name in re.findall(r"^(\w+)\(", trace.read_text(), re.MULTILINE):
        seen[name] = seen.get(name, 0) + 1
        if name in CHANGING:
            found.append((name, seen[name]))
    count = min(KILLS, len(found))
    return [found[i * len(found) // count] for i in range(count - 1)] + found[-1:]


@pytest.mark.parametrize(
    ("verb", "plugin"),
    [  # the verbs are those of all link plugins, and DEL is what clears after both
        ("ADD", "macvlan"),
        pytest.param("DEL", "host-device", marks=pytest.mark.long),
        pytest.param("ADD", "host-device", marks=pytest.mark.long),
        pytest.param("DEL", "macvlan", marks=pytest.mark.long),
    ],
)
def test_a_delete_clears_what_a_killed_plugin_left_of_host_locals_address(
    node: Node, tmp_path: Path, plugin: str, verb: str
) -> None:
    node.master()
    pod = node.pod()
    node.remember()
    trace = tmp_path / "trace"

    def call(verb: str) -> Call:
        return node.start_cni(plugin, verb, network(plugin), netns=pod, path=[GO_PLUGINS])

    for _ in range(2):  # the second finds the directories of the first
        if verb == "DEL":
            call("ADD").finish().succeeded()
        traced(node, pod, plugin, verb, trace)
        call("DEL").finish().succeeded()
        assert node.leftovers() == []
    for name, number in points(trace):
        if verb == "DEL":
            call("ADD").finish().succeeded()
        traced(node, pod, plugin, verb, trace, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}")
        assert "killed by SIGKILL" in trace.read_text(), f"{name}:{number}"
        for _ in range(2):
            call("DEL").finish().succeeded()
            assert node.leftovers() == [], f"{name}:{number}"
