"""Networks, state and environments that are meant to do harm: refused with a clear error, and nothing is left behind."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import pytest

from cni.link.plugins import LINK_PLUGINS
from tests.blackbox.test_host_device import PCI, bus
from tests.each import ATTACHING, each_and, quick
from tests.node import STATE, Node, Pod, Reply

pytestmark = pytest.mark.forked

POLICY = "/etc/cni/net.d/whereabouts.d/railcni.json"
FLAT = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
SHADOW = "/etc/hostile/shadow"
STORES = f"{STATE}/stores"


def network(ipam: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A network with an `exclude` of which the log says that it has no effect."""
    block = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file", "exclude": ["10.0.0.0/8"]}
    base = {"cniVersion": "1.1.0", "name": "hostile", "master": "ens2f0", "device": "ens9"}
    return {**base, "ipam": {**block, **(ipam or {})}, **more}


def network_of(plugin: str, ipam: dict[str, Any] | None = None) -> dict[str, Any]:
    return network(ipam, deviceID=PCI) if plugin == "sriov" else network(ipam)


@pytest.fixture
def pod(request: pytest.FixtureRequest, node: Node) -> Pod:
    """A pod on a node that has devices to attach, and an /etc and /var/log of its own."""
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    own = "mkdir -p /run/etc/cni && find /etc -maxdepth 1 -type f -exec cp -a -t /run/etc {} + && mount --bind /run/etc /etc"
    node.run(["sh", "-c", f"{own} && mount -t tmpfs tmpfs /var/log"]).check_returncode()
    node.write(SHADOW, "root:secret")
    node.remember()
    callspec = getattr(request.node, "callspec", None)
    if callspec and "sriov" in callspec.params.values():
        bus(node, "pci", PCI, "ens9", driver="mlx5_core")
    return node.pod()


def refused(node: Node, plugin: str, config: dict[str, Any] | bytes, pod: Pod, code: int, *words: str) -> Reply:
    """Assert that ADD is refused, with `words` where a runtime shows them, and that nothing came of it."""
    before = tree(node)
    reply = node.cni(plugin, "ADD", config, netns=pod)
    reply.refused(code, *words)
    assert node.leftovers() == []
    assert "secret" not in json.dumps(reply.document) + reply.stderr
    assert tree(node) == before
    return reply


def tree(node: Node) -> list[str]:
    """What lies outside of the state directory, where a network's author might want a file to be."""
    found = []
    for top in ("/etc/hostile", "/etc/cni", "/var/log", "/var/lib"):
        for path in node.path(top).rglob("*"):
            if STATE not in str(path) and str(path) != node.root + "/var/lib/cni":
                found.append(f"{path} {path.read_bytes()!r}" if path.is_file() and not path.is_symlink() else str(path))
    return sorted(found)


# --- paths in a network's own configuration ---

REFUSED_PATHS = [
    ("dataDir", "/var/lib/cni/../../../etc/hostile", "dataRoots", "/var/lib/cni"),
    ("dataDir", "/var/lib/cni/link", "dataRoots", "/etc/hostile"),
    ("configuration_path", "/proc/1/environ", "configRoots", "/etc/cni"),
    ("configuration_path", "/etc/cni/link/shadow", "configRoots", SHADOW),
    ("kubernetes.kubeconfig", SHADOW, "configRoots", "/etc/kubernetes"),
    ("etcd_key_file", "/etc/kubernetes/pki/etcd/server.key", "configRoots", "/etc/cni"),
]


@each_and("key, value, roots, word", REFUSED_PATHS, plugins=ATTACHING)
def test_a_path_outside_of_its_roots_is_refused(
    node: Node, pod: Pod, plugin: str, key: str, value: str, roots: str, word: str
) -> None:
    for link in ("/var/lib/cni/link", "/etc/cni/link"):
        node.path(link).parent.mkdir(parents=True, exist_ok=True)
        node.path(link).symlink_to("/etc/hostile")
    node.remember()
    outer, _, inner = key.partition(".")
    config = network_of(plugin, {outer: {inner: value} if inner else value})
    refused(node, plugin, config, pod, 7, f'ipam.{key} "{value}"', roots, word, POLICY)


