"""The answers to kubelet about a resource, as messages of the device plugin API. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cni.resources import containers
from cni.resources.choose import Offer, Resource
from cni.resources.kubelet import device_plugin_v1beta1_pb2 as api

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_CDI_KEY = "cdi.k8s.io/"
_LONGEST = 48  # characters of a name in the path of a socket (107 at most) or in an annotation's key


def plain(name: str) -> str:
    """Turn the name of a resource into a part of a file name. No other resource has the same part."""
    text = name.replace("/", "_")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def listing(resource: Resource) -> api.ListAndWatchResponse:
    """All devices of the resource with their health and NUMA nodes."""
    answer = api.ListAndWatchResponse()
    for offer in resource.offers:
        nodes = [api.NUMANode(ID=number) for number in offer.numa_nodes]
        topology = api.TopologyInfo(nodes=nodes) if nodes else None
        health = UNHEALTHY if offer.fault else HEALTHY
        answer.devices.extend(api.Device(ID=one, health=health, topology=topology) for one in offer.ids)
    return answer


def allocation(resource: Resource, ids: Sequence[str], cdi: bool) -> api.ContainerAllocateResponse:
    """The answer to kubelet for a container with the devices `ids`. It has device nodes or, if `cdi` is true, CDI
    names. Raises LookupError when the resource lacks a device."""
    chosen = offers(resource, ids)
    answer = api.ContainerAllocateResponse()
    if cdi:
        names = [f"{resource.name}={offer.name}" for offer in chosen if offer.nodes]
        answer.cdi_devices.extend(api.CDIDevice(name=name) for name in names)
        if names:
            answer.annotations[_CDI_KEY + plain(resource.name)] = ",".join(names)
    else:
        nodes = dict.fromkeys(node for offer in chosen for node in offer.nodes)
        answer.devices.extend(
            api.DeviceSpec(container_path=inside, host_path=path, permissions=containers.PERMISSIONS)
            for inside, path in nodes
        )
    answer.envs.update(containers.variables(resource, chosen))
    return answer


def offers(resource: Resource, ids: Sequence[str]) -> list[Offer]:
    """The offers that have the devices `ids`, each offer once. Raises LookupError when the resource lacks a device."""
    by_id = {one: offer for offer in resource.offers for one in offer.ids}
    missing = [one for one in ids if one not in by_id]
    if missing:
        known = ", ".join(offer.name for offer in resource.offers) or "none"
        raise LookupError(
            f"{resource.name} has no device {', '.join(missing)} any more; its NICs and functions: {known}"
        )
    return list({by_id[one].name: by_id[one] for one in ids}.values())


def preferred(resource: Resource, available: Sequence[str], needed: Sequence[str], size: int) -> list[str]:
    """Choose `size` of the `available` devices: first those in `needed`, then others, evenly from all NICs, beginning
    with the NICs that have the most free devices."""
    groups = {one: offer.group for offer in resource.offers for one in offer.ids}
    left: dict[str, list[str]] = {}
    # the highest number first, such as 0000:3b:00.0-10 before 0000:3b:00.0-9, since pop() takes the last member
    for one in sorted(set(available) - set(needed), key=lambda one: (len(one), one), reverse=True):
        left.setdefault(groups.get(one, ""), []).append(one)
    used = Counter(groups.get(one, "") for one in needed)
    chosen = list(needed)
    while len(chosen) < size and left:
        group = min(left, key=lambda g: (used[g], -len(left[g]), g))
        chosen.append(left[group].pop())
        used[group] += 1
        if not left[group]:
            del left[group]
    return chosen[:size]


def cdi_document(resource: Resource) -> dict[str, Any]:
    """The CDI specification of the resource's devices that have device nodes."""
    return containers.cdi_document(resource.name, ((o.name, o.nodes, {}) for o in resource.offers))
