"""Attachments whose sandbox has gone without a DEL: Multus was killed, or the runtime reported a success that was none."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from cni.shared.records import Records
from cni.shared.spec.request import Attachment
from tests.blackbox.test_foreign_ipam import ROOT, Ipam
from tests.fabric import Fabric
from tests.node import STATE, Node, Pod, until

pytestmark = pytest.mark.forked

IPAM = {"type": "whereabouts", "datastore": "file", "range": "192.168.8.0/24"}
BASE: dict[str, Any] = {"cniVersion": "1.0.0", "name": "rail", "ipam": IPAM}
MACVLAN = {**BASE, "type": "macvlan", "master": "ens2f0"}


def attached(node: Node, config: dict[str, Any], container: str) -> Pod:
    pod = node.pod(container)
    node.cni(config["type"], "ADD", config, container_id=container, netns=pod).succeeded()
    return pod


def records(node: Node) -> list[str]:
    return sorted(os.listdir(node.path(f"{STATE}/attachments")))


def of(*containers: str) -> list[str]:
    return sorted(f"rail:{container}:net1:{part}" for container in containers for part in ("ipam", "link"))


def flush(node: Node) -> None:
    """Until the kernel has cleared the namespaces, some are left: the exit code is 1."""
    assert until(lambda: node.railcni("ipam", "flush").returncode == 0, 20)


def look(node: Node, settled: bool = False) -> None:
    """Make the next look due; `settled`: the sandboxes that the last look missed have been gone for long."""
    node.path(f"{STATE}/unended").touch()
    os.utime(node.path(f"{STATE}/unended"), (0, 0))
    store = Records(str(node.path(STATE)))
    for who, part, record in store.all("link") if settled else ():
        store.write(who, part, record | ({"gone": record["gone"] - 3600} if "gone" in record else {}))


def by(node: Node, call: Callable[[], object]) -> None:
    """Let calls end what has gone: a call gives up after a second, and the kernel may take a moment to clear a namespace."""

    def is_done() -> bool:
        look(node, settled=True)
        call()
        return not set(records(node)) - set(of("kept", "new"))

    assert until(is_done, 20), records(node)


def becomes(node: Node, left: list[str], settled: bool = False) -> bool:
    """Whether looks of DELs leave these records; a namespace that the kernel has not cleared yet has a further look."""

    def looked() -> bool:
        look(node, settled)
        node.cni("macvlan", "DEL", MACVLAN, container_id="other").succeeded()
        return records(node) == left

    return until(looked, 20)


def agent(node: Node) -> None:
    def once() -> None:
        done = node.railcni("agent", "--once", "--no-collect", "--kubeconfig", "/dev/null")
        assert b"Traceback" not in done.stderr, done.stderr

    by(node, once)


def add(node: Node) -> None:
    how = {"container_id": "new", "netns": node.pod("new")}
    by(node, lambda: node.cni("macvlan", "ADD", MACVLAN, **how))
    node.cni("macvlan", "DEL", MACVLAN, **how).succeeded()


def delete(node: Node) -> None:
    """Of a pod that this network has never had."""
    by(node, lambda: node.cni("macvlan", "DEL", MACVLAN, container_id="other").succeeded())


def add_of_another_network(node: Node) -> None:
    other = {**MACVLAN, "name": "storage", "ipam": {}}
    pod = node.pod("other")

    def call() -> None:
        node.cni("macvlan", "ADD", other, container_id="other", netns=pod).succeeded()
        node.cni("macvlan", "DEL", other, container_id="other", netns=pod).succeeded()

    by(node, call)


def gc(node: Node) -> None:
    """The next call of the network that tells which attachments the runtime still has."""
    listed = [{"containerID": "kept", "ifname": "net1"}]
    node.cni("macvlan", "GC", {**MACVLAN, "cniVersion": "1.1.0", "cni.dev/valid-attachments": listed}).succeeded()


@pytest.mark.parametrize("call", [flush, agent, gc, add, delete, add_of_another_network])
def test_what_no_del_came_for_is_ended_by_command_agent_or_next_calls(node: Node, call: Callable[[Node], None]) -> None:
    node.master()
    attached(node, MACVLAN, "kept")
    for pod in [attached(node, MACVLAN, f"c{i}") for i in range(12)]:
        node.delete_pod(pod)
    call(node)
    assert (records(node), len(node.leases())) == (of("kept"), 1)


def pods_add(node: Node, container: str, name: str) -> str:
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID={name}"
    pod = node.pods.get(container) or node.pod(container)
    done = node.cni("macvlan", "ADD", MACVLAN, container_id=container, netns=pod, args=args).succeeded()
    return str(done["ips"][0]["address"])


def test_in_its_grace_an_address_waits_for_the_pods_next_sandbox_and_after_it_the_node_remembers(node: Node) -> None:
    """Kubelet may call DEL yet, or make the pod's next sandbox."""
    node.master()
    for name in ("one", "two"):
        pods_add(node, name, name)
    node.delete_pod(node.pods["two"])
    for _ in range(2):  # the second look is not long after the first
        look(node)
        assert pods_add(node, "c3", "three") == "192.168.8.3/24"
    assert "rail:two:net1:link" in records(node)
    assert becomes(node, of("c3", "one"), settled=True)
    assert (pods_add(node, "c4", "two"), records(node)) == ("192.168.8.2/24", of("c3", "c4", "one"))
    assert node.leases() == ["192.168.8.1", "192.168.8.2", "192.168.8.3"]
    node.cni("macvlan", "DEL", MACVLAN, container_id="two", netns="").succeeded()
    assert node.leases() == ["192.168.8.1", "192.168.8.2", "192.168.8.3"]