def test_a_log_file_outside_of_its_roots_is_not_written_and_hinders_nothing(node: Node, pod: Pod) -> None:
    link = node.path("/var/log/railcni/link")
    link.parent.mkdir(parents=True)
    link.symlink_to("/etc/hostile")
    node.path("/var/log/containers").mkdir()
    paths = ("/var/log/railcni/../../../etc/hostile/job", "/var/log/railcni/link/job", "/var/log/containers/other.log")
    for plugin, path in zip(("macvlan", "whereabouts", "macvlan"), paths, strict=True):
        for verb in ("ADD", "DEL"):
            reply = node.cni(plugin, verb, network({"log_file": path, "log_level": "debug"}), netns=pod)
            reply.succeeded()
            told = (f"ipam.log_file {path} ", "logRoots", "/var/log/railcni", POLICY)
            assert [word for word in told if word not in reply.stderr] == []
            assert not node.path(path).exists()
    assert os.listdir(node.path("/etc/hostile")) == ["shadow"]


# What is there already, and a dataDir that would appear in it or in its place.
SQUATTED = [
    ("/var/lib/cni/networks/cbr0/10.244.1.3", "/var/lib/cni/networks/cbr0/10.244.1.4"),  # host-local
    ("/var/lib/cni/networks/cbr0/10.244.1.3", "/var/lib/cni/networks/cbr0"),
    ("", "/var/lib/cni/networks/cbr0/10.244.1.4"),
    (f"{STATE}/lock", f"{STATE}/leases.db"),
    (f"{STATE}/lock", f"{STATE}/attachments/hostile:c1:net1:link"),
    ("", f"{STORES}/rdma/leases.db-journal/x"),
    ("", "/run/cni/dhcp.sock"),
]


@pytest.mark.parametrize("policy", [None, {"dataRoots": ["/var/lib/cni", "/run/cni"]}], ids=["usual", "wide"])
def test_no_lease_file_is_made_where_another_program_or_store_keeps_its_own(node: Node, pod: Pod, policy: Any) -> None:
    """An administrator who lists all of /var/lib/cni lets a network make directories there, but not among files."""
    for there, value in SQUATTED:
        if policy and not (there or STATE in value):
            continue  # the administrator has allowed it, and nothing tells that it is another's
        node.run(["rm", "-rf", "/var/lib/cni"]).check_returncode()
        if there:
            node.write(there, "another's")
        node.remember()
        if policy:
            node.write(POLICY, policy)
        before = set(node.path("/var/lib/cni").rglob("*"))
        refused(node, "whereabouts", network({"dataDir": value}), pod, 7, f'ipam.dataDir "{value}"', "want a")
        made = set(node.path("/var/lib/cni").rglob("*")) - before
        assert made <= {node.path(STATE), node.path(f"{STATE}/lock")}, value
        assert not node.path("/run/cni").exists(), value


def test_a_store_of_the_version_before_is_used_on_where_it_lies(node: Node, pod: Pod) -> None:
    former = "/var/lib/cni/rdma-leases"
    config = network({"dataDir": former})
    node.write(POLICY, {"dataRoots": ["/var/lib/cni", "/run/cni"]})  # what that version took for granted
    node.cni("whereabouts", "ADD", config, netns=pod).succeeded()
    node.path(POLICY).unlink()
    node.cni("whereabouts", "ADD", config, netns=pod, container_id="c2").succeeded()
    node.cni("whereabouts", "DEL", config, netns=pod).succeeded()
    assert node.leases(former) == ["192.168.111.2"]


def test_a_store_of_our_own_can_be_named_and_is_one_store_by_all_its_names(node: Node, pod: Pod) -> None:
    for value in (STATE, f"{STATE}/", f"{STORES}/../", STORES, f"{STORES}/a", f"{STORES}/a/b"):
        place = os.path.normpath(value)
        for name in (value, place):
            node.cni("whereabouts", "ADD", network({"dataDir": name}), netns=pod).succeeded()
            assert node.leases(place) == ["192.168.111.1"], value
        node.cni("whereabouts", "DEL", network(), netns=pod).succeeded()


