"""A sandbox whose path is gone: what still keeps it, what a DEL waits for, and how an end comes that a DEL could not bring."""

import glob
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni.shared.kernel import sysfs
from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from tests.blackbox.test_host_device import PCI, as_it_was, bus
from tests.each import each_and, quick
from tests.faults.inject import Command, Injector, unavailable
from tests.node import GO_PLUGINS, ROOT, STATE, Node, Pod, until
from tests.view import View

pytestmark = pytest.mark.forked

PLUGINS = ("macvlan", "host-device")
needs_strace = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "")
WAITING = quick(PLUGINS, "macvlan")  # each waits 2 s: what differs is tested below
UNENDED = f"{STATE}/unended"
IPAM = {"type": "whereabouts", "range": "192.168.111.0/24", "datastore": "file"}


def network(plugin: str, **more: Any) -> dict[str, Any]:
    of_plugin = {"device": "ens9"} if plugin == "host-device" else {"master": "ens2f0"}
    return {"cniVersion": "1.1.0", "name": "rdma", "type": plugin, "ipam": IPAM, **of_plugin, **more}


@pytest.fixture
def pod(node: Node) -> Pod:
    node.master()
    make_device(node)
    node.remember()
    return node.pod()


def make_device(node: Node) -> None:
    node.host.add_veth("ens9", "ens9-peer", mtu=4200)
    node.host.set("ens9", address="02:00:00:00:09:09")


@contextmanager
def kept_by(*argv: str, **how: Any) -> Iterator[int]:
    """A process that says when it keeps a namespace; its PID."""
    keeper = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)
    try:
        assert keeper.stdout and keeper.stdout.readline() == b"there\n"
        yield keeper.pid
    finally:
        keeper.kill()
        keeper.communicate()


@contextmanager
def process(node: Node, pod: Pod) -> Iterator[View]:
    """A process that is in the pod's namespace."""
    with kept_by("nsenter", f"--net={pod.view.path}", "sh", "-c", "echo there; exec sleep 600") as pid:
        yield View(f"/proc/{pid}/ns/net")


@contextmanager
def mount(node: Node, pod: Pod) -> Iterator[View]:
    """The pod's namespace is mounted elsewhere, too."""
    node.path("/run/elsewhere").touch()
    node.run(["mount", "--bind", pod.path, "/run/elsewhere"]).check_returncode()
    yield View(f"{node.root}/run/elsewhere")


@contextmanager
def descriptor(node: Node, pod: Pod) -> Iterator[View]:
    """A process outside the pod's namespace that has a descriptor of it; the view by which the test sees it."""
    with pod.view.entered():
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)  # not by its path: that would pin the mount
    with kept_by("sh", "-c", "echo there; exec sleep 600", pass_fds=[fd]) as pid:
        os.close(fd)
        yield View(f"/proc/{pid}/fd/{fd}")


@contextmanager
def opened_by_path(node: Node, pod: Pod) -> Iterator[View]:
    """As runtimes and Multus do. Once the path is unmounted, the link of the descriptor says "/"."""
    with kept_by("sh", "-ec", "exec 3< $0; echo there; exec sleep 600", pod.view.path) as pid:
        yield View(f"/proc/{pid}/fd/3")


_THREAD = f"""
import sys, threading
sys.path.insert(0, {str(ROOT)!r})
from cni.shared.kernel import netns

def stay():
    namespace = netns.open_namespace(sys.argv[1])
    with namespace.entered():
        namespace.close()
        print("there", flush=True)
        threading.Event().wait()

threading.Thread(target=stay, daemon=True).start()
sys.stdin.read()
"""


@contextmanager
def thread(node: Node, pod: Pod) -> Iterator[View]:
    """A process outside the pod's namespace of which one thread is in it; the view by which the test sees it."""
    with kept_by(sys.executable, "-c", _THREAD, pod.view.path) as pid:
        other = next(tid for tid in os.listdir(f"/proc/{pid}/task") if tid != str(pid))
        yield View(f"/proc/{pid}/task/{other}/ns/net")