def test_calls_look_only_from_time_to_time(node: Node) -> None:
    node.master()
    attached(node, MACVLAN, "kept")
    node.delete_pod(attached(node, MACVLAN, "c1"))
    store, who = Records(str(node.path(STATE))), Attachment("rail", "c1", "net1")
    assert until(lambda: becomes(node, of("c1", "kept")) and "gone" in (store.read(who, "link") or {}), 20)
    record = store.read(who, "link")
    assert record
    for container in ("c2", "c3"):
        attached(node, MACVLAN, container)
    store.write(who, "link", record | {"gone": record["gone"] - 3600})
    attached(node, MACVLAN, "c4")
    assert records(node) == of("c1", "c2", "c3", "c4", "kept")


@pytest.mark.parametrize("call", [flush, delete])
def test_a_device_whose_sandbox_has_gone_without_a_del_comes_back(node: Node, call: Callable[[Node], None]) -> None:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    node.remember()
    pod = attached(node, {**BASE, "type": "host-device", "device": "ens9"}, "c1")
    node.delete_pod(pod)
    call(node)
    assert records(node) == []


def kept_by_a_descriptor(node: Node, pod: Pod) -> Callable[[], None]:
    with pod.view.entered():
        fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    node.delete_pod(pod)
    return lambda: os.close(fd)


def directory_that_is_not_there(node: Node, pod: Pod) -> Callable[[], None]:
    folder = node.path("/run/netns")
    folder.rename(folder.with_name("away"))
    return lambda: None


def path_that_is_a_file(node: Node, pod: Pod) -> Callable[[], None]:
    node.delete_pod(pod)
    node.path(pod.path).touch()
    return lambda: None


def calls(node: Node) -> None:
    for _ in range(2):
        look(node, settled=True)
        node.cni("macvlan", "DEL", MACVLAN, container_id="other").succeeded()


@pytest.mark.parametrize("call", [flush, calls])
@pytest.mark.parametrize("how", [kept_by_a_descriptor, directory_that_is_not_there, path_that_is_a_file])
def test_an_attachment_stays_while_its_sandbox_may_be_there(node: Node, how: Any, call: Callable[[Node], None]) -> None:
    node.master()
    end = how(node, attached(node, MACVLAN, "c1"))
    try:
        call(node)
        assert records(node) == of("c1")
    finally:
        end()


