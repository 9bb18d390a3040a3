"""The device plugin put together: one loop that looks at the configuration, the devices and kubelet."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from cni import VERSION
from cni.device_plugin import answers, server
from cni.device_plugin.choose import Host, Offer, Resource, resources
from cni.device_plugin.kubelet import Kubelet
from cni.device_plugin.node import config_state, host_state, read_config, read_host
from cni.device_plugin.server import Endpoint
from cni.library.documents.diagnostic import ERROR
from cni.library.resources.config import Config
from cni.library.service.endpoint import TEXT, HttpEndpoint
from cni.library.service.log import AgentLog
from cni.library.service.metrics import CONTENT_TYPE, Counter, Family
from cni.library.vfs.apply import apply
from cni.shared.kernel import files, rdma_sysfs
from cni.shared.spec.errors import CniError, InvalidConfig

_TICK = 0.2  # seconds between two looks at kubelet
_LOOK_SECONDS = 0.5  # between two looks at the configuration and the devices
_SETTLE_SECONDS = 3.0  # after a change until a second look: the GIDs of a port come some time after its state
_CDI = "/var/run/cdi"
_INFO = "/var/run/k8s.cni.cncf.io/devinfo/dp"


class Plugin:
    """What `options` ask for. InvalidConfig when a file of the configuration cannot be read at the start."""

    def __init__(self, options: argparse.Namespace, log: AgentLog) -> None:
        self._options = options
        self._log = log
        self._root = options.root.rstrip("/")
        self._kubelet = Kubelet(options.kubelet_dir, options.pod_resources)
        self._endpoints: dict[str, Endpoint] = {}
        self._host = Host()
        self._host_state: tuple[object, ...] = ()
        self._config_state = config_state(options.config)
        self._config = read_config(options.config)
        self._due = 0.0  # of the next look at everything
        self._unmade: list[str] = []  # why there are no VFs that the configuration asks for
        self._unwritten = ""  # why there is no specification of the devices for --cdi
        if not self._config.is_whole:
            faults = [f.sentence for f in self._config.findings if f.severity == ERROR]
            raise InvalidConfig(faults[0], "\n".join(faults[1:]))
        self._read(self._config)

    async def run(self, ended: asyncio.Event) -> None:
        """Serve until `ended`."""
        try:
            server.remove_stale(self._kubelet.folder)
        except FileNotFoundError:
            pass  # kubelet makes it
        look_due = 0.0
        await asyncio.to_thread(self._make_vfs)  # first of all: kubelet has no function from here yet that would go
        try:
            while not ended.is_set():
                if monotonic() >= look_due:
                    try:
                        await self._look()
                    except OSError as fault:  # of a device that vanishes meanwhile: the next look is without it
                        self._log.state("look", f"{fault.filename}: {fault.strerror}")
                    look_due = monotonic() + _LOOK_SECONDS
                await asyncio.gather(*(self._attend(endpoint) for endpoint in self._endpoints.values()))
                try:
                    await asyncio.wait_for(ended.wait(), _TICK)
                except TimeoutError:
                    pass
        finally:
            await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints.values()))

    async def _attend(self, endpoint: Endpoint) -> None:
        try:
            await endpoint.attend()
        except (CniError, OSError) as fault:
            self._log.state(endpoint.resource.name, str(fault), resource=endpoint.resource.name)

    def _make_vfs(self) -> None:
        if self._config.policies:
            kubelet = self._options.kubelet_dir
            self._unmade = apply(
                self._config.policies, self._root, kubelet, lambda s: self._log.say("info", s.sentence)
            )
        for reason in self._unmade:
            self._log.say("error", reason)

    def _read(self, config: Config) -> None:
        """Go by this configuration, unless it could not be read; say what is wrong with it."""
        for finding in config.findings:
            level = "error" if finding.severity == ERROR else "warning"
            self._log.say(level, finding.message, place=finding.place, key=finding.key, fix=finding.fix)
        if config.is_whole:
            if config.policies != self._config.policies:
                self._log.say(
                    "warning", "the configuration asks for other virtual functions: they are made at the next start"
                )
            self._config = config
            self._log.say("info", "the configuration was read", resources=len(config.resources))
        else:
            self._config.findings = config.findings
            self._log.say("error", "the configuration cannot be read: the former one stays in use")

    async def _look(self) -> None:
        """See whether the configuration, a device or a port has changed, or it is time, and offer what there is now."""
        state = config_state(self._options.config)
        if state != self._config_state:
            self._config_state, self._due = state, 0.0
            self._read(read_config(self._options.config))
        state = host_state(self._host, self._root)
        if state == self._host_state and monotonic() < self._due:
            return
        self._host = read_host(self._root, self._host)
        period = self._config.period or math.inf
        self._due = monotonic() + (period if state == self._host_state else min(period, _SETTLE_SECONDS))
        self._host_state = state
        await self._offer(resources(self._config.resources, self._host))

    async def _offer(self, found: Sequence[Resource]) -> None:
        if self._options.cdi:
            self._write_cdi(found)
        for name in self._endpoints.keys() - {resource.name for resource in found}:
            await self._endpoints.pop(name).close()
            self._log.say("info", "is not configured any more", resource=name)
        for resource in found:
            withheld = "; ".join(f"{name} is {reason}" for name, reason in resource.withheld.items())
            self._log.state(f"{resource.name} withheld", withheld, resource=resource.name)
            endpoint = self._endpoints.get(resource.name)
            if endpoint is None:
                endpoint = Endpoint(resource, self._kubelet, self._log, self._allocated, self._options.cdi)
                self._endpoints[resource.name] = endpoint
            elif not endpoint.update(resource):
                continue
            faults = "; ".join(offer.fault for offer in resource.offers if offer.fault)
            self._log.state(f"{resource.name} devices", faults or resource.unchosen, resource=resource.name)
            self._log.state(f"{resource.name} limit", resource.limit, resource=resource.name)

    def _allocated(self, resource: Resource, offers: Sequence[Offer]) -> None:
        """Write what Multus reads of each device before it calls the network's plugins; OSError."""
        for offer in offers if resource.is_exclusive else ():
            _write(f"{self._root}{_INFO}", answers.file_name(resource.name, offer.name), offer.file)

    def _write_cdi(self, found: Sequence[Resource]) -> None:
        """Have a specification for each resource, and none of one that is gone. Those that are in use stay while the plugin
        is away: the runtime reads them again when a container is restarted."""
        folder = f"{self._root}{_CDI}"
        wanted = {f"{server.PREFIX}{answers.plain(r.name)}.json": answers.cdi_document(r) for r in found}
        wanted = {name: document for name, document in wanted.items() if document["devices"]}
        self._unwritten = ""
        try:
            for name, document in wanted.items():
                _write(folder, name, document)
            for name in os.listdir(folder):
                if name.startswith(server.PREFIX) and name not in wanted:
                    Path(folder, name).unlink(missing_ok=True)
        except OSError as fault:
            remedy = f"no container with a device starts; mount {_CDI} of the node at {folder}, and writable"
            self._unwritten = f"{folder}: {fault.strerror}: {remedy}"
        self._log.state("cdi", self._unwritten)

    # --- health and metrics ---

    def ready(self) -> tuple[int, str, str]:
        """503 with what is wrong: a resource that kubelet does not have from here or that chooses nothing, a fault of the
        configuration. 200 names the resources with fewer devices than the configuration asks for."""
        faults = [f.sentence for f in self._config.findings if f.severity == ERROR]
        faults += [*self._unmade, *filter(None, [self._unwritten])]
        for name, endpoint in self._endpoints.items():
            if endpoint.conflict:
                faults.append(f"another device plugin serves {name}")
            elif not endpoint.is_served:
                faults.append(f"kubelet does not listen to {name}{self._kubelet.fault()}")
            if endpoint.resource.unchosen:
                faults.append(f"{name}: {endpoint.resource.unchosen}")
        if faults:
            return 503, TEXT, "\n".join(faults)
        limits = [f"{name}: {e.resource.limit}" for name, e in self._endpoints.items() if e.resource.limit]
        return 200, TEXT, "\n".join(["ok", *limits])

    def metrics(self) -> tuple[int, str, str]:
        devices = Family("railcni_device_plugin_devices", "Devices by their health.", "resource", "health")
        served = Family("railcni_device_plugin_served", "1 while kubelet listens.", "resource")
        conflict = Family("railcni_device_plugin_conflict", "1 while another plugin has it.", "resource")
        registered = Counter("railcni_device_plugin_registrations_total", "Registrations.", "resource")
        allocated = Counter("railcni_device_plugin_allocations_total", "Containers served.", "resource")
        for name, endpoint in self._endpoints.items():
            total = sum(len(offer.ids) for offer in endpoint.resource.offers)
            devices.set(endpoint.resource.healthy, name, "healthy")
            devices.set(total - endpoint.resource.healthy, name, "unhealthy")
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
        families = (devices, served, conflict, registered, allocated, entries, size)
        return 200, CONTENT_TYPE, "".join(f"{line}\n" for family in families for line in family.lines())


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM; the exit code."""
    return asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> int:
    log = AgentLog()
    plugin = Plugin(options, log)
    ended = asyncio.Event()
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, ended.set)
    pages = {"/healthz": lambda: (200, TEXT, "ok"), "/readyz": plugin.ready, "/metrics": plugin.metrics}
    http = HttpEndpoint(options.listen, pages)
    try:
        log.say("info", "railcni device-plugin serves", version=VERSION, url=f"{http.url}/readyz")
        await plugin.run(ended)
    finally:
        http.close()
    log.say("info", "ended by a signal")
    return 0


def _write(folder: str, name: str, document: object) -> None:
    """Make the file `name` hold the document, whole or as it was before; OSError."""
    os.makedirs(folder, exist_ok=True)
    files.write_whole(folder, name, json.dumps(document).encode(), mode=0o644)
