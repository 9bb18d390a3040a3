"""kubelet's DRA manager, made for tests: it finds, registers and calls drivers as kubelet does, over the same sockets.

As in pkg/kubelet/pluginmanager and pkg/kubelet/cm/dra of Kubernetes: it calls GetInfo on each new socket in plugins_registry,
connects to the endpoint of the answer, and calls NotifyRegistrationStatus. It prepares a claim when a pod needs the claim. After
a restart it prepares again, because its checkpoint does not say which claims are prepared. A start deletes the node's slices.
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

from cni.resources.kubelet import dra_health_v1_pb2 as health
from cni.resources.kubelet import dra_v1_pb2 as api
from cni.resources.kubelet import plugin_registration_v1_pb2 as registration
from cni.resources.kubelet import services
from tests.device_plugin.kubelet import SECONDS, Manager

REGISTRATION = registration.DESCRIPTOR.services_by_name["Registration"]
PLUGIN = api.DESCRIPTOR.services_by_name["DRAPlugin"]
HEALTH = health.DESCRIPTOR.services_by_name["DRAResourceHealth"]
CHECKPOINT = "dra_manager_state"


class Refused(Exception):
    """The driver does not prepare a claim."""


class Kubelet(Manager):
    """kubelet with its folders in `folder`. `wipe` deletes the node's slices."""

    def __init__(self, folder: Path, wipe: Callable[[], object]) -> None:
        super().__init__(folder)
        self.registry = folder / "plugins_registry"
        self.registry.mkdir(parents=True)
        (folder / "plugins").mkdir()
        self.claims: dict[str, dict[str, str]] = {}  # the checkpoint: namespace and name by UID
        self.refuses = ""  # why no driver is registered
        self.health: dict[str, tuple[bool, str]] = {}  # of devices: whether they are well, and the message
        self._wipe = wipe
        self._plugins: dict[str, tuple[str, grpc.Channel]] = {}  # by socket: endpoint, connection
        self._known: dict[str, tuple[int, int]] = {}  # marks of the sockets that were asked
        self._stopping = threading.Event()

    def start(self) -> None:
        self._wipe()
        checkpoint = self.folder / CHECKPOINT
        self.claims = json.loads(checkpoint.read_text()) if checkpoint.exists() else {}
        self._stopping = threading.Event()
        self._run(self._watch, self._stopping)

    def stop(self) -> None:
        self._stopping.set()
        with self._changed:
            for _, channel in self._plugins.values():
                channel.close()
            self._plugins.clear()
            self._known.clear()
        self._join()

    def restart(self) -> None:
        self.stop()
        self.start()

    def prepare(self, *claims: tuple[str, str, str]) -> list[list[Any]]:
        """The devices of each claim (uid, namespace, name); Refused."""
        with self._changed:
            self.claims |= {uid: {"namespace": namespace, "name": name} for uid, namespace, name in claims}
            (self.folder / CHECKPOINT).write_text(json.dumps(self.claims))
        request = api.NodePrepareResourcesRequest(claims=[_claim(*claim) for claim in claims])
        answer = self._stub(PLUGIN).NodePrepareResources(request, timeout=SECONDS).claims
        if faults := [answer[uid].error for uid, _, _ in claims if answer[uid].error]:
            raise Refused("; ".join(faults))
        return [list(answer[uid].devices) for uid, _, _ in claims]

    def unprepare(self, *claims: tuple[str, str, str]) -> None:
        request = api.NodeUnprepareResourcesRequest(claims=[_claim(*claim) for claim in claims])
        answer = self._stub(PLUGIN).NodeUnprepareResources(request, timeout=SECONDS).claims
        assert {uid: answer[uid].error for uid, _, _ in claims} == {uid: "" for uid, _, _ in claims}
        with self._changed:
            self.claims = {uid: claim for uid, claim in self.claims.items() if uid not in {c[0] for c in claims}}
            (self.folder / CHECKPOINT).write_text(json.dumps(self.claims))

    def _stub(self, service: Any) -> Any:
        assert self.until(lambda: self._plugins)
        with self._changed:
            ((_, channel),) = self._plugins.values()
        return services.client(service, channel)

    def _watch(self, stopping: threading.Event) -> None:
        """Ask the sockets that are new, and forget those that have gone; in place of inotify."""
        while not stopping.wait(0.02):
            there = {str(path): _mark(path) for path in self.registry.glob("*.sock") if path.exists()}
            with self._changed:
                for path in [path for path, mark in self._known.items() if there.get(path) != mark]:
                    del self._known[path]
                    if plugin := self._plugins.pop(path, None):
                        plugin[1].close()
                    self._changed.notify_all()
                for path, mark in there.items():
                    if path not in self._known and self._register(path):
                        self._known[path] = mark
                        self._changed.notify_all()

    def _register(self, path: str) -> bool:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = services.client(REGISTRATION, channel)
            try:
                info = stub.GetInfo(registration.InfoRequest(), timeout=SECONDS)
                assert info.type == "DRAPlugin" and "v1.DRAPlugin" in info.supported_versions, info
                status = registration.RegistrationStatus(plugin_registered=not self.refuses, error=self.refuses)
                if not self.refuses:
                    self._plugins[path] = info.endpoint, grpc.insecure_channel(f"unix:{info.endpoint}")
                    for version in info.supported_versions:
                        if version.endswith(".DRAResourceHealth"):
                            self._run(self._listen, self._plugins[path][1], version)
                            break
                stub.NotifyRegistrationStatus(status, timeout=SECONDS)
            except grpc.RpcError:
                return False
        self.registered.append(info.name)
        return True

    def _listen(self, channel: grpc.Channel, service: str) -> None:
        watch = channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )
        try:
            for answer in watch(health.NodeWatchResourcesRequest()):
                with self._changed:
                    self.health = {
                        one.device.device_name: (one.health == health.HEALTHY, one.message) for one in answer.devices
                    }
                    self._changed.notify_all()
        except (grpc.RpcError, ValueError):
            pass


def _mark(path: Path) -> tuple[int, int]:
    """What tells a socket from a later one of the same name, which may get its inode."""
    status = path.stat()
    return status.st_ino, status.st_ctime_ns


def _claim(uid: str, namespace: str, name: str) -> Any:
    return api.Claim(uid=uid, namespace=namespace, name=name)


def result(device: str, pool: str = "node-1", request: str = "nic", share: str = "") -> dict[str, Any]:
    """A device that is allocated to a claim."""
    own = {"driver": "railcni.io", "pool": pool, "device": device, "request": request}
    return own | ({"shareID": share} if share else {})


def edits(folder: Path, ids: Sequence[str]) -> dict[str, list[Any]]:
    """What the runtime makes of CDI device IDs by the specifications in `folder`: paths of nodes, and variables."""
    found: dict[str, list[Any]] = {"nodes": [], "env": []}
    by_id = {}
    for path in folder.glob("*.json"):
        document = json.loads(path.read_text())
        for device in document["devices"]:
            by_id[f"{document['kind']}={device['name']}"] = device["containerEdits"]
    for one in ids:
        found["nodes"] += [node["hostPath"] for node in by_id[one].get("deviceNodes", ())]
        found["env"] += by_id[one].get("env", ())
    return found
