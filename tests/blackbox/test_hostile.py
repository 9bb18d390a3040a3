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
from tests.node import GO_PLUGINS, STATE, Node, Pod, Reply

pytestmark = pytest.mark.forked

POLICY = "/etc/cni/net.d/whereabouts.d/railcni.json"
FLAT = "/etc/cni/net.d/whereabouts.d/whereabouts.conf"
SHADOW = "/etc/hostile/shadow"
STORES = f"{STATE}/stores"


def network(ipam: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A network with an `exclude` of which the log says that it has no effect."""
    block = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file", "exclude": ["10.0.0.0/8"]}
    block |= ipam or {}
    return {"cniVersion": "1.1.0", "name": "hostile", "master": "ens2f0", "device": "ens9", "ipam": block, **more}


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
    ("dataDir", "/etc/hostile", "dataRoots", "/var/lib/cni"),
    ("dataDir", "/var/lib/cni/../../../etc/hostile", "dataRoots", "/var/lib/cni"),
    ("dataDir", "/var/lib/cni/link", "dataRoots", "/etc/hostile"),
    ("configuration_path", SHADOW, "configRoots", "/etc/cni"),
    ("configuration_path", "/proc/1/environ", "configRoots", "/etc/cni"),
    ("configuration_path", "/etc/cni/link/shadow", "configRoots", SHADOW),
    ("kubernetes.kubeconfig", SHADOW, "configRoots", "/etc/kubernetes"),
    ("configuration_path", "/etc/cni/net.d/10-calico.conf", "configRoots", "/etc/cni"),
    ("kubernetes.kubeconfig", "/etc/kubernetes/admin.conf", "configRoots", "/etc/kubernetes"),
    ("etcd_key_file", "/etc/kubernetes/pki/etcd/server.key", "configRoots", "/etc/cni"),
]


def block_with(key: str, value: str) -> dict[str, Any]:
    outer, _, inner = key.partition(".")
    return {outer: {inner: value} if inner else value}


@each_and("key, value, roots, word", REFUSED_PATHS, plugins=ATTACHING)
def test_a_path_outside_of_its_roots_is_refused(
    node: Node, pod: Pod, plugin: str, key: str, value: str, roots: str, word: str
) -> None:
    for link in ("/var/lib/cni/link", "/var/log/railcni/link", "/etc/cni/link"):
        node.path(link).parent.mkdir(parents=True, exist_ok=True)
        node.path(link).symlink_to("/etc/hostile")
    node.remember()
    refused(
        node, plugin, network_of(plugin, block_with(key, value)), pod, 7, f'ipam.{key} "{value}"', roots, word, POLICY
    )


def test_a_log_file_outside_of_its_roots_is_not_written_and_hinders_nothing(node: Node, pod: Pod) -> None:
    link = node.path("/var/log/railcni/link")
    link.parent.mkdir(parents=True)
    link.symlink_to("/etc/hostile")
    node.path("/var/log/containers").mkdir()
    for plugin, path in (
        ("macvlan", "/etc/hostile/job"),
        ("whereabouts", "/var/log/railcni/../../../etc/hostile/job"),
        ("macvlan", "/var/log/railcni/link/job"),
        ("whereabouts", "/var/log/containers/other.log"),
        ("macvlan", "/var/log/whereabouts.log"),
    ):
        config = network({"log_file": path, "log_level": "debug"})
        for verb in ("ADD", "DEL"):
            reply = node.cni(plugin, verb, config, netns=pod)
            reply.succeeded()
            assert f"ipam.log_file {path} " in reply.stderr
            assert all(word in reply.stderr for word in ("logRoots", "/var/log/railcni", POLICY))
            assert not node.path(path).exists()
    assert os.listdir(node.path("/etc/hostile")) == ["shadow"]


# What is there already, and a dataDir that would appear in it or in its place.
SQUATTED = [
    ("/var/lib/cni/networks/cbr0/10.244.1.3", "/var/lib/cni/networks/cbr0/10.244.1.4"),  # host-local
    ("/var/lib/cni/networks/cbr0/10.244.1.3", "/var/lib/cni/networks/cbr0"),
    ("", "/var/lib/cni/networks/cbr0/10.244.1.4"),
    (f"{STATE}/lock", f"{STATE}/leases.db"),
    (f"{STATE}/lock", f"{STATE}/leases.db-journal"),
    (f"{STATE}/lock", f"{STATE}/attachments"),
    (f"{STATE}/lock", f"{STATE}/attachments/hostile:c1:net1:link"),
    (f"{STATE}/lock", f"{STATE}/pending"),
    ("", f"{STORES}/rdma/leases.db"),
    ("", f"{STORES}/rdma/leases.db-journal/x"),
    ("/var/lib/cni/sriov/pci/0000:3b:00.1", "/var/lib/cni/sriov/pci/0000:3b:00.2"),
    ("", "/var/lib/cni/rdma"),
    ("", "/var/lib/cni/multus/x"),
    ("", "/var/lib/cni/results/x"),
    ("", "/var/lib/cni/bin/bridge"),  # OpenShift's plugins
    ("", "/run/cni/dhcp.sock"),
]


@pytest.mark.parametrize("policy", [None, {"dataRoots": ["/var/lib/cni", "/run/cni"]}], ids=["usual", "wide"])
def test_no_lease_file_is_made_where_another_program_or_store_keeps_its_own(
    node: Node, pod: Pod, policy: dict[str, Any] | None
) -> None:
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
        everything = [str(path) for path in node.path("/var/lib/cni").rglob("*")]
        refused(node, "whereabouts", network({"dataDir": value}), pod, 7, f'ipam.dataDir "{value}"', "want a")
        left = [str(path) for path in node.path("/var/lib/cni").rglob("*")]
        assert set(left) - set(everything) <= {str(node.path(STATE)), str(node.path(f"{STATE}/lock"))}, value
        assert not node.path("/run/cni").exists(), value


def test_a_store_of_the_version_before_is_used_on_where_it_lies(node: Node, pod: Pod) -> None:
    former = "/var/lib/cni/rdma-leases"
    config = network({"dataDir": former})
    node.write(POLICY, {"dataRoots": ["/var/lib/cni", "/run/cni"]})  # what that version took for granted
    node.cni("whereabouts", "ADD", config, netns=pod).succeeded()
    node.path(POLICY).unlink()
    node.cni("whereabouts", "ADD", config, netns=pod, container_id="c2").succeeded()
    assert node.leases(former) == ["192.168.111.1", "192.168.111.2"]
    for container in ("c1", "c2"):
        node.cni("whereabouts", "DEL", config, netns=pod, container_id=container).succeeded()
    assert node.leases(former) == []


def test_a_store_of_our_own_can_be_named_and_is_one_store_by_all_its_names(node: Node, pod: Pod) -> None:
    for value in (STATE, f"{STATE}/", f"{STORES}/../", STORES, f"{STORES}/a", f"{STORES}/a/b"):
        place = os.path.normpath(value)
        for name in (value, place):
            node.cni("whereabouts", "ADD", network({"dataDir": name}), netns=pod).succeeded()
            assert node.leases(place) == ["192.168.111.1"], value
        node.cni("whereabouts", "DEL", network(), netns=pod).succeeded()


@each_and(
    "said, code, words",
    [
        ({"gateway": "secret-gateway"}, 7, ["somebody.json: gateway", "want an IPv4"]),
        ({"kubernetes": {"kubeconfig": "/etc/cni/secret/k"}}, 7, ["kubeconfig", "cannot be read", "No such file"]),
        ({"etcd_host": "127.0.0.1:1", "store_timeout": 1}, 11, ["http://(not shown): Connection refused"]),
    ],
    ids=["gateway", "kubeconfig", "etcd"],
    plugins=("whereabouts", "macvlan"),
)
def test_somebodys_file_that_is_chosen_as_flat_file_is_not_told(
    node: Node, pod: Pod, plugin: str, said: dict[str, Any], code: int, words: list[str]
) -> None:
    node.write(POLICY, {"configRoots": ["/etc/cni"]})
    node.write("/etc/cni/somebody.json", said)
    config = network_of(plugin, {"configuration_path": "/etc/cni/somebody.json", "datastore": None})
    reply = node.cni(plugin, "ADD", config, netns=pod)
    reply.refused(code, *words)
    assert "secret" not in json.dumps(reply.document)
    assert "127.0.0.1" not in json.dumps(reply.document)
    assert "net1" not in pod.view.names()


# dataDirs, a dataDir beside the directories used, empty and empty/inner, and whether it is refused.
BOUNDED = [
    (4, "new", False),
    (3, "new", True),
    (5, "new/in/it", True),
    (6, "new/in/it", False),
    (3, "empty/inner/new", True),
    (2, "empty/inner", False),
    (0, "used", False),
]


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
    node.write(FLAT, {"dataDir": "/run/flat", "log_file": "/run/flat.log"})  # his, and not confined
    node.cni("whereabouts", "ADD", network(), netns=pod).succeeded()
    assert node.leases("/run/flat") == ["192.168.111.1"]
    assert node.path("/run/flat.log").exists()
    node.cni("whereabouts", "DEL", network(), netns=pod).succeeded()
    node.path(FLAT).unlink()
    usual = {"dataDir": f"{STORES}/rdma", "log_file": "/var/log/railcni/whereabouts.log"}
    node.cni("whereabouts", "ADD", network(usual), netns=pod).succeeded()
    assert "hostile" in node.path("/var/log/railcni/whereabouts.log").read_text()
    chosen = {"dataDir": "/run/chosen", "log_file": "/run/chosen.log"}
    other = {**network(chosen), "name": "other"}
    node.cni("whereabouts", "ADD", other, netns=pod).refused(7, "dataDir", STORES, POLICY)
    node.write(POLICY, {"dataRoots": ["/run/chosen"], "logRoots": ["/run/chosen.log"]})
    node.cni("whereabouts", "ADD", other, netns=pod).succeeded()
    assert node.leases("/run/chosen") == ["192.168.111.1"]
    assert node.path("/run/chosen.log").exists()
    third = {**network(usual), "name": "third"}
    node.cni("whereabouts", "ADD", third, netns=pod).refused(7, f"{STORES}/rdma", "/run/chosen")


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


@pytest.mark.parametrize("kind", ["fifo", "fifo that is read", "directory", "device", "link"])
def test_a_log_that_is_no_file_is_neither_waited_for_nor_an_error(node: Node, pod: Pod, kind: str) -> None:
    log, reader = node.path("/var/log/railcni/w.log"), -1
    log.parent.mkdir()
    if kind.startswith("fifo"):
        os.mkfifo(log)
        if kind != "fifo":
            reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    elif kind == "directory":
        log.mkdir()
    elif kind == "device":
        os.mknod(log, 0o20600, os.makedev(1, 5))
    else:
        log.symlink_to("/var/log/railcni/elsewhere")
    config = network({"log_file": "/var/log/railcni/w.log"})
    node.cni("whereabouts", "ADD", config, netns=pod).succeeded()
    if reader >= 0:
        assert os.read(reader, 100) == b""
        os.close(reader)


def test_one_message_is_one_line_of_the_log(node: Node, pod: Pod) -> None:
    config = network({"log_file": "/var/log/railcni/w.log"})
    args = "K8S_POD_NAMESPACE=a\nb;K8S_POD_NAME=c\x1b[2J"
    node.cni("whereabouts", "ADD", config, netns=pod, args=args).succeeded()
    node.cni("whereabouts", "DEL", config, netns=pod, args=args).succeeded()
    lines = node.path("/var/log/railcni/w.log").read_text().splitlines()
    assert lines
    assert all("whereabouts" in line and "\x1b" not in line for line in lines), lines


# --- masters and devices ---


def test_a_master_that_is_not_listed_is_refused_by_every_name(node: Node, pod: Pod) -> None:
    node.host.add_veth("ens8", "ens8-peer", mtu=9000)
    node.host.add_altname("ens8", "ens2f0-alt")
    node.remember()
    node.write(POLICY, {"masters": ["ens2*", "eth0"]})
    for name in ("ens8", "ens2f0-alt"):
        refused(node, "macvlan", network(master=name), pod, 7, 'master "ens8"', "ens2*, eth0", "masters", POLICY)
    node.cni("macvlan", "STATUS", network(master="ens8")).refused(7, 'master "ens8"')
    node.cni("macvlan", "ADD", network(), netns=pod).succeeded()
    node.cni("macvlan", "STATUS", network()).succeeded()


def test_a_macvlan_stands_for_the_master_below_it(node: Node, pod: Pod) -> None:
    with node.host.rtnl() as ipr:
        ipr.link("add", ifname="mv0", kind="macvlan", link=ipr.link_lookup(ifname="ens2f0")[0])
    node.remember()
    node.write(POLICY, {"masters": ["mv*"]})
    refused(node, "macvlan", network(master="mv0"), pod, 7, 'master "ens2f0"', "mv*")
    node.write(POLICY, {"masters": ["ens2f0"]})
    node.cni("macvlan", "ADD", network(master="mv0"), netns=pod).succeeded()


def test_the_default_routes_link_is_taken_as_master_only_when_listed(node: Node, pod: Pod) -> None:
    node.host.add_address("ens2f0", "10.7.0.1/24")
    node.host.add_route("ens2f0", "0.0.0.0/0", gateway="10.7.0.254")
    node.write(POLICY, {"masters": ["ens9"]})
    refused(node, "macvlan", network(master=""), pod, 7, 'master "ens2f0"', "ens9")


def test_the_sandboxs_own_links_are_the_pods(node: Node, pod: Pod) -> None:
    pod.view.add_veth("eth0", "eth1")
    node.remember()
    node.write(POLICY, {"masters": []})
    node.cni("macvlan", "ADD", network(master="eth0", linkInContainer=True), netns=pod).succeeded()


@pytest.mark.parametrize(
    ("plugin", "selector"),
    [("host-device", "device"), ("host-device", "hwaddr"), ("host-device", "altname"), ("sriov", "VF")],
)
def test_a_device_that_is_not_listed_is_refused_by_every_selector(
    node: Node, pod: Pod, plugin: str, selector: str
) -> None:
    node.host.add_altname("ens9", "ens2-alt")
    mac = node.host.link("ens9").mac
    node.write(POLICY, {"devices": ["ens2*", "0000:18:00.*"]})
    chosen = {"device": {"device": "ens9"}, "hwaddr": {"device": "", "hwaddr": mac}, "altname": {"device": "ens2-alt"}}
    chosen["VF"] = {"device": "", "deviceID": PCI}
    config = network(**chosen[selector])
    refused(node, plugin, config, pod, 7, 'device "ens9', "ens2*, 0000:18:00.*", "devices", POLICY)
    if selector in ("device", "VF"):
        node.cni(plugin, "STATUS", config).refused(7, 'device "ens9')
    node.write(POLICY, {"devices": [PCI if selector == "VF" else "ens9"]})
    node.cni(plugin, "ADD", config, netns=pod).succeeded()
    node.write(POLICY, {"devices": []})
    node.ended(plugin, config, netns=pod)


@each_and(
    "content, mode, words",
    [
        ("nonsense", 0o600, ["JSON"]),
        ({"master": ["ens2f0"]}, 0o600, ["master", "unknown", "masters"]),
        ({"masters": ["*"]}, 0o666, ["mode 666", "chmod"]),
    ],
    ids=["no JSON", "unknown key", "others can write"],
    plugins=LINK_PLUGINS,
)
def test_a_policy_that_cannot_be_believed_stops_every_add(
    node: Node, pod: Pod, plugin: str, content: Any, mode: int, words: list[str]
) -> None:
    node.write(POLICY, content, mode)
    refused(node, plugin, network_of(plugin), pod, 7, POLICY, *words)


# --- what is on stdin, and how much of it ---

MANY = [{"range": f"10.{n // 250}.{n % 250}.0/24"} for n in range(1000)]
HEAD = b'{"name": "hostile", '
BOMBS = {
    "size": (HEAD + b'"x": "' + b"x" * (8 << 20) + b'"}', "larger than 8 MiB", "smaller"),
    "values": (HEAD + b'"x": [' + b"{}," * 100_000 + b"1]}", "more than 100000 values", "smaller"),
    "depth": (HEAD + b'"x": ' + b"[" * 100 + b"]" * 100 + b"}", "nested too deeply", "100"),
    "unclosed": (HEAD + b'"x": ' + b"[" * 2_000_000, "more than 100000 values"),
    "digits": (HEAD + b'"mtu": ' + b"9" * 4301 + b"}", "4301 digits"),
    "exponent": (HEAD + b'"mtu": 1e999}', "1e999 is too large"),
    "surrogate": (HEAD + b'"master": "\\ud800"}', "surrogate"),
    "endless": (b"", "larger than 8 MiB"),
}
BOUNDS = ["prlimit", f"--as={200 << 20}", "--cpu=2"]


def bounded(node: Node, plugin: str, stdin: bytes, pod: Pod, verb: str = "ADD", source: str = "") -> Any:
    """The answer of the plugin, run with at most 200 MB and 2 s of processor time."""
    environ = node.environ(verb, netns=pod)
    command: list[Any] = [*BOUNDS, node.executables / plugin]
    if source:
        command = ["sh", "-c", f"exec {' '.join(map(str, command))} < {source}"]
    done = node.run(command, env={**environ, "PATH": "/usr/bin:/bin"}, stdin=stdin)
    assert done.returncode in (0, 1), done
    answer = json.loads(done.stdout) if done.stdout else None
    assert "out of memory" not in str(answer)
    return answer


@each_and("bomb", list(BOMBS))
def test_too_much_on_stdin_is_refused(node: Node, pod: Pod, plugin: str, bomb: str) -> None:
    stdin, *words = BOMBS[bomb]
    answer = bounded(node, plugin, stdin, pod, source="/dev/zero" if bomb == "endless" else "")
    assert answer["code"] == 6
    assert all(word in answer["msg"][:250] for word in words), answer
    assert node.leftovers() == []


LARGE = {
    "text": {"x": "😀" * 1_400_000},
    "keys": {f"k{n}": n for n in range(33_000)},
    "keys of the block": {"ipam": {**network()["ipam"], **{f"k{n}": n for n in range(33_000)}}},
    "keys of no case": {"ipam": {**network()["ipam"], **{f"RANGE{n}": n for n in range(33_000)}}},
    "depth": {"x": json.loads("[" * 99 + "]" * 99)},
    "exclude": {"ipam": {**network()["ipam"], "exclude": [f"192.168.111.{n % 200}/32" for n in range(10_000)]}},
    "ranges": {"ipam": {**network()["ipam"], "ipRanges": MANY[:200]}},
    "addresses": {
        "ipam": {**network()["ipam"], "addresses": [{"address": f"10.1.{n >> 8}.{n & 255}/16"} for n in range(1000)]}
    },
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


def test_more_than_a_key_takes_is_refused(node: Node, pod: Pod) -> None:
    node.path("/var/lib/cni").mkdir()
    much: list[tuple[dict[str, Any], list[str]]] = [
        ({"ipRanges": [*MANY, MANY[0]]}, ["ipam.ipRanges", "1001 members", "1000 at most"]),
        ({"addresses": [{}] * 1001}, ["ipam.addresses", "1001 members"]),
        ({"exclude": ["10.0.0.1"] * 10_001}, ["ipam.exclude", "10001 members", "10000 at most"]),
        ({"network_name": "x" * 5000}, ["ipam.network_name", "4095 characters"]),
        ({"log_file": "/var/log/railcni/\0"}, ["ipam.log_file", "zero"]),
        ({"dataDir": "/var/lib/cni/railcni/stores/" + "x" * 300}, ["ipam.dataDir", "File name too long"]),
        ({"range": 1e300}, ["ipam.range", "string"]),
        ({"routes": [{"dst": "10.0.0.0/8", "mtu": 10**4000}]}, ["ipam.routes[0].mtu", "integer"]),
    ]
    for ipam, words in much:
        refused(node, "whereabouts", network(ipam), pod, 7, *words)
    config = network(runtimeConfig={"ips": [f"192.168.{n >> 8}.{n & 255}/16" for n in range(1001)]})
    refused(node, "whereabouts", config, pod, 7, "requested addresses", "1000 at most")


def test_what_names_no_netdev_is_refused(node: Node, pod: Pod) -> None:
    for name in ("x" * 128, "ens2f0\0", "../ens2f0", "ens2 f0"):
        for plugin, key in (("macvlan", "master"), ("host-device", "device")):
            refused(node, plugin, network(**{key: name}), pod, 7, key, "want")


@each_and(
    "kind",
    ["../host-local", "/usr/lib/cni/host-local", "..", ".", "a\0b", "sub/whereabouts"],
    ids=repr,
    plugins=LINK_PLUGINS,
)
def test_an_ipam_type_that_leads_out_of_cni_path_is_refused(node: Node, pod: Pod, plugin: str, kind: str) -> None:
    refused(node, plugin, network_of(plugin, {"type": kind}), pod, 7, "ipam.type", "CNI_PATH")


def test_a_network_with_a_type_that_leads_out_of_cni_path_is_refused(node: Node, pod: Pod) -> None:
    for kind in ("../../bin/sh", "/bin/sh", ".."):
        conflist = {"cniVersion": "1.1.0", "name": "hostile", "plugins": [{"type": kind}]}
        node.write("/run/hostile.conflist", conflist)
        done = node.railcni("attach", "/run/hostile.conflist", pod.path)
        assert done.returncode != 0
        assert b"type" in done.stderr
        assert b"without a directory" in done.stderr
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
        if how == "mode":
            path.chmod(0o777 if path.is_dir() else 0o666)
            word = "mode 777" if path.is_dir() else "mode 666"
        else:
            os.chown(path, 4321, 0)
            word = "user 4321"
        reply = node.cni("macvlan", "ADD", network(), netns=attached)
        reply.refused(5, f"{STATE}/{name}".rstrip("/"), word, "chown", "chmod")
        assert (node.leases(), attached.view.names()) == (before, ["net9"])
        os.chown(path, 0, 0)
        path.chmod(0o700 if path.is_dir() else 0o600)
    node.cni("macvlan", "ADD", network(), netns=attached).succeeded()


@pytest.mark.parametrize("name", ["attachments", *STATE_FILES])
def test_a_link_in_place_of_state_is_refused_and_not_followed(node: Node, attached: Pod, name: str) -> None:
    path, aside = node.path(f"{STATE}/{name}"), node.path("/run/aside")
    node.run(["cp", "-a", f"{STATE}/{name}", "/run/aside"]).check_returncode()
    node.run(["rm", "-rf", f"{STATE}/{name}"]).check_returncode()
    path.symlink_to("/run/aside")
    before = node.run(["find", "/run/aside", "-printf", "%p %s %T@\n"]).stdout
    node.cni("macvlan", "ADD", network(), netns=attached).refused(
        5, f"{STATE}/{name}", "link" if name == "leases.db" else "remove"
    )
    assert node.run(["find", "/run/aside", "-printf", "%p %s %T@\n"]).stdout == before
    assert aside.exists()


@pytest.mark.parametrize("name", STATE_FILES)
def test_what_is_no_file_in_place_of_state_is_refused_without_waiting(node: Node, attached: Pod, name: str) -> None:
    path = node.path(f"{STATE}/{name}")
    path.unlink()
    for make in (os.mkfifo, os.mkdir, lambda place: os.mknod(place, 0o20600, os.makedev(1, 5))):
        make(path)
        node.cni("macvlan", "ADD", network(), netns=attached).refused(5, f"{STATE}/{name}")
        node.run(["rm", "-r", f"{STATE}/{name}"]).check_returncode()


@pytest.mark.parametrize(
    ("how", "part"),
    [  # each with one part of the record in turn; `make long`: with both
        pytest.param(how, part, marks=() if (n + parts) % 2 == 0 else pytest.mark.long)
        for n, how in enumerate(["link", "fifo", "directory", "endless", "changed", "swapped"])
        for parts, part in enumerate(["link", "ipam"])
    ],
)
def test_a_record_that_is_not_as_it_was_written_is_set_aside(node: Node, pod: Pod, part: str, how: str) -> None:
    for container in ("c1", "c2"):
        node.cni("macvlan", "ADD", network(), netns=pod, container_id=container, ifname=f"net-{container}").succeeded()
    record, other = (node.path(f"{STATE}/attachments/hostile:{c}:net-{c}:{part}") for c in ("c1", "c2"))
    text = record.read_text()
    if how == "changed":
        record.write_text(text.replace("net-c1", "net-c2"))
    elif how == "swapped":
        record.write_text(other.read_text())
    elif how == "endless":
        os.truncate(record, 1 << 40)
    else:
        record.unlink()
        if how == "link":
            record.symlink_to(other.name)
        elif how == "fifo":
            os.mkfifo(record)
        else:
            record.mkdir()
    reply = node.cni("macvlan", "DEL", network(), netns=pod, container_id="c1", ifname="net-c1")
    reply.succeeded()
    assert "damaged" in reply.stderr
    assert set(pod.view.names()) == {"net-c2"}
    assert node.leases() == ["192.168.111.2"]
    node.cni("macvlan", "DEL", network(), netns=pod, container_id="c2", ifname="net-c2").succeeded()
    assert node.leases() == []
    assert os.listdir(record.parent) == [f".damaged.{record.name}"]


def test_a_record_that_others_can_write_is_refused_and_stays(node: Node, attached: Pod) -> None:
    record = node.path(f"{STATE}/attachments/hostile:good:net9:link")
    os.chown(record, 4321, 0)
    reply = node.cni("macvlan", "DEL", network(), netns=attached, container_id="good", ifname="net9")
    reply.refused(5, record.name, "user 4321", "chown")
    assert "net9" in attached.view.names()
    os.chown(record, 0, 0)
    node.cni("macvlan", "DEL", network(), netns=attached, container_id="good", ifname="net9").succeeded()
    assert node.leases() == []


def test_a_file_that_is_no_record_is_left_alone(node: Node, attached: Pod) -> None:
    stray = node.path(f"{STATE}/attachments/leases.db")
    stray.touch(0o600)
    config = network()
    node.cni("macvlan", "ADD", config, netns=attached).succeeded()
    assert stray.exists()
    node.cni("macvlan", "DEL", config, netns=attached).succeeded()
    valid = {"cni.dev/valid-attachments": [{"containerID": "good", "ifname": "net9"}]}
    node.cni("macvlan", "GC", {**network(), **valid}).succeeded()
    assert stray.exists()


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


def test_a_delegate_gets_what_the_runtime_sent_and_no_more(node: Node, pod: Pod) -> None:
    """host-local is Go's: a type that CNI_PATH has, and a dataDir that is its own business, not ours."""
    if not (GO_PLUGINS / "host-local").exists():
        pytest.skip("needs the package containernetworking-plugins")
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.4.0.0/24"}]], "dataDir": "/run/host-local"}
    config = {**network(), "cniVersion": "1.0.0", "ipam": ipam}
    node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    node.cni("macvlan", "DEL", config, netns=pod).succeeded()
