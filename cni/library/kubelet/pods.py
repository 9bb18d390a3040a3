"""kubelet's pod resources: which devices it has of device plugins."""

from __future__ import annotations

import os

import grpc
import grpc.aio

from cni.library.kubelet import pod_resources_v1_pb2 as api
from cni.library.kubelet import services

_LISTER = api.DESCRIPTOR.services_by_name["PodResourcesLister"]
_SECONDS = 5.0  # for an answer
_MOST_BYTES = 64 << 20  # kubelet lists the devices of all plugins in one message


async def allocatable(socket: str) -> dict[str, list[str]] | None:
    """The healthy devices of each resource; None when nobody answers at `socket`."""
    if not os.path.exists(socket):
        return None
    options = [("grpc.max_receive_message_length", _MOST_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        stub = services.client(_LISTER, channel)
        try:
            answer = await stub.GetAllocatableResources(api.AllocatableResourcesRequest(), timeout=_SECONDS)
        except grpc.aio.AioRpcError:
            return None
    found: dict[str, list[str]] = {}
    for devices in answer.devices:
        found.setdefault(devices.resource_name, []).extend(devices.device_ids)
    return found
