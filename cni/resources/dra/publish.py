"""Write to the API server: the node's devices as ResourceSlices, and the pods' interfaces in the status of claims.

All slices of the node are one pool. A change gives all slices the next generation. Each slice states the number of
slices, so a scheduler waits for all slices of the newest generation, and never chooses from a part of the devices.
Slices are deleted with their owner, the Node. kubelet deletes slices when the driver has been away for half a minute,
and when kubelet itself starts, so the slices are compared after each registration.

kubelet prepares a claim before the pod has its network, and does not report when the network is ready. So the records
of attachments are read again when their folder has changed, and while an ADD that has written its record still runs.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from cni.node.inventory import attachments
from cni.resources.containers import DRIVER, Record, named
from cni.resources.dra import slices
from cni.resources.models import label
from cni.shared.records import LINK
from cni.shared.spec.errors import CniError, InvalidConfig, TryAgainLater
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, NotFound, Undefined
from ipam.stores.apiserver.resources import CLAIMS, CLASSES, EVERYWHERE, NODE_SLICES, NODES, replacement
from ipam.stores.base import Unreachable

_SECONDS = 10.0  # seconds for a request; kubelet waits 45 s until a claim is prepared
_SETTLED = 1_000_000_000  # ns; more than a tick of a file system's clock, so a later change gets another timestamp

_Content = Mapping[str, tuple[list[dict[str, Any]], int]]  # the devices of each slice, and the number of slices


class Publisher:
    """The slices of `node` at the API server of `kubeconfig`. If `kubeconfig` is "", this pod's cluster is used."""

    def __init__(self, kubeconfig: str, node: str) -> None:
        self._kubeconfig = kubeconfig
        self._node = node
        self._sent: _Content = {}  # the content that was written last
        self._kept: _Content = {}  # the part of this content that the server kept
        self.generation = 0
        self.lacks: list[str] = []  # a sentence for each content that the server lacks

    def publish(self, devices: Sequence[slices.Device]) -> bool:
        """Publish exactly `devices`. Returns whether the slices have changed. Raises CniError when a request fails."""
        with closing(Api(self._kubeconfig, _SECONDS)) as api:
            try:
                is_changed = self._publish(api, devices)
                self.lacks = list(self._lacks(api, devices))
                return is_changed
            except Undefined:
                raise InvalidConfig(f"{api} does not know {slices.API}: it needs Kubernetes 1.34 or newer") from None
            except (Conflict, NotFound):
                raise TryAgainLater(f"another program changes the ResourceSlices of {DRIVER} on {self._node}") from None

    def _publish(self, api: Api, devices: Sequence[slices.Device]) -> bool:
        found = self._read(api)
        content, present = _content(slices.documents(devices, self._node, 1)), _content(found.values())
        generations = {one["spec"]["pool"]["generation"] for one in found.values()}
        if present in (content, self._kept if content == self._sent else None) and len(generations) <= 1:
            self.generation = max(generations, default=0)
            return False
        self.generation = max(generations, default=0) + 1
        owner = self._owner(api) if content else None
        for document in slices.documents(devices, self._node, self.generation, owner):
            if former := found.pop(name := document["metadata"]["name"], None):
                uid, version = former["metadata"]["uid"], former["metadata"]["resourceVersion"]
                change = {"/spec": document["spec"], "/metadata/ownerReferences": [owner]}
                api.patch(NODE_SLICES, name, replacement(uid, version, change), EVERYWHERE)
            else:
                api.create(NODE_SLICES, document, EVERYWHERE)
        for name, former in found.items():
            api.delete(NODE_SLICES, name, former["metadata"]["uid"], namespace=EVERYWHERE)
        kept = _content(self._read(api).values())
        is_whole = kept.keys() == content.keys()  # otherwise slices have been deleted since they were written
        self._sent, self._kept = (content, kept) if is_whole else ({}, {})
        return True

    def _read(self, api: Api) -> dict[str, dict[str, Any]]:
        """Map the names of the driver's slices of this node to the slices in the API server."""
        fields = f"spec.nodeName={self._node},spec.driver={DRIVER}"
        listed = api.list_all(NODE_SLICES, fields=fields, namespace=EVERYWHERE)
        return {one["metadata"]["name"]: one for one in listed}

    def _owner(self, api: Api) -> dict[str, Any]:
        """The Node as an owner reference. Raises InvalidConfig when there is no such Node."""
        try:
            node, _ = api.get(NODES, self._node, namespace=EVERYWHERE)
        except NotFound:
            raise InvalidConfig(f"{api} has no Node {self._node}: name this node with --node") from None
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node["metadata"]["uid"]}

    def _lacks(self, api: Api, devices: Sequence[slices.Device]) -> Iterator[str]:
        """Yield a sentence if the server has dropped a field of the slices, and one for each DeviceClass that lacks
        extendedResourceName."""
        is_sent, is_kept = (
            any("allowMultipleAllocations" in device for devices, _ in content.values() for device in devices)
            for content in (self._sent, self._kept)
        )
        if is_sent and not is_kept:
            yield (
                "the API server keeps no allowMultipleAllocations, so a shared NIC is given to one claim at a time: switch on"
                " the feature gate DRAConsumableCapacity, which is on from Kubernetes 1.36, or share these NICs by the device"
                " plugin"
            )
        names = {label(device.resource.name): device.resource.name for device in devices}
        for one in api.list_all(CLASSES, recent=True, namespace=EVERYWHERE) if names else ():
            if (name := one["metadata"]["name"]) in names and not one["spec"].get("extendedResourceName"):
                yield (
                    f"DeviceClass {name} has no extendedResourceName, so no pod that asks for {names[name]} gets a device:"
                    " switch on the feature gate DRAExtendedResource, and apply the output of `railcni dra classes` again"
                )


