"""The device plugin: one loop that checks the configuration, the devices and kubelet."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from time import monotonic

from cni.node.service.endpoint import readiness
from cni.node.service.log import AgentLog
from cni.node.service.metrics import Counter, Family, page
from cni.node.service.program import pause, serve
from cni.resources.choose import Offer, Resource
from cni.resources.containers import CDI_FOLDER, INFO_FOLDER, info_name, remove_others, write
from cni.resources.device_plugin import answers, server
from cni.resources.device_plugin.server import Kubelet, ResourceServer
from cni.resources.kubelet import services
from cni.resources.node import Watch
from cni.resources.vfs.apply import apply
from cni.shared.kernel import rdma_sysfs
from cni.shared.spec.errors import CniError

_TICK = 0.2  # seconds between two checks of kubelet
_LOOK_SECONDS = 0.5  # seconds between two checks of the configuration and the devices


class Plugin:
    """The node's device plugin. It makes the configured virtual functions, and serves each resource to kubelet."""

    def __init__(self, options: argparse.Namespace, log: AgentLog) -> None:
        self._options = options
        self._log = log
        self._root = options.root.rstrip("/")
        self._kubelet = Kubelet(options.kubelet_dir, options.pod_resources)
        self._endpoints: dict[str, ResourceServer] = {}
        self._watch = Watch(options.config, self._root, log)
        self._unmade: list[str] = []  # the reasons why VFs of the configuration are missing
        self._unwritten = ""  # the reason why CDI specifications are missing, with --cdi

    async def run(self, ended: asyncio.Event) -> None:
        server.remove_stale(self._kubelet.folder)
        look_due = 0.0
        await asyncio.to_thread(self._make_vfs)  # before the plugin offers kubelet a VF that this call may remove
        try:
            while not ended.is_set():
                if monotonic() >= look_due:
                    try:
                        await self._look()
                    except OSError as fault:  # such as a device that vanishes while it is read
                        self._log.state("look", services.refusal(fault))
                    look_due = monotonic() + _LOOK_SECONDS
                unserved = any(not endpoint.is_served for endpoint in self._endpoints.values())
                unusable = self._kubelet.fault() if unserved else ""
                self._log.state("kubelet", unusable)
                if not unusable:
                    await asyncio.gather(*(self._attend(endpoint) for endpoint in self._endpoints.values()))
                await pause(ended, _TICK)
        finally:
            await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    async def _attend(self, endpoint: ResourceServer) -> None:
        try:
            await endpoint.attend()
        except (CniError, OSError) as fault:
            self._log.state(endpoint.resource.name, str(fault), resource=endpoint.resource.name)

    def _make_vfs(self) -> None:
        if policies := self._watch.config.policies:
            kubelet = self._options.kubelet_dir
            self._unmade = apply(policies, self._root, kubelet, lambda s: self._log.say("info", s.sentence))
        for reason in self._unmade:
            self._log.say("error", reason)

    async def _look(self) -> None:
        """If the configuration or a device has changed, serve the resources and devices that exist now."""
        if not self._watch.look():
            return
        found = self._watch.resources
        if self._options.cdi:
            self._write_cdi(found)
        for name in self._endpoints.keys() - {resource.name for resource in found}:
            await self._endpoints.pop(name).close()
            self._log.say("info", "is not configured any more", resource=name)
        for resource in found:
            if endpoint := self._endpoints.get(resource.name):
                endpoint.update(resource)
            else:
                endpoint = ResourceServer(resource, self._kubelet, self._log, self._allocated, self._options.cdi)
                self._endpoints[resource.name] = endpoint

    def _allocated(self, resource: Resource, offers: Sequence[Offer]) -> None:
        """Write the device-info file of each offer, for Multus. Raises OSError when writing fails."""
        for offer in offers if resource.is_exclusive else ():
            write(f"{self._root}{INFO_FOLDER}", info_name(resource.name, offer.name), offer.file)

    def _write_cdi(self, found: Sequence[Resource]) -> None:
        """Write the CDI specification of each resource, and remove those of resources that are no longer configured.
        The files stay when the plugin ends, since the runtime reads them again when a container is restarted."""
        folder = f"{self._root}{CDI_FOLDER}"
        wanted = {f"{server.PREFIX}{answers.plain(r.name)}.json": answers.cdi_document(r) for r in found}
        wanted = {name: document for name, document in wanted.items() if document["devices"]}
        self._unwritten = ""
        try:
            for name, document in wanted.items():
                write(folder, name, document)
            remove_others(folder, server.PREFIX, wanted)
        except OSError as fault:
            remedy = f"no container with a device starts; mount {CDI_FOLDER} of the node at {folder}, and writable"
            self._unwritten = f"{folder}: {fault.strerror}: {remedy}"
        self._log.state("cdi", self._unwritten)

    # --- health and metrics ---

    def ready(self) -> tuple[int, str, str]:
        """Return (HTTP status, content type, text) for /readyz: 503 with all faults, such as a resource that matches no
        device or that kubelet does not use; otherwise 200 with each resource that has fewer devices than configured."""
        faults = [*self._watch.faults, *self._unmade, *filter(None, [self._unwritten])]
        fault = self._kubelet.fault()
        for name, endpoint in self._endpoints.items():
            if endpoint.conflict:
                faults.append(f"another device plugin serves {name}")
            elif not endpoint.is_served:
                faults.append(f"kubelet does not listen to {name}{fault and f': {fault}'}")
        return readiness(faults, self._watch.limits)

    def metrics(self) -> tuple[int, str, str]:
        devices = Family("railcni_device_plugin_devices", "Devices by their health.", "resource", "health")
        served = Family("railcni_device_plugin_served", "1 while kubelet listens.", "resource")
        conflict = Family("railcni_device_plugin_conflict", "1 while another plugin has it.", "resource")
        registered = Counter("railcni_device_plugin_registrations_total", "Registrations.", "resource")
        allocated = Counter("railcni_device_plugin_allocations_total", "Containers served.", "resource")
        for name, endpoint in self._endpoints.items():
            resource = endpoint.resource
            devices.set(resource.healthy, name, "healthy")
            devices.set(len(resource.ids) - resource.healthy, name, "unhealthy")
            served.set(endpoint.is_served, name)
            conflict.set(endpoint.conflict, name)
            registered.set(endpoint.registrations, name)
            allocated.set(endpoint.allocations, name)
        entries = Family("railcni_gid_table_entries", "GIDs that a port has.", "device", "port")
        size = Family("railcni_gid_table_size", "GIDs that a port has room for.", "device", "port")
        sys = f"{self._root}/sys"
        for device, port in ((d, p) for d in rdma_sysfs.devices(sys) for p in rdma_sysfs.ports(d, sys)):
            entries.set(sum(1 for _ in rdma_sysfs.gid_values(device, port, sys)), device, str(port))
            size.set(rdma_sysfs.gid_table_size(device, port, sys), device, str(port))
        return page(devices, served, conflict, registered, allocated, entries, size)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    plugin = Plugin(options, log := AgentLog(options.log_level))
    pages = {"/readyz": plugin.ready, "/metrics": plugin.metrics}
    return asyncio.run(serve("device-plugin", options.listen, pages, plugin.run, log))