@pytest.mark.parametrize("plugin", ["whereabouts", "macvlan"])
def test_the_server_that_a_chosen_flat_file_names_is_not_told(node: Node, pod: Pod, plugin: str) -> None:
    node.write(POLICY, {"configRoots": ["/etc/cni"]})
    node.write("/etc/cni/somebody.json", {"etcd_host": "127.0.0.1:1", "store_timeout": 1})
    config = network({"configuration_path": "/etc/cni/somebody.json", "datastore": None})
    reply = refused(node, plugin, config, pod, 11, "http://(not shown): Connection refused")
    assert "127.0.0.1" not in json.dumps(reply.document)


# dataDirs, a dataDir beside the directories used, empty and empty/inner, and whether it is refused.
BOUNDED = [(4, "new", False), (3, "new", True), (5, "new/in/it", True), (2, "empty/inner", False), (0, "used", False)]


@pytest.mark.parametrize(("most", "name", "is_refused"), BOUNDED)
def test_networks_make_no_more_directories_than_the_node_allows(
    node: Node, pod: Pod, most: int, name: str, is_refused: bool
) -> None:
    used, other = (network({"dataDir": f"{STORES}/{inner}"}) for inner in ("used", name))
    node.cni("whereabouts", "ADD", used, netns=pod, container_id="before").succeeded()
    for inner in ("empty", "empty/inner"):
        node.path(f"{STORES}/{inner}").mkdir(mode=0o700)
    node.write(POLICY, {"dataDirs": most})
    reply = node.cni("whereabouts", "ADD", other, netns=pod)
    if is_refused:
        reply.refused(7, f'ipam.dataDir "{STORES}/{name}"', f"dataDirs ({most})", POLICY)
    else:
        reply.succeeded()
    node.write(POLICY, {"dataDirs": 0})
    for container, config in (("c1", other), ("before", used)):
        node.cni("whereabouts", "DEL", config, netns=pod, container_id=container).succeeded()
    assert node.leases(f"{STORES}/used") == []


def test_the_usual_paths_of_whereabouts_work_and_so_does_the_administrators_choice(node: Node, pod: Pod) -> None:
    def is_served(container: str, ipam: dict[str, Any], directory: str, log: str) -> None:
        node.cni("whereabouts", "ADD", network(ipam), netns=pod, container_id=container).succeeded()
        assert node.leases(directory) == ["192.168.111.1"]
        assert "hostile" in node.path(log).read_text()

    node.write(FLAT, {"dataDir": "/run/flat", "log_file": "/run/flat.log"})  # the administrator's, and not confined
    is_served("c1", {}, "/run/flat", "/run/flat.log")
    node.path(FLAT).unlink()
    usual = {"dataDir": f"{STORES}/rdma", "log_file": "/var/log/railcni/whereabouts.log"}
    is_served("c2", usual, f"{STORES}/rdma", "/var/log/railcni/whereabouts.log")
    chosen = {"dataDir": "/run/chosen", "log_file": "/run/chosen.log"}
    node.cni("whereabouts", "ADD", network(chosen), netns=pod).refused(7, "dataDir", STORES, POLICY)
    node.write(POLICY, {"dataRoots": ["/run/chosen"], "logRoots": ["/run/chosen.log"]})
    is_served("c3", chosen, "/run/chosen", "/run/chosen.log")
    node.cni("whereabouts", "ADD", network(usual), netns=pod).refused(7, f"{STORES}/rdma", "/run/chosen")