def _content(documents: Iterable[dict[str, Any]]) -> _Content:
    """Map the name of each slice to (devices, number of slices). Only these parts of slices are compared."""
    specs = {one["metadata"]["name"]: one["spec"] for one in documents}
    return {name: (spec["devices"], spec["pool"]["resourceSliceCount"]) for name, spec in specs.items()}


class Statuses:
    """The statuses of claims at the API server of `kubeconfig`, made from the records of attachments in `state`."""

    def __init__(self, kubeconfig: str, state: str) -> None:
        self._kubeconfig, self._state = kubeconfig, state
        self._seen: object = None
        self._told: dict[str, list[Record]] = {}

    def tell(self, claims: Collection[Record]) -> None:
        """Write the status of each prepared claim whose attachments have changed. Raises Unreachable at once. Raises
        any other CniError, such as a refusal of one status, after the statuses of the other claims are written."""
        changed, now = attachments.changed(self._state), time.time_ns()
        if self._seen == (seen := (changed, [claim["uid"] for claim in claims])):
            return
        self._seen = None
        found, runs = attachments.completed(self._state) if claims else ([], False)
        self._told = {claim["uid"]: self._told.get(claim["uid"], []) for claim in claims}
        fault: CniError | None = None
        for claim in claims:
            if (devices := _devices(claim, found)) != self._told[claim["uid"]]:
                try:
                    self._write(claim, devices)
                    self._told[claim["uid"]] = devices
                except Unreachable:
                    raise
                except CniError as error:
                    fault = fault or error
        if fault:
            raise fault
        if not runs and now - changed > _SETTLED:
            self._seen = seen

    def _write(self, claim: Record, devices: list[Record]) -> None:
        """Replace this driver's devices in the claim's status by `devices`. The devices of other drivers stay."""
        with closing(Api(self._kubeconfig, _SECONDS)) as api:
            if (found := _claim(api, claim)) is None:
                return
            present = (found.get("status") or {}).get("devices") or []
            wanted = [one for one in present if one["driver"] != DRIVER] + devices
            if wanted == present:
                return
            version = found["metadata"]["resourceVersion"]
            change = replacement(claim["uid"], version, {"/status/devices": wanted})
            try:
                with suppress(NotFound):
                    api.patch(f"{CLAIMS}/{claim['name']}", "status", change, claim["namespace"])
            except Conflict:
                raise TryAgainLater(f"{named(claim)} changes meanwhile") from None


def allocated(kubeconfig: str, claim: Record) -> tuple[dict[str, Any], list[str]] | None:
    """Return (devices, pods): `allocation.devices` of the claim's status, and the UIDs of the pods for which the claim
    is reserved. None when the claim is gone, or has no device. Raises CniError when the request fails."""
    with closing(Api(kubeconfig, _SECONDS)) as api:
        status = (_claim(api, claim) or {}).get("status") or {}
    devices = (status.get("allocation") or {}).get("devices")
    pods = [one["uid"] for one in status.get("reservedFor") or () if one["resource"] == "pods"]
    return (devices, pods) if isinstance(devices, dict) else None


def _claim(api: Api, claim: Record) -> dict[str, Any] | None:
    """The claim at the API server; None without a claim of this name and UID. Raises CniError when a request fails."""
    try:
        found, _ = api.get(CLAIMS, claim["name"], namespace=claim["namespace"])
    except NotFound:
        return None
    return found if found["metadata"]["uid"] == claim["uid"] else None


def _devices(claim: Record, found: Collection[dict[str, Any]]) -> list[Record]:
    """The status entries of the devices of `claim` that its pods have attached. `found` are the node's attachments.
    There is one entry for each attached link, since each of several shares of a device has its own link."""
    links = [one for one in found if LINK in one["records"]]
    own = [one for one in links if one["records"][LINK]["pod"][2] in claim.get("pods", ())]
    entries = []
    for device in claim["devices"]:
        if attached := next((one for one in own if attachments.device_of(one) == device["function"]), None):
            own.remove(attached)
            created = time.gmtime(attached["records"][LINK]["created"] // 1_000_000_000)
            told = {"reason": "Attached", "message": f"network {attached['network']}"}
            since = {"lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", created)}
            condition = {"type": "Ready", "status": "True"} | told | since
            entry = {"driver": DRIVER, "pool": device["pool"], "device": device["device"], "conditions": [condition]}
            data = attachments.network_data(attached, found)
            entries.append(entry | ({"shareID": device["share"]} if device["share"] else {}) | {"networkData": data})
    return entries
