"""The attachments that only railcni can detach: while one of them lives, an uninstall is refused.

The Go plugins do this on the DEL of an attachment that railcni has made:

- macvlan calls its IPAM plugin and deletes the link CNI_IFNAME, of any origin: an attachment with a plain type, and
  with the IPAM of others or none, can be left to it, if a macvlan stays when railcni goes.
- host-device moves the device back under the name that its alias has. MTU, MAC, addresses, routes, alternative names
  and up stay lost: only railcni's record has them.
- sriov finds no cache of its own, does nothing and succeeds: the VF keeps its VLAN and other settings for the next pod.
- host-local and whereabouts read none of railcni's own stores: they find no lease, succeed, and sooner or later give
  the address to a second pod, while the first still answers to it. A lease in whereabouts' pools can be left to it.
- A network of type railcni-… has no plugin at all any more: its pods would never end.

An attachment of an earlier boot needs no DEL: the kernel has forgotten it. Nor does a macvlan whose namespace is gone;
but a physical device then is on the host under the pod's name, and only its record has its own. From a container
(--root) namespaces are not seen, so every attachment of this boot counts as alive.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from cni import plugins
from cni.library.installation.layout import PREFIXED
from cni.library.inventory import attachments as recorded
from cni.shared.kernel import node


def holds(state: str, root: str, remaining: Collection[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The attachments that stand in the way, as `recorded.found` describes them, each with the reason.

    `state` is the state directory, `remaining` the names of plugins that stay installed. CniError when the records
    cannot be read.
    """
    boot_id = node.boot_id()
    for attachment in recorded.found(directory=state):
        parts = attachment["records"].values()
        if any(part.get("bootID", boot_id) == boot_id for part in parts):
            members = {key: value for part in parts for key, value in part.items()}
            if reason := _reason(members, attachment["alive"] or root != "/", remaining):
                yield attachment, reason


def _reason(record: dict[str, Any], alive: bool, remaining: Collection[str]) -> str:
    plugin, network_type = record.get("plugin", ""), _type(record.get("config"))
    if plugin in plugins.LINK_PLUGINS and (reason := plugins.named(plugin).ONLY_OURS):
        return reason
    if not alive:
        return ""
    if network_type in PREFIXED:
        return f"no other plugin detaches a network of type {network_type}"
    if plugin and plugin not in remaining:
        return f"no other plugin {plugin} is there to detach it"
    if record.get("addresses") and not ("whereabouts" in remaining and _is_shared(record)):
        return f"{', '.join(map(str, record['addresses']))} would be given to others too"
    return ""


def _is_shared(record: dict[str, Any]) -> bool:
    """Whether the lease is in the pools of whereabouts."""
    store = record.get("store")
    return isinstance(store, dict) and store.get("kind") == "kubernetes"


def _type(config: Any) -> str:
    try:
        return str(json.loads(config).get("type", ""))
    except (TypeError, ValueError, AttributeError):
        return ""
