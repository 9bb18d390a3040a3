"""A real kubelet beside the containerd of a tests.containerd.runtime.Runtime: the node is one of the API server's, and kubelet
runs the pods that are bound to it.

RAILCNI_TEST_KUBELET names the executable. It lives in the runtime's namespaces and ends with them, however the test ends; what
it mounts and makes below /var/lib and /var/log is the node's alone. The machine's sysctls are not changed: kubelet wants some
to have its own values, and sees files with these in their place.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
from lightkube.resources.core_v1 import Node as NodeObject

from cni.cli.devices import FOLDER, PODS
from cni.resources.kubelet import pod_resources_v1_pb2 as api
from tests.containerd.cluster import Cluster
from tests.containerd.runtime import SECONDS, SOCKET, TOP, Runtime, children
from tests.node import until
from tests.proxy import Proxy

KUBELET = os.environ.get("RAILCNI_TEST_KUBELET", "")
_LOG = f"{TOP}/kubelet.log"
_FILE = f"{TOP}/kubelet.json"
_ADDRESS = "192.0.2.1"  # of the node, which kubelet wants to have one
_SYSCTLS = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000, "kernel/keys/root_maxbytes": 25_000_000,
}  # fmt: skip
_CONFIG = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
    "containerRuntimeEndpoint": f"unix://{SOCKET}", "cgroupDriver": "cgroupfs", "cgroupRoot": "/pods",
    "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failCgroupV1": False, "protectKernelDefaults": True,
    "makeIPTablesUtilChains": False, "failSwapOn": False, "resolvConf": "",
    "volumePluginDir": "/var/lib/kubelet/volume-plugins", "address": "127.0.0.1",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"}, "healthzPort": 0, "oomScoreAdj": 0,
    "localStorageCapacityIsolation": False, "imageGCHighThresholdPercent": 100,
    "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
    "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "1s",
    "registerWithTaints": [{"key": "railcni-test", "effect": "NoSchedule"}],
}  # fmt: skip


class Kubelet:
    """`with Kubelet(runtime, cluster) as kubelet`: the node is `cluster.node`."""

    def __init__(self, runtime: Runtime, cluster: Cluster) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
        # The API server has `exec` and `logs` here, at the port that kubelet has in the node.
        there = self._runtime.node
        self._proxy = Proxy(
            0, connect=lambda target: there._there.call_in(there.host.path, socket.create_connection, target)
        )
        self._proxy.target = ("127.0.0.1", self._proxy.port)

    def __enter__(self) -> Kubelet:
        node = self._runtime.node
        self._proxy.__enter__()
        node.path(_FILE).write_text(json.dumps(_CONFIG | {"port": self._proxy.port}))
        for name, value in _SYSCTLS.items():
            held = f"{TOP}/sysctl-{name.replace('/', '-')}"
            node.path(held).write_text(f"{value}\n")
            self._runtime.enter(["mount", "--bind", held, f"/proc/sys/{name}"])
        self._runtime.enter(["ip", "address", "add", f"{_ADDRESS}/32", "dev", "lo"])
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._proxy.__exit__()
        self._cluster.delete_node()

    def start(self) -> None:
        """Start it, and wait until it listens for device plugins."""
        words = [
            *(KUBELET, f"--config={_FILE}", f"--kubeconfig={self._cluster.kubeconfig}"),
            *(f"--hostname-override={self._cluster.node}", f"--node-ip={_ADDRESS}"),
            "--cloud-provider=external",  # which is the test: kubelet lets the addresses be that it notes
        ]
        before = self._identity()
        with self._runtime.node.path(_LOG).open("ab") as log:
            self._process = self._runtime.start(words, log)
        assert until(lambda: self._ended() or self._identity() not in (None, before), SECONDS), self.log()
        assert not self._ended(), self.log()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it by a signal; pods go on."""
        process, self._process = self._process, None
        if process is None:
            return
        for pid in children(process.pid):
            os.kill(pid, number)
        process.wait(SECONDS)

    def serve(self) -> None:
        """Have the API server reach kubelet, on a loopback that it shares with this process."""
        assert self.becomes(self._cluster.allocatable), self.log()
        addresses = [{"type": "Hostname", "address": "127.0.0.1"}, {"type": "InternalIP", "address": _ADDRESS}]
        self._cluster.client.patch(NodeObject.Status, self._cluster.node, {"status": {"addresses": addresses}})

    def log(self) -> str:
        """The end of what it said."""
        return self._runtime.node.path(_LOG).read_text(errors="replace")[-6000:]

    def allocatable(self, resource: str) -> int:
        """How many of the resource pods can have, as kubelet tells the API server."""
        return int(self._cluster.allocatable().get(resource, 0))

    def numbers(self) -> dict[str, int]:
        """How many of each resource kubelet itself counts as healthy."""
        answer = self._ask(
            "GetAllocatableResources", api.AllocatableResourcesRequest(), api.AllocatableResourcesResponse
        )
        return dict(Counter(one.resource_name for one in answer.devices for _ in one.device_ids))

    def devices(self, pod: str) -> dict[str, list[str]]:
        """What kubelet has given to the pod: IDs by resource."""
        answer = self._ask("List", api.ListPodResourcesRequest(), api.ListPodResourcesResponse)
        mine = [one for one in answer.pod_resources if (one.namespace, one.name) == (self._cluster.namespace, pod)]
        devices = [device for one in mine for container in one.containers for device in container.devices]
        return {
            name: sorted(one for device in devices if device.resource_name == name for one in device.device_ids)
            for name in {device.resource_name for device in devices}
        }

    def _ask(self, method: str, request: Any, answer: Any) -> Any:
        """Ask kubelet's pod resources; an empty answer while it does not listen."""
        with grpc.insecure_channel(f"unix:{self._runtime.node.root}{PODS}") as channel:
            ask = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            try:
                return ask(request, timeout=SECONDS)
            except grpc.RpcError:
                time.sleep(0.05)
                return answer()

    def becomes(self, condition: Callable[[], object]) -> bool:
        """Whether the condition came true, which asks the API server."""

        def asked() -> bool:
            time.sleep(0.1)
            return bool(condition())

        return until(asked, SECONDS)

    def runs(self, name: str) -> str:
        """Wait until the pod runs; the ID of its container."""
        if not self.becomes(lambda: self._cluster.state(name).phase == "Running"):
            raise AssertionError((self._cluster.state(name), self.log()))
        return self._cluster.container(name)

    def delete(self, *names: str) -> None:
        """Delete pods, and wait until all have ended."""
        for name in names:
            self._cluster.delete(name, grace_period=None)
        for name in names:
            assert self.becomes(lambda name=name: self._cluster.state(name) is None), self.log()

    def has(self, wanted: Mapping[str, int]) -> bool:
        """Whether so many of each resource are allocatable, or get to be."""
        return self.becomes(lambda: all(self.allocatable(name) == number for name, number in wanted.items()))

    def _identity(self) -> Any:
        """What is another after each start; None while it does not listen."""
        try:
            status = Path(f"{self._runtime.node.root}{FOLDER}/kubelet.sock").stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None
