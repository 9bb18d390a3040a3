"""Write the interfaces that ADDs have given to the pods of prepared claims into `status.devices` of the claims.

kubelet prepares a claim before the pod has its network, and does not report when the network is there. So the records
of attachments are read again when their folder has changed, and while an ADD still runs: its record precedes its link.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing
from typing import Any

from cni.node.inventory import attachments
from cni.resources.claims import DRIVER, Record
from cni.shared.records import LINK
from cni.shared.spec.errors import CniError, TryAgainLater
from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Gone
from ipam.stores.apiserver.resources import CLAIMS, replacement
from ipam.stores.base import Unreachable

_MOST_ADDRESSES = 16  # of a device in a status
_SETTLED = 1_000_000_000  # ns, in which a file system's clock ticks: a later change gives the folder another time


class Statuses:
    """The statuses at the API server of `kubeconfig`, from the records below `state`; a request may take `seconds`."""

    def __init__(self, kubeconfig: str, seconds: float, state: str) -> None:
        self._kubeconfig, self._seconds, self._state = kubeconfig, seconds, state
        self._seen: object = None
        self._told: dict[str, list[Record]] = {}

    def tell(self, claims: Collection[Record]) -> None:
        """Write the status of each prepared claim whose records have changed. Raises Unreachable at once, but the first
        other CniError only after all claims, since a claim that the server refuses must not stop the others."""
        changed, now = attachments.changed(self._state), time.time_ns()
        if self._seen == (seen := (changed, [claim["uid"] for claim in claims])):
            return
        self._seen = None
        found, runs = attachments.completed(self._state) if claims else ([], False)
        self._told = {claim["uid"]: self._told.get(claim["uid"], []) for claim in claims}
        fault: CniError | None = None
        for claim in claims:
            if (devices := _devices(claim, found)) != self._told[claim["uid"]]:
                try:
                    self._write(claim, devices)
                    self._told[claim["uid"]] = devices
                except Unreachable:
                    raise
                except CniError as error:
                    fault = fault or error
        if fault:
            raise fault
        if not runs and now - changed > _SETTLED:
            self._seen = seen

    def _write(self, claim: Record, devices: list[Record]) -> None:
        """Replace this driver's devices in the claim's status by `devices`; the devices of other drivers stay."""
        with closing(Api(self._kubeconfig, self._seconds)) as api:
            if (found := read_claim(api, claim)) is None:
                return
            present = (found.get("status") or {}).get("devices") or []
            wanted = [one for one in present if one["driver"] != DRIVER] + devices
            if wanted == present:
                return
            version = found["metadata"]["resourceVersion"]
            change = replacement(claim["uid"], version, {"/status/devices": wanted})
            try:
                api.patch(f"{CLAIMS}/{claim['name']}", "status", change, claim["namespace"])
            except Gone:
                pass
            except Conflict:
                raise TryAgainLater(f"ResourceClaim {claim['namespace']}/{claim['name']} changes meanwhile") from None


def read_claim(api: Api, claim: Record) -> dict[str, Any] | None:
    """The claim at the API server; None when the claim is gone, or its name has another UID now. Raises CniError."""
    try:
        found, _ = api.get(CLAIMS, claim["name"], namespace=claim["namespace"])
    except Gone:
        return None
    return found if found["metadata"]["uid"] == claim["uid"] else None


def _devices(claim: Record, found: Collection[dict[str, Any]]) -> list[Record]:
    """The status entries of the devices of `claim` that its pods have attached. `found` are the node's attachments.

    Each link counts for one entry, since each share of a device has a link of its own.
    """
    links = [one for one in found if LINK in one["records"]]
    own = [one for one in links if one["records"][LINK]["pod"][2] in claim.get("pods", ())]
    entries = []
    for device in claim["devices"]:
        if attached := next((one for one in own if attachments.device_of(one) == device["function"]), None):
            own.remove(attached)
            created = time.gmtime(attached["records"][LINK]["created"] // 1_000_000_000)
            condition = {
                "type": "Ready",
                "status": "True",
                "reason": "Attached",
                "message": f"network {attached['network']}",
                "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", created),
            }
            entry = {"driver": DRIVER, "pool": device["pool"], "device": device["device"], "conditions": [condition]}
            data = attachments.network_data(attached, found)
            data |= {"ips": data["ips"][:_MOST_ADDRESSES]} if "ips" in data else {}
            entries.append(entry | ({"shareID": device["share"]} if device["share"] else {}) | {"networkData": data})
    return entries
