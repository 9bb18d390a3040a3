"""The Kubernetes objects of a group of rails (NICs of a node): NADs, a device plugin's resources, a test pod. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cni.documents.networks import NETWORKS, RESOURCE_NAME
from cni.resources.rails import PlannedRail, Rails
from cni.shared.rail import TABLE_BASE

_NAD = "k8s.cni.cncf.io/v1"
_OTHERS = "kube-system"  # the namespace of the other device plugins
_OURS = ("railcni-device-plugin", "railcni")  # name and namespace, as conf/kubernetes/device-plugin has them


def objects(plan: Rails, rails: Sequence[PlannedRail], ours: bool = False) -> list[dict[str, Any]]:
    """All objects, in the order in which to apply them. `ours`: for `railcni device-plugin`."""
    nads = [nad(plan, rails, rail) for rail in (rails[:1] if plan.oneNetwork else rails)]
    return [resources(plan, rails, ours), *nads, pod(plan, rails)]


def nad(plan: Rails, rails: Sequence[PlannedRail], rail: PlannedRail) -> dict[str, Any]:
    """The NetworkAttachmentDefinition of one rail, or with `oneNetwork` of all."""
    metadata: dict[str, Any] = {"name": rail.name, "namespace": plan.namespace}
    if plan.type != "macvlan" or plan.oneNetwork:  # a macvlan names its master, and needs no device
        metadata["annotations"] = {RESOURCE_NAME: f"{plan.resourcePrefix}/{rail.resource}"}
    spec = {"config": json.dumps(network(plan, rails, rail), indent=2) + "\n"}
    return {"apiVersion": _NAD, "kind": "NetworkAttachmentDefinition", "metadata": metadata, "spec": spec}


def network(plan: Rails, rails: Sequence[PlannedRail], rail: PlannedRail) -> dict[str, Any]:
    found: dict[str, Any] = {"cniVersion": "1.0.0", "name": rail.name, "type": f"railcni-{plan.type}"}
    if plan.type == "macvlan" and not plan.oneNetwork:
        found["master"] = rail.nic.netdev
    if plan.mtu:
        found["mtu"] = plan.mtu
    key: dict[str, Any] = {"group": plan.group}
    key |= {"nics": _nics(rails)} if plan.oneNetwork else {"index": rail.index}
    if not plan.routing:
        key["routing"] = False
    elif plan.tableBase != TABLE_BASE:
        key["tableBase"] = plan.tableBase
    if plan.addressing == "same-index":
        short = [[part["range"] if set(part) == {"range"} else part for part in other.ranges] for other in rails]
        key |= {"addressing": plan.addressing, "ranges": [ranges if ranges[1:] else ranges[0] for ranges in short]}
    if plan.oneNetwork:
        return {**found, "rail": key, "ipam": {"type": "railcni-whereabouts"}}
    first, *others = rail.ranges
    ipam: dict[str, Any] = {"type": "railcni-whereabouts", **first}
    if others:
        ipam["ipRanges"] = others
    if plan.gateway:
        ipam["gateway"] = str(rail.subnets[0][plan.gateway])
    return {**found, "rail": key, "ipam": ipam}


def resources(plan: Rails, rails: Sequence[PlannedRail], ours: bool = False) -> dict[str, Any]:
    """The ConfigMap of the device plugin that offers the NICs, as shared ones or as SR-IOV functions. With `ours`, the
    ConfigMap of `railcni device-plugin`, which also makes VFs."""
    listed = []
    for nics in [rails] if plan.oneNetwork else [[rail] for rail in rails]:
        names = {"resourcePrefix": plan.resourcePrefix, "resourceName": nics[0].resource}
        shared = {"rdmaHcaMax": plan.shared * len(nics)} if plan.type == "macvlan" else {}
        listed.append({**names, **shared, "selectors": _selectors(plan, nics)})
    content: dict[str, Any] = {"resourceList": listed}
    name = "sriovdp-config"
    if plan.type == "macvlan":
        content, name = {"periodicUpdateInterval": 300, "configList": listed}, "rdma-devices"
    if plan.type == "sriov" and ours:
        content["virtualFunctions"] = [_policy(plan, rails)]
    if ours:
        content["rails"] = [{"group": plan.group, "nics": _nics(rails)}]
    name, namespace = _OURS if ours else (name, _OTHERS)
    data = {"config.json": json.dumps(content, indent=2) + "\n"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}


def _nics(rails: Sequence[PlannedRail]) -> list[str]:
    """The NIC of each rail, by its netdev if that is known."""
    return [rail.nic.netdev or rail.nic.pci for rail in rails]


def _selectors(plan: Rails, rails: Sequence[PlannedRail]) -> dict[str, Any]:
    """The selectors of the NICs. A range of VFs after a PF's name excludes the PF."""
    netdevs = [rail.nic.netdev for rail in rails]
    if plan.type == "macvlan":
        return {"ifNames": netdevs}
    vfs = f"#0-{plan.numVfs - 1}" if plan.type == "sriov" else ""
    if all(netdevs):
        return {"pfNames": [name + vfs for name in netdevs], "isRdma": True}
    return {"rootDevices" if vfs else "pciAddresses": [rail.nic.pci + vfs for rail in rails], "isRdma": True}


def _policy(plan: Rails, rails: Sequence[PlannedRail]) -> dict[str, Any]:
    """The VFs of all NICs, as a member of `virtualFunctions`."""
    netdevs = [rail.nic.netdev for rail in rails]
    chosen = {"pfNames": netdevs} if all(netdevs) else {"rootDevices": [rail.nic.pci for rail in rails]}
    mtu = {"mtu": plan.mtu} if plan.mtu else {}
    return {"nicSelector": chosen, "numVfs": plan.numVfs, "isRdma": True, **mtu}


def annotation(plan: Rails, rails: Sequence[PlannedRail]) -> str:
    """The value of a pod's annotation k8s.v1.cni.cncf.io/networks that gives it all rails, as rail0, rail1, ..."""
    return ", ".join(f"{plan.namespace}/{rail.name}@rail{rail.index}" for rail in rails)


def pod(plan: Rails, rails: Sequence[PlannedRail]) -> dict[str, Any]:
    """A test pod that has all rails."""
    amounts = Counter(f"{plan.resourcePrefix}/{rail.resource}" for rail in rails)
    metadata = {
        "name": f"{plan.group}-test".lower().replace("_", "-"),
        "namespace": plan.namespace,
        "annotations": {NETWORKS: annotation(plan, rails)},
    }
    container = {
        "name": "test",
        "image": plan.image,
        "command": ["sleep", "infinity"],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def rows(plan: Rails, rails: Sequence[PlannedRail]) -> list[Sequence[object]]:
    return [
        (
            rail.index,
            f"{plan.namespace}/{rail.name}",
            rail.nic.netdev or rail.nic.pci,
            " ".join(map(str, rail.subnets)),
            plan.tableBase + rail.index if plan.routing else None,
            f"{plan.resourcePrefix}/{rail.resource}",
        )
        for rail in rails
    ]


COLUMNS = ("rail", "network", "NIC", "subnet", "table", "resource")
