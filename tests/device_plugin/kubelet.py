"""kubelet's device manager, made for tests: it registers, lists and allocates as kubelet does, over the same sockets.

As in pkg/kubelet/cm/devicemanager of Kubernetes: a start removes the sockets in the folder and knows of the checkpoint;
a registration is answered after GetDevicePluginOptions, for which kubelet waits 10 s until the plugin's socket is there;
the list of the last plugin that says something counts; when a connection ends, all devices of the resource are
unhealthy, whoever sent them. Before 1.37 (kubernetes/kubernetes#135437) the connections were known by the name of the
resource alone (`by_path` False), so that the end of an old one closed the new one.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

from cni.resources.kubelet import device_plugin_v1beta1_pb2 as api
from cni.resources.kubelet import pod_resources_v1_pb2 as pods
from cni.resources.kubelet import services

SECONDS = 60.0  # for anything to come true, on however slow a machine
DEVICE_PLUGIN = api.DESCRIPTOR.services_by_name["DevicePlugin"]
REGISTRATION = api.DESCRIPTOR.services_by_name["Registration"]
LISTER = pods.DESCRIPTOR.services_by_name["PodResourcesLister"]
DIAL_SECONDS = 10.0  # in which a plugin's socket has to be there
VERSIONS = ("v1beta1",)
CHECKPOINT = "kubelet_internal_checkpoint"


@dataclass
class Known:
    """A resource as kubelet knows it."""

    devices: dict[str, Any] = field(default_factory=dict)
    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    lists: int = 0


class Client:
    """A connection to a plugin."""

    def __init__(self, kubelet: Kubelet, name: str, endpoint: str, context: Any) -> None:
        self.kubelet = kubelet
        self.name = name
        self.path = str(kubelet.folder / endpoint)
        self.channel = grpc.insecure_channel(f"unix:{self.path}")
        self.stub = services.client(DEVICE_PLUGIN, self.channel)
        call = self.stub.GetDevicePluginOptions.future(api.Empty(), timeout=DIAL_SECONDS, wait_for_ready=True)
        context.add_callback(call.cancel)  # for a plugin that waits no longer
        self.options = call.result()
        self.stream: Any = None

    def run(self) -> None:
        self.stream = self.stub.ListAndWatch(api.Empty())
        try:
            for answer in self.stream:
                self.kubelet.receive(self.name, answer)
        except grpc.RpcError:
            pass
        self.kubelet.ended(self)

    def close(self) -> None:
        if self.stream is not None:
            self.stream.cancel()
        self.channel.close()


class Manager:
    """A part of kubelet, which works in threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[str] = []  # names of plugins, as often as each was
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition(threading.RLock())

    def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> bool:
        """Whether the condition came true, looked at whenever a plugin says something."""
        with self._changed:
            return bool(self._changed.wait_for(condition, seconds))

    def _run(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join(self) -> None:
        with self._changed:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(SECONDS)


class Kubelet(Manager):
    """kubelet with its sockets in `folder` and at `pods`; start it, restart it, kill it."""

    def __init__(self, folder: Path, pods: Path, by_path: bool = True) -> None:
        super().__init__(folder)
        self.pods = pods
        self.by_path = by_path
        self.versions = VERSIONS
        self.resources: dict[str, Known] = {}
        self.pod_devices: dict[str, dict[str, list[str]]] = {}  # of a container: IDs by resource
        self.missed: list[str] = []  # sockets that were registered and are not there
        self.asked = 0  # how often it was asked what it has
        self._clients: list[Client] = []
        self._servers: list[grpc.Server] = []
        self._stopping = False
        self._busy = False

    # --- what a test does ---

    def start(self, busy: bool = False) -> None:
        """Begin to say what there is, and then to listen for plugins. A `busy` one is asked what there is before it
        listens, and answers then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pods.parent.mkdir(parents=True, exist_ok=True)
        self.pods.unlink(missing_ok=True)
        self._stopping, self._busy = False, busy
        self._read_checkpoint()
        lister = grpc.server(ThreadPoolExecutor(16))
        services.serve(LISTER, lister, self)
        lister.add_insecure_port(f"unix:{self.pods}")
        asked = self.asked
        lister.start()
        self._servers = [lister]
        assert not busy or self.until(lambda: self.asked > asked)
        for path in self.folder.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self._listen()
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _listen(self) -> None:
        server = grpc.server(ThreadPoolExecutor(16))
        services.serve(REGISTRATION, server, self)
        server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        server.start()
        self._servers.append(server)

    def stop(self, killed: bool = False) -> None:
        """End; one that is killed leaves its sockets behind, where nobody listens."""
        self._stopping = True
        while self._servers:
            self._servers.pop().stop(None).wait()
        if killed:
            for path in (self.pods, self.folder / "kubelet.sock"):
                _dead_socket(path)
        with self._changed:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()
        self._join()

    def restart(self, killed: bool = False) -> None:
        self.stop(killed)
        self.start()

    def listen_anew(self) -> None:
        """Make the socket again and go on with the connections that there are, as after an error of the socket."""
        (self.folder / "kubelet.sock").unlink()
        self._listen()

    def allocatable(self, name: str) -> int:
        with self._changed:
            return len(self.resources[name].healthy) if name in self.resources else 0

    def capacity(self, name: str) -> int:
        with self._changed:
            known = self.resources.get(name, Known())
            return len(known.healthy) + len(known.unhealthy)

    def free(self, name: str) -> list[str]:
        used = {one for devices in self.pod_devices.values() for one in devices.get(name, ())}
        return sorted(self.resources[name].healthy - used)

    def allocate(self, container: str, name: str, count: int = 1, ids: Sequence[str] = ()) -> Any:
        """What a container gets with `count` devices, or with `ids`; grpc.RpcError."""
        client = self._client(name)
        if not ids:
            request = api.PreferredAllocationRequest()
            request.container_requests.add(available_deviceIDs=self.free(name), allocation_size=count)
            answer = client.stub.GetPreferredAllocation(request, timeout=SECONDS)
            ids = answer.container_responses[0].deviceIDs
            assert len(ids) == count, (list(ids), count)
        asked = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])
        (given,) = client.stub.Allocate(asked, timeout=SECONDS).container_responses
        with self._changed:
            self.pod_devices.setdefault(container, {})[name] = list(ids)
            self._write_checkpoint()
        return given

    def _client(self, name: str) -> Client:
        with self._changed:
            return next(client for client in reversed(self._clients) if client.name == name)

    # --- what plugins call ---

    def Register(self, request: Any, context: Any) -> Any:
        if request.version not in self.versions:
            text = f"requested API version {request.version!r} is not supported by kubelet. Supported version is {self.versions}"
            context.abort(grpc.StatusCode.UNKNOWN, text)
        domain, slash, _ = request.resource_name.partition("/")
        if not slash or "kubernetes.io" in domain:
            context.abort(grpc.StatusCode.UNKNOWN, f"the ResourceName {request.resource_name!r} is invalid")
        if not (self.folder / request.endpoint).exists():
            self.missed.append(request.endpoint)
        try:
            client = Client(self, request.resource_name, request.endpoint, context)
        except (grpc.RpcError, grpc.FutureCancelledError) as fault:
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to get device plugin options: {fault}")
        with self._changed:
            if self._stopping:
                context.abort(grpc.StatusCode.UNAVAILABLE, "kubelet ends")
            self._clients.append(client)
            self.registered.append(request.resource_name)
            self._run(client.run)
            self._changed.notify_all()
        return api.Empty()

    def GetAllocatableResources(self, request: Any, context: Any) -> Any:
        with self._changed:
            self.asked += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy, SECONDS)
            listed = [
                pods.ContainerDevices(resource_name=name, device_ids=[one])
                for name, known in self.resources.items()
                for one in known.healthy
            ]
        return pods.AllocatableResourcesResponse(devices=listed)

    def List(self, request: Any, context: Any) -> Any:
        """The devices of containers whose name is NAMESPACE/POD/CONTAINER."""
        answer = pods.ListPodResourcesResponse()
        with self._changed:
            for container, devices in self.pod_devices.items():
                namespace, pod, name = container.split("/")
                holder = answer.pod_resources.add(namespace=namespace, name=pod).containers.add(name=name)
                for resource, ids in devices.items():
                    holder.devices.add(resource_name=resource, device_ids=ids)
        return answer

    def receive(self, name: str, answer: Any) -> None:
        with self._changed:
            known = self.resources.setdefault(name, Known())
            known.devices = {device.ID: device for device in answer.devices}
            known.healthy = {d.ID for d in answer.devices if d.health == "Healthy"}
            known.unhealthy = {d.ID for d in answer.devices if d.health != "Healthy"}
            known.lists += 1
            self._write_checkpoint()
            self._changed.notify_all()

    def ended(self, client: Client) -> None:
        """A stream has ended: kubelet disconnects the client that it finds by the path, or by the name alone."""
        with self._changed:
            key = (lambda c: c.path == client.path) if self.by_path else (lambda c: True)
            found = next((c for c in reversed(self._clients) if c.name == client.name and key(c)), None)
            if found is None or self._stopping:
                return
            self._clients.remove(found)
            if client.name in self.resources:
                known = self.resources[client.name]
                known.unhealthy |= known.healthy
                known.healthy = set()
            self._changed.notify_all()
        found.close()

    # --- the checkpoint ---

    def _write_checkpoint(self) -> None:
        registered = {name: sorted(known.healthy) for name, known in self.resources.items()}
        data = {"PodDeviceEntries": self.pod_devices, "RegisteredDevices": registered}
        new = self.folder / f".{CHECKPOINT}.new"
        new.write_text(json.dumps({"Data": data, "Checksum": 0}))
        os.replace(new, self.folder / CHECKPOINT)

    def _read_checkpoint(self) -> None:
        """After a start a resource is known without any device, and the allocations are."""
        path = self.folder / CHECKPOINT
        data = (
            json.loads(path.read_text())["Data"] if path.exists() else {"PodDeviceEntries": {}, "RegisteredDevices": {}}
        )
        self.pod_devices = data["PodDeviceEntries"]
        self.resources = {name: Known() for name in data["RegisteredDevices"]}


def _dead_socket(path: Path) -> None:
    import socket

    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))


class Other:
    """Another project's device plugin, in a `with`: it registers once, and sends its list once."""

    def __init__(self, kubelet: Kubelet, name: str, ids: Sequence[str]) -> None:
        self._list = api.ListAndWatchResponse(devices=[api.Device(ID=one, health="Healthy") for one in ids])
        self._ended = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        services.serve(DEVICE_PLUGIN, self._server, self)
        self._server.add_insecure_port(f"unix:{kubelet.folder / 'other.sock'}")
        self._server.start()
        with grpc.insecure_channel(f"unix:{kubelet.folder / 'kubelet.sock'}") as channel:
            request = api.RegisterRequest(version="v1beta1", endpoint="other.sock", resource_name=name)
            services.client(REGISTRATION, channel).Register(request, timeout=SECONDS)

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return api.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Any:
        yield self._list
        self._ended.wait()

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._server.stop(None).wait()
