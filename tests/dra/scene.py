"""A node for the DRA driver: sysfs, kubelet's two halves, the API server, and the driver's process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.device_plugin import kubelet as device_plugins
from tests.device_plugin.kubelet import SECONDS
from tests.device_plugin.scene import Scene
from tests.dra.kubelet import Kubelet
from tests.node import until
from tests.stores.kubernetes_api import ApiServer

NODE = "node-1"
RIGHT_SECONDS = 5.0  # the longest time until a node is right, once driver and kubelet run


class DraScene(Scene):
    """`kubelet` has the device plugins, `dra` the drivers; use it in a `with`."""

    def __init__(self, real: bool = False) -> None:
        super().__init__(real=real)
        self.api = ApiServer()
        self.api.core.add_node(NODE)
        self.dra = Kubelet(self.folder / "kl", self.wipe)
        self.kubelet = device_plugins.Kubelet(self.folder / "k", self.folder / "kl/pod-resources/kubelet.sock")

    def __exit__(self, *exception: object) -> None:
        self.dra.stop()
        super().__exit__(*exception)
        self.api.close()

    def arguments(self, *more: str) -> list[str]:
        kubeconfig = self.api.kubeconfig(self.folder)
        return [
            *("dra", "run", f"--config={self.config}", f"--root={self.root}", f"--node={NODE}"),
            *(f"--kubelet-root={self.dra.folder}", f"--kubeconfig={kubeconfig}", "--listen=127.0.0.1:0", *more),
        ]

    def wipe(self) -> None:
        """Delete the node's slices, as a kubelet that starts."""
        for slice in self.slices():
            del self.api.core.objects["resourceslices", "", slice["metadata"]["name"]]

    def until(self, condition: Callable[[], object]) -> bool:
        """Whether the condition came true, looked at again and again."""
        return until(condition, SECONDS)

    def slices(self) -> list[dict[str, Any]]:
        return self.api.core.named("resourceslices")

    def published(self) -> dict[str, dict[str, Any]]:
        """The attributes of each published device."""
        devices = [device for slice in self.slices() for device in slice["spec"]["devices"]]
        return {
            device["name"]: {key: next(iter(value.values())) for key, value in device["attributes"].items()}
            for device in devices
        }

    def written(self) -> int:
        """How often slices were changed."""
        return sum(method != "GET" and path.startswith("resourceslices") for method, path, _ in self.api.seen)

    @property
    def cdi(self) -> Path:
        return self.root / "var/run/cdi"

    def left(self) -> list[str]:
        """The files of claims that there are."""
        own = self.dra.folder / "plugins/railcni.io/claims"
        folders = (own, self.cdi, self.root / "var/run/k8s.cni.cncf.io/devinfo/dp")
        return sorted(path.name for folder in folders if folder.exists() for path in folder.iterdir())

    def record(self, uid: str) -> Any:
        return json.loads((self.dra.folder / f"plugins/railcni.io/claims/{uid}.json").read_text())