@contextmanager
def hidden(node: Node, pod: Pod) -> Iterator[None]:
    """The pod's namespace lives on by a socket alone."""
    with pod.view.entered():
        keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with keeper:
        yield


def restored(node: Node, plugin: str) -> None:
    """A veth is destroyed with its namespace: what a test does about it."""
    if plugin == "host-device":
        assert until(lambda: "ens9-peer" not in node.host.names())
        make_device(node)


# --- kept by what is in it, by a mount, or by an open descriptor, as by thick Multus ---


KEEPERS = [*((keeper, "DEL") for keeper in (process, mount, descriptor, opened_by_path, thread)), (descriptor, "GC")]


@each_and("keeper, verb", KEEPERS, ids=lambda f: getattr(f, "__name__", f), plugins=PLUGINS)
def test_a_delete_and_gc_end_an_attachment_whose_namespace_is_kept_without_its_path(
    node: Node, pod: Pod, plugin: str, keeper: Any, verb: str
) -> None:
    """As the device or address of a deleted pod: multus #1134; containernetworking/plugins #666, #274."""
    before = as_it_was(node)
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    with keeper(node, pod) as inside:
        node.delete_pod(pod)
        assert inside.names() == ["net1"]
        config = network(plugin) | ({"cni.dev/valid-attachments": []} if verb == "GC" else {})
        node.cni(plugin, verb, config, netns=pod.path).succeeded()
        assert (inside.names(), node.leftovers(), as_it_was(node)) == ([], [], before)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_container_is_attached_anew_while_its_former_namespace_is_kept(node: Node, pod: Pod, plugin: str) -> None:
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    with descriptor(node, pod) as inside:
        node.delete_pod(pod)
        again = node.pod("pod2")
        assert node.cni(plugin, "ADD", network(plugin), netns=again).succeeded()["ips"][0]["address"]
        assert (inside.names(), again.view.names(), len(node.leases())) == ([], ["net1"], 1)
        node.ended(plugin, network(plugin), netns=again)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_mount_that_another_mount_namespace_has_is_found(node: Node, pod: Pod, plugin: str) -> None:
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    node.run(["mount", "--make-rprivate", "/"]).check_returncode()
    holder = node.start(["unshare", "--mount", "sh", "-c", "echo ready; exec sleep 600"])
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    node.run(["umount", pod.path]).check_returncode()  # an unlink would detach the other mount, too
    del node.pods[pod.name]
    try:
        node.cni(plugin, "DEL", network(plugin), netns=pod.path).succeeded()
        inside = View(f"/proc/{holder.pid}/root{pod.path}")
        assert (inside.names(), node.leases(), node.files()) == ([], [], [])
        assert plugin == "macvlan" or "ens9" in node.host.names()
    finally:
        holder.kill()
        holder.wait()


# --- kept so that nobody can get there ---
@pytest.mark.parametrize("plugin", WAITING)
def test_an_address_stays_reserved_while_its_namespace_cannot_be_found(node: Node, pod: Pod, plugin: str) -> None:
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    with hidden(node, pod):
        node.delete_pod(pod)
        what = "ens2f0" if plugin == "macvlan" else "ens9"
        node.cni(plugin, "DEL", network(plugin), netns=pod.path).refused(11, what, "cannot be found", "repeat the DEL")
        assert node.leases() == ["192.168.111.1"]
        assert "rdma:c1:net1:link" in " ".join(node.files())
        other = node.pod("pod2")
        if plugin == "macvlan":
            given = node.cni(plugin, "ADD", network(plugin), netns=other, container_id="c2").succeeded()
            assert given["ips"][0]["address"] == "192.168.111.2/24"
            node.cni(plugin, "DEL", network(plugin), netns=other, container_id="c2").succeeded()
        else:
            node.cni(plugin, "ADD", network(plugin), netns=other, container_id="c2").refused(11, "c1", "ens9")
    assert plugin == "macvlan" or until(lambda: "ens9-peer" not in node.host.names())
    node.cni(plugin, "DEL", network(plugin), netns=pod.path).succeeded()
    assert (node.leases(), node.files()) == ([], [])