def test_a_delete_is_served_after_the_administrator_has_narrowed_the_roots(node: Node, pod: Pod) -> None:
    config = network({"dataDir": f"{STORES}/rdma", "log_file": "/var/log/railcni/w.log"})
    for plugin in ("macvlan", "whereabouts"):
        node.cni(plugin, "ADD", config, netns=pod).succeeded()
        for policy in ({"dataRoots": ["/run"], "masters": []}, "nonsense"):
            node.write(POLICY, policy)
            node.cni(plugin, "DEL", config, netns=pod).succeeded()
            assert node.leases(f"{STORES}/rdma") == []
            assert node.leftovers() == []
        node.path(POLICY).unlink()


def test_a_log_is_not_written_through_a_link_that_is_put_in_the_way(node: Node, pod: Pod) -> None:
    """Whoever may write to a directory below /var/log changes it all the time while the plugin runs."""
    config = network({"log_file": "/var/log/railcni/app/job"})
    directory, link = node.path("/var/log/railcni/app"), node.path("/var/log/railcni/app-link")
    directory.mkdir(parents=True)
    link.symlink_to("/etc/hostile")
    done = threading.Event()

    def swap() -> None:
        aside = directory.with_name("aside")
        while not done.is_set():
            for source, target in ((directory, aside), (link, directory), (directory, link), (aside, directory)):
                os.rename(source, target)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(30):
            node.cni("whereabouts", "ADD", config, netns=pod, container_id=f"c{number}")
    finally:
        done.set()
        thread.join()
    assert os.listdir(node.path("/etc/hostile")) == ["shadow"]


def test_a_root_that_cannot_be_followed_hinders_no_path_below_another(node: Node, pod: Pod) -> None:
    node.path("/run/loop").symlink_to("loop")
    node.allow(logRoots=["/run/loop", "/var/log/railcni"], dataRoots=["/run/loop", "/var/lib/cni/railcni/stores"])
    keys = {"log_file": "/var/log/railcni/w.log", "dataDir": "/var/lib/cni/railcni/stores/own"}
    reply = node.cni("macvlan", "ADD", network(keys), netns=pod)
    assert reply.succeeded() and "log_file" not in reply.stderr
    assert node.path("/var/log/railcni/w.log").read_text() and node.path(f"{keys['dataDir']}/leases.db").exists()


@pytest.mark.parametrize("is_linked", [False, True])
def test_the_directory_of_log_files_is_no_log_file(node: Node, pod: Pod, is_linked: bool) -> None:
    """A file in its place would keep the log files of all networks from being written."""
    if is_linked:  # as /var/log is in images of Yocto
        node.run(["sh", "-ec", "mkdir /run/logs; ln -s /run/logs /var/log/railcni"]).check_returncode()
    for path in ("/var/log/railcni", "/var/log/railcni/"):
        reply = node.cni("whereabouts", "ADD", network({"log_file": path}), netns=pod)
        reply.succeeded()
        assert f"ipam.log_file {path} is the directory of log files" in reply.stderr
    node.cni("whereabouts", "ADD", network({"log_file": "/var/log/railcni/w.log"}), netns=pod).succeeded()
    assert node.path(f"{'/run/logs' if is_linked else '/var/log/railcni'}/w.log").read_text()


LOGS = {
    "fifo": "mkfifo w.log",
    "fifo that is read": "mkfifo w.log",
    "directory": "mkdir w.log",
    "device": "mknod w.log c 1 5",
    "link": "ln -s elsewhere w.log",
}


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_that_is_no_file_is_neither_waited_for_nor_an_error(node: Node, pod: Pod, kind: str) -> None:
    node.run(["sh", "-ec", f"mkdir /var/log/railcni; cd /var/log/railcni; {LOGS[kind]}"]).check_returncode()
    log = node.path("/var/log/railcni/w.log")
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK) if kind == "fifo that is read" else None
    node.cni("whereabouts", "ADD", network({"log_file": "/var/log/railcni/w.log"}), netns=pod).succeeded()
    if reader is not None:
        assert os.read(reader, 100) == b""
        os.close(reader)


