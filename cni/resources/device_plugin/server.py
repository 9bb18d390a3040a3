"""The service of one resource for kubelet: its socket, its registration, and a check that kubelet uses its list.

kubelet reads the list of devices as a stream. It ends the stream without notice when it restarts, when another plugin
takes the resource, and when it mistakes the new connection of a quickly restarted plugin for the old one. So a resource
counts as served only while a stream is open, even after a successful registration. When any connection of a resource
ends, kubelet sets all devices of the resource to unhealthy. So soon after a stream has begun, and then from time to
time, the plugin reads kubelet's devices. If they differ from its list, it sends the list again.

If kubelet has healthy devices that this plugin never offered, another plugin has registered later. kubelet requests
allocations from the other plugin, but uses the list that either plugin sent last. So this plugin sends no list until
the other plugin is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import grpc.aio

from cni.node.service.log import AgentLog
from cni.resources.choose import Offer, Resource
from cni.resources.device_plugin import answers
from cni.resources.kubelet import device_plugin_v1beta1_pb2 as api
from cni.resources.kubelet import services
from cni.shared.kernel.files import mark
from cni.shared.spec.errors import CniError, TryAgainLater

VERSION = "v1beta1"
_REGISTRATION = api.DESCRIPTOR.services_by_name["Registration"]
_SECONDS = 5.0  # seconds to wait for an answer
_SETTLED = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
_SERVICE = api.DESCRIPTOR.services_by_name["DevicePlugin"]
PREFIX = "railcni-"  # the start of the sockets' names
_STREAM_SECONDS = 2.0  # from a registration until kubelet opens the stream
_RETRY, _LONGEST_RETRY = 0.25, 30.0  # seconds until the next registration, doubled each time
_STABLE = 60.0  # seconds; after the end of a longer stream, the pause between registrations is short again
_LOOKS = (0.3, 0.7, 1.0, 10.0)  # seconds between readings of kubelet's devices; the last number repeats
_CONFLICT_SECONDS = 2.0  # seconds between checks of a resource that another plugin serves; the first checks are quicker
_UNASKED_SECONDS = 60.0  # between two lists if kubelet has no pod resources API; the first lists are quicker

Allocated = Callable[[Resource, Sequence[Offer]], None]


@dataclass(frozen=True)
class Kubelet:
    """kubelet and its sockets. `folder` has kubelet's registration socket and the plugins' sockets; `pods` is the path
    of the socket of the pod resources API."""

    folder: str
    pods: str

    @property
    def socket(self) -> str:
        return os.path.join(self.folder, "kubelet.sock")

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
        """Register the socket named `endpoint` for the resource. Raises TryAgainLater when the registration fails.

        Before its answer, kubelet calls the plugin's GetDevicePluginOptions, and waits 10 s if the plugin's socket is
        missing. A starting kubelet removes all sockets before it listens, so the socket is checked after connecting.
        """
        options = api.DevicePluginOptions(get_preferred_allocation_available=True)
        request = api.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
        async with grpc.aio.insecure_channel(f"unix:{self.socket}") as channel:
            try:
                async with asyncio.timeout(_SECONDS):
                    while (state := channel.get_state(try_to_connect=True)) not in _SETTLED:
                        await channel.wait_for_state_change(state)  # after a failure, the call reports the reason
                if not os.path.exists(os.path.join(self.folder, endpoint)):
                    raise TryAgainLater(f"kubelet has just started, and has removed the socket of {resource}")
                await services.client(_REGISTRATION, channel).Register(request, timeout=_SECONDS)
            except TimeoutError:
                raise TryAgainLater(f"kubelet does not register {resource}: no answer in {_SECONDS:g} s") from None
            except grpc.aio.AioRpcError as fault:
                why = fault.details() or fault.code().name
                raise TryAgainLater(f"kubelet does not register {resource}: {why}") from None

    async def healthy(self, resource: str) -> frozenset[str] | None:
        """The IDs of the resource's healthy devices in kubelet, from any plugin; None when kubelet does not answer.
        After the end of a plugin's stream, kubelet counts none of its devices as healthy."""
        known = await services.allocatable(self.pods)
        return None if known is None else frozenset(known.get(resource, ()))


