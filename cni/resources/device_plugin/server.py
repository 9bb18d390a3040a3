"""One resource at kubelet: the gRPC service at a socket of its own, its registration, and whether kubelet listens.

kubelet ends a stream without a word: when it restarts, when another plugin takes the resource, and, after a plugin
restarted quickly, when it mistakes the new connection for the old one. So what counts is not that a registration
succeeded but that a stream is open, and that kubelet then has the devices that are offered: it sets all devices of a
resource to unhealthy when any connection of the resource ends. So kubelet is asked what it has, soon after a stream has
begun and then now and then, and the list is sent again when it differs.

Devices that were never offered here are another plugin's, which has registered later: kubelet then asks that one for
allocations, though it goes by the last list of either. So no list is sent from here until that plugin has gone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import grpc.aio

from cni.node.service.log import AgentLog
from cni.resources.choose import Offer, Resource
from cni.resources.device_plugin import answers
from cni.resources.device_plugin.kubelet import Kubelet
from cni.resources.kubelet import device_plugin_v1beta1_pb2 as api
from cni.resources.kubelet import services
from cni.shared.spec.errors import CniError, TryAgainLater

_SERVICE = api.DESCRIPTOR.services_by_name["DevicePlugin"]
PREFIX = "railcni-"  # of the names of the sockets
_STREAM_SECONDS = 2.0  # in which kubelet opens the stream after a registration
_RETRY, _LONGEST_RETRY = 0.25, 30.0
_STABLE = 60.0  # seconds of a stream after which a fault is no repetition of the last
_LOOKS = (0.3, 0.7, 1.0, 10.0)  # seconds between looks at what kubelet has, the last for ever
_CONFLICT_SECONDS = 2.0  # between two looks at a resource that another plugin serves, the first ones apart
_UNASKED_SECONDS = 60.0  # between two lists for a kubelet that does not say what it has, the first ones apart

Allocated = Callable[[Resource, Sequence[Offer]], None]


class ResourceServer:
    """Serves `resource` to `kubelet`. `allocated` is called with what a container is about to get, and may raise OSError."""

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
        self._changed = asyncio.Event()  # set when another list than the last one is to be sent
        self._server: grpc.aio.Server | None = None
        self._path = ""
        self._seen: tuple[int, ...] = ()  # kubelet's identity at the last look
        self._streams: list[float] = []  # when each that is open began
        self._due = 0.0  # of the next registration
        self._offered: set[str] = set()  # the names of all devices that were ever offered
        self._looks = 0  # since the stream began
        self._look_due = 0.0
        self._sent = 0.0  # when the last list was sent
        self._pause = _RETRY

    @property
    def is_served(self) -> bool:
        """Whether kubelet listens."""
        return bool(self._streams)

    def update(self, resource: Resource) -> None:
        """Offer this from now on."""
        self.resource = resource
        listing = answers.listing(resource)
        if listing != self._list:
            self._list = listing
            if not self.conflict:
                self._send()

    async def attend(self) -> None:
        """Listen and register if needed. Called again and again; waits for nothing but the answers of kubelet."""
        identity = self._kubelet.identity()
        if identity != self._seen:
            await self.close()  # no connection of a kubelet that is gone is left
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
        """Listen no more; kubelet has no healthy device of the resource from then on."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
        if self._path:
            Path(self._path).unlink(missing_ok=True)
        self._streams.clear()

    async def _listen(self) -> None:
        # A name of its own each time, of each process too: kubelet tells connections apart by their paths.
        name = f"{PREFIX}{answers.plain(self.resource.name)}-{secrets.token_hex(3)}.sock"
        self._path = os.path.join(self._kubelet.folder, name)
        self._server = grpc.aio.server()
        services.serve(_SERVICE, self._server, self)
        try:
            await services.listen(self._server, self._path)
        except OSError as fault:
            self._server = None
            why = self._kubelet.fault() or f": {fault.strerror}"
            raise TryAgainLater(f"cannot listen at {self._path}{why}") from None

    async def _register(self) -> None:
        name = self.resource.name
        others = await self._kubelet.healthy(name)
        if self._streams:
            return
        if others:
            # For a moment after a start these are the devices of this plugin's own former process.
            self._due = monotonic() + min(self._pause, _CONFLICT_SECONDS)
            if self._pause > _RETRY:
                self._conflicts(len(others))
            self._pause = min(2 * self._pause, _LONGEST_RETRY)
            return
        if self.conflict:
            self.conflict, self._pause = False, _RETRY
        self._due = monotonic() + max(_STREAM_SECONDS, self._pause)
        self._pause = min(2 * self._pause, _LONGEST_RETRY)
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
        """Send the list again when kubelet has other devices, unless these are another plugin's."""
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
            differs = known != self.resource.healthy_ids
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
    """Remove the sockets in `folder` that processes of ours have left, which were killed: nobody listens there."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(PREFIX) and name.endswith(".sock"):
            with socket.socket(socket.AF_UNIX) as caller:
                try:
                    caller.connect(path)
                except ConnectionRefusedError:
                    Path(path).unlink(missing_ok=True)
                except OSError:
                    pass
