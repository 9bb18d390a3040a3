"""The DRA driver: one loop that checks the configuration, the devices, kubelet and the ResourceSlices."""

from __future__ import annotations

import argparse
import asyncio
import os
from time import monotonic

from cni.node.inventory import attachments, places
from cni.node.service.endpoint import readiness
from cni.node.service.log import AgentLog
from cni.node.service.metrics import Counter, Family, page
from cni.node.service.program import pause, serve
from cni.resources.choose import except_held
from cni.resources.containers import DRIVER, Record, named, records_folder
from cni.resources.dra import slices
from cni.resources.dra.claims import Claims
from cni.resources.dra.kubelet import Endpoint
from cni.resources.dra.publish import Publisher, Statuses, allocated
from cni.resources.kubelet import services
from cni.resources.node import Watch, read_topology
from cni.shared.kernel.node import host_name
from cni.shared.records import LINK, STATE
from cni.shared.spec.errors import CniError, InvalidConfig

_TICK = 0.5  # seconds between two checks of the configuration, the devices and the sockets
_OTHERS_SECONDS = 5.0  # seconds between two checks of the resources of device plugins
# Seconds until the slices are next compared with those at the API server, doubled after each comparison without a
# difference. A kubelet that could not delete the slices at its start may delete them after the driver has written them.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_KUBELETS = "kubelet ends that when the claim's pods have ended"
_UNMADE = "the configuration asks for virtual functions, which this program does not make: run `railcni vfs apply`"