class ResourceServer:
    """The server of `resource` for `kubelet`. `allocated(resource, offers)` is called before a container gets devices
    of the offers, and may raise OSError. If `cdi` is true, containers get CDI names."""

    def __init__(self, resource: Resource, kubelet: Kubelet, log: AgentLog, allocated: Allocated, cdi: bool) -> None:
        self.resource = resource
        self.conflict = False
        self.allocations = 0
        self.registrations = 0
        self._kubelet = kubelet
        self._log = log
        self._allocated = allocated
        self._cdi = cdi
        self._list = answers.listing(resource)
        self._changed = asyncio.Event()  # set when the list is to be sent again
        self._server: grpc.aio.Server | None = None
        self._path = ""
        self._seen: tuple[int, ...] = ()  # kubelet's identity at the last check
        self._streams: list[float] = []  # the start times of the open streams
        self._due = 0.0  # the time of the next registration
        self._offered: set[str] = set()  # the names of all devices that were ever offered
        self._looks = 0  # the number of readings since the stream began
        self._look_due = 0.0
        self._sent = 0.0  # when the last list was sent
        self._pause = _RETRY

    @property
    def is_served(self) -> bool:
        """Whether kubelet has an open stream (ListAndWatch) of the list of devices."""
        return bool(self._streams)

    def update(self, resource: Resource) -> None:
        """Offer `resource` from now on, in place of its former state."""
        self.resource = resource
        listing = answers.listing(resource)
        if listing != self._list:
            self._list = listing
            if not self.conflict:
                self._send()

    async def attend(self) -> None:
        """Listen and register if needed, else check kubelet's devices. The plugin's loop calls this periodically."""
        identity = mark(self._kubelet.socket, links=True)  # changes with each start of kubelet; () without kubelet
        if identity != self._seen:
            await self.close()  # the connections belong to a kubelet that is gone
            self._seen, self._due, self._pause = identity, 0.0, _RETRY
        if not identity:
            return
        if self._server is None or not os.path.exists(self._path):
            await self.close()
            await self._listen()
            self._due = 0.0
        if self._streams:
            await self._compare()
            return
        if monotonic() >= self._due:
            await self._register()

    async def close(self) -> None:
        """Stop listening. kubelet then has no healthy device of the resource."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        if self._path:
            with contextlib.suppress(OSError):  # in a read-only folder the socket stays until the next start
                os.unlink(self._path)
        self._streams.clear()

    async def _listen(self) -> None:
        # Each socket has a new name, even in a new process, since kubelet distinguishes connections by their paths.
        name = f"{PREFIX}{answers.plain(self.resource.name)}-{secrets.token_hex(3)}.sock"
        self._path = os.path.join(self._kubelet.folder, name)
        self._server = grpc.aio.server()
        services.serve(_SERVICE, self._server, self)
        try:
            await services.listen(self._server, self._path)
        except OSError as fault:
            self._server = None
            raise TryAgainLater(f"cannot listen at {self._path}: {fault.strerror}") from None

    async def _register(self) -> None:
        name = self.resource.name
        others = await self._kubelet.healthy(name)
        if self._streams:
            return
        pause = self._pause if others or not self.conflict else _RETRY
        self._pause = min(2 * pause, _LONGEST_RETRY)
        if others:
            # For a moment after a start, these may be the devices of this plugin's former process.
            self._due = monotonic() + min(pause, _CONFLICT_SECONDS)
            if pause > _RETRY:
                self._conflicts(len(others))
            return
        self.conflict = False
        self._due = monotonic() + max(_STREAM_SECONDS, pause)
        try:
            await self._kubelet.register(os.path.basename(self._path), name)
        except CniError as fault:
            self._log.state(name, fault.msg, resource=name)
            self._due = monotonic() + self._pause
            return
        self.registrations += 1
        self._log.state(name, "")

    def _conflicts(self, others: int) -> None:
        self.conflict = True
        name = self.resource.name
        text = (
            f"another device plugin serves {name}, with {others} devices: remove it, or give the resource another name"
        )
        self._log.state(name, text, resource=name)

    async def _compare(self) -> None:
        """Send the list again if kubelet has other devices. If another plugin serves the resource, only log this."""
        now = monotonic()
        if now - self._streams[0] > _STABLE:
            self._pause = _RETRY
        if now < self._look_due:
            return
        known = await self._kubelet.healthy(self.resource.name)
        others = (known or frozenset()) - self._offered
        if others:
            self._look_due = monotonic() + _CONFLICT_SECONDS
            self._conflicts(len(others))
            return
        if self.conflict:
            self.conflict, self._looks = False, 0
            self._log.state(self.resource.name, "")
        if known is None:
            differs = self._looks < len(_LOOKS) or now - self._sent > _UNASKED_SECONDS
        else:
            differs = known != {one for offer in self.resource.offers if not offer.fault for one in offer.ids}
        if differs:
            self._send()
        self._look_due = monotonic() + _LOOKS[min(self._looks, len(_LOOKS) - 1)]
        self._looks += 1

    def _send(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- what kubelet calls ---

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[api.ListAndWatchResponse]:
        began = monotonic()
        self._streams.append(began)
        self._looks, self._look_due = 1, began + _LOOKS[0]
        self._log.say("info", "kubelet listens", resource=self.resource.name, devices=self.resource.healthy)
        try:
            while True:
                changed = self._changed
                self._sent = monotonic()
                self._offered |= self.resource.ids
                yield self._list
                await changed.wait()
        finally:
            if began in self._streams:
                self._streams.remove(began)
            self._due = min(self._due, monotonic() + self._pause)

    async def Allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        answer = api.AllocateResponse()
        for container in request.container_requests:
            ids = list(container.devices_ids)
            try:
                self._allocated(self.resource, answers.offers(self.resource, ids))
                answer.container_responses.append(answers.allocation(self.resource, ids, self._cdi))
            except LookupError as fault:
                await context.abort(grpc.StatusCode.NOT_FOUND, str(fault.args[0]))
            except OSError as fault:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"{fault.filename}: {fault.strerror}")
            self.allocations += 1
            self._log.say("info", "allocated", resource=self.resource.name, devices=",".join(ids))
        return answer

    async def GetPreferredAllocation(self, request: api.PreferredAllocationRequest, context: Any) -> Any:
        answer = api.PreferredAllocationResponse()
        for one in request.container_requests:
            ids = answers.preferred(
                self.resource, one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
            )
            answer.container_responses.add(deviceIDs=ids)
        return answer


def remove_stale(folder: str) -> None:
    """Remove the sockets of killed device plugins in `folder`. A missing or read-only folder is no error."""
    for path in Path(folder).glob(f"{PREFIX}*.sock"):
        with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(OSError):
            try:
                caller.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
