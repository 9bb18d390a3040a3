"""A node of a real API server, scheduler and kubelet with a real containerd, the driver, and a driver of GPUs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice

from cni.resources.kubelet import dra_v1_pb2 as api
from cni.resources.kubelet import plugin_registration_v1_pb2 as registration
from cni.resources.kubelet import services
from cni.resources.models import label as label_of
from tests.blackbox.test_host_device import bus
from tests.containerd.cluster import Cluster
from tests.containerd.kubelet import Kubelet
from tests.containerd.runtime import MULTUS, SECONDS, Runtime, conflist, multus
from tests.device_plugin.scene import Scene
from tests.dra.kubelet import PLUGIN, REGISTRATION
from tests.node import Node, railcni, until

FOLDER = "/var/lib/kubelet"
GPU = "gpu.example.com"
RAILS = 8 if MULTUS else 0  # NICs of a resource of their own, by Multus
FIRST = 10  # the number of the first of them: ens10f0


class Driver(Scene):
    """`railcni dra run` with the folders of a real kubelet."""

    def __init__(self, cluster: Cluster, inside: list[str]) -> None:
        super().__init__(inside=inside)
        self._cluster = cluster

    def arguments(self, *more: str) -> list[str]:
        return [
            *("dra", "run", f"--config={self.config}", f"--root={self.root}", f"--node={self._cluster.node}"),
            *(f"--kubeconfig={self._cluster.kubeconfig}", "--listen=127.0.0.1:0", *more),
        ]


class Gpus:
    """A driver of GPUs, which gives a container nothing; its slice is the test's."""

    def GetInfo(self, request: Any, context: Any) -> Any:
        return registration.PluginInfo(
            type="DRAPlugin", name=GPU, endpoint=f"{FOLDER}/plugins/{GPU}.sock", supported_versions=["v1.DRAPlugin"]
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        return registration.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, context: Any) -> Any:
        return api.NodePrepareResourcesResponse(
            claims={one.uid: api.NodePrepareResourceResponse() for one in request.claims}
        )

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        return api.NodeUnprepareResourcesResponse(
            claims={one.uid: api.NodeUnprepareResourceResponse() for one in request.claims}
        )


