"""The attachments that only railcni can take apart: while one of them lives, an uninstall is refused.

What the Go plugins do when they get the DEL of an attachment that railcni has made:

- macvlan calls its IPAM plugin and deletes the link CNI_IFNAME, whoever made it: an attachment with a plain type, and
  with the IPAM of others or none, can be left to it, if a macvlan is there after railcni has gone.
- host-device moves the device back under the name that its alias has. MTU, MAC, addresses, routes, alternative names
  and up stay lost: railcni's record has them, and Go's plugin does not know it.
- sriov finds no cache of its own, does nothing and succeeds: the VF keeps its VLAN and all that was set, for the next pod.
- host-local and whereabouts know nothing of railcni's file store: they would find no lease, succeed, and sooner or later
  give the address to a second pod, while the first still answers to it.
- A network of type railcni-… has no plugin at all any more: its pods would never end.

An attachment of an earlier boot holds nothing: the kernel has forgotten it. Nor does a macvlan whose namespace is gone;
but a physical device then is on the host under the pod's name, and only its record tells what it was. From a container
(--root) namespaces are not seen, so every attachment of this boot counts as alive.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from cni.cli import attachments
from cni.cli.installation.layout import PREFIXED
from cni.kernel import node


def holds(state: str, root: str, remaining: Collection[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The attachments that stand in the way, as `attachments.found` describes them, each with the reason.

    `state` is the state directory, `remaining` the names of plugins that others will still have installed. CniError
    when the records cannot be read.
    """
    boot_id = node.boot_id()
    for attachment in attachments.found(directory=state):
        parts = list(attachment["records"].values())
        if all(part.get("bootID", boot_id) != boot_id for part in parts):
            continue
        reason = _reason(parts, attachment["alive"] or root != "/", remaining)
        if reason:
            yield attachment, reason


def _reason(parts: list[dict[str, Any]], alive: bool, remaining: Collection[str]) -> str:
    members: dict[str, Any] = {}
    for part in parts:
        members.update(part)
    plugin, kind = members.get("plugin", ""), _type(members.get("config"))
    if plugin == "host-device":
        return "the device would come back without its MTU, MAC, addresses and routes"
    if plugin == "sriov":
        return "the VF would keep what was set for this pod, and its name there"
    if not alive:
        return ""
    if kind in PREFIXED:
        return f"nobody else detaches what is of type {kind}"
    if plugin and plugin not in remaining:
        return f"no other plugin {plugin} is there to detach it"
    if members.get("addresses"):
        return f"{', '.join(map(str, members['addresses']))} would be given to others too"
    return ""


def _type(config: Any) -> str:
    try:
        return str(json.loads(config).get("type", ""))
    except (TypeError, ValueError, AttributeError):
        return ""
