"""The two sockets at which kubelet calls the DRA driver: the registration, and the services for claims and health."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from cni.node.service.log import AgentLog
from cni.node.service.program import pause
from cni.resources.containers import DRIVER, Record, cdi_ids, own_folder
from cni.resources.kubelet import dra_health_v1_pb2 as health
from cni.resources.kubelet import dra_v1_pb2 as api
from cni.resources.kubelet import plugin_registration_v1_pb2 as registration
from cni.resources.kubelet import services
from cni.shared.spec.errors import CniError

_REGISTRATION = registration.DESCRIPTOR.services_by_name["Registration"]
_PLUGIN = api.DESCRIPTOR.services_by_name["DRAPlugin"]
_HEALTH = health.DESCRIPTOR.services_by_name["DRAResourceHealth"]
_HEALTH_VERSIONS = ("v1", "v1alpha1")  # their messages are the same
_AGAIN_SECONDS = 20.0  # between two lists of health: kubelet forgets a device's health after 30 s
_LONGEST_MESSAGE = 1024  # characters

State = tuple[str, str, str]  # (pool, device, the reason why the device is not healthy or "")
Change = Callable[[Record], Record | None]  # from a claim's uid, namespace and name to its record or None


class Endpoint:
    """The driver's sockets in `folder`, kubelet's folder (/var/lib/kubelet). A thread calls `prepare` and `unprepare`,
    one at a time; both may raise CniError and OSError. After each registration by kubelet, `registered` is called."""

    def __init__(
        self, folder: str, log: AgentLog, prepare: Change, unprepare: Change, registered: Callable[[], object]
    ) -> None:
        self.own = own_folder(folder)
        self._socket = os.path.join(self.own, "dra.sock")
        self._registry = os.path.join(folder, "plugins_registry", f"{DRIVER}-reg.sock")
        self._log = log
        self._prepare = prepare
        self._unprepare = unprepare
        self._registered = registered
        self._servers: list[grpc.aio.Server] = []
        self.turn = asyncio.Lock()  # for calls that change claims
        self._states: tuple[State, ...] = ()
        self._changed = asyncio.Event()
        self.fault = "kubelet has not registered the driver"
        self.prepared = 0

    async def attend(self) -> None:
        """Listen, unless both sockets exist. Raises OSError when listening fails."""
        if self._servers and os.path.exists(self._socket) and os.path.exists(self._registry):
            return
        await self.close()
        if not os.path.isdir(folder := os.path.dirname(self._registry)):
            raise FileNotFoundError(2, "start kubelet, or name its folder with --kubelet-root", folder)
        os.makedirs(self.own, mode=0o750, exist_ok=True)
        plugin, registrar = self._servers = [grpc.aio.server(), grpc.aio.server()]
        services.serve(_PLUGIN, plugin, self)
        for version in _HEALTH_VERSIONS:
            services.serve(_HEALTH, plugin, self, f"{version}.{_HEALTH.name}")
        services.serve(_REGISTRATION, registrar, self)
        await services.listen(plugin, self._socket)  # first, since kubelet calls it as soon as the other exists
        await services.listen(registrar, self._registry)

    async def close(self) -> None:
        """Stop listening. kubelet deletes the node's slices unless a driver registers within half a minute."""
        for path in (self._registry, self._socket):
            with contextlib.suppress(OSError):  # in a read-only folder the socket stays until the next start
                os.unlink(path)
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(None) for server in servers))

    def tell(self, states: Iterable[State]) -> None:
        """Set the devices' health to `states`. After a change, the open streams send it to kubelet."""
        if self._states != (new := tuple(states)):
            self._states = new
            self._changed.set()
            self._changed = asyncio.Event()

    # --- what kubelet calls ---

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        spoken = ["v1.DRAPlugin", *(f"{version}.{_HEALTH.name}" for version in _HEALTH_VERSIONS)]
        return registration.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint=self._socket, supported_versions=spoken)

    async def NotifyRegistrationStatus(self, request: registration.RegistrationStatus, context: Any) -> Any:
        self.fault = "" if request.plugin_registered else f"kubelet does not register the driver: {request.error}"
        self._log.state("registration", self.fault)
        if request.plugin_registered:
            self._log.say("info", "kubelet has registered the driver", driver=DRIVER)
            self._registered()
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: api.NodePrepareResourcesRequest, context: Any) -> Any:
        answer = api.NodePrepareResourcesResponse()
        for claim in request.claims:
            one = answer.claims[claim.uid]
            record, one.error = await self._called("prepare", claim, self._prepare)
            for number, device in enumerate(record["devices"] if record else ()):
                one.devices.add(
                    request_names=[device["request"]],
                    pool_name=device["pool"],
                    device_name=device["device"],
                    cdi_device_ids=cdi_ids(record, number),
                    share_id=device["share"] or None,
                )
            self.prepared += record is not None
        return answer

    async def NodeUnprepareResources(self, request: api.NodeUnprepareResourcesRequest, context: Any) -> Any:
        answer = api.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            _, answer.claims[claim.uid].error = await self._called("unprepare", claim, self._unprepare)
        return answer

    async def _called(self, what: str, claim: api.Claim, function: Change) -> tuple[Any, str]:
        """Call `function` in a thread. Returns (its result, "") or, after logging a fault, (None, reason)."""
        fields = {"claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid}
        async with self.turn:
            try:
                one = {"uid": claim.uid, "namespace": claim.namespace, "name": claim.name}
                given = await asyncio.to_thread(function, one)
            except CniError as fault:
                said = fault.msg
            except OSError as fault:
                said = services.refusal(fault)
            else:
                self._log.say("info", f"{what}d", **fields)
                return given, ""
        self._log.say("warning", f"{what}: {said}", **fields)
        return None, said

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        while True:
            changed, answer, now = self._changed, health.NodeWatchResourcesResponse(), int(time.time())
            for pool, device, fault in self._states:
                answer.devices.add(
                    device=health.DeviceIdentifier(pool_name=pool, device_name=device),
                    health=health.UNHEALTHY if fault else health.HEALTHY,
                    last_updated_time=now,
                    message=fault[:_LONGEST_MESSAGE],
                )
            yield answer
            await pause(changed, _AGAIN_SECONDS)