def later_add(node: Node, plugin: str) -> None:
    other = node.pods.get("pod2") or node.pod("pod2")
    node.cni(plugin, "ADD", network(plugin), netns=other, container_id="c2").succeeded()
    node.cni(plugin, "DEL", network(plugin), netns=other, container_id="c2").succeeded()


def later_delete(node: Node, plugin: str) -> None:
    node.cni(plugin, "DEL", network(plugin), netns="", container_id="c2").succeeded()


def later_collection(node: Node, plugin: str) -> None:
    listed = [{"containerID": "c1", "ifname": "net1"}]  # the runtime still knows it
    node.cni(plugin, "GC", network(plugin) | {"cni.dev/valid-attachments": listed}).succeeded()


def flush(node: Node, plugin: str) -> None:
    assert node.railcni("ipam", "flush").stdout.endswith((b" 0 left\n", b"1 left\n", b"nothing is pending\n"))


@pytest.mark.parametrize("plugin", WAITING)
@pytest.mark.parametrize("later", quick([later_add, flush, later_delete, later_collection], later_add, flush))
def test_an_end_that_a_delete_could_not_bring_comes_later(node: Node, pod: Pod, plugin: str, later: Any) -> None:
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    with hidden(node, pod):
        node.delete_pod(pod)
        node.cni(plugin, "DEL", network(plugin), netns=pod.path).refused(11, "repeat the DEL")
        assert node.railcni("ipam", "flush").stdout.endswith(b" 1 left\n")
    restored(node, plugin)

    def is_ended() -> bool:
        os.utime(node.path(UNENDED), (0, 0))  # as if some time had passed
        later(node, plugin)
        return node.files() == []

    assert until(is_ended)  # a call looks once, and the kernel may take a moment to end a namespace
    assert (node.leases(), node.files()) == ([], [])


@needs_strace
def test_an_attachment_that_could_not_be_ended_costs_other_calls_no_waiting(node: Node, pod: Pod) -> None:
    """The call that looks for it asks once: it holds no other up for the time that a DEL waits."""
    config = network("macvlan")
    node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    with hidden(node, pod):
        node.delete_pod(pod)
        node.cni("macvlan", "DEL", config, netns=pod.path).refused(11)
        os.utime(node.path(UNENDED), (0, 0))
        with Injector(node) as injector:
            command = called("DEL", node, "macvlan", "", "c2")
            trace = traced(injector, command, "-e", "trace=clock_nanosleep,select,pselect6")
        assert "nanosleep" not in trace
        assert node.leases() == ["192.168.111.1"]
        assert node.path(UNENDED).stat().st_mtime > 0  # it is looked at again some time later, not by each call


@needs_strace
@pytest.mark.parametrize("plugin", PLUGINS)
def test_an_end_that_the_kernel_refused_is_brought_by_a_later_call(node: Node, pod: Pod, plugin: str) -> None:
    before = as_it_was(node)
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    with Injector(node) as injector:
        refusal = ("-e", "trace=sendto", "-e", "inject=sendto:error=EIO")
        outcome, _ = injector.record(called("DEL", node, plugin, pod.path), *refusal)
    assert outcome.reply and outcome.reply.status == 1
    flush(node, plugin)
    assert (pod.view.names(), node.leftovers(), as_it_was(node)) == ([], [], before)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_an_audit_calls_no_lease_dead_that_a_delete_would_not_free(node: Node, pod: Pod, plugin: str) -> None:
    keeper: Any = hidden if plugin == "macvlan" else descriptor
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    with keeper(node, pod):
        node.delete_pod(pod)
        assert dead(node) == []
    assert plugin == "macvlan" or until(lambda: "ens9-peer" not in node.host.names())
    assert until(lambda: dead(node) == ["192.168.111.1"])


def dead(node: Node) -> list[str]:
    """The addresses that `railcni ipam audit` would reclaim."""
    findings = json.loads(node.railcni("ipam", "audit", "-o", "json").stdout)["findings"]
    return [finding["address"] for finding in findings if finding["action"] == "reclaim"]


