"""What a real kubelet calls, by containerd alone and by thick Multus, whose calls are warm.

RAILCNI_TEST_MULTUS names an executable beside which are `multus-daemon` and `multus-shim`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from cni.cli.warm import described
from tests import warm
from tests.callers import KUBELET, THICK_MULTUS
from tests.containerd import calls, thick
from tests.containerd import runtime as runtimes
from tests.containerd.cluster import Cluster
from tests.containerd.kubelet import Kubelet
from tests.containerd.runtime import MULTUS, PODS, RAILS, Runtime, conflist
from tests.node import Node

pytestmark = [pytest.mark.containerd, pytest.mark.timeout(900)]
if reason := runtimes.missing("RAILCNI_TEST_KUBELET", "RAILCNI_TEST_KUBECONFIG"):
    pytest.skip(reason, allow_module_level=True)
by_thick_multus = pytest.mark.skipif(
    not (MULTUS and thick.DAEMON.exists() and thick.SHIM.exists()),
    reason="RAILCNI_TEST_MULTUS is to name an executable of Multus with multus-daemon and multus-shim beside it",
)


def run(cluster: Cluster, kubelet: Kubelet, names: Sequence[str]) -> None:
    """Wait until the pods run."""
    run = lambda: all(cluster.state(name).phase == "Running" for name in names)  # noqa: E731
    assert kubelet.becomes(run), ([cluster.state(name) for name in names], kubelet.log())


@contextmanager
def node() -> Iterator[Node]:
    with Node(is_warm=True) as made:
        made.master("ens2f0", mtu=9000)
        yield made


def test_the_calls_of_kubelet_are_those_of_the_table() -> None:
    """Of a pod whose sandbox is killed, and which is deleted later."""
    with node() as host:
        recorder = calls.recorder(host, "macvlan")
        with Cluster(host) as cluster, Runtime(host, conflist(), more={"macvlan": recorder}) as runtime:
            with Kubelet(runtime, cluster) as kubelet:
                pod = cluster.pod("one")
                run(cluster, kubelet, ["one"])
                (sandbox,) = runtime.sandboxes()
                os.kill(runtime.pid_of(sandbox), signal.SIGKILL)
                assert kubelet.becomes(lambda: len(calls.recorded(host)) == 3), kubelet.log()
                run(cluster, kubelet, ["one"])
                kubelet.delete("one")
                assert kubelet.becomes(lambda: not runtime.remains()), runtime.remains()
            found = calls.recorded(host)
    uid, namespace = pod.config.metadata.uid, pod.config.metadata.namespace
    assert calls.differing(found, KUBELET, pod="one", uid=uid, namespace=namespace) == []


@by_thick_multus
def test_the_calls_of_thick_multus_are_those_of_the_table_and_nine_of_ten_are_warm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ten pods with four networks, of which nine come up at once, and all ten go down."""
    with node() as host:
        recorder = calls.recorder(host, "macvlan")
        plugins = {"recorder": recorder.with_name("recorder")}
        host.path(str(recorder)).rename(host.path(str(plugins["recorder"])))
        network = conflist(subnet="192.168.190.0/24", name="recorded")
        network["plugins"][0]["type"] = "recorder"
        with thick.running(host, RAILS[0], **plugins) as (cluster, _, kubelet):
            for one in (network, *RAILS[1:]):
                cluster.network(one)
            known = warm.sockets(host)
            pod = cluster.pod("one", "recorded")
            run(cluster, kubelet, ["one"])
            kubelet.delete("one")
            uid, namespace = pod.config.metadata.uid, pod.config.metadata.namespace
            assert calls.differing(calls.recorded(host), THICK_MULTUS, pod="one", uid=uid, namespace=namespace) == []
            warm.wait(host, besides=known)
            before, former = warm.served(host), len(warm.cold(host))
            first, *others = names = [f"pod{number}" for number in range(PODS)]
            for some in ([first], others):
                for name in some:
                    cluster.pod(name, *(one["name"] for one in RAILS[1:]))
                run(cluster, kubelet, some)
            assert len(host.leases()) == PODS * len(RAILS)
            kubelet.delete(*names)
            served, cold = warm.served(host) - before, warm.cold(host)[former:]
    with capsys.disabled():
        print(f"\nthick Multus: {served} of {served + len(cold)} calls warm; cold calls: {described(cold)}")
    assert served + len(cold) >= 2 * PODS * len(RAILS)
    assert len(cold) <= (served + len(cold)) / 10