def test_a_call_that_does_not_see_the_nodes_processes_ends_nothing(node: Node) -> None:
    """Thick Multus without `hostPID`: any of the others may keep the namespace."""
    node.master()
    node.delete_pod(attached(node, MACVLAN, "c1"))
    for _ in range(2):
        look(node, settled=True)
        blind = ["unshare", "--pid", "--fork", "--mount-proc"]
        node.cni("macvlan", "DEL", MACVLAN, container_id="other", through=blind).succeeded()
    assert records(node) == of("c1")
    delete(node)
    assert records(node) == []


def test_another_suites_ipam_plugin_is_called_by_the_next_call_that_finds_it(node: Node) -> None:
    node.master()
    ipam = Ipam(node)
    pod = node.pod("c1")
    node.cni("macvlan", "ADD", {**MACVLAN, "ipam": {"type": "recorder"}}, container_id="c1", netns=pod, path=[ROOT])
    node.delete_pod(pod)
    record = node.path(f"{STATE}/attachments/rail:c1:net1:link")

    def after_a_call(*folders: str) -> str:
        look(node, settled=True)
        path = [*folders, node.executables]
        node.cni("macvlan", "DEL", MACVLAN, container_id="other", path=path).succeeded()
        return record.read_text() if record.exists() else ""

    assert until(lambda: "unended" in after_a_call())  # of a runtime with other plugin folders
    assert until(lambda: not after_a_call(ROOT))
    first, *others = [call.split()[0] for call in ipam.calls]
    assert first == "ADD" and set(others) == {"DEL"}  # repeated while the kernel clears the namespace


def test_a_group_of_rails_frees_its_addresses_when_all_its_links_have_ended(node: Node) -> None:
    rails = Fabric(node, 2)
    pod = node.pod("c1")
    rails.attach(pod, (0, 1))
    node.delete_pod(pod)
    other = node.pod("other")

    def is_done() -> bool:
        look(node, settled=True)
        rails.cni("DEL", other, 0).succeeded()
        return records(node) == []

    assert until(is_done), records(node)
    assert node.leases() == []


def restarted(node: Node) -> None:
    """As if the machine had booted: its sandboxes are gone, and the records are of another boot."""
    store = Records(str(node.path(STATE)))
    for who, part, record in store.all():
        store.write(who, part, record | {"bootID": "an earlier one"})
    for pod in list(node.pods.values()):
        node.delete_pod(pod)


def booted(node: Node, seconds: float) -> None:
    node.path("/tmp/uptime").write_text(f"{seconds} 0\n")
    node.run(["mount", "--bind", "/tmp/uptime", "/proc/uptime"]).check_returncode()


@pytest.mark.parametrize(("seconds", "left"), [(60, ["c1"]), (3600, [])])
def test_records_of_an_earlier_boot_wait_minutes_for_kubelets_del(node: Node, seconds: float, left: list[str]) -> None:
    """Kubelet calls DEL without a namespace, then makes the pod's next sandbox, which has the pod's address."""
    node.master()
    for container, name in (("c0", "one"), ("c1", "two")):
        pods_add(node, container, name)
    node.cni("macvlan", "DEL", MACVLAN, container_id="c0", netns=node.pods["c0"]).succeeded()
    restarted(node)
    booted(node, seconds)
    assert becomes(node, of(*left))
    node.cni("macvlan", "DEL", MACVLAN, container_id="c1", netns="").succeeded()
    assert (pods_add(node, "c2", "two"), records(node)) == ("192.168.8.2/24", of("c2"))


def test_the_command_does_not_wait_for_the_records_of_an_earlier_boot(node: Node) -> None:
    node.master()
    attached(node, MACVLAN, "c1")
    restarted(node)
    flush(node)
    assert records(node) == []
