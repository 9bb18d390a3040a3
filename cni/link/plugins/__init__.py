"""The plugins. Each is a module or folder that reads a configuration, makes a plan without I/O, and carries it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni import load

if TYPE_CHECKING:
    from cni.link.plugins import macvlan, macvlan_made
    from cni.link.plugins.base import LinkPlugin, MadeLinks
    from cni.link.plugins.host_device import plugin as host_device
    from cni.link.plugins.sriov import plugin as sriov

    _: tuple[LinkPlugin, ...] = (macvlan, host_device, sriov)  # mypy compares each with the contract
    _of_made: tuple[MadeLinks, ...] = (macvlan_made, host_device, sriov)

_MODULES = {
    "macvlan": "cni.link.plugins.macvlan",
    "host-device": "cni.link.plugins.host_device.plugin",
    "sriov": "cni.link.plugins.sriov.plugin",
}
LINK_PLUGINS = tuple(_MODULES)
_OF_MADE = {**_MODULES, "macvlan": "cni.link.plugins.macvlan_made"}
EXECUTABLES = (*LINK_PLUGINS, "rdma", "whereabouts")  # each is also installed as "railcni-" and its name


def named(name: str) -> LinkPlugin:
    """Load and return the module of the link plugin `name`. Raises LookupError when no link plugin has this name."""
    if name not in _MODULES:
        raise LookupError(f"no link plugin {name}")
    plugin: LinkPlugin = load(_MODULES[name])
    return plugin


def of_made(name: str) -> MadeLinks:
    """Load and return the module of plugin `name` for existing attachments. Raises LookupError as `named` does."""
    named(name)
    module: MadeLinks = load(_OF_MADE[name])
    return module
