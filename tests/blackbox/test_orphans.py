"""Attachments whose sandbox has gone without a DEL: Multus was killed, or the runtime reported a success that was none."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from cni.shared.records import Records
from cni.shared.spec.request import Attachment
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


def agent(node: Node) -> None:
    """The same: its next pass ends the rest."""

    def is_done() -> bool:
        done = node.railcni("agent", "--once", "--no-collect", "--kubeconfig", "/dev/null")
        assert b"Traceback" not in done.stderr, done.stderr
        return not set(records(node)) - set(of("kept"))

    assert until(is_done, 20), records(node)


def gc(node: Node) -> None:
    """The next call of the network that tells which attachments the runtime still has."""
    listed = [{"containerID": "kept", "ifname": "net1"}]
    node.cni("macvlan", "GC", {**MACVLAN, "cniVersion": "1.1.0", "cni.dev/valid-attachments": listed}).succeeded()


@pytest.mark.parametrize("call", [flush, agent, gc])
def test_what_no_del_came_for_is_ended_by_the_command_the_agent_and_the_networks_gc(
    node: Node, call: Callable[[Node], None]
) -> None:
    node.master()
    attached(node, MACVLAN, "kept")
    for pod in [attached(node, MACVLAN, f"c{i}") for i in range(12)]:
        node.delete_pod(pod)
    call(node)
    assert records(node) == of("kept")
    assert len(node.leases()) == 1


def test_an_add_leaves_to_them_what_no_del_came_for_and_the_pods_next_sandbox_has_its_address(node: Node) -> None:
    """Kubelet repeats a DEL that failed, so a call cannot tell that none will come."""
    node.master()
    of_pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={0};K8S_POD_UID={0}"
    for name in ("one", "two"):
        pod = node.pod(name)
        node.cni("macvlan", "ADD", MACVLAN, container_id=name, netns=pod, args=of_pod.format(name)).succeeded()
    node.delete_pod(pod)
    again = [("c3", "three"), ("c4", "two")]
    had = [
        node.cni("macvlan", "ADD", MACVLAN, container_id=c, netns=node.pod(c), args=of_pod.format(n)).succeeded()
        for c, n in again
    ]
    assert [one["ips"][0]["address"] for one in had] == ["192.168.8.3/24", "192.168.8.2/24"]
    assert "rail:two:net1:link" in records(node)
    flush(node)
    assert records(node) == of("c3", "c4", "one")
    assert node.leases() == ["192.168.8.1", "192.168.8.2", "192.168.8.3"]


def test_a_device_whose_sandbox_has_gone_without_a_del_comes_back(node: Node) -> None:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    node.remember()
    pod = attached(node, {**BASE, "type": "host-device", "device": "ens9"}, "c1")
    node.delete_pod(pod)
    flush(node)
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


@pytest.mark.parametrize("how", [kept_by_a_descriptor, directory_that_is_not_there, path_that_is_a_file])
def test_an_attachment_stays_while_its_sandbox_may_be_there(
    node: Node, how: Callable[[Node, Pod], Callable[[], None]]
) -> None:
    node.master()
    end = how(node, attached(node, MACVLAN, "c1"))
    try:
        flush(node)
        assert records(node) == of("c1")
    finally:
        end()


def test_the_records_of_an_earlier_boot_wait_for_kubelet_and_end_by_the_command(node: Node) -> None:
    node.master()
    attached(node, MACVLAN, "c1")
    store, who = Records(str(node.path(STATE))), Attachment("rail", "c1", "net1")
    for part in ("link", "ipam"):
        store.write(who, part, {**(store.read(who, part) or {}), "bootID": "an earlier one"})
    flush(node)
    assert records(node) == []


def test_an_agent_in_a_container_forgets_macvlans_that_have_gone_and_hold_no_address(node: Node) -> None:
    node.master()
    node.host.add_veth("ens9", "ens9-peer")
    attached(node, {**MACVLAN, "ipam": {}}, "c1")
    attached(node, {**BASE, "type": "host-device", "device": "ens9", "ipam": {}}, "c2")
    attached(node, MACVLAN, "c3")
    attached(node, {**MACVLAN, "ipam": {}}, "kept")
    assert len(records(node)) == 5
    store = Records(str(node.path(STATE)))
    for container in ("c1", "kept"):  # as containerd names them, and the container has /run/netns alone
        who = Attachment("rail", container, "net1")
        store.write(who, "link", {**(store.read(who, "link") or {}), "netns": f"/var/run/netns/{container}"})
    for container in ("c1", "c2", "c3"):
        node.delete_pod(node.pods[container])
    root = "/var/lib/root"
    for folder in (STATE, "/run/netns"):
        node.path(root + folder).mkdir(parents=True)
        node.run(["mount", "--rbind", folder, root + folder]).check_returncode()
    node.path(f"{root}/opt/cni/bin").mkdir(parents=True)
    done = node.railcni(
        *("agent", "--once", "--no-collect", "--kubeconfig", "/dev/null", "--root", root, "--to", "/opt/cni/bin")
    )
    assert b"Traceback" not in done.stderr
    assert records(node) == sorted(["rail:c2:net1:link", *of("c3"), "rail:kept:net1:link"]), done.stderr