class Driver:
    """The driver, configured by the `options` of the command."""

    def __init__(self, options: argparse.Namespace, log: AgentLog) -> None:
        self._log = log
        self._root = options.root.rstrip("/")
        self._kubeconfig = options.kubeconfig
        self._pods = os.path.join(options.kubelet_root, "pod-resources", "kubelet.sock")
        self._node = options.node or host_name()
        self._watch = Watch(options.config, self._root, log)
        self._endpoint = Endpoint(options.kubelet_root, log, self._prepare, self._unprepare, self._registered)
        self._claims = Claims(records_folder(options.kubelet_root), self._root, self._holder)
        self._publisher = Publisher(options.kubeconfig, self._node)
        self._statuses = Statuses(options.kubeconfig, f"{self._root}{STATE}")
        self._others: dict[str, int] = {}  # resources of device plugins, with the number of their devices
        self._held: set[str] = set()  # the devices that device plugins have given to pods
        self._devices: dict[str, slices.Device] = {}
        self._records: dict[str, Record] = {}
        self._asked: set[str] = set()  # claims prepared since the last registration, which kubelet will unprepare
        self._publish_due = float("inf")  # never before the devices are read: this would delete all slices
        self._others_due, self._statuses_due, self._fault, self._untold = 0.0, 0.0, "", ""
        self._pause, self._compares_claims = _FIRST_PAUSE, True
        self._news = asyncio.Event()  # ends the pause between two checks
        self._unpublished = "the ResourceSlices are not published yet"

    async def run(self, ended: asyncio.Event) -> None:
        self._log.state("virtual functions", _UNMADE if self._watch.config.policies else "")
        self._records = {one["uid"]: one for one in await asyncio.to_thread(self._claims.restore)}
        end = asyncio.create_task(ended.wait())
        end.add_done_callback(lambda _: self._news.set())
        try:
            while not ended.is_set():
                self._news.clear()
                try:
                    await self._look()
                    await self._endpoint.attend()
                    self._fault = ""
                except OSError as fault:  # also when a device vanishes while it is read
                    self._fault = services.refusal(fault)
                self._log.state("look", self._fault)
                # Publish only after registration, since kubelet retries a pod without its driver only after a minute.
                if monotonic() >= self._publish_due and not self._endpoint.fault:
                    await self._publish()
                if monotonic() >= self._statuses_due:
                    await self._tell_claims()
                await pause(self._news, _TICK)
        finally:
            await self._endpoint.close()

    async def _look(self) -> None:
        """Offer the devices that exist now, but not those of resources that a device plugin serves."""
        is_new = self._watch.look()
        if not is_new and monotonic() < self._others_due:
            return
        self._others_due = monotonic() + _OTHERS_SECONDS
        served, given = await services.allocatable(self._pods), await services.held(self._pods)
        found = self._watch.resources
        others = self._others if served is None else {r.name: len(served[r.name]) for r in found if served.get(r.name)}
        held = self._held if given is None else {one.name for r in found for one in r.offers if one.name in given}
        if not is_new and others.keys() == self._others.keys() and held == self._held:
            return
        self._others, self._held = others, held
        for resource in found:
            self._log.state(f"{resource.name} served", self._refusal(resource.name), resource=resource.name)
        host, rails = self._watch.host, self._watch.config.rails
        ours = [except_held(resource, held) for resource in found if not self._refusal(resource.name)]
        devices = slices.devices(ours, host, read_topology(host, self._root), rails)
        self._devices = {device.name: device for device in devices}
        why = f"pods have {', '.join(sorted(held))} from a device plugin: claims get them when these pods have ended"
        self._log.state("held", why if held else "")
        self._publish_due = 0.0
        self._tell()

    def _refusal(self, name: str) -> str:
        """The reason why the resource `name` is not published; "" when it is."""
        if name not in self._others:
            return slices.unpublishable(name)
        return (
            f"a device plugin serves {name}, with {self._others[name]} devices, so no claim gets it: a NIC or function would be"
            " given twice. Remove the resource from the device plugin's configuration, or from this one"
        )

    def _tell(self) -> None:
        """Tell kubelet the health of all devices, also of those that are gone but still in claims."""
        states = {name: device.offer.fault for name, device in self._devices.items()}
        for record in self._records.values():
            for one in record["devices"]:
                states.setdefault(one["device"], f"{one['function']} is gone, or not offered any more")
        self._endpoint.tell((self._node, name, fault) for name, fault in states.items())
        gone = [name for name in states if name not in self._devices]
        self._log.state("gone", f"claims have devices that are gone: {', '.join(gone)}" if gone else "")

    async def _publish(self) -> None:
        devices, fault = list(self._devices.values()), ""
        self._publish_due = float("inf")  # before the calls, since a registration meanwhile sets it to 0
        try:
            if is_changed := await asyncio.to_thread(self._publisher.publish, devices):
                self._log.say("info", "published", devices=len(devices), generation=self._publisher.generation)
            if self._compares_claims:
                self._compares_claims = False  # before the call, since a registration meanwhile sets it again
                async with self._endpoint.turn:
                    await asyncio.to_thread(self._compare_claims)
        except (CniError, OSError) as error:
            is_changed, fault, self._compares_claims = False, str(error), True
        if is_changed or bool(fault) != bool(self._unpublished):
            self._pause = _FIRST_PAUSE
        self._unpublished = fault
        self._publish_due = min(self._publish_due, monotonic() + self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._log.state("publish", self._unpublished)
        self._log.state("lack", "; ".join(self._publisher.lacks))

    async def _tell_claims(self) -> None:
        try:
            await asyncio.to_thread(self._statuses.tell, list(self._records.values()))
            self._untold = ""
        except (CniError, OSError) as fault:
            self._statuses_due = monotonic() + _OTHERS_SECONDS
            self._untold = f"claims do not show what their pods have: {fault}"
        self._log.state("status", self._untold)

    def _registered(self) -> None:
        """Make the loop compare slices and claims now, as a restarted kubelet deletes slices and may forget claims."""
        self._publish_due, self._others_due, self._pause, self._compares_claims = 0.0, 0.0, _FIRST_PAUSE, True
        self._asked = set()
        self._news.set()

    # --- claims; in a thread, one at a time ---

    def _prepare(self, asked: Record) -> Record:
        if (found := allocated(self._kubeconfig, asked)) is None:
            raise InvalidConfig(f"{named(asked)} is gone, is another one by now, or has no device")
        allocation, pods = found
        parameters = [config.get("opaque") or {} for config in allocation.get("config") or ()]
        if any(one.get("driver") == DRIVER for one in parameters):
            remedy = "remove them from the claim or its DeviceClass"
            raise InvalidConfig(f"{named(asked)}: {DRIVER} takes no parameters: {remedy}")
        results = [r for r in allocation.get("results") or () if (r["driver"], r["pool"]) == (DRIVER, self._node)]
        record = self._claims.prepare(asked | {"pods": pods}, results, self._devices)
        self._asked.add(asked["uid"])
        self._records = {one["uid"]: one for one in self._claims.records()}
        return record

    def _unprepare(self, claim: Record) -> None:
        self._claims.unprepare(claim["uid"])
        self._asked.discard(claim["uid"])
        self._records = {uid: record for uid, record in self._records.items() if uid != claim["uid"]}

    def _holder(self, claim: Record) -> str:
        """The reason why the devices of a prepared claim are in use; "" when they are free.

        They are in use while the claim exists. They are also in use if the claim was prepared since kubelet last
        registered the driver, because kubelet will then unprepare it. kubelet may never unprepare a claim that was
        prepared earlier. If such a claim was deleted, its pods may still run, since its finalizers may have been
        removed. So its devices are free only when the control groups of the pods are gone. Raises CniError when a
        request fails, OSError when reading fails.
        """
        if claim["uid"] in self._asked:
            return _KUBELETS
        if (found := allocated(self._kubeconfig, claim)) is not None:
            self._claims.add_pods(claim, found[1])
            return _KUBELETS
        functions = {one["function"] for one in claim["devices"] if not one["admin"]}
        recorded = attachments.found(directory=f"{self._root}{STATE}")
        links = [one["records"][LINK] for one in recorded if attachments.device_of(one) in functions]
        runs = ", ".join(places.running_pods(self._root, {*claim.get("pods", ()), *(link["pod"][2] for link in links)}))
        return f"the claim is gone, but pod {runs} still runs on this node: delete the pod" if runs else ""

    def _compare_claims(self) -> None:
        """Unprepare the claims that are not in use. A kubelet that has lost its state does not do this. Raises CniError
        when a request fails, OSError when reading fails."""
        for uid, record in self._records.items():
            if not self._holder(record):
                self._unprepare(record)
                self._log.say("info", f"removed: {named(record)} is gone", uid=uid)

    # --- health and metrics ---

    def ready(self) -> tuple[int, str, str]:
        """Return (HTTP status, content type, text) for /readyz: 503 with all faults, or else 200 with limitations."""
        faults = [*self._watch.faults, *filter(None, [self._fault, self._endpoint.fault, self._unpublished])]
        faults += filter(None, (self._refusal(one.name) for one in self._watch.resources))
        policies = _UNMADE if self._watch.config.policies else ""
        lacks = [*self._watch.limits, *self._publisher.lacks, *filter(None, [self._untold, policies])]
        return readiness(faults, lacks)

    def metrics(self) -> tuple[int, str, str]:
        devices = Family("railcni_dra_devices", "Devices by their health.", "resource", "health")
        conflict = Family("railcni_dra_conflict", "1 while a device plugin serves it.", "resource")
        for resource in self._watch.resources:
            faults = [bool(one.offer.fault) for one in self._devices.values() if one.resource.name == resource.name]
            devices.set(faults.count(False), resource.name, "healthy")
            devices.set(faults.count(True), resource.name, "unhealthy")
            conflict.set(resource.name in self._others, resource.name)
        return page(
            devices,
            Family("railcni_dra_claims", "Claims that are prepared on this node.").set(len(self._records)),
            Family("railcni_dra_published", "1 while the ResourceSlices are right.").set(not self._unpublished),
            Family("railcni_dra_registered", "1 while kubelet has the driver.").set(not self._endpoint.fault),
            conflict,
            Counter("railcni_dra_prepared_total", "Claims that kubelet was answered.").set(self._endpoint.prepared),
        )


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    driver = Driver(options, log := AgentLog(options.log_level))
    pages = {"/readyz": driver.ready, "/metrics": driver.metrics}
    return asyncio.run(serve("dra", options.listen, pages, driver.run, log))
