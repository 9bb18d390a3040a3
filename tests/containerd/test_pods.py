"""Pods of a real containerd: it calls our executables by a conflist, its containers have the devices of Allocate."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cni.cli.warm import described
from tests import warm
from tests.callers import CONTAINERD, THIN_MULTUS, Caller
from tests.containerd import calls
from tests.containerd import runtime as runtimes
from tests.containerd.runtime import MULTUS, PODS, RAILS, Pod, Runtime, conflist, multus
from tests.device_plugin.scene import SHARED, Scene
from tests.node import Node

pytestmark = [pytest.mark.containerd, pytest.mark.timeout(600)]
if reason := runtimes.missing():
    pytest.skip(reason, allow_module_level=True)

ADDRESSES = ["192.168.111.1", "192.168.111.2"]
RAIL = ["192.168.222.1", "192.168.222.2"]  # of net1, where Multus gives one
KILLS = 5  # of containerd amid a RunPodSandbox

by_multus = pytest.mark.skipif(not MULTUS, reason="RAILCNI_TEST_MULTUS is to name an executable of Multus")


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Node(is_warm=False) as node:
        node.master("ens2f0", mtu=9000)
        with Runtime(node, conflist()) as made:
            yield made


def two_pods(runtime: Runtime) -> list[Pod]:
    pods = [Pod("one"), Pod("two")]
    for pod in pods:
        runtime.run_pod(pod)
    assert runtime.node.leases() == ADDRESSES
    return pods


def whole_mtu_crosses(
    runtime: Runtime, container: str, link: str = "eth0", addresses: Sequence[str] = ADDRESSES
) -> None:
    shown = runtime.run_in(container, "ip", "addr", "show", link)
    assert "mtu 9000" in shown and f"{addresses[0]}/24" in shown
    assert " 0% packet loss" in runtime.run_in(container, "ping", "-c", "2", "-s", "8972", "-I", link, addresses[1])


def test_a_container_has_the_device_nodes_that_Allocate_has_answered_and_another_has_none(runtime: Runtime) -> None:
    """The nodes are null and zero by the names of a verbs device: this kernel need have none."""
    with Scene() as scene:
        scene.machine.nic(0)
        scene.configure({"configList": [scene.share("ens0f0")]})
        scene.kubelet.start()
        scene.start_plugin()
        assert scene.kubelet.until(lambda: scene.kubelet.allocatable(SHARED)), scene.lines
        given = scene.kubelet.allocate("default/one/main", SHARED)
    pods = two_pods(runtime)
    has, lacks = runtime.container(pods[0], given), runtime.container(pods[1])
    assert runtime.run_in(has, "ls", "/dev/infiniband").split() == ["rdma_cm", "uverbs0"]
    assert runtime.run_in(has, "stat", "-c", "%t:%T", "/dev/infiniband/uverbs0").strip() == "1:3"
    assert runtime.run_in(has, "sh", "-c", "echo opened > /dev/infiniband/uverbs0 && echo yes").strip() == "yes"
    assert runtime.run_in(lacks, "sh", "-c", "ls /dev/infiniband 2>/dev/null || echo none").strip() == "none"
    for pod in pods:
        runtime.end_pod(pod.id)
    assert runtime.remains() == []


def test_pods_with_the_whole_mtu_live_on_while_containerd_is_killed_and_are_removed_twice(runtime: Runtime) -> None:
    pods = two_pods(runtime)
    container = runtime.container(pods[0])
    runtime.kill_containerd()
    runtime.start_containerd()
    assert set(runtime.sandboxes().values()) == {True}
    whole_mtu_crosses(runtime, container)
    for pod in pods:
        runtime.end_pod(pod.id, times=2)
    assert runtime.remains() == []


def test_a_pod_whose_sandbox_was_cut_off_by_a_kill_of_containerd_gets_its_address_and_leaves_none(
    runtime: Runtime,
) -> None:
    """kubelet removes the sandboxes that containerd knows and asks for another one. Of a sandbox that it did not come to
    write down, containerd 1.6 itself leaves task, shim and namespace, and never asks for a DEL: what counts here is ours."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    pod = Pod("one")
    for _ in range(KILLS):
        future = runtime.begin_pod(pod)
        time.sleep(dice.uniform(0, 0.4))
        runtime.kill_containerd()
        future.cancel()
        runtime.start_containerd()
        for sandbox in runtime.sandboxes():
            runtime.end_pod(sandbox)
        pod.again()
    runtime.run_pod(pod)
    assert runtime.node.leases() == [ADDRESSES[0]], seed
    runtime.end_pod(pod.id)
    assert runtime.node.leftovers(settle=5) == [], seed


def test_after_a_reboot_the_pods_of_the_former_boot_are_removed_without_a_rest(runtime: Runtime) -> None:
    pods = two_pods(runtime)
    runtime.reboot()
    assert set(runtime.sandboxes().values()) == {False}
    one = pods[0]
    former = one.id
    one.again()
    runtime.run_pod(one)
    assert runtime.node.leases() == ADDRESSES  # its own again, as the same pod's
    for sandbox in (former, one.id, pods[1].id):
        runtime.end_pod(sandbox)
    assert runtime.remains() == []


@pytest.mark.parametrize("way", [pytest.param("containerd"), pytest.param("thin Multus", marks=by_multus)])
def test_once_workers_are_there_nine_of_ten_calls_of_ten_pods_with_four_networks_are_warm(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In containerd's default configuration, with the variables of its unit. The pods come up and go down at once.

    On a loaded machine a call may wait in vain for a busy worker: the tenth.
    """
    with Node(is_warm=True) as node:
        node.master("ens2f0", mtu=9000)
        networks = RAILS if way == "containerd" else [multus(*RAILS)]
        with Runtime(node, *networks, more={"multus": Path(MULTUS)} if MULTUS else None) as runtime:
            first, *others = [Pod(f"pod{number}") for number in range(PODS)]
            known = warm.sockets(node)
            runtime.run_pod(first)
            warm.wait(node, besides=known)
            before = len(warm.cold(node))
            for pod, answer in [(pod, runtime.begin_pod(pod)) for pod in others]:
                pod.id = answer.result().pod_sandbox_id
            assert len(node.leases()) == PODS * len(RAILS)
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda pod: runtime.end_pod(pod.id), [first, *others]))
            served, cold = warm.served(node), warm.cold(node)[before:]
            with capsys.disabled():
                print(f"\n{way}: {served} of {served + len(cold)} calls warm; cold calls: {described(cold)}")
            assert runtime.remains() == []
        assert served + len(cold) >= (2 * PODS - 1) * len(RAILS)
        assert len(cold) <= (served + len(cold)) / 10 and set(cold) <= {"b", "s"}


@pytest.mark.parametrize(
    "caller", [CONTAINERD, pytest.param(THIN_MULTUS, marks=by_multus)], ids=["containerd", "thin Multus"]
)
def test_the_variables_arguments_and_order_of_real_calls_are_those_of_the_table(caller: Caller) -> None:
    with Node(is_warm=False) as node:
        node.master("ens2f0", mtu=9000)
        more = {"macvlan": calls.recorder(node, "macvlan")} | ({"multus": Path(MULTUS)} if MULTUS else {})
        with Runtime(node, conflist() if caller is CONTAINERD else multus(conflist()), more=more) as runtime:
            pod = Pod("one")
            runtime.run_pod(pod)
            runtime.end_pod(pod.id)
            found = calls.recorded(node)
        of_first = dataclasses.replace(caller, ifname="eth0")
        assert calls.differing(found, of_first, pod="one", uid=pod.config.metadata.uid) == []