def test_one_message_is_one_line_of_the_log(node: Node, pod: Pod) -> None:
    args = "K8S_POD_NAMESPACE=a\nb;K8S_POD_NAME=c\x1b[2J"
    node.cni("whereabouts", "ADD", network({"log_file": "/var/log/railcni/w.log"}), netns=pod, args=args).succeeded()
    lines = node.path("/var/log/railcni/w.log").read_text().splitlines()
    assert lines
    assert all("whereabouts" in line and "\x1b" not in line for line in lines), lines


# --- masters and devices ---


def test_a_master_that_is_not_listed_is_refused_by_every_name(node: Node, pod: Pod) -> None:
    node.host.add_veth("ens8", "ens8-peer", mtu=9000)
    node.host.add_altname("ens8", "ens2f0-alt")
    node.host.add_address("ens8", "10.7.0.1/24")
    node.host.add_route("ens8", "0.0.0.0/0", gateway="10.7.0.254")  # by which it is the default master
    pod.view.add_veth("eth0", "eth1")
    node.remember()
    node.write(POLICY, {"masters": ["ens2*", "eth7"]})
    for name in ("ens8", "ens2f0-alt", ""):
        refused(node, "macvlan", network(master=name), pod, 7, 'master "ens8"', "ens2*, eth7", "masters", POLICY)
    node.cni("macvlan", "STATUS", network(master="ens8")).refused(7, 'master "ens8"')
    node.cni("macvlan", "STATUS", network()).succeeded()
    node.cni("macvlan", "ADD", network(), netns=pod).succeeded()
    own = network(master="eth0", linkInContainer=True)  # the sandbox's own links are the pod's
    node.cni("macvlan", "ADD", own, netns=pod, container_id="c2", ifname="net2").succeeded()


@pytest.mark.parametrize(
    ("plugin", "selector"),
    [("host-device", "device"), ("host-device", "hwaddr"), ("host-device", "altname"), ("sriov", "VF")],
)
def test_a_device_that_is_not_listed_is_refused_by_every_selector(
    node: Node, pod: Pod, plugin: str, selector: str
) -> None:
    node.host.add_altname("ens9", "ens2-alt")
    node.write(POLICY, {"devices": ["ens2*", "0000:18:00.*"]})
    chosen = {"device": {"device": "ens9"}, "hwaddr": {"device": "", "hwaddr": node.host.link("ens9").mac}}
    chosen |= {"altname": {"device": "ens2-alt"}, "VF": {"device": "", "deviceID": PCI}}
    config = network(**chosen[selector])
    refused(node, plugin, config, pod, 7, 'device "ens9', "ens2*, 0000:18:00.*", "devices", POLICY)
    if selector in ("device", "VF"):
        node.cni(plugin, "STATUS", config).refused(7, 'device "ens9')
    node.write(POLICY, {"devices": [PCI if selector == "VF" else "ens9"]})
    node.cni(plugin, "ADD", config, netns=pod).succeeded()
    node.write(POLICY, {"devices": []})
    node.ended(plugin, config, netns=pod)


UNBELIEVED: list[tuple[Any, int, str]] = [
    ("nonsense", 0o600, "JSON"),
    ({"master": ["ens2f0"]}, 0o600, "masters"),
    ({"masters": ["*"]}, 0o666, "mode 666"),
]


@each_and("content, mode, word", UNBELIEVED, ids=["no JSON", "unknown key", "others can write"], plugins=LINK_PLUGINS)
def test_a_policy_that_cannot_be_believed_stops_every_add(
    node: Node, pod: Pod, plugin: str, content: Any, mode: int, word: str
) -> None:
    node.write(POLICY, content, mode)
    refused(node, plugin, network_of(plugin), pod, 7, POLICY, word)


# --- what is on stdin, and how much of it ---

