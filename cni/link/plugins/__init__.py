"""The plugins, each a module or folder: configuration, plan (pure), and the code to apply, check and remove a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cni.link.plugins.base import LinkPlugin

LINK_PLUGINS = ("macvlan", "host-device", "sriov")
EXECUTABLES = (*LINK_PLUGINS, "rdma", "whereabouts")  # each is also installed as "railcni-" and its name


def named(name: str) -> LinkPlugin:
    """Load and return the module of the link plugin `name`. Raises LookupError when no link plugin has this name."""
    if name == "macvlan":
        from cni.link.plugins import macvlan  # a call has one link plugin

        return macvlan
    if name == "sriov":
        from cni.link.plugins.sriov import plugin as sriov  # a call has one link plugin

        return sriov
    if name == "host-device":
        from cni.link.plugins.host_device import plugin as host_device  # a call has one link plugin

        return host_device
    raise LookupError(f"no link plugin {name}")