def test_an_audit_calls_no_lease_dead_whose_delete_failed(node: Node, pod: Pod) -> None:
    """Whoever asks may be in a container, from which neither links nor processes of the host are seen."""
    config = network("host-device")
    node.cni("host-device", "ADD", config, netns=pod).succeeded()
    nested = node.pod("nested")
    pod.view.move("net1", nested.view)
    node.cni("host-device", "DEL", config, netns=pod).refused(11, "ens9")
    for each in (pod, nested):
        node.delete_pod(each)
    assert until(lambda: "ens9-peer" not in node.host.names())
    assert (dead(node), node.railcni("ipam", "flush").returncode) == ([], 0)
    assert (node.leases(), node.files()) == ([], [])


@pytest.mark.parametrize("plugin", WAITING)
def test_an_address_stays_reserved_while_its_link_is_in_a_nested_namespace(node: Node, pod: Pod, plugin: str) -> None:
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    nested = node.namespace("nested")
    pod.view.move("net1", nested)
    nested.set("net1", state="up")
    node.cni(plugin, "DEL", network(plugin), netns=pod).refused(11, "repeat the DEL")
    assert node.leases() == ["192.168.111.1"]
    nested.move("net1", pod.view)
    node.cni(plugin, "DEL", network(plugin), netns=pod).succeeded()
    assert (node.leases(), node.files(), pod.view.names()) == ([], [], [])


def test_a_late_delete_of_a_device_that_was_destroyed_spares_the_next_one_of_its_name(node: Node, pod: Pod) -> None:
    config = network("host-device")
    node.cni("host-device", "ADD", config, netns=pod).succeeded()
    node.delete_pod(pod)
    assert until(lambda: "ens9-peer" not in node.host.names())
    node.host.add_veth("ens9", "ens9-peer")  # with another MAC
    other = node.pod("pod2")
    node.cni("host-device", "ADD", config, netns=other, container_id="c2").succeeded()
    node.cni("host-device", "DEL", config, netns=pod.path).succeeded()
    assert (other.view.names(), node.leases()) == (["net1"], ["192.168.111.2"])


@pytest.mark.parametrize("plugin", ["host-device", pytest.param("sriov", marks=pytest.mark.long)])
def test_no_delete_succeeds_before_the_device_of_a_dying_namespace_is_home(node: Node, pod: Pod, plugin: str) -> None:
    """The kernel gives a physical device back some time after its namespace has ended, under the pod's name."""
    before = as_it_was(node)
    selector = {"device": None, "pciBusID": PCI} if plugin == "host-device" else {"deviceID": PCI}
    config = {k: v for k, v in network(plugin, **selector).items() if v is not None}
    bus(node, "pci", PCI, "ens9", driver="mlx5_core")
    node.cni(plugin, "ADD", config, netns=pod).succeeded()
    limbo = node.namespace("limbo")
    pod.view.move("net1", limbo)
    node.delete_pod(pod)
    node.cni(plugin, "DEL", config, netns=pod.path).refused(11, "ens9", "repeat the DEL")
    assert node.leases() == ["192.168.111.1"]
    limbo.move("net1", node.host)
    node.cni(plugin, "DEL", config, netns=pod.path).succeeded()
    assert (node.leftovers(), as_it_was(node)) == ([], before)


def test_a_netdev_of_another_namespace_is_told_by_the_directory_that_hides_it(node: Node) -> None:
    """What cni.link.plugins.host_device.moved goes by when a device is missing: the host's NIC, as it is seen from a namespace of this machine."""
    found = [Path(path) for path in glob.glob("/sys/bus/*/devices/*/net") if os.listdir(path)]
    if not found:
        pytest.skip("needs a machine whose network namespace has a netdev of a bus: run the tests on the host")
    device = found[0].parent
    assert node.run(["ls", device / "net"]).stdout == b""
    root = f"{node.root}/sys"
    assert sysfs.has_netdev(device.parent.parent.name, device.name, root)
    assert not sysfs.has_netdev(device.parent.parent.name, "none", root)


# --- one look at a path; a kernel without cookies ---
def called(verb: str, node: Node, plugin: str, pod: str, container: str = "c1") -> Command:
    environ = node.environ(verb, container_id=container, netns=pod, path=[node.executables])
    return Command(node.executables / plugin, environ, json.dumps(network(plugin)).encode())