MANY = [{"range": f"10.{n // 250}.{n % 250}.0/24"} for n in range(1000)]
HEAD = b'{"name": "hostile", '
BOMBS = {
    "size": (HEAD + b'"x": "' + b"x" * (8 << 20) + b'"}', "larger than 8 MiB", "smaller"),
    "values": (HEAD + b'"x": [' + b"{}," * 100_000 + b"1]}", "more than 100000 values", "smaller"),
    "depth": (HEAD + b'"x": ' + b"[" * 100 + b"]" * 100 + b"}", "nested too deeply", "100"),
    "unclosed": (HEAD + b'"x": ' + b"[" * 2_000_000, "more than 100000 values"),
    "exponent": (HEAD + b'"mtu": 1e999}', "1e999 is too large"),
    "endless": (b"", "larger than 8 MiB"),
}


def bounded(node: Node, plugin: str, stdin: bytes, pod: Pod, verb: str = "ADD", source: str = "") -> Any:
    """The answer of the plugin, run with at most 200 MB and 2 s of processor time."""
    command: list[Any] = ["prlimit", f"--as={200 << 20}", "--cpu=2", node.executables / plugin]
    if source:
        command = ["sh", "-c", f"exec {' '.join(map(str, command))} < {source}"]
    done = node.run(command, env={**node.environ(verb, netns=pod), "PATH": "/usr/bin:/bin"}, stdin=stdin)
    assert done.returncode in (0, 1), done
    answer = json.loads(done.stdout) if done.stdout else None
    assert "out of memory" not in str(answer)
    return answer


@each_and("bomb", list(BOMBS))
def test_too_much_on_stdin_is_refused(node: Node, pod: Pod, plugin: str, bomb: str) -> None:
    stdin, *words = BOMBS[bomb]
    answer = bounded(node, plugin, stdin, pod, source="/dev/zero" if bomb == "endless" else "")
    assert (answer["code"], [word for word in words if word not in answer["msg"][:250]]) == (6, []), answer
    assert node.leftovers() == []


def with_block(**keys: Any) -> dict[str, Any]:
    return {"ipam": {**network()["ipam"], **keys}}


LARGE = {
    "text": {"x": "😀" * 1_400_000},
    "keys of the block": with_block(**{f"k{n}": n for n in range(33_000)}),
    "keys of no case": with_block(**{f"RANGE{n}": n for n in range(33_000)}),
    "depth": {"x": json.loads("[" * 99 + "]" * 99)},
    "exclude": with_block(exclude=[f"192.168.111.{n % 200}/32" for n in range(10_000)]),
    "ranges": with_block(ipRanges=MANY[:200]),
    "addresses": with_block(addresses=[{"address": f"10.1.{n >> 8}.{n & 255}/16"} for n in range(1000)]),
    "valid": {"cni.dev/valid-attachments": [{"containerID": f"c{n}", "ifname": "net1"} for n in range(15_000)]},
}


@pytest.mark.parametrize("case", quick(LARGE, "text", "addresses"))
def test_as_much_as_is_taken_is_served_within_bounds(node: Node, pod: Pod, case: str) -> None:
    config = json.dumps({**network(), **LARGE[case]}, ensure_ascii=False).encode()
    plugin = "whereabouts" if case == "addresses" else "macvlan"  # which reads all that whereabouts does, and more
    for verb in ("ADD", "DEL", "GC") if case == "valid" else ("ADD", "DEL"):
        answer = bounded(node, plugin, config, pod, verb)
        assert answer is None or "code" not in answer, answer
    assert node.leftovers() == []


TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    ({"ipRanges": [*MANY, MANY[0]]}, "1001 members: want 1000 at most"),
    ({"addresses": [{}] * 1001}, "1001 members"),
    ({"exclude": ["10.0.0.1"] * 10_001}, "10001 members: want 10000 at most"),
    ({"network_name": "x" * 5000}, "4095 characters"),
    ({"log_file": "/var/log/railcni/\0"}, "zero"),
    ({"dataDir": "/var/lib/cni/railcni/stores/" + "x" * 300}, "File name too long"),
    ({"routes": [{"dst": "10.0.0.0/8", "mtu": 10**4000}]}, "routes[0].mtu"),
]


