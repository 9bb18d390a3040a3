"""One file a link plugin: what it reads, what it plans (pure), and how it applies, checks and removes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni.plugins.base import LinkPlugin


def named(name: str) -> LinkPlugin:
    """The link plugin `name`; only its module is loaded."""
    if name == "macvlan":
        from cni.plugins import macvlan

        return macvlan
    if name == "sriov":
        from cni.plugins import sriov

        return sriov
    from cni.plugins import host_device

    return host_device
