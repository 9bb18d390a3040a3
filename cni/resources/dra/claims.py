"""Prepare the claims of this node's pods: write the records and files that cni/resources/containers.py describes.

A claim's record is written durably before its other files, and removed after them. So if the driver is killed, the next
call for the claim, or the next start, finds in the record which files exist. Answers to kubelet are made from the
record, so a repeated call gets the same answer even when a device has vanished since.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from cni.resources import containers
from cni.resources.containers import DRIVER, PREFIX, Record, cdi_name, named, read_record, specification
from cni.resources.dra.slices import Device
from cni.shared.spec.errors import InvalidConfig, TryAgainLater


class Claims:
    """The prepared claims. Their records are in `folder`, the files for the runtime and Multus below `root`.
    `holder(record)` returns the reason why the devices of a record are in use, or "" when they are free."""

    def __init__(self, folder: str, root: str, holder: Callable[[Record], str]) -> None:
        self._holder = holder
        self._folder = folder
        self._root = root
        self._info = f"{root}{containers.INFO_FOLDER}"

    def records(self) -> list[Record]:
        """All records. Raises OSError when a record cannot be read."""
        return containers.records(self._folder)

    def prepare(self, claim: Record, results: Sequence[Mapping[str, Any]], devices: Mapping[str, Device]) -> Record:
        """Prepare the devices in the allocation `results` for `claim` (uid, namespace, name). Returns its record.

        An existing record of the same devices is kept. `devices` are the node's devices by name. Raises InvalidConfig
        when a device is gone, TryAgainLater when a device cannot be used now, and OSError when writing fails.
        """
        wanted = [
            {
                "request": str(result["request"]).partition("/")[0],  # without the alternative's name
                "pool": result["pool"],
                "device": result["device"],
                "share": result.get("shareID") or "",
                "admin": bool(result.get("adminAccess")),  # access to a device that another claim may have
            }
            for result in results
        ]
        former = read_record(self._folder, claim["uid"])
        if not wanted:
            raise InvalidConfig(f"{named(claim)} has no device of {DRIVER} on this node")
        if former and [{key: one[key] for key in wanted[0]} for one in former["devices"]] == wanted:
            record = former
            self.add_pods(record, claim.get("pods", ()))
        else:
            record = claim | {"devices": [one | _given(one["device"], devices) for one in wanted]}
            self._free(record, {name for name, device in devices.items() if device.resource.is_exclusive})
            for one in record["devices"]:  # one variable of the container names all functions of a resource
                same = [other["device"] for other in record["devices"] if other["resource"] == one["resource"]]
                offers = [devices[name].offer for name in same]
                one["variables"] = containers.variables(devices[one["device"]].resource, offers)
            if former:
                self.unprepare(claim["uid"])  # the claim was allocated again
            containers.write(self._folder, f"{claim['uid']}.json", record, durable=True)
        self._make(record)
        return record

    def add_pods(self, record: Record, pods: Collection[str]) -> None:
        """Add the UIDs `pods` to the claim's record, and write it if it has changed. Raises OSError when writing
        fails."""
        if new := [uid for uid in pods if uid not in record.get("pods", ())]:
            record["pods"] = [*record.get("pods", ()), *new]
            containers.write(self._folder, f"{record['uid']}.json", record, durable=True)

    def _free(self, record: Record, exclusive: Collection[str]) -> None:
        """If another claim has one of the devices of `record`, and the device is in `exclusive`, unprepare that claim.
        Raises TryAgainLater when `holder` says that the claim is in use, so that no two containers have the device."""
        wanted = _held(record).intersection(exclusive)
        for other in self.records():
            if other["uid"] == record["uid"] or not (held := wanted & _held(other)):
                continue
            if holder := self._holder(other):
                raise TryAgainLater(f"{', '.join(sorted(held))} is still prepared for {named(other)}: {holder}")
            self.unprepare(other["uid"])

    def unprepare(self, uid: str) -> None:
        """Remove the files of a claim, and then its record, if there are any. Raises OSError when removing fails."""
        record = read_record(self._folder, uid)
        Path(specification(uid, self._root)).unlink(missing_ok=True)  # a killed driver may leave no record
        others = [other for other in self.records() if other["uid"] != uid]
        used = {(one["resource"], one["function"]) for other in others for one in other["devices"]}
        for one in record["devices"] if record else ():
            if one["file"] and (one["resource"], one["function"]) not in used:
                Path(self._info, containers.info_name(one["resource"], one["function"])).unlink(missing_ok=True)
        Path(self._folder, f"{uid}.json").unlink(missing_ok=True)

    def restore(self) -> list[Record]:
        """After a boot, write the files of all records again, and remove other CDI files. Returns the records."""
        records = self.records()
        for record in records:
            self._make(record)
        wanted = {os.path.basename(specification(record["uid"])) for record in records}
        containers.remove_others(f"{self._root}{containers.CDI_FOLDER}", PREFIX, wanted)
        return records

    def _make(self, record: Record) -> None:
        for one in record["devices"]:
            if one["file"]:
                containers.write(self._info, containers.info_name(one["resource"], one["function"]), one["file"])
        parts = [(cdi_name(record, n), one["nodes"], one["variables"]) for n, one in enumerate(record["devices"])]
        document = containers.cdi_document(containers.KIND, parts)
        if document["devices"]:
            containers.write(*os.path.split(specification(record["uid"], self._root)), document)


def _held(record: Record) -> set[str]:
    """The names of the claim's devices, without devices for admin access."""
    return {one["device"] for one in record["devices"] if not one["admin"]}


def _given(name: str, devices: Mapping[str, Device]) -> Record:
    """The entry of a record for the device `name`. Raises InvalidConfig if it is gone, TryAgainLater if faulty."""
    device = devices.get(name)
    if device is None:
        raise InvalidConfig(f"there is no device {name} any more; there are: {', '.join(devices) or 'none'}")
    if device.offer.fault:
        raise TryAgainLater(f"{name} cannot be used: {device.offer.fault}")
    offer = device.offer
    return {"resource": device.resource.name, "function": offer.name, "nodes": offer.nodes, "file": dict(offer.file)}