def test_more_than_a_key_takes_is_refused(node: Node, pod: Pod) -> None:
    node.path("/var/lib/cni").mkdir()
    for ipam, word in TOO_MUCH:
        refused(node, "whereabouts", network(ipam), pod, 7, f"ipam.{next(iter(ipam))}", word)
    config = network(runtimeConfig={"ips": [f"192.168.{n >> 8}.{n & 255}/16" for n in range(1001)]})
    refused(node, "whereabouts", config, pod, 7, "requested addresses", "1000 at most")


def test_what_names_no_netdev_is_refused(node: Node, pod: Pod) -> None:
    for name in ("x" * 128, "ens2f0\0", "../ens2f0", "ens2 f0"):
        for plugin, key in (("macvlan", "master"), ("host-device", "device")):
            refused(node, plugin, network(**{key: name}), pod, 7, key, "want")


@each_and("kind", ["../host-local", "/usr/lib/cni/host-local", "..", "a\0b"], ids=repr, plugins=LINK_PLUGINS)
def test_an_ipam_type_that_leads_out_of_cni_path_is_refused(node: Node, pod: Pod, plugin: str, kind: str) -> None:
    refused(node, plugin, network_of(plugin, {"type": kind}), pod, 7, "ipam.type", "CNI_PATH")


def test_a_network_with_a_type_that_leads_out_of_cni_path_is_refused(node: Node, pod: Pod) -> None:
    for kind in ("../../bin/sh", "/bin/sh"):
        node.write("/run/hostile.conflist", {"cniVersion": "1.1.0", "name": "hostile", "plugins": [{"type": kind}]})
        done = node.railcni("attach", "/run/hostile.conflist", pod.path)
        assert (done.returncode, b"type" in done.stderr, b"without a directory" in done.stderr) == (1, True, True)
        assert node.leftovers() == []


# --- state that others have touched ---


@pytest.fixture
def attached(node: Node, pod: Pod) -> Pod:
    """The pod, with an attachment that must not be taken for another's."""
    node.cni("macvlan", "ADD", network(), netns=pod, container_id="good", ifname="net9").succeeded()
    node.remember()
    return pod


STATE_FILES = ("lock", "leases.db", "leases.db-journal")


@pytest.mark.parametrize("how", ["mode", "owner"])
def test_state_that_others_can_write_is_refused(node: Node, attached: Pod, how: str) -> None:
    before = node.leases()
    for name in ("", "attachments", *STATE_FILES):
        path = node.path(f"{STATE}/{name}")
        mode = 0o777 if path.is_dir() else 0o666
        path.chmod(mode) if how == "mode" else os.chown(path, 4321, 0)
        word = f"mode {mode:o}" if how == "mode" else "user 4321"
        reply = node.cni("macvlan", "ADD", network(), netns=attached)
        reply.refused(5, f"{STATE}/{name}".rstrip("/"), word, "chown", "chmod")
        assert (node.leases(), attached.view.names()) == (before, ["net9"])
        os.chown(path, 0, 0)
        path.chmod(mode & 0o700)
    node.cni("macvlan", "ADD", network(), netns=attached).succeeded()


@pytest.mark.parametrize("name", ["attachments", *STATE_FILES])
def test_a_link_in_place_of_state_is_refused_and_not_followed(node: Node, attached: Pod, name: str) -> None:
    def aside() -> bytes:
        return node.run(["find", "/run/aside", "-printf", "%p %s %T@\n"]).stdout

    place = f"{STATE}/{name}"
    node.run(["sh", "-ec", f"mv {place} /run/aside; ln -s /run/aside {place}"]).check_returncode()
    before = aside()
    reply = node.cni("macvlan", "ADD", network(), netns=attached)
    reply.refused(5, place, "link" if name == "leases.db" else "remove")
    assert aside() == before != b""


@pytest.mark.parametrize("name", STATE_FILES)
def test_what_is_no_file_in_place_of_state_is_refused_without_waiting(node: Node, attached: Pod, name: str) -> None:
    for make in ("mkfifo", "mkdir", "mknod -m 600 {} c 1 5"):
        place = f"{STATE}/{name}"
        command = make.format(place) if "{}" in make else f"{make} {place}"
        node.run(["sh", "-ec", f"rm -r {place}; {command}"]).check_returncode()
        node.cni("macvlan", "ADD", network(), netns=attached).refused(5, place)


