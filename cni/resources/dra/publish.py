"""Publish the node's devices as ResourceSlices, which are written only after a change.

All slices of the node are one pool. A change gives all slices the next generation. A scheduler waits until it sees all
slices of the newest generation (each slice has their number), so it never chooses from a part of the devices.

Slices are deleted with their Node, which owns them. kubelet deletes them when the driver has been away for half a
minute, and when kubelet itself starts, so they are compared after each registration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from cni.resources.claims import DRIVER
from cni.resources.dra import slices
from cni.resources.dra.slices import Device
from cni.resources.models import label
from cni.shared.spec.errors import InvalidConfig, TryAgainLater
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Gone, Undefined
from ipam.stores.apiserver.resources import CLASSES, EVERYWHERE, NODE_SLICES, NODES, replacement

_SECONDS = 10.0  # for a request


class Publisher:
    """The slices of `node` at the API server of `kubeconfig`; "" means the API server of this pod."""

    def __init__(self, kubeconfig: str, node: str) -> None:
        self._kubeconfig = kubeconfig
        self._node = node
        self._sent: Sequence[object] = ()  # the content that was written last,
        self._kept: Sequence[object] = ()  # and the content that the server kept of it
        self.generation = 0
        self.lacks: list[str] = []  # sentences about content that the server lacks

    def publish(self, devices: Sequence[Device]) -> bool:
        """Make the slices have exactly `devices`; return whether the slices have changed. Raises CniError."""
        with closing(Api(self._kubeconfig, _SECONDS)) as api:
            try:
                is_changed = self._publish(api, devices)
                self.lacks = [*_unshared(self._sent, self._kept), *_unnamed(api, devices)]
                return is_changed
            except Undefined:
                raise InvalidConfig(
                    f"{api} does not know {slices.API}: Kubernetes 1.34 is the first that has it"
                ) from None
            except (Conflict, Gone):
                raise TryAgainLater(f"another program changes the ResourceSlices of {DRIVER} on {self._node}") from None

    def _publish(self, api: Api, devices: Sequence[Device]) -> bool:
        found = self._read(api)
        wanted = slices.specs(devices, self._node, 1)
        names = [slices.document(number, spec)["metadata"]["name"] for number, spec in enumerate(wanted)]
        content, present = _content(wanted), _content([one["spec"] for one in found.values()])
        generations = {one["spec"]["pool"]["generation"] for one in found.values()}
        is_kept = content == present or (content == self._sent and present == self._kept)
        if is_kept and list(found) == names and len(generations) <= 1:
            self.generation = max(generations, default=0)
            return False
        self.generation = max(generations, default=0) + 1
        owner = self._owner(api) if wanted else None
        for number, spec in enumerate(slices.specs(devices, self._node, self.generation)):
            document = slices.document(number, spec, owner)
            if former := found.pop(document["metadata"]["name"], None):
                uid, version = former["metadata"]["uid"], former["metadata"]["resourceVersion"]
                change = replacement(uid, version, {"/spec": spec, "/metadata/ownerReferences": [owner]})
                api.patch(NODE_SLICES, document["metadata"]["name"], change, EVERYWHERE)
            else:
                api.create(NODE_SLICES, document, EVERYWHERE)
        for name, former in found.items():
            api.delete(NODE_SLICES, name, former["metadata"]["uid"], namespace=EVERYWHERE)
        self._sent, self._kept = content, _content([one["spec"] for one in self._read(api).values()])
        return True

    def _read(self, api: Api) -> dict[str, dict[str, Any]]:
        """The slices by name, in the order of their numbers."""
        fields = f"spec.nodeName={self._node},spec.driver={DRIVER}"
        listed = api.list_all(NODE_SLICES, fields=fields, namespace=EVERYWHERE)
        names = {one["metadata"]["name"]: one for one in listed}
        return dict(sorted(names.items(), key=lambda item: (len(item[0]), item[0])))

    def _owner(self, api: Api) -> dict[str, Any]:
        """The Node as an owner reference. Raises InvalidConfig when there is no such Node."""
        try:
            node, _ = api.get(NODES, self._node, namespace=EVERYWHERE)
        except Gone:
            raise InvalidConfig(f"{api} has no Node {self._node}: name this node with --node") from None
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}


def _content(specs: Sequence[dict[str, Any]]) -> list[object]:
    """The content of slices that is compared: all except the generation."""
    return [(spec["devices"], spec["pool"]["resourceSliceCount"]) for spec in specs]


def _unshared(sent: Sequence[Any], kept: Sequence[Any]) -> Iterator[str]:
    """Yield a sentence if the server has dropped allowMultipleAllocations from the devices."""
    shared = [device for devices, _ in sent for device in devices if "allowMultipleAllocations" in device]
    if shared and not any("allowMultipleAllocations" in device for devices, _ in kept for device in devices):
        yield (
            "the API server keeps no allowMultipleAllocations, so a shared NIC is given to one claim at a time: switch on the"
            " feature gate DRAConsumableCapacity, which is on from Kubernetes 1.36, or share these NICs by the device plugin"
        )


def _unnamed(api: Api, devices: Sequence[Device]) -> Iterator[str]:
    """Yield a sentence for each DeviceClass of the devices that has no extendedResourceName."""
    names = {label(device.resource.name): device.resource.name for device in devices}
    for one in api.list_all(CLASSES, recent=True, namespace=EVERYWHERE) if names else ():
        if (name := one["metadata"]["name"]) in names and not one["spec"].get("extendedResourceName"):
            yield (
                f"DeviceClass {name} has no extendedResourceName, so no pod that asks for {names[name]} gets a device: switch on"
                " the feature gate DRAExtendedResource, and apply the output of `railcni dra classes` again"
            )