@dataclass
class World:
    """The node, its kubelet, the driver; `nics` are the names of its devices, `classes` those of the DeviceClasses."""

    cluster: Cluster
    runtime: Runtime
    kubelet: Kubelet
    driver: Driver
    resource: str
    nics: list[str]
    classes: dict[str, str]

    def on(self, netdev: str, kind: str = "nic") -> dict[str, Any]:
        """A request for the NIC of the netdev."""
        expression = f'device.attributes["railcni.io"].ifName == "{netdev}"'
        return {"deviceClassName": self.classes[kind], "selectors": [{"cel": {"expression": expression}}]}

    def rails(self, name: str, order: Sequence[int]) -> None:
        """Make a ResourceClaimTemplate for the NICs of these rails."""
        netdevs = [f"ens{FIRST + rail}f0" for rail in order]
        requests = [{"name": f"r{n}", "exactly": self.on(netdev, "rail")} for n, netdev in enumerate(netdevs)]
        template = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}
        self.cluster.client.create(ResourceClaimTemplate.from_dict(template))

    def claim(self, name: str, requests: Mapping[str, Mapping[str, Any]], same: str = "") -> None:
        """Make a ResourceClaim; `same` is an attribute whose value all its devices have in common."""
        devices: dict[str, Any] = {"requests": [{"name": key, "exactly": {**one}} for key, one in requests.items()]}
        if same:
            devices["constraints"] = [{"matchAttribute": same}]
        self.cluster.client.create(ResourceClaim.from_dict({"metadata": {"name": name}, "spec": {"devices": devices}}))

    def pod(self, name: str, devices: Mapping[str, int] | None = None) -> None:
        """Make a pod, for the scheduler: with the claim of its name, or with devices."""
        self.cluster.pod(name, devices=devices, claim="" if devices else name, scheduler=True)

    def gpu(self, root: str) -> None:
        """Have one GPU, below this PCIe root."""
        device = {"name": "gpu-0", "attributes": {"resource.kubernetes.io/pcieRoot": {"string": root}}}
        pool = {"name": self.cluster.node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": GPU, "nodeName": self.cluster.node, "pool": pool, "devices": [device]}
        self.no_gpu()
        self.cluster.client.create(ResourceSlice.from_dict({"metadata": {"name": self.classes["gpu"]}, "spec": spec}))

    def no_gpu(self) -> None:
        try:
            self.cluster.client.delete(ResourceSlice, self.classes["gpu"])
        except ApiError as error:
            assert error.status.code == 404

    def allocated(self, name: str) -> list[str]:
        """The devices of a claim."""
        claim = self.cluster.client.get(ResourceClaim, name)
        assert claim.status and claim.status.allocation and claim.status.allocation.devices
        return sorted(one.device for one in claim.status.allocation.devices.results or ())

    def waits(self, name: str) -> str:
        """Why the scheduler has no node for the pod, yet."""
        return " ".join(one.message or "" for one in self.cluster.state(name).conditions or ())

    def end(self, *names: str, left: int = 0) -> None:
        """Delete pods, and the claims of their names; files of so many claims are left then."""
        self.kubelet.delete(*names)
        for name in names:
            try:
                self.cluster.client.delete(ResourceClaim, name)
            except ApiError as error:
                assert error.status.code == 404  # of an extended resource, whose claim was the pod's
        assert until(lambda: len(self.left()) == 2 * left, SECONDS), self.left()

    def left(self) -> list[str]:
        """The files of claims that there are: of each a record, and a specification."""
        folders = (self.runtime.node.path(f"{FOLDER}/plugins/railcni.io/claims"), self.driver.root / "var/run/cdi")
        return sorted(path.name for folder in folders if folder.exists() for path in folder.iterdir())

    def published(self) -> list[str]:
        """The names of the devices in the node's pool."""
        fields = {"spec.nodeName": self.cluster.node, "spec.driver": "railcni.io"}
        found = list(self.cluster.client.list(ResourceSlice, fields=fields))
        return sorted(device.name for one in found for device in one.spec.devices or ())


@contextmanager
def running() -> Iterator[World]:
    """The world with two NICs that pods share, below PCIe roots of their own; with Multus eight more, which are rails."""
    with Node(is_warm=False) as node:
        node.master("ens2f0", mtu=9000)
        for number in range(FIRST, FIRST + RAILS):
            node.master(f"ens{number}f0", mtu=9000)
            bus(node, "pci", f"0000:{0x30 + number:02x}:00.0", f"ens{number}f0")
        node.remember()
        # The driver sees what a container of the DaemonSet sees: kubelet's folders at their places.
        inside = ["nsenter", f"--target={node.holder}", "--mount", "--net", "--", "setpriv", "--pdeathsig=KILL"]
        with (
            Cluster(node) as cluster,
            Driver(cluster, inside) as driver,
            Runtime(
                node,
                multus(conflist(), kubeconfig=cluster.kubeconfig) if MULTUS else conflist(),
                more={"multus": Path(MULTUS)} if MULTUS else {},
            ) as runtime,
        ):
            assert isinstance(driver, Driver)
            (driver.root / "var/run/cdi").mkdir(parents=True)
            runtime.enter(["mkdir", "/run/cdi"])
            runtime.enter(["mount", "--bind", str(driver.root / "var/run/cdi"), "/run/cdi"])
            rails = range(FIRST, FIRST + RAILS)
            for number in (1, *rails):
                runtime.enter(["mknod", "-m", "666", f"/dev/infiniband/uverbs{number}", "c", "1", "5"])
            addresses = [driver.machine.nic(number) for number in (0, 1, *rails)]
            resource = f"rdma/{cluster.namespace}"
            shares = [driver.share("ens0f0", "ens1f0", name=cluster.namespace)]
            if rails:
                shares.append(driver.share(*(f"ens{n}f0" for n in rails), name=f"{cluster.namespace}-rail"))
            driver.configure({"configList": shares})
            made = railcni("dra", "classes", f"--config={driver.config}", env=os.environ)
            nic, *more = yaml.safe_load_all(made.stdout)
            selectors = [{"cel": {"expression": f'device.driver == "{GPU}"'}}]
            gpu = {"metadata": {"name": f"gpu-{cluster.namespace}"}, "spec": {"selectors": selectors}}
            nics = [label_of(f"{resource}-{address}") for address in addresses[:2]]
            nics += [label_of(f"{resource}-rail-{address}") for address in addresses[2:]]
            classes = {"nic": nic["metadata"]["name"], "gpu": gpu["metadata"]["name"]}
            if more:
                classes["rail"] = more[0]["metadata"]["name"]
            for document in (nic, gpu, *more):
                cluster.client.create(DeviceClass.from_dict(document), field_manager=GPU)
            with Kubelet(runtime, cluster) as kubelet, ThreadPoolExecutor() as threads:
                world = World(cluster, runtime, kubelet, driver, resource, nics, classes)
                server = grpc.server(threads)
                for service, name in ((PLUGIN, f"plugins/{GPU}.sock"), (REGISTRATION, f"plugins_registry/{GPU}.sock")):
                    services.serve(service, server, Gpus())
                    node.path(f"{FOLDER}/{name}").parent.mkdir(exist_ok=True)
                    server.add_insecure_port(f"unix:{node.root}{FOLDER}/{name}")
                server.start()
                driver.start_plugin()
                try:
                    assert kubelet.becomes(lambda: world.published() == nics), (driver.lines, kubelet.log())
                    yield world
                finally:
                    world.no_gpu()
                    server.stop(None)
                    for name in classes.values():
                        cluster.client.delete(DeviceClass, name)
