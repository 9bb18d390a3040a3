"""The Lease of each node's agent, which tells that the agent lives after its Node object is deleted.

A Lease is named by its node, in a namespace that only has these and the election's. An agent renews its own once a minute: in a
cluster of 500 nodes this makes 8 small requests a second. A Lease belongs to no Node object: it is to outlive that.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ipam.stores.apiserver import Api
from ipam.stores.apiserver.faults import Conflict, Gone

NAMESPACE = "railcni-node-leases"
LEASES = "leases"
BOOT_CLOCK = partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # it goes on while the machine sleeps


def stamp() -> str:
    """The time now, as a Lease has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def document(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A new Lease."""
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def renew(api: Api, node: str, seconds: float) -> None:
    """Renew the Lease of `node`'s agent for `seconds`: one request, two for the first one. CniError."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": max(1, round(seconds)), "renewTime": stamp()}
    try:
        api.patch(LEASES, node, [{"op": "add", "path": "/spec", "value": spec}], NAMESPACE)
    except (Conflict, Gone):
        try:
            api.create(LEASES, document(node, spec), NAMESPACE)
        except Conflict:
            pass  # a former agent of the node has just renewed it
