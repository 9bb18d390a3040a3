"""gRPC clients and servers from the descriptors in the generated modules, and a client of the pod resources API."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from cni.resources.kubelet import pod_resources_v1_pb2 as resources

_LISTER = resources.DESCRIPTOR.services_by_name["PodResourcesLister"]
_SECONDS = 5.0  # seconds to wait for an answer
_MOST_BYTES = 64 << 20  # of a message: one message of kubelet lists the devices of all plugins


def client(service: ServiceDescriptor, channel: Any) -> Any:
    """Return a client of `service`: an object with a function for each method, which calls the method by `channel`."""
    calls = {}
    for method in service.methods:
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        calls[method.name] = make(
            f"/{service.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
    return SimpleNamespace(**calls)


def serve(service: ServiceDescriptor, server: Any, servicer: object, name: str = "") -> None:
    """Let `servicer` answer the calls of `service` at `server`. If given, `name` replaces the name of the service. If
    `servicer` lacks a method, callers get UNIMPLEMENTED."""
    handlers = {}
    for method in service.methods:
        if answer := getattr(servicer, method.name, None):
            streams = method.server_streaming
            make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
            handlers[method.name] = make(
                answer,
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name or service.full_name, handlers),))


async def listen(server: grpc.aio.Server, path: str) -> None:
    """Start the server at the Unix socket `path`. Raises OSError when it cannot listen there."""
    Path(path).unlink(missing_ok=True)  # the socket of a killed process
    try:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
    except RuntimeError as fault:
        raise OSError(0, str(fault), path) from None


def refusal(fault: OSError) -> str:
    """A text with the file of `fault`, the reason and, for a file that is not writable, the remedy."""
    remedy = ": mount it writable" if fault.errno in (errno.EROFS, errno.EACCES) else ""
    return f"{fault.filename}: {fault.strerror}{remedy}"


async def allocatable(socket: str) -> dict[str, list[str]] | None:
    """Return the IDs of kubelet's healthy devices by resource; None when kubelet does not answer at `socket`."""
    answer = await _asked(socket, "GetAllocatableResources", resources.AllocatableResourcesRequest())
    if answer is None:
        return None
    found: dict[str, list[str]] = {}
    for devices in answer.devices:
        found.setdefault(devices.resource_name, []).extend(devices.device_ids)
    return found


async def held(socket: str) -> set[str] | None:
    """Return the IDs of the devices that device plugins have given to containers, even if a plugin no longer runs; None
    when kubelet does not answer at `socket`."""
    answer = await _asked(socket, "List", resources.ListPodResourcesRequest())
    if answer is None:
        return None
    return {
        i for pod in answer.pod_resources for one in pod.containers for given in one.devices for i in given.device_ids
    }


async def _asked(socket: str, method: str, request: Any) -> Any:
    """The answer of kubelet's pod resources API; None when kubelet does not answer."""
    if not os.path.exists(socket):
        return None
    options = [("grpc.max_receive_message_length", _MOST_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        try:
            return await getattr(client(_LISTER, channel), method)(request, timeout=_SECONDS)
        except grpc.aio.AioRpcError:
            return None