DAMAGES = {  # of the record $r, beside that of another attachment, $o
    "link": "rm $r; ln -s $o $r",
    "fifo": "rm $r; mkfifo $r",
    "directory": "rm $r; mkdir $r",
    "endless": "truncate -s 1T $r",
    "changed": "sed -i s/net-c1/net-c2/ $r",
    "swapped": "cat $o > $r",
}


@pytest.mark.parametrize(
    ("how", "part"),
    [  # each with one part of the record in turn; `make long`: with both
        pytest.param(how, part, marks=() if (n + parts) % 2 == 0 else pytest.mark.long)
        for n, how in enumerate(DAMAGES)
        for parts, part in enumerate(["link", "ipam"])
    ],
)
def test_a_record_that_is_not_as_it_was_written_is_set_aside(node: Node, pod: Pod, part: str, how: str) -> None:
    for container in ("c1", "c2"):
        node.cni("macvlan", "ADD", network(), netns=pod, container_id=container, ifname=f"net-{container}").succeeded()
    record, other = (f"hostile:{c}:net-{c}:{part}" for c in ("c1", "c2"))
    script = f"cd {STATE}/attachments; r={record}; o={other}; {DAMAGES[how]}"
    node.run(["sh", "-ec", script]).check_returncode()
    reply = node.cni("macvlan", "DEL", network(), netns=pod, container_id="c1", ifname="net-c1")
    reply.succeeded()
    assert "damaged" in reply.stderr
    assert (pod.view.names(), node.leases()) == (["net-c2"], ["192.168.111.2"])
    node.cni("macvlan", "DEL", network(), netns=pod, container_id="c2", ifname="net-c2").succeeded()
    assert (node.leases(), os.listdir(node.path(f"{STATE}/attachments"))) == ([], [f".damaged.{record}"])


def test_a_record_that_others_can_write_is_refused_and_stays(node: Node, attached: Pod) -> None:
    record = node.path(f"{STATE}/attachments/hostile:good:net9:link")
    os.chown(record, 4321, 0)
    reply = node.cni("macvlan", "DEL", network(), netns=attached, container_id="good", ifname="net9")
    reply.refused(5, record.name, "user 4321", "chown")
    assert "net9" in attached.view.names()
    os.chown(record, 0, 0)
    node.cni("macvlan", "DEL", network(), netns=attached, container_id="good", ifname="net9").succeeded()
    assert node.leases() == []


def test_a_data_directory_that_others_can_write_is_refused(node: Node, pod: Pod) -> None:
    shared = node.path(f"{STORES}/shared")
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    config = network({"dataDir": f"{STORES}/shared"})
    refused(node, "whereabouts", config, pod, 5, f"{STORES}/shared", "mode 777", "chmod")
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("verb", ["ADD", "CHECK", "DEL", "GC"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("macvlan", "host-device"),
        ("sriov", "host-device"),
        pytest.param("host-device", "macvlan", marks=pytest.mark.long),
        pytest.param("macvlan", "sriov", marks=pytest.mark.long),
    ],
)
def test_a_network_that_is_of_another_type_by_now_is_cleared_by_the_plugin_that_made_it(
    node: Node, pod: Pod, first: str, then: str, verb: str
) -> None:
    result = node.cni(first, "ADD", network_of(first), netns=pod).succeeded()
    config = {**network_of(then), "cni.dev/valid-attachments": []}
    if verb != "ADD":  # a retried ADD gets no result of the former one; with one it would stand behind it in a chain
        config["prevResult"] = result
    reply = node.cni(then, verb, config, netns=pod)
    if verb == "CHECK":
        reply.refused(100, first, then, "attach it again")
        assert "net1" in pod.view.names()
    else:
        reply.succeeded()
    if verb in ("ADD", "CHECK"):
        node.ended(then, config, netns=pod)
