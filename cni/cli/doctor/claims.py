"""Checks of pods' ResourceClaims by the records of kubelet and `railcni dra`: preparation, devices, and links.

Source: pkg/kubelet/cm/dra/state in Kubernetes, for the file dra_manager_state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cni.cli.doctor.finding import ADVICE, FAULT, Observation, advice, broken, note, ok
from cni.cli.doctor.pods import AttachedLink
from cni.node.inventory.devices import Port
from cni.node.inventory.functions import ETHER, Function
from cni.node.inventory.sandboxes import NamespaceView
from cni.resources.containers import CDI_FOLDER, DRIVER, Record, cdi_ids, records, records_folder, specification
from cni.shared.kernel.files import read_whole


@dataclass(frozen=True)
class PodClaim:
    """A ResourceClaim that kubelet or the driver (`railcni dra`) has recorded. `pods` has the UIDs of its pods. `record` is
    the driver's; None if the claim is not prepared. `is_specified`: the CDI specification exists, or is not needed."""

    name: str
    pods: tuple[str, ...]
    record: Record | None
    is_specified: bool = True


def read(kubelet: str, root: str = "") -> list[PodClaim]:
    """The claims with this driver's devices in kubelet's file, then those that only the driver has recorded. Raises
    OSError or ValueError if the file or a record cannot be read."""
    entries, found = _entries(f"{kubelet}/dra_manager_state"), []
    prepared = {one["uid"]: one for one in records(records_folder(kubelet))}  # read last: a claim is prepared first
    for entry in entries:
        record = prepared.pop(entry["ClaimUID"], None)
        if record is not None or DRIVER in (entry.get("DriverState") or {}):
            name = f"{entry['Namespace']}/{entry['ClaimName']}"
            has_nodes = record is not None and any(cdi_ids(record, n) for n in range(len(record["devices"])))
            is_specified = not has_nodes or os.path.exists(specification(entry["ClaimUID"], root))
            found.append(PodClaim(name, tuple(entry.get("PodUIDs") or ()), record, is_specified))
    return found + [PodClaim(f"{one['namespace']}/{one['name']}", (), one) for one in prepared.values()]


def _entries(path: str) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = json.loads(json.loads(read_whole(path))["Data"])["ClaimInfoStateList"] or []
        return [entry for entry in entries if entry["ClaimUID"] and entry["Namespace"] and entry["ClaimName"]]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError):
        raise ValueError("dra_manager_state is not as kubelet from 1.34 on writes it") from None


def check_node(claims: Sequence[PodClaim], kubelet: str) -> Iterator[Observation]:
    """Count the prepared claims. Find those whose pods are all gone: kubelet keeps a folder for each pod that is there."""
    prepared = [claim for claim in claims if claim.record is not None]
    lost = [c for c in prepared if not any(os.path.isdir(f"{kubelet}/pods/{uid}") for uid in c.pods)]
    if prepared:
        yield note("ResourceClaims", f"{len(prepared)} prepared, {len(lost)} of them without a pod")
    for claim in lost:
        remedy = "delete the ResourceClaim if no pod will use it, and restart `railcni dra run`, which then forgets it"
        yield advice(f"ResourceClaim {claim.name}", "prepared, and its pods are gone", "a pod", remedy)


def check(
    claims: Sequence[PodClaim],
    sandbox: NamespaceView,
    links: Sequence[AttachedLink],
    functions: Sequence[Function],
    ports: Sequence[Port],
) -> Iterator[Observation]:
    """Find claims that are not prepared, devices that are gone or down, and devices without a link of the pod."""
    known = {function.id: function for function in functions}
    for claim in claims:
        subject = f"ResourceClaim {claim.name}"
        if claim.record is None:
            found = f"kubelet has it for this pod, and {DRIVER} has not prepared it here"
            yield broken(subject, found, "prepared", "see the log of `railcni dra run` on this node, and its /readyz")
            continue
        if not claim.is_specified:
            remedy = "restart `railcni dra run`, which makes it again, and then the pod's containers"
            yield broken(subject, f"its specification in {CDI_FOLDER} is gone", "device nodes for containers", remedy)
        for device in claim.record["devices"]:
            place = f"{device['device']} of {subject}"
            function = known.get(device["function"])
            if function is None and ":" in device["function"]:  # a device of all NICs of a resource has no address
                found = f"{device['function']} is gone, or its driver holds it"
                yield broken(place, found, "on this node", "see the kernel's log, and delete the pod when it is back")
            elif down := [p for p in ports if function and p.device in function.verbs and not p.is_active]:
                found = f"{down[0]} is {down[0].state}"
                yield broken(place, found, "ACTIVE", "see the cable, the switch port and `ip link`")
            elif function and not device["admin"] and not _is_used(function, sandbox, links):
                names = ", ".join(f"{i.name} on {i.lower or i.device}" for i in sandbox.interfaces if i.name != "lo")
                found = f"no link of the pod is on {device['function']}: it has {names or 'none'}"
                wanted = f"the annotation k8s.v1.cni.cncf.io/resourceName: {device['resource']} and without `master`"
                remedy = f"name a network with {wanted} in the pod's annotation"
                level = FAULT if function.link_type == ETHER else ADVICE  # InfiniBand needs no link
                yield Observation(level, place, found, "a link on the device that was allocated", remedy)
            else:
                yield ok(place, f"prepared, {device['resource']}, {device['function']}")


def _is_used(function: Function, sandbox: NamespaceView, links: Sequence[AttachedLink]) -> bool:
    """Whether a link of the pod is a netdev of the function, or a macvlan or the like on such a netdev."""
    return any(i.lower in function.netdevs or i.device == function.id for i in sandbox.interfaces) or any(
        port.device in function.verbs for link in links for port in link.ports
    )
