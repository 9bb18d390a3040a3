"""The attachments that this node's records describe, each with all its parts."""

from __future__ import annotations

from typing import Any

from cni.library.inventory.places import is_alive
from cni.shared.log import Log
from cni.shared.records import STATE, Records
from ipam.check import name_of


def found(network: str = "", directory: str = STATE) -> list[dict[str, Any]]:
    """The attachments, each with its parts: what its link plugin and its IPAM plugin have recorded."""
    attachments: dict[tuple[str, str, str], dict[str, Any]] = {}
    for attachment, part, record in Records(directory, Log("railcni")).all():
        if network in ("", attachment.network):
            entry = attachments.setdefault(attachment.key(), {})
            entry[part] = record
    return [
        {"network": key[0], "containerID": key[1], "ifname": key[2], **_summary(parts), "records": parts}
        for key, parts in sorted(attachments.items())
    ]


def pending(network: str = "", directory: str = STATE) -> list[dict[str, Any]]:
    """The attachments whose addresses this node still has to release; CniError."""
    return [a for a in found(network, directory) if a["pending"]]


def named(attachment: dict[str, Any]) -> str:
    """The attachment and its addresses, for people."""
    addresses = ", ".join(map(str, attachment["addresses"])) or "no address"
    return f"{attachment['network']} {attachment['ifname']} of container {attachment['containerID']} ({addresses})"


def _pending(record: dict[str, Any]) -> str:
    """Where a release is pending and why; "" when none is."""
    if record.get("pending") is not True:
        return ""
    store = record.get("store")
    place = name_of(store) if isinstance(store, dict) else "an unknown store"
    return f"{place}: {record.get('reason') or 'its DEL has not ended'}"


def _summary(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    netns = next((str(p["netns"]) for p in parts.values() if p.get("netns")), "")
    waits = _pending(parts.get("ipam", {}))
    namespace, name, *_ = next((p["pod"] for p in parts.values() if p.get("pod")), ("", ""))
    return {
        "pod": f"{namespace}/{name}" if name else "",
        "addresses": parts.get("ipam", {}).get("addresses", []),
        "netns": netns,
        "alive": is_alive(netns) and (not waits or "link" in parts),
        "pending": waits,
    }
