"""STATUS of a link plugin, which tells whether an ADD could succeed now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cni.link import features
from cni.link.verbs import delegate
from cni.shared.kernel.links import Rtnl

if TYPE_CHECKING:
    from cni.link.plugins.base import LinkPlugin
    from cni.shared.config import Fault
    from cni.shared.log import Log
    from cni.shared.spec.request import Request


def status(plugin: LinkPlugin, request: Request, log: Log) -> None:
    """Raise NotAvailable or LimitedConnectivity when an ADD could not succeed now."""
    faults: list[Fault] = []
    config = plugin.read(request, faults)
    asked = features.read(request, faults)
    delegate.refuse(faults, request)
    with Rtnl() as host:
        features.status(asked, plugin.SHARES_NETDEV, plugin.status(config, host, log))
    delegate.forward(request, log)
