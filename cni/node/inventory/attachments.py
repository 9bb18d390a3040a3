"""The attachments of this node, as the records of the plugins (cni.shared.records) show them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from cni.node.inventory.places import is_alive
from cni.shared import rail
from cni.shared.log import Log
from cni.shared.records import LINK, STATE, Records
from cni.shared.spec import codec
from cni.shared.spec.request import Attachment
from ipam.check import name_of
from ipam.group import rails

_MOST_ADDRESSES = 16  # the limit for `ips` in NetworkDeviceData


def found(network: str = "", directory: str = STATE) -> list[dict[str, Any]]:
    """The attachments, or only those to `network`, as JSON objects with the records of link plugin and IPAM plugin."""
    attachments: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(dict)
    for attachment, part, record in Records(directory, Log("railcni")).all():
        if network in ("", attachment.network):
            attachments[attachment.key()][part] = record
    return [
        {"network": key[0], "containerID": key[1], "ifname": key[2], **_summary(parts), "records": parts}
        for key, parts in sorted(attachments.items())
    ]


def pending(network: str = "", directory: str = STATE) -> list[dict[str, Any]]:
    """The attachments whose addresses a DEL could not release yet. Raises CniError when the records cannot be read."""
    return [a for a in found(network, directory) if a["pending"]]


def named(attachment: dict[str, Any]) -> str:
    """A text for messages that names the attachment and its addresses."""
    addresses = ", ".join(map(str, attachment["addresses"])) or "no address"
    return f"{attachment['network']} {attachment['ifname']} of container {attachment['containerID']} ({addresses})"


def changed(directory: str = STATE) -> int:
    """The time at which a record was last added or removed, in ns since 1970; 0 if there never was a record."""
    try:
        return os.stat(f"{directory}/attachments").st_mtime_ns
    except FileNotFoundError:
        return 0


def completed(directory: str = STATE) -> tuple[list[dict[str, Any]], bool]:
    """Return (the attachments that no plugin call is changing now, whether other attachments were left out)."""
    records, ended, every = Records(directory), [], found(directory=directory)
    for one in every:
        held = records.try_locked(Attachment(one["network"], one["containerID"], one["ifname"]), LINK)
        if held:
            held.release()
            ended.append(one)
    return ended, len(ended) < len(every)


def device_of(attachment: dict[str, Any]) -> str:
    """The PCI address in the record of the attachment, else the configuration's `deviceID`; "" if both are missing."""
    link = attachment["records"].get(LINK) or {}
    config = _config(attachment)
    given = (config.get("runtimeConfig") or {}).get("deviceID") or config.get("deviceID") or ""
    return str(link.get("link", {}).get("pci") or given)


def network_data(attachment: dict[str, Any], every: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The result of the ADD of `attachment`, as NetworkDeviceData of a ResourceClaim. `every` are the node's
    attachments. If `attachment` is one NIC of a group with common IPAM (ipam.group.rails), they include the group's own
    attachment, whose record has the addresses."""
    link = attachment["records"][LINK]["link"]
    mac = link.get("mac") or (link.get("device") or {}).get("mac")
    known = {"interfaceName": attachment["ifname"], "hardwareAddress": mac, "ips": attachment["addresses"]}
    for group in every:
        if group["containerID"] == attachment["containerID"] and not known["ips"]:
            known["ips"] = _of_rail(attachment, group)
    known["ips"] = known["ips"][:_MOST_ADDRESSES]
    return {key: value for key, value in known.items() if value}


def _of_rail(attachment: dict[str, Any], group: dict[str, Any]) -> list[str]:
    """The addresses of `attachment` in the record of `group`, the attachment with the addresses of all NICs of a group
    in the order of rail.ranges; [] if `attachment` is not in this group."""
    names = [attachment["network"], attachment["ifname"]]
    index = next((entry[2] for entry in rails.listed(group["records"].get("ipam")) if entry[:2] == names), None)
    with suppress(KeyError, TypeError, ValueError):
        counts = [len(rail.ranges(value)) for value in _config(attachment)["rail"]["ranges"]]
        if index is not None and sum(counts) == len(group["addresses"]):
            return list(group["addresses"][sum(counts[:index]) : sum(counts[: index + 1])])
    return []


def _config(attachment: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the link plugin's ADD, from the plugin's record; {} if the record has none."""
    try:
        config = codec.loads(((attachment["records"].get(LINK) or {}).get("config") or "{}").encode())
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _summary(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    netns = next((str(p["netns"]) for p in parts.values() if p.get("netns")), "")
    ipam, waits = parts.get("ipam", {}), ""
    if ipam.get("pending") is True:
        place = name_of(ipam["store"]) if isinstance(ipam.get("store"), dict) else "an unknown store"
        waits = f"{place}: {ipam.get('reason') or 'its DEL has not ended'}"
    namespace, name, *_ = next((p["pod"] for p in parts.values() if p.get("pod")), ("", ""))
    return {
        "pod": f"{namespace}/{name}" if name else "",
        "addresses": ipam.get("addresses", []),
        "netns": netns,
        "alive": is_alive(netns) and (not waits or "link" in parts),
        "pending": waits,
    }