def traced(injector: Injector, command: Command, *options: str) -> str:
    """The trace of a call that succeeds."""
    outcome, trace = injector.record(command, *options)
    assert outcome.reply
    outcome.reply.succeeded()
    return trace


@needs_strace
@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_delete_opens_the_path_of_the_sandbox_once(node: Node, pod: Pod, plugin: str) -> None:
    """Between two looks another namespace may come to the path, or none be there any more."""
    node.cni(plugin, "ADD", network(plugin), netns=pod).succeeded()
    with Injector(node) as injector:
        trace = traced(injector, called("DEL", node, plugin, pod.path), "-e", "trace=open,openat")
    assert trace.count(f'"{pod.path}"') == 1


WITHOUT_COOKIE = ("-e", "trace=getsockopt", "-e", "inject=getsockopt:error=ENOPROTOOPT")


@needs_strace
@pytest.mark.parametrize("plugin", PLUGINS)
def test_without_cookies_a_late_delete_spares_the_inodes_new_namespace(node: Node, pod: Pod, plugin: str) -> None:
    """As on Linux before 5.14, where a namespace is known by its inode alone, which a later one gets."""
    with Injector(node) as injector:
        traced(injector, called("ADD", node, plugin, pod.path), *WITHOUT_COOKIE)
        node.delete_pod(pod)
        restored(node, plugin)
        other = node.pod("pod2")
        records, attachment = Records(str(node.path(STATE))), Attachment("rdma", "c1", "net1")
        record = records.read(attachment, "link") or {}
        assert record["sandbox"]["cookie"] == 0
        record["sandbox"]["inode"] = os.stat(other.view.path).st_ino  # as it comes about sooner or later
        records.write(attachment, "link", record)
        config = network(plugin, name="another")
        if plugin == "host-device":
            node.host.add_veth("ens10", "ens10-peer")
            config["device"] = "ens10"
        node.cni(plugin, "ADD", config, netns=other, container_id="c2").succeeded()
        traced(injector, called("DEL", node, plugin, pod.path), *WITHOUT_COOKIE)
    assert (other.view.names(), node.leases()) == (["net1"], ["192.168.111.2"])


@needs_strace
@pytest.mark.parametrize("plugin", PLUGINS)
def test_without_cookies_a_delete_ends_its_own_attachment(node: Node, pod: Pod, plugin: str) -> None:
    before = as_it_was(node)
    with Injector(node) as injector:
        for verb in ("ADD", "DEL"):
            traced(injector, called(verb, node, plugin, pod.path), *WITHOUT_COOKIE)
    assert (node.leftovers(), as_it_was(node)) == ([], before)


# --- a chain of which another plugin fails for ever ---


needs_sbr = pytest.mark.skipif(not (GO_PLUGINS / "sbr").exists(), reason="needs containernetworking-plugins")
SBR = {"cniVersion": "1.0.0", "name": "rdma", "type": "sbr"}


@needs_sbr
def test_a_chain_can_be_ended_once_a_namespace_with_such_a_link_is_at_the_old_path(node: Node, pod: Pod) -> None:
    """macvlan and Go's sbr behind it, of which the DEL comes first and fails when the path of the namespace is gone."""
    config = network("macvlan")
    result = node.cni("macvlan", "ADD", config, netns=pod).succeeded()
    node.cni(GO_PLUGINS / "sbr", "ADD", SBR | {"prevResult": result | {"cniVersion": "1.0.0"}}, netns=pod).succeeded()
    node.delete_pod(pod)
    for _ in range(2):
        assert node.cni(GO_PLUGINS / "sbr", "DEL", SBR, netns=pod.path).status == 1
    node.path(pod.path).unlink()  # an ordinary file, which sbr has made there
    node.run(["ip", "netns", "add", pod.name]).check_returncode()
    node.run(["ip", "-n", pod.name, "link", "add", "net1", "type", "bridge"]).check_returncode()
    node.cni(GO_PLUGINS / "sbr", "DEL", SBR, netns=pod.path).succeeded()
    node.cni("macvlan", "DEL", config, netns=pod.path).succeeded()
    assert (node.leases(), node.files()) == ([], [])
