"""Calls from a device plugin to kubelet: the registration, and the devices that kubelet already has of a resource."""

from __future__ import annotations

import asyncio
import os
import tempfile
from dataclasses import dataclass

import grpc
import grpc.aio

from cni.resources.kubelet import device_plugin_v1beta1_pb2 as api
from cni.resources.kubelet import services
from cni.shared.kernel.files import mark
from cni.shared.spec.errors import TryAgainLater

VERSION = "v1beta1"
_REGISTRATION = api.DESCRIPTOR.services_by_name["Registration"]
_SECONDS = 5.0  # seconds to wait for an answer
_SETTLED = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)


@dataclass(frozen=True)
class Kubelet:
    """kubelet and its sockets. `folder` has the sockets of the registration and of the plugins; `pods` is the path of
    the socket of the pod resources API."""

    folder: str
    pods: str

    @property
    def socket(self) -> str:
        return os.path.join(self.folder, "kubelet.sock")

    def identity(self) -> tuple[int, ...]:
        """A value that differs after each start of kubelet; () while kubelet does not listen."""
        return mark(self.socket, links=True)

    def fault(self) -> str:
        """The reason why no plugin can listen in `folder`, and the remedy; "" without a fault."""
        if not os.path.isdir(self.folder):
            return (
                f"there is no {self.folder}, which kubelet makes: start kubelet, or name its folder with --kubelet-dir"
            )
        try:
            with tempfile.TemporaryFile(dir=self.folder):
                return ""
        except OSError as fault:
            return services.refusal(OSError(fault.errno, fault.strerror, self.folder))

    async def register(self, endpoint: str, resource: str) -> None:
        """Register the socket named `endpoint` for the resource. Raises TryAgainLater with kubelet's answer.

        kubelet calls the plugin's GetDevicePluginOptions before it answers, and waits 10 s for a socket that is not
        there. A starting kubelet removes all sockets before it listens, so the socket is checked after the connection.
        """
        options = api.DevicePluginOptions(get_preferred_allocation_available=True)
        request = api.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
        async with grpc.aio.insecure_channel(f"unix:{self.socket}") as channel:
            try:
                await asyncio.wait_for(_connected(channel), _SECONDS)
                if not os.path.exists(os.path.join(self.folder, endpoint)):
                    raise TryAgainLater(f"kubelet has just started, and has removed the socket of {resource}")
                await services.client(_REGISTRATION, channel).Register(request, timeout=_SECONDS)
            except TimeoutError:
                raise TryAgainLater(f"kubelet does not register {resource}: no answer in {_SECONDS:g} s") from None
            except grpc.aio.AioRpcError as fault:
                why = fault.details() or fault.code().name
                raise TryAgainLater(f"kubelet does not register {resource}: {why}") from None

    async def healthy(self, resource: str) -> frozenset[str] | None:
        """The healthy devices that kubelet has of the resource, from any plugin; None when kubelet does not answer.

        kubelet counts no device as healthy once its plugin's stream has ended.
        """
        known = await services.allocatable(self.pods)
        return None if known is None else frozenset(known.get(resource, ()))


async def _connected(channel: grpc.aio.Channel) -> None:
    """Wait until the channel is connected or has failed. After a failure, the next call reports the reason."""
    while (state := channel.get_state(try_to_connect=True)) not in _SETTLED:
        await channel.wait_for_state_change(state)
